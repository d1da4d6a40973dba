"""What the registry says is released, served by the local stack."""

from datetime import UTC, datetime

from serving.environments import LOCAL, local_store
from serving.errors import GalleyError, InputError
from serving.gateway.routes import ModelRoute
from serving.local.deploy import Teller, deploy
from serving.local.home import Home
from serving.paths import specs_folder
from serving.publish import spec_of
from serving.registry import releases
from serving.registry.registry import models, show, versions
from serving.registry.releases import Release, Target
from serving.spec import ModelSpec


def release(
    home: Home, spec: ModelSpec, version: int | None, tell: Teller = lambda _: None
) -> ModelRoute:
    """Make a version the released one, then serve it.

    The release document changes first, so that whoever is killed in between finds what was meant;
    it is changed back where the version cannot be served.

    Args:
        home: the running stack.
        spec: the model.
        version: number of a published version; None takes the newest.
        tell: called with each step in plain words.

    Raises:
        InputError: there is no such version.
        ConflictError: somebody else released this model in the meantime.
        GalleyError: it could not be loaded; what was served before is served again.
    """
    with local_store(home) as store:
        if version is None:
            published = versions(store, spec.name)
            if not published:
                raise InputError(f"model={spec.name} has no versions; run: galley push {spec.name}")
            version = published[-1].version
        manifest = show(store, spec.name, version)
        target = Target(version=manifest.version, digest=manifest.digest)
        found = releases.read(store, LOCAL, spec.name)
        if found and found[0].stable == target:
            return deploy(home, spec, manifest, tell)
        now = datetime.now(UTC)
        document = (
            found[0].changed(now, stable=target)
            if found
            else Release.first(LOCAL, spec.name, now, stable=target)
        )
        etag = releases.write(store, document, found[1] if found else None)
        try:
            return deploy(home, spec, manifest, tell)
        except BaseException:
            before = found[0].stable if found else None
            releases.write(store, document.changed(datetime.now(UTC), stable=before), etag)
            raise


def serve_released(home: Home, tell: Teller = lambda _: None) -> tuple[ModelRoute, ...]:
    """Serve every model that has a release in the registry, as after a restart.

    A model that cannot be served is told of and left out; the others are served.
    """
    routes = []
    with local_store(home) as store:
        for model in models(store):
            found = releases.read(store, LOCAL, model)
            if found is None or found[0].stable is None:
                continue
            try:
                manifest = show(store, model, found[0].stable.version)
                routes.append(deploy(home, spec_of(model, specs_folder()), manifest, tell))
            except GalleyError as error:
                tell(f"{model}: not served: {error}")
    return tuple(routes)
