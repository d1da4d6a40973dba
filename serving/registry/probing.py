"""The question every store is asked first: does a conditional write really depend on its condition?

A server that ignores `If-None-Match` or `If-Match` answers 200 to everything, and looks fine until
two writers meet. Such servers exist among the small local ones, so the answer is found by trying.
"""

import secrets
from collections.abc import Callable

from serving.errors import ConflictError, StoreError
from serving.registry.names import quoted
from serving.registry.store import Store

_FOLDER = ".galley-probe"


def check_conditional_writes(store: Store) -> None:
    """Return if the store honours both conditions; the object it was tried on is removed.

    Raises:
        StoreError: It does not, or it cannot be reached.
    """
    label = store.config.label
    key = f"{_FOLDER}/{secrets.token_hex(16)}"
    etag = store.create(key, b"first")
    try:
        _must_refuse(label, "If-None-Match", lambda: store.create(key, b"second"))
        _must_refuse(label, "If-Match", lambda: store.swap(key, b"third", f'"{"0" * 32}"'))
        if store.get(key) != (b"first", etag):
            raise StoreError(
                f"{label}: a refused write changed the object all the same; use S3 or SeaweedFS"
            )
        try:
            store.swap(key, b"fourth", etag)
        except ConflictError:
            raise StoreError(
                f"{label}: If-Match refuses even the current ETag={quoted(etag)}, so no release "
                "could ever change; use S3 or SeaweedFS"
            ) from None
    finally:
        store.delete(key)


def _must_refuse(label: str, header: str, write: Callable[[], str]) -> None:
    try:
        write()
    except ConflictError:
        return
    raise StoreError(
        f"{label}: the server ignores {header}, so two writers could both win and one be lost; "
        "use a server that honours conditional writes, as S3 or SeaweedFS"
    )
