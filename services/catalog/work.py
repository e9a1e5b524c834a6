"""The loop that imports and validates entries, one at a time, each under a claim.

A claim is renewed while the work goes on. When a worker dies its claim runs out, and whoever takes
the entry next does all of the work again.
"""

import asyncio
from contextlib import suppress
from datetime import timedelta

from lehr import faults
from lehr.errors import PlatformError
from lehr.ids import new_id
from lehr.logs import bind_context, get_logger
from services.catalog.domain.entries import Entry, EntryState, Reference
from services.catalog.domain.errors import ClaimLost
from services.catalog.domain.imports import ASK_LATER, SourceAway, wait_before
from services.catalog.handlers import importing, validating
from services.catalog.handlers.claimed import Work
from services.catalog.handlers.shelves import Shelves, remove_objects
from services.catalog.storage import claims, entries

ATTEMPTS_MAX = 3
"""How often an entry is begun before it is refused: what killed three workers kills the next."""

PAUSE = timedelta(seconds=3)
"""Before an entry is tried again that failed."""

RENEWALS = 10
"""Renewals within the lifetime of a claim; each also writes how far the work is."""


class Worker:
    """Takes one entry after the other."""

    def __init__(self, shelves: Shelves, *, claim_lifetime: timedelta) -> None:
        self._shelves = shelves
        self._lifetime = claim_lifetime
        self._log = get_logger()

    async def work(self) -> None:
        """Do all that is there to do."""
        while True:
            found = [await self._take(kind) for kind in entries.KINDS]
            if not any(found):
                return

    async def _take(self, kind: type[Entry]) -> bool:
        async with self._shelves.db.connection() as conn:
            claim = await claims.take(conn, kind, new_id("worker"), self._lifetime)
        if claim is None:
            return False
        work = Work(claim=claim)
        with bind_context(entry_id=claim.entry_id, attempt=claim.attempts):
            await self._under_claim(work)
        return True

    async def _under_claim(self, work: Work) -> None:
        doing = asyncio.create_task(self._do(work))
        keeping = asyncio.create_task(self._keep(work, doing))
        try:
            await doing
        except (asyncio.CancelledError, ClaimLost) as error:
            if isinstance(error, asyncio.CancelledError) and not work.is_over:
                # This process is ending: the next one begins at once, and the attempt is free.
                work.is_over = True
                await self._release(work, timedelta(0), counts=False)
                raise
            self._log.warning("claim_lost")
            await self._tidy(work)
        finally:
            work.is_over = True
            keeping.cancel()

    async def _keep(self, work: Work, doing: asyncio.Task[None]) -> None:
        """Renew the claim; end the work when it is lost, or could not be renewed for too long."""
        loop = asyncio.get_running_loop()
        lifetime = self._lifetime.total_seconds()
        kept_at = loop.time()
        while loop.time() - kept_at < lifetime:
            await asyncio.sleep(lifetime / RENEWALS)
            asked_at = loop.time()
            try:
                async with asyncio.timeout(lifetime / 2), self._shelves.db.connection() as conn:
                    kept = await claims.renew(conn, work.claim, self._lifetime, work.progress)
            except (PlatformError, TimeoutError):
                continue
            if not kept:
                break
            kept_at = asked_at
        work.is_over = True
        doing.cancel()

    async def _do(self, work: Work) -> None:
        entry = work.entry = await self._entry(work)
        if entry is None:
            return
        try:
            await faults.hit("catalog.validate.claimed")
            if work.claim.attempts > ATTEMPTS_MAX:
                await validating.refuse(self._shelves, entry, work, _given_up())
                return
            await self._through(entry, work)
        except ClaimLost:
            raise
        except validating.UploadDiffers as wrong:
            await validating.await_again(self._shelves, entry, work, wrong)
        except PlatformError as error:
            await self._failed(entry, work, error)
        except Exception:  # the edge: what one entry breaks must not end the process.
            self._log.exception("work_failed")
            if work.claim.attempts < ATTEMPTS_MAX:
                await self._release(work, PAUSE, counts=True)
            else:
                await validating.refuse(self._shelves, entry, work, _given_up())

    async def _through(self, entry: Entry, work: Work) -> None:
        if entry.state is EntryState.IMPORTING:
            entry = await importing.fetch(self._shelves, entry, work)
        await validating.validate(self._shelves, entry, work)

    async def _failed(self, entry: Entry, work: Work, error: PlatformError) -> None:
        """Put an entry off, or refuse it where waiting does not help, or was of no help."""
        pause: timedelta | None = PAUSE if error.retryable else None
        why, is_source = str(error), isinstance(error, SourceAway)
        if is_source:
            # A file that arrived meanwhile has begun the count anew.
            entry = await self._entry(work) or entry
            pause = wait_before(entry.put_off_count + 1, self._shelves.sources.first_wait)
        if pause is None:
            why = f"{why}; {ASK_LATER}" if is_source else why
            self._log.info("entry_refused", reason=error.reason, problem=why)
            await validating.refuse(self._shelves, entry, work, why)
            return
        self._log.warning("work_put_off", reason=error.reason, problem=why)
        # One that cannot be put off is taken again when its claim has run out.
        with suppress(PlatformError):
            async with self._shelves.db.connection() as conn:
                await claims.put_off(conn, work.claim, pause, why, counts=is_source)

    async def _entry(self, work: Work) -> Entry | None:
        claim, reference = work.claim, Reference(entry_id=work.claim.entry_id)
        async with self._shelves.db.connection() as conn:
            return await entries.find(conn, claim.kind, claim.tenant, claim.project, reference)

    async def _tidy(self, work: Work) -> None:
        """Remove what was written for an entry that was deleted meanwhile."""
        entry = work.entry
        if entry is not None and await self._entry(work) is None:
            await remove_objects(self._shelves, [entry.uploads_prefix, entry.prefix])

    async def _release(self, work: Work, pause: timedelta, *, counts: bool) -> None:
        # One that cannot be given back runs out by itself.
        with suppress(PlatformError):
            async with self._shelves.db.connection() as conn:
                await claims.release(conn, work.claim, pause, counts=counts)


def _given_up() -> str:
    return (
        f"could not be examined in {ATTEMPTS_MAX} attempts; upload it again, and if that fails too,"
        " ask whoever runs the platform to look into the catalog's log"
    )
