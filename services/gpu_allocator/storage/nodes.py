"""Rows of nodes and GPUs."""

from collections.abc import Sequence
from datetime import datetime

import asyncpg

from lehr.postgres import Connection
from services.gpu_allocator.domain.gpu import Gpu, GpuState, ReleaseGpu
from services.gpu_allocator.domain.lease import Lease
from services.gpu_allocator.domain.node import Node
from services.gpu_allocator.storage.statements import SQL


async def lock(conn: Connection, node_id: str, *, name: str = "") -> tuple[Node, datetime]:
    """Lock a node, and with it its leases; return it and the time at which the lock was had.

    With a ``name`` a node that was never heard is added; without one it must exist.
    """
    row = await conn.fetchrow(SQL["lock_node"], node_id)
    if row is None and name:
        await conn.execute(SQL["add_node"], node_id, name)
        row = await conn.fetchrow(SQL["lock_node"], node_id)
    if row is None:
        raise LookupError(f"there is no node {node_id}")
    return _node(row), row["now"]


async def save_sync(conn: Connection, node: Node, heard: Sequence[Lease]) -> None:
    """Store an accepted sync and the proof of life of leases that have not changed otherwise."""
    await conn.execute(
        SQL["save_sync"],
        node.node_id,
        node.incarnation,
        node.boot_id,
        node.sync_sequence,
        node.sync_time,
        node.is_draining,
        [lease.lease_id for lease in heard],
        [lease.alive_time for lease in heard],
        [lease.progress_time for lease in heard],
        ["{" + ",".join(map(str, lease.pids)) + "}" for lease in heard],
        [lease.is_offered for lease in heard],
    )


async def every(conn: Connection) -> list[Node]:
    """Return all nodes by name."""
    return [_node(row) for row in await conn.fetch(SQL["nodes"])]


async def gpus_of(conn: Connection, node_id: str) -> list[Gpu]:
    """Return the GPUs of a node."""
    return [_gpu(row) for row in await conn.fetch(SQL["gpus_of_node"], node_id)]


async def node_of_gpu(conn: Connection, gpu_id: str) -> str | None:
    """Return the node that a GPU belongs to for ever; None for an unknown GPU."""
    node_id: str | None = await conn.fetchval(SQL["node_of_gpu"], gpu_id)
    return node_id


async def every_gpu(conn: Connection) -> list[Gpu]:
    """Return all GPUs."""
    return [_gpu(row) for row in await conn.fetch(SQL["gpus"])]


async def lock_free_gpus(
    conn: Connection, tiers: Sequence[str]
) -> tuple[list[Gpu], dict[str, datetime]]:
    """Lock the free GPUs of some tiers; return them, and since when each is free."""
    rows = await conn.fetch(SQL["lock_free_gpus"], list(tiers))
    return [_gpu(row) for row in rows], {row["gpu_id"]: row["state_time"] for row in rows}


async def save_gpus(conn: Connection, gpus: Sequence[Gpu], *, at: datetime) -> None:
    """Store GPUs, new or known; the caller ends or begins their holds."""
    rows = [
        (
            gpu.gpu_id,
            gpu.node_id,
            gpu.ordinal,
            gpu.tier,
            gpu.memory_bytes,
            gpu.device_id,
            gpu.state,
            gpu.lease_id,
            gpu.epoch,
            at,
        )
        for gpu in gpus
    ]
    await conn.executemany(SQL["save_gpu"], rows)


async def release_of_request(conn: Connection, request_id: str) -> ReleaseGpu | None:
    """Return the release that a key has made already."""
    row = await conn.fetchrow(SQL["release_of_request"], request_id)
    return None if row is None else ReleaseGpu(**row)


async def add_release(conn: Connection, made: ReleaseGpu, *, at: datetime) -> None:
    """Keep who released a GPU, when and why."""
    await conn.execute(
        SQL["add_release"], made.request_id, made.gpu_id, made.principal, made.reason, at
    )


def _node(row: asyncpg.Record) -> Node:
    return Node(
        node_id=row["node_id"],
        name=row["name"],
        incarnation=row["incarnation"],
        boot_id=row["boot_id"],
        sync_sequence=row["sync_sequence"],
        sync_time=row["sync_time"],
        is_draining=row["is_draining"],
    )


def _gpu(row: asyncpg.Record) -> Gpu:
    return Gpu(
        gpu_id=row["gpu_id"],
        node_id=row["node_id"],
        ordinal=row["ordinal"],
        tier=row["tier"],
        memory_bytes=row["memory_bytes"],
        device_id=row["device_id"],
        state=GpuState(row["state"]),
        lease_id=row["lease_id"],
        epoch=row["epoch"],
    )
