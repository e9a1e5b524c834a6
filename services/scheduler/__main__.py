"""Run the scheduler: ``python -m services.scheduler``."""

from __future__ import annotations

import sys
from datetime import timedelta

from lehr.api.scheduler.v1.scheduler_pb2_grpc import add_SchedulerServiceServicer_to_server
from lehr.process import Process, run
from services.scheduler.changes import Changes
from services.scheduler.cycle import add_loops
from services.scheduler.domain.retry import RetryPolicy
from services.scheduler.peers import Peers
from services.scheduler.ports import Ports, Rules
from services.scheduler.servicer import POLICY, SERVICE_NAME, SchedulerServicer
from services.scheduler.settings import Settings
from services.scheduler.subscribers import subscribers


def rules(settings: Settings) -> Rules:
    """Return what the operator decided."""
    return Rules(
        retry=RetryPolicy(
            faults_max=settings.faults_max,
            backoff=timedelta(seconds=settings.backoff_seconds),
            backoff_max=timedelta(seconds=settings.backoff_max_seconds),
        ),
        plan_kept=timedelta(hours=settings.plan_kept_hours),
        script_allowed=settings.platform.test_hooks,
    )


async def main(settings: Settings) -> None:
    """Serve until asked to stop."""
    process = Process("scheduler", settings)
    async with process:
        peers = Peers(
            catalog=process.channel("catalog"),
            allocator=process.channel("gpu_allocator"),
            billing=process.channel("billing"),
            checkpoints=process.channel("checkpoint_store"),
        )
        ports = Ports(db=process.db, peers=peers, rules=rules(settings))
        changes = Changes(process.db)
        process.add_servicer(
            add_SchedulerServiceServicer_to_server,
            SchedulerServicer(ports, changes),
            service_name=SERVICE_NAME,
            policy=POLICY,
        )
        process.add_router(subscribers(ports))
        add_loops(process, ports, changes, cycle=settings.cycle, sweep_every=settings.sweep)
        await process.serve()


if __name__ == "__main__":
    sys.exit(run(Settings, main))
