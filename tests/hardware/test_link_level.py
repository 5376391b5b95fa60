"""On up to 16 devices the closed forms agree with collectives played message by message over the links."""

from fractions import Fraction
from itertools import permutations, product
from math import prod

import numpy as np
import pytest

from meshwright import hardware as hw
from meshwright.hardware import Topology
from tests.hardware.link_simulation import (
    chain_all_reduce,
    chips,
    gather_schedule,
    neighbour,
    play_gather,
    play_reduce,
    play_routed,
    reversed_schedule,
    route,
)

# One byte per second and link, one second per hop: a cost in seconds is a number of messages.
CHIP = hw.get("tpu v5p", link_bytes_per_s=1.0, hop_seconds=1.0)
V = 720720.0


def machine(lengths, rings):
    return Topology(CHIP, lengths, wrap=rings)


def cost(kind, lengths, rings, **more):
    return hw.collective_cost(kind, V, machine(lengths, rings), **more)


SQUARES = [((n,), (True,)) for n in range(3, 17)] + [((n,), (False,)) for n in range(2, 17)]
SQUARES += [((n, n), (r, r)) for n in (3, 4) for r in (True, False)] + [((2, 2), (False, False))]
SQUARES += [((2, 2, 2), (False,) * 3)]


@pytest.mark.parametrize(("lengths", "rings"), SQUARES)
def test_an_all_gather_takes_what_its_messages_take(lengths, rings):
    schedule, start = gather_schedule(lengths, rings)
    holds = {chip: set(parts) for chip, parts in start.items()}
    played = play_gather(schedule, holds)
    everything = set().union(*start.values())
    assert all(parts == everything for parts in holds.values())
    modelled = cost("all_gather", lengths, rings)
    assert modelled.bandwidth_seconds == pytest.approx(float(played.bandwidth * int(V)), rel=1e-12)
    assert modelled.latency_seconds == played.latency


@pytest.mark.parametrize(("lengths", "rings"), SQUARES)
def test_a_reduce_scatter_is_an_all_gather_backward(lengths, rings):
    schedule, start = gather_schedule(lengths, rings)
    owner = {part: chip for chip, parts in start.items() for part in parts}
    played, sums = play_reduce(reversed_schedule(schedule), chips(lengths), owner)
    assert all(sums[part][chip] == set(chips(lengths)) for part, chip in owner.items())
    modelled = cost("reduce_scatter", lengths, rings)
    assert modelled.bandwidth_seconds == pytest.approx(float(played.bandwidth * int(V)), rel=1e-12)
    assert modelled.latency_seconds == played.latency
    assert cost("all_reduce", lengths, rings).bandwidth_seconds == 2 * modelled.bandwidth_seconds


BOXES = [
    box for n in (1, 2, 3) for box in product((2, 3, 4, 5, 8), repeat=n) if prod(box) <= 16 and sorted(box) == list(box)
]
BOXES = [(box, rings) for box in BOXES for rings in product((False, True), repeat=len(box))
         if not any(ring and length == 2 for ring, length in zip(rings, box))]  # fmt: skip


def links(lengths, rings):
    for chip in chips(lengths):
        for axis, ring in enumerate(rings):
            for way in (1, -1):
                target = neighbour(chip, axis, way, lengths, ring)
                if target is not None:
                    yield chip, target, axis


def worst_cut(lengths, rings, widths):
    """The most that any set of chips must send out over its links, each set having |S|/N of V: all 2^N sets."""
    everyone = {chip: number for number, chip in enumerate(chips(lengths))}
    sets = np.arange(1, 2 ** len(everyone) - 1)
    inside = {chip: (sets >> number) & 1 for chip, number in everyone.items()}
    out = sum(widths[axis] * (inside[a] & ~inside[b] & 1) for a, b, axis in links(lengths, rings))
    return (np.add.reduce(list(inside.values())) / len(everyone) / out).max()


@pytest.mark.parametrize(("lengths", "rings"), BOXES)
def test_an_all_gather_meets_the_worst_of_all_cuts(lengths, rings):
    bound = worst_cut(lengths, rings, (1.0,) * len(lengths))
    assert cost("all_gather", lengths, rings).bandwidth_seconds == pytest.approx(bound * V, rel=1e-12)


@pytest.mark.parametrize(("lengths", "rings"), [((8, 4), (False, True)), ((16,), (True,)), ((8, 4), (False, False))])
def test_groups_that_interleave_share_their_links(lengths, rings):
    """The mesh axis a takes every second (or fourth) chip of physical axis 0: its rings run side by side over the
    same links.
    """
    for size in (2, 4):
        stride = lengths[0] // size
        mesh = {"a": size, "b": stride}
        t = Topology(
            CHIP, lengths, wrap=rings, mesh=mesh, mapping={"a": [hw.Span(0, size, stride)], "b": [hw.Span(0, stride)]}
        )
        modelled = hw.collective_cost("all_to_all", V, t, "a")
        # Play every group's all-to-all at once on the physical axis; four flits per pair.
        paths = []
        for chip in chips(lengths[:1]):
            for other in chips(lengths[:1]):
                if chip[0] % stride == other[0] % stride:
                    paths += [route(chip, other, lengths[:1], rings[:1], (0,), flit) for flit in range(4)]
        busiest, _ = play_routed(paths)
        flit = V / size**2 / 4
        assert modelled.bandwidth_seconds == pytest.approx(busiest * flit, rel=1e-12)


@pytest.mark.parametrize(("lengths", "rings"), BOXES)
def test_an_all_to_all_takes_what_its_busiest_link_takes(lengths, rings):
    flits, count = 12, prod(lengths)
    orders = [tuple(order) for order in permutations(range(len(lengths)))]
    paths = [
        route(a, b, lengths, rings, orders[(flit // 2) % len(orders)], flit)
        for flit in range(flits)
        for a in chips(lengths)
        for b in chips(lengths)
    ]
    busiest, steps = play_routed(paths)
    modelled = cost("all_to_all", lengths, rings).bandwidth_seconds
    flit = V / count**2 / flits
    assert modelled == pytest.approx(busiest * flit, rel=1e-12)
    # Played flit by flit it takes that long, but for the way of the last ones.
    radius = cost("all_to_all", lengths, rings).latency_seconds
    assert busiest <= steps <= 1.15 * busiest + radius


@pytest.mark.parametrize(("size", "ring"), [(n, r) for n in range(2, 17) for r in (True, False) if n > 2 or not r])
def test_a_shift_takes_what_its_busiest_link_takes(size, ring):
    for shift in range(1, size):
        paths = []
        for i in range(size):
            # Whole messages go the shorter way, and at equal distance all the same way.
            target = (i + shift) % size
            paths.append(route((i,), (target,), (size,), (ring,), (0,), 0))
        busiest, _ = play_routed(paths)
        modelled = cost("permute", (size,), (ring,), shift=shift)
        assert modelled.bandwidth_seconds == pytest.approx(busiest * V / size, rel=1e-12)
        assert modelled.latency_seconds == max(map(len, paths))


@pytest.mark.parametrize("size", range(3, 17))
def test_a_shift_split_both_ways_loads_both_directions_alike(size):
    for shift in range(1, size):
        # Of N flits per message N - s go forward s hops and s go backward N - s hops.
        ahead = Fraction(size - shift, size) * shift
        behind = Fraction(shift, size) * (size - shift)
        assert ahead == behind
        modelled = cost("permute", (size,), (True,), shift=shift, split=True)
        assert modelled.bandwidth_seconds == pytest.approx(float(ahead) * V / size, rel=1e-12)


@pytest.mark.parametrize("size", range(2, 17))
@pytest.mark.parametrize("chunks", [1, 4, 64])
def test_an_all_reduce_along_a_chain(size, chunks):
    played, whole = chain_all_reduce(size, chunks)
    assert whole
    modelled = cost("all_reduce", (size,), (False,), model="chain", chunks=chunks)
    assert modelled.bandwidth_seconds == pytest.approx(float(played.bandwidth) * V, rel=1e-12)
    assert modelled.latency_seconds == played.latency
    # With many chunks it tends to V over a link: half of a reduce-scatter and an all-gather, for long lines.
    limit = cost("all_reduce", (size,), (False,), model="chain").bandwidth_seconds
    assert limit == pytest.approx(min(V, cost("all_reduce", (size,), (False,)).bandwidth_seconds))


def test_idle_axes_are_free_bandwidth():
    """Over x with z idle on a 4x4 torus: slice over z, then gather over both; each step played."""
    torus = Topology(CHIP, (4, 4), wrap=True, mesh={"x": 4, "z": 4})
    schedule, start = gather_schedule((4, 4), (True, True))
    both = play_gather(schedule, {chip: set(parts) for chip, parts in start.items()}).bandwidth
    schedule, _ = gather_schedule((4,), (True,))
    alone = play_gather(schedule, {(i,): {((i,), 0, 0), ((i,), 0, 1)} for i in range(4)}).bandwidth
    times = {
        kind: hw.collective_cost(kind, V, torus, "x", model="idle axes", idle="z").bandwidth_seconds
        for kind in ("all_gather", "reduce_scatter", "all_reduce")
    }
    assert times["all_gather"] == pytest.approx(float(both) * V)
    assert times["reduce_scatter"] == pytest.approx(float(alone / 4 + alone / 4) * V)
    assert times["all_reduce"] == pytest.approx(float(alone / 4 + both) * V)
    plain = hw.collective_cost("all_reduce", V, torus, "x").bandwidth_seconds
    assert times["all_reduce"] < plain


@pytest.mark.parametrize("size", range(3, 17))
def test_a_broadcast_goes_round_both_ways(size):
    """Half of the chunks go round a ring each way, one behind the other."""
    chunks = 256
    paths = []
    for chunk in range(chunks):
        way = 1 if chunk % 2 else -1
        here = 0
        for _ in range(size - 1):
            paths.append([((here,), ((here + way) % size,), way)])
            here = (here + way) % size
    busiest, _ = play_routed(paths)
    modelled = cost("broadcast", (size,), (True,)).bandwidth_seconds
    assert modelled == pytest.approx(busiest / chunks * V)


GPU = hw.get(
    "h100", nvlink_bytes_per_s=9.0, node_bytes_per_s=8.0, nvlink_domain=4, nvlink_hop_seconds=1.0, net_hop_seconds=1.0
)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_switched_node(size):
    """In round r each GPU sends to the one r further: every port carries one message at a time."""
    node = Topology(GPU, size)
    sent = sum(Fraction(1, size) for _ in range(1, size))
    assert hw.collective_cost("all_gather", V, node).bandwidth_seconds == pytest.approx(float(sent) * V / 9)
    exchanged = sum(Fraction(1, size**2) for _ in range(1, size))
    assert hw.collective_cost("all_to_all", V, node).bandwidth_seconds == pytest.approx(float(exchanged) * V / 9)


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_nodes_under_a_tree(nodes):
    """Each GPU exchanges with its peers in other nodes, then passes on within its node; every port is counted."""
    size, t = 4 * nodes, Topology(GPU, 4 * nodes, mesh={"x": nodes, "y": 4})
    into_node = into_gpu = Fraction(0)
    for _ in range(1, nodes):  # rounds between nodes: each of the 4 GPUs takes in one shard
        into_node += 4 * Fraction(1, size)
    for _ in range(1, 4):  # rounds within the node: each GPU takes in what another one gathered
        into_gpu += Fraction(nodes, size)
    expected = max(float(into_node) * V / 8, float(into_gpu) * V / 9)
    assert hw.collective_cost("all_gather", V, t).bandwidth_seconds == pytest.approx(expected)
    # Over x alone, 4 groups share the node's way out; over y alone nothing leaves it.
    across = hw.collective_cost("all_gather", V, t, "x").bandwidth_seconds
    assert across == pytest.approx(4 * (nodes - 1) / nodes * V / 8)
    assert hw.collective_cost("all_gather", V, t, "y").bandwidth_seconds == pytest.approx(3 / 4 * V / 9)


@pytest.mark.parametrize("slices", [2, 4])
def test_slices_joined_by_the_data_center_network(slices):
    """Every chip gathers its shard from its peers in other slices, while slices gather within."""
    chip = CHIP.replace(dcn_bytes_per_s=0.25, dcn_hop_seconds=10.0)
    t = Topology(chip, (2, 2, 1), slices=slices)
    modelled = hw.collective_cost("all_gather", V, t)
    over = (slices - 1) * (V / slices / 4) / 0.25
    within = 3 / 4 * V / 2
    assert modelled.bandwidth_seconds == pytest.approx(max(over, within))
    assert modelled.latency_seconds == 10 + 2
    assert hw.collective_cost("all_gather", V, t, "dcn").bandwidth_seconds == pytest.approx(
        (slices - 1) / slices * V / 0.25
    )


def test_the_worst_cut_may_be_a_slab():
    """Where an axis has little bandwidth, what a whole slab lacks decides, not what a corner lacks."""
    t = Topology(CHIP, (8, 2), wrap=False, mesh={"a": 2, "b": 4, "c": 2},
                 mapping={"a": [hw.Span(0, 2, 4)], "b": [hw.Span(0, 4, 1)], "c": 1})  # fmt: skip
    modelled = hw.collective_cost("all_gather", V, t, ("a", "c")).bandwidth_seconds
    # Along a four groups share each link: widths 1/4 and 1.
    assert modelled == pytest.approx(worst_cut((2, 2), (False, False), (0.25, 1.0)) * V)
