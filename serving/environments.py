"""The registry of an environment, and the keys that sign what is in it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from serving.errors import InputError
from serving.local.home import Home
from serving.local.processes import BUCKET
from serving.paths import home_folder

if TYPE_CHECKING:
    from serving.registry.store import Store

LOCAL = "local"


def open_store(environment: str) -> "Store":
    """The object store that holds the registry of `environment`.

    `local` is the SeaweedFS of the running local stack. Any other environment is the bucket that
    `GALLEY_REGISTRY_BUCKET` names, at `GALLEY_REGISTRY_ENDPOINT` where that is not AWS, with the
    credentials that boto3 finds.

    Raises:
        InputError: the environment has no registry configured.
        StackError: no local stack is running.
    """
    from serving.registry.store import Store, StoreConfig

    if environment == LOCAL:
        return local_store(Home(home_folder()))
    bucket = os.environ.get("GALLEY_REGISTRY_BUCKET")
    if not bucket:
        raise InputError(
            f"env={environment} has no registry here; set GALLEY_REGISTRY_BUCKET, or use --env "
            "local"
        )
    return Store(
        StoreConfig(
            bucket=bucket,
            endpoint_url=os.environ.get("GALLEY_REGISTRY_ENDPOINT"),
            region=os.environ.get("AWS_REGION", "us-east-1"),
            access_key=None,
            secret_key=None,
        )
    )


def local_store(home: Home) -> "Store":
    """The registry of one local stack.

    Raises:
        StackError: no local stack is running.
    """
    from serving.registry.store import Store, StoreConfig

    state, secrets = home.running_state(), home.secrets()
    return Store(
        StoreConfig(
            bucket=BUCKET,
            endpoint_url=f"http://{state.address('s3')}",
            region="us-east-1",
            access_key=secrets.s3_access_key,
            secret_key=secrets.s3_secret_key,
        )
    )


def signing_key() -> Path | None:
    """Private key that signs what is pushed: `GALLEY_SIGNING_KEY`."""
    return _key("GALLEY_SIGNING_KEY")


def verify_key() -> Path | None:
    """Public key that everything pulled must be signed for: `GALLEY_VERIFY_KEY`."""
    return _key("GALLEY_VERIFY_KEY")


def _key(variable: str) -> Path | None:
    value = os.environ.get(variable)
    if not value:
        return None
    path = Path(value)
    if not path.is_file():
        raise InputError(f"{variable}={value} is no file; name a key in PEM form, or unset it")
    return path
