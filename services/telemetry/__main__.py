"""Builds telemetry from its settings and runs it."""

import asyncio
import sys
from datetime import timedelta
from functools import partial

from lehr.api.telemetry.v1.telemetry_pb2_grpc import add_TelemetryServiceServicer_to_server
from lehr.process import Process, run
from services.telemetry.bell import Bell
from services.telemetry.handlers.waiting import place_stuck_lines
from services.telemetry.puller import Puller
from services.telemetry.servicer import POLICY, SERVICE, Servicer
from services.telemetry.settings import Settings
from services.telemetry.subscribers import logs, runs

LISTEN_AGAIN = timedelta(seconds=1)
LOOK_FOR_GAPS = timedelta(seconds=5)


async def main(settings: Settings) -> None:
    """Serve until asked to stop.

    Raises:
        StreamsDiffer: the streams of the NATS server are not the declared ones.
    """
    process = Process("telemetry", settings)
    async with process:
        bell = Bell(process.db)
        process.add_servicer(
            add_TelemetryServiceServicer_to_server,
            Servicer(db=process.db, bell=bell),
            service_name=SERVICE,
            policy=POLICY,
        )
        process.add_loop("bell", bell.run, every=LISTEN_AGAIN)
        process.add_loop(
            "gaps",
            partial(place_stuck_lines, db=process.db, patience=settings.log_gap_patience),
            every=LOOK_FOR_GAPS,
        )
        of_runs = Puller(runs(process.db), process.nats)
        of_logs = Puller(logs(process.db), process.nats)
        process.add_check("runs", of_runs.problem)
        process.add_check("logs", of_logs.problem)
        tasks = [asyncio.create_task(of_runs.run()), asyncio.create_task(of_logs.run())]
        for task in tasks:
            # A puller never ends by itself: whatever it raised ends the process.
            task.add_done_callback(lambda _: process.stop())
        try:
            await process.serve()
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


if __name__ == "__main__":
    sys.exit(run(Settings, main))
