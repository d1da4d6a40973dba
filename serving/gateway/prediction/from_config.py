"""What the hop knows of a model version, read from the configuration that Triton loads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from serving.gateway.prediction.schema import ModelSchema, TensorSchema

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig


def schema_of(config: ModelConfig) -> ModelSchema:
    """The tensors of a model; `reshape` is the server's own affair, requests bring `dims`."""
    return ModelSchema(
        inputs=tuple(_tensors(config.input)),
        outputs=tuple(_tensors(config.output)),
        max_batch_size=config.max_batch_size,
        stateful=config.HasField("sequence_batching"),
    )


def _tensors(tensors: Iterable[Any]) -> Iterable[TensorSchema]:
    for tensor in tensors:
        name = (
            tensor.DESCRIPTOR.fields_by_name["data_type"]
            .enum_type.values_by_number[tensor.data_type]
            .name.removeprefix("TYPE_")
        )
        yield TensorSchema(
            name=tensor.name,
            datatype="BYTES" if name == "STRING" else name,
            dims=tuple(tensor.dims),
            optional=getattr(tensor, "optional", False),
        )
