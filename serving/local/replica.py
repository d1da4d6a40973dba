"""One Triton replica: puts its models in place by digest, then becomes the Triton process.

`python -m serving.local.replica triton-0` is what supervisord starts, again after every crash.
"""

import os
import shutil
import sys
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from serving.environments import verify_key
from serving.errors import GalleyError
from serving.local.engines import Engines, find_engines
from serving.local.home import Home, State, write_json
from serving.paths import home_folder
from serving.publish import CONFIG, WARMUP

MODEL_PROGRAM = Path(__file__).with_name("triton_model.py")
STUB_PROGRAM = Path(__file__).with_name("triton_stub.py")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Triton's Python backend keeps its regions


class Deployment(BaseModel):
    """A model version that a replica serves."""

    model_config = ConfigDict(frozen=True)
    model: str
    version: int
    digest: str


def read_deployments(home: Home, replica: str) -> tuple[Deployment, ...]:
    """What the replica is to serve."""
    path = home.replica(replica) / "deployments.json"
    if not path.exists():
        return ()
    import json

    return tuple(Deployment.model_validate(each) for each in json.loads(path.read_text()))


def write_deployments(home: Home, replica: str, deployments: tuple[Deployment, ...]) -> None:
    """Record what the replica is to serve, now and after every restart."""
    write_json(
        home.replica(replica) / "deployments.json", [each.model_dump() for each in deployments]
    )


def repository(home: Home, replica: str) -> Path:
    """The replica's Triton model repository."""
    return home.replica(replica) / "repository"


def materialize(
    home: Home, replica: str, deployment: Deployment, verify_key: Path | None
) -> tuple[str, ...]:
    """Put one verified model version into the replica's repository, replacing any other.

    The version comes from the stack's artifact folder, or from the registry where it is not there
    yet; every byte is checked against the digest either way.

    Returns:
        What the local rendering changed in the published config, in plain words.

    Raises:
        GalleyError: the version cannot be had, or is not what was published.
    """
    from serving.engines.triton import on_cpu, parse_pbtxt, to_pbtxt

    artifact = fetch(home, deployment, verify_key)
    published = parse_pbtxt((artifact / CONFIG).read_text())
    config, notes = on_cpu(published)
    # Triton would serve the highest number it finds; it is to serve this one.
    config.version_policy.specific.versions.append(deployment.version)

    target = repository(home, replica) / deployment.model
    staging = home.replica(replica) / "staging" / deployment.model
    shutil.rmtree(staging, ignore_errors=True)
    version = staging / str(deployment.version)
    shutil.copytree(artifact, version, copy_function=_link)
    (version / CONFIG).unlink()
    if (version / WARMUP).is_dir():
        # Triton looks for samples beside the config, not inside the version.
        (version / WARMUP).rename(staging / WARMUP)
    if published.backend != "python":
        # A file of that name would be the artifact's own, by link.
        (version / "model.py").unlink(missing_ok=True)
        shutil.copyfile(MODEL_PROGRAM, version / "model.py")
    (staging / CONFIG).write_text(to_pbtxt(config))
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    staging.rename(target)
    return notes


def fetch(home: Home, deployment: Deployment, verify_key: Path | None) -> Path:
    """Folder with the verified files of a version.

    Raises:
        GalleyError: the version cannot be had, is not what was published, or is not signed for
            the key.
    """
    from serving.environments import local_store
    from serving.registry.registry import pull

    target = home.artifacts / deployment.model / str(deployment.version)
    with local_store(home) as store:
        pull(
            store,
            model=deployment.model,
            version=deployment.version,
            target=target,
            verify_key=verify_key,
            expect_digest=deployment.digest,
        )
    return target


def prepare_backend(home: Home, engines: Engines) -> None:
    """Lay out the Python backend as Triton looks for it, our way into its stub beside it."""
    folder = home.backends / "python"
    folder.mkdir(parents=True, exist_ok=True)
    for source in engines.python_backend.iterdir():
        link = folder / source.name
        link.unlink(missing_ok=True)
        link.symlink_to(source)
    stub = folder / engines.stub.name
    stub.unlink(missing_ok=True)
    shutil.copyfile(STUB_PROGRAM, stub)
    stub.chmod(0o755)


def triton_command(
    home: Home, state: State, engines: Engines, replica: str, models: tuple[str, ...]
) -> tuple[list[str], dict[str, str]]:
    """Command line and environment of the replica's tritonserver."""
    port = {kind: str(state.ports[f"{replica}-{kind}"]) for kind in ("http", "grpc", "metrics")}
    flags = {
        # Relative to the home folder, which Triton runs in: it starts model processes through a
        # shell, and does not quote what it finds.
        "model-repository": repository(home, replica).relative_to(home.root),
        "backend-directory": home.backends.relative_to(home.root),
        "cache-directory": engines.tritonserver.parents[1] / "caches",
        # Nothing is loaded that was not asked for by name.
        "model-control-mode": "explicit",
        # A model that fails to load must not take the others with it; its own readiness says so.
        "exit-on-error": "false",
        "strict-readiness": "false",
        # This build has known crashes; nothing but the gateway on this machine may talk to it.
        "http-address": "127.0.0.1",
        "grpc-address": "127.0.0.1",
        "metrics-address": "127.0.0.1",
        "http-port": port["http"],
        "grpc-port": port["grpc"],
        "metrics-port": port["metrics"],
        "allow-sagemaker": "false",
        "allow-vertex-ai": "false",
        "allow-gpu-metrics": "false",
        "exit-timeout-secs": "10",
        "backend-config": f"python,shm-region-prefix-name={shared_memory_prefix(state, replica)}",
        "id": replica,
    }
    command = [str(engines.tritonserver), "--disable-auto-complete-config"]
    command += [f"--{name}={value}" for name, value in flags.items()]
    command += [f"--load-model={model}" for model in models]
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": engines.library_path,
        # The embedded interpreter finds its standard library by the python3 on this path.
        "PATH": f"{engines.python_bin}:{os.environ.get('PATH', '')}",
        "GALLEY_ENGINES_SITE": str(engines.site),
        "GALLEY_TRITON_STUB": str(engines.stub),
    }
    return command, environment


def shared_memory_prefix(state: State, replica: str) -> str:
    """Start of the names of the replica's shared-memory regions."""
    return f"galley-{state.stack_id}-{replica}-"


def remove_shared_memory(prefix: str) -> None:
    """Remove the regions that a killed replica left behind."""
    for region in SHARED_MEMORY.glob(f"{prefix}*"):
        region.unlink(missing_ok=True)


def main(replica: str) -> None:
    """Become the replica's Triton."""
    home = Home(home_folder())
    state = home.running_state()
    engines = find_engines()
    remove_shared_memory(shared_memory_prefix(state, replica))
    shutil.rmtree(repository(home, replica), ignore_errors=True)
    repository(home, replica).mkdir(parents=True)
    models, key = [], verify_key()
    for deployment in read_deployments(home, replica):
        try:
            for note in materialize(home, replica, deployment, key):
                _say(note)
        except GalleyError as error:
            # Its model is not served from here; the others are.
            _say(f"{deployment.model}: not loaded: {error}")
            continue
        models.append(deployment.model)
    command, environment = triton_command(home, state, engines, replica, tuple(models))
    os.execve(command[0], command, environment)  # noqa: S606 - supervisord's child becomes Triton


def _link(source: str, target: str) -> None:
    # The artifact folder lies in the same home, so no byte is copied.
    os.link(source, target)


def _say(line: str) -> None:
    sys.stdout.write(f"galley: {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except GalleyError as error:
        _say(str(error))
        sys.exit(error.exit_code)
