"""The models behind the gateways of these tests, and what may be asked of each."""

from dataclasses import replace

from serving.gateway.routes import Caller, Endpoint, Gateway, Limits, ModelRoute, Version
from tests.serving.gateway.envoy_process import gateway_of

LIMITS = Limits(
    kind="tensors",
    max_request_bytes=983_040,
    timeout_seconds=5.0,
    per_try_timeout_seconds=1.25,
    idle_timeout_seconds=300.0,
    max_in_flight=24,
    retries_in_flight=12,
    rate_rps=60,
    callers=(Caller("uploads", 40), Caller("scanner", 10)),
)
LIMIT_BYTES = 70_000
DIGESTS = {number: "sha256:" + str(number % 10) * 64 for number in range(20)}
ADS = replace(LIMITS, max_request_bytes=LIMIT_BYTES, callers=(Caller("ads", 500),), rate_rps=2500)
STREAM = replace(ADS, kind="stream", idle_timeout_seconds=2.0)
# Of the requests in percent, by version.
SHARES = {5: 0, 6: 70, 7: 0, 8: 30}
INFER = "/v2/models/ranker/infer"
STREAMED = "/v2/models/tale/versions/12/generate_stream"


def edge_gateway(hop: Endpoint, triton: Endpoint) -> Gateway:
    """A gateway with a model for each thing that clients may meet."""
    first, one = (Version(number, DIGESTS[number], (triton,)) for number in (1, 12))
    # Few a second, or a slow machine would not send more in the same time.
    limited = replace(LIMITS, rate_rps=3, callers=(Caller("uploads", 40), Caller("ads", 40)))
    scarce = replace(ADS, callers=(Caller("uploads", 4), Caller("scanner", 2)))
    split = (Version(1, DIGESTS[1], (), 90), Version(2, DIGESTS[2], (), 10))
    tales = (Version(number, DIGESTS[number], (triton,), SHARES[number]) for number in SHARES)
    return gateway_of(
        (
            ModelRoute("filetype", replace(LIMITS, rate_rps=1000), (first,)),
            ModelRoute("limited", limited, (first,)),
            ModelRoute("ranker", ADS, (one,)),
            ModelRoute("quick", replace(ADS, timeout_seconds=0.5), (one,)),
            ModelRoute("counted", replace(ADS, callers=(Caller("ads", 3),)), (one,)),
            ModelRoute("scarce", scarce, (one,)),
            ModelRoute("split", ADS, split),
            ModelRoute("tale", STREAM, (one,)),
            ModelRoute("tales", STREAM, tuple(tales)),
        ),
        servers=[triton],
        hops=[hop],
    )
