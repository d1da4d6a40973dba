"""The hop takes what Triton's configuration says that the model takes."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from serving.engines.triton import parse_pbtxt, render_config
from serving.gateway.prediction.datatypes import ITEM_BYTES
from serving.gateway.prediction.from_config import schema_of
from serving.gateway.prediction.schema import ModelSchema, TensorSchema
from serving.spec import parse_spec
from serving.tensors import ITEM_BYTES as SPEC_ITEM_BYTES

Stated = Callable[[Mapping[str, object]], dict[str | int, Any]]


def test_the_rankers_config_gives_the_tensors_of_its_spec(stated: Stated) -> None:
    spec = parse_spec(stated({}), "ranker")
    schema = schema_of(render_config(spec))
    assert [tensor.name for tensor in schema.inputs] == [tensor.name for tensor in spec.inputs]
    assert [tensor.dims for tensor in schema.outputs] == [tensor.dims for tensor in spec.outputs]
    assert schema.inputs[0].datatype == "FP32"
    assert not schema.stateful


def test_every_member_is_read() -> None:
    config = parse_pbtxt(
        """
        name: "m"
        max_batch_size: 4
        input { name: "a" data_type: TYPE_STRING dims: [ -1, 2 ] optional: true }
        input { name: "b" data_type: TYPE_BF16 dims: [ 1 ] reshape { shape: [] } }
        output { name: "y" data_type: TYPE_BOOL dims: [ 3 ] }
        sequence_batching { direct { } }
        """
    )
    assert schema_of(config) == ModelSchema(
        inputs=(
            TensorSchema("a", "BYTES", (-1, 2), optional=True),
            TensorSchema("b", "BF16", (1,)),
        ),
        outputs=(TensorSchema("y", "BOOL", (3,)),),
        max_batch_size=4,
        stateful=True,
    )


@pytest.mark.parametrize(("data_type", "item_bytes"), list(SPEC_ITEM_BYTES.items()))
def test_every_data_type_of_a_spec_has_the_protocols_word_and_size(
    data_type: str, item_bytes: int | None
) -> None:
    config = parse_pbtxt(f'input {{ name: "a" data_type: {data_type} dims: [ 1 ] }}')
    (tensor,) = schema_of(config).inputs
    assert ITEM_BYTES[tensor.datatype] == item_bytes
