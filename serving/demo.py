"""`galley demo`: the whole path once, with answers that are checked against something else."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from serving.environments import local_store, signing_key
from serving.inference import infer
from serving.local.access import operator_client
from serving.local.deploy import Teller
from serving.local.home import Home, State
from serving.local.serve import release
from serving.local.stack import up
from serving.paths import ROOT, specs_folder
from serving.predict import CONCURRENCY, TIMEOUT_SECONDS
from serving.publish import gather, publish, spec_of
from serving.recipes import filetype, ranker
from serving.recipes.corpus import real_files

MODELS = ("filetype", "ranker")
FILES = 240
VECTORS = 200
# float32 over 2,048-wide sums against the same sums in float64.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Check:
    """What one model answered, beside what its reference says. Times are at the client."""

    model: str
    version: int
    digest: str
    requests: int
    agreed: int
    reference: str
    p50_ms: float
    p99_ms: float
    examples: tuple[tuple[str, str], ...]


def run(home: Home, tell: Teller) -> tuple[State, tuple[Check, ...]]:
    """Start the stack where none runs, publish and serve the shipped models, and check them.

    Raises:
        GalleyError: a step failed.
    """
    tell("starting the local stack")
    state, started = up(home)
    tell(f"the stack {'is up' if started else 'was running already'}: {state.gateway_url}")
    checks = []
    for model, check in (("filetype", _check_filetype), ("ranker", _check_ranker)):
        tell(f"publishing {model}")
        spec = spec_of(model, specs_folder())
        with TemporaryDirectory(prefix="galley-") as folder, local_store(home) as store:
            files = gather(spec, None, Path(folder), specs_folder())
            published = publish(
                store,
                spec,
                files,
                source=f"recipe {model}",
                now=datetime.now(UTC),
                signing_key=signing_key(),
            )
            tell(f"serving {model} version {published.version}")
            release(home, spec, published.version)
            tell(f"asking {model}")
            with operator_client(home, state) as client:
                checks.append(check(client, published.version, published.digest, files))
    return state, tuple(checks)


def _check_filetype(client: httpx.Client, version: int, digest: str, _: dict[str, Path]) -> Check:
    paths = real_files(ROOT, FILES)
    labels, times = _ask_all(paths, lambda path: _label(client, path))
    expected = filetype.reference(paths)
    shown: dict[str, Path] = {}
    for path, label in sorted(zip(paths, labels, strict=True), key=lambda each: _distance(each[0])):
        shown.setdefault(label, path)
    return Check(
        model="filetype",
        version=version,
        digest=digest,
        requests=len(paths),
        agreed=sum(ours == theirs for ours, theirs in zip(labels, expected, strict=True)),
        reference="labels of the magika package",
        p50_ms=_quantile(times, 0.50),
        p99_ms=_quantile(times, 0.99),
        examples=tuple((_named(path), label) for label, path in [*shown.items()][:8]),
    )


def _label(client: httpx.Client, path: Path) -> str:
    encoded = filetype.encode(path)
    if isinstance(encoded, str):
        return encoded
    scores = _infer(client, "filetype", {filetype.INPUT: encoded[None]})[filetype.OUTPUT]
    return filetype.decode(scores[0])[0]


def _check_ranker(client: httpx.Client, version: int, digest: str, files: dict[str, Path]) -> Check:
    vectors = ranker.sample_inputs(VECTORS, seed=1)
    scores, times = _ask_all(
        vectors,
        lambda row: float(_infer(client, "ranker", {ranker.INPUT: row[None]})[ranker.OUTPUT][0, 0]),
    )
    expected = ranker.reference(files["model.onnx"], vectors).ravel()
    return Check(
        model="ranker",
        version=version,
        digest=digest,
        requests=len(scores),
        agreed=sum(
            bool(abs(ours - theirs) <= TOLERANCE)
            for ours, theirs in zip(scores, expected, strict=True)
        ),
        reference=f"numpy in float64, within {TOLERANCE:g}",
        p50_ms=_quantile(times, 0.50),
        p99_ms=_quantile(times, 0.99),
        examples=tuple((f"vector {n}", f"{scores[n]:+.4f}") for n in range(3)),
    )


def _infer(client: httpx.Client, model: str, inputs: dict[str, Any]) -> Any:
    gateway = str(client.base_url)
    return infer(gateway, model, inputs, timeout_seconds=TIMEOUT_SECONDS, client=client)


def _ask_all(questions: Any, ask: Callable[[Any], Any]) -> tuple[list[Any], list[float]]:
    """Every answer in order, and the milliseconds that each took."""

    def timed(question: Any) -> tuple[Any, float]:
        start = time.perf_counter()
        answer = ask(question)
        return answer, (time.perf_counter() - start) * 1000

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        done = list(pool.map(timed, questions))
    return [answer for answer, _ in done], [elapsed for _, elapsed in done]


def _quantile(times_ms: list[float], share: float) -> float:
    ordered = sorted(times_ms)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _distance(path: Path) -> tuple[int, str]:
    """Files of the checkout before those of packages: people know them."""
    return len(path.relative_to(ROOT).parts) if path.is_relative_to(ROOT) else 99, str(path)


def _named(path: Path) -> str:
    # A package's path says little and fills the screen.
    return str(path.relative_to(ROOT)) if _distance(path)[0] < 4 else f".../{path.name}"
