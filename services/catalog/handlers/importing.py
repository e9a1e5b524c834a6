"""Use cases of imports: a reference is fixed and registered, then its files are fetched."""

import asyncio
import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from lehr import faults
from lehr.errors import FailedPrecondition, Unavailable
from lehr.rpc.auth import Caller
from services.catalog.domain.announcing import (
    check_columns,
    check_dataset_files,
    check_model_files,
)
from services.catalog.domain.choosing import arrivals, check_sizes
from services.catalog.domain.entries import (
    Dataset,
    Entry,
    EntryState,
    File,
    Model,
    Source,
    check_name,
)
from services.catalog.domain.errors import ClaimLost
from services.catalog.domain.imports import (
    ASK_LATER,
    HubRepo,
    ImportPlan,
    ImportRefused,
    RemoteFile,
    S3Prefix,
    SourceAway,
)
from services.catalog.domain.licenses import UNKNOWN, Terms
from services.catalog.handlers.claimed import Work
from services.catalog.handlers.credentials import opened
from services.catalog.handlers.entries import announced, register
from services.catalog.handlers.removing import remove_entry
from services.catalog.handlers.shelves import Shelves
from services.catalog.hub.calling import ImportTimedOut
from services.catalog.storage import entries, imports

E = TypeVar("E", bound=Entry)

FILES_ON_DISK = 3
"""Files of an import that lie on the disk at once, the one that is arriving included."""


class SourceSlow(FailedPrecondition):
    """An import takes longer than imports may."""

    reason = "IMPORT_TIMED_OUT"


class DiskFull(FailedPrecondition):
    """The catalog's disk has no room for what is asked for; nobody can wait for that."""

    reason = "DISK_FULL"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fixed:
    """What a reference stands for."""

    plan: ImportPlan
    source: Source
    license: str
    key: str
    """Digest of everything that makes one import another one."""


async def import_dataset(
    shelves: Shelves,
    *,
    caller: Caller,
    name: str,
    source: HubRepo | S3Prefix,
    columns: Mapping[str, str],
    terms: Terms,
) -> tuple[Dataset, str, bool]:
    """Register a dataset that will be fetched; returns it, its commit, and whether it is ready.

    Raises:
        InvalidArgument: the source has no such rows, or the licence must be answered for.
        PlatformError: the source is not there, is not open to the credential, or is refused.
    """
    check_name(name)
    mapped = check_columns(columns)
    kind = "dataset" if isinstance(source, HubRepo) else "bucket"
    fixed = await _fixed(shelves, caller, source, f"resolve_{kind}", mapped)
    wanted = Dataset(columns=mapped, **_described(Dataset, caller, name, fixed, terms))
    found = await _registered(shelves, wanted, fixed.plan)
    return found, fixed.source.commit, found.is_ready


async def import_model(
    shelves: Shelves, *, caller: Caller, name: str, source: HubRepo, terms: Terms
) -> tuple[Model, str, bool]:
    """Register a model that will be fetched; returns it, its commit, and whether it is ready.

    Raises:
        InvalidArgument: the repository is no model, or the licence must be answered for.
        PlatformError: the source is not there, is not open to the credential, or is refused.
    """
    check_name(name)
    fixed = await _fixed(shelves, caller, source, "resolve_model", {})
    wanted = Model(**_described(Model, caller, name, fixed, terms))
    found = await _registered(shelves, wanted, fixed.plan)
    return found, fixed.source.commit, found.is_ready


async def search_hub(
    shelves: Shelves, *, caller: Caller, text: str, kind: str, limit: int, credential: str
) -> list[dict[str, Any]]:
    """Return repositories of the hub, as fields of HubEntry."""
    if kind not in ("", "model", "dataset"):
        raise ImportRefused("kind", f"is {kind[:80]!r}; use model or dataset")
    secret = await opened(
        shelves, tenant=caller.tenant, project=caller.project, name=credential, kind="hub"
    )
    found = await shelves.sources.hub.ask(
        "search",
        what="the list of the hub",
        credential=credential,
        secret=secret,
        text=text,
        kind=kind or "model",
        limit=min(limit or 20, 100),
    )
    listed: list[dict[str, Any]] = found["entries"]
    return listed


async def fetch(shelves: Shelves, entry: E, work: Work) -> E:
    """Fetch the files of an entry and have it validated; returns it as it then is.

    Raises:
        ClaimLost: another worker has it, or it was deleted.
        SourceAway: its source does not answer now.
        PlatformError: it cannot be fetched now, or never.
    """
    check = check_model_files if isinstance(entry, Model) else check_dataset_files
    files = check(await _fetched(shelves, entry, work))
    found = replace(
        entry, files=files, revision=entry.revision_of(files), state=EntryState.VALIDATING
    )
    async with shelves.db.transaction() as conn:
        await entries.imported(conn, found, work.worker)
    return found


async def _fixed(
    shelves: Shelves,
    caller: Caller,
    source: HubRepo | S3Prefix,
    operation: str,
    columns: Mapping[str, str],
) -> _Fixed:
    """Ask the source what a reference stands for now."""
    kind = "hub" if isinstance(source, HubRepo) else "s3"
    asked = source.checked()
    secret = await opened(
        shelves, tenant=caller.tenant, project=caller.project, name=source.credential, kind=kind
    )
    answer = await shelves.sources.hub.ask(
        operation,
        what=source.what,
        credential=source.credential,
        secret=secret,
        source=asked,
        allow_pickle=sorted(shelves.sources.allow_pickle),
    )
    files = tuple(RemoteFile(**file) for file in answer["files"])
    check_sizes(files, bytes_max=shelves.sources.bytes_max)
    await asyncio.to_thread(check_room, shelves.scratch, files)
    commit = answer.get("commit", "")
    pinned = {**asked, "revision": commit} if commit else asked
    plan = ImportPlan(
        kind=kind, what=source.what, source=pinned, credential=source.credential, files=files
    )
    return _Fixed(
        plan=plan,
        source=Source(kind=kind, origin=source.origin, commit=commit),
        license=answer.get("license", ""),
        key=_digest([pinned, dict(columns), [asdict(file) for file in files]]),
    )


def _described(
    kind: type[Entry], caller: Caller, name: str, fixed: _Fixed, terms: Terms
) -> dict[str, Any]:
    """Return the fields that models and datasets share."""
    # The card is the source's own word; the caller's counts where the source is silent.
    terms = replace(terms, license=fixed.license or terms.license)
    # Files and revision are known when all has arrived.
    return {
        **announced(kind, caller, name, key=fixed.key, terms=terms, empty_means=UNKNOWN),
        "files": (),
        "source": fixed.source,
        "state": EntryState.IMPORTING,
    }


async def _registered(shelves: Shelves, wanted: E, plan: ImportPlan) -> E:
    """Register an entry; one that is there, or on its way, stays as it is."""
    async with shelves.db.connection() as conn:
        known = await entries.again(conn, wanted)
    if known is not None and known.state is not EntryState.REFUSED:
        return known
    if known is not None:
        await remove_entry(shelves, known, unchanged=True)
    found = await register(shelves, wanted, plan)
    shelves.bell.ring()
    return found


async def _fetched(shelves: Shelves, entry: Entry, work: Work) -> list[File]:
    """Return all files of an import, each in the object store."""
    async with shelves.db.connection() as conn:
        found = await imports.import_of(conn, entry)
    if found is None:
        raise ClaimLost(entry.entry_id)
    plan, arrived = found
    total = sum(file.size_bytes for file in plan.files)
    missing = [file for file in plan.files if file.arrives_as not in arrived]
    work.tell(done_bytes=sum(one.size_bytes for one in arrived.values()), total_bytes=total)
    if missing:
        await asyncio.to_thread(check_room, shelves.scratch, missing)
        try:
            await _fetch(shelves, entry, work, replace(plan, files=tuple(missing)), arrived)
        except ImportTimedOut as error:
            raise SourceSlow(f"{error}; {ASK_LATER}") from None
    return [arrived[name] for name in dict.fromkeys(file.arrives_as for file in plan.files)]


async def _fetch(
    shelves: Shelves, entry: Entry, work: Work, plan: ImportPlan, arrived: dict[str, File]
) -> None:
    """Fetch the files of a plan; each that is whole goes to ``arrived``, whatever comes then."""
    secret = await opened(
        shelves, tenant=entry.tenant, project=entry.project, name=plan.credential, kind=plan.kind
    )
    async with shelves.sources.hub.converse(
        "fetch_repository" if plan.kind == "hub" else "fetch_bucket",
        time_limit=shelves.sources.time_limit,
        what=plan.what,
        credential=plan.credential,
        secret=secret,
        source={**plan.source, "repo_type": entry.noun},
        files=[asdict(file) for file in plan.files],
    ) as child:
        messages = child.messages()
        while (message := await _next(messages, plan)) is not None:
            if "progress" in message:
                work.went_through(message["progress"])
            elif "file" in message:
                fetched = message["file"]
                name = fetched["name"]
                file = File(name=name, size_bytes=fetched["size_bytes"], sha256=fetched["sha256"])
                await shelves.objects.put_file(entry.key(name), Path(fetched["path"]))
                async with shelves.db.transaction() as conn:
                    await imports.save_arrived(conn, entry, file)
                arrived[name] = file
                await asyncio.to_thread(Path(fetched["path"]).unlink, missing_ok=True)
                await faults.hit("catalog.import.after_file")
                child.put_away()
    if any(file.arrives_as not in arrived for file in plan.files):
        raise SourceAway(f"{plan.what}: the process that fetches it has died")


async def _next(messages: Any, plan: ImportPlan) -> dict[str, Any] | None:
    """Return the next message of a child; its troubles are the source's, and not ours."""
    try:
        found: dict[str, Any] = await anext(messages)
    except StopAsyncIteration:
        return None
    except Unavailable as error:
        raise SourceAway(str(error).removesuffix("; try again")) from None
    return found


def check_room(folder: Path, files: Sequence[RemoteFile]) -> None:
    """Look whether what lies on the disk at once fits on it.

    Raises:
        DiskFull: it does not.
    """
    packed = max((file.size_bytes for file in files if file.pack), default=0)
    needed = sum(size for _, size in arrivals(files).most_common(FILES_ON_DISK)) + packed
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DiskFull(f"the catalog's disk has {free} bytes free, and {needed} are needed")


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
