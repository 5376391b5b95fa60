"""All-to-alls of tokens that go to a few experts: the expected counts against tokens that were drawn, and known counts
against messages one by one.
"""

from fractions import Fraction
from math import comb

import numpy as np
import pytest

from meshwright import hardware as hw
from meshwright.errors import HardwareError
from meshwright.hardware import Topology
from meshwright.hardware.ragged import share_reached
from tests.hardware.test_straddling import machine
from tests.hardware.tree_simulation import Traffic


@pytest.mark.parametrize(("parts", "active"), [(8, 1), (8, 2), (8, 8), (32, 4), (4, 3)])
def test_the_share_of_tokens_that_reach_a_part(parts, active):
    """(1 - ((Z-1)/Z)^k): the expected number of faces that k rolls of a die with Z faces show, over Z."""
    shown = sum(
        Fraction(comb(active, hits) * (parts - 1) ** (active - hits), parts**active) for hits in range(1, active + 1)
    )
    assert share_reached(1 / parts, active) == pytest.approx(float(shown))
    # Different experts hit more parts than rolls that may repeat; of infinitely many experts both are the same.
    assert share_reached(1 / parts, active, parts * 2) >= share_reached(1 / parts, active) - 1e-12
    assert share_reached(1 / parts, active, parts * 10**6) == pytest.approx(share_reached(1 / parts, active), rel=1e-4)


def drawn(rng, chips, tokens, active, experts):
    """Where tokens go: for each its device, and the devices of its experts."""
    home = np.arange(tokens) % chips
    chosen = np.argsort(rng.random((tokens, experts)), axis=1)[:, :active]
    return home, chosen // (experts // chips)


@pytest.mark.parametrize(("node", "nodes", "per_unit"), [(4, 1, 0), (4, 2, 0), (2, 4, 2), (4, 4, 2)])
@pytest.mark.parametrize("active", [1, 2, 6])
def test_expected_counts_are_those_of_tokens_that_were_drawn(node, nodes, per_unit, active):
    topology, tree = machine(node, nodes, 9.0, 1.0, per_unit, 0.25)
    tokens, experts = 20000, 4 * tree.chips
    home, targets = drawn(np.random.default_rng(0), tree.chips, tokens, active, experts)
    ports, adapters, uplinks = np.zeros(tree.chips), np.zeros(nodes), np.zeros(max(1, tree.chips // tree.unit))
    for at, devices in zip(home, map(set, targets.tolist())):
        for number in {device // node for device in devices}:
            adapters[number] += number != at // node
        for unit in {device // tree.unit for device in devices}:
            uplinks[unit] += unit != at // tree.unit
        for device in devices:  # brought by the device of the token's own rank in that node
            ports[device] += device % node != at % node
    loads = [ports.mean() / 9.0, adapters.mean() / node if nodes > 1 else 0.0]
    loads += [uplinks.mean() / tree.uplink] if per_unit else []
    expected = max(loads) / tokens
    modelled = hw.ragged_all_to_all(1.0, topology, active=active, experts=experts).bandwidth_seconds
    assert modelled == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    ("topology", "axes"),
    [
        (Topology("h100", 8), None),
        (Topology("h100", 64), None),
        (Topology("h100", 512), None),
        (Topology("h100", 24, mesh={"data": 2, "expert": 12}), "expert"),
        (Topology("gb200", 144), None),
        (Topology("tpu v5e", 16), None),
        (Topology("tpu v5p", 64, mesh={"data": 4, "expert": 16}), "expert"),
    ],
)
def test_with_one_active_expert_it_is_dense_and_with_all_of_them_a_gather_or_less(topology, axes):
    size = hw.collective_cost("all_to_all", 1.0, topology, axes).group
    dense = hw.collective_cost("all_to_all", 1e9, topology, axes)
    assert hw.ragged_all_to_all(1e9, topology, axes, active=1).seconds == pytest.approx(dense.seconds)
    assert hw.ragged_all_to_all(1e9, topology, axes, active=1, experts=size).seconds == pytest.approx(dense.seconds)
    times = [
        hw.ragged_all_to_all(1e9, topology, axes, active=k, experts=2 * size).bandwidth_seconds
        for k in range(1, 2 * size + 1)
    ]
    assert times == sorted(times)
    every = hw.collective_cost("all_gather", 1e9, topology, axes).bandwidth_seconds
    if topology.switched:
        assert times[-1] == pytest.approx(every)
    assert times[1] <= 2 * times[0] * (1 + 1e-12)


def test_the_textbook_on_nodes():
    """V(Z-1)/Z · (1 - ((Z-1)/Z)^k) into each node, V being the tokens of all nodes; about k/Z of them for few."""
    for nodes, active in ((4, 2), (16, 8), (64, 8)):
        t = Topology("h100", 8 * nodes)
        into = (nodes - 1) / nodes * (1 - ((nodes - 1) / nodes) ** active)
        assert hw.ragged_all_to_all(1e9, t, active=active).bandwidth_seconds == pytest.approx(into * 1e9 / 4e11)


@pytest.mark.parametrize("seed", range(10))
def test_known_counts_take_what_their_messages_take(seed):
    rng = np.random.default_rng(seed)
    node, nodes = int(rng.integers(2, 5)), int(rng.integers(1, 5))
    per_unit = 2 if nodes == 4 and seed % 2 else 0
    topology, tree = machine(node, nodes, 9.0, 1.0, per_unit, 0.25)
    counts = rng.integers(0, 100, (tree.chips, tree.chips))
    traffic = Traffic.none(tree)
    for i, j in np.argwhere(counts):
        if i != j:
            traffic.send(int(i), int(j), Fraction(int(counts[i, j])))
    cost = hw.exchange_cost(counts, topology)
    assert cost.bandwidth_seconds == pytest.approx(traffic.seconds)
    even = np.ones((tree.chips, tree.chips)) / tree.chips**2
    dense = hw.collective_cost("all_to_all", 1.0, topology)
    assert hw.exchange_cost(even, topology).bandwidth_seconds <= dense.bandwidth_seconds * (1 + 1e-12)


def test_known_counts_on_a_torus():
    line = Topology("tpu v5e", (1, 4))
    sent = np.zeros((4, 4))
    sent[0, 3] = sent[1, 3] = 1e9
    cost = hw.exchange_cost(sent, line)
    assert cost.bandwidth_seconds == pytest.approx(2e9 / 4.5e10) and cost.latency_seconds == pytest.approx(3e-6)
    even = np.ones((4, 4)) / 16 * 1e9
    dense = hw.collective_cost("all_to_all", 1e9, line)
    assert hw.exchange_cost(even, line).bandwidth_seconds == pytest.approx(dense.bandwidth_seconds)
    assert hw.exchange_cost(np.zeros((4, 4)), line).seconds == 0


def test_counts_that_are_none():
    with pytest.raises(HardwareError) as error:
        hw.exchange_cost([[0, 1]], Topology("h100", 8), (0, 1))
    assert (error.value.what, error.value.why, error.value.fix) == (
        "Counts of (1, 2) are not those of 2 chips.",
        "every chip sends a number of bytes, none or more, to every other",
        "numpy.zeros((2, 2))",
    )
    with pytest.raises(HardwareError) as error:
        hw.ragged_all_to_all(1e9, Topology("h100", 8), active=2, experts=12)
    assert (error.value.what, error.value.why, error.value.fix) == (
        "Tokens cannot go to 2 of 12 experts on 8 devices.",
        "at least one expert is active, at most all are, and every device has as many of them",
        "active=1, experts=8",
    )
