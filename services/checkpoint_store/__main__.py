"""Builds the checkpoint store from its settings and runs it."""

import asyncio
import sys
from functools import partial

from lehr.api.checkpoint_store.v1.checkpoint_store_pb2_grpc import (
    add_CheckpointStoreServiceServicer_to_server,
)
from lehr.errors import Unavailable
from lehr.objects import ObjectStore
from lehr.process import Process, run
from services.checkpoint_store.clients import SchedulerClient
from services.checkpoint_store.handlers import job_facts, removal
from services.checkpoint_store.servicer import POLICY, SERVICE, Servicer
from services.checkpoint_store.settings import Settings
from services.checkpoint_store.subscribers import subscribers

BUCKET_SECONDS = 60.0
"""How long a starting store waits for the object store."""


async def main(settings: Settings) -> None:
    """Serve until asked to stop."""
    process = Process("checkpoint_store", settings)
    async with process:
        await _ensure_bucket(process.objects)
        scheduler = SchedulerClient(process.channel("scheduler"))
        servicer = Servicer(
            db=process.db,
            objects=process.objects,
            upload_url_lifetime=settings.upload_url_lifetime,
            download_url_lifetime=settings.download_url_lifetime,
            resume_hash_bytes_max=settings.resume_hash_bytes_max,
        )
        process.add_servicer(
            add_CheckpointStoreServiceServicer_to_server,
            servicer,
            service_name=SERVICE,
            policy=POLICY,
        )
        process.add_router(
            subscribers(process.db, scheduler, url_lifetime=settings.upload_url_lifetime)
        )
        collect = partial(
            removal.collect,
            db=process.db,
            objects=process.objects,
            abandon_after=settings.abandon_uploads_after,
            url_lifetime=settings.upload_url_lifetime,
        )
        process.add_loop("collect", collect, every=settings.collect_interval)
        sweep = partial(
            job_facts.sweep,
            db=process.db,
            scheduler=scheduler,
            url_lifetime=settings.upload_url_lifetime,
        )
        process.add_loop("sweep", sweep, every=settings.sweep_interval)
        await process.serve()


async def _ensure_bucket(objects: ObjectStore) -> None:
    """Make the bucket, waiting for a store that is only starting."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + BUCKET_SECONDS
    while True:
        try:
            return await objects.ensure_bucket()
        except Unavailable:
            if loop.time() > give_up_at:
                raise
            await asyncio.sleep(0.5)


if __name__ == "__main__":
    sys.exit(run(Settings, main))
