"""A pool against a real Postgres: what it promises, and what its failures are called."""

import asyncio

import asyncpg
import pytest

from lehr.errors import Aborted, NotFound, Unavailable
from lehr.postgres import Database
from tests.integration.lehr.lib_servers import PostgresServer


async def test_json_columns_are_python_values(database: Database) -> None:
    async with database.connection() as connection:
        row = await connection.fetchrow(
            "SELECT $1::jsonb AS first, $2::json AS second", {"a": [1, None, "x"]}, [True]
        )

    assert row is not None
    assert (row["first"], row["second"]) == ({"a": [1, None, "x"]}, [True])


async def test_json_refuses_a_number_that_is_not_finite(database: Database) -> None:
    async with database.connection() as connection:
        with pytest.raises(asyncpg.DataError):
            await connection.fetchval("SELECT $1::jsonb", {"loss": float("nan")})


async def test_a_transaction_commits_at_the_end_of_its_block(database: Database) -> None:
    async with database.transaction() as first:
        await first.execute("CREATE TABLE t (n int)")

    async with database.transaction(readonly=True) as second:
        assert await second.fetchval("SELECT count(*) FROM t") == 0


async def test_an_exception_undoes_the_transaction_and_passes_unchanged(database: Database) -> None:
    async def create_and_fail() -> None:
        async with database.transaction() as connection:
            await connection.execute("CREATE TABLE t (n int)")
            raise NotFound("no such job")

    with pytest.raises(NotFound):
        await create_and_fail()

    async with database.connection() as connection:
        assert await connection.fetchval("SELECT to_regclass('t')") is None


async def test_a_cancelled_transaction_is_undone_and_its_connection_lent_again(
    admin_url: str,
) -> None:
    database = await Database.connect(admin_url, max_size=1)
    entered = asyncio.Event()

    async def insert_and_wait() -> None:
        async with database.transaction() as connection:
            await connection.execute("CREATE TABLE t (n int)")
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(insert_and_wait())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    async with database.connection() as connection:
        assert await connection.fetchval("SELECT to_regclass('t')") is None
    await database.close()


async def test_a_serialization_failure_is_aborted(database: Database) -> None:
    async with database.connection() as connection:
        await connection.execute("CREATE TABLE t (n int)")
        await connection.execute("INSERT INTO t VALUES (1)")

    async def add_one() -> None:
        async with database.transaction(isolation="serializable") as connection:
            n = await connection.fetchval("SELECT n FROM t")
            await both_have_read.wait()
            await connection.execute("UPDATE t SET n = $1", n + 1)

    both_have_read = asyncio.Barrier(2)
    results = await asyncio.gather(add_one(), add_one(), return_exceptions=True)

    (failure,) = [result for result in results if result is not None]
    assert isinstance(failure, Aborted)
    assert (failure.reason, failure.retryable) == ("DATABASE_CONFLICT", True)


async def test_a_deadlock_is_aborted(database: Database) -> None:
    async with database.connection() as connection:
        await connection.execute("CREATE TABLE t (name text, n int)")
        await connection.execute("INSERT INTO t VALUES ('a', 0), ('b', 0)")

    async def touch(first: str, second: str) -> None:
        async with database.transaction() as connection:
            await connection.execute("UPDATE t SET n = n + 1 WHERE name = $1", first)
            await both_hold_one.wait()
            await connection.execute("UPDATE t SET n = n + 1 WHERE name = $1", second)

    both_hold_one = asyncio.Barrier(2)
    results = await asyncio.gather(touch("a", "b"), touch("b", "a"), return_exceptions=True)

    (failure,) = [result for result in results if result is not None]
    assert isinstance(failure, Aborted)


async def test_our_own_mistake_in_sql_is_not_hidden(database: Database) -> None:
    with pytest.raises(asyncpg.UndefinedTableError):
        async with database.transaction() as connection:
            await connection.execute("SELECT FROM nowhere")


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(Unavailable) as caught:
        await Database.connect("postgresql://someone:canary@127.0.0.1:9/nothing")

    assert "canary" not in str(caught.value) + str(caught.value.facts)


async def test_a_wrong_password_does_not_end_in_the_message(
    admin_url: str, postgres_server: PostgresServer
) -> None:
    with pytest.raises(Unavailable) as caught:
        await Database.connect(admin_url.replace(postgres_server.password, "canary"))

    assert "canary" not in str(caught.value) + str(caught.value.facts)


async def test_a_session_ended_by_the_server_is_unavailable_and_the_next_call_works(
    database: Database,
) -> None:
    async def end_own_session() -> None:
        async with database.transaction() as connection, database.connection() as other:
            pid = await connection.fetchval("SELECT pg_backend_pid()")
            await other.execute("SELECT pg_terminate_backend($1)", pid)
            await connection.execute("SELECT pg_sleep(5)")

    with pytest.raises(Unavailable):
        await end_own_session()

    assert await database.is_ready()


async def test_the_pool_works_again_after_postgres_was_killed(
    database: Database, postgres_server: PostgresServer
) -> None:
    async def update_while_killed() -> None:
        async with database.transaction() as connection:
            await connection.execute("UPDATE t SET n = 2")
            await asyncio.to_thread(postgres_server.kill)
            await connection.execute("UPDATE t SET n = 3")

    async with database.connection() as connection:
        await connection.execute("CREATE TABLE t AS SELECT 1 AS n")
        await connection.execute("CHECKPOINT")
    with pytest.raises(Unavailable):
        await update_while_killed()
    ready_while_down = await database.is_ready()
    await asyncio.to_thread(postgres_server.start)

    assert not ready_while_down
    assert await _eventually_ready(database)
    async with database.transaction() as connection:
        assert await connection.fetchval("SELECT n FROM t") == 1


async def _eventually_ready(database: Database) -> bool:
    for _ in range(300):
        if await database.is_ready():
            return True
        await asyncio.sleep(0.1)
    return False


async def test_an_own_connection_hears_notifications(database: Database) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()

    async with database.own_connection() as own:
        await own.add_listener("news", lambda *said: heard.put_nowait(str(said[-1])))
        async with database.connection() as connection:
            await connection.execute("SELECT pg_notify('news', 'hello')")

        assert await asyncio.wait_for(heard.get(), 10) == "hello"


async def test_closing_does_not_wait_for_ever_for_a_lent_connection(admin_url: str) -> None:
    database = await Database.connect(admin_url)
    lent = database.connection()
    await lent.__aenter__()

    async with asyncio.timeout(10):
        await database.close(timeout=0.1)
