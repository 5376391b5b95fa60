"""NCCL's own model, which its tuner minimizes: latency plus bytes over bandwidth, per algorithm and protocol."""

from __future__ import annotations

from math import log2
from typing import Any

from meshwright.core.source import here
from meshwright.errors import HardwareError
from meshwright.hardware.chips import data
from meshwright.hardware.links import CollectiveCost
from meshwright.hardware.occupancy import occupancy
from meshwright.hardware.placement import Span, group_size
from meshwright.hardware.topology import Topology

PROTOCOLS = ("LL", "LL128", "Simple")
ALGORITHMS = ("ring", "tree")


def nccl(
    kind: str,
    bytes: float,
    topology: Topology,
    spans: tuple[Span, ...],
    exact: bool,
    algorithm: str | None = None,
    protocol: str | None = None,
    bus_bytes_per_s: float | None = None,
    **_: Any,
) -> CollectiveCost:
    """NCCL's tuner: a latency for every step and a bandwidth that depends on algorithm and protocol, added.

    Without ``algorithm`` and ``protocol`` the fastest is taken, as the tuner does. A ring takes 2(N-1) steps for an
    all-reduce and N-1 for an all-gather or reduce-scatter; a tree, for all-reduces only, a number logarithmic in
    the nodes.
    """
    if not topology.switched or kind not in ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce"):
        raise HardwareError(
            f"The model 'nccl' says nothing about {kind} on {topology.text}.",
            where=here(),
            why="it is about all_gather, reduce_scatter, all_reduce, broadcast and reduce on GPUs",
            fix="model='links'",
        )
    for what, given, known in (("algorithm", algorithm, ALGORITHMS), ("protocol", protocol, PROTOCOLS)):
        if given is not None and given not in known:
            raise HardwareError(
                f"NCCL has no {what} {given!r} here.",
                where=here(),
                why=f"there are {', '.join(known)}",
                fix=f"{what}={known[0]!r}",
            )
    trees = ALGORITHMS if kind == "all_reduce" else ("ring",)
    choices = [
        _one(kind, bytes, topology, spans, a, p, bus_bytes_per_s)
        for a in ((algorithm,) if algorithm else trees)
        for p in ((protocol,) if protocol else PROTOCOLS)
    ]
    return min(choices, key=lambda cost: cost.seconds)


def _one(
    kind: str,
    bytes: float,
    topology: Topology,
    spans: tuple[Span, ...],
    algorithm: str,
    protocol: str,
    bus: float | None,
) -> CollectiveCost:
    chip, constants = topology.chip, data()["nccl"]
    size = group_size(spans)
    worst = max(occupancy(topology, spans).groups, key=lambda group: (group.nodes, -group.fewest))
    per_node, nodes = worst.fewest, worst.nodes
    base = constants["base_seconds"][algorithm][protocol]
    near = constants["hop_seconds"]["nvlink"][algorithm][protocol]
    net = constants["hop_seconds"]["net"][algorithm][protocol]
    if bus is None:
        bus = chip.known("measured_bus_bytes_per_s", chip.nvlink_bytes_per_s)
        bus = min(bus, chip.known("nccl_max_bus_bytes_per_s", bus))
        if nodes > 1:
            bus = min(bus, chip.node_bytes_per_s * per_node / topology.node_size)
    efficiency = constants["protocol_efficiency"][protocol]["all_reduce" if kind == "all_reduce" else "other"]
    if algorithm == "tree":
        latency = base + 2 * ((worst.most - 1) * near + log2(nodes) * net)
        rate = 0.5 * bus * constants["tree_efficiency"] * efficiency
    else:
        steps = {"all_reduce": 2 * (size - 1), "broadcast": size, "reduce": size}.get(kind, size - 1)
        far = 0 if nodes == 1 else {"all_reduce": 2 * (nodes - 1)}.get(kind, nodes - 1)
        slow = protocol == "Simple" and nodes > 1 and kind == "all_reduce" and bytes > size / 16 * 65536
        latency = (1.9 if slow else 1.0) * (base + (steps - far) * near + far * net)
        rate = bus * size / steps * efficiency
    return CollectiveCost(kind, bytes, size, bytes / rate, latency, additive=True)
