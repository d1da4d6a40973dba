import subprocess
import sys
from types import ModuleType

import pytest

from serving.errors import InputError
from serving.recipes import RECIPES, Recipe, filetype, ranker, recipe

# The type checker holds each module to the protocol here.
MODULES: dict[str, Recipe] = {"filetype": filetype, "ranker": ranker}


def test_every_shipped_recipe_is_found_by_its_name() -> None:
    assert {name: recipe(name) for name in RECIPES} == MODULES


def test_an_unknown_name_is_told_with_the_known_ones() -> None:
    with pytest.raises(
        InputError, match="model=rank: no recipe has this name; use one of filetype, r"
    ):
        recipe("rank")


def test_naming_a_recipe_does_not_load_the_numerical_libraries() -> None:
    slow = ["numpy", "onnx", "onnxruntime", "magika"]
    code = (
        "import sys; from serving.recipes import RECIPES, recipe; list(map(recipe, RECIPES));"
        f"print(set({slow}) & set(sys.modules))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (found.stdout, found.stderr) == ("set()\n", "")


@pytest.mark.parametrize("module", [filetype, ranker])
def test_a_recipe_names_the_tensors_of_the_model_that_it_builds(
    module: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> None:
    import onnx

    files = module.build(tmp_path_factory.mktemp("version"))
    graph = onnx.load(str(files["model.onnx"])).graph
    names = [[value.name for value in values] for values in (graph.input, graph.output)]
    assert names == [[module.INPUT], [module.OUTPUT]]
