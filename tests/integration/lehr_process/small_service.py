"""A service as small as one can be, for the tests of Process; run as a program of its own."""

import asyncio
import sys
from datetime import timedelta
from typing import Any

from faststream.nats import NatsRouter
from pydantic_settings import SettingsConfigDict

from lehr.events import codec, inbox, outbox
from lehr.events.subscribers import durable
from lehr.postgres import Database
from lehr.process import Process, run
from lehr.settings import ServiceSettings
from tests.integration.lehr_events.stories import a_job_finished
from tests.integration.lehr_rpc.words import SERVICE, Words, add_words


class Settings(ServiceSettings):
    """Those that every service has, and what a test may want to go wrong."""

    model_config = SettingsConfigDict(env_prefix="SCHEDULER_", frozen=True)

    broken_loop: bool = False
    ends_by_itself: bool = False
    listens: bool = True


def subscribers(db: Database) -> NatsRouter:
    router = NatsRouter()

    @durable(router, "billing-job", stream="JOBS", subject="evt.job.finished.v1.*.*")
    async def count(body: bytes) -> None:
        async with db.transaction() as conn:
            if await inbox.first_time(conn, "billing-job", codec.peek(body)["id"]):
                # The inbox itself is what the tests count.
                return
            print("duplicate", flush=True)

    return router


async def main(settings: Settings) -> None:
    process = Process("scheduler", settings)

    async def say(request: str, _context: Any) -> str:
        match request.split():
            case ["finish", job_id]:
                async with process.db.transaction() as conn:
                    return await outbox.add(
                        conn, a_job_finished(job_id), sequence=1, source="scheduler"
                    )
            case ["sleep", seconds]:
                await asyncio.sleep(float(seconds))
        return request

    async def fail() -> None:
        raise KeyError("a bad round")

    async def end() -> None:
        return

    async with process:
        process.add_servicer(add_words, Words(say), service_name=SERVICE, policy={})
        if settings.listens:
            process.add_router(subscribers(process.db))
        if settings.broken_loop:
            process.add_loop("broken", fail, every=timedelta(milliseconds=10))
        if settings.ends_by_itself:
            process.add_task("ending", end)
        await process.serve()


if __name__ == "__main__":
    sys.exit(run(Settings, main))
