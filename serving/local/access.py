"""A way into the stack's gateway for whoever runs it: its certificate is trusted, its key sent."""

import ssl

import httpx

from serving.local.home import Home, State


def authorization(key: str) -> dict[str, str]:
    """The header that carries a key."""
    return {"authorization": f"Bearer {key}"}


def operator_client(home: Home, state: State, timeout_seconds: float = 30.0) -> httpx.Client:
    """A client that may ask every model, its paths relative to the gateway."""
    return httpx.Client(
        base_url=state.gateway_url,
        headers=authorization(home.secrets().operator_key),
        verify=ssl.create_default_context(cafile=home.tls / "ca.pem"),
        timeout=timeout_seconds,
        trust_env=False,
    )
