"""What came to nothing is removed: abandoned uploads, refused entries, parts that nobody awaits."""

from datetime import timedelta

from lehr.clock import Clock
from services.catalog.handlers.uploads import Shelves, remove_entry
from services.catalog.storage import entries

UPLOADS = "uploads/"


async def sweep(
    shelves: Shelves, clock: Clock, *, upload_lifetime: timedelta, refused_lifetime: timedelta
) -> None:
    """Remove what is older than that; several replicas may do it at once."""
    async with shelves.db.connection() as conn:
        stale = await entries.stale(
            conn, upload_lifetime=upload_lifetime, refused_lifetime=refused_lifetime
        )
    for entry in stale:
        await remove_entry(shelves, entry, unchanged=True)
    await _sweep_parts(shelves, older_than=upload_lifetime, clock=clock)


async def _sweep_parts(shelves: Shelves, *, older_than: timedelta, clock: Clock) -> None:
    """Remove parts that came after all was decided, for signed addresses work on for a while."""
    limit = clock.now() - older_than
    old = [one.key for one in await shelves.objects.list(UPLOADS) if one.modify_time < limit]
    owners = {key: key.split("/")[2] for key in old if key.count("/") == 4}
    async with shelves.db.connection() as conn:
        awaited = await entries.awaiting_parts(conn, sorted(set(owners.values())))
    await shelves.objects.delete([key for key, owner in owners.items() if owner not in awaited])
