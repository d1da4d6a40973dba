"""From what a person asks for to a `Job`: the spec, the workload, and what runs where."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadtest.job import Job
from loadtest.workload import workload_of
from serving.errors import InputError
from serving.paths import home_folder, specs_folder
from serving.publish import spec_of

if TYPE_CHECKING:
    from serving.local.home import Home


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
    given: dict[str, Any] = {
        "seconds": seconds,
        "exact": exact or None,
        "latency_p99_ms": latency_p99_ms,
        "error_ratio": error_ratio,
        "alpha": None if alpha == 0.05 else alpha,
        "max_in_flight": max_in_flight,
    }
    place = _elsewhere(url, ca) if url else _local(model, home)
    return Job(
        spec=spec,
        workload=chosen,
        seed=chosen.seed if seed is None else seed,
        salt=secrets.randbits(32) if salt is None else salt,
        peak_rps=spec.traffic.peak_rps if rate_rps is None else rate_rps,
        **{name: value for name, value in given.items() if value is not None},
        **place,
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
