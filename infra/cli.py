"""The `galley` command."""


def main() -> None:
    """Run the command line."""
