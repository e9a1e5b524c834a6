"""Runs the allocator: the only place that reads settings and builds things."""

import sys
from datetime import timedelta

from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2_grpc as pb_grpc
from lehr.logs import get_logger
from lehr.process import Process, run
from services.gpu_allocator import tiers
from services.gpu_allocator.domain.expiry import Limits
from services.gpu_allocator.handlers import gauges, nodes
from services.gpu_allocator.servicer import POLICY, SERVICE_NAME, Pace, Servicer
from services.gpu_allocator.settings import Settings
from services.gpu_allocator.subscribers import subscribers

EXPIRE_EVERY = timedelta(seconds=1)
GAUGES_EVERY = timedelta(seconds=15)


async def main(settings: Settings) -> None:
    """Serve until asked to end."""
    known = tiers.read(settings.tiers_file or tiers.default_file())
    pace = Pace(
        sync_interval=settings.sync_interval,
        live=settings.lease_ttl,
        fresh=settings.node_fresh,
    )
    limits = Limits(
        lease_ttl=settings.lease_ttl,
        unseen=settings.unseen_limit,
        starting=settings.starting_limit,
        lost=settings.lost_limit,
    )
    process = Process("gpu_allocator", settings)
    log = get_logger()
    async with process:

        async def expire() -> None:
            for lease in await nodes.expire(db=process.db, limits=limits):
                log.warning(
                    "lease_ended_by_silence",
                    lease_id=lease.lease_id,
                    job_id=lease.job_id,
                    phase=str(lease.phase),
                    reason=lease.close_message,
                )

        async def measure() -> None:
            await gauges.measure(db=process.db, live=pace.live)

        process.add_servicer(
            pb_grpc.add_GpuAllocatorServiceServicer_to_server,
            Servicer(process.db, tiers=known, pace=pace),
            service_name=SERVICE_NAME,
            policy=POLICY,
        )
        process.add_router(subscribers(process.db))
        process.add_loop("expire", expire, every=EXPIRE_EVERY)
        process.add_loop("gauges", measure, every=GAUGES_EVERY)
        await process.serve()


if __name__ == "__main__":
    sys.exit(run(Settings, main))
