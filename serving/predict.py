"""Answers about files, through the gateway; a recipe encodes and decodes where there is one."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from serving.errors import InputError
from serving.inference import Metadata, check_inputs, infer, metadata
from serving.recipes import RECIPES, Recipe, recipe

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TIMEOUT_SECONDS = 30.0
# Requests in flight at once; enough to fill batches on a laptop, too few to queue for long.
CONCURRENCY = 8

Answer = tuple[str | float, ...]


def predict_files(
    client: httpx.Client, model: str, files: Sequence[Path]
) -> list[tuple[Path, Answer]]:
    """The model's answer about each file, in order.

    A shipped model takes the file as its recipe says. Any other takes JSON that maps each input's
    name to its values, and answers with the values of all outputs. `client` leads to the gateway.

    Raises:
        InputError: a file cannot be read or does not fit the model; or there is no such model.
        InfrastructureError: the gateway cannot be reached or cannot answer.
    """
    for path in files:
        if not path.exists():
            raise InputError(f"file={path} does not exist; name one that does")
    gateway = str(client.base_url)
    described = metadata(gateway, model, timeout_seconds=TIMEOUT_SECONDS, client=client)
    by_recipe = recipe(model) if model in RECIPES else None

    def ask(path: Path) -> tuple[Path, Answer]:
        if by_recipe is None:
            inputs = _from_json(path, described)
        else:
            encoded = by_recipe.encode(path)
            if isinstance(encoded, str):
                return path, (encoded, 1.0)
            inputs = {by_recipe.INPUT: encoded[None]}
        check_inputs(described, inputs)
        outputs = infer(gateway, model, inputs, timeout_seconds=TIMEOUT_SECONDS, client=client)
        return path, _answer(by_recipe, outputs)

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        return list(pool.map(ask, files))


def _answer(by_recipe: Recipe | None, outputs: "dict[str, NDArray[Any]]") -> Answer:
    if by_recipe:
        decoded = by_recipe.decode(outputs[by_recipe.OUTPUT][0])
        return decoded if isinstance(decoded, tuple) else (decoded,)
    values = (value for output in outputs.values() for value in output.ravel().tolist())
    return tuple(
        value.decode(errors="replace") if isinstance(value, bytes) else value for value in values
    )


def _from_json(path: Path, described: Metadata) -> "dict[str, NDArray[np.generic]]":
    import numpy as np
    from tritonclient.utils import triton_to_np_dtype

    types = {tensor.name: triton_to_np_dtype(tensor.datatype) for tensor in described.inputs}
    try:
        values = json.loads(path.read_bytes())
        return {
            name: np.asarray(value, dtype=types.get(name)) for name, value in dict(values).items()
        }
    except (OSError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(
            f"file={path} cannot be sent ({error}); write JSON that maps each of "
            f"{', '.join(types)} to its values, batch axis first"
        ) from error
