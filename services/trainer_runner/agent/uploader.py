"""Brings the checkpoints of one run from this disk into the store, one after the other."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from time import monotonic

from lehr import faults
from lehr.errors import FailedPrecondition, InvalidArgument, NotFound, PlatformError
from lehr.logs import get_logger
from services.trainer_runner.agent.folders import remove
from services.trainer_runner.agent.journal import Journal
from services.trainer_runner.agent.leases import Grant
from services.trainer_runner.agent.peers import Peers, Upload
from services.trainer_runner.agent.staging import Staged, admit
from services.trainer_runner.agent.transfer import (
    LocalFile,
    Transfer,
    TransferFailed,
    measure_folder,
)
from services.trainer_runner.agent.waiting import until

PARALLEL_FILES = 3
_PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_REFUSALS_MAX = 3
"""How often a store that refuses a checkpoint is given its bytes anew."""


class Uploader:
    """Takes complete checkpoint folders in, decides which wait, and uploads them in order.

    A folder is in the journal before it is uploaded and until it is committed, so that a later life
    of the agent goes on with it. Nothing is begun or committed while the lease is unconfirmed.
    """

    def __init__(  # noqa: PLR0913 - built once, by name.
        self,
        grant: Grant,
        *,
        journal: Journal,
        peers: Peers,
        transfer: Transfer,
        note: Callable[[str, str], None],
        flush: Callable[[], Awaitable[None]],
        confirmed: Callable[[], Awaitable[None]],
        changed: Callable[[], None],
    ) -> None:
        self.max_checkpoints = 1
        self.committed: float | None = None
        """CLOCK_MONOTONIC seconds at which the newest committed state was taken."""
        self.is_fenced = False
        """The store has refused this lease: somebody else has the job."""
        self.lost: str | None = None
        """Why a checkpoint that must not be lost could not be stored."""
        self._grant = grant
        self._journal = journal
        self._peers = peers
        self._transfer = transfer
        self._note = note
        self._flush = flush
        self._confirmed = confirmed
        self._changed = changed
        self._new: asyncio.Queue[Staged] = asyncio.Queue()
        self._waiting: list[Staged] = []
        self._uploading: Staged | None = None
        self._woken = asyncio.Event()
        self._log = get_logger()

    def add(self, staged: Staged) -> None:
        """Take a checkpoint in; never waits."""
        self._new.put_nowait(staged)

    async def recover(self) -> None:
        """Go on with what an earlier life had staged."""
        self._waiting += await self._journal.staged(self._grant.run_id)
        self._woken.set()

    async def settled(self) -> None:
        """Return when all that was taken in is in the journal or left out."""
        await self._new.join()

    async def emptied(self) -> None:
        """Return when nothing is left to upload."""
        await self.settled()
        await until(lambda: not self._waiting and self._uploading is None, every=0.02)

    async def run(self) -> None:
        """Go on until cancelled."""
        taking = asyncio.create_task(self._take_for_ever())
        try:
            await self._upload_for_ever()
        finally:
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)

    async def drop_all(self) -> None:
        """Give everything up: the lease is somebody else's."""
        waiting, self._waiting = self._waiting, []
        for staged in waiting:
            await self._forget(staged)

    async def _take_for_ever(self) -> None:
        while True:
            staged = await self._new.get()
            try:
                await self._take(staged)
            finally:
                self._new.task_done()

    async def _take(self, new: Staged) -> None:
        uploading = 1 if self._uploading else 0
        verdict = admit(self._waiting, new, uploading_count=uploading)
        if not verdict.is_accepted or self.is_fenced:
            self._note(
                f"The checkpoint of step {new.step} was left out: two earlier ones still wait to "
                "be stored.",
                "warning",
            )
            await asyncio.to_thread(remove, new.path)
            return
        # What was said before the checkpoint must outlive the agent if the checkpoint does.
        await self._flush()
        try:
            await self._journal.stage(self._grant.run_id, new)
        except sqlite3.Error as problem:
            # It can still be stored; only a crash before that would lose it.
            self._log.error("checkpoint_not_journaled", step=new.step, error=repr(problem))
        await faults.hit("trainer_runner.checkpoint_staged")
        self._waiting.append(new)
        if verdict.dropped is not None and verdict.dropped in self._waiting:
            self._waiting.remove(verdict.dropped)
            self._note(
                f"The checkpoint of step {verdict.dropped.step} made room for that of step "
                f"{new.step} before it could be stored.",
                "warning",
            )
            await self._forget(verdict.dropped)
        self._woken.set()

    async def _upload_for_ever(self) -> None:
        while True:
            while not self._waiting:
                self._woken.clear()
                await self._woken.wait()
            self._uploading = self._waiting.pop(0)
            try:
                await self._upload_patiently(self._uploading)
            finally:
                self._uploading = None

    async def _upload_patiently(self, staged: Staged) -> None:
        failures = refusals = 0
        while not self.is_fenced:
            try:
                await self._upload(staged)
                return
            except PlatformError as problem:
                if problem.reason == "FENCED":
                    self._log.warning("upload_fenced", step=staged.step)
                    self.is_fenced = True
                    break
                refusals += isinstance(problem, (FailedPrecondition, InvalidArgument, NotFound))
                if refusals == _REFUSALS_MAX:
                    await self._give_up(staged, str(problem))
                    return
                if failures == 0:
                    self._note(
                        f"The checkpoint of step {staged.step} is saved on the node and not yet "
                        f"durable: {problem}",
                        "warning",
                    )
                self._log.warning("upload_failed", step=staged.step, error=str(problem))
            except sqlite3.Error as problem:
                self._log.error("commit_not_journaled", step=staged.step, error=repr(problem))
            await asyncio.sleep(_PAUSES[min(failures, len(_PAUSES) - 1)])
            failures += 1
        await self._forget(staged)
        self._changed()

    async def _upload(self, staged: Staged) -> None:
        began = monotonic()
        files = await asyncio.to_thread(measure_folder, staged.path)
        size = sum(one.link.size_bytes for one in files)
        await self._confirmed()
        upload = await self._peers.begin_upload(
            self._grant,
            staged,
            [one.link for one in files],
            max_checkpoints=self.max_checkpoints,
        )
        await faults.hit("trainer_runner.upload.begun")
        if not upload.is_committed:
            await self._put(upload, files)
            await faults.hit("trainer_runner.upload.put")
            await self._confirmed()
            stored = await self._peers.commit_upload(self._grant, upload, size_bytes=size)
            if stored != size:
                raise TransferFailed(f"the store holds {stored} bytes of {size}", step=staged.step)
        await faults.hit("trainer_runner.upload.committed")
        await self._journal.commit_staged(self._grant.run_id, staged)
        self.committed = max(self.committed or staged.snapshot, staged.snapshot)
        await asyncio.to_thread(remove, staged.path)
        self._changed()
        self._note(
            f"The checkpoint of step {staged.step} is stored{_role(staged)}: {len(files)} files, "
            f"{size} bytes, {monotonic() - began:.1f} s.",
            "info",
        )

    async def _put(self, upload: Upload, files: list[LocalFile]) -> None:
        urls = {link.name: link.url for link in upload.files}
        slots = asyncio.Semaphore(PARALLEL_FILES)

        async def put(local: LocalFile) -> None:
            if local.link.name not in urls:
                raise TransferFailed(f"the store gave no address for {local.link.name}")
            async with slots:
                await self._transfer.upload(local, urls[local.link.name])

        results = await asyncio.gather(*(put(one) for one in files), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _give_up(self, staged: Staged, why: str) -> None:
        self._log.error("checkpoint_given_up", step=staged.step, error=why)
        self._note(
            f"The checkpoint of step {staged.step} could not be stored and is lost: {why}",
            "error",
        )
        if staged.is_final:
            self.lost = f"The final checkpoint could not be stored: {why}"
        await self._forget(staged)
        self._changed()

    async def _forget(self, staged: Staged) -> None:
        await self._journal.unstage(staged.path)
        await asyncio.to_thread(remove, staged.path)


def _role(staged: Staged) -> str:
    roles = [name for name, has in (("best", staged.is_best), ("final", staged.is_final)) if has]
    return f" as {' and '.join(roles)}" if roles else ""
