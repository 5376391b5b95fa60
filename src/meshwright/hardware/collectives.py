"""What collectives cost, and where one way to do them overtakes another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np

from meshwright.core.source import here
from meshwright.errors import HardwareError
from meshwright.hardware.chip_groups import chip_numbers, group_cost
from meshwright.hardware.chips import Chip, get
from meshwright.hardware.links import CollectiveCost
from meshwright.hardware.models import MODELS, OPTIONS
from meshwright.hardware.placement import group_size
from meshwright.hardware.roofline import MODES
from meshwright.hardware.topology import Axes, Topology

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute", "broadcast", "reduce")
_ALIASES = {
    "collective_permute": "permute",
    "ppermute": "permute",
    "psum": "all_reduce",
    "psum_scatter": "reduce_scatter",
}


def collective_seconds(
    kind: str,
    bytes: float,
    topology: Topology,
    axes: Axes = None,
    mode: str = "exact",
    model: str = "links",
    *,
    members: Sequence[int] | None = None,
    concurrent: Sequence[Sequence[int]] = (),
    **options: Any,
) -> float:
    """The modelled time of a collective on ``bytes`` bytes of one group over ``axes``, or of ``members``; see
    `collective_cost`.

    >>> from meshwright import hardware
    >>> v5e = hardware.Topology("tpu v5e", (8, 4), mesh={"x": 8, "y": 4})
    >>> hardware.collective_seconds("all_gather", 2048 * 8192 * 2, v5e, "y")
    0.0005592405333333334
    """
    return collective_cost(
        kind, bytes, topology, axes, mode, model, members=members, concurrent=concurrent, **options
    ).seconds


def collective_cost(
    kind: str,
    bytes: float,
    topology: Topology,
    axes: Axes = None,
    mode: str = "exact",
    model: str = "links",
    *,
    members: Sequence[int] | None = None,
    concurrent: Sequence[Sequence[int]] = (),
    **options: Any,
) -> CollectiveCost:
    """The terms of a collective's time.

    Over ``axes`` all the groups of the mesh communicate at the same time. ``members`` names one group by the numbers
    of its chips (slices one after another, the last axis the fastest), which shares links and switches with the groups
    of ``concurrent`` alone.

    ``mode`` is ``"exact"``; ``"asymptotic"``, for large groups, as textbooks have it; or ``"calibrated"``, exact
    with the efficiencies and launch times that were measured. ``model`` names another way to reckon, see `models`.

    >>> from meshwright import hardware
    >>> ring = hardware.Topology("tpu v5e", 8, wrap=True)
    >>> cost = hardware.collective_cost("all_gather", 1e5, ring, mode="asymptotic")
    >>> round(cost.bandwidth_seconds * 1e6, 2), round(cost.latency_seconds * 1e6, 2), cost.bound
    (1.11, 4.0, 'latency')
    >>> two_nodes = hardware.Topology("h100", 16)
    >>> [hardware.collective_cost("all_gather", 1e9, two_nodes, members=m).network for m in [(5, 6, 7), (6, 7, 8)]]
    ['link', 'net']
    """
    name = kind.lower().replace("-", "_") if isinstance(kind, str) else kind
    name = _ALIASES.get(name, name) if isinstance(name, str) else name
    _known("collective", name, KINDS)
    _known("mode", mode, MODES)
    _known("model", model, tuple(MODELS))
    known = (*OPTIONS.get(model, ()), *(("shift", "split") if name == "permute" and model == "links" else ()))
    unknown = next((option for option in options if option not in known), None)
    if unknown is not None:
        raise HardwareError(
            f"The model {model!r} has no option {unknown!r} for {name}.",
            where=here(),
            why=f"its options are {', '.join(known)}" if known else "it has none",
            fix=next(
                (f"model={other!r}" for other, taken in OPTIONS.items() if unknown in taken), f"leave {unknown} out"
            ),
        )
    if not isinstance(topology, Topology):
        raise HardwareError(
            f"{topology!r} is not a topology.",
            where=here(),
            why="what a collective costs depends on how the chips are joined",
            fix='hardware.Topology("tpu v5e", (4, 4))',
        )
    spans = topology.spans(axes)
    groups = []
    if members is not None or concurrent:
        groups = chip_numbers(topology, (_one_group(axes, members, model, options), *concurrent))
    if not isinstance(bytes, int | float | np.integer | np.floating) or not 0 <= bytes < 1e300:
        raise HardwareError(
            f"A collective cannot move {bytes!r} bytes.", where=here(), why="sizes are positive", fix="0"
        )
    if (len(groups[0]) if groups else group_size(spans)) == 1:
        return CollectiveCost(name, bytes, 1, 0.0, 0.0, model=model)
    exact = mode != "asymptotic"
    calibrated = mode == "calibrated" and model != "nccl"
    if calibrated:
        topology = topology.at_measured_rates
    if groups:
        cost = group_cost(name, bytes, topology, groups[0], groups[1:], exact)
    else:
        cost = replace(MODELS[model](name, bytes, topology, spans, exact, **options), model=model)
    return _launched(cost, topology.chip) if calibrated else cost


def _one_group(axes: Axes, members: Sequence[int] | None, model: str, options: Mapping[str, object]) -> Sequence[int]:
    """The members; raises unless a group was named by its chips alone."""
    if members is None or not len(members) or axes is not None:
        raise HardwareError(
            "A group is named by its members or by axes of the mesh.",
            where=here(),
            why="both were given"
            if members is not None and axes is not None
            else "concurrent groups are those beside members, at least one chip",
            fix="leave axes out" if axes is not None else "members=(0, 1)",
        )
    if model != "links" or options:
        other = f"The model {model!r}" if model != "links" else f"The option {next(iter(options))!r}"
        raise HardwareError(
            f"{other} is about axes of a mesh.",
            where=here(),
            why="what a group of chips costs is known of the links that join them",
            fix="axes=…, or model='links' without options",
        )
    return members


def _launched(cost: CollectiveCost, chip: Chip) -> CollectiveCost:
    """With its launch; a bandwidth of links that saturates as ``V / (V + half)`` adds the time of ``half`` bytes.

    Messages below the least that was measured are taken to reach the share of bandwidth that this one does. A network
    beyond the node, which works at the same time, hides what it takes longer.
    """
    half = chip.known("half_bandwidth_bytes", 0.0)
    measured = max(cost.bytes, chip.known("half_bandwidth_measured_bytes", 0.0))
    inside = cost.link_seconds
    if inside is None:
        inside = cost.bandwidth_seconds if cost.network == "link" else 0.0
    saturating = inside * half / measured if measured else 0.0
    hidden = max(cost.bandwidth_seconds, cost.latency_seconds) - max(inside, cost.latency_seconds)
    return replace(cost, launch_seconds=chip.known("launch_seconds", 0.0) + max(0.0, saturating - hidden))


def _known(what: str, name: str, names: tuple[str, ...]) -> None:
    if name not in names:
        raise HardwareError(
            f"There is no {what} {name!r}.", where=here(), why=f"there are {', '.join(names)}", fix=f"{names[0]!r}"
        )


def point_to_point(
    bytes: float, topology: Topology, source: tuple[int, ...], target: tuple[int, ...]
) -> CollectiveCost:
    """One message, over every shortest way at once.

    >>> from meshwright import hardware
    >>> cost = hardware.point_to_point(16777216, hardware.Topology("tpu v5e", (4, 4)), (0, 0), (3, 3))
    >>> cost.latency_seconds, cost.bandwidth_seconds
    (6e-06, 0.0001864135111111111)
    """
    hops, ports, chip = topology.hops(source, target), topology.ports(source, target), topology.chip
    if not hops:
        return CollectiveCost("send", bytes, 1, 0.0, 0.0)
    if topology.switched:
        ends = [int(np.ravel_multi_index(tuple(end), topology.shape)) for end in (source, target)]
        return replace(group_cost("permute", 2 * bytes, topology, ends), kind="send", bytes=bytes)
    return CollectiveCost("send", bytes, 2, bytes / (ports * chip.link_bytes_per_s), round(hops * chip.hop_seconds, 12))


def latency_bound_bytes(
    kind: str, topology: Topology, axes: Axes = None, mode: str = "exact", model: str = "links", **options: Any
) -> float:
    """The size below which a collective is bound by latency.

    >>> from meshwright import hardware
    >>> round(hardware.latency_bound_bytes("all_gather", hardware.Topology("tpu v5e", 8, wrap=True), mode="asymptotic"))
    360000
    """
    cost = collective_cost(kind, 2.0**30, topology, axes, mode, model, **options)
    return cost.latency_seconds * 2.0**30 / cost.bandwidth_seconds if cost.bandwidth_seconds else 0.0


def latency_bound_hop_bytes(chip: str | Chip) -> float:
    """The message below which one hop is bound by latency.

    >>> round(latency_bound_hop_bytes("tpu v5e"))
    45000
    """
    found = get(chip)
    if found.kind == "gpu":
        return found.nvlink_bytes_per_s * found.nvlink_hop_seconds
    return found.link_bytes_per_s * found.hop_seconds


def collective_bytes_per_s(
    kind: str, topology: Topology, axes: Axes = None, mode: str = "exact", model: str = "links", **options: Any
) -> float:
    """The rate large arrays reach: V over the bandwidth term; infinite among devices that have nothing to send.

    >>> from meshwright import hardware
    >>> round(hardware.collective_bytes_per_s("all_gather", hardware.Topology("h100", 256)) / 1e9)
    413
    """
    cost = collective_cost(kind, 2.0**30, topology, axes, mode, model, **options)
    return 2.0**30 / cost.bandwidth_seconds if cost.bandwidth_seconds else inf


def bus_bytes_per_s(kind: str, bytes: float, group: int, seconds: float) -> float:
    """The "bus bandwidth" that nccl-tests prints: the time freed of what depends on the group's size.

    >>> from meshwright import hardware
    >>> t = hardware.collective_seconds("all_reduce", 1e9, hardware.Topology("h100", 8))
    >>> round(bus_bytes_per_s("all_reduce", 1e9, 8, t) / 1e9)
    450
    """
    name = kind.lower().replace("-", "_")
    factor = {"all_reduce": 2 * (group - 1) / group, "broadcast": 1.0, "reduce": 1.0}.get(name, (group - 1) / group)
    return factor * bytes / seconds


def crossover(
    first: Callable[[float], float], second: Callable[[float], float], low: float, high: float
) -> float | None:
    """Where two costs are equal between ``low`` and ``high``, or None if one is below the other at both ends.

    >>> crossover(lambda v: 5 + v, lambda v: 2 * v, 1, 100)
    5.0
    """

    def gap(value: float) -> float:
        return first(value) - second(value)

    at_low, at_high = gap(low), gap(high)
    if at_low == 0 or at_high == 0:
        return low if at_low == 0 else high
    if (at_low > 0) == (at_high > 0):
        return None
    while True:
        middle = (low + high) / 2
        # Costs are straight lines in pieces: a secant step lands on the crossing of the piece both ends are on.
        secant = low - at_low * (high - low) / (at_high - at_low)
        for value in (secant, middle):
            if not low < value < high:
                continue
            at = gap(value)
            if at == 0:
                return value
            if (at > 0) == (at_low > 0):
                low, at_low = value, at
            else:
                high, at_high = value, at
        if high - low <= 1e-13 * max(abs(low), abs(high)) or not low < (low + high) / 2 < high:
            return (low + high) / 2


def shift_of(permutation: tuple[tuple[int, int], ...], sizes: tuple[int, ...]) -> int | None:
    """How far along the last axis every device sends, or None where they differ or leave that axis.

    >>> shift_of(((0, 1), (1, 2), (2, 3)), (4,)), shift_of(((0, 3), (1, 0), (2, 1), (3, 2)), (4,))
    (1, -1)
    >>> shift_of(((0, 2), (1, 0)), (4,)) is None
    True
    """
    last = sizes[-1]
    steps = {(target - source) % last for source, target in permutation if source // last == target // last}
    if len(steps) != 1 or any(source // last != target // last for source, target in permutation):
        return None
    (step,) = steps
    return step if step <= last // 2 else step - last
