"""Names of the HTTP filters, by which routes find the ones they set.

Two hold bodies back: the one for tensors stands behind keys and limits, so that nobody uploads
what is going to be refused; the one for gRPC stands before them, since they depend on what is in
the message.
"""

AUTH = "envoy.filters.http.api_key_auth"
RBAC = "envoy.filters.http.rbac"
RATE = "envoy.filters.http.local_ratelimit"
BUFFER = "envoy.filters.http.buffer"
GRPC_BUFFER = "grpc-buffer"
GRPC_SCRIPT = "grpc-script"
