"""Puts a published version behind the stack's gateway, one replica after the other."""

from collections.abc import Callable
from dataclasses import replace

import httpx

from serving.environments import verify_key
from serving.errors import GalleyError, StackError
from serving.gateway.limits import limits_of
from serving.gateway.routes import Endpoint, ModelRoute, Version
from serving.local.gateway import endpoint, read_gateway, swap, wait_until_idle
from serving.local.home import Home, State
from serving.local.prediction import add_served, forget_unserved, served_of
from serving.local.replica import (
    Deployment,
    fetch,
    materialize,
    read_deployments,
    write_deployments,
)
from serving.publish import CONFIG
from serving.registry.manifest import Manifest
from serving.spec import ModelSpec

LOAD_SECONDS = 120.0

Teller = Callable[[str], None]


def deploy(
    home: Home, spec: ModelSpec, manifest: Manifest, tell: Teller = lambda _: None
) -> ModelRoute:
    """Serve this version of a model, and no other, without a failed request.

    With two or more replicas, each in turn is taken out of rotation, loads the version, and comes
    back under the new route; the first one moves all traffic.

    Args:
        home: the running stack.
        spec: limits of the route.
        manifest: the published version.
        tell: called with each step in plain words.

    Raises:
        GalleyError: a replica could not load it; the version that was served before is served
            again.
    """
    with home.lock():
        state = home.running_state()
        before = read_gateway(home).route(spec.name)
        after = ModelRoute(
            model=spec.name,
            limits=limits_of(spec, state.replicas),
            versions=(Version(manifest.version, manifest.digest, endpoints=()),),
        )
        # Before any replica is touched: what cannot be had or trusted changes nothing.
        artifact = fetch(home, _deployment(after), verify_key())
        add_served(home, served_of(spec, manifest, (artifact / CONFIG).read_text()))
        touched: list[str] = []
        try:
            for replica in state.replica_names:
                touched.append(replica)
                _move(home, state, replica, after, tell)
        except BaseException:
            tell(f"taking back {spec.name} version {manifest.version}")
            for replica in reversed(touched):
                _restore(home, state, replica, spec.name, before, tell)
            raise
        finally:
            forget_unserved(home, read_gateway(home))
        return after


def _deployment(route: ModelRoute) -> Deployment:
    return Deployment(model=route.model, version=route.main.number, digest=route.main.digest)


def _move(home: Home, state: State, replica: str, target: ModelRoute, tell: Teller) -> None:
    """Take one replica out of rotation, load the target version, and route to it."""
    here = endpoint(state, replica)
    current = read_gateway(home).route(target.model)
    # The only replica of a version stays in rotation until the new one has taken over.
    if current and here in current.main.endpoints and len(current.main.endpoints) > 1:
        # Draining rather than gone, so that what it still has to answer can be seen.
        left = tuple(replace(at, draining=at == here) for at in current.main.endpoints)
        swap(home, state, read_gateway(home).with_route(_at(current, left)))
        wait_until_idle(state, current.model, current.main.number, here)
    _load(home, state, replica, target, tell)
    current = read_gateway(home).route(target.model)
    same = current is not None and _deployment(current) == _deployment(target)
    joined = current.main.endpoints if current and same else ()
    endpoints = (*(at for at in joined if at.port != here.port), here)
    swap(home, state, read_gateway(home).with_route(_at(target, endpoints)))
    tell(f"{replica} serves {target.model} version {target.main.number}")


def _at(route: ModelRoute, endpoints: tuple[Endpoint, ...]) -> ModelRoute:
    """The route with its one version at these endpoints."""
    return replace(route, versions=(replace(route.main, endpoints=endpoints),))


def _restore(
    home: Home, state: State, replica: str, model: str, before: ModelRoute | None, tell: Teller
) -> None:
    """Put back what the replica served; one that cannot be is told of, and the others follow."""
    try:
        if before:
            _move(home, state, replica, before, tell)
            return
        swap(home, state, read_gateway(home).without(model))
        rest = tuple(each for each in read_deployments(home, replica) if each.model != model)
        write_deployments(home, replica, rest)
        _post(state, replica, f"/v2/repository/models/{model}/unload")
    except GalleyError as error:
        tell(f"{replica} could not be put back: {error}")


def _load(home: Home, state: State, replica: str, target: ModelRoute, tell: Teller) -> None:
    """Make the replica's Triton load the version; returns when it is warmed up and ready."""
    deployment = _deployment(target)
    others = tuple(each for each in read_deployments(home, replica) if each.model != target.model)
    # Fetched and verified before; a version that is put back was trusted when it was served.
    notes = materialize(home, replica, deployment, verify_key=None)
    # Recorded before it is done: a replica that crashes while loading comes back with it.
    write_deployments(home, replica, (*others, deployment))
    for note in notes:
        tell(f"{replica}: {note}")
    answer = _post(state, replica, f"/v2/repository/models/{target.model}/load")
    if not answer.is_success:
        raise StackError(
            f"{replica} could not load {target.model} version {target.main.number}: "
            f"{_error(answer)}; see: galley logs {replica}"
        )


def _post(state: State, replica: str, path: str) -> httpx.Response:
    url = f"http://{state.address(f'{replica}-http')}{path}"
    try:
        return httpx.post(url, json={}, timeout=LOAD_SECONDS, trust_env=False)
    except httpx.HTTPError as error:
        raise StackError(
            f"{replica} does not answer ({error}); see: galley logs {replica}"
        ) from error


def _error(answer: httpx.Response) -> str:
    try:
        text = str(answer.json()["error"])
    except (ValueError, KeyError, TypeError):
        text = answer.text or f"HTTP {answer.status_code}"
    return " ".join(text.split())[:500]
