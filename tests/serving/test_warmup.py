"""Samples that would stop a model from loading are found before it is published."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from serving.errors import SpecError
from serving.spec import load_spec, parse_spec
from serving.tensors import ITEM_BYTES, DataType
from serving.warmup import Sample, Warmup

Stated = Callable[[Mapping[str, object]], dict[str | int, Any]]
Told = Callable[[Mapping[str, object]], list[str]]
SpecFile = Callable[..., Path]

IMAGES = {
    "inputs": [{"name": "image_arrays", "data_type": "TYPE_UINT8", "dims": [-1, -1, 3]}],
    "engine.max_batch_size": 1,
    "engine.dynamic_batching": ...,
}


def sample(name: str = "image_arrays", batch: int = 1, **fields: object) -> dict[str, object]:
    stated = {"data_type": "TYPE_UINT8", "dims": [1080, 1920, 3], **fields}
    return IMAGES | {"warmup": [{"batch_size": batch, "inputs": {name: stated}}]}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param(
            sample("input", dims=[512, 512, 3]),
            "warmup[0].inputs=['input'] does not name the required inputs [image_arrays]; "
            "name each of them, and nothing that the model does not take",
            id="another name",
        ),
        pytest.param(
            sample(dims=[-1, 512, 3]),
            "warmup[0].inputs.image_arrays.dims=[-1, 512, 3] has an axis without a size; "
            "a sample states every axis, from 1 up",
            id="open axis",
        ),
        pytest.param(
            sample(dims=[512, 512, 4]),
            "warmup[0].inputs.image_arrays.dims=[512, 512, 4] does not fit the input's dims "
            "[-1, -1, 3]; follow [-1, -1, 3]",
            id="another size",
        ),
        pytest.param(
            sample(dims=[512, 3]),
            "warmup[0].inputs.image_arrays.dims=[512, 3] does not fit the input's dims "
            "[-1, -1, 3]; follow [-1, -1, 3]",
            id="another rank",
        ),
        pytest.param(
            sample(data_type="TYPE_FP32"),
            "warmup[0].inputs.image_arrays.data_type=TYPE_FP32 is not the input's type TYPE_UINT8; "
            "use TYPE_UINT8",
            id="another type",
        ),
        pytest.param(
            sample(batch=2),
            "warmup[0].batch_size=2 is above the largest batch, 1; "
            "use 1 to 1, or raise engine.max_batch_size",
            id="batch above the maximum",
        ),
        pytest.param(
            IMAGES | {"warmup": [{"batch_size": 1}]},
            "warmup[0].shapes.image_arrays is missing, and dims [-1, -1, 3] leave the size open; "
            "state one, such as shapes: {image_arrays: [128, 128, 3]}",
            id="zeros of an open size",
        ),
        pytest.param(
            IMAGES | {"warmup": [{"batch_size": 1, "shapes": {"image_arrays": [8, 8, 1]}}]},
            "warmup[0].shapes.image_arrays=[8, 8, 1] does not fit the input's dims [-1, -1, 3]; "
            "follow [-1, -1, 3]",
            id="zeros of another size",
        ),
        pytest.param(
            {"warmup": [{"batch_size": 1, "shapes": {"input1": [8]}}]},
            "warmup[0].shapes.input1=[8] is not an input of the model; use one of input0",
            id="shape of something else",
        ),
        pytest.param(
            sample(file="../../etc/passwd"),
            "warmup[0].inputs.image_arrays.file=../../etc/passwd is not a plain file name; "
            "put the file in the model's warmup folder",
            id="file elsewhere",
        ),
    ],
)
def test_a_warm_up_that_does_not_fit_the_inputs_is_refused(
    faults: Told, changes: dict[str, object], expected: str
) -> None:
    assert faults(changes) == [f"ranker: {expected}"]


def test_a_warm_up_without_samples_is_zeros_for_every_required_input(stated: Stated) -> None:
    spec = parse_spec(
        stated(
            {
                "inputs": [
                    {"name": "ids", "data_type": "TYPE_INT64", "dims": [-1]},
                    {"name": "flag", "data_type": "TYPE_BOOL", "dims": [1]},
                    {"name": "extra", "data_type": "TYPE_BOOL", "dims": [1], "optional": True},
                ],
                "warmup": [{"batch_size": 2, "shapes": {"ids": [128]}}],
            }
        ),
        "ranker",
    )
    assert spec.warmup[0].samples(spec.inputs) == {
        "ids": Sample(data_type="TYPE_INT64", dims=(128,)),
        "flag": Sample(data_type="TYPE_BOOL", dims=(1,)),
    }


PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(
            PNG + bytes(4_080_541),
            "is a PNG image of 4,080,549 bytes and not a tensor: "
            "1080 x 1920 x 3 of TYPE_UINT8 is 6,220,800 bytes; "
            "decode it and write the raw elements",
            id="an encoded image",
        ),
        pytest.param(
            bytes(6_220_799),
            "has 6,220,799 bytes, but 1080 x 1920 x 3 of TYPE_UINT8 is 6,220,800 bytes; "
            "write the raw tensor again",
            id="one byte short",
        ),
        pytest.param(None, "cannot be read: No such file or directory; put it at ", id="no file"),
    ],
)
def test_a_warm_up_file_that_is_not_the_tensor_is_refused_with_both_byte_counts(
    spec_file: SpecFile, tmp_path: Path, content: bytes | None, expected: str
) -> None:
    path = spec_file(sample(file="photo.raw"))
    if content is not None:
        (tmp_path / "ranker" / "warmup").mkdir(parents=True)
        (tmp_path / "ranker" / "warmup" / "photo.raw").write_bytes(content)
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    (only,) = caught.value.faults
    assert only.startswith(f"ranker: warmup[0].inputs.image_arrays.file=photo.raw {expected}")


@pytest.mark.parametrize("batch", [1, 2])
def test_a_warm_up_file_holds_one_request_or_the_whole_batch(
    spec_file: SpecFile, tmp_path: Path, batch: int
) -> None:
    changes = sample(batch=2, file="photo.raw") | {"engine.max_batch_size": 2}
    path = spec_file(changes)
    (tmp_path / "ranker" / "warmup").mkdir(parents=True)
    (tmp_path / "ranker" / "warmup" / "photo.raw").write_bytes(bytes(6_220_800 * batch))
    warmup = load_spec(path).warmup[0]
    assert warmup.inputs["image_arrays"].size_bytes == 6_220_800


def test_a_warm_up_states_shapes_or_samples_and_not_both() -> None:
    stated = Sample(data_type="TYPE_FP32", dims=(1,))
    with pytest.raises(ValueError, match="stands beside inputs"):
        Warmup(batch_size=1, shapes={"x": (1,)}, inputs={"x": stated})


def test_every_data_type_has_a_size() -> None:
    assert set(ITEM_BYTES) == set(get_args(DataType))
    assert Sample(data_type="TYPE_FP16", dims=(2, 3)).size_bytes == 12
    assert Sample(data_type="TYPE_STRING", dims=(2, 3)).size_bytes is None
