"""What may be tried again, and on which server."""

from serving.gateway.routes import Limits
from serving.gateway.xds import Json, seconds, typed

# What cannot have run.
UNSENT = "connect-failure,refused-stream,reset-before-request"
# With two replicas three draws of four find the dead one: 50 never all do.
DRAWS = 50


def unsent_retries() -> Json:
    """For what must not run twice: a second attempt only where the first was never sent."""
    return _retries(UNSENT)


def hop_retries(limits: Limits) -> Json:
    """For a prediction hop that dies: what it held is asked again of another one.

    Not for what a hop answers, which has been tried on model servers already.
    """
    if limits.per_try_timeout_seconds is None:
        return unsent_retries()
    return _retries(f"{UNSENT},reset")


def model_retries(limits: Limits) -> Json:
    """For tensors that a hop has checked.

    Checked first, since what kills a server would kill the next one too. An attempt is given up
    after a while, so that a frozen replica costs time and no answer.
    """
    if limits.per_try_timeout_seconds is None:
        return unsent_retries()
    return {
        **_retries(f"{UNSENT},gateway-error"),
        "per_try_timeout": seconds(limits.per_try_timeout_seconds),
    }


def _retries(retry_on: str) -> Json:
    name = "envoy.retry_host_predicates.previous_hosts"
    config = typed("retry.host.previous_hosts.v3.PreviousHostsPredicate")
    return {
        "retry_on": retry_on,
        "num_retries": 1,
        "retry_host_predicate": [{"name": name, "typed_config": config}],
        "host_selection_retry_max_attempts": DRAWS,
    }
