"""The seconds that no layout of a step is below.

A device does its kernels one after the other, and a network brings it one byte after the other. However a step is laid
out, each of its matmuls is split in one of the ways that its factor rule allows. That says how many of its FLOPs a
device does and what it reads of memory, at no more than the chip's rates; and, with the ways of the matmuls and the
layouts of the arguments around it, what must come to a device, to a node, or along a dimension of a torus
(`transfers`), at no more than the links' rates. What is elementwise may run in the kernels of matmuls, and transfers
beside them, so the step takes at least the larger of the two, and with that at least any mean of them:

    seconds >= max(compute, network) >= share * compute + (1 - share) * network

For each share, what the right side is at least over all choices of ways is what `solve` finds: the least cost, or the
dual bound of the linear relaxation. The bound of a mesh is the largest of these, and that of the step the least over
its meshes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from math import inf, prod
from typing import NamedTuple

import numpy as np

from meshwright.core.facts import Fusion, Memory
from meshwright.core.op import fusion_of, is_elementwise, memory_of
from meshwright.hardware.chips import Chip
from meshwright.hardware.occupancy import members_in_block
from meshwright.hardware.topology import Topology
from meshwright.search.layout.copies import tied
from meshwright.search.layout.graph import LaidValue, LayoutGraph, LayoutStep
from meshwright.search.layout.solve import Pairs, best_choice
from meshwright.search.layout.transfers import (
    ValueTransfer,
    followed_to,
    is_split_by_factors,
    read_elementwise,
    read_transfers,
)
from meshwright.search.layout.ways import GroupSplit, splits_of
from meshwright.sharding.mesh import BaseMesh
from meshwright.sharding.named import TensorSharding

SHARES = 4  # means of compute and a network that are tried,
CLOSE = 0.02  # unless they cannot raise the bound by more than this
ROUNDS = (8, 16)  # in which costs of pairs are shared out: more would raise it by little

Allowed = Callable[[LayoutStep, TensorSharding], bool]  # whether an argument may be in a layout


class Network(NamedTuple):
    """A way into blocks of chips: how many blocks there are along each axis of a mesh, and the bytes per second that
    come into one of them."""

    blocks: tuple[int, ...]
    bytes_per_s: float


def networks(machine: Topology) -> list[Network]:
    """The networks of a machine that a mesh lies on: into a chip, into each level of a switched network that blocks of
    the mesh fill, and along each dimension of a torus."""
    sizes, chip = tuple(machine.mesh.values()), machine.chip
    if machine.slices > 1 or machine.size == 1:  # the data-center network joins chips at any place of their slices
        return []
    spans = [machine.mapping[name] for name in machine.mesh]
    if not machine.switched:
        along = [n for n, length in enumerate(machine.shape) if length > 1]
        planes = [tuple(prod(s.size for s in of if s.axis == n) for of in spans) for n in along]
        rate = chip.axis_bytes_per_s()
        found = [
            Network(blocks, rate * machine.size / machine.shape[n]) for n, blocks in zip(along, planes, strict=True)
        ]
        return [Network(sizes, rate * len(along)), *found]
    found = []
    for level in machine.levels:
        blocks = tuple(size // members_in_block(of, level.size) for size, of in zip(sizes, spans, strict=True))
        if prod(blocks) * level.size == machine.size:
            found.append(Network(blocks, level.bytes_per_s))
    beyond = sum(level.bytes_per_s / level.size for level in machine.levels[1:2])  # into a chip from other nodes
    return [found[0]._replace(bytes_per_s=found[0].bytes_per_s + beyond), *found[1:]]


class StepBound:
    """What bounds a step on chips of a kind: its matmuls, and what devices must receive."""

    def __init__(self, graph: LayoutGraph, returned: Sequence[tuple[LaidValue, LaidValue]], chip: Chip) -> None:
        self.graph, self.chip = graph, chip
        transfers = read_transfers(graph, returned)
        ends = {step for one in transfers for step in (one.maker, one.reader)}
        steps = [s for s in graph.steps if s in ends or _is_counted_by_way(s)]
        self.roles, self.transfers = tied(steps, transfers)

    def on(self, machine: Topology, mesh: BaseMesh, allowed: Allowed | None = None) -> MeshBound:
        """The bound on a mesh that lies on a machine, with arguments in layouts that are allowed."""
        return MeshBound(self, machine, mesh, allowed)

    def results_seconds(self, devices: int) -> float:
        """What it takes to write the results that are computed, each device an equal part."""
        made = {v for v in self.graph.outputs if v.step is not None and _is_computed(v)}
        nbytes = sum(v.weight * v.type.nbytes for v in made)
        return nbytes / devices / self.chip.known("hbm_bytes_per_s", inf)

    def updates_seconds(self, devices: int) -> float:
        """What kernels of elementwise ops take that make results of matmuls and arguments, each device an equal part:
        matmuls have kernels of their own, so these read what they need of memory, and write what is returned."""
        made = {v for v in self.graph.outputs if v.stored and v.step is not None and v.step.eqn is not None}
        written, read = 0.0, dict[LaidValue, float]()
        for value in made:
            if is_elementwise(value.step.eqn):  # type: ignore[union-attr, arg-type]
                written += value.weight * value.type.nbytes
                for source, nbytes in read_elementwise(value):  # once, as one kernel may make several of the results
                    read[source] = min(read.get(source, inf), value.weight * nbytes)
        return (written + sum(read.values())) / devices / self.chip.known("hbm_bytes_per_s", inf)

    def other_seconds(self, devices: int) -> float:
        """What matmuls take that are not split by their factors alone, or several in a kernel, each split evenly."""
        others = [s for s in self.graph.steps if s.products is not None and not _is_counted_by_way(s)]
        return sum(s.weight * s.times * _multiplied(s, self.chip) / devices for s in others)


class MeshBound:
    """The bound of a step on a mesh: ``seconds``, which are those of compute alone until `raised`."""

    def __init__(self, step: StepBound, machine: Topology, mesh: BaseMesh, allowed: Allowed | None) -> None:
        self.step, self.machine, self.mesh = step, machine, mesh
        self.ways = [_allowed_ways(of[0], mesh, allowed) for of in step.roles]
        self.fixed = step.other_seconds(mesh.size) + step.updates_seconds(mesh.size)
        self.compute = [_compute_seconds(of, ways, step.chip) for of, ways in zip(step.roles, self.ways, strict=True)]
        least = self.fixed + sum(float(one.min()) for one in self.compute)
        self.seconds = max(least, step.results_seconds(mesh.size))

    def raised(self, enough: float = inf) -> float:
        """The bound with what must be received, as far as ``enough``."""
        for network in networks(self.machine):
            if self.seconds < enough:
                self._raise_by(self._received(network), enough)
        return self.seconds

    def _raise_by(self, pairs: Pairs, enough: float) -> None:
        """Raise the bound by means of compute and one network, until it is near what a choice of ways costs."""
        share, low, high = 0.5, 0.0, 1.0
        for _ in range(SHARES):
            alone = [share * one for one in self.compute]
            chosen = best_choice(alone, {key: (1 - share) * table for key, table in pairs.items()}, rounds=ROUNDS)
            self.seconds = max(self.seconds, chosen.bound + share * self.fixed)
            compute = self.fixed + sum(float(one[w]) for one, w in zip(self.compute, chosen.ways, strict=True))
            received = sum(float(table[chosen.ways[a], chosen.ways[b]]) for (a, b), table in pairs.items())
            if max(compute, received) <= self.seconds * (1 + CLOSE) or self.seconds >= enough:
                break
            low, high = (share, high) if compute > received else (low, share)
            share = (low + high) / 2

    def _received(self, network: Network) -> Pairs:
        """The seconds of each transfer on a network, for each way of its maker and of its reader."""
        found: Pairs = {}
        for one, maker, reader, times in self.step.transfers:
            lacking = None if maker == reader else self._lacking(one, maker, reader, network)
            if lacking is None:
                continue
            table = times * one.nbytes / network.bytes_per_s * lacking
            key, table = ((maker, reader), table) if maker < reader else ((reader, maker), table.T)
            found[key] = found[key] + table if key in found else table
        return found

    def _lacking(self, one: ValueTransfer, maker: int, reader: int, network: Network) -> np.ndarray | None:
        """The share of a value's bytes that must come into a block, on average, for each way of both."""
        made = [way.results[0] for way in self.ways[maker]]
        paths = [followed_to(one, s) for s in made]
        every = (1 << len(network.blocks)) - 1
        if one.number is None:
            needs = [way.results[0] for way in self.ways[reader]]
            used = np.full(len(needs), every)
        else:
            needs = [way.operands[one.number] for way in self.ways[reader]]
            used = np.array([self._bits(_axes_of(way)) for way in self.ways[reader]])
        if not one.linear:
            used[:] = every
        known = [p for p in paths if p is not None]
        if len(known) < len(paths) or not paths:
            return None
        have = np.array([[*(self._bits(axes) for axes in lead), *self._of_dims(s)] for lead, s in known])
        need = np.array([[*[0] * len(known[0][0]), *self._of_dims(s)] for s in needs])
        unreduced = np.array([self._bits(a.name for a in s.unreduced) for s in made])
        filled = np.array([way.degree / self._parts(way) for way in self.ways[maker]])
        rows = [step.inputs[0].type.shape[0] for step, _ in one.links if step.kind == "row"]
        lengths = Lengths((*rows, *one.read.shape), tuple(self.mesh.shape.values()), filled)
        return received_shares(network.blocks, have, unreduced, need, used, lengths)

    def _parts(self, way: GroupSplit) -> int:
        """In how many parts a way has its factors."""
        summed = {axis.name for s in way.results for axis in s.unreduced}
        return prod(self.mesh.shape[name] for name in _axes_of(way) | summed)

    def _bits(self, names: Iterable[str]) -> int:
        """Axes as the bits of a number."""
        order = list(self.mesh.shape)
        return sum(1 << order.index(name) for name in names)

    def _of_dims(self, s: TensorSharding) -> list[int]:
        """The axes of each dim. Ways have whole axes, in the order of the mesh; where it is otherwise behind a reshape,
        a dim is taken to be whole, so that a device has more than it does."""
        found = []
        for dim in s.dims:
            order = [list(self.mesh.shape).index(axis.name) for axis in dim.axes]
            plain = all(axis.is_full for axis in dim.axes) and order == sorted(order)
            found.append(sum(1 << n for n in order) if plain else 0)
        return found


def least_of(meshes: Sequence[MeshBound]) -> float:
    """The least bound of some meshes: those that are not least by compute alone are not raised further."""
    left = sorted(meshes, key=lambda one: one.seconds)
    found = inf
    for one in left:
        if one.seconds >= found:
            break
        found = min(found, one.raised(found))
    return found


def _compute_seconds(copies: Sequence[LayoutStep], ways: Sequence[GroupSplit], chip: Chip) -> np.ndarray:
    """What copies of a matmul take a device in each way: its FLOPs, or what it reads of memory, if that is more."""
    step = copies[0]
    if not _is_counted_by_way(step):
        return np.zeros(len(ways))
    work, read = _multiplied(step, chip), list(_stored(step))
    bandwidth = chip.known("hbm_bytes_per_s", inf)
    seconds = [max(work / way.degree, _read_bytes(read, way) / bandwidth) for way in ways]
    return sum(one.weight * one.times for one in copies) * np.array(seconds)


def _is_counted_by_way(step: LayoutStep) -> bool:
    """Whether a step is a matmul alone in its kernel, split by its factors alone."""
    return step.products is not None and step.products.ops == 1 and is_split_by_factors(step)


def _multiplied(step: LayoutStep, chip: Chip) -> float:
    assert step.products is not None
    return step.products.flops / chip.flops_per_s(step.products.dtype)


def _read_bytes(read: Sequence[tuple[int, int]], way: GroupSplit) -> float:
    """What a device reads of operands, by their numbers and bytes."""
    return sum(nbytes / prod(way.operands[n].shards) for n, nbytes in read)  # padding need not be read


def _axes_of(way: GroupSplit) -> set[str]:
    """The axes that a way splits factors over."""
    return {axis.name for s in (*way.operands, *way.results) for dim in s.dims for axis in dim.axes}


def _allowed_ways(step: LayoutStep, mesh: BaseMesh, allowed: Allowed | None) -> list[GroupSplit]:
    ways = splits_of(step, mesh)
    if step.kind != "input" or allowed is None:
        return ways
    return [way for way in ways if allowed(step, way.results[0])] or ways


class Lengths(NamedTuple):
    """The lengths of the dims of a value, the sizes of a mesh's axes, and for each layout that there is how much of it,
    and of the summands of a sum, is no padding, at least."""

    dims: tuple[int, ...]
    sizes: tuple[int, ...]
    filled: np.ndarray


def received_shares(
    blocks: tuple[int, ...],
    have: np.ndarray,
    unreduced: np.ndarray,
    need: np.ndarray,
    used: np.ndarray,
    lengths: Lengths | None = None,
) -> np.ndarray:
    """The share of a value's bytes that must come into a block of devices, on average over blocks.

    ``have`` and ``need`` say for each layout, and each dim, which axes it is split over, as bits of a number, in the
    order of the mesh; ``blocks`` how many blocks there are along each axis; ``unreduced`` over which axes what there is
    is a partial sum, and ``used`` which axes its reader needs sums over. Without ``lengths`` all parts are equal.

    A block must receive what it needs and does not have. For an element of a sum of ``a`` summands that ``c`` blocks
    need, there are at least ``a - 1`` messages until one block has the sum, and ``c - 1`` to the others.

    >>> halves, whole = np.array([[1]]), np.array([[0]])
    >>> none, every = np.array([0]), np.array([1])
    >>> float(received_shares((2,), halves, none, whole, every)[0, 0])  # the other half
    0.5
    >>> float(received_shares((4,), whole, every, whole, every)[0, 0])  # an all-reduce among four
    1.5
    """
    sizes, together = _tables(blocks)
    needed, both = np.ones(len(need)), np.ones((len(have), len(need)))
    for d in range(need.shape[1]):
        needed = needed / sizes[need[:, d]]
        of = together if lengths is None else _padded_table(blocks, lengths.sizes, lengths.dims[d])
        both = both * of[have[:, d][:, None], need[:, d][None, :]]
    summands = sizes[unreduced[:, None] & used[None, :]]
    if lengths is not None:
        summands = np.where(summands > 1, summands * lengths.filled[:, None], summands)
    summed = needed + (summands - 2) / prod(blocks)
    return np.maximum(np.where(summands > 1, summed, needed - both), 0.0)


@lru_cache(maxsize=256)
def _tables(blocks: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """How many blocks sets of axes make, and for two such sets on a dim the most that a part of one and a part of the
    other, of one block of devices, have in common: whatever blocks along other axes they are."""
    count = 1 << len(blocks)
    axes = [[n for n in range(len(blocks)) if bits >> n & 1] for bits in range(count)]
    sizes = np.array([prod(blocks[n] for n in of) for of in axes], float)
    together = np.ones((count, count))
    for a, b in np.ndindex(count, count):
        same = 0
        while same < min(len(axes[a]), len(axes[b])) and axes[a][same] == axes[b][same]:
            same += 1
        first, one, other = (prod(blocks[n] for n in of) for of in (axes[a][:same], axes[a][same:], axes[b][same:]))
        together[a, b] = 1 / (first * (max(one, other) if len(axes[a]) > same < len(axes[b]) else one * other))
    return sizes, together


@lru_cache(maxsize=1024)
def _padded_table(blocks: tuple[int, ...], sizes: tuple[int, ...], length: int) -> np.ndarray:
    """The most that a part of a dim of a length and another one have in common: of parts that are not equal, as much as
    the smaller has, with as much of the dim in each device as is in the first."""
    together = _tables(blocks)[1]
    if length % prod(sizes) == 0:
        return together
    axes = [[n for n in range(len(blocks)) if bits >> n & 1] for bits in range(len(together))]
    parts = np.array([prod(sizes[n] for n in of) for of in axes])
    inside = parts / np.array([prod(blocks[n] for n in of) for of in axes])  # devices of one block of chips
    share = np.minimum(1.0, inside * -(-length // parts) / length)
    even = length % parts == 0
    return np.where(even[:, None] & even[None, :], together, np.minimum(share[:, None], share[None, :]))


def _stored(step: LayoutStep) -> Iterator[tuple[int, int]]:
    """The operands of a matmul that lie in memory whatever runs together, by their numbers, and the bytes that are
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


def _is_computed(value: LaidValue) -> bool:
    """Whether a value is made of products, sums or elementwise, and not perhaps a view of another."""
    eqn = value.step.eqn if value.step is not None else None
    known = (Fusion.ELEMENTWISE, Fusion.REDUCTION, Fusion.CONTRACTION)
    return eqn is not None and fusion_of(eqn) in known and memory_of(eqn) is not Memory.IN_PLACE
