"""Free loopback ports, below the range from which the kernel takes ports for clients.

A port of that range can be taken by any outgoing connection between the moment it is chosen and
the moment its server binds it.
"""

import errno
import random
import socket
from collections.abc import Sequence
from pathlib import Path

from serving.errors import InputError, StackError

LOOPBACK = "127.0.0.1"
FIRST = 12_000
_CLIENT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def is_free(port: int) -> bool:
    """Whether a server could bind `port` on loopback now."""
    try:
        _bind(port)
    except OSError:
        return False
    return True


def _bind(port: int) -> None:
    with socket.socket() as probe:
        # As servers do: a port whose last connections are in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((LOOPBACK, port))


def choose_ports(
    names: Sequence[str], wanted: dict[str, int], rng: random.Random
) -> dict[str, int]:
    """A free port for each name; those in `wanted` are taken as they are.

    Raises:
        InputError: a wanted port is taken, or not this user's to open.
        StackError: not enough free ports.
    """
    for name, port in wanted.items():
        try:
            _bind(port)
        except OSError as error:
            forbidden = error.errno == errno.EACCES
            why = "is not this user's to open" if forbidden else "is taken by another program"
            raise InputError(
                f"port {name}={port} {why}; choose another, or leave it out to have a free one "
                "chosen"
            ) from error
    last = _first_client_port() - 1
    candidates = [p for p in range(FIRST, last) if p not in wanted.values()]
    rng.shuffle(candidates)
    free = (port for port in candidates if is_free(port))
    try:
        return {name: wanted[name] if name in wanted else next(free) for name in names}
    except StopIteration:
        raise StackError(f"no {len(names)} free ports between {FIRST} and {last}") from None


def _first_client_port() -> int:
    try:
        return max(FIRST + 1_000, int(_CLIENT_RANGE.read_text().split()[0]))
    except (OSError, ValueError):
        return 32_768
