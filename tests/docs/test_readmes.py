"""What the READMEs claim is so."""

import ast
import re
import shlex
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperGroup

from infra.cli import app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
FOLDERS = ("infra", "stacks", "modules", "serving", "loadtest", "runbooks", "tests")
READMES = [ROOT / "README.md", *(ROOT / folder / "README.md" for folder in FOLDERS)]
TOP_LEVEL = {
    *("README.md", "pyproject.toml", "Makefile", "cdktf.json", "package.json"),
    *("galley.lock", "engines.lock", "bootstrap.lock", "package-lock.json"),
    *FOLDERS,
}
INSTALLED = {"node_modules", "cdktf.out"}


def table(heading: str) -> list[list[str]]:
    """Cells of the rows under the header row that starts with `heading`."""
    lines = README.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {heading} |")) + 2
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def commands() -> TyperGroup:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return group


def fenced() -> list[str]:
    """Every command line in a fenced block of any README."""
    blocks = [
        block
        for path in READMES
        for block in re.findall(r"```sh\n(.*?)```", path.read_text(), re.DOTALL)
    ]
    return [line for block in blocks for line in block.splitlines() if line]


def names_in(path: Path) -> set[str]:
    """What a module defines or imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


@pytest.mark.parametrize("row", table("stage"), ids=lambda row: row[0])
def test_each_stage_is_a_file_with_its_types_and_a_test_that_uses_it(row: list[str]) -> None:
    _, file, taken, given, test = row
    source, checked = ROOT / file.strip("`"), ROOT / test.strip("`")
    assert source.is_file()
    for name in re.findall(r"`([A-Z]\w+)`", taken + given):
        assert name in names_in(source), (name, file)
    module = ".".join(source.relative_to(ROOT).with_suffix("").parts)
    uses = checked.read_text()
    # A live test reaches its stage through the command of the same name.
    assert module in uses or module.rpartition(".")[0] in uses or f'"{source.stem}"' in uses


def test_the_table_of_commands_is_the_command_line() -> None:
    listed = [row[0].strip("`").removeprefix("galley ") for row in table("command")]
    assert sorted(listed) == sorted(commands().commands)


@pytest.mark.parametrize("line", fenced())
def test_each_fenced_command_is_one_that_is_understood(line: str) -> None:
    program, *arguments = shlex.split(line)
    if program == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(arguments) <= set(targets)
        return
    if program == "locust":
        locustfile = ROOT / arguments[arguments.index("-f") + 1]
        own = set(re.findall(r'"(--[a-z-]+)"', locustfile.read_text()))
        assert {word for word in arguments if word.startswith("--")} <= own
        return
    assert program == "galley"
    group = commands()
    name, command, rest = group.resolve_command(
        group.make_context("galley", arguments[:1]), arguments
    )
    assert command is not None
    # Refuses unknown options and bad values; nothing is run.
    command.make_context(name, rest)


def test_the_table_of_variables_is_what_the_code_reads() -> None:
    listed = {name for row in table("variable") for name in re.findall(r"GALLEY_\w+", row[0])}
    folders = ("serving", "infra", "loadtest")
    code = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    read = {name for path in code for name in re.findall(r'"(GALLEY_\w+)"', path.read_text())}
    # Set by the stack for the processes it starts, never by people.
    internal = {
        "GALLEY_STACK_ID",
        "GALLEY_ENGINES_SITE",
        "GALLEY_ONNX_THREADS",
        "GALLEY_TRITON_STUB",
    }
    assert listed == read - internal


def test_the_table_of_workloads_is_the_folder_of_workloads() -> None:
    listed = {name for row in table("workload") for name in re.findall(r"`(\w+)`", row[0])}
    assert listed == {path.stem for path in (ROOT / "loadtest/workloads").glob("*.yaml")}


def test_the_top_level_holds_what_it_should_and_nothing_else() -> None:
    found = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    assert found - INSTALLED == TOP_LEVEL
    assert [row[0].strip("`/") for row in table("folder")] == list(FOLDERS)


@pytest.mark.parametrize("path", READMES[1:], ids=lambda path: path.parent.name)
def test_each_folder_says_what_is_in_it_what_goes_in_and_out_and_how_to_add_one(
    path: Path,
) -> None:
    text = path.read_text()
    for words in (r"\*\*(Here|Will live here):", r"\*\*In:", r"\*\*Out:", r"\*\*Add "):
        assert re.search(words, text), (path, words)


def test_every_file_that_a_readme_names_is_there() -> None:
    for path in READMES:
        for name in re.findall(r"`([\w./-]+\.(?:py|toml|lock|yaml|md|json))`", path.read_text()):
            # Config and pages that are examples of a kind have a placeholder in their name.
            bases = (ROOT, path.parent, ROOT / "serving", ROOT / "serving/specs")
            assert any((base / name).exists() for base in bases), (path, name)


@pytest.mark.parametrize(
    "name", ["galley.lock", "engines.lock", "bootstrap.lock", "package-lock.json"]
)
def test_locks_pin_hashes_and_name_no_registry(name: str) -> None:
    text = (ROOT / name).read_text()
    # An address where a package is to be had, or a line that sets an index.
    assert not re.search(r"(?m)^--|resolved|[@=] ?https?://|registry\.npmjs|pythonhosted", text)
    assert "--hash=sha256:" in text or '"integrity": "sha512-' in text
    if name.endswith(".lock"):
        pinned = re.findall(r"^\S+==.*$(?=\n    --hash)", text, re.MULTILINE)
        assert len(pinned) == len(re.findall(r"^\S+==", text, re.MULTILINE)) > 0


def test_no_committed_text_names_a_path_of_a_machine() -> None:
    for path in [*READMES, ROOT / "Makefile", ROOT / "pyproject.toml", *ROOT.glob(".ci/*")]:
        assert not re.search(r"/(?:home|root|Users|work)/", path.read_text()), path
