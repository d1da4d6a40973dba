"""Every fault of a file in one run, each as one sentence."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Discriminator, Field, Tag, ValidationError

from serving.strict import (
    LONGEST_VALUE,
    WORDING,
    Fault,
    Rule,
    Strict,
    nearest,
    sentences,
    shown,
    tagged,
)


class Oven(Strict):
    kind: Literal["oven"]
    shelves: int = Field(ge=1, description="number of shelves")
    trays: tuple[int, ...] = Field(default=(), description="size of each tray")

    @Rule
    def _trays_fit(self) -> Iterator[Fault]:
        if len(self.trays) > self.shelves:
            yield Fault(
                ("trays",), self.trays, f"has more than shelves={self.shelves}", "bake less"
            )

    @Rule
    def _trays_have_a_size(self) -> Iterator[Fault]:
        for place, size in enumerate(self.trays):
            if size < 1:
                yield Fault(("trays", place), size, "is no size", "use 1 or more")


class Pan(Strict):
    kind: Literal["pan"]
    lid: bool = Field(default=False, description="whether it has a lid")


class Kitchen(Strict):
    cook: str = Field(description="who cooks")
    stove: Annotated[
        Annotated[Oven, Tag("oven")] | Annotated[Pan, Tag("pan")], Discriminator(tagged)
    ] = Field(description="what is cooked on")
    spices: Mapping[str, int] = Field(default={}, description="grams by name")
    rent: float = Field(default=1.0, gt=0, description="in USD a month")

    @Rule
    def _cook_can_bake(self) -> Iterator[Fault]:
        if isinstance(self.stove, Oven) and self.cook == "frank":
            yield Fault(("cook",), self.cook, "cannot bake", "hire somebody else")


OVEN = {"kind": "oven", "shelves": 2, "trays": [1, 2]}


def faults(data: object) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        Kitchen.model_validate(data)
    return list(sentences("soup", caught.value))


def test_a_good_file_is_read_and_cannot_be_changed() -> None:
    kitchen = Kitchen.model_validate({"cook": "ann", "stove": OVEN, "spices": {"salt": 3}})
    assert isinstance(kitchen.stove, Oven)
    assert kitchen.stove.trays == (1, 2)
    with pytest.raises(ValidationError, match="frozen"):
        kitchen.cook = "bob"  # type: ignore[misc]


def test_types_keys_and_rules_of_every_part_are_reported_in_one_run() -> None:
    data = {
        "cook": "frank",
        "stove": {"kind": "oven", "shelves": 1, "trays": [0, 2], "colour": "red"},
        "spices": {"salt": "much"},
        "rent": -1,
    }
    assert faults(data) == [
        "soup: stove.colour=red is not a known key; use one of kind, shelves, trays",
        "soup: stove.trays=[0, 2] has more than shelves=1; bake less",
        "soup: stove.trays[0]=0 is no size; use 1 or more",
        "soup: spices.salt=much is not a whole number; write it plainly, such as 8",
        "soup: rent=-1 is not above 0; use a value above 0",
        "soup: cook=frank cannot bake; hire somebody else",
    ]


def test_a_rule_that_needs_an_unreadable_value_is_silent_and_the_others_still_speak() -> None:
    assert faults({"cook": "ann", "stove": {**OVEN, "shelves": "two", "trays": [0]}}) == [
        "soup: stove.shelves=two is not a whole number; write it plainly, such as 8",
        "soup: stove.trays[0]=0 is no size; use 1 or more",
    ]


def test_a_misspelled_key_is_judged_as_the_one_that_was_meant() -> None:
    assert faults({"cook": "ann", "stove": {"kind": "oven", "shelvs": 1, "trays": [1, 2]}}) == [
        "soup: stove.shelvs=1 is not a known key; did you mean shelves",
        "soup: stove.trays=[1, 2] has more than shelves=1; bake less",
    ]


def test_a_missing_key_is_described() -> None:
    assert faults({"stove": OVEN}) == ["soup: cook is missing; add it: who cooks"]


@pytest.mark.parametrize(
    ("stove", "expected"),
    [
        ({"kind": "ovn"}, "soup: stove.kind=ovn is not one of oven, pan; did you mean oven"),
        ({"lid": True}, "soup: stove.kind is not one of oven, pan; use one of these"),
        ("hot", "soup: stove.kind is not one of oven, pan; use one of these"),
    ],
)
def test_an_unknown_kind_lists_the_known_ones(stove: object, expected: str) -> None:
    assert faults({"cook": "ann", "stove": stove}) == [expected]


def test_each_kind_has_only_its_own_fields() -> None:
    assert faults({"cook": "ann", "stove": {"kind": "pan", "shelves": 2}}) == [
        "soup: stove.shelves=2 is not a known key; use one of kind, lid"
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rent": True}, "rent=true is not a number"),
        ({"rent": float("nan")}, "rent=nan is not a finite number"),
        ({"rent": float("inf")}, "rent=inf is not a finite number"),
        ({"cook": 3}, "cook=3 is not text"),
        ({"cook": None}, "cook=null is not text"),
        ({"spices": [1]}, "spices=[1] is not a mapping"),
        ({"spices": {1: 1}}, "spices[1]=1 is not text"),
        ({"stove": {**OVEN, "trays": 1}}, "stove.trays=1 is not a list"),
        ({"stove": {**OVEN, "shelves": True}}, "stove.shelves=true is not a whole number"),
        ({"stove": {**OVEN, "shelves": 1.5}}, "stove.shelves=1.5 is not a whole number"),
        ({"stove": {"kind": "pan", "lid": "no"}}, "stove.lid=no is neither true nor false"),
    ],
)
def test_no_type_is_guessed(changes: dict[str, object], expected: str) -> None:
    (only,) = faults({"cook": "ann", "stove": OVEN, **changes})
    assert only.startswith(f"soup: {expected}")


def test_a_part_on_its_own_reports_all_its_faults_too() -> None:
    with pytest.raises(ValidationError) as caught:
        Oven.model_validate({"kind": "oven", "shelves": 1, "trays": (0, 0)})
    assert [error["loc"] for error in caught.value.errors()] == [
        ("trays",),
        ("trays", 0),
        ("trays", 1),
    ]


def test_something_that_is_no_mapping_is_one_fault() -> None:
    assert faults([1]) == ["soup: [1] is not a mapping; write it as keys and values"]


def test_the_nearest_word_ignores_case_and_is_none_when_nothing_is_near() -> None:
    assert nearest("Shelvs", ["trays", "shelves"]) == "shelves"
    assert nearest("xyzzy", ["trays", "shelves"]) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_a_shown_value_is_short_and_on_one_line(value: object) -> None:
    text = shown(value)
    assert text.isprintable()
    assert 0 < len(text) <= LONGEST_VALUE + len("...")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.sampled_from(["cook", "stove", "kind", "trays", "x"]), inner)
        ),
    )
)
def test_whatever_is_read_gives_a_model_or_one_line_per_fault(value: object) -> None:
    try:
        Kitchen.model_validate(value)
    except ValidationError as error:
        lines = sentences("soup", error)
        assert lines
        assert all(line.startswith("soup: ") and line.isprintable() for line in lines)


def test_wording_is_lower_case_and_ends_without_a_period() -> None:
    for rule, fix in WORDING.values():
        assert rule[0].islower() or rule.startswith("{")
        assert not rule.endswith(".")
        assert not fix.endswith(".")
