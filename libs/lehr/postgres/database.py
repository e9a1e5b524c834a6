"""A pool of connections whose failures are typed errors."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Literal, Self

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from lehr.logs import metrics
from lehr.postgres.failures import DRIVER_ERRORS, RETRY_LATER, DatabaseUnavailable, meaning

# The classes take no parameters at run time, only in the stubs.
if TYPE_CHECKING:
    OwnConnection = asyncpg.Connection[asyncpg.Record]
    Connection = PoolConnectionProxy[asyncpg.Record] | OwnConnection
else:
    OwnConnection = asyncpg.Connection
    Connection = PoolConnectionProxy | OwnConnection
"""What runs statements; queries of a service take it as their first argument."""

Isolation = Literal["read_committed", "repeatable_read", "serializable"]

CONNECT_SECONDS = 10.0


class Database:
    """Postgres as one service sees it.

    It outlives a restart of the server: calls fail with Unavailable until it is back, and then
    work again, without a new Database.
    """

    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]", url: str) -> None:
        self._pool = pool
        self._url = url

    @classmethod
    async def connect(cls, url: str, *, min_size: int = 1, max_size: int = 6) -> Self:
        """Open a pool.

        Raises:
            DatabaseUnavailable: no server there, or not yet.
        """
        pool = asyncpg.create_pool(
            url,
            min_size=min_size,
            max_size=max_size,
            init=_speak_json,
            timeout=CONNECT_SECONDS,
        )
        try:
            await pool
        except DRIVER_ERRORS as error:
            pool.terminate()
            raise _unreachable(error) from error
        return cls(pool, url)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Lend a connection without a transaction; each statement commits by itself.

        Raises:
            DatabaseUnavailable: no connection within 10 s, or lost while lent.
            DatabaseConflict: a deadlock, or a lock that was not given in time.
        """
        try:
            lent = await self._pool.acquire(timeout=CONNECT_SECONDS)
        except DRIVER_ERRORS as error:
            raise _unreachable(error) from error
        try:
            yield lent
        except Exception as error:
            failure = meaning(error, connection_lost=_is_lost(lent))
            if failure is None:
                raise
            metrics.add("database_failures", reason=failure.reason)
            raise failure from error
        finally:
            # A connection that broke while it was reset is dropped by the pool.
            with suppress(*DRIVER_ERRORS):
                await self._pool.release(lent, timeout=CONNECT_SECONDS)

    @asynccontextmanager
    async def transaction(
        self, *, isolation: Isolation = "read_committed", readonly: bool = False
    ) -> AsyncIterator[Connection]:
        """Run the block as one transaction: committed at its end, undone by any exception.

        Nothing is retried. After DatabaseUnavailable it is unknown whether the commit was done,
        so what is asked again must be harmless the second time.

        Raises:
            DatabaseUnavailable, DatabaseConflict: as for ``connection``.
        """
        async with self.connection() as connection:
            transaction = connection.transaction(isolation=isolation, readonly=readonly)
            await transaction.start()
            try:
                yield connection
            except BaseException:
                # The first exception is the story; a lost connection has rolled back already.
                with suppress(*DRIVER_ERRORS):
                    await transaction.rollback()
                raise
            await transaction.commit()

    @asynccontextmanager
    async def own_connection(self) -> AsyncIterator[OwnConnection]:
        """Open a connection outside the pool, for LISTEN and for locks of a session.

        Raises:
            DatabaseUnavailable: as for ``connection``.
        """
        try:
            connection = await asyncpg.connect(self._url, timeout=CONNECT_SECONDS)
        except DRIVER_ERRORS as error:
            raise _unreachable(error) from error
        try:
            await _speak_json(connection)
            yield connection
        except Exception as error:
            failure = meaning(error, connection_lost=_is_lost(connection))
            if failure is None:
                raise
            raise failure from error
        finally:
            with suppress(*DRIVER_ERRORS):
                await connection.close(timeout=1)

    async def is_ready(self) -> bool:
        """Return whether a statement runs now; never raises for a server that is away."""
        try:
            async with self.connection() as connection:
                await connection.execute("SELECT")
        except DatabaseUnavailable:
            return False
        return True

    async def close(self, *, timeout: float = 5) -> None:  # noqa: ASYNC109 - a grace, then force
        """Wait for lent connections, then close; after ``timeout`` seconds without waiting."""
        try:
            await asyncio.wait_for(self._pool.close(), timeout)
        except DRIVER_ERRORS:
            self._pool.terminate()


async def _speak_json(connection: OwnConnection) -> None:
    """Make json and jsonb columns Python values on this connection."""
    for name in ("json", "jsonb"):
        await connection.set_type_codec(
            name, encoder=_to_json, decoder=json.loads, schema="pg_catalog"
        )


def _is_lost(connection: Connection) -> bool:
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:
        # The pool has taken a lost connection back by itself.
        return True


def _to_json(value: object) -> str:
    # Postgres would refuse NaN too, but without saying where it came from.
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _unreachable(error: BaseException) -> DatabaseUnavailable:
    # The URL holds a password, and so may the error's text.
    name = type(error).__name__
    metrics.add("database_failures", reason=DatabaseUnavailable.reason)
    return DatabaseUnavailable(
        f"cannot get a connection to the database ({name}); ask again in a moment",
        retry_in=RETRY_LATER,
        failure=name,
    )
