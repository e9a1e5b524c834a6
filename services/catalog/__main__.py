"""Runs the catalog."""

import sys
import tempfile
from datetime import timedelta
from pathlib import Path

from lehr.api.catalog.v1.catalog_pb2_grpc import add_CatalogServiceServicer_to_server
from lehr.process import Process, run
from services.catalog.cache import FileCache
from services.catalog.handlers.datasets import forget_dataset
from services.catalog.handlers.models import forget_model
from services.catalog.handlers.training import Tokens
from services.catalog.handlers.uploads import Shelves
from services.catalog.servicer import POLICY, Servicer
from services.catalog.settings import Settings
from services.catalog.storage import entries


async def main(settings: Settings) -> None:
    """Serve until told to stop."""
    process = Process("catalog", settings)
    async with process:
        await process.objects.ensure_bucket()
        with tempfile.TemporaryDirectory(prefix="lehr-catalog-") as own_folder:
            folder = settings.cache_dir or Path(own_folder)
            folder.mkdir(parents=True, exist_ok=True)
            shelves = Shelves(
                db=process.db,
                objects=process.objects,
                cache=FileCache(process.objects, folder, bytes_max=settings.cache_bytes),
                link_lifetime=settings.link_lifetime,
            )

            async def collect() -> None:
                async with process.db.connection() as conn:
                    models, datasets = await entries.abandoned(conn, settings.upload_lifetime)
                for model in models:
                    await forget_model(shelves, model)
                for dataset in datasets:
                    await forget_dataset(shelves, dataset)

            process.add_servicer(
                add_CatalogServiceServicer_to_server,
                Servicer(shelves, Tokens(shelves)),
                service_name="lehr.api.catalog.v1.CatalogService",
                policy=POLICY,
            )
            process.add_loop("collect", collect, every=timedelta(minutes=10))
            await process.serve()


if __name__ == "__main__":
    sys.exit(run(Settings, main))
