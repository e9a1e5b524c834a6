"""Who computes on which GPU, looked up at every moment, apart from the services."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise

import psutil

from lehr.errors import PlatformError
from services.trainer_runner.agent.processes import LEASE_MARK
from tests.e2e.audit import rows
from tests.e2e.world import World

PROCESSES_EVERY_SECONDS = 0.25
"""Looking at the processes of a machine is not free."""

LEASES_EVERY_SECONDS = 0.05


def trainers_of(world: World, agent: str = "trainer_runner") -> dict[int, str]:
    """Return the living processes of an agent's leases, each with its lease."""
    found: dict[int, str] = {}
    with suppress(psutil.Error):
        for process in psutil.Process(world.stack.pid(agent)).children(recursive=True):
            with suppress(psutil.Error):
                lease_id = process.environ().get(LEASE_MARK)
                if lease_id and process.status() != psutil.STATUS_ZOMBIE:
                    found[process.pid] = lease_id
    return found


@dataclass
class Sightings:
    """What was seen while a block ran."""

    computing: list[frozenset[str]] = field(default_factory=list)
    """Leases with a living process, one set a look."""
    contradictions: list[str] = field(default_factory=list)
    """What the allocator's own comparison has told, and GPUs that two open leases had."""
    looks: int = 0
    """How often the allocator answered."""

    def at_most(self) -> int:
        """Return the most leases that computed at once."""
        return max(map(len, self.computing), default=0)


@asynccontextmanager
async def watched(world: World, agent: str = "trainer_runner") -> AsyncIterator[Sightings]:
    """Look at processes and leases again and again until the block ends."""
    seen = Sightings()
    looking = asyncio.gather(_see_processes(world, agent, seen), _see_leases(world, seen))
    try:
        yield seen
    finally:
        looking.cancel()
        [end] = await asyncio.gather(looking, return_exceptions=True)
    # Whoever has stopped looking has seen nothing wrong.
    assert isinstance(end, asyncio.CancelledError), end


async def _see_processes(world: World, agent: str, seen: Sightings) -> None:
    while True:
        found = await asyncio.to_thread(trainers_of, world, agent)
        seen.computing.append(frozenset(found.values()))
        await asyncio.sleep(PROCESSES_EVERY_SECONDS)


async def _see_leases(world: World, seen: Sightings) -> None:
    while True:
        with suppress(PlatformError):
            held = await world.client.gpus.check_held()
            seen.looks += 1
            seen.contradictions += held.differences
            count = Counter(gpu_id for lease in held.leases for gpu_id in lease.gpu_ids)
            seen.contradictions += [f"{gpu} has {n} leases" for gpu, n in count.items() if n > 1]
        await asyncio.sleep(LEASES_EVERY_SECONDS)


async def gpus_by_lease(world: World) -> dict[str, list[str]]:
    """Return the GPUs of every lease that there ever was."""
    found: dict[str, list[str]] = {}
    for row in await rows(world, "SELECT lease_id, gpu_id FROM gpu_allocator.gpu_holds"):
        found.setdefault(row["lease_id"], []).append(row["gpu_id"])
    return found


async def history_is_disjoint(world: World) -> None:
    """Recompute from every GPU's history that it was never promised to two leases at once."""
    query = """
        SELECT gpu_id, lease_id, lower(held) AS begin, upper(held) AS "end"
        FROM gpu_allocator.gpu_holds WHERE NOT isempty(held) ORDER BY gpu_id, lower(held)
    """
    history = await rows(world, query)
    for before, after in pairwise(history):
        if before["gpu_id"] == after["gpu_id"]:
            assert before["end"] is not None, (before, after)
            assert before["end"] <= after["begin"], (before, after)


def shared(computing: Iterable[frozenset[str]], gpus: dict[str, list[str]]) -> list[set[str]]:
    """Return the looks at which processes of two leases were on one GPU."""
    wrong = []
    for leases in set(computing):
        used = Counter(gpu for lease_id in leases for gpu in gpus.get(lease_id, ()))
        if any(count > 1 for count in used.values()):
            wrong.append(set(leases))
    return wrong
