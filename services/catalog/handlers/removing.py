"""Entries are removed at once, their objects after that; what a crash leaves goes later."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from lehr import faults
from lehr.errors import PlatformError
from lehr.ids import new_id, parse_id
from lehr.logs import get_logger
from lehr.rpc.auth import Caller
from services.catalog.domain.entries import Entry, Reference
from services.catalog.handlers.shelves import Shelves, remove_objects
from services.catalog.storage import entries, leftovers
from services.catalog.storage.leftovers import Removal

REMOVAL_SECONDS = 60.0
"""How long one remover deletes objects; what is then left, the next one does."""

REMOVAL_LIFETIME = timedelta(minutes=6)
"""After it another may go on. A last request, repeated three times, has ended by then: no object
may be deleted when the same entry is added again."""

REMOVALS_AT_ONCE = 100

_log = get_logger(__name__)


async def remove_entry(shelves: Shelves, entry: Entry, *, unchanged: bool = False) -> bool:
    """Remove an entry and its bytes; with ``unchanged`` only if nothing happened since it was read.

    Returns whether it was removed by this call. Bytes that cannot be deleted now go later.
    """
    async with shelves.db.transaction() as conn:
        if not await entries.remove(conn, entry, unchanged=unchanged):
            return False
        removal = await leftovers.begin_removal(conn, entry, new_id("worker"), REMOVAL_LIFETIME)
    await faults.hit("catalog.remove.after_row")
    await _finish(shelves, [removal])
    return True


async def delete_entry(
    shelves: Shelves, kind: type[Entry], *, caller: Caller, entry_id: str
) -> None:
    """Remove an entry of the caller's project; one that is not there is no error.

    Raises:
        InvalidArgument: it is no id of that kind.
    """
    reference = Reference(entry_id=parse_id(entry_id, kind.id_prefix))
    async with shelves.db.connection() as conn:
        entry = await entries.find(conn, kind, caller.tenant, caller.project, reference)
    if entry is not None:
        await remove_entry(shelves, entry)


async def finish_removals(shelves: Shelves, *, entry_id: str = "") -> None:
    """Go on with removals whose remover died or gave up; with that of one entry if it is named."""
    async with shelves.db.transaction() as conn:
        found = await leftovers.claim_removals(
            conn, new_id("worker"), REMOVAL_LIFETIME, entry_id=entry_id, count=REMOVALS_AT_ONCE
        )
    await _finish(shelves, found)


async def _finish(shelves: Shelves, removals: Sequence[Removal]) -> None:
    left = list(removals)
    try:
        async with asyncio.timeout(REMOVAL_SECONDS):
            while left:
                await remove_objects(shelves, left[0].prefixes)
                async with shelves.db.transaction() as conn:
                    await leftovers.end_removal(conn, left[0])
                del left[0]
    except (PlatformError, TimeoutError) as error:
        _log.warning("removals_put_off", entry_id=left[0].entry_id, problem=str(error))
