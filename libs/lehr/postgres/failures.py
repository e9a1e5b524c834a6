"""What a failure of Postgres means to a caller."""

from contextlib import suppress
from datetime import timedelta

import asyncpg

from lehr.errors import Aborted, PlatformError, Unavailable

RETRY_SOON = timedelta(milliseconds=50)
RETRY_LATER = timedelta(seconds=1)

DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    # Includes TimeoutError.
    OSError,
)
"""Everything that the driver raises, server's and its own."""

# Another transaction was faster: the same one may succeed at once.
_CONFLICT = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.LockNotAvailableError,
    # Plans of before a migration, once a connection.
    asyncpg.InvalidCachedStatementError,
)
# The server is away, starting, stopping, full, or has become a standby.
_GONE = (
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.ReadOnlySQLTransactionError,
    # The driver saw the end of a session in the middle of its own steps.
    asyncpg.InternalClientError,
    ConnectionError,
)


class DatabaseConflict(Aborted):
    """Two transactions were in each other's way, and this one lost."""

    reason = "DATABASE_CONFLICT"


class DatabaseUnavailable(Unavailable):
    """Postgres did not answer, so it is not known whether a commit was done."""

    reason = "DATABASE_UNAVAILABLE"


def meaning(error: BaseException, *, connection_lost: bool = False) -> PlatformError | None:
    """Return the platform's error for a failure of Postgres, or None where it is our mistake."""
    if isinstance(error, _CONFLICT):
        return DatabaseConflict(
            f"another transaction was faster ({_name(error)}); ask again",
            retry_in=RETRY_SOON,
            failure=_name(error),
        )
    if isinstance(error, _GONE) or (connection_lost and isinstance(error, asyncpg.InterfaceError)):
        return DatabaseUnavailable(
            f"the database does not answer ({_name(error)}); ask again in a moment",
            retry_in=RETRY_LATER,
            failure=_name(error),
        )
    return None


def _name(error: BaseException) -> str:
    with suppress(AttributeError):
        return f"{type(error).__name__} {error.sqlstate}"  # type: ignore[attr-defined]
    return type(error).__name__
