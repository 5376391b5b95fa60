"""What a step costs on a mesh: seconds and bytes of each way of each role, and of what passes between two of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, prod

import numpy as np

from meshwright.core.types import TensorType
from meshwright.partition.cost import MachineCost
from meshwright.search.layout.graph import LaidValue, LayoutGroup, LayoutStep
from meshwright.search.layout.moves import move_seconds
from meshwright.search.layout.ways import GroupWays, Keep, Need, asked_of, blocks, summands, types_of
from meshwright.sharding.mesh import BaseMesh
from meshwright.sharding.named import TensorSharding

CHANGED = 1e-6  # seconds of a change of layout that moves nothing between devices


@dataclass
class Edge:
    """What goes from one role to another: its seconds for each way of the maker and of the reader, and whether work can
    hide it: it brings a parameter, or a gradient for its update."""

    maker: int
    reader: int
    seconds: np.ndarray
    hidden: bool


@dataclass
class LayoutModel:
    """All groups on a mesh: for each role its ways' seconds, and tables of what passes between."""

    mesh: BaseMesh
    groups: list[GroupWays]
    compute: list[np.ndarray]  # seconds of each role's ways
    seconds: list[np.ndarray]  # with what moves inside of a group
    edges: list[Edge]
    nbytes: list[np.ndarray]  # of each role's ways, at the peak of one device


def source_of(value: LaidValue, needs: list[TensorSharding]) -> tuple[LaidValue, list[TensorSharding]] | None:
    """The value of a group that a reader's layouts ask for, back through what its readers lay out; None if free."""
    while not value.free and value.step is not None:
        step = value.step
        if step.group is not None:
            return value, needs
        if step.eqn is None or len(step.inputs) > 1:
            return None
        needs = [asked_of(step.eqn.op, *types_of(step), 0, s) for s in needs]
        value = step.inputs[0]
    return None


def build(
    alive: Sequence[LaidValue],
    roles: Sequence[LayoutGroup],
    mesh: BaseMesh,
    cost: MachineCost,
    returned: Sequence[tuple[LaidValue, LaidValue]] = (),
    keep: Keep | None = None,
) -> LayoutModel:
    """The costs of a program on a mesh, with one group for each role, of whose ways those to ``keep`` are looked at;
    ``alive`` is what memory holds at its peak, and ``returned`` are results that are arguments anew, each with its
    argument, whose layout it is to have."""
    groups = [GroupWays(group, mesh, cost.chip.known("hbm_bytes_per_s", inf), keep) for group in roles]
    compute = [g.seconds * g.group.count for g in groups]
    seconds = list(compute)
    tables: dict[tuple[int, int, bool], np.ndarray] = {}
    for number, g in enumerate(groups):
        for value, needs, step in _asked(g, returned):
            found = source_of(value, needs)
            if found is None:
                continue
            source, needs = found
            assert source.step is not None and source.step.group is not None
            role = source.step.group.role
            maker = groups[role]
            times = g.group.count * max(step.times, source.step.times)
            have = maker.layouts[_alike(source, source.step.group, maker.group)]
            if role == number:
                t, pairs = source.type, zip(have, needs, strict=True)
                moved = [move_seconds(max(_padded(t, h), _padded(t, n)), h, n, cost) for h, n in pairs]
                seconds[number] = seconds[number] + times * np.array(moved)
                continue
            table = times * _table(source.type, have, needs, cost)
            if table.any():
                hidden = step.kind != "output" and "input" in (maker.group.first.kind, g.group.first.kind)
                known = tables.get((role, number, hidden))
                tables[role, number, hidden] = table if known is None else known + table
    edges = [Edge(maker, reader, table, hidden) for (maker, reader, hidden), table in tables.items()]
    return LayoutModel(mesh, groups, compute, seconds, edges, _bytes(alive, groups))


def _asked(g: GroupWays, returned: Sequence[tuple[LaidValue, LaidValue]]) -> list[Need]:
    """What a group asks of values; a carry asks it of what it becomes, and an argument of the result that it is anew,
    too."""
    again = g.group.first.again
    results = [(value, g.layouts[argument], _RETURN) for value, argument in returned if argument in g.layouts]
    return [
        *g.needs,
        *([(again, [w.results[0] for w in g.ways], g.group.first)] if again is not None else []),
        *results,
    ]


_RETURN = LayoutStep("output", [], [])


def _bytes(alive: Sequence[LaidValue], groups: Sequence[GroupWays]) -> list[np.ndarray]:
    found = [np.zeros(len(g.ways)) for g in groups]
    for value in alive:
        group = value.step.group if value.step is not None else None
        if group is not None:
            g = groups[group.role]
            layouts = g.layouts[_alike(value, group, g.group)]
            found[group.role] += value.weight * value.type.nbytes / np.array([summands(s, value.type) for s in layouts])
    return found


def _alike(value: LaidValue, group: LayoutGroup, other: LayoutGroup) -> LaidValue:
    """The value of another group of the same role that a value of this one corresponds to."""
    if group is other:
        return value
    assert value.step is not None
    return other.steps[group.steps.index(value.step)].outputs[value.place]


def _table(
    t: TensorType, have: Sequence[TensorSharding], needs: Sequence[TensorSharding], cost: MachineCost
) -> np.ndarray:
    """The seconds of a value from each layout into each."""
    rows, columns = dict.fromkeys(have), dict.fromkeys(needs)
    small = _seconds_between(t, tuple(rows), tuple(columns), cost)
    at = {s: n for n, s in enumerate(rows)}, {s: n for n, s in enumerate(columns)}
    return small[np.ix_([at[0][h] for h in have], [at[1][n] for n in needs])]


@lru_cache(maxsize=1 << 14)
def _seconds_between(
    t: TensorType, have: tuple[TensorSharding, ...], needs: tuple[TensorSharding, ...], cost: MachineCost
) -> np.ndarray:
    wide = {s: _padded(t, s) for s in (*have, *needs)}
    moved = [[move_seconds(max(wide[h], wide[n]), h, n, cost) + (h != n) * CHANGED for n in needs] for h in have]
    return np.array(moved)


def _padded(t: TensorType, s: TensorSharding) -> float:
    """The bytes of a value with the padding that it has in a layout."""
    return t.nbytes * (prod(s.shards) / blocks(s, t))
