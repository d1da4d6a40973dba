"""The command: quick to help, and every failure on purpose is one line and an exit code."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from infra import cli
from serving.errors import (
    ArtifactError,
    ConflictError,
    GalleyError,
    InfrastructureError,
    InputError,
    IntegrityError,
    SpecError,
    StackError,
    StoreError,
)
from serving.local.home import Home, State, write_json
from serving.local.ports import choose_ports
from serving.paths import ROOT, SPECS

COMMANDS = sorted(
    command.name or command.callback.__name__
    for command in cli.app.registered_commands
    if command.callback
)
HEAVY = {"boto3", "httpx", "numpy", "pydantic", "rich", "supervisor", "tritonclient", "yaml"}


def galley(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """The command as a user runs it, from another folder than the checkout."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "infra.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


def one_line(done: "subprocess.CompletedProcess[str]", code: int) -> str:
    """The only line on standard error of a command that ended with `code`."""
    (line,) = done.stderr.splitlines()
    assert done.returncode == code, line
    assert done.stdout == ""
    assert line.startswith("galley: ")
    return line.removeprefix("galley: ")


@pytest.fixture
def nowhere(tmp_path: Path) -> str:
    """A home folder without a stack."""
    return str(tmp_path / "no stack")


def test_every_command_has_help_that_says_what_it_does() -> None:
    assert COMMANDS
    for command in COMMANDS:
        shown = CliRunner().invoke(cli.app, [command, "--help"])
        assert shown.exit_code == 0, command
        assert f"Usage: galley {command}" in shown.output
        assert shown.output.splitlines()[2].strip()[0].isupper(), command


def test_every_option_and_argument_says_what_it_is() -> None:
    group = typer.main.get_command(cli.app)
    for name, command in vars(group)["commands"].items():
        for parameter in command.params:
            assert getattr(parameter, "help", None), (name, parameter.name)


def test_every_command_prints_json_for_machines_if_asked() -> None:
    for command in COMMANDS:
        assert "--json" in CliRunner().invoke(cli.app, [command, "--help"]).output, command


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    program = (
        "import json, sys\n"
        "from infra.cli import main\n"
        "sys.argv = ['galley', '--help']\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "sys.stderr.write(json.dumps(sorted(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    for command in COMMANDS:
        assert f"\n  {command} " in done.stdout
    imported = {name.partition(".")[0] for name in json.loads(done.stderr)}
    assert "typer" in imported
    assert not imported & HEAVY


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    shown = CliRunner().invoke(cli.app, ["--version"])
    assert (shown.exit_code, shown.output) == (0, f"galley {version('galley')}\n")


@pytest.mark.parametrize("arguments", [[], ["nope"], ["check", "--nope"], ["show", "ranker", "x"]])
def test_bad_usage_is_told_with_the_usage_and_ends_with_2(arguments: list[str]) -> None:
    shown = CliRunner().invoke(cli.app, arguments)
    assert shown.exit_code == 2
    assert "Usage: galley" in shown.output


@pytest.fixture
def failing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int | str | None, str, str]]:
    """Runs the command with a body that raises; exit code, standard output and error."""

    def run(error: BaseException, *arguments: str) -> tuple[int | str | None, str, str]:
        app = typer.Typer(pretty_exceptions_enable=False)

        @app.command()
        def body(json: bool = False) -> None:
            raise error

        monkeypatch.setattr(cli, "app", app)
        monkeypatch.setattr(sys, "argv", ["galley", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        return ended.value.code, shown.out, shown.err

    return run


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (GalleyError, 1),
        (InputError, 2),
        (ArtifactError, 2),
        (ConflictError, 1),
        (IntegrityError, 1),
        (InfrastructureError, 5),
        (StoreError, 5),
        (StackError, 5),
    ],
)
def test_an_error_on_purpose_is_one_line_and_its_exit_code(
    failing: Callable[..., Any], error: type[GalleyError], code: int
) -> None:
    assert failing(error("what=value: rule; fix")) == (code, "", "galley: what=value: rule; fix\n")


def test_an_error_is_a_json_object_on_standard_output_if_asked(
    failing: Callable[..., Any],
) -> None:
    code, out, err = failing(SpecError(["one", "two"]), "--json")
    assert json.loads(out) == {"error": ["one", "two"], "exit_code": 2}
    assert (code, err) == (2, "galley: one\ngalley: two\n")


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "no space left; free some and run the same command again"),
        (errno.EDQUOT, "the quota is used up; free some and run the same command again"),
        (errno.EROFS, "the file system is read-only; use another folder"),
        (errno.EFBIG, "larger than this system lets a file be"),
        (errno.EACCES, "this user may not use it; have its owner allow it, or use another"),
        (errno.ENOTDIR, "a file is where a folder must be; use another folder"),
    ],
)
def test_what_is_wrong_with_the_disk_is_one_line_with_the_file(
    failing: Callable[..., Any], number: int, said: str
) -> None:
    error = OSError(number, os.strerror(number), "/some/file")
    assert failing(error) == (5, "", f"galley: disk: /some/file: {said}\n")
    unnamed = OSError(number, os.strerror(number))
    assert failing(unnamed) == (5, "", f"galley: disk: a file: {said}\n")


def test_a_mistake_in_galley_itself_keeps_its_traceback(failing: Callable[..., Any]) -> None:
    with pytest.raises(ZeroDivisionError):
        failing(ZeroDivisionError())
    with pytest.raises(OSError, match="Bad file descriptor"):
        failing(OSError(errno.EBADF, "Bad file descriptor"))


def test_an_unknown_model_is_told_with_the_known_ones(nowhere: str) -> None:
    for arguments in (("render", "nobody"), ("push", "nobody"), ("deploy", "nobody")):
        line = one_line(galley(*arguments, GALLEY_HOME=nowhere), 2)
        assert line == f"model=nobody has no spec in {SPECS}; use one of: filetype, ranker"


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("logs",),
        ("deploy", "ranker"),
        ("push", "ranker"),
        ("pull", "ranker", "1", "--to", "/nowhere/at/all"),
        ("versions", "ranker"),
        ("show", "ranker", "1"),
        ("predict", "ranker", "--file", "README.md"),
    ],
)
def test_without_a_stack_a_command_says_what_starts_one(
    nowhere: str, arguments: tuple[str, ...]
) -> None:
    line = one_line(galley(*arguments, GALLEY_HOME=nowhere), 5)
    assert line == f"no local stack at {nowhere}; run: galley up"
    assert not Path(nowhere).exists()


def test_an_error_of_a_real_command_is_json_too(nowhere: str) -> None:
    done = galley("status", "--json", GALLEY_HOME=nowhere)
    assert done.returncode == 5
    assert json.loads(done.stdout) == {
        "error": [f"no local stack at {nowhere}; run: galley up"],
        "exit_code": 5,
    }


def test_stopping_what_does_not_run_is_done_already(nowhere: str) -> None:
    done = galley("down", "--json", GALLEY_HOME=nowhere)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["stopped"] is False


def test_a_file_in_place_of_the_home_folder_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    line = one_line(galley("up", "--home", str(file)), 2)
    assert line == f"home={file} is a file; name a folder, or one to be made"
    line = one_line(galley("up", "--home", str(file / "below")), 5)
    assert line == f"disk: {file / 'below'}: a file is where a folder must be; use another folder"
    assert file.is_file()


def test_an_environment_without_a_registry_is_told_with_what_names_one(nowhere: str) -> None:
    done = galley("versions", "ranker", "--env", "prod", GALLEY_REGISTRY_BUCKET="")
    assert one_line(done, 2) == (
        "env=prod has no registry here; set GALLEY_REGISTRY_BUCKET, or use --env local"
    )


def test_engines_that_are_not_installed_are_told_with_what_installs_them(tmp_path: Path) -> None:
    home, engines = tmp_path / "home", tmp_path / "engines"
    done = galley("up", "--home", str(home), GALLEY_ENGINES=str(engines))
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 5
    assert last == f"galley: engines={engines} holds no servers; run: make install"


def test_a_taken_port_is_told_before_anything_is_started(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        done = galley("up", "--home", str(tmp_path / "home"), "--gateway-port", port)
    assert one_line(done, 2).startswith(f"port gateway={port} is taken by another program; ")


@pytest.fixture
def idle(tmp_path: Path) -> Home:
    """The folder of a stack none of whose processes runs any more."""
    from random import Random

    from serving.local.home import Secrets
    from serving.local.processes import port_names
    from serving.local.tls import write_certificate

    home = Home(tmp_path / "home")
    home.logs.mkdir(parents=True)
    state = State(
        stack_id="0123456789ab", replicas=1, ports=choose_ports(port_names(1), {}, Random())
    )
    write_json(home.state_file, state.model_dump())
    write_json(home.secrets_file, Secrets.generate().model_dump())
    write_certificate(home.tls)
    (home.logs / "envoy.log").write_text("".join(f"line {number}\n" for number in range(100)))
    return home


@pytest.mark.parametrize("model", ["ranker", "nobody"])
def test_a_file_to_ask_about_that_does_not_exist_is_told_before_anybody_is_asked(
    idle: Home, tmp_path: Path, model: str
) -> None:
    missing = tmp_path / "missing.json"
    done = galley("predict", model, "--file", str(missing), "--home", str(idle.root))
    assert one_line(done, 2) == f"file={missing} does not exist; name one that does"


def test_a_gateway_that_does_not_answer_is_told_with_what_starts_it(idle: Home) -> None:
    done = galley("predict", "ranker", "--file", str(idle.state_file), "--home", str(idle.root))
    line = one_line(done, 5)
    assert line.startswith("model=ranker at https://127.0.0.1:")
    assert line.endswith("; for the local stack, run: galley up")


def test_logs_show_the_newest_lines_and_refuse_an_unknown_process(idle: Home) -> None:
    home = ("--home", str(idle.root))
    assert galley("logs", "envoy", "-n", "2", *home).stdout == "line 98\nline 99\n"
    assert galley("logs", "-n", "1", *home).stdout == "envoy: line 99\n"
    line = one_line(galley("logs", "nginx", *home), 2)
    assert line == "process=nginx has no log; use one of envoy"


def test_an_interrupt_ends_a_command_with_130_and_without_a_traceback(idle: Home) -> None:
    # A shell starts what it puts into the background with interrupts ignored, and so its children.
    heeding = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    run = f"{heeding}; from infra.cli import main; main()"
    command = [sys.executable, "-u", "-c", run, "logs", "envoy", "-n", "1", "-f"]
    with subprocess.Popen(
        [*command, "--home", str(idle.root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "line 99\n"
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Traceback" not in said


def test_a_reader_that_has_gone_ends_a_command_without_a_traceback(idle: Home) -> None:
    (idle.logs / "envoy.log").write_text("a line\n" * 100_000)
    command = [sys.executable, "-m", "infra.cli", "logs", "envoy", "-n", "100000"]
    with subprocess.Popen(
        [*command, "--home", str(idle.root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "a line\n"
        process.stdout.close()
        assert process.stderr is not None
        said = process.stderr.read()
    assert process.returncode != 0
    assert said == ""


def test_the_shipped_specs_are_good(nowhere: str) -> None:
    done = galley("check", GALLEY_HOME=nowhere)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "2 specs are good"
    found = json.loads(galley("check", "--json").stdout)
    assert found == {"specs": ["filetype", "ranker"], "faults": []}


@pytest.fixture
def broken(stated: Callable[[Mapping[str, object]], dict[str | int, Any]], tmp_path: Path) -> Path:
    """A folder with one good spec and two that break rules."""
    folder = tmp_path / "specs"
    folder.mkdir()
    changes: dict[str, dict[str, object]] = {
        "ranker": {},
        "first": {"name": "first", "slo.latency_p99_ms": -1, "engine.max_batch_size": "many"},
        "second": {"name": "other", "colour": "red"},
    }
    for name, change in changes.items():
        (folder / f"{name}.yaml").write_text(json.dumps(stated(change)))
    (folder / "third.yaml").write_text("name: [")
    (folder / "fourth.yml").write_text("")
    return folder


def test_every_fault_of_every_spec_is_told_in_one_run(broken: Path) -> None:
    done = galley("check", "--specs", str(broken))
    lines = [line.removeprefix("galley: ") for line in done.stderr.splitlines()]
    assert (done.returncode, done.stdout) == (2, "")
    for place, value in (
        ("first: slo.latency_p99_ms", "-1"),
        ("first: engine.max_batch_size", "many"),
        ("second: colour", "red"),
        ("second: name", "other"),
        (str(broken / "third.yaml"), ""),
        (str(broken / "fourth.yml"), "fourth.yaml"),
    ):
        assert any(line.startswith(place) and value in line for line in lines), place
    assert not any(line.startswith("ranker") for line in lines)
    told = json.loads(galley("check", "--specs", str(broken), "--json").stdout)
    assert told == {"error": lines, "exit_code": 2}


def test_a_folder_without_specs_is_refused(tmp_path: Path) -> None:
    line = one_line(galley("check", "--specs", str(tmp_path)), 2)
    assert line == f"{tmp_path}: holds no specs; add a <model>.yaml"
    line = one_line(galley("check", "--specs", str(tmp_path / "nothing")), 2)
    assert line == f"{tmp_path / 'nothing'}: not a folder; name the one that holds the specs"


def test_render_prints_the_config_alone_on_standard_output() -> None:
    done = galley("render", "ranker", "--cpu")
    assert done.returncode == 0
    assert done.stdout.startswith('name: "ranker"')
    assert "became backend python" in done.stderr
    told = json.loads(galley("render", "ranker", "--cpu", "--json").stdout)
    assert told["config.pbtxt"].rstrip() == done.stdout.rstrip()
    assert told["notes"] == done.stderr.splitlines()


def test_a_model_that_this_machine_cannot_run_is_refused(
    stated: Callable[[Mapping[str, object]], dict[str | int, Any]], tmp_path: Path
) -> None:
    changes: dict[str, object] = {
        "artifact.format": "tensorrt_plan",
        "engine.platform": "tensorrt_plan",
        "engine.parameters": ...,
    }
    (tmp_path / "ranker.yaml").write_text(json.dumps(stated(changes)))
    line = one_line(galley("render", "ranker", "--cpu", "--specs", str(tmp_path)), 2)
    assert line.startswith("ranker: engine.platform=tensorrt_plan cannot run on this machine")
