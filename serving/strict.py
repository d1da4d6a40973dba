"""`Strict`, the base of every model that is read from a file, and the sentences its faults become.

Who mends one mistake only to be told of the next stops trusting the tool, so one run reports
everything. Pydantic alone cannot: a model with one bad field never reaches its own validators.

    data ──► each field is read alone ──► rules run on what was read ──► one error, all faults
                   │ bad: an `Unread` stands in      │ touches an `Unread`: that rule ends

The outermost model collects, whatever it is, so a spec and a part of a spec report alike.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

Location = tuple[str | int, ...]

ABSENT = object()
"""The value of a fault about something that is not there."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A broken rule: at `where` stands `value`; `rule` says what is wrong, `fix` what to do."""

    where: Location
    value: object
    rule: str
    fix: str


class Rule:
    """Decorator of a method that yields the faults of one rule; each rule runs on its own."""

    def __init__(self, check: Callable[[Any], Iterator[Fault]]) -> None:
        self.check = check
        self.__doc__ = check.__doc__


class _Untouchable(Exception):
    """A rule looked at a value that could not be read; never seen outside this file."""


class Unread:
    """Stands for a value that could not be read, and ends any rule that looks at it."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)

    def __getattr__(self, name: str) -> NoReturn:
        raise _Untouchable


def _touch(*_: object) -> NoReturn:
    raise _Untouchable


# Python looks these up on the class, where `__getattr__` does not reach.
_OPERATORS = (
    *("bool", "str", "format", "hash", "eq", "ne", "lt", "le", "gt", "ge"),
    *("len", "iter", "contains", "getitem", "index", "int", "float", "neg"),
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv"),
    *("floordiv", "rfloordiv", "mod", "rmod"),
)
for _operator in _OPERATORS:
    setattr(Unread, f"__{_operator}__", _touch)


_depth: ContextVar[int] = ContextVar("depth of the model that is being read", default=0)


class Strict(BaseModel):
    """A frozen model that refuses unknown keys, guesses no types and reports all its faults.

    Raises:
        ValidationError: with one line error for each fault, when the outermost model is done.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, ignored_types=(Rule,)
    )

    _key_faults: tuple[Fault, ...] = PrivateAttr(())

    @field_validator("*", mode="wrap")
    @classmethod
    def _keep_going(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if isinstance(value, Unread):
            return value
        try:
            return handler(value)
        except ValidationError as error:
            return Unread([_worded(line) for line in error.errors(include_url=False)])

    @model_validator(mode="wrap")
    @classmethod
    def _collect(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(data, Mapping):
            return handler(data)
        outermost = _depth.get() == 0
        known, key_faults = cls._known(_with_tuples(data) if outermost else data)
        token = _depth.set(_depth.get() + 1)
        try:
            model = handler(known)
        finally:
            _depth.reset(token)
        if key_faults:
            model._key_faults = key_faults
        if outermost and (faults := list(_faults(model, ()))):
            raise ValidationError.from_exception_data(cls.__name__, [_line(f) for f in faults])
        return model

    @classmethod
    def _known(cls, data: Mapping[Any, Any]) -> tuple[dict[str, Any], tuple[Fault, ...]]:
        """`data` with every key a field; what was unknown or missing becomes faults.

        A misspelled key is read as the one that was meant, so that the rules can still judge it.
        """
        fields = cls.model_fields
        known = {key: value for key, value in data.items() if key in fields}
        faults = []
        for key in [key for key in data if key not in fields]:
            meant = nearest(str(key), [name for name in fields if name not in data])
            fix = f"did you mean {meant}" if meant else f"use one of {', '.join(fields)}"
            faults.append(Fault((key,), data[key], "is not a known key", fix))
            if meant is not None:
                known.setdefault(meant, data[key])
        for name, field in fields.items():
            if field.is_required() and name not in known:
                fault = Fault((name,), ABSENT, "is missing", f"add it: {field.description}")
                known[name] = Unread([replace(fault, where=())])
        return known, tuple(faults)


def refuse(rule: str, fix: str) -> PydanticCustomError:
    """What the validator of one value raises."""
    return PydanticCustomError("fault", "{rule}; {fix}", {"rule": rule, "fix": fix})


def nearest(word: str, words: Sequence[str]) -> str | None:
    """The one of `words` that `word` was probably meant to be."""
    spelled = {known.casefold(): known for known in words}
    found = difflib.get_close_matches(word.casefold(), list(spelled), n=1)
    return spelled[found[0]] if found else None


def tagged(value: object) -> str:
    """The `kind` of one variant of a union; empty when it states none."""
    kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
    return kind if isinstance(kind, str) else ""


def _with_tuples(value: Any) -> Any:
    """`value` with lists as tuples: files hold lists, frozen models hold tuples."""
    if isinstance(value, list | tuple):
        return tuple(_with_tuples(item) for item in value)
    if isinstance(value, Mapping):
        return {key: _with_tuples(item) for key, item in value.items()}
    return value


def _faults(value: object, where: Location) -> Iterator[Fault]:
    """Every fault in and under `value`, parts before the rules that join them."""
    if isinstance(value, Unread):
        for fault in value.faults:
            yield replace(fault, where=where + fault.where)
    elif isinstance(value, Strict):
        for name in type(value).model_fields:
            yield from _faults(getattr(value, name), (*where, name))
        for fault in value._key_faults:
            yield replace(fault, where=where + fault.where)
        yield from _broken_rules(value, where)
    elif isinstance(value, tuple | Mapping):
        entries = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, item in entries:
            yield from _faults(item, (*where, key))


def _broken_rules(model: Strict, where: Location) -> Iterator[Fault]:
    rules = (item for kind in type(model).__mro__ for item in vars(kind).values())
    for rule in rules:
        if isinstance(rule, Rule):
            with suppress(_Untouchable):
                for fault in rule.check(model):
                    yield replace(fault, where=where + fault.where)


def _line(fault: Fault) -> InitErrorDetails:
    return InitErrorDetails(type=refuse(fault.rule, fault.fix), loc=fault.where, input=fault.value)


WORDING: Mapping[str, tuple[str, str]] = {
    "fault": ("{rule}", "{fix}"),
    "int_type": ("is not a whole number", "write it plainly, such as 8"),
    "int_from_float": ("is not a whole number", "write it plainly, such as 8"),
    "float_type": ("is not a number", "write it plainly, such as 0.5"),
    "finite_number": ("is not a finite number", "write it plainly, such as 0.5"),
    "bool_type": ("is neither true nor false", "write true or false"),
    "string_type": ("is not text", "put it in quotes"),
    "string_too_short": ("is empty", "write it out"),
    "tuple_type": ("is not a list", "write it in brackets, one entry too"),
    "too_short": ("has fewer entries than {min_length}", "write at least {min_length}"),
    "dict_type": ("is not a mapping", "write it as keys and values"),
    "mapping_type": ("is not a mapping", "write it as keys and values"),
    "model_type": ("is not a mapping", "write it as keys and values"),
    "greater_than": ("is not above {gt}", "use a value above {gt}"),
    "greater_than_equal": ("is below {ge}", "use {ge} or more"),
    "less_than": ("is not below {lt}", "use a value below {lt}"),
    "less_than_equal": ("is above {le}", "use {le} or less"),
    "literal_error": ("is not one of {expected}", "{instead}"),
    "union_tag_invalid": ("is not one of {expected_tags}", "{instead}"),
}
"""Pydantic's type of error → what is wrong, what to do."""


def _worded(error: ErrorDetails) -> Fault:
    """A line error of pydantic in galley's words."""
    kind, where, value = error["type"], error["loc"], error["input"]
    context = {
        key: f"{item:g}" if isinstance(item, float) else str(item)
        for key, item in error.get("ctx", {}).items()
    }
    if kind == "union_tag_invalid":
        # The mistake is the tag, so the sentence is about the tag and not the mapping around it.
        where, value = (*where, "kind"), context["tag"] or ABSENT
    choices = re.findall(r"'([^']*)'", context.get("expected", context.get("expected_tags", "")))
    meant = nearest(str(value), choices)
    context |= {
        "expected": ", ".join(choices),
        "expected_tags": ", ".join(choices),
        "instead": f"did you mean {meant}" if meant else "use one of these",
    }
    rule, fix = WORDING.get(kind, (error["msg"].replace("{", "{{").replace("}", "}}"), "mend it"))
    return Fault(where, value, rule.format(**context), fix.format(**context))


class _Short(reprlib.Repr):
    """Values as the file spells them, cut to fit a line."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlist, self.maxdict, self.maxstring, self.maxother = 4, 8, 4, 60, 60

    def repr_tuple(self, x: tuple[Any, ...], level: int) -> str:
        return self.repr_list(list(x), level)

    def repr_bool(self, x: bool, level: int) -> str:
        return str(x).lower()

    def repr_float(self, x: float, level: int) -> str:
        return repr(x).removesuffix(".0")

    def repr_NoneType(self, x: None, level: int) -> str:
        return "null"


LONGEST_VALUE = 100
_short = _Short()


def shown(value: object) -> str:
    """`value` on one line, as the file spells it and not longer than a line bears."""
    plain = isinstance(value, str) and value.isprintable() and value == value.strip() != ""
    text = str(value) if plain else _short.repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


def spelled(where: Location) -> str:
    """A field path as people write it.

    >>> spelled(("inputs", 0, "dims"))
    'inputs[0].dims'
    """
    # Pydantic marks an error about the key of a mapping with a last part of its own.
    parts = [
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in where if part != "[key]"
    ]
    return "".join(parts).removeprefix(".")


def sentence(model: str, fault: Fault) -> str:
    """`model: field=value rule; fix`."""
    parts = [spelled(fault.where), "" if fault.value is ABSENT else shown(fault.value)]
    return f"{model}: {'='.join(filter(None, parts))} {fault.rule}; {fault.fix}"


def sentences(model: str, error: ValidationError) -> tuple[str, ...]:
    """Every line error as one sentence about `model`."""
    return tuple(sentence(model, _worded(line)) for line in error.errors(include_url=False))
