"""What a body came to is remembered for that body, that version, and as long as that is served."""

from dataclasses import replace

import pytest

from serving.gateway.prediction.known import LARGEST_BODY_BYTES, Known, KnownBodies, Name, name_of
from serving.gateway.prediction.schema import ModelSchema, Served

SERVED = Served("m", 1, "sha256:a", ModelSchema((), (), 0), 1.0)


def named(
    served: Served = SERVED,
    version: str = "1",
    client: str | None = None,
    length: str | None = None,
    body: bytes = b"{}",
) -> Name:
    name = name_of(served, version, client, length, body)
    assert name is not None
    return name


def test_everything_that_an_answer_depends_on_is_part_of_the_name() -> None:
    names = [
        named(),
        named(replace(SERVED, digest="sha256:b")),
        named(version="2"),
        named(client="ads"),
        named(client="feed"),
        named(length="2"),
        named(length="1"),
        named(body=b"{} "),
    ]
    assert len(set(names)) == len(names)
    assert named() == named()


def test_a_version_that_is_served_otherwise_now_is_not_known() -> None:
    bodies = KnownBodies()
    bodies.add(named(), Known(SERVED, b"key"))
    assert bodies.get(named(), SERVED) == Known(SERVED, b"key")
    # Equal is not enough: comparing all of a schema would cost what is to be saved.
    assert bodies.get(named(), replace(SERVED)) is None
    assert bodies.get(named(body=b"[]"), SERVED) is None


def test_the_first_one_makes_room_for_the_next() -> None:
    bodies = KnownBodies(most=2)
    names = [named(body=bytes([number])) for number in range(3)]
    for name in (*names[:2], *names[:2], names[2]):
        bodies.add(name, Known(SERVED, b"key"))
    assert [bodies.get(name, SERVED) is not None for name in names] == [False, True, True]
    assert len(bodies) == 2


@pytest.mark.parametrize(("size", "named"), [(LARGEST_BODY_BYTES, True), (2**20, False)])
def test_large_bodies_are_not_looked_at(size: int, named: bool) -> None:
    assert (name_of(SERVED, "1", None, None, bytes(size)) is not None) == named
