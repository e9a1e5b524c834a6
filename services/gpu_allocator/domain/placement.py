"""Which GPUs a run gets: the first tier, in the order asked for, that has enough on one node."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.gpu_allocator.domain.gpu import Gpu, GpuState
from services.gpu_allocator.domain.tier import NodeGpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """GPUs of one tier on one node, by ordinal."""

    node_id: str
    tier: str
    gpus: tuple[Gpu, ...]


def choose(tiers: Sequence[str], gpu_count: int, nodes: Sequence[NodeGpus]) -> Placement | None:
    """Return where ``gpu_count`` GPUs go, or None.

    Among nodes that can take the gang the fullest wins, so that whole nodes stay free for large
    ones; a tie goes to the lowest node id.
    """
    for tier in tiers:
        fitting = [
            (node, free)
            for node in nodes
            if node.can_grant and len(free := _free(node, tier)) >= gpu_count
        ]
        if fitting:
            node, free = min(fitting, key=lambda one: (len(one[1]), one[0].node_id))
            return Placement(node_id=node.node_id, tier=tier, gpus=tuple(free[:gpu_count]))
    return None


def refusal(tiers: Sequence[str], gpu_count: int, nodes: Sequence[NodeGpus]) -> str:
    """Say why ``choose`` found nothing."""
    granting = [node for node in nodes if node.can_grant]
    most = {tier: max((len(_free(node, tier)) for node in granting), default=0) for tier in tiers}
    told = ", ".join(f"{tier} at most {count}" for tier, count in most.items())
    return f"no node has {gpu_count} free GPUs of a tier asked for: {told}"


def _free(node: NodeGpus, tier: str) -> list[Gpu]:
    free = [gpu for gpu in node.gpus if gpu.tier == tier and gpu.state is GpuState.FREE]
    return sorted(free, key=lambda gpu: gpu.ordinal)
