"""The `galley` command.

Only typer is imported to show help; each command imports what it uses when it runs.
"""

import errno
import sys
from typing import Annotated

import typer

import loadtest.commands
import serving.capacity.commands
import serving.commands
import serving.local.client_commands
import serving.local.commands
import serving.registry.commands
from serving.console import Json, print_json, print_line, print_table, say, short
from serving.errors import GalleyError, InfrastructureError

app = typer.Typer(
    name="galley",
    help="Takes a trained model to a production endpoint and keeps it there.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
serving.local.commands.add_to(app)
serving.local.client_commands.add_to(app)
serving.registry.commands.add_to(app)
serving.commands.add_to(app)
serving.capacity.commands.add_to(app)
loadtest.commands.add_to(app)


@app.callback(invoke_without_command=True)
def version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Takes a trained model to a production endpoint and keeps it there."""
    if version:
        from importlib.metadata import version as installed

        print_line(f"galley {installed('galley')}")
        raise typer.Exit


@app.command()
def demo(home: serving.local.commands.HomeOption = None, json: Json = False) -> None:
    """Start the local stack, publish two models, and check their answers to real input."""
    from dataclasses import asdict

    from serving.console import step_progress
    from serving.demo import MODELS, run

    where = serving.local.commands.home_of(home)
    steps = 2 + 3 * len(MODELS)
    with step_progress("demo", steps) as tell:
        done = 0

        def told(text: str) -> None:
            nonlocal done
            tell(done, text)
            done += 1

        state, checks = run(where, told)
        tell(steps, "done")
    good = all(check.agreed == check.requests for check in checks)
    if json:
        print_json({"passed": good, "checks": [asdict(check) for check in checks]})
    else:
        print_table(
            ("model", "version", "digest", "requests", "agreed", "p50 ms", "p99 ms", "against"),
            [
                (
                    *(check.model, check.version, short(check.digest)),
                    *(check.requests, check.agreed),
                    *(f"{check.p50_ms:.1f}", f"{check.p99_ms:.1f}", check.reference),
                )
                for check in checks
            ],
        )
        print_table(
            ("model", "asked about", "answered"),
            [(check.model, *example) for check in checks for example in check.examples],
        )
        verdict = "all answers agree" if good else "ANSWERS DIFFER"
        print_line(f"{verdict}; gateway {state.gateway_url}")
        print_line("try:  galley predict filetype --file README.md")
        print_line("see:  galley status    stop: galley down")
    if not good:
        raise typer.Exit(1)


def main() -> None:
    """Run the command line; a failure on purpose is one line and an exit code."""
    try:
        app()
    except GalleyError as error:
        _fail(error)
    except OSError as error:
        if error.errno in _DISK:
            _fail(InfrastructureError(f"disk: {error.filename or 'a file'}: {_DISK[error.errno]}"))
        raise
    except KeyboardInterrupt:
        say("galley: interrupted")
        sys.exit(130)


_DISK = {
    errno.ENOSPC: "no space left; free some and run the same command again",
    errno.EDQUOT: "the quota is used up; free some and run the same command again",
    errno.EFBIG: "larger than this system lets a file be",
    errno.EROFS: "the file system is read-only; use another folder",
    errno.EACCES: "this user may not use it; have its owner allow it, or use another",
    errno.ENOTDIR: "a file is where a folder must be; use another folder",
    errno.EEXIST: "a file is where a folder must be; use another folder",
    errno.ENAMETOOLONG: "its name is longer than this system lets a name be",
}


def _fail(error: GalleyError) -> None:
    if "--json" in sys.argv:
        print_json({"error": str(error).splitlines(), "exit_code": error.exit_code})
    for line in str(error).splitlines():
        say(f"galley: {line}")
    sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
