"""An entry gives back what was stored under its key, or nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.gateway.prediction.answer import Answer
from serving.gateway.prediction.entry import Claim, decode, encode, encode_claim

SECRET = b"of sixteen bytes"
keys = st.binary(max_size=40)
answers = st.builds(
    Answer,
    status=st.just(200),
    body=st.binary(max_size=300),
    header_length=st.none() | st.integers(0, 2**32 - 2),
    content_type=st.text(st.characters(codec="utf-8"), max_size=40),
)


@given(keys, answers)
def test_an_answer_comes_back_as_it_was_stored(key: bytes, answer: Answer) -> None:
    assert decode(key, encode(key, answer, SECRET), SECRET) == answer


@given(keys, st.binary(max_size=20))
def test_a_claim_comes_back_with_whose_it_is(key: bytes, owner: bytes) -> None:
    assert decode(key, encode_claim(key, owner, SECRET), SECRET) == Claim(owner)


@given(keys, answers, st.data())
def test_an_entry_cut_short_or_made_longer_is_nothing(
    key: bytes, answer: Answer, data: st.DataObject
) -> None:
    for entry in (encode(key, answer, SECRET), encode_claim(key, b"owner", SECRET)):
        assert decode(key, entry[: data.draw(st.integers(0, len(entry) - 1))], SECRET) is None
        assert decode(key, entry + data.draw(st.binary(min_size=1, max_size=20)), SECRET) is None


@given(keys, answers, st.data())
def test_an_entry_with_one_bit_flipped_is_nothing(
    key: bytes, answer: Answer, data: st.DataObject
) -> None:
    for entry in (encode(key, answer, SECRET), encode_claim(key, b"owner", SECRET)):
        bit = data.draw(st.integers(0, len(entry) * 8 - 1))
        flipped = bytearray(entry)
        flipped[bit // 8] ^= 1 << bit % 8
        assert decode(key, bytes(flipped), SECRET) is None


def test_every_single_bit_of_an_entry_counts() -> None:
    entry = encode(b"key", Answer(200, b"body", 2, "type"), SECRET)
    for bit in range(len(entry) * 8):
        flipped = bytearray(entry)
        flipped[bit // 8] ^= 1 << bit % 8
        assert decode(b"key", bytes(flipped), SECRET) is None


@given(keys, keys, answers)
def test_an_entry_is_nothing_under_another_key(key: bytes, other: bytes, answer: Answer) -> None:
    entry = encode(key, answer, SECRET)
    assert (decode(other, entry, SECRET) == answer) is (key == other)


@given(st.binary(min_size=1, max_size=40), st.integers(0, 40), answers)
def test_bytes_moved_between_key_and_entry_are_noticed(
    key: bytes, cut: int, answer: Answer
) -> None:
    entry = encode(key, answer, SECRET)
    assert decode(key[:cut], entry[:20] + key[cut:] + entry[20:], SECRET) == (
        answer if cut >= len(key) else None
    )


@given(keys, answers, st.binary(min_size=16, max_size=64).filter(lambda secret: secret != SECRET))
def test_an_entry_made_with_another_secret_is_nothing(
    key: bytes, answer: Answer, secret: bytes
) -> None:
    assert decode(key, encode(key, answer, secret), SECRET) is None
    assert decode(key, encode_claim(key, b"owner", secret), SECRET) is None


@given(keys, st.binary(max_size=200))
def test_bytes_from_elsewhere_are_nothing(key: bytes, data: bytes) -> None:
    assert decode(key, data, SECRET) is None


@pytest.mark.parametrize("status", [0, 201, 206, 400, 503])
def test_no_entry_is_made_of_an_answer_that_is_not_of_status_200(status: int) -> None:
    with pytest.raises(ValueError, match=f"status={status}"):
        encode(b"key", Answer(status, b"", None, "application/json"), SECRET)


@pytest.mark.parametrize(
    ("header_length", "content_type"),
    [(2**32 - 1, "x"), (-1, "x"), (None, "x" * 65_536), (None, "\ud800")],
)
def test_no_entry_is_made_of_an_answer_that_does_not_fit(
    header_length: int | None, content_type: str
) -> None:
    with pytest.raises(ValueError, match=r"longer than|can't encode"):
        encode(b"key", Answer(200, b"", header_length, content_type), SECRET)
