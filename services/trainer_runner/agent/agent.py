"""The agent of a node: what should run is started, what should not is ended, and all is told."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from lehr.logs import get_logger
from lehr.training.ends import RunEnd
from services.trainer_runner.agent import processes
from services.trainer_runner.agent.journal import JournaledRun
from services.trainer_runner.agent.leases import LeaseState, Phase, Wish
from services.trainer_runner.agent.processes import ProcessId
from services.trainer_runner.agent.run import Run
from services.trainer_runner.agent.sync import DeviceState, NodeFenced, NodeState, Sync
from services.trainer_runner.agent.tools import Tools
from services.trainer_runner.agent.waiting import until

TIDY_SECONDS = 1.0
_LEFTOVER_SECONDS = 10.0
_LAST_SYNC_SECONDS = 3.0


class Agent:
    """Levels what this node does with what the allocator wants of it."""

    def __init__(self, tools: Tools, sync: Sync) -> None:
        self.runs: dict[str, Run] = {}
        """By lease."""
        self._tools = tools
        self._sync = sync
        self._leftovers: dict[str, list[ProcessId]] = {}
        self._held: dict[str, tuple[int, ...]] = {}
        self._left_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = get_logger()

    async def recover(self) -> None:
        """Kill what an earlier life left running and go on with what it left undone."""
        tools = self._tools
        processes.adopt_orphans()
        found = await tools.journal.runs()
        await self._kill_leftovers(found)
        await tools.reporter.recover()
        for one in found:
            if one.state == "open" and one.leader is None:
                # Nothing was started: if it is still wanted, it is started anew.
                await tools.journal.forget_run(one.grant.run_id)
                continue
            self._adopt(Run.recovered(one, tools))
        living = [run.grant.run_id for run in self.runs.values()]
        await tools.reporter.close_orphans(living)
        await asyncio.to_thread(tools.state_dir.tidy, living=living)

    async def run(self) -> None:
        """Sync and tidy until cancelled.

        Raises:
            NodeFenced: a newer agent of this node's name was accepted; every trainer is dead.
        """
        tidying = asyncio.create_task(self._tidy_for_ever(), name="tidy")
        try:
            await self._sync.run(self.look, self.reconcile)
        except NodeFenced:
            for run in self.runs.values():
                run.fence()
            await self._until_clear()
            raise
        finally:
            tidying.cancel()
            await asyncio.gather(tidying, return_exceptions=True)

    def look(self) -> NodeState:
        """Return what this node has to say now."""
        leases = [run.state() for run in self.runs.values() if not run.is_told]
        return NodeState(devices=self._device_states(), leases=leases)

    def reconcile(self, wishes: Sequence[Wish], said: NodeState) -> None:
        """Level this node with what the allocator answered to ``said``."""
        wanted = {wish.grant.lease_id: wish for wish in wishes}
        for lease_id, wish in wanted.items():
            run = self.runs.get(lease_id)
            if wish.is_fenced:
                self._end_fenced(wish, run)
            elif run is not None:
                run.follow(wish)
            elif not self._tools.link.is_draining:
                self._begin(wish)
        for told in said.leases:
            run = self.runs.get(told.lease_id)
            if run is not None and told.lease_id not in wanted:
                self._unwanted(run, told)

    async def drain(self, grace: float) -> None:
        """Tell that this node goes away, let trainers save, tell how they ended, and end them."""
        self._tools.link.is_draining = True
        for run in self.runs.values():
            run.stop(RunEnd.PREEMPTED)
        self._tools.link.wake()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await until(lambda: all(run.is_over for run in self.runs.values()))
                return
        for run in self.runs.values():
            run.kill()
        await self._until_clear()
        self._tools.link.wake()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_SYNC_SECONDS):
                await until(lambda: not any(run.computes for run in self.runs.values()))
                await self._sync.once(self.look, lambda wishes, said: None)

    async def stop(self) -> None:
        """Cancel what still goes on; the journal keeps what is undone."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._tools.reporter.stop()

    def _end_fenced(self, wish: Wish, run: Run | None) -> None:
        """End a lease that is not this node's; its epoch is the proof that it cannot come back."""
        if run is not None:
            run.fence()
        elif wish.grant.ordinals:
            self._start(self._raise_epochs(wish))

    async def _raise_epochs(self, wish: Wish) -> None:
        grant = wish.grant
        known = [ordinal for ordinal in grant.ordinals if ordinal in self._tools.devices]
        await self._tools.journal.raise_epochs(known, grant.epoch)
        self._tools.link.wake()

    def _unwanted(self, run: Run, told: LeaseState) -> None:
        """The allocator was told of a lease and does not have it open."""
        if told.phase is Phase.CLOSED:
            if not run.is_told:
                run.is_told = True
                self._start(self._forget(run))
        else:
            run.fence()

    def _begin(self, wish: Wish) -> None:
        grant = wish.grant
        unknown = [ordinal for ordinal in grant.ordinals if ordinal not in self._tools.devices]
        if unknown or not grant.ordinals:
            self._log.error("lease_of_unknown_devices", lease_id=grant.lease_id, ordinals=unknown)
            return
        others = [
            run for run in self.runs.values() if set(run.grant.ordinals) & set(grant.ordinals)
        ]
        if any(other.grant.epoch >= grant.epoch for other in others):
            self._log.error("lease_outdated", lease_id=grant.lease_id, epoch=grant.epoch)
            return
        run = Run(grant, self._tools)
        self.runs[grant.lease_id] = run
        run.follow(wish)
        self._start(self._carry(run, [other for other in others if not other.is_clear]))
        self._tools.link.wake()

    def _adopt(self, run: Run) -> None:
        self.runs[run.grant.lease_id] = run
        self._start(self._carry(run, []))

    async def _carry(self, run: Run, before: Sequence[Run]) -> None:
        """Let a run live once the devices are clear of older ones."""
        for other in before:
            other.fence()
        await until(lambda: all(other.is_clear for other in before))
        try:
            await run.live()
        except Exception:  # the edge: one run must not end the agent with all the others.
            self._log.exception("run_failed", lease_id=run.grant.lease_id)
            run.fail()

    async def _forget(self, run: Run) -> None:
        await until(lambda: run.is_clear)
        await run.forget()
        self.runs.pop(run.grant.lease_id, None)

    def _device_states(self) -> list[DeviceState]:
        runs = list(self.runs.values())
        # Leftovers of a lease that the journal does not know may use anything.
        haunted = {
            ordinal
            for lease_id in self._leftovers
            for ordinal in self._held.get(lease_id, tuple(self._tools.devices))
        }
        late = monotonic() - self._left_at > self._tools.timing.stuck_after
        found: list[DeviceState] = []
        for ordinal, device in sorted(self._tools.devices.items()):
            users = [run for run in runs if ordinal in run.grant.ordinals]
            in_use = any(not run.is_clear for run in users)
            stuck = any(run.is_stuck for run in users) or (ordinal in haunted and late)
            found.append(
                DeviceState(
                    ordinal=ordinal,
                    tier=device.tier,
                    memory_bytes=device.memory_bytes,
                    device_id=device.device_id,
                    is_clear=not in_use and ordinal not in haunted,
                    epoch=self._tools.journal.epochs.get(ordinal, 0),
                    is_stuck=stuck,
                )
            )
        return found

    async def _kill_leftovers(self, found: Sequence[JournaledRun]) -> None:
        """Kill trainers of earlier lives: known by the journal, or by the mark they carry."""
        self._held = {one.grant.lease_id: one.grant.ordinals for one in found}
        self._left_at = monotonic()
        leaders = {
            one.grant.lease_id: one.leader
            for one in found
            if one.leader is not None and one.boot_id == self._tools.boot_id
        }
        while True:
            await self._kill_once(leaders)
            if not self._leftovers or monotonic() - self._left_at > _LEFTOVER_SECONDS:
                break
            await asyncio.sleep(0.05)
        if self._leftovers:
            self._log.error("leftovers_survive", leases=sorted(self._leftovers))

    async def _kill_once(self, leaders: dict[str, ProcessId]) -> None:
        alive = await asyncio.to_thread(processes.of_agent, self._tools.state_dir.root)
        for lease_id, leader in leaders.items():
            if await asyncio.to_thread(processes.is_alive, leader):
                alive.setdefault(lease_id, []).append(leader)
        for lease_id, left in alive.items():
            self._log.warning("leftovers_killed", lease_id=lease_id, pids=[one.pid for one in left])
            processes.send(left, signal.SIGKILL)
        self._leftovers = alive

    async def _tidy_for_ever(self) -> None:
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            self._check_silence()
            self._tools.reporter.measure()
            await self._end_strays()
            if self._leftovers:
                await self._kill_once({})
            for lease_id, run in list(self.runs.items()):
                if run.is_over:
                    del self.runs[lease_id]

    async def _end_strays(self) -> None:
        """Kill adopted processes that left their trainer's session, and collect the dead."""
        adopted = await asyncio.to_thread(processes.orphans)
        # Looked up after the search, so that a trainer started meanwhile is known; and collected in
        # this thread, in which trainers are started, so that none is collected before it is known.
        leaders = {run.leader for run in self.runs.values()}
        strays = [one for one, session in adopted if session not in leaders]
        if strays:
            self._log.warning("strays_killed", pids=[one.pid for one in strays])
            processes.send(strays, signal.SIGKILL)
        processes.collect_dead(own={leader for leader in leaders if leader is not None})

    def _check_silence(self) -> None:
        silent = self._tools.link.silent_seconds
        if silent > self._tools.timing.unconfirmed_cap:
            for run in self.runs.values():
                run.stop(RunEnd.PREEMPTED)

    async def _until_clear(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._tools.timing.kill_after):
                await until(lambda: all(run.is_clear for run in self.runs.values()))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
