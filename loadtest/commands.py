"""The commands about load tests: galley judge, galley loadtest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadtest import judge_command, loadtest_command

if TYPE_CHECKING:
    import typer


def add_to(app: typer.Typer) -> None:
    """Add them."""
    app.command(name="judge", help=judge_command.ABOUT)(judge_command.judge)
    app.command(name="loadtest", help=loadtest_command.ABOUT)(loadtest_command.loadtest)
