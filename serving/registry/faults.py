"""What goes wrong between here and the object store, told in one line with a way out."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NoReturn

from serving.errors import StoreError
from serving.registry.names import quoted

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

# Codes of S3 and of SeaweedFS; a HEAD answer has no body, so its code is only the status.
_ADVICE: Final = {
    "NoSuchBucket": "the bucket does not exist; correct its name, or create it",
    "AccessDenied": "access is denied; grant this key the bucket and its objects",
    "403": "access is denied; check the access key and secret key, and what they may do",
    "Forbidden": "access is denied; check the access key and secret key, and what they may do",
    "InvalidAccessKeyId": "the access key is unknown; check it",
    "SignatureDoesNotMatch": "the secret key is wrong; check it",
    "ExpiredToken": "the session has expired; sign in again",
    "RequestTimeTooSkewed": "this machine's clock is wrong; set it",
    "BadDigest": "bytes were damaged on the way; push again",
    "PermanentRedirect": "the bucket is in another region; correct the region",
    "AuthorizationHeaderMalformed": "the bucket is in another region; correct the region",
    "NotImplemented": "the server lacks this operation; use S3 or SeaweedFS",
    "SlowDown": "the store is overloaded; try again later",
}


class Refused(Exception):
    """The server said 404, 409, 412 or 416: the caller knows whether that is a fault."""

    def __init__(self, error: "ClientError", told: StoreError) -> None:
        super().__init__(str(told))
        answer = error.response.get("ResponseMetadata", {})
        self.status = answer.get("HTTPStatusCode", 0)
        self.code = error.response.get("Error", {}).get("Code", "")
        self.retried = answer.get("RetryAttempts", 0) > 0
        self.told = told

    def only(self, *expected: int) -> None:
        """Return for an expected status.

        Raises:
            StoreError: The status is another, or the bucket itself is missing.
        """
        if self.status not in expected or self.code == "NoSuchBucket":
            raise self.told from None


@contextmanager
def guard(label: str, doing: str) -> Iterator[None]:
    """Run the block; what botocore raises in it becomes StoreError, or Refused for an answer.

    Args:
        label: how the store is named: endpoint and bucket.
        doing: what was going on, as `reading models/ranker/3/manifest.json`.
    """
    from botocore.exceptions import BotoCoreError, ClientError
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ClientError as error:
        told = StoreError(f"{label}: {doing} failed: {_answer(error)}")
        if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") in (404, 409, 412, 416):
            raise Refused(error, told) from None
        raise told from None
    except (BotoCoreError, HTTPError, OSError, ValueError) as error:
        _raise(label, doing, error)


def _answer(error: "ClientError") -> str:
    said = error.response.get("Error", {})
    code, status = said.get("Code", ""), error.response["ResponseMetadata"]["HTTPStatusCode"]
    if code in _ADVICE:
        return f"{status} {code}: {_ADVICE[code]}"
    told = f"{status} {quoted(code)[1:-1]}, {quoted(said.get('Message', ''), 200)}"
    if status >= 500:
        return f"{told}; look at the server's log and at its free disk space"
    return f"{told}; look at the server's log"


def _raise(label: str, doing: str, error: Exception) -> NoReturn:
    from botocore import exceptions as boto

    match error:
        case boto.NoCredentialsError() | boto.PartialCredentialsError() | boto.ProfileNotFound():
            advice = (
                "there are no usable credentials; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY"
            )
        case (
            boto.EndpointConnectionError()
            | boto.ConnectTimeoutError()
            | boto.ProxyConnectionError()
        ):
            advice = "it cannot be reached; start it, or correct the endpoint"
        case boto.SSLError():
            advice = (
                "its TLS certificate is not trusted; set AWS_CA_BUNDLE, or correct the endpoint"
            )
        case boto.ReadTimeoutError():
            advice = "it did not answer within 30 s; look at the server, then try again"
        case boto.ParamValidationError() | ValueError():
            advice = f"{quoted(str(error), 200)}; correct the bucket, endpoint or region"
        case _:
            advice = f"{type(error).__name__} {quoted(str(error), 200)}; try again"
    raise StoreError(f"{label}: {doing} failed: {advice}") from None
