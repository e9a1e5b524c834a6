"""Hear a node, let silence have its effect, and count what there is."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

from lehr import faults
from lehr.postgres import Database
from services.gpu_allocator.domain import expiry, sync
from services.gpu_allocator.domain.desired import Desired
from services.gpu_allocator.domain.errors import TierUnknown
from services.gpu_allocator.domain.expiry import Limits
from services.gpu_allocator.domain.gpu import Gpu
from services.gpu_allocator.domain.held import HeldCheck, compare
from services.gpu_allocator.domain.lease import Lease
from services.gpu_allocator.domain.node import Node, Sync
from services.gpu_allocator.domain.tier import NodeGpus, Tier, TierCapacity, capacities
from services.gpu_allocator.handlers.telling import (
    save_and_tell,
    save_changed_gpus,
    save_leases_and_tell,
)
from services.gpu_allocator.storage import leases, nodes, times

OUTAGES_KEPT = timedelta(days=2)
"""Longer than any silence that is still judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node for people."""

    node: Node
    is_live: bool
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldView:
    """The comparison of held and used, with the open leases of one tenant or project."""

    check: HeldCheck
    leases: tuple[Lease, ...]
    gpu_ids: dict[str, list[str]]
    """GPUs by the lease that has them."""
    pending_event_count: int


async def sync_node(
    heard: Sync, *, db: Database, known_tiers: Collection[str]
) -> tuple[Desired, ...]:
    """Apply what a node says, and return what it should run.

    A repeated sync changes nothing and is answered again.

    Raises:
        IncarnationFenced: a newer start of the agent has spoken.
        TierUnknown: a new GPU is of a tier that is not described here.
    """
    async with db.transaction() as conn:
        node, now = await nodes.lock(conn, heard.node_id, name=heard.name)
        is_repeat = node.is_repeat(heard)
        before = await leases.of_node(conn, node.node_id, [one.lease_id for one in heard.leases])
        gpus = await nodes.gpus_of(conn, node.node_id)
        _check_tiers(heard, gpus, known_tiers)
        outcome = (
            sync.repeat(node, before, gpus, heard)
            if is_repeat
            else sync.apply(node, before, gpus, heard, now=now)
        )
        pairs = list(zip(before, outcome.leases, strict=True))
        alive = [new for old, new in pairs if new != old and new.version == old.version]
        await nodes.save_sync(conn, outcome.node, alive)
        await save_changed_gpus(conn, gpus, outcome.gpus, now=now)
        changed = [(old, new) for old, new in pairs if new.version != old.version]
        await save_leases_and_tell(conn, changed, now=now)
        await faults.hit("gpu_allocator.sync_node.before_commit")
    await faults.hit("gpu_allocator.sync_node.after_commit")
    return outcome.desired


async def expire(*, db: Database, limits: Limits) -> list[Lease]:
    """Beat the heart, then end what has been silent for too long; return what was ended.

    Any number of replicas may do so at once.
    """
    async with db.transaction() as conn:
        last_time, now = await times.lock_heartbeat(conn)
        await times.save_heartbeat(conn, now, expiry.beat(last_time, now), keep=OUTAGES_KEPT)
    async with db.connection() as conn:
        amnesty, now = await times.amnesty(conn)
        suspects = [
            lease
            for lease in await leases.still_open(conn)
            if expiry.expire(lease, amnesty=amnesty, limits=limits, now=now) != lease
        ]
    ended = [await _expire_one(suspect, db=db, limits=limits) for suspect in suspects]
    return [lease for lease in ended if lease is not None]


async def list_tiers(
    tiers: Sequence[Tier], *, db: Database, live: timedelta, fresh: timedelta
) -> list[TierCapacity]:
    """Count every tier's GPUs on live nodes, and those that can be granted now."""
    async with db.transaction(isolation="repeatable_read", readonly=True) as conn:
        amnesty, now = await times.amnesty(conn)
        gpus = await nodes.every_gpu(conn)
        inventory = [
            NodeGpus(
                node_id=node.node_id,
                can_grant=node.can_grant(now=now, fresh=fresh),
                gpus=tuple(gpu for gpu in gpus if gpu.node_id == node.node_id),
            )
            for node in await nodes.every(conn)
            if node.is_live(amnesty, now=now, live=live)
        ]
    return capacities(tiers, inventory)


async def list_nodes(*, db: Database, live: timedelta) -> list[NodeView]:
    """Return all nodes with their GPUs."""
    async with db.transaction(isolation="repeatable_read", readonly=True) as conn:
        amnesty, now = await times.amnesty(conn)
        gpus = await nodes.every_gpu(conn)
        return [
            NodeView(
                node=node,
                is_live=node.is_live(amnesty, now=now, live=live),
                gpus=tuple(gpu for gpu in gpus if gpu.node_id == node.node_id),
            )
            for node in await nodes.every(conn)
        ]


async def own_lease_ids(tenant: str, *, project: str | None, db: Database) -> frozenset[str]:
    """Return the open leases of a tenant, or of one project of it; only these may be named."""
    async with db.connection() as conn:
        still_open = await leases.still_open(conn)
    return frozenset(lease.lease_id for lease in still_open if _is_of(lease, tenant, project))


async def check_held(tenant: str, *, project: str | None, db: Database) -> HeldView:
    """Compare what leases hold with what GPUs are used for, in one snapshot."""
    async with db.transaction(isolation="repeatable_read", readonly=True) as conn:
        gpus = await nodes.every_gpu(conn)
        still_open = await leases.still_open(conn)
        check = compare(gpus, still_open, await leases.holds(conn))
        pending = await times.pending_event_count(conn)
    by_lease: dict[str, list[str]] = {}
    for gpu in gpus:
        if gpu.lease_id is not None:
            by_lease.setdefault(gpu.lease_id, []).append(gpu.gpu_id)
    return HeldView(
        check=check,
        leases=tuple(lease for lease in still_open if _is_of(lease, tenant, project)),
        gpu_ids=by_lease,
        pending_event_count=pending,
    )


def _is_of(lease: Lease, tenant: str, project: str | None) -> bool:
    return lease.tenant == tenant and project in (None, lease.project)


async def _expire_one(suspect: Lease, *, db: Database, limits: Limits) -> Lease | None:
    """Judge again under the lock of the node, which may have been heard a moment ago."""
    async with db.transaction() as conn:
        await nodes.lock(conn, suspect.node_id)
        before = await leases.get(conn, suspect.lease_id, tenant="")
        amnesty, now = await times.amnesty(conn)
        after = expiry.expire(before, amnesty=amnesty, limits=limits, now=now)
        if after == before:
            return None
        await save_and_tell(conn, [(before, after)], now=now)
        await faults.hit("gpu_allocator.expire.before_commit")
    return after


def _check_tiers(heard: Sync, gpus: Sequence[Gpu], known_tiers: Collection[str]) -> None:
    # What was accepted once goes on, so that an edited file ends nobody's run.
    accepted = {*known_tiers, *(gpu.tier for gpu in gpus)}
    unknown = sorted({report.tier for report in heard.gpus} - accepted)
    if unknown:
        raise TierUnknown(
            f"node {heard.name} reports GPUs of tier {', '.join(unknown)}, which the file of tiers "
            f"does not describe; it knows {', '.join(sorted(known_tiers))}",
            node=heard.name,
            tiers=" ".join(unknown),
        )
