"""What clients are told where Envoy answers by itself: JSON like the model server's own errors.

The first entry that fits is used; gRPC clients get text, and a status of theirs.
"""

from serving.gateway.headers import method
from serving.gateway.xds import Json, set_header

# gRPC's own statuses for those of HTTP that Envoy translates to something less telling.
EXHAUSTED = "8"
GRPC_STATUSES = {404: "5", 413: EXHAUSTED, 501: "12"}
# More in flight than a cluster's circuit breaker lets through.
OVERFLOW = ["UO"]


def local_replies() -> Json:
    """The listener's replies."""
    too_large = (
        "request body is larger than the %METADATA(ROUTE:galley:max_request_bytes)% bytes that "
        "the model takes"
    )
    return {
        "mappers": [
            {
                **_grpc({"response_flag_filter": {"flags": OVERFLOW}}),
                "headers_to_add": [set_header("grpc-status", EXHAUSTED)],
            },
            *(
                {**_grpc(_status(status)), "headers_to_add": [set_header("grpc-status", own)]}
                for status, own in GRPC_STATUSES.items()
            ),
            _grpc(None),
            {
                # A full model sheds: 503 would say that it is ill, and be tried again at once.
                "filter": {"response_flag_filter": {"flags": OVERFLOW}},
                "status_code": 429,
                "headers_to_add": [set_header("retry-after", "1")],
                "body_format_override": _error("as many requests as the model bears are in flight"),
            },
            _reply(413, too_large),
            {
                **_reply(401, "no valid key; send one as authorization: Bearer <key>"),
                "headers_to_add": [set_header("www-authenticate", "Bearer")],
            },
            {
                "filter": {"and_filter": {"filters": [_status(403), _other_protocol()]}},
                "body_format_override": _error("no other protocol is offered here"),
            },
            _reply(403, "this key may not call the model"),
            _reply(429, "over the rate limit; retry-after says when to come back"),
            # Envoy's own body of these is empty.
            _reply(400, "the gateway refuses the request: %RESPONSE_CODE_DETAILS%"),
        ],
        "body_format": _error("%LOCAL_REPLY_BODY%"),
    }


def _grpc(condition: Json | None) -> Json:
    kind = {"name": "content-type", "string_match": {"prefix": "application/grpc"}}
    only: Json = {"header_filter": {"header": kind}}
    if condition is not None:
        only = {"and_filter": {"filters": [only, condition]}}
    text = {"text_format_source": {"inline_string": "%LOCAL_REPLY_BODY%"}}
    return {"filter": only, "body_format_override": text}


def _other_protocol() -> Json:
    asked = ({"name": "upgrade", "present_match": True}, method("CONNECT"))
    return {"or_filter": {"filters": [{"header_filter": {"header": each}} for each in asked]}}


def _reply(status: int, error: str) -> Json:
    return {"filter": _status(status), "body_format_override": _error(error)}


def _status(status: int) -> Json:
    code = {"default_value": status, "runtime_key": f"galley.reply_{status}"}
    return {"status_code_filter": {"comparison": {"op": "EQ", "value": code}}}


def _error(text: str) -> Json:
    return {"json_format": {"error": text}}
