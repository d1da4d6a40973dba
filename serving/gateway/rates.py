"""How often models may be called, and by whom.

The buckets belong to the virtual host and a request says what it counts for, so that all ways to a
model (each of its paths, gRPC) draw from the same ones.
"""

from collections.abc import Iterator

from serving.gateway.headers import CLIENT_HEADER, header
from serving.gateway.routes import OPERATOR, Gateway, ModelRoute
from serving.gateway.xds import ALWAYS, EXTENSIONS, Json

# Where no bucket fits, which is with the operator.
UNLIMITED = 1_000_000_000
# Buckets for values that no descriptor names. There are none, and Envoy's 20 would let a client
# empty another's bucket if there were.
MOST_BUCKETS = 10_000


def buckets(gateway: Gateway) -> Json:
    """A bucket for each client of each model, and one for each model."""
    return {
        "@type": f"{EXTENSIONS}.filters.http.local_ratelimit.v3.LocalRateLimit",
        "stat_prefix": "galley",
        "token_bucket": _bucket(UNLIMITED),
        "always_consume_default_token_bucket": False,
        "filter_enabled": ALWAYS,
        "filter_enforced": ALWAYS,
        "max_dynamic_descriptors": MOST_BUCKETS,
        "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
        "enable_retry_after_header": True,
        "rate_limited_as_resource_exhausted": True,
        "descriptors": [each for route in gateway.models for each in _of_model(route)],
    }


def counts_for(model: str) -> list[Json]:
    """What a request draws from: its client's bucket and the model's; both must have a token.

    The operator's draws from neither, so that checks can be made of a model that is at its limit.
    """
    client = {"request_headers": {"header_name": CLIENT_HEADER, "descriptor_key": "client"}}
    everyone = {
        "header_value_match": {
            "descriptor_key": "model",
            "descriptor_value": model,
            "expect_match": False,
            "headers": [header(CLIENT_HEADER, OPERATOR)],
        }
    }
    return [{"actions": [client, everyone]}, {"actions": [everyone]}]


def _of_model(route: ModelRoute) -> Iterator[Json]:
    of_all = {"key": "model", "value": route.model}
    for caller in route.limits.callers:
        entries = [{"key": "client", "value": caller.name}, of_all]
        yield {"entries": entries, "token_bucket": _bucket(caller.rate_rps)}
    yield {"entries": [of_all], "token_bucket": _bucket(route.limits.rate_rps)}


def _bucket(rate_rps: int) -> Json:
    return {"max_tokens": rate_rps, "tokens_per_fill": rate_rps, "fill_interval": "1s"}
