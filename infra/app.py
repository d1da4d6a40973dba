"""The CDK app: every stack of every environment. `cdktf synth` runs it; there is no stack yet."""

from cdktn import App


def main() -> None:
    """Write the synthesized stacks to the output folder of cdktf.json."""
    App().synth()


if __name__ == "__main__":
    main()
