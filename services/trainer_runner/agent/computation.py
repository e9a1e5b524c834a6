"""The part of a run that uses its devices: prepare, start a trainer, watch it, prove it dead."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from lehr import faults
from lehr.logs import get_logger
from lehr.training.ends import RunEnd
from services.trainer_runner.agent import devices, processes
from services.trainer_runner.agent.batches import Origin
from services.trainer_runner.agent.child import Child, Command
from services.trainer_runner.agent.folders import RunFolder
from services.trainer_runner.agent.intake import Intake
from services.trainer_runner.agent.leases import Ending, Grant, Instants, Phase
from services.trainer_runner.agent.preparation import PreparationFailed, Prepared
from services.trainer_runner.agent.processes import ProcessId
from services.trainer_runner.agent.spool import Spool
from services.trainer_runner.agent.staging import Staged
from services.trainer_runner.agent.tools import Tools
from services.trainer_runner.agent.watch import Allowance, Watch

T = TypeVar("T")

_PIDS_EVERY_SECONDS = 2.0
_SERIES_FILE = "series.jsonl"


class Computation:
    """One trainer from its preparation to the proof that nothing of it lives."""

    def __init__(
        self,
        grant: Grant,
        tools: Tools,
        folder: RunFolder,
        *,
        on_checkpoint: Callable[[Staged], None],
        on_spec: Callable[[int], None],
    ) -> None:
        """``on_spec`` is told how many ordinary checkpoints the job keeps."""
        self.spool: Spool | None = None
        self.leader: int | None = None
        """Process number of the trainer, once it was started."""
        self.pids: tuple[int, ...] = ()
        self.is_clear = False
        """Nothing of it lives or will be started any more."""
        self.is_stuck = False
        """A process outlived its kill."""
        self._grant = grant
        self._tools = tools
        self._folder = folder
        self._on_checkpoint = on_checkpoint
        self._on_spec = on_spec
        self._allowance = Allowance()
        self._stop_reason: RunEnd | None = None
        self._interrupted = asyncio.Event()
        self._watch: Watch | None = None
        self._notes: set[asyncio.Task[None]] = set()
        self._stuck: asyncio.Task[None] | None = None
        self._log = get_logger()

    @property
    def instants(self) -> Instants:
        """When computing began, moved and ended."""
        return self._watch.instants if self._watch else Instants()

    @property
    def phase(self) -> Phase:
        """STARTING until the first batch is about to be computed."""
        return Phase.STARTING if self.instants.began is None else Phase.RUNNING

    def allow(self, allowance: Allowance) -> None:
        """Take the newest limits."""
        self._allowance = allowance
        if self._watch:
            self._watch.allowance = allowance

    def stop(self, reason: RunEnd) -> None:
        """Let the trainer save and end; before it exists, let it not be started."""
        self._stop_reason = self._stop_reason or reason
        self._interrupted.set()
        if self._watch:
            self._watch.ask(reason)

    def kill(self) -> None:
        """End it at once."""
        self._interrupted.set()
        if self._watch:
            self._watch.kill()

    async def run(self) -> Ending:
        """Return why the trainer ended; from then on, unless it is stuck, the devices are clear."""
        try:
            return await self._run()
        except PreparationFailed as failed:
            return failed.ending
        except (OSError, sqlite3.Error) as problem:
            return Ending(
                end=RunEnd.PLATFORM_FAULT, message=f"The node itself failed the run: {problem}"
            )
        finally:
            await self._prove_clear()
            await asyncio.gather(*self._notes, return_exceptions=True)

    async def _run(self) -> Ending:
        self._log.info("run_preparing", lease_id=self._grant.lease_id, tier=self._grant.tier)
        prepared = await self._unless_interrupted(
            self._tools.preparation.prepare(self._grant, self._folder, self._open_spool)
        )
        if prepared is None:
            return Ending(
                end=self._stop_reason or RunEnd.NODE_LOST,
                message="Stopped before it had begun to compute.",
            )
        spec = prepared.plan.spec
        if spec.script is not None and not self._tools.takes_scripts:
            return Ending(
                end=RunEnd.USER_ERROR,
                message="This node runs no scripted jobs: they are test support.",
            )
        keeps = spec.checkpoints.max_checkpoints
        self._on_spec(keeps)
        await self._tools.journal.plan_run(self._grant.run_id, max_checkpoints=keeps)
        child, watch = await self._start(prepared, prepared.spool)
        return await self._attend(child, watch)

    async def _open_spool(self, origin: Origin) -> Spool:
        self.spool = await self._tools.reporter.report(origin)
        self.spool.add_line(
            f"Starting on node {self._tools.node_name}, tier {self._grant.tier}.", level="info"
        )
        return self.spool

    async def _unless_interrupted(self, work: Coroutine[Any, Any, T]) -> T | None:
        working = asyncio.create_task(work)
        interrupted = asyncio.create_task(self._interrupted.wait())
        try:
            await asyncio.wait({working, interrupted}, return_when=asyncio.FIRST_COMPLETED)
            return None if self._interrupted.is_set() else working.result()
        finally:
            for task in (working, interrupted):
                task.cancel()
            await asyncio.gather(working, interrupted, return_exceptions=True)

    async def _start(self, prepared: Prepared, spool: Spool) -> tuple[Child, Watch]:
        tools = self._tools
        intake = Intake(
            spool,
            clock=tools.clock,
            masker=tools.masker,
            output_dir=self._folder.output_dir,
            on_checkpoint=self._on_checkpoint,
        )
        if prepared.plan.resume_dir is not None:
            lines = await asyncio.to_thread(_series, prepared.plan.resume_dir / _SERIES_FILE)
            intake.backfill(lines, stored_step=prepared.stored_step)
        scripted = prepared.plan.spec.script is not None
        mine = [tools.devices[ordinal] for ordinal in self._grant.ordinals]
        command = Command(
            module=tools.modules.scripted if scripted else tools.modules.trainer,
            folder=self._folder,
            lease_id=self._grant.lease_id,
            state_dir=tools.state_dir.root,
            environment=tools.environment,
            visibility=devices.visibility(mine, cpu_slots=tools.cpu_slots),
        )
        child = Child.start(command, on_output=intake.take_output, on_report=intake.take_reports)
        self.leader = child.leader.pid
        self.pids = (child.leader.pid,)
        watch = self._watch = Watch(
            child,
            intake,
            progress_file=self._folder.progress_file,
            timing=tools.timing,
            on_begin=self._on_begin,
            on_stop=self._on_stop,
        )
        watch.allowance = self._allowance
        if self._interrupted.is_set():
            # A stop that came while the process was being made.
            child.kill()
        await faults.hit("trainer_runner.spawned")
        return child, watch

    async def _attend(self, child: Child, watch: Watch) -> Ending:
        self._keep(self._tools.journal.start_run(self._grant.run_id, child.leader))
        counting = asyncio.create_task(self._count_processes())
        self._log.info("trainer_started", pid=child.leader.pid)
        try:
            ending = await watch.until_exit(self._end_family)
        finally:
            counting.cancel()
            await asyncio.gather(counting, return_exceptions=True)
        self._log.info("trainer_ended", end=ending.end.value, status=child.code)
        return ending

    def _on_begin(self, began: float) -> None:
        self._keep(self._tools.journal.begin_run(self._grant.run_id, began))
        self._tools.link.wake()

    def _on_stop(self, reason: RunEnd) -> None:
        self._keep(self._tools.journal.stop_run(self._grant.run_id, reason))
        if self.spool is not None:
            self.spool.add_line(f"Asked to stop: {reason.value}.", level="info")

    def _keep(self, writing: Coroutine[Any, Any, None]) -> None:
        """Write to the journal beside what goes on; a disk that refuses stops no trainer."""

        async def write() -> None:
            try:
                await writing
            except sqlite3.Error as problem:
                self._log.error("not_journaled", error=repr(problem))

        task = asyncio.create_task(write())
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)

    async def _count_processes(self) -> None:
        while True:
            self.pids = tuple(one.pid for one in await self._family())
            await asyncio.sleep(_PIDS_EVERY_SECONDS)

    async def _family(self) -> list[ProcessId]:
        return await asyncio.to_thread(
            processes.of_lease,
            self._grant.lease_id,
            leader=self.leader,
            state_dir=self._tools.state_dir.root,
        )

    async def _end_family(self) -> None:
        """Kill what the trainer has left behind, for up to the time after which it is stuck."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._tools.timing.stuck_after
        while left := await self._family():
            processes.send(left, signal.SIGKILL)
            if loop.time() > give_up_at:
                if not self.is_stuck:
                    self._log.error("processes_stuck", pids=[one.pid for one in left])
                self.is_stuck = True
                self.pids = tuple(one.pid for one in left)
                return
            await asyncio.sleep(0.05)
        self.is_stuck = False

    async def _prove_clear(self) -> None:
        """Return when nothing lives; what is stuck is waited for in the background."""
        if self.leader is not None:
            seen = frozenset(self.pids)
            await self._end_family()
            if not self.is_stuck:
                await self._leave_devices(seen)
        if self.is_stuck:
            self._tools.link.wake()
            task = asyncio.create_task(self._wait_for_stuck())
            task.add_done_callback(lambda _: self._tools.link.wake())
            self._stuck = task
            return
        self.pids = ()
        self.is_clear = True
        self._tools.link.wake()

    async def _wait_for_stuck(self) -> None:
        while self.is_stuck:
            await asyncio.sleep(1.0)
            if not await self._family():
                self.is_stuck = False
        self.pids = ()
        self.is_clear = True

    async def _leave_devices(self, pids: frozenset[int]) -> None:
        """Wait until the drivers list none of the trainer's processes on its devices."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._tools.timing.stuck_after
        for ordinal in self._grant.ordinals:
            device = self._tools.devices[ordinal]
            while pids & await devices.computing_pids(device):
                if loop.time() > give_up_at:
                    self._log.error("device_not_left", ordinal=ordinal)
                    self.is_stuck = True
                    return
                await asyncio.sleep(0.5)


def _series(path: Path) -> list[bytes]:
    """Return the lines of a resumed checkpoint's series; a checkpoint without one has none."""
    try:
        return path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
