"""Starts the agent of one node."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lehr import faults
from lehr.logs import get_logger
from lehr.process import Process, run
from services.trainer_runner.agent import processes
from services.trainer_runner.agent.agent import Agent
from services.trainer_runner.agent.devices import discover
from services.trainer_runner.agent.disk import Disk
from services.trainer_runner.agent.folders import StateDir
from services.trainer_runner.agent.journal import Journal
from services.trainer_runner.agent.link import Link
from services.trainer_runner.agent.masking import Masker, secrets_of
from services.trainer_runner.agent.models import Models
from services.trainer_runner.agent.peers import Peers
from services.trainer_runner.agent.preparation import Preparation
from services.trainer_runner.agent.reporter import Reporter
from services.trainer_runner.agent.sync import Sync
from services.trainer_runner.agent.tools import Tools
from services.trainer_runner.agent.transfer import Transfer
from services.trainer_runner.agent.wall import WallClock
from services.trainer_runner.settings import Settings


async def main(settings: Settings) -> None:
    """Run until SIGTERM; trainers are then given time to save."""
    process = Process("trainer_runner", settings)
    # Several agents may share a machine and a file of faults.
    faults.name_process(f"trainer_runner-{settings.node_name}")
    async with process, _agent(settings, process) as agent:
        working = asyncio.create_task(agent.run(), name="agent")
        working.add_done_callback(lambda _: process.stop())
        try:
            await process.serve()
            if not working.done():
                await agent.drain(settings.shutdown_grace.total_seconds())
        finally:
            if not working.done():
                working.cancel()
            await asyncio.wait({working})
        if not working.cancelled():
            working.result()


@asynccontextmanager
async def _agent(settings: Settings, process: Process) -> AsyncIterator[Agent]:
    timing = settings.timing
    state_dir, disk, transfer = StateDir(settings.state_dir), Disk(), Transfer()
    state_dir.take()
    journal = Journal(state_dir.journal_file, disk)
    await journal.open()
    # A lost journal must not make this node look older than it was.
    incarnation = await journal.next_incarnation(at_least=int(time.time()))
    found = await discover(cpu_slots=settings.cpu_slots, pretended=settings.pretended)
    numbers = await journal.number_devices([device.device_id for device in found])
    link = Link(unconfirmed_after=timing.unconfirmed_after)
    peers, clock = Peers(process.channel), WallClock(settings.wall_clock_offset)
    reporter = Reporter(
        state_dir.spool_dir,
        disk,
        client=process.nats,
        telemetry=peers,
        clock=clock,
        limit_bytes=settings.spool_bytes,
    )
    models = Models(state_dir, transfer, bytes_max=settings.model_cache_bytes)
    tools = Tools(
        node_name=settings.node_name,
        boot_id=processes.boot_id(),
        journal=journal,
        peers=peers,
        transfer=transfer,
        preparation=Preparation(peers, transfer, models, limit_seconds=timing.prepare_limit),
        reporter=reporter,
        state_dir=state_dir,
        link=link,
        clock=clock,
        masker=Masker(secrets_of(os.environ)),
        timing=timing,
        devices={numbers[device.device_id]: device for device in found},
        cpu_slots=settings.cpu_slots,
        environment=dict(os.environ),
        takes_scripts=settings.platform.test_hooks,
    )
    sync = Sync(
        process.channel("gpu_allocator"),
        link,
        node_name=settings.node_name,
        incarnation=incarnation,
        boot_id=tools.boot_id,
        interval=timing.sync_interval,
    )
    agent = Agent(tools, sync)
    process.add_check("allocator", link.problem)
    get_logger().info(
        "agent_starting", node=settings.node_name, incarnation=incarnation, devices=len(found)
    )
    try:
        await agent.recover()
        yield agent
    finally:
        await agent.stop()
        await transfer.close()
        await journal.close()
        disk.close()


if __name__ == "__main__":
    sys.exit(run(Settings, main))
