"""Versions as the store has them: a version exists once its manifest does."""

from typing import Final

from serving.errors import InputError, IntegrityError
from serving.registry import names
from serving.registry.manifest import Manifest
from serving.registry.store import Store

_SHOWN: Final = 20


def versions(store: Store, model: str) -> tuple[Manifest, ...]:
    """The manifests of a model's versions, ascending; what has no manifest is not a version.

    Raises:
        IntegrityError: A manifest is not what galley wrote.
    """
    manifests = (find(store, model, number) for number in numbers(store, model))
    return tuple(manifest for manifest in manifests if manifest is not None)


def show(store: Store, model: str, version: int) -> Manifest:
    """The manifest of one version.

    Raises:
        InputError: There is no such version; the message lists those there are.
        IntegrityError: The manifest is not one, or is that of another version.
    """
    if (manifest := find(store, model, version)) is not None:
        return manifest
    if known := numbers(store, model):
        shown = ", ".join(str(number) for number in known[-_SHOWN:])
        older = "older ones and " if len(known) > _SHOWN else ""
        raise InputError(f"{model} has no version {version}; it has {older}{shown}")
    published = ", ".join(models(store)) or "none"
    raise InputError(f"model={model} has no published version; published models: {published}")


def models(store: Store) -> tuple[str, ...]:
    """The names of models with at least one version, sorted."""
    found = (names.parse_manifest_key(key) for key in store.list("models"))
    return tuple(sorted({parsed[0] for parsed in found if parsed}))


def numbers(store: Store, model: str) -> tuple[int, ...]:
    """The numbers of a model's versions, ascending as numbers: 9 before 10."""
    listed = store.list("models", names.check_model(model))
    found = (names.parse_manifest_key(key) for key in listed)
    return tuple(sorted(parsed[1] for parsed in found if parsed and parsed[0] == model))


def find(store: Store, model: str, version: int) -> Manifest | None:
    """The manifest of one version; None if there is none.

    Raises:
        IntegrityError: The manifest is not one, or is that of another version.
    """
    key = names.manifest_key(model, version)
    if (found := store.get(key)) is None:
        return None
    manifest = Manifest.parse(found[0], key)
    if (manifest.model, manifest.version) != (model, version):
        raise IntegrityError(f"{key} is the manifest of {manifest.model} {manifest.version}")
    return manifest
