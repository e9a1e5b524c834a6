"""What a failure of the object store means to a caller."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from minio.error import InvalidResponseError, S3Error, ServerError
from urllib3.exceptions import HTTPError

from lehr.errors import FailedPrecondition, NotFound, Unavailable

_MISSING = frozenset({"NoSuchKey", "NoSuchBucket", "NoSuchObject", "ResourceNotFound"})
_FORBIDDEN = frozenset({"AccessDenied", "SignatureDoesNotMatch", "InvalidAccessKeyId"})
_CODE = re.compile(r"<Code>(\w+)</Code>")


class ObjectNotFound(NotFound):
    """Nothing is stored under the key."""

    reason = "OBJECT_NOT_FOUND"

    def __init__(self, key: str) -> None:
        super().__init__(f"there is no object {key}", key=key)


class ObjectDiffers(FailedPrecondition):
    """What was to be stored is not what was expected; nothing was stored."""

    reason = "OBJECT_DIFFERS"

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key} {why}", key=key, why=why)
        self.why = why


class ObjectStoreUnavailable(Unavailable):
    """The store did not do it; it is not known whether a write arrived."""

    reason = "OBJECT_STORE_UNAVAILABLE"
    retry_in = timedelta(seconds=2)


@contextmanager
def typed_errors(doing: str, key: str) -> Iterator[None]:
    """Turn what the client raises into errors of the platform; a local file's errors pass."""
    try:
        yield
    except (S3Error, InvalidResponseError) as error:
        code = s3_code(error)
        if code in _MISSING:
            raise ObjectNotFound(key) from error
        advice = "check its keys" if code in _FORBIDDEN else "ask again in a moment"
        raise _unavailable(doing, key, f"{code}; {advice}") from error
    except (ServerError, HTTPError, ConnectionError) as error:
        raise _unavailable(doing, key, f"{type(error).__name__}; ask again in a moment") from error


def s3_code(error: S3Error | InvalidResponseError) -> str:
    """Return S3's code; the client keeps only the text of an answer of type text/xml."""
    if isinstance(error, S3Error):
        return str(error.code)
    found = _CODE.search(str(error))
    return found[1] if found else "an answer that is not S3"


def _unavailable(doing: str, key: str, failure: str) -> ObjectStoreUnavailable:
    message = f"the object store could not {doing} {key}: {failure}"
    return ObjectStoreUnavailable(message, doing=doing, key=key, failure=failure)
