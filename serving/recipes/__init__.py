"""How the shipped models are made, fed and read: one module per model.

    build    files of a version        folder → path in the version → local path
    encode   one question              file or bytes → one row of input, or the answer by rule
    decode   one row of output         scores → answer

A recipe is a module that satisfies `Recipe`. Numerical libraries load when a recipe is used, not
when it is named.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from serving.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Answer: TypeAlias = float | tuple[str, float]
"""A score, or a label with its score."""


class Recipe(Protocol):
    """What each recipe module offers; a module may offer more."""

    INPUT: str
    OUTPUT: str

    def build(self, folder: Path) -> dict[str, Path]:
        """Files of one version, written into `folder`: path in the version → local path."""

    def encode(self, source: Path | bytes) -> NDArray[Any] | str:
        """One row for the input tensor, without its batch axis; or the answer, decided by rule."""

    def decode(self, scores: NDArray[np.float32]) -> Answer:
        """The answer in one row of the output tensor."""


RECIPES: dict[str, str] = {
    "filetype": "serving.recipes.filetype",
    "ranker": "serving.recipes.ranker",
}


def recipe(name: str) -> Recipe:
    """The recipe of a shipped model.

    Raises:
        InputError: if no shipped model has this name.
    """
    if name not in RECIPES:
        known = ", ".join(sorted(RECIPES))
        raise InputError(f"model={name}: no recipe has this name; use one of {known}")
    return cast("Recipe", importlib.import_module(RECIPES[name]))
