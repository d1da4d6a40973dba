"""A YAML file as one mapping of plain values, or one error that names file, line and fix.

YAML allows more than a spec should say. Here `no`, `010` and `1:30` stay the text that was written
(YAML 1.1 makes them False, 8 and 90), a key is stated once, and nothing refers to anything else, so
a small file cannot unfold into a large one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from serving.errors import SpecError

LARGEST_BYTES = 1024 * 1024
DEEPEST = 20

Key = str | int


class _Refusal(Exception):
    """Something that this kind of YAML does not say; never seen outside this file."""

    def __init__(self, line: int, rule: str, fix: str) -> None:
        super().__init__(f"line {line} {rule}; {fix}")


class _Loader(yaml.SafeLoader):
    """Scalars by YAML 1.2's rules; no tags, anchors, repeated keys or deep nesting."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = 0
        self.repeated: list[str] = []

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _Refusal(line, "uses an anchor or alias", "write the value where it is used")
        if getattr(event, "tag", None) is not None:
            raise _Refusal(line, f"uses the tag {event.tag}", "write the value plainly")
        if self.depth == DEEPEST:
            raise _Refusal(
                line, f"nests deeper than {DEEPEST} levels", "no spec needs that; flatten it"
            )
        self.depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        values: dict[Key, Any] = {}
        lines: dict[Key, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = self.construct_object(key_node, deep=True)
            if type(key) not in (str, int):
                raise _Refusal(line, f"has the key {key!r}, which is not text", "put it in quotes")
            if key in lines:
                self.repeated.append(
                    f"line {line} repeats the key {key!r} of line {lines[key]}; keep one of them"
                )
            values[key] = self.construct_object(value_node, deep=deep)
            lines.setdefault(key, line)
        return values


# More digits than a 64-bit number has would be refused later anyway, and Python reads them slowly.
_PLAIN: tuple[tuple[str, str, str], ...] = (
    ("null", r"~|null|", "~n\0"),
    ("bool", r"true|false", "tf"),
    ("int", r"[-+]?(?:0|[1-9][0-9]{0,19})", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:[0-9]{1,40}\.[0-9]{0,40}|\.[0-9]{1,40})(?:[eE][-+]?[0-9]{1,4})?",
        "-+.0123456789",
    ),
    ("float", r"[-+]?[0-9]{1,40}[eE][-+]?[0-9]{1,4}", "-+0123456789"),
)
_Loader.yaml_implicit_resolvers = {}
for _kind, _pattern, _first in _PLAIN:
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}",
        re.compile(rf"\A(?:{_pattern})\Z"),
        ["" if first == "\0" else first for first in _first],
    )


def read_mapping(path: Path) -> dict[Key, Any]:
    """The mapping that the file at `path` holds.

    Raises:
        SpecError: if the file cannot be read, or is not one mapping in plain YAML.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SpecError([f"{path}: cannot be read: {reason}; check the path"]) from error
    return parse_mapping(content, str(path))


def parse_mapping(content: bytes, file: str) -> dict[Key, Any]:
    """The mapping that `content` holds; `file` is its name in messages.

    Raises:
        SpecError: if it is not one mapping in plain YAML.
    """
    if len(content) > LARGEST_BYTES:
        raise SpecError([f"{file}: larger than 1 MiB; a spec is a page, move data out of it"])
    try:
        text = content.decode("utf-8-sig")
        loader = _Loader(text)
        document = loader.get_single_data()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise SpecError([f"{file}: line {line} is not UTF-8; save the file as UTF-8"]) from error
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise SpecError([f"{file}: line {line} has a control character; remove it"]) from error
    except yaml.composer.ComposerError as error:
        line = _line(error)
        raise SpecError(
            [f"{file}: line {line} starts a second document; keep one per file"]
        ) from error
    except yaml.MarkedYAMLError as error:
        problem = " ".join(filter(None, (error.problem, error.context)))
        raise SpecError([f"{file}: line {_line(error)}: {problem}; mend the YAML there"]) from error
    except _Refusal as error:
        raise SpecError([f"{file}: {error}"]) from error
    if loader.repeated:
        raise SpecError([f"{file}: {fault}" for fault in loader.repeated])
    if not isinstance(document, dict):
        kind = {type(None): "nothing", list: "a list"}.get(type(document), "a single value")
        raise SpecError(
            [f"{file}: line 1 holds {kind}, not a mapping; start with name: and a name"]
        )
    return document


def _line(error: yaml.MarkedYAMLError) -> int:
    mark = error.problem_mark or error.context_mark
    return mark.line + 1 if mark else 1
