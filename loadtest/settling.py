"""From what a person asks for to a `Job`: the spec, the workload, and what runs where."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from loadtest.job import Job
from loadtest.workload import Workload, workload_of
from serving.errors import InputError
from serving.paths import home_folder, specs_folder
from serving.publish import spec_of
from serving.strict import sentences

if TYPE_CHECKING:
    from serving.local.home import Home
    from serving.spec import ModelSpec


ASKED_OF: Final = {
    "triton_http": "triton",
    "triton_grpc": "triton",
    "chat": "vllm",
    "completions": "vllm",
}
"""Which engine answers which kind of request."""


def settle(
    model: str,
    workload: str,
    *,
    home: Path | None = None,
    url: str | None = None,
    ca: Path | None = None,
    rate_rps: float | None = None,
    seconds: float | None = None,
    exact: bool = False,
    seed: int | None = None,
    salt: int | None = None,
    latency_p99_ms: float | None = None,
    error_ratio: float | None = None,
    alpha: float = 0.05,
    max_in_flight: int | None = None,
) -> Job:
    """The load test of a model.

    Without a `url` it goes to the local stack's gateway, as the operator.

    Raises:
        InputError: for a model, workload or number that cannot be tested.
        StackError: no local stack runs and no `url` is given.
    """
    spec = spec_of(model, specs_folder())
    chosen = workload_of(workload)
    _check(spec, chosen)
    given: dict[str, Any] = {
        "seconds": seconds,
        "exact": exact or None,
        "latency_p99_ms": latency_p99_ms,
        "error_ratio": error_ratio,
        "alpha": None if alpha == 0.05 else alpha,
        "max_in_flight": max_in_flight,
    }
    place = _elsewhere(url, ca) if url else _local(model, home)
    try:
        return Job(
            spec=spec,
            workload=chosen,
            seed=chosen.seed if seed is None else seed,
            salt=secrets.randbits(32) if salt is None else salt,
            peak_rps=spec.traffic.peak_rps if rate_rps is None else rate_rps,
            **{name: value for name, value in given.items() if value is not None},
            **place,
        )
    except ValidationError as error:
        raise InputError("\n".join(sentences("load test", error))) from None


def _check(spec: ModelSpec, workload: Workload) -> None:
    """Whether the model can be asked in the workload's way."""
    asks, engine = workload.request.kind, spec.engine.kind
    if engine not in (ASKED_OF[asks], "container"):
        fitting = [kind for kind, of in ASKED_OF.items() if of == engine]
        raise InputError(
            f"workload={workload.name}: asks {spec.name} for {asks}, which {engine} does not "
            f"answer; use a workload whose request is {' or '.join(fitting)}"
        )
    rows, most = (
        getattr(workload.request, "batch_size", 1),
        getattr(spec.engine, "max_batch_size", 1),
    )
    if rows > max(1, most):
        raise InputError(
            f"workload={workload.name}: batch_size={rows} is more than max_batch_size={most} of "
            f"{spec.name}; lower it"
        )


def _elsewhere(url: str, ca: Path | None) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        raise InputError(f"url={url}: is no http or https address; give where the gateway answers")
    found: dict[str, Any] = {"url": url.rstrip("/"), "environment": "other"}
    if ca is not None:
        found["ca"] = str(ca.absolute())
    return found


def _local(model: str, given: Path | None) -> dict[str, Any]:
    from serving.local.gateway import read_gateway
    from serving.local.home import Home

    home: Home = Home(given or home_folder())
    state = home.running_state()
    route = next((one for one in read_gateway(home).models if one.model == model), None)
    if route is None:
        raise InputError(
            f"model={model}: is not served by the local stack; run: galley push {model} && "
            f"galley deploy {model}"
        )
    return {
        "url": state.gateway_url,
        "ca": str(home.tls / "ca.pem"),
        "home": str(home.root),
        "environment": "local",
        "version": route.main.number,
        "digest": route.main.digest,
    }
