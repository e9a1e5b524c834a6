"""Tier: a kind of GPU, and how much of it there is."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.gpu_allocator.domain.gpu import Gpu, GpuState

#: States of a GPU that exists and will be granted now or later.
EXISTING = frozenset({GpuState.FREE, GpuState.HELD, GpuState.CLEARING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A kind of GPU as deploy/tiers.yaml describes it."""

    tier: str
    title: str
    memory_bytes: int
    """Memory of one GPU; 0 where each node reports its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCapacity:
    """What exists of a tier and what is free."""

    tier: Tier
    total_count: int = 0
    free_count: int = 0
    node_count_max: int = 0
    """Most GPUs of the tier on one node."""
    free_per_node: tuple[int, ...] = ()
    """Largest first; no zeros."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGpus:
    """The GPUs of one live node."""

    node_id: str
    can_grant: bool
    """It synced a moment ago and is not draining."""
    gpus: tuple[Gpu, ...] = field(default=())


def capacities(tiers: Sequence[Tier], nodes: Sequence[NodeGpus]) -> list[TierCapacity]:
    """Count per tier, in the order of ``tiers``."""
    exist: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    free: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for node in nodes:
        for gpu in node.gpus:
            exist[gpu.tier][node.node_id] += gpu.state in EXISTING
            free[gpu.tier][node.node_id] += node.can_grant and gpu.state is GpuState.FREE
    return [
        TierCapacity(
            tier=tier,
            total_count=sum(exist[tier.tier].values()),
            free_count=sum(free[tier.tier].values()),
            node_count_max=max(exist[tier.tier].values(), default=0),
            free_per_node=tuple(sorted(filter(None, free[tier.tier].values()), reverse=True)),
        )
        for tier in tiers
    ]
