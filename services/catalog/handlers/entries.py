"""Use cases that models and datasets share: they are named, listed, registered and awaited."""

import asyncio
from typing import Any, TypeVar

from lehr.ids import derived_id, parse_id
from lehr.rpc.auth import Caller
from lehr.rpc.context import seconds_left
from services.catalog.domain.entries import (
    TOLD,
    WORKED_ON,
    Entry,
    EntryState,
    Reference,
    check_name,
)
from services.catalog.domain.errors import EntryBeingRemoved, UploadIncomplete
from services.catalog.domain.imports import ImportPlan
from services.catalog.domain.licenses import Terms
from services.catalog.handlers.removing import finish_removals
from services.catalog.handlers.shelves import Shelves
from services.catalog.handlers.uploads import begin_validation
from services.catalog.storage import entries, imports, leftovers

E = TypeVar("E", bound=Entry)

WAIT_SECONDS = 10.0
"""How long a commit waits for the end of the work."""

LOOK_SECONDS = (0.05, 0.5)
"""Pauses between two looks at the state: the first, and the longest."""


async def get_entry(
    shelves: Shelves, kind: type[E], *, caller: Caller, wanted: str, ready: bool = True
) -> E:
    """Return one by name, name@revision or id; by id in any state unless it must be ready.

    Raises:
        UploadRefused: ``wanted`` can be none of these.
        ModelNotFound, DatasetNotFound: the project has none.
    """
    reference = Reference.parse(wanted, kind, field=kind.noun)
    async with shelves.db.connection() as conn:
        found = await entries.find(conn, kind, caller.tenant, caller.project, reference)
    if found is None or (ready and not found.is_ready):
        raise kind.not_found(wanted)
    return found


async def list_entries(
    shelves: Shelves,
    kind: type[E],
    *,
    caller: Caller,
    text: str,
    after: tuple[str, str],
    limit: int,
) -> list[E]:
    """Return ready entries by name."""
    place = (caller.tenant, caller.project)
    async with shelves.db.connection() as conn:
        return await entries.named(conn, kind, place, text, after, limit)


def announced(
    kind: type[Entry], caller: Caller, name: str, *, key: str, terms: Terms, empty_means: str
) -> dict[str, Any]:
    """Return the fields of an entry that say what and whose it is, and under which licence.

    ``key`` is what makes another one of the same name another entry: its revision, or what an
    import fetches.

    Raises:
        UploadRefused: name or licence is not taken.
        LicenseNotAcknowledged: nobody answers for the licence.
    """
    place = f"{caller.project}/{check_name(name)}@{key}"
    license_text, acknowledged_by = terms.recorded(
        empty_means=empty_means, principal=caller.principal
    )
    return {
        f"{kind.noun}_id": derived_id(kind.id_prefix, caller.tenant, place),
        "tenant": caller.tenant,
        "project": caller.project,
        "name": name,
        "revision": key,
        "license": license_text,
        "acknowledged_by": acknowledged_by,
    }


async def register(shelves: Shelves, wanted: E, plan: ImportPlan | None = None) -> E:
    """Register an entry whose files come as parts, or as ``plan`` says; return it as it then is.

    Only one that is awaited or was refused begins anew.

    Raises:
        EntryBeingRemoved: it was deleted a moment ago.
    """
    try:
        await _add(shelves, wanted, plan)
    except EntryBeingRemoved:
        # Whoever removes it may have died.
        await finish_removals(shelves, entry_id=wanted.entry_id)
        await _add(shelves, wanted, plan)
    async with shelves.db.connection() as conn:
        found = await entries.again(conn, wanted)
    if found is None:
        raise wanted.not_found(wanted.entry_id)
    return found


async def _add(shelves: Shelves, wanted: Entry, plan: ImportPlan | None) -> None:
    async with shelves.db.transaction() as conn:
        await entries.add(conn, wanted)
        if plan is None:
            await leftovers.open_upload(conn, wanted)
        else:
            await imports.plan_import(conn, wanted, plan)


async def commit(shelves: Shelves, kind: type[E], *, caller: Caller, entry_id: str) -> E:
    """Have an entry validated where it is still uploading, and wait some seconds for the end.

    Returns the entry as it then is: READY or REFUSED, or still being worked on. Twice is the same
    as once.

    Raises:
        ModelNotFound, DatasetNotFound: the project has none.
        UploadIncomplete: a part is missing, or what arrived is not what was announced.
    """
    wanted = parse_id(entry_id, kind.id_prefix)
    entry = await get_entry(shelves, kind, caller=caller, wanted=wanted, ready=False)
    if entry.state is EntryState.UPLOADING:
        await begin_validation(shelves, entry)
    loop = asyncio.get_running_loop()
    left = seconds_left()
    # The answer must still reach a caller with a short deadline.
    give_up_at = loop.time() + min(WAIT_SECONDS, WAIT_SECONDS if left is None else left / 2)
    pause, longest = LOOK_SECONDS
    while True:
        entry = await get_entry(shelves, kind, caller=caller, wanted=wanted, ready=False)
        if entry.state in TOLD:
            return entry
        if entry.state is EntryState.UPLOADING and entry.refusal:
            raise UploadIncomplete.told(entry.refusal)
        if entry.state not in WORKED_ON or loop.time() + pause > give_up_at:
            return entry
        await asyncio.sleep(pause)
        pause = min(2 * pause, longest)
