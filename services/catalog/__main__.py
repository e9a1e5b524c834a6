"""Runs the catalog."""

import sys
from datetime import timedelta
from pathlib import Path

from lehr.api.catalog.v1.catalog_pb2_grpc import add_CatalogServiceServicer_to_server
from lehr.process import Process, run
from services.catalog.cache import FileCache
from services.catalog.handlers.shelves import Shelves
from services.catalog.handlers.sweeping import sweep
from services.catalog.handlers.training import Tokens
from services.catalog.hub.calling import Hub
from services.catalog.scratch import scratch_folder
from services.catalog.servicer import POLICY, Servicer
from services.catalog.settings import Settings
from services.catalog.sources import Sources
from services.catalog.vault import Vault
from services.catalog.work import Worker

LOOK_EVERY = timedelta(seconds=2)
"""How often a worker looks for what another replica began, or a dead one left."""


async def main(settings: Settings) -> None:
    """Serve until told to stop."""
    process = Process("catalog", settings)
    async with process:
        await process.objects.ensure_bucket()
        with scratch_folder(settings.scratch_dir) as own_folder:
            scratch = own_folder / "work"
            scratch.mkdir()
            folder = settings.cache_dir or own_folder / "cache"
            folder.mkdir(parents=True, exist_ok=True)
            shelves = Shelves(
                db=process.db,
                objects=process.objects,
                cache=FileCache(process.objects, folder, bytes_max=settings.cache_bytes),
                link_lifetime=settings.link_lifetime,
                scratch=scratch,
                part_bytes=settings.part_bytes,
                processes=settings.processes,
                sources=_sources(settings, scratch),
            )

            async def collect() -> None:
                await sweep(
                    shelves,
                    process.clock,
                    upload_lifetime=settings.upload_lifetime,
                    refused_lifetime=settings.refused_lifetime,
                )

            process.add_servicer(
                add_CatalogServiceServicer_to_server,
                Servicer(shelves, Tokens(shelves)),
                service_name="lehr.api.catalog.v1.CatalogService",
                policy=POLICY,
            )
            process.add_loop("collect", collect, every=timedelta(minutes=10))
            for number in range(settings.entries_at_once):
                worker = Worker(shelves, claim_lifetime=settings.claim_lifetime)
                loop = process.add_loop(f"work-{number}", worker.work, every=LOOK_EVERY)
                shelves.bell.add(loop.wake)
            await process.serve()


def _sources(settings: Settings, scratch: Path) -> Sources:
    secret_key = settings.secret_key
    return Sources(
        hub=Hub(
            endpoint=settings.hub_endpoint,
            allowed=settings.egress_allow,
            folder=scratch / "imports",
        ),
        vault=Vault("" if secret_key is None else secret_key.get_secret_value()),
        bytes_max=settings.import_bytes_max,
        time_limit=settings.import_lifetime,
        first_wait=settings.import_wait,
        allow_pickle=frozenset(filter(None, map(str.strip, settings.allow_pickle.split(",")))),
    )


if __name__ == "__main__":
    sys.exit(run(Settings, main))
