"""Over how many GPUs a language model may be split.

Attention heads are shared out evenly. Key and value heads are shared out too, or copied evenly
where there are fewer of them than GPUs. All GPUs of one replica are on one instance.
"""

from __future__ import annotations

from collections.abc import Iterator

from serving.capacity.architecture import Architecture
from serving.strict import Fault

WHERE = ("engine", "tensor_parallel_size")
LARGEST = 64


def degrees(heads: int, kv_heads: int, intermediate: int, most: int = LARGEST) -> tuple[int, ...]:
    """The degrees that divide the model, up to `most`.

    Heads that are fewer than the GPUs are copied, if evenly:

    >>> degrees(32, 4, 11008, most=8)
    (1, 2, 4, 8)
    >>> degrees(40, 10, 27392, most=8)
    (1, 2)
    """
    return tuple(
        degree
        for degree in range(1, most + 1)
        if heads % degree == 0
        and (kv_heads % degree == 0 or degree % kv_heads == 0)
        and intermediate % degree == 0
    )


def degree_faults(model: Architecture, degree: int, gpus: int) -> Iterator[Fault]:
    """What is wrong with a degree on an instance with so many GPUs."""
    # One latent vector is not split: every GPU keeps it whole.
    kv_heads = 1 if model.latent else model.kv_heads
    good = degrees(model.heads, kv_heads, model.intermediate)
    fitting = [value for value in good if value <= gpus]
    fix = f"use one of {', '.join(map(str, fitting))}"
    if degree not in good:
        if model.heads % degree:
            rule = f"does not divide attention heads={model.heads}"
        elif kv_heads % degree and degree % kv_heads:
            rule = f"neither divides key-value heads={kv_heads} nor is a multiple of them"
        else:
            rule = f"does not divide intermediate_size={model.intermediate}"
        yield Fault(WHERE, degree, rule, fix)
    elif degree > gpus:
        yield Fault(WHERE, degree, f"is more than the {gpus} GPUs of the instance", fix)
