"""What a failure of the client libraries means to the person who asked."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import httpx2
import urllib3.exceptions
from huggingface_hub import constants, errors
from minio.error import InvalidResponseError, MinioException, S3Error

from lehr.egress import EgressRefused
from lehr.errors import PermissionDenied, PlatformError, Unavailable
from lehr.objects.failures import s3_code
from services.catalog.domain.imports import (
    ImportRefused,
    SourceCorrupt,
    SourceGated,
    SourceNotFound,
)
from services.catalog.hub.wire import HubFault

_AWAY = (
    httpx.TransportError,
    httpx2.TransportError,
    urllib3.exceptions.HTTPError,
    ConnectionError,
    TimeoutError,
)

_ACCESS = (*_AWAY, EgressRefused, errors.GatedRepoError, errors.RepositoryNotFoundError)


class HubAway(Unavailable):
    """The hub or bucket does not answer."""

    reason = "HUB_AWAY"


class TokenRefused(PermissionDenied):
    """The source does not take the credential."""

    reason = "CREDENTIAL_REFUSED"


@contextmanager
def told(what: str, *, credential: str) -> Iterator[None]:
    """Raise what failures inside mean, about ``what``, asked for with ``credential`` or none."""
    try:
        yield
    except PlatformError:
        raise
    except Exception as error:
        raise _meaning(error, what, credential) from error


def _meaning(error: Exception, what: str, credential: str) -> PlatformError:
    for cause in _chain(error):
        if isinstance(cause, PlatformError):
            return cause
        found = (
            _of_hub(cause, what, credential)
            if isinstance(cause, errors.HfHubHTTPError | errors.HFValidationError)
            else _of_bucket(cause, what, credential)
            if isinstance(cause, MinioException)
            else None
        )
        if found is not None:
            return found
    if any(isinstance(cause, _AWAY) for cause in _chain(error)):
        return HubAway(f"{what} cannot be read now ({type(error).__name__}); try again")
    if isinstance(error, OSError) and "onsistency" in str(error):
        return SourceCorrupt(f"{what} did not arrive whole; try again")
    return HubFault(f"{what} cannot be read: {type(error).__name__}: {error}")


def _of_hub(error: BaseException, what: str, credential: str) -> PlatformError | None:
    match error:
        case errors.GatedRepoError():
            return _gated(what, credential)
        case errors.RepositoryNotFoundError():
            return SourceNotFound(
                f"the hub shows no {what}: check the name; a private one needs a credential"
                " (`lehr credentials put`, then --credential)"
            )
        case errors.RevisionNotFoundError():
            return SourceNotFound(f"the hub has no such branch, tag or commit of {what}")
        case errors.RemoteEntryNotFoundError():
            return SourceNotFound(f"the hub has lost a file of {what}")
        case errors.HFValidationError():
            return ImportRefused("hub.repo_id", "is no name that the hub takes")
        case errors.HfHubHTTPError(response=response) if response.status_code in (401, 403):
            return _gated(what, credential)
        case errors.HfHubHTTPError(response=response):
            return HubAway(f"the hub answered {response.status_code} for {what}; try again")
    return None


def _gated(what: str, credential: str) -> PlatformError:
    ask = f"ask for access to {what} at {constants.ENDPOINT}"
    if credential:
        return SourceGated(
            f"the token {credential!r} does not open {what}: {ask} with the account that it"
            " belongs to, or store another token"
        )
    return SourceGated(
        f"{what} is gated: {ask}, store a token of that account"
        " (`lehr credentials put NAME`) and import with --credential NAME"
    )


def _of_bucket(error: MinioException, what: str, credential: str) -> PlatformError:
    known = isinstance(error, S3Error | InvalidResponseError)
    match s3_code(error) if known else type(error).__name__:
        case "NoSuchBucket" | "NoSuchKey":
            return SourceNotFound(f"the server shows no {what}")
        case "AccessDenied" | "InvalidAccessKeyId" | "SignatureDoesNotMatch":
            who = f"the keys {credential!r}" if credential else "nobody"
            return TokenRefused(
                f"{what} is not open to {who}; name keys that open it (`lehr credentials put`)"
            )
        case code:
            return HubAway(f"{what} cannot be read now ({code}); try again")


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        yield at
        at = at.__cause__ or at.__context__


def is_about_access(error: BaseException) -> bool:
    """Return whether an error is about reaching the source, and not about what is in it."""
    return any(isinstance(cause, _ACCESS) for cause in _chain(error))
