"""The sections of RESULTS.md, each rewritten by the benchmark that it is of."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

RESULTS: Final = Path(__file__).with_name("RESULTS.md")


def with_section(page: str, section: str) -> str:
    r"""The page with this section in place of the old one.

    A section's first and last lines are its markers.

    >>> with_section("# Results\n<!-- a -->\nold\n<!-- b -->\n", "<!-- a -->\nnew\n<!-- b -->")
    '# Results\n<!-- a -->\nnew\n<!-- b -->\n'

    Raises:
        ValueError: the page has no such section.
    """
    lines = section.splitlines()
    begin, end = lines[0], lines[-1]
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if not pattern.search(page):
        raise ValueError(f"the page has no section between {begin} and {end}; put both back")
    return pattern.sub(lambda _: section, page, count=1)


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a table, its first column aligned left and the others right."""
    yield f"| {' | '.join(columns)} |"
    yield f"|{'|'.join('---' if place == 0 else '--:' for place in range(len(columns)))}|"
    for row in rows:
        yield f"| {' | '.join(row)} |"
