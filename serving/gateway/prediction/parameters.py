"""The parameters of a request, of its inputs and of its outputs, each a JSON scalar.

Those that the v2 protocol and Triton's extensions name have their own types. Others are passed
on in the order of their names: a model may read them.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from serving.gateway.prediction.refusal import Refusal, shown

LARGEST_INT64 = 2**63 - 1
LARGEST_INT32 = 2**31 - 1

MAX_PARAMETERS: Final = 64

Scalar = str | int | float | bool
Kind = tuple[str, Callable[[object], bool]]


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= LARGEST_INT64


_BOOL: Final[Kind] = ("true or false", lambda value: type(value) is bool)
_COUNT: Final[Kind] = ("a whole number, 0 or more", _is_count)
_CLASSES: Final[Kind] = (
    "a whole number, 1 or more",
    lambda value: type(value) is int and 1 <= value <= LARGEST_INT32,
)
_SEQUENCE: Final[Kind] = (
    "a whole number or a string",
    lambda value: type(value) is str or _is_count(value),
)

OF_SEQUENCES: Final = ("sequence_", "correlation")
"""How the names of parameters begin that make an answer depend on requests before it."""

_OF_SHARED_MEMORY = "shared_memory_"
_RESERVED = "triton_"

OF_REQUESTS: Final[Mapping[str, Kind]] = {
    "binary_data_output": _BOOL,
    "priority": _COUNT,
    "timeout": _COUNT,
    "sequence_id": _SEQUENCE,
    "sequence_start": _BOOL,
    "sequence_end": _BOOL,
}
OF_INPUTS: Final[Mapping[str, Kind]] = {"binary_data_size": _COUNT}
OF_OUTPUTS: Final[Mapping[str, Kind]] = {"binary_data": _BOOL, "classification": _CLASSES}


def read_parameters(where: str, given: object, known: Mapping[str, Kind]) -> dict[str, Scalar]:
    """The parameters in the order of their names.

    Raises:
        Refusal: naming `where`, if one is not of its type, or names shared memory.
    """
    if not isinstance(given, dict):
        raise Refusal(f"{where}: parameters is not an object; leave it out or send an object")
    if len(given) > MAX_PARAMETERS:
        raise Refusal(f"{where}: has {len(given)} parameters; send at most {MAX_PARAMETERS}")
    for name, value in given.items():
        if name in known:
            words, is_fine = known[name]
            if not is_fine(value):
                raise Refusal(f"{where}: parameter {name} is not {words}")
        else:
            _check_other(where, name, value)
    return dict(sorted(given.items()))


def _check_other(where: str, name: str, value: Any) -> None:
    if name.startswith(_OF_SHARED_MEMORY):
        raise Refusal(
            f"{where}: parameter {shown(name)} names shared memory; send the values in the body"
        )
    if name.startswith(_RESERVED):
        raise Refusal(f"{where}: parameter {shown(name)} is the server's own; leave it out")
    if type(value) not in (str, int, float, bool):
        raise Refusal(
            f"{where}: parameter {shown(name)} is not a scalar; send a string, number or boolean"
        )
    if type(value) is int and not -LARGEST_INT64 - 1 <= value <= LARGEST_INT64:
        raise Refusal(f"{where}: parameter {shown(name)} does not fit 64 bits with a sign")
