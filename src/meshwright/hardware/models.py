"""The ways to reckon a collective, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.core.source import here
from meshwright.errors import HardwareError
from meshwright.hardware.links import CollectiveCost, links, switched
from meshwright.hardware.nccl import nccl
from meshwright.hardware.placement import Span, group_size
from meshwright.hardware.topology import Axes, Topology


def _seed(
    kind: str, bytes: float, topology: Topology, spans: tuple[Span, ...], exact: bool, **_: Any
) -> CollectiveCost:
    """Seed 001: max(V / 2nW, N·T/2) over n axes, twice for an all-reduce, a quarter for an all-to-all."""
    _only("seed 001", kind, ("all_gather", "reduce_scatter", "all_reduce", "all_to_all"))
    size, chip = group_size(spans), topology.chip
    times, share = (2 if kind == "all_reduce" else 1), (1 / 4 if kind == "all_to_all" else 1)
    link = chip.nvlink_bytes_per_s / 2 if topology.switched else chip.link_bytes_per_s
    hop = chip.nvlink_hop_seconds if topology.switched else chip.hop_seconds
    load = times * share * bytes / (2 * len(spans))
    return CollectiveCost(kind, bytes, size, load / link, times * size * hop / 2, bytes_per_link=load)


def _one_way(
    kind: str, bytes: float, topology: Topology, spans: tuple[Span, ...], exact: bool, **_: Any
) -> CollectiveCost:
    """One ring through the group, used in one direction: N-1 steps of V/N; an all-to-all half of that."""
    _only("one-way ring", kind, ("all_gather", "reduce_scatter", "all_reduce", "all_to_all"))
    size, times = group_size(spans), (2 if kind == "all_reduce" else 1)
    share = 1 / 2 if kind == "all_to_all" else 1.0
    load = times * share * bytes * ((size - 1) / size if exact else 1)
    link = topology.chip.nvlink_bytes_per_s if topology.switched else topology.chip.link_bytes_per_s
    hop = topology.chip.nvlink_hop_seconds if topology.switched else topology.chip.hop_seconds
    return CollectiveCost(kind, bytes, size, load / link, times * (size - 1) * hop, bytes_per_link=load)


def _chain(
    kind: str,
    bytes: float,
    topology: Topology,
    spans: tuple[Span, ...],
    exact: bool,
    chunks: int | None = None,
    **_: Any,
) -> CollectiveCost:
    """All-reduce on a line: sums go up the chain while finished chunks come down it.

    K chunks take K + 2N - 3 steps of V/(Kw). With chunks as small as latency allows this tends to V/w, half of a
    reduce-scatter and an all-gather: every link is busy both ways. Where that does not help, the default model is
    used.
    """
    _only("chain", kind, ("all_reduce",))
    plain = links(kind, bytes, topology, spans, exact)
    if topology.switched or len(spans) != 1 or topology.wraps(spans[0]):
        return plain
    (span,) = spans
    steps = 2 * span.size - 3
    load = bytes * span.stride * (1 + (steps / chunks if chunks else 0.0))
    cost = CollectiveCost(
        kind,
        bytes,
        span.size,
        load / topology.chip.link_bytes_per_s,
        (steps + (chunks or 0)) * span.stride * topology.chip.hop_seconds,
        bytes_per_link=bytes * span.stride,
    )
    return min(cost, plain, key=lambda c: c.seconds) if chunks is None else cost


def _idle_axes(
    kind: str, bytes: float, topology: Topology, spans: tuple[Span, ...], exact: bool, idle: Axes = (), **_: Any
) -> CollectiveCost:
    """Use axes over which the array is the same: slice over them for nothing, and gather over them too.

    All-gather over x with z idle: slice over z, all-gather over xz. Reduce-scatter: slice over z, reduce-scatter
    V/Z over x, all-gather V/X over z. All-reduce: slice over z, reduce-scatter V/Z over x, all-gather V over xz.
    Never worse than leaving them idle.
    """
    _only("idle axes", kind, ("all_gather", "reduce_scatter", "all_reduce"))
    plain = links(kind, bytes, topology, spans, exact)
    free = topology.spans(idle)
    if not free:
        return plain
    if topology.switched or {span.axis for span in free} & {span.axis for span in spans}:
        raise HardwareError(
            "Idle axes must have links of their own.",
            where=here(),
            why=f"{topology.text} joins them with the links of the collective",
            fix="model='links'",
        )
    both = tuple(sorted((*spans, *free)))
    used, spare = group_size(spans), group_size(free)
    if kind == "all_gather":
        steps = [links("all_gather", bytes, topology, both, exact)]
    elif kind == "reduce_scatter":
        steps = [
            links("reduce_scatter", bytes / spare, topology, spans, exact),
            links("all_gather", bytes / used, topology, free, exact),
        ]
    else:
        steps = [
            links("reduce_scatter", bytes / spare, topology, spans, exact),
            links("all_gather", bytes, topology, both, exact),
        ]
    cost = CollectiveCost(
        kind,
        bytes,
        used,
        sum(step.bandwidth_seconds for step in steps),
        sum(step.latency_seconds for step in steps),
        bytes_per_link=sum(step.bytes_per_link for step in steps),
    )
    return min(plain, cost, key=lambda c: c.seconds)


def _sharp(
    kind: str, bytes: float, topology: Topology, spans: tuple[Span, ...], exact: bool, **_: Any
) -> CollectiveCost:
    """Switches that add (NVLS, SHARP): an all-reduce sends V up and takes V down, at once."""
    if not topology.switched:
        raise HardwareError(
            "Only switches can add on the way.",
            where=here(),
            why=f"{topology.text} has no switches",
            fix="model='links'",
        )
    return switched(kind, bytes, topology, spans, exact, reduced_in_network=True)


def _only(model: str, kind: str, kinds: tuple[str, ...]) -> None:
    if kind not in kinds:
        raise HardwareError(
            f"The model {model!r} says nothing about {kind}.",
            where=here(),
            why=f"it is about {', '.join(kinds)}",
            fix="model='links'",
        )


MODELS: dict[str, Callable[..., CollectiveCost]] = {
    "links": links,
    "seed 001": _seed,
    "one-way ring": _one_way,
    "chain": _chain,
    "idle axes": _idle_axes,
    "sharp": _sharp,
    "nccl": nccl,
}


# What each model can be told besides the collective; a permute on links also how far.
OPTIONS: dict[str, tuple[str, ...]] = {
    "chain": ("chunks",),
    "idle axes": ("idle",),
    "nccl": ("algorithm", "protocol", "bus_bytes_per_s"),
}


def models() -> dict[str, str]:
    """The named models and what they say.

    >>> sorted(models())
    ['chain', 'idle axes', 'links', 'nccl', 'one-way ring', 'seed 001', 'sharp']
    """
    return {name: (model.__doc__ or "").splitlines()[0] for name, model in MODELS.items()}
