"""Every error galley raises on purpose, and the exit code each one ends a command with.

    GalleyError            1  the thing asked for was done and the answer is no
    ├── InputError         2  what was given cannot be used: a spec, a name, a file, a flag
    │   ├── SpecError         a model spec breaks rules; lists every one of them
    │   └── ArtifactError     a model file is not what the spec or the registry may hold
    ├── ConflictError      1  somebody else got there first
    ├── IntegrityError     1  bytes or signature are not those that were published
    └── InfrastructureError 5 a server, a disk or a port
        ├── StoreError        the object store
        └── StackError        the local stack

A message is one line: what, value, rule, fix; lower case, no final period.
"""

from collections.abc import Sequence


class GalleyError(Exception):
    """A failure that is told to the user in one line, without a traceback."""

    exit_code = 1


class InputError(GalleyError):
    """What was given cannot be used."""

    exit_code = 2


class SpecError(InputError):
    """A spec breaks one or more rules."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


class ArtifactError(InputError):
    """A model file may not be published or loaded."""


class ConflictError(GalleyError):
    """Somebody else got there first; nothing was changed."""


class IntegrityError(GalleyError):
    """Bytes or a signature are not those that were published; nothing was loaded."""


class InfrastructureError(GalleyError):
    """A server, a disk or a port did not do what it must."""

    exit_code = 5


class StoreError(InfrastructureError):
    """The object store cannot be reached or refuses."""


class StackError(InfrastructureError):
    """The local stack cannot start or be driven."""
