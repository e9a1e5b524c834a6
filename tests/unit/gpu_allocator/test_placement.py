"""The first tier in order that fits on one live node; there the fullest node."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.gpu_allocator.domain.gpu import GpuState
from services.gpu_allocator.domain.placement import Placement, choose, refusal
from services.gpu_allocator.domain.tier import NodeGpus, Tier, capacities
from tests.support.gpu_allocator import a_gpu

H, L = "h100-80gb", "l4-24gb"


def a_node_of(
    node_id: str, *, tier: str = H, free: int, held: int = 0, can_grant: bool = True
) -> NodeGpus:
    states = [GpuState.HELD] * held + [GpuState.FREE] * free
    gpus = tuple(
        a_gpu(state, node_id=node_id, ordinal=ordinal, tier=tier)
        for ordinal, state in enumerate(states)
    )
    return NodeGpus(node_id=node_id, can_grant=can_grant, gpus=gpus)


def place(chosen: Placement | None) -> tuple[str, str, list[int]] | None:
    if chosen is None:
        return None
    return chosen.node_id, chosen.tier, [gpu.ordinal for gpu in chosen.gpus]


def test_the_first_tier_wins_even_if_a_later_one_has_more() -> None:
    nodes = [a_node_of("b", tier=L, free=8), a_node_of("a", free=1)]

    assert place(choose([H, L], 1, nodes)) == ("a", H, [0])


def test_a_later_tier_is_taken_when_the_first_is_busy() -> None:
    nodes = [a_node_of("a", free=0, held=8), a_node_of("b", tier=L, free=2)]

    assert place(choose([H, L], 2, nodes)) == ("b", L, [0, 1])


def test_the_fullest_node_that_fits_is_packed_first() -> None:
    nodes = [a_node_of("a", free=8), a_node_of("b", free=3, held=5), a_node_of("c", free=1, held=7)]

    assert place(choose([H], 2, nodes)) == ("b", H, [5, 6])


def test_a_tie_goes_to_the_lowest_node() -> None:
    assert place(choose([H], 1, [a_node_of("b", free=2), a_node_of("a", free=2)])) == ("a", H, [0])


def test_a_gang_is_never_spread_over_nodes() -> None:
    nodes = [a_node_of("a", free=2), a_node_of("b", free=2)]

    assert choose([H], 4, nodes) is None
    assert refusal([H, L], 4, nodes) == (
        "no node has 4 free GPUs of a tier asked for: h100-80gb at most 2, l4-24gb at most 0"
    )


def test_a_silent_or_draining_node_gets_nothing() -> None:
    assert choose([H], 1, [a_node_of("a", free=8, can_grant=False)]) is None


counts = st.tuples(st.integers(0, 4), st.integers(0, 4), st.booleans(), st.sampled_from([H, L]))


@settings(deadline=None)
@given(st.lists(counts, max_size=5), st.integers(1, 5), st.permutations([H, L]))
def test_a_placement_exists_exactly_if_some_tier_fits_and_it_is_legal(
    described: list[tuple[int, int, bool, str]], gpu_count: int, tiers: list[str]
) -> None:
    nodes = [
        a_node_of(f"node_{index}", tier=tier, free=free, held=held, can_grant=can_grant)
        for index, (free, held, can_grant, tier) in enumerate(described)
    ]
    fits = [
        tier
        for tier in tiers
        if any(free >= gpu_count and ok and own == tier for free, _, ok, own in described)
    ]

    chosen = choose(tiers, gpu_count, nodes)

    assert (chosen is not None) == bool(fits)
    if chosen is not None:
        assert chosen.tier == fits[0]
        assert len(chosen.gpus) == gpu_count == len({gpu.ordinal for gpu in chosen.gpus})
        assert {(gpu.node_id, gpu.tier, gpu.state) for gpu in chosen.gpus} == {
            (chosen.node_id, chosen.tier, GpuState.FREE)
        }


def test_capacity_counts_what_is_there_and_what_one_gang_can_get() -> None:
    tier = Tier(tier=H, title="H100", memory_bytes=80)
    none = Tier(tier=L, title="L4", memory_bytes=24)
    nodes = [
        a_node_of("a", free=2, held=6),
        a_node_of("b", free=4),
        a_node_of("c", free=9, can_grant=False),
        NodeGpus(node_id="d", can_grant=True, gpus=(a_gpu(GpuState.QUARANTINED, node_id="d"),)),
    ]

    found, nothing = capacities([tier, none], nodes)

    assert (found.total_count, found.free_count) == (21, 6)
    assert (found.node_count_max, found.free_per_node) == (9, (4, 2))
    assert (nothing.total_count, nothing.node_count_max, nothing.free_per_node) == (0, 0, ())
