"""What came to nothing is removed: abandoned uploads, refused entries, parts that nobody awaits."""

from datetime import timedelta

from lehr.clock import Clock
from services.catalog.handlers.removing import finish_removals, remove_entry
from services.catalog.handlers.shelves import Shelves
from services.catalog.storage import entries, leftovers

AT_ONCE = 500
"""Rows of each kind that one sweep looks at; the next one goes on."""


async def sweep(
    shelves: Shelves, clock: Clock, *, upload_lifetime: timedelta, refused_lifetime: timedelta
) -> None:
    """Remove what is older than that; several replicas may do it at once."""
    await finish_removals(shelves)
    lifetimes = (upload_lifetime, refused_lifetime)
    for kind in entries.KINDS:
        async with shelves.db.connection() as conn:
            stale = await entries.stale(conn, kind, lifetimes, AT_ONCE)
        for entry in stale:
            await remove_entry(shelves, entry, unchanged=True)
    await _sweep_parts(shelves, older_than=upload_lifetime, clock=clock)


async def _sweep_parts(shelves: Shelves, *, older_than: timedelta, clock: Clock) -> None:
    """Remove parts that came after all was decided, for signed addresses work on for a while."""
    limit = clock.now() - older_than
    async with shelves.db.connection() as conn:
        decided = await leftovers.decided_uploads(conn, older_than, AT_ONCE)
    for upload in decided:
        stored = await shelves.objects.list(upload.prefix)
        # Younger ones belong to an upload that was opened again since the rows were read.
        old = [one.key for one in stored if one.modify_time < limit]
        await shelves.objects.delete(old)
        if len(old) == len(stored):
            async with shelves.db.transaction() as conn:
                await leftovers.forget_upload(conn, upload)
