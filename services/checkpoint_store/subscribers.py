"""NATS in: one function a durable consumer."""

from datetime import timedelta

from faststream.nats import NatsRouter

from lehr.events import codec
from lehr.events.job import JobFinished
from lehr.events.run import RunBest
from lehr.events.subscribers import durable
from lehr.postgres import Database
from services.checkpoint_store.handlers import job_facts

RUN_DURABLE = "checkpoint-run"
JOB_DURABLE = "checkpoint-job"


def subscribers(
    db: Database, scheduler: job_facts.Scheduler, *, url_lifetime: timedelta
) -> NatsRouter:
    """Return the consumers of this service."""
    router = NatsRouter()

    @durable(router, RUN_DURABLE, stream="RUNS", subject="evt.run.best.>")
    async def expect_best(body: bytes) -> None:
        await job_facts.expect_best(codec.decode(body, RunBest), consumer=RUN_DURABLE, db=db)

    @durable(router, JOB_DURABLE, stream="JOBS", subject="evt.job.finished.>")
    async def finish_job(body: bytes) -> None:
        await job_facts.job_finished(
            codec.decode(body, JobFinished),
            consumer=JOB_DURABLE,
            db=db,
            scheduler=scheduler,
            url_lifetime=url_lifetime,
        )

    return router
