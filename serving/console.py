"""What every command shares: its common options, tables, progress, and JSON for machines."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Env = Annotated[str, typer.Option("--env", help="Environment: local, dev, staging, prod.")]


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def say(line: str) -> None:
    """A line for people, on standard error, so that standard output stays for results."""
    sys.stderr.write(f"{line}\n")


def print_line(line: str) -> None:
    """A line of the result, on standard output."""
    sys.stdout.write(f"{line}\n")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
    """A table on standard output; numbers are aligned right."""
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", header_style="bold")
    for place, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[place], int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    _console(stderr=False).print(table)


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _console(*, stderr: bool) -> "Console":
    from rich.console import Console

    # Piped output is not a terminal of 80 columns: nothing in it may be cut.
    wide = None if (sys.stderr if stderr else sys.stdout).isatty() else 200
    return Console(stderr=stderr, width=wide, highlight=False, markup=False)


@contextmanager
def byte_progress(label: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """A progress bar in bytes on standard error; yields what is told of each piece that is done.

    Drawn on a terminal only, so that logs stay readable.
    """
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    console = _console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(label, total=total_bytes)
        yield lambda done: progress.advance(task, done)


@contextmanager
def step_progress(label: str, total: int) -> Iterator[Callable[[int, str], None]]:
    """A progress bar in steps on standard error; yields a setter of (steps done, what is going on).

    Where there is no terminal, each new text is a line of its own.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = _console(stderr=True)
    if not console.is_terminal:
        said = ""

        def tell(_: int, text: str) -> None:
            nonlocal said
            if text and text != said:
                said = text
                say(f"{label}: {text}")

        yield tell
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(label, total=total, text="")
        yield lambda done, text: progress.update(task, completed=done, text=text)


def short(digest: str) -> str:
    """A digest as people compare it: `sha256:` and twelve digits."""
    return digest[:19]


def mebibytes(size_bytes: int) -> str:
    """A size as people read it."""
    return f"{size_bytes / 2**20:.1f} MiB"
