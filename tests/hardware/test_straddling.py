"""Groups that straddle nodes and units pay the network: against every cut, and against collectives played piece by
piece.
"""

from __future__ import annotations

import random
from itertools import permutations, product

import numpy as np
import pytest

from meshwright import hardware as hw
from meshwright.errors import HardwareError
from meshwright.hardware import Topology
from meshwright.hardware.occupancy import _counted, _even, _evenly, occupancy
from meshwright.hardware.placement import Span
from tests.hardware.tree_simulation import Tree, cut_bound, play_all_reduce, play_all_to_all, play_gather

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute", "broadcast", "reduce")


def machine(node, nodes, port, adapter, per_unit=0, narrow=1.0):
    """GPUs in nodes, and in units of ``per_unit`` nodes whose uplinks are ``narrow`` times what their nodes send."""
    unit = {"nodes_per_unit": per_unit, "unit_bytes_per_s": per_unit * node * adapter * narrow} if per_unit else {}
    chip = hw.get(
        "h100",
        nvlink_bytes_per_s=port,
        node_bytes_per_s=node * adapter,
        nvlink_domain=node,
        **{"nodes_per_unit": 10**6, **unit},
    )
    tree = Tree(node * nodes, node, node * (per_unit or nodes), port, adapter, unit.get("unit_bytes_per_s", 1e30))
    return Topology(chip, node * nodes), tree


def random_groups(rng, chips):
    """Any chips in groups of any sizes, or all of them in rows of one size."""
    order = list(range(chips))
    if rng.random() < 0.5:
        size = rng.choice([d for d in range(2, chips + 1) if chips % d == 0])
        return [order[at : at + size] for at in range(0, chips, size)]
    rng.shuffle(order)
    groups = []
    while order:
        size = rng.randint(2, max(2, len(order)))
        groups.append(sorted(order[:size]))
        order = order[size:]
    return [group for group in groups if len(group) > 1]


def seconds(kind, topology, groups):
    """Until the last of groups that begin together is done."""
    return max(
        hw.collective_cost(
            kind, 1.0, topology, members=group, concurrent=[other for other in groups if other is not group]
        ).bandwidth_seconds
        for group in groups
    )


# How far above the cut bound the model may be where NVLink is at least four times an adapter and groups use their own
# adapters alone. Sums take two trips, which a cut allows at the same time; the messages of a permutation go through
# one adapter each, not through all of a node's, and all of them may leave a unit.
ABOVE_THE_CUT = {"all_gather": 1.25, "all_reduce": 2.0, "all_to_all": 1.25, "permute": 6.0, "broadcast": 1.25}


@pytest.mark.parametrize("seed", range(60))
def test_no_group_is_faster_than_a_cut_allows_nor_slower_than_it_is_played(seed):
    rng = random.Random(seed)
    node = rng.choice([2, 3, 4])
    nodes = rng.choice([n for n in (2, 3, 4) if n * node <= 12])
    per_unit = rng.choice([0, 2]) if nodes == 4 else 0
    adapter = rng.choice([0.5, 1.0])
    topology, tree = machine(node, nodes, adapter * rng.choice([4.0, 9.0]), adapter, per_unit, rng.choice([0.5, 1.0]))
    groups = random_groups(rng, tree.chips)
    play = {"all_gather": play_gather, "all_reduce": play_all_reduce, "all_to_all": play_all_to_all}
    for kind, factor in ABOVE_THE_CUT.items():
        modelled, bound = seconds(kind, topology, groups), cut_bound(kind, groups, tree)
        apart = max(bound, *(cut_bound(kind, [group], tree, using=group) for group in groups))
        assert bound * (1 - 1e-9) <= modelled <= factor * apart * (1 + 1e-9), (kind, groups, tree)
        if kind not in play:
            continue
        played = play[kind](groups, tree).seconds
        if per_unit:  # pieces could take turns better than they are made to here
            assert played <= 1.34 * modelled, (kind, groups, tree)
        elif kind == "all_to_all":  # pieces go straight to their GPU, not by a neighbour whose adapter is on its rail
            assert played <= modelled * (1 + 1e-9)
        else:
            assert played == pytest.approx(modelled, rel=1e-9), (kind, groups, tree)


def test_a_group_of_12_in_nodes_of_8_pays_the_network():
    def on(**numbers):
        topology = Topology(hw.get("h100", **numbers), 24, mesh={"data": 2, "model": 12})
        return hw.collective_cost("all_reduce", 1e9, topology, "model")

    # Half of the array comes in and goes out twice through the four adapters of the middle node that a group has.
    assert on().bandwidth_seconds == pytest.approx(2 * (1 / 2) * 1e9 / (4 * 5e10))
    assert on().network == "net" and on().latency_seconds == pytest.approx(2 * (4.7e-7 + 2.7e-6))
    assert on(node_bytes_per_s=2e11).bandwidth_seconds == pytest.approx(2 * on().bandwidth_seconds)
    gathered = hw.collective_cost("all_gather", 1e9, Topology("h100", 24, mesh={"data": 2, "model": 12}), "model")
    assert gathered.bandwidth_seconds == pytest.approx((8 / 12) * 1e9 / (4 * 5e10))


@pytest.mark.parametrize(
    ("chips", "size", "counts"),
    [
        (144, 144, {(144, 2, 72, 72)}),
        (288, 96, {(96, 2, 24, 72), (96, 2, 48, 48)}),
        (144, 12, {(12, 1, 12, 12)}),
        (144, 48, {(48, 1, 48, 48), (48, 2, 24, 24)}),
        (360, 120, {(120, 2, 48, 72), (120, 3, 24, 72)}),
    ],
)
def test_groups_beside_the_switch_of_72(chips, size, counts):
    t = Topology("gb200", chips, mesh={"outer": chips // size, "group": size})
    assert {group[:4] for group in occupancy(t, t.spans("group")).groups} == counts
    slow, fast = (
        hw.collective_cost("all_gather", 1e9, Topology(chip, chips, mesh=t.mesh), "group").bandwidth_seconds
        for chip in (hw.get("gb200", node_bytes_per_s=3.6e10), hw.get("gb200"))
    )
    assert (slow > fast) == any(nodes > 1 for _, nodes, _, _ in counts)


MESHES = [
    ("h100", 24, (2, 12)),
    ("h100", 24, (3, 2, 4)),
    ("h100", 48, (4, 12)),
    ("h100", 40, (8, 5)),
    ("h100", 512, (4, 16, 8)),
    ("h100", 768, (2, 48, 8)),
    ("h100", 768, (2, 384)),
    ("a100", 64, (2, 4, 8)),
    ("h200", 48, (2, 24)),
    ("b200", 16, (16,)),
    ("gb200", 288, (3, 96)),
    ("gb200", 144, (9, 16)),
]


@pytest.mark.parametrize(("chip", "count", "sizes"), MESHES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_slower_network_is_never_faster(chip, count, sizes, kind):
    found = hw.get(chip)
    mesh = dict(zip("xyz", sizes))
    rates = ["nvlink_bytes_per_s", "node_bytes_per_s"]
    rates += ["unit_bytes_per_s"] if "unit_bytes_per_s" in found.facts else []
    for axes in ("x", mesh.keys()):
        for mode in ("exact", "asymptotic"):
            base = hw.collective_cost(kind, 1e9, Topology(found, count, mesh=mesh), axes, mode)
            times = []
            for rate in rates:
                slower = found.replace(**{rate: getattr(found, rate) / 1000})
                cost = hw.collective_cost(kind, 1e9, Topology(slower, count, mesh=mesh), axes, mode)
                assert cost.bandwidth_seconds >= base.bandwidth_seconds and cost.latency_seconds == base.latency_seconds
                times.append(cost.bandwidth_seconds)
            # What every level takes alone adds up to all that is slow at once, or less: levels work together.
            slow = found.replace(**{rate: getattr(found, rate) / 1000 for rate in rates})
            every = hw.collective_cost(kind, 1e9, Topology(slow, count, mesh=mesh), axes, mode).bandwidth_seconds
            assert every == pytest.approx(1000 * base.bandwidth_seconds) and every <= sum(times)


@pytest.mark.parametrize(("chip", "count", "sizes"), MESHES)
def test_axes_in_another_order_with_the_same_groups_take_as_long(chip, count, sizes):
    """A mesh of the same axes in another order, laid by hand where the first one lies, and the groups themselves."""
    mesh = dict(zip("xyz", sizes))
    t = Topology(chip, count, mesh=mesh)
    for order in permutations(mesh):
        other = Topology(chip, count, mesh={name: mesh[name] for name in order}, mapping=t.mapping)
        for axis, kind in product(mesh, KINDS):
            assert hw.collective_cost(kind, 1e9, other, axis) == hw.collective_cost(kind, 1e9, t, axis)
    for axis, kind in product(mesh, KINDS):
        (span,) = t.spans(axis) or (Span(0, 1),)
        if span.size == 1:
            continue
        firsts = [n for n in range(count) if n // span.stride % span.size == 0]
        groups = [tuple(n + i * span.stride for i in range(span.size)) for n in firsts]
        apart = {group: [other for other in groups if other != group] for group in (groups[:4] + groups[-4:])}
        times = [hw.collective_seconds(kind, 1e9, t, members=g, concurrent=others) for g, others in apart.items()]
        assert max(times) <= hw.collective_seconds(kind, 1e9, t, axis) * (1 + 1e-12)
        if len(groups) <= 8:
            assert max(times) == pytest.approx(hw.collective_seconds(kind, 1e9, t, axis))


def test_groups_that_fill_nodes_evenly_are_counted_without_looking_at_chips():
    for node, unit, chips in ((4, 0, 24), (4, 16, 64), (8, 32, 96)):
        sizes = [n for n in range(2, chips + 1) if chips % n == 0]
        for size, stride in product(sizes, [1, *sizes]):
            if chips % (size * stride) or not all(_even((Span(0, size, stride),), b, chips) for b in (node, unit) if b):
                continue
            firsts = [n for n in range(chips) if n // stride % size == 0]
            groups = [[n + i * stride for i in range(size)] for n in firsts]
            counted = _counted([np.array(g) for g in groups], len(groups), node, unit)
            closed = _evenly((Span(0, size, stride),), node, unit, chips)
            assert counted.groups == closed.groups
            assert counted.units is None or counted.units == pytest.approx(closed.units)


@pytest.mark.parametrize("count", [1024, 4096, 16384])
def test_thousands_of_gpus(count):
    """Beyond a unit of 32 nodes the way out of a node still decides, at its 400 GB/s; 8 ways inside pay NVLink."""
    t = Topology("h100", count, mesh={"data": count // 8, "model": 8})
    nodes = count // 8
    whole = hw.collective_bytes_per_s("all_gather", t)
    assert whole == pytest.approx(4e11 * nodes / (nodes - 1))
    assert hw.collective_bytes_per_s("all_gather", t, "data") == pytest.approx(5e10 * nodes / (nodes - 1))
    assert hw.collective_bytes_per_s("all_gather", t, "model") == pytest.approx(4.5e11 * 8 / 7)
    assert hw.collective_cost("all_reduce", 1, t).latency_seconds == pytest.approx(2 * (4.7e-7 + 2 * 2.7e-6))
    # 70e9 bf16 gradients over data-parallel replicas of 8 GPUs: 17.5 GB each, 0.7 s on 50 GB/s.
    assert hw.collective_seconds("all_reduce", 140e9 / 8, t, "data") == pytest.approx(0.7, rel=0.02)
    # A unit that is oversubscribed four times over holds up what leaves it.
    narrow = Topology(hw.get("h100", unit_bytes_per_s=3.2e12), count, mesh=t.mesh)
    assert hw.collective_seconds("all_to_all", 1e13, narrow) > 2 * hw.collective_seconds("all_to_all", 1e13, t)


def test_one_group_alone_and_beside_others():
    t = Topology(hw.get("h100", unit_bytes_per_s=1e11), 512)
    rows = [tuple(range(n, 512, 16)) for n in range(16)]
    alone = hw.collective_seconds("all_gather", 1e9, t, members=rows[0])
    beside = hw.collective_seconds("all_gather", 1e9, t, members=rows[0], concurrent=rows[1:])
    assert beside == pytest.approx(16 * 1e9 * 0.5 / 1e11) and alone < beside


def test_slices_of_gpus_are_nodes_of_their_own():
    joined, apart = Topology("h100", 16, mesh={"x": 2, "y": 8}), Topology("h100", 8, slices=2, mesh={"x": 2, "y": 8})
    for kind, axis in product(KINDS, ("x", "y", ("x", "y"))):
        assert hw.collective_cost(kind, 1e9, joined, axis) == hw.collective_cost(kind, 1e9, apart, axis)
    halves = Topology("h100", 4, slices=2, mesh={"x": 2, "y": 4})
    assert halves.nodes == 2
    assert hw.collective_cost("all_gather", 1e9, halves, "x").bandwidth_seconds == pytest.approx(0.5 * 1e9 / 5e10)
    assert hw.collective_cost("all_gather", 1e9, halves, "y").bandwidth_seconds == pytest.approx(0.75 * 1e9 / 4.5e11)


def test_a_message_between_nodes_goes_through_an_adapter():
    t = Topology("h100", 1024)
    near, far, farthest = (hw.point_to_point(1e9, t, (0,), (n,)) for n in (7, 8, 1023))
    assert near.bandwidth_seconds == pytest.approx(1e9 / 4.5e11) and near.latency_seconds == 4.7e-7
    assert far.bandwidth_seconds == farthest.bandwidth_seconds == pytest.approx(1e9 / 5e10)
    assert far.latency_seconds == 2.7e-6 and farthest.latency_seconds == pytest.approx(5.4e-6) and far.network == "net"
    for kind in ("permute", "all_gather"):
        pair = hw.collective_cost(kind, 2e9, t, members=(0, 8))
        assert pair.bandwidth_seconds == pytest.approx(far.bandwidth_seconds)


TORI = [Topology("tpu v5e", (4, 8)), Topology("tpu v5p", (4, 4, 4)), Topology("tpu v5e", (16, 16))]


@pytest.mark.parametrize("t", TORI)
@pytest.mark.parametrize("kind", KINDS)
def test_a_box_of_a_torus_is_an_axis_of_a_mesh(t, kind):
    mesh = dict(zip("xyz", t.shape))
    laid = Topology(t.chip, t.shape, mesh=mesh)
    strides = [1]
    for length in reversed(t.shape[1:]):
        strides.insert(0, strides[0] * length)
    for axis, (name, length) in enumerate(mesh.items()):
        members = tuple(i * strides[axis] for i in range(length))
        assert hw.collective_cost(kind, 1e9, t, members=members) == hw.collective_cost(kind, 1e9, laid, name)
    everyone = tuple(range(t.size))
    assert hw.collective_cost(kind, 1e9, t, members=everyone) == hw.collective_cost(kind, 1e9, laid, mesh)


def test_groups_of_a_torus_share_the_lines_they_stand_on():
    t = Topology("tpu v5e", (1, 8), mesh={"a": 4, "b": 2}, mapping={"a": [Span(1, 4, 2)], "b": [Span(1, 2)]})
    even, odd = (0, 2, 4, 6), (1, 3, 5, 7)
    for kind in KINDS:
        alone = hw.collective_cost(kind, 1e9, t, members=even)
        beside = hw.collective_cost(kind, 1e9, t, members=even, concurrent=[odd])
        assert beside.bandwidth_seconds == pytest.approx(2 * alone.bandwidth_seconds)
        assert beside == hw.collective_cost(kind, 1e9, t, "a")
    # Halves of the line have no link in common.
    for kind in KINDS:
        left = hw.collective_cost(kind, 1e9, t, members=(0, 1, 2, 3), concurrent=[(4, 5, 6, 7)])
        assert left == hw.collective_cost(kind, 1e9, t, members=(0, 1, 2, 3))


def test_slices_of_tpus_by_number():
    t = Topology("tpu v5e", (4, 4), slices=2, mesh={"data": 2, "x": 4, "y": 4})
    for kind in KINDS:
        pair = hw.collective_cost(kind, 1e9, t, members=(0, 16))
        assert pair == hw.collective_cost(kind, 1e9, t, "data")
        every = hw.collective_cost(kind, 1e9, t, members=tuple(range(32)))
        assert every == hw.collective_cost(kind, 1e9, t, ("data", "x", "y"))
    odd = hw.collective_cost("all_gather", 1e9, t, members=(0, 1, 16))
    assert odd.network == "net" and odd.bandwidth_seconds >= 2 / 3 * 1e9 / 3.125e9 / 2


@pytest.mark.parametrize("seed", range(20))
def test_any_chips_of_a_torus_take_no_less_than_their_links_allow(seed):
    """Every member takes in what it lacks through the links of its chip; a ring of all lines up to a few times more."""
    rng = random.Random(seed)
    t = rng.choice(TORI)
    members = tuple(sorted(rng.sample(range(t.size), rng.randint(3, 12))))
    degree = 2 * len(t.shape)
    cost = hw.collective_cost("all_gather", 1e9, t, members=members)
    lacks = (len(members) - 1) / len(members) * 1e9 / t.chip.link_bytes_per_s
    assert lacks / degree <= cost.bandwidth_seconds <= len(members) * lacks
    total = hw.collective_cost("all_reduce", 1e9, t, members=members)
    assert total.bandwidth_seconds == pytest.approx(2 * cost.bandwidth_seconds)


def fails(action, *lines):
    with pytest.raises(HardwareError) as error:
        action()
    assert (error.value.what, error.value.why, error.value.fix) == lines


def test_groups_that_are_none():
    t = Topology("h100", 16, mesh={"x": 16})
    fails(
        lambda: hw.collective_seconds("all_gather", 1e9, t, members=(0, 16)),
        "h100 16 has no chip 16.",
        "its 16 chips are numbered from 0 to 15",
        "members=(0, 1)",
    )
    fails(
        lambda: hw.collective_seconds("all_gather", 1e9, t, members=(0, 1), concurrent=[(1, 2)]),
        "Chip 1 is in a group twice, or in two groups.",
        "groups that communicate at the same time have different members",
        "name each chip once",
    )
    fails(
        lambda: hw.collective_seconds("all_gather", 1e9, t, "x", members=(0, 1)),
        "A group is named by its members or by axes of the mesh.",
        "both were given",
        "leave axes out",
    )
    fails(
        lambda: hw.collective_seconds("all_gather", 1e9, t, concurrent=[(0, 1)]),
        "A group is named by its members or by axes of the mesh.",
        "concurrent groups are those beside members, at least one chip",
        "members=(0, 1)",
    )
    fails(
        lambda: hw.collective_seconds("all_gather", 1e9, t, members=(0, 1), model="nccl"),
        "The model 'nccl' is about axes of a mesh.",
        "what a group of chips costs is known of the links that join them",
        "axes=…, or model='links' without options",
    )


@pytest.mark.parametrize(("chip", "count", "sizes"), MESHES)
@pytest.mark.parametrize("kind", KINDS)
def test_calibrated_rates_hold_at_each_level(chip, count, sizes, kind):
    """What was measured of links and of the network slows down each: the level that decides may be another one."""
    found = hw.get(chip, link_efficiency=0.2, net_efficiency=0.9)
    slow = {"nvlink_bytes_per_s": 0.2, "node_bytes_per_s": 0.9, "unit_bytes_per_s": 0.9}
    derated = found.replace(**{rate: getattr(found, rate) * s for rate, s in slow.items() if rate in found.facts})
    mesh = dict(zip("xyz", sizes))
    for axes in ("x", mesh.keys()):
        measured = hw.collective_cost(kind, 1e9, Topology(found, count, mesh=mesh), axes, "calibrated")
        exact = hw.collective_cost(kind, 1e9, Topology(derated, count, mesh=mesh), axes)
        assert measured.bandwidth_seconds == pytest.approx(exact.bandwidth_seconds)
        assert measured.network == exact.network
