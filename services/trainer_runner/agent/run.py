"""One run on this node: computed, stored, told, forgotten."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Self

from lehr import faults
from lehr.logs import bind_context, get_logger
from lehr.training.ends import PLATFORM_ENDS, STOPPED_ENDS, RunEnd
from lehr.training.progress import read_progress
from services.trainer_runner.agent.computation import Computation
from services.trainer_runner.agent.folders import RunFolder, remove
from services.trainer_runner.agent.journal import EpochPassed, JournaledRun
from services.trainer_runner.agent.leases import (
    Ending,
    Grant,
    Instants,
    LeaseState,
    Phase,
    Wish,
)
from services.trainer_runner.agent.spool import Spool
from services.trainer_runner.agent.tools import Tools
from services.trainer_runner.agent.uploader import Uploader
from services.trainer_runner.agent.waiting import until
from services.trainer_runner.agent.watch import Allowance


class Run:
    """One lease of this node, from its first wish until the allocator knows how it ended."""

    def __init__(self, grant: Grant, tools: Tools) -> None:
        self.grant = grant
        self.is_over = False
        """Nothing is left to do or to tell."""
        self.is_fenced = False
        """The lease is somebody else's."""
        self.is_told = False
        """The allocator knows that it is closed."""
        self._tools = tools
        self._folder = tools.state_dir.run(grant.run_id)
        self._ending: Ending | None = None
        self._is_closed = False
        self._found: JournaledRun | None = None
        self._instants = Instants()
        self._spool: Spool | None = None
        self._uploader = Uploader(
            grant,
            journal=tools.journal,
            peers=tools.peers,
            transfer=tools.transfer,
            note=self._note,
            flush=self._flush,
            confirmed=tools.link.confirmed,
            changed=self._on_upload,
        )
        self._computation = Computation(
            grant,
            tools,
            self._folder,
            on_checkpoint=self._uploader.add,
            on_spec=self._on_spec,
        )
        self._log = get_logger()

    @classmethod
    def recovered(cls, found: JournaledRun, tools: Tools) -> Self:
        """Return a run that an earlier life of the agent left; its processes are dead."""
        run = cls(found.grant, tools)
        run._found = found
        run._ending = found.ending
        run._is_closed = found.state == "closed"
        run._spool = tools.reporter.spool_of(found.grant.run_id)
        run._uploader.max_checkpoints = found.max_checkpoints
        run._computation.is_clear = True
        if found.boot_id == tools.boot_id:
            run._instants = _instants_left(found, run._folder)
            run._uploader.committed = found.instants.committed
        return run

    @property
    def phase(self) -> Phase:
        """Where the lease is."""
        if self._is_closed:
            return Phase.CLOSED
        if self._ending is not None or self._found is not None:
            return Phase.DRAINING
        return self._computation.phase

    @property
    def is_clear(self) -> bool:
        """Whether no process of it lives or will be started."""
        return self._computation.is_clear

    @property
    def computes(self) -> bool:
        """Whether its end is still to be told."""
        return self._ending is None and not self.is_over

    @property
    def is_stuck(self) -> bool:
        """Whether a process of it outlived its kill."""
        return self._computation.is_stuck

    @property
    def leader(self) -> int | None:
        """Process number of its trainer."""
        return self._computation.leader

    def state(self) -> LeaseState:
        """Return what there is to say of the lease now."""
        instants = self._instants if self._ending or self._found else self._computation.instants
        return LeaseState(
            lease_id=self.grant.lease_id,
            epoch=self.grant.epoch,
            phase=self.phase,
            instants=Instants(
                began=instants.began,
                moved=instants.moved,
                ended=instants.ended,
                committed=self._uploader.committed,
            ),
            ending=self._ending,
            pids=self._computation.pids,
        )

    def follow(self, wish: Wish) -> None:
        """Take the newest wish of the allocator."""
        self._computation.allow(
            Allowance(funded_seconds=wish.funded_seconds, deadline_seconds=wish.deadline_seconds)
        )
        if wish.stop_reason is not None:
            self.stop(wish.stop_reason)

    def stop(self, reason: RunEnd) -> None:
        """Let the run save and end; one whose computing is over goes on storing its result."""
        if self._ending is None and self._found is None:
            self._computation.stop(reason)

    def kill(self) -> None:
        """End the trainer at once; why it was asked to stop stays the reason."""
        self._computation.kill()

    def fence(self) -> None:
        """Kill the run and drop what it staged: the lease is not ours any more."""
        if not self.is_fenced:
            self._log.warning("lease_fenced", lease_id=self.grant.lease_id)
            self.is_fenced = self._uploader.is_fenced = True
            self._computation.kill()

    async def live(self) -> None:
        """Carry the run from its grant to its closed lease."""
        with bind_context(job_id=self.grant.job_id, run_id=self.grant.run_id):
            uploading = asyncio.create_task(self._uploader.run(), name="uploads")
            try:
                await self._live()
            except EpochPassed as passed:
                self._log.warning("lease_outdated", error=str(passed))
                self._computation.is_clear = True
                self.is_fenced = True
                await self._abandon()
            finally:
                uploading.cancel()
                await asyncio.gather(uploading, return_exceptions=True)

    def fail(self) -> None:
        """Close the lease although the run went wrong inside the agent itself."""
        self._ending = self._ending or Ending(
            end=RunEnd.PLATFORM_FAULT, message="The node's agent failed; its log says how."
        )
        self._is_closed = True
        self._tools.link.wake()

    async def forget(self) -> None:
        """Remove every trace but the spool: the allocator knows the end."""
        await self._tools.journal.forget_run(self.grant.run_id)
        await asyncio.to_thread(remove, self._folder.root)
        self.is_over = True

    async def _live(self) -> None:
        if self._is_closed:
            return
        if self._found is None:
            ending = await self._compute()
            self._spool = self._computation.spool
            self._instants = _ended(self._computation.instants)
            await self._end(ending)
        else:
            await self._uploader.recover()
            if self._ending is None:
                await self._end(_left_behind(self._found))
        if self._ending is not None and not self.is_fenced:
            await self._drain(self._ending)
        if self.is_fenced:
            await self._abandon()

    async def _compute(self) -> Ending:
        try:
            await self._tools.journal.open_run(self.grant, boot_id=self._tools.boot_id)
        except sqlite3.Error as problem:
            # Without proof that this epoch was here, nothing may be started.
            self._computation.is_clear = True
            return Ending(
                end=RunEnd.PLATFORM_FAULT, message=f"The node's journal refuses to serve: {problem}"
            )
        await faults.hit("trainer_runner.epoch_journaled")
        return await self._computation.run()

    async def _end(self, ending: Ending) -> None:
        """Bring the end to the disk, after everything that was said before it."""
        await self._uploader.settled()
        self._note(f"Ended: {ending.end.value}. {ending.message}".rstrip(), _level(ending.end))
        await self._flush()
        await faults.hit("trainer_runner.ended")
        await self._journal("end_run", ending)
        self._ending = ending
        self._tools.link.wake()
        self._log.info("run_ended", end=ending.end.value)

    async def _drain(self, ending: Ending) -> None:
        """Store what is staged, then close the lease."""
        timing = self._tools.timing
        resumes = ending.end in PLATFORM_ENDS
        limit = timing.salvage_limit if resumes else timing.drain_limit
        try:
            async with asyncio.timeout(limit):
                await self._uploader.emptied()
        except TimeoutError:
            self._note("What was saved could not be stored in time and is lost.", "error")
            if not resumes:
                self._uploader.lost = f"The object store did not take it within {limit:.0f} s."
        if self.is_fenced or self._uploader.is_fenced:
            self.is_fenced = True
            return
        if self._uploader.lost and not resumes:
            ending = self._ending = Ending(end=RunEnd.PLATFORM_FAULT, message=self._uploader.lost)
            await self._journal("change_ending", ending)
        if self._spool is not None:
            await self._spool.close()
        await faults.hit("trainer_runner.before_close")
        await self._journal("close_run", ending)
        self._is_closed = True
        self._tools.link.wake()

    async def _abandon(self) -> None:
        """Leave everything to whoever has the lease now."""
        await self._uploader.drop_all()
        spool = self._spool or self._computation.spool
        if spool is not None:
            await spool.close()
        await until(lambda: self._computation.is_clear)
        await self.forget()

    async def _journal(self, what: str, ending: Ending) -> None:
        """Write a step of the end; a disk that refuses it must not keep the lease open."""
        journal, run_id = self._tools.journal, self.grant.run_id
        try:
            match what:
                case "end_run":
                    await journal.end_run(run_id, ending, self._instants)
                case "change_ending":
                    await journal.change_ending(run_id, ending)
                case _:
                    await journal.close_run(run_id)
        except sqlite3.Error as problem:
            self._log.error("not_journaled", what=what, error=repr(problem))

    async def _flush(self) -> None:
        spool = self._spool or self._computation.spool
        if spool is not None:
            await spool.flush()

    def _on_upload(self) -> None:
        if self._uploader.is_fenced:
            self.fence()
        self._tools.link.wake()

    def _on_spec(self, max_checkpoints: int) -> None:
        self._uploader.max_checkpoints = max_checkpoints

    def _note(self, text: str, level: str = "info") -> None:
        spool = self._spool or self._computation.spool
        if spool is not None and not spool.is_closed:
            spool.add_line(text, level=level)


def _ended(instants: Instants) -> Instants:
    """Return final instants: what did not say when it ended had ended when it last moved."""
    ended = instants.ended or instants.moved or instants.began
    return Instants(began=instants.began, moved=instants.moved, ended=ended)


def _left_behind(found: JournaledRun) -> Ending:
    """Say why a run ended whose trainer died with the agent."""
    if found.stop_reason is not None:
        return Ending(
            end=found.stop_reason,
            message="The node's agent was restarted while the trainer was saving.",
        )
    return Ending(end=RunEnd.NODE_LOST, message="The node's agent was restarted.")


def _instants_left(found: JournaledRun, folder: RunFolder) -> Instants:
    """Return what is known of a run whose trainer died with the agent, in the same boot."""
    known = found.instants
    if known.ended is not None:
        return Instants(began=known.began, moved=known.ended, ended=known.ended)
    clock = read_progress(folder.progress_file)
    began = known.began or clock.running_began
    if not began:
        return Instants()
    moved = max(began, clock.last_progress)
    return Instants(began=began, moved=moved, ended=clock.compute_ended or moved)


def _level(end: RunEnd) -> str:
    if end in (RunEnd.COMPLETED, RunEnd.EARLY_STOPPED) or end in STOPPED_ENDS:
        return "info"
    return "error"
