"""The CDK CLI is the pinned one, run by the pinned Node."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from infra import cdktf

ROOT = Path(__file__).parents[2]


def test_the_command_runs_the_cli_of_package_json_whatever_folder_it_is_called_from(
    tmp_path: Path,
) -> None:
    wanted = json.loads((ROOT / "package.json").read_text())["dependencies"]["cdktn-cli"]
    done = subprocess.run(
        [sys.executable, "-m", "infra.cdktf", "--version"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.split()[0] == wanted


def test_cli_and_library_are_of_one_version() -> None:
    wanted = json.loads((ROOT / "package.json").read_text())["dependencies"]["cdktn-cli"]
    assert version("cdktn") == wanted


def test_node_comes_from_its_wheel_and_is_as_new_as_the_cli_wants() -> None:
    node = cdktf.node()
    assert node.is_relative_to(sys.prefix)
    told = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    assert tuple(map(int, told[1:].split("."))) >= (22, 19, 0)


def test_the_app_of_cdktf_json_synthesizes(tmp_path: Path) -> None:
    settings = json.loads((ROOT / "cdktf.json").read_text())
    assert settings["app"].endswith("-m infra.app")
    subprocess.run(
        [sys.executable, "-m", "infra.app"],
        check=True,
        cwd=ROOT,
        env={**cdktf.environment(cdktf.node()), "CDKTF_OUTDIR": str(tmp_path / "out")},
    )
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["stacks"] == {}
