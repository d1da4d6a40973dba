"""Finding pickles by reading them as the unpickler would, without running anything.

A pickle is a program, and it runs up to the point where it breaks: a stream that calls `os.system`
and then ends in garbage has done its harm. So the reader here follows opcodes, stack and memo, and
says "pickle" as soon as something would be called, as well as when the stream is whole. The text
protocols start with ordinary letters; prose is told from them by underflowing the stack at once.
"""

import pickletools
import re
from io import BufferedReader
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    Reader = BufferedReader[Any]
else:
    Reader = BufferedReader

_CALLS: Final = frozenset({"REDUCE", "BUILD", "OBJ", "INST", "NEWOBJ", "NEWOBJ_EX"})
_NAMES: Final = frozenset({"GLOBAL", "INST", "STACK_GLOBAL", "EXT1", "EXT2", "EXT4"})
_OPCODES: Final = {opcode.code.encode("latin-1"): opcode for opcode in pickletools.opcodes}
_LENGTHS: Final = {
    pickletools.TAKEN_FROM_ARGUMENT1: (1, False),
    pickletools.TAKEN_FROM_ARGUMENT4: (4, True),
    pickletools.TAKEN_FROM_ARGUMENT4U: (4, False),
    pickletools.TAKEN_FROM_ARGUMENT8U: (8, False),
}
_HIGHEST_PROTOCOL: Final = 5
_MAX_LINE_KEPT: Final = 4096
# After so many good opcodes a stream needs no more reading. Text gets a longer try: to the
# unpickler, a line of `N` is a row of None.
_ENOUGH: Final = {True: 10_000, False: 1_000_000}
# What C's strtol and PyLong_FromString take, which is more than pickletools does.
_NUMBER: Final = re.compile(rb"\s*[+-]?[0-9a-fA-FxXoObB_]+[lL]?\s*")


class _NotPickle(Exception):
    """The unpickler would stop here, having called nothing."""


class _Ended(Exception):
    """The data ended inside an opcode."""


def is_pickle(stream: Reader) -> bool:
    """Whether unpickling the stream from here would give an object or call a function.

    Reads as far as it must, holding little; a long string or bytes argument is passed over.
    """
    machine = _Machine(stream)
    try:
        return machine.run()
    except _NotPickle:
        return False
    except _Ended:
        # Cut short: a text protocol proves nothing by that, the binary header with opcodes does.
        return machine.binary and machine.opcodes > 1


class _Machine:
    """The unpickler's stack as a count of objects above each mark, and its memo as a set."""

    def __init__(self, stream: Reader) -> None:
        self.stream = stream
        self.opcodes = 0
        self.binary = False  # begins with the header of protocols 2 to 5
        self.named = False  # has named something that could be called
        self.stack = [0]
        self.memo: set[int] = set()

    def run(self) -> bool:
        while code := self.stream.read(1):
            opcode = _OPCODES.get(code)
            if opcode is None:
                raise _NotPickle
            self._apply(opcode, self._argument(opcode))
            self.opcodes += 1
            self.named = self.named or opcode.name in _NAMES
            if opcode.name in _CALLS and (self.binary or self.named):
                return True
            if self.opcodes >= _ENOUGH[self.binary]:
                return True
            if opcode.name == "STOP":
                if self.binary or not self.stream.peek(1):
                    return True
                # One harmless text pickle may come before a harmful one.
                self.stack, self.memo = [0], set()
        raise _Ended

    def _argument(self, opcode: pickletools.OpcodeInfo) -> bytes:
        if opcode.name in ("GLOBAL", "INST"):
            module, name = self._line(), self._line()
            # Prose has spaces and stops; nothing that can be imported does.
            if not self.binary and not all(_is_dotted(part) for part in (module, name)):
                raise _NotPickle
            return b""
        if opcode.arg is None:
            return b""
        if opcode.arg.n == pickletools.UP_TO_NEWLINE:
            return self._line()
        if opcode.arg.n in _LENGTHS:
            width, signed = _LENGTHS[opcode.arg.n]
            length = int.from_bytes(self._exactly(width), "little", signed=signed)
            if length < 0:
                raise _NotPickle
            self._skip(length)
            return b""
        return self._exactly(opcode.arg.n)

    def _apply(self, opcode: pickletools.OpcodeInfo, argument: bytes) -> None:
        match opcode.name:
            case "PROTO":
                if argument[0] > _HIGHEST_PROTOCOL:
                    raise _NotPickle
                self.binary = self.binary or self.opcodes == 0
            case "INT" | "LONG" | "GET" | "PUT" if not _NUMBER.fullmatch(argument):
                raise _NotPickle
            case "FLOAT" if not _is_float(argument):
                raise _NotPickle
            case "STRING" if not re.fullmatch(rb"""(?s)(['"]).*\1\s*""", argument):
                raise _NotPickle
            case "GET" | "BINGET" | "LONG_BINGET":
                if _index(argument, opcode.name) not in self.memo:
                    raise _NotPickle
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self._needs(1)
                self.memo.add(_index(argument, opcode.name))
            case "MEMOIZE":
                self._needs(1)
                self.memo.add(len(self.memo))
            case _:
                pass
        self._move(opcode)

    def _move(self, opcode: pickletools.OpcodeInfo) -> None:
        if opcode.name == "MARK":
            self.stack.append(0)
            return
        if opcode.name == "POP" and self.stack[-1] == 0 and len(self.stack) > 1:
            self.stack.pop()  # POP right above a mark takes the mark
            return
        before = list(opcode.stack_before)
        if pickletools.markobject in before:
            if len(self.stack) == 1:
                raise _NotPickle
            self.stack.pop()
            before = before[: before.index(pickletools.markobject)]
        if opcode.name not in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._needs(len(before))
            self.stack[-1] += len(opcode.stack_after) - len(before)

    def _needs(self, count: int) -> None:
        if self.stack[-1] < count:
            raise _NotPickle

    def _line(self) -> bytes:
        """Up to the newline; of a long line only the beginning and the end are kept."""
        line = self.stream.readline(_MAX_LINE_KEPT)
        if line.endswith(b"\n"):
            return line[:-1]
        kept = line
        while len(line) == _MAX_LINE_KEPT and not line.endswith(b"\n"):
            line = self.stream.readline(_MAX_LINE_KEPT)
        if not line.endswith(b"\n"):
            raise _Ended
        return kept + line[:-1]

    def _exactly(self, count: int) -> bytes:
        data = self.stream.read(count)
        if len(data) < count:
            raise _Ended
        return data

    def _skip(self, count: int) -> None:
        while count > 0:
            data = self.stream.read(min(count, 1 << 16))
            if not data:
                raise _Ended
            count -= len(data)


def _is_dotted(name: bytes) -> bool:
    try:
        return all(part.isidentifier() for part in name.decode().split("."))
    except UnicodeDecodeError:
        return False


def _is_float(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _index(argument: bytes, name: str) -> int:
    if name in ("GET", "PUT"):
        try:
            return int(argument)
        except ValueError:
            raise _NotPickle from None
    return int.from_bytes(argument, "little")
