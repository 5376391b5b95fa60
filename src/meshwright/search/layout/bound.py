"""The seconds that no layout of a step is below.

A device does its kernels one after the other. However a step is laid out, its products are done, with no more FLOPs a
second than the chip does, and what they read of memory is read, at no more than its bandwidth; in the best case each
device has an equal part of both. What is elementwise may run in the kernels of products, and what is sent beside them:
neither is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, prod

from meshwright.core.facts import Across, Fusion, Memory
from meshwright.core.op import No, fusion_of, memory_of
from meshwright.hardware.chips import Chip
from meshwright.search.layout.graph import LaidValue, LayoutGraph, LayoutStep
from meshwright.search.layout.ways import GroupSplit, GroupWays


def products_bound(groups: Sequence[GroupWays], chip: Chip, devices: int) -> float:
    """What the products of a step take on a device of a mesh, each split as well as its factor rule allows."""
    return sum(g.group.count * g.group.first.times * _least(g, chip, devices) for g in groups)


def _least(g: GroupWays, chip: Chip, devices: int) -> float:
    first, products = g.group.first, g.group.first.products
    if products is None:
        return 0.0
    work = products.flops / chip.flops_per_s(products.dtype)
    read = list(_stored(first)) if products.ops == 1 else []
    if products.ops > 1 or not _split_by_its_rule(first):
        return work / devices
    bandwidth = chip.known("hbm_bytes_per_s", inf)
    return min(max(work / way.degree, _bytes(read, way) / bandwidth) for way in g.ways)


def _bytes(read: Sequence[tuple[int, int]], way: GroupSplit) -> float:
    """What a device reads of operands, by their numbers and bytes."""
    return sum(nbytes / prod(way.operands[n].shards) for n, nbytes in read)


def _split_by_its_rule(step: LayoutStep) -> bool:
    """Whether devices can split an op in no other way than by its factors."""
    assert step.eqn is not None
    return not isinstance(step.eqn.op.factors, No) and step.eqn.op.split.across is Across.NOT


def _stored(step: LayoutStep) -> Iterator[tuple[int, int]]:
    """The operands of a product that lie in memory whatever runs together, by their numbers, and the bytes that are
    read of each: where it is converted on the way, of the smallest."""
    for n, value in enumerate(step.inputs):
        least = value.type.nbytes
        while (maker := value.step) is not None and not _lies_in_memory(maker):
            eqn = maker.eqn
            if maker.kind != "row" and (eqn is None or len(maker.inputs) != 1 or fusion_of(eqn).alone):
                break
            value = maker.inputs[0]
            least = min(least, value.type.nbytes)
        if maker is not None and _lies_in_memory(maker):
            yield n, least


def _lies_in_memory(step: LayoutStep) -> bool:
    """Whether a step makes an argument, or what is written into one."""
    if step.kind == "input":
        return True
    return step.eqn is not None and memory_of(step.eqn) is Memory.IN_PLACE and fusion_of(step.eqn) is Fusion.ALONE


def results_bound(graph: LayoutGraph, chip: Chip, devices: int) -> float:
    """What it takes to write the results that are computed, each device an equal part."""
    made = {v for v in graph.outputs if v.step is not None and _is_computed(v)}
    return sum(v.weight * v.type.nbytes for v in made) / devices / chip.known("hbm_bytes_per_s", inf)


def _is_computed(value: LaidValue) -> bool:
    """Whether a value is made of products, sums or elementwise, and not perhaps a view of another."""
    eqn = value.step.eqn if value.step is not None else None
    known = (Fusion.ELEMENTWISE, Fusion.REDUCTION, Fusion.CONTRACTION)
    return eqn is not None and fusion_of(eqn) in known and memory_of(eqn) is not Memory.IN_PLACE
