"""``-mw-propagate``: propagation whose result does not depend on the order in which a module was written.

The nodes are visited in an order of their own (``propagate.canonical``), from both ends, once so that each tensor takes
what it can and once so that only what all agree on is taken. Where these differ, two shardings were in conflict; the
one is kept whose collectives take the fewest seconds, by the cost that also partitions programs of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

from meshwright.errors import MeshwrightError
from meshwright.hardware.chips import get
from meshwright.interop.shardy.communication import reshards_to_collectives
from meshwright.interop.shardy.explicit_reshards import insert_reshards
from meshwright.interop.shardy.module_walk import walk
from meshwright.interop.shardy.value_shardings import ValueShardings
from meshwright.interop.stablehlo.context import Types, context
from meshwright.partition.cost import DEFAULT_CHIP, START_SECONDS, MachineCost
from meshwright.propagate.canonical import canonical_order
from meshwright.propagate.graph import Graph, GraphBlock, GraphOp
from meshwright.propagate.problem import Problem
from meshwright.propagate.run import Answer, Options, run
from meshwright.sharding.axes import total_size

PASS = "mw-propagate"
_PROPAGATE = "sdy-user-priority-propagate"
_EACH = {"each tensor takes what it can": "aggressive", "all agree": "basic"}


class Moved(NamedTuple):
    """What the collectives of a module move: bytes that one device receives, and how many collectives there are."""

    received_bytes: float
    collectives: int

    @property
    def seconds(self) -> float:
        """The time, on the chips that stand in where no machine is named."""
        rate = MachineCost(get(DEFAULT_CHIP)).bytes_per_s
        return self.received_bytes / rate + START_SECONDS * self.collectives


def propagate_in_any_order(problem: Problem, write: Callable[[Answer], Any]) -> Answer:
    """The answer of the cheapest of four propagations; ``write`` makes a module of an answer."""
    found: list[tuple[float, str, Answer]] = []
    for last_first in (False, True):
        given = canonical_order(problem, last_first)
        for words, strategy in _EACH.items():
            answer = run(given, [_PROPAGATE], options=[Options(strategy=strategy)])
            _as_written(answer.graph, problem)
            name = f"{words}, {'last' if last_first else 'first'} nodes first"
            found.append((moved_by(write(answer)).seconds, name, answer))
    seconds, name, best = min(found, key=lambda one: one[0])
    if any(other > seconds for other, _, _ in found):
        times = "; ".join(f"{words}: {other * 1e6:.3g} µs" for other, words, _ in found)
        best.told.append(f"conflicts were decided by cost, for {name!r}: {times}")
    return best


def _as_written(graph: Graph, problem: Problem) -> None:
    """Put the ops of a graph into the order of the problem; those that were added stay behind what they use."""
    places: dict[int, int] = {}

    def enter(nodes: Sequence[Any]) -> None:
        for node in nodes:
            places[id(node.ref) if node.ref is not None else id(node)] = len(places)
            for block in node.regions:
                enter(block.nodes)

    for function in problem.functions:
        enter(function.block.nodes)

    def place(op: GraphOp) -> float:
        if op.node is not None and op.node.ref is not None:
            return places[id(op.node.ref)]
        maker = op.operands[0].value.op if op.operands else None
        return -0.5 if maker is None else place(maker) + 0.5

    def visit(block: GraphBlock) -> None:
        *ops, end = block.ops
        block.ops = [*sorted(ops, key=place), end]
        for op in block.ops:
            for inner in op.blocks:
                visit(inner)

    for changed in graph.functions:
        visit(changed.block)


def moved_by(module: Any) -> Moved:
    """What a module moves if every op is run on parts that fit: its reshards as collectives. The module is changed.

    Ops inside of loops and branches count once.
    """
    try:
        insert_reshards(module, full=True)
        reshards_to_collectives(module)
    except MeshwrightError:
        return Moved(float("inf"), 0)
    known, types = ValueShardings(module), Types()
    received, count = 0.0, 0
    with context():
        for op in walk(module.operation):
            kind = op.name.removeprefix("sdy.")
            if op.name.startswith("sdy.") and kind in _RECEIVED:
                before, (after,) = known(op.operands[0]), known.of_results(op)
                t = types(op.results[0].type)
                assert after is not None and t is not None
                sizes = [
                    t.nbytes / prod(total_size(dim.axes) for dim in s.dims) if s is not None else float(t.nbytes)
                    for s in (before, after)
                ]
                received += _RECEIVED[kind](sizes[0], sizes[1])
                count += 1
    return Moved(received, count)


# Bytes that a device receives, of its part before and after; what it keeps of its own part is not taken off.
_RECEIVED: dict[str, Callable[[float, float], float]] = {
    "all_gather": lambda before, after: after - before,
    "all_to_all": lambda before, after: before,
    "collective_permute": lambda before, after: before,
    "all_reduce": lambda before, after: 2 * before,
    "reduce_scatter": lambda before, after: before - after,
}
