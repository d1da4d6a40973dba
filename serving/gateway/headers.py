"""Headers that the gateway sets, whatever a client sent under their names, and matching by them."""

from serving.gateway.routes import Limits, Version
from serving.gateway.xds import Json, set_header

CLIENT_HEADER = "x-galley-client"
MODEL_HEADER = "x-galley-model"
VERSION_HEADER = "x-galley-version"
DIGEST_HEADER = "x-galley-digest"
# On a copy, the version that it is for.
SHADOW_HEADER = "x-galley-shadow"


def header(name: str, value: str) -> Json:
    """Matches requests that carry a header with exactly this value."""
    return {"name": name, "string_match": {"exact": value}}


def method(name: str) -> Json:
    """Matches requests with one HTTP method."""
    return header(":method", name)


def hash_policy(limits: Limits) -> Json:
    """Sends requests with equal values of the model's header to one server, where it has one."""
    if limits.hash_header is None:
        return {}
    return {"hash_policy": [{"header": {"header_name": limits.hash_header}}]}


def of_version(version: Version) -> list[Json]:
    """Headers that say which version a request is for, or an answer is from."""
    return [
        set_header(VERSION_HEADER, str(version.number)),
        set_header(DIGEST_HEADER, version.digest),
    ]
