"""Random programs of one device, and what they mean: a loop over devices that does each collective naively.

A program is a list of steps over numbered values, all of rank 2. The same steps are run by ``on_device`` in the body of
a shard_map (Meshwright's, or JAX's), and by ``Reference`` on one block per device with no mesh at all: in NumPy if it
is given NumPy's arrays, else in differentiable ops.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

import meshwright as mw
import meshwright.numpy as mnp
from tests.shard_map.counterparts import OURS, Kit

Axes = tuple[str, ...]
Shape = tuple[int, int]
Block = Any

UNARY = {
    "sin": lambda xp, x: xp.sin(x),
    "tanh": lambda xp, x: xp.tanh(x),
    "square": lambda xp, x: 0.5 * x * x,
    "halve": lambda xp, x: x * 0.5,
    "negate": lambda xp, x: -x,
    "relu": lambda xp, x: xp.maximum(x, 0.0),
    "shift": lambda xp, x: x + 0.25,
}
LINEAR_UNARY = ("halve", "negate")
BINARY = {"add": lambda x, y: x + y, "sub": lambda x, y: x - y * 0.5, "mul": lambda x, y: x * y}
LINEAR_BINARY = ("add", "sub")
LINEAR_COLLECTIVES = ("psum", "pmean", "all_gather", "psum_scatter", "all_to_all", "ppermute", "axis_index",
                      "pbroadcast", "all_gather_invariant", "pscatter", "slice_at")  # fmt: skip
COLLECTIVES = (*LINEAR_COLLECTIVES, "pmax", "pmin")
NESTED = ("scan", "cond", "vmap", "checkpoint", "switch", "fori")
MOST = 24  # elements of a block
THRESHOLD = 0.0371  # of a predicate: no sum of interest is this


@dataclass(frozen=True)
class Step:
    """One instruction: its name, the numbers of its operands, what else it needs, and programs inside of it."""

    name: str
    operands: tuple[int, ...]
    what: Any = None
    inner: tuple[Inner, ...] = ()


@dataclass(frozen=True)
class Inner:
    """Steps that see all values from before, and further ones of their own; and the numbers of their results."""

    steps: tuple[Step, ...]
    results: tuple[int, ...]


@dataclass(frozen=True)
class Manual:
    """A whole program: the mesh, how arguments are cut, the steps, and how results are put together."""

    mesh: dict[str, int]
    blocks: tuple[Shape, ...]
    in_specs: tuple[tuple[Axes, Axes], ...]
    body: Inner
    out_specs: tuple[tuple[Axes, Axes], ...]

    def size(self, axes: Axes) -> int:
        """The number of devices along axes."""
        return int(np.prod([self.mesh[a] for a in axes], dtype=int))

    @property
    def shapes(self) -> list[Shape]:
        """Of the whole arguments."""
        return [
            (b[0] * self.size(spec[0]), b[1] * self.size(spec[1]))
            for b, spec in zip(self.blocks, self.in_specs, strict=True)
        ]

    def mapped(self, mesh: Any = None, **options: Any) -> Any:
        """The program as a shard_map, on its own mesh or another with its axes."""
        mesh = mesh or mw.make_mesh(tuple(self.mesh.values()), tuple(self.mesh))
        return self.map(self.whole_body, mesh, tuple(self.mesh), **options)

    def whole_body(self, *blocks: Block) -> tuple[Block, ...]:
        """What a device does."""
        return tuple(on_device(self.body, list(blocks)))

    def map(self, body: Any, mesh: Any, names: Sequence[str], **options: Any) -> Any:
        """A shard_map by those axes of the specs that have these names."""
        ins, outs = (
            tuple(mw.P(*(tuple(a for a in d if a in names) or None for d in spec)) for spec in specs)
            for specs in (self.in_specs, self.out_specs)
        )
        return mw.shard_map(body, mesh=mesh, in_specs=ins, out_specs=outs, **options)

    def nested(self, mesh: Any, outer: Sequence[str]) -> Any:
        """The program as a shard_map over some axes with one over the others inside; specs have the former first."""
        inner = tuple(name for name in self.mesh if name not in outer)
        inside = self.map(self.whole_body, mesh, inner, axis_names=set(inner))
        return self.map(lambda *blocks: inside(*blocks), mesh, outer, axis_names=set(outer))

    def on_jax(self, kit: Kit) -> Any:
        """The program as JAX's shard_map, which is not asked to check what varies."""
        specs = [[kit.P(*(d or None for d in spec)) for spec in each] for each in (self.in_specs, self.out_specs)]

        def body(*blocks: Block) -> tuple[Block, ...]:
            return tuple(on_device(self.body, list(blocks), kit))

        ins, outs = map(tuple, specs)
        return kit.package.shard_map(body, mesh=kit.mesh(**self.mesh), in_specs=ins, out_specs=outs, check_vma=False)

    def on_one_axis(self) -> Any:
        """The program as a shard_map over a mesh with one axis, of which the axes are parts."""
        names: dict[str, str] = {}
        before = 1
        for axis, size in self.mesh.items():
            names[axis] = f"m:({before}){size}"
            before *= size

        def spec(dims: tuple[Axes, Axes]) -> Any:
            return mw.P(*(tuple(names[a] for a in d) or None for d in dims))

        body = renamed(self.body, names)
        return mw.shard_map(
            lambda *blocks: tuple(on_device(body, list(blocks))),
            mesh=mw.make_mesh((before,), ("m",)),
            in_specs=tuple(map(spec, self.in_specs)),
            out_specs=tuple(map(spec, self.out_specs)),
        )

    def reference(self, *args: Any) -> tuple[Any, ...]:
        """The same without devices."""
        return Reference(self, np if isinstance(args[0], np.ndarray) else mnp).whole(args)


def renamed(program: Inner, names: dict[str, str]) -> Inner:
    """The steps with other names of axes."""

    def rename(what: Any) -> Any:
        if isinstance(what, str):
            return names.get(what, what)
        return tuple(map(rename, what)) if isinstance(what, tuple) else what

    steps = [
        Step(s.name, s.operands, rename(s.what), tuple(renamed(inner, names) for inner in s.inner))
        for s in program.steps
    ]
    return Inner(tuple(steps), program.results)


# What one device does


def on_device(program: Inner, values: list[Block], kit: Kit = OURS) -> list[Block]:
    """The results of steps, written with collectives."""
    values = list(values)
    for step in program.steps:
        values += _device_step(step, values, kit)
    return [values[n] for n in program.results]


def _device_step(step: Step, values: list[Block], kit: Kit) -> list[Block]:
    xs = [values[n] for n in step.operands]
    local = _local(step, xs, kit.np)
    if local is not None:
        return [local]
    if step.name in (*NESTED, "while"):
        return _device_region(step, values, xs, kit)
    what, lax = step.what, kit.lax
    match step.name:
        case "psum" | "pmean" | "pmax" | "pmin":
            return [getattr(lax, step.name)(xs[0], what)]
        case "pbroadcast":
            return [xs[0] if kit.is_jax else lax.pbroadcast(xs[0], what)]
        case "all_gather" | "all_gather_invariant":
            name = "all_gather" if kit.is_jax else step.name
            return [getattr(lax, name)(xs[0], what[0], axis=what[1], tiled=True)]
        case "psum_scatter":
            return [lax.psum_scatter(xs[0], what[0], scatter_dimension=what[1], tiled=True)]
        case "pscatter" if kit.is_jax:
            size = xs[0].shape[what[1]] // lax.axis_size(what[0])
            return [lax.dynamic_slice_in_dim(xs[0], lax.axis_index(what[0]) * size, size, what[1])]
        case "pscatter":
            return [lax.pscatter(xs[0], what[0], axis=what[1], tiled=True)]
        case "all_to_all":
            return [lax.all_to_all(xs[0], what[0], what[1], what[2], tiled=True)]
        case "ppermute" if kit.is_jax:
            sizes = {axis: lax.axis_size(axis) for axis in what[0]}
            return [lax.ppermute(xs[0], tuple(sorted(what[0])), _in_mesh_order(what[1], sizes))]
        case "ppermute":
            return [lax.ppermute(xs[0], what[0], what[1])]
        case "axis_index":
            return [xs[0] * (0.5 + 0.25 * lax.axis_index(what))]
        case "slice_at":
            axes, dim = what
            return [lax.dynamic_slice_in_dim(xs[0], lax.axis_index(axes) % xs[0].shape[dim], 1, dim)]
    raise AssertionError(step.name)


def _in_mesh_order(pairs: Sequence[tuple[int, int]], sizes: dict[str, int]) -> list[tuple[int, int]]:
    """Positions along axes as those along the same axes sorted: JAX numbers devices by the mesh, not by the names."""
    axes, order = list(sizes), sorted(sizes)

    def position(n: int) -> int:
        place = dict(zip(axes, np.unravel_index(n, tuple(sizes.values())), strict=True))
        return int(np.ravel_multi_index([place[a] for a in order], [sizes[a] for a in order]))

    return [(position(source), position(target)) for source, target in pairs]


def _device_region(step: Step, values: list[Block], xs: list[Block], kit: Kit) -> list[Block]:
    what, lax = step.what, kit.lax

    def run(inner: Inner, *own: Block) -> tuple[Block, ...]:
        return tuple(on_device(inner, [*values, *own], kit))

    match step.name:
        case "scan":
            n = len(step.operands)

            def body(carry: Any, t: Any) -> Any:
                found = run(step.inner[0], *[c + 0.125 * t for c in carry])
                return found[:n], found[n:]

            times = kit.np.arange(what["length"], dtype="float64")
            carry, ys = lax.scan(body, tuple(xs), times, reverse=what["reverse"])
            return [*carry, *[(y * (1 + times)[:, None, None]).sum(0) for y in ys]]
        case "fori":
            return [lax.fori_loop(0, what, lambda t, c: run(step.inner[0], c + 0.125 * t)[0], xs[0])]
        case "while":
            most = 1 + (lax.axis_index(what) % 3 if what else 1)
            start = 0 * most, xs[0]
            return [lax.while_loop(lambda c: c[0] < most, lambda c: (c[0] + 1, run(step.inner[0], c[1])[0]), start)[1]]
        case "cond":
            yes, no = step.inner
            return list(lax.cond(xs[0].sum() > THRESHOLD, lambda: run(yes), lambda: run(no)))
        case "switch":
            chosen = lax.axis_index(what) % len(step.inner)
            return list(lax.switch(chosen, [lambda inner=inner: run(inner) for inner in step.inner]))
        case "vmap":
            return list(kit.package.vmap(lambda row: tuple(y[0] for y in run(step.inner[0], row[None])))(xs[0]))
        case "checkpoint":
            return list(kit.package.checkpoint(lambda *own: run(step.inner[0], *own))(*xs))
    raise AssertionError(step.name)


def _local(step: Step, xs: list[Block], xp: Any) -> Block | None:
    """What a device does by itself, and the reference for each device."""
    match step.name:
        case "unary":
            return UNARY[step.what](xp, xs[0])
        case "binary":
            return BINARY[step.what](xs[0], xs[1])
        case "matmul":
            return 0.5 * (xs[0] @ xs[1].T)
        case "sum":
            return xs[0].sum(step.what, keepdims=True) * 0.5
        case "transpose":
            return xs[0].T
        case "concatenate":
            return xp.concatenate([xs[0], xs[1]], axis=step.what)
        case "constant":
            return xp.full(step.what, 0.5, dtype="float64")
    return None


# The same on one block per device


@dataclass
class Reference:
    """All devices at once: a value is a list with one block for each."""

    program: Manual
    xp: Any = mnp  # what computes: NumPy, or what can be differentiated
    devices: list[dict[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        mesh = self.program.mesh
        self.devices = [dict(zip(mesh, place, strict=True)) for place in np.ndindex(*mesh.values())]

    def position(self, device: dict[str, int], axes: Axes) -> int:
        """Along several axes, the first of them major."""
        place = 0
        for axis in axes:
            place = place * self.program.mesh[axis] + device[axis]
        return place

    def group(self, device: dict[str, int], axes: Axes) -> list[int]:
        """The devices that differ from one along axes only, by their position."""
        others = [a for a in self.program.mesh if a not in axes]
        found = [n for n, d in enumerate(self.devices) if all(d[a] == device[a] for a in others)]
        return sorted(found, key=lambda n: self.position(self.devices[n], axes))

    def whole(self, args: Any) -> tuple[Any, ...]:
        blocks = [
            [self.block(x, spec, shape, device) for device in self.devices]
            for x, spec, shape in zip(args, self.program.in_specs, self.program.blocks, strict=True)
        ]
        everyone = list(range(len(self.devices)))
        found = self.run(self.program.body, blocks, everyone)
        return tuple(self.join(x, spec) for x, spec in zip(found, self.program.out_specs, strict=True))

    def block(self, x: Any, spec: tuple[Axes, Axes], shape: Shape, device: dict[str, int]) -> Block:
        row, column = (self.position(device, axes) * n for axes, n in zip(spec, shape, strict=True))
        return x[row : row + shape[0], column : column + shape[1]]

    def join(self, blocks: list[Block], spec: tuple[Axes, Axes]) -> Any:
        rows, columns = (self.program.size(axes) for axes in spec)
        found: dict[tuple[int, int], Block] = {}
        for device, block in zip(self.devices, blocks, strict=True):
            found.setdefault((self.position(device, spec[0]), self.position(device, spec[1])), block)
        joined = self.xp.concatenate
        return joined([joined([found[r, c] for c in range(columns)], axis=1) for r in range(rows)], axis=0)

    def run(self, program: Inner, values: list[list[Block]], active: list[int]) -> list[list[Block]]:
        """The results on the active devices; those of others are left as None."""
        values = list(values)
        for step in program.steps:
            values += self.step(step, values, active)
        return [values[n] for n in program.results]

    def step(self, step: Step, values: list[list[Block]], active: list[int]) -> list[list[Block]]:
        operands = [values[n] for n in step.operands]
        count = len(self.devices)

        def each(function: Any) -> list[Block]:
            return [function(n) if n in active else None for n in range(count)]

        if _local(step, [x[active[0]] for x in operands], self.xp) is not None:
            return [each(lambda n: _local(step, [x[n] for x in operands], self.xp))]
        what = step.what
        match step.name:
            case "pbroadcast":
                return [operands[0]]
            case "axis_index":
                place = [self.position(d, what) for d in self.devices]
                return [each(lambda n: operands[0][n] * (0.5 + 0.25 * place[n]))]
            case "slice_at":
                axes, dim = what
                size = operands[0][active[0]].shape[dim]
                place = [self.position(d, axes) % size for d in self.devices]
                return [each(lambda n: _part(operands[0][n], dim, place[n], 1))]
            case "scan":
                return self.scan(step, values, active)
            case "fori" | "while":
                state = operands[0]
                count_of = [what if step.name == "fori" else 1 + self.position(d, what) % 3 for d in self.devices]
                if not what:
                    count_of = [2] * count
                for t in range(max(count_of[n] for n in active)):
                    still = [n for n in active if count_of[n] > t]
                    grown = [None if c is None else c + 0.125 * t for c in state] if step.name == "fori" else state
                    (found,) = self.run(step.inner[0], [*values, grown], still)
                    state = [found[n] if n in still else state[n] for n in range(count)]
                return [state]
            case "cond":
                goes = {n: int(not _known(operands[0][n].sum()) > THRESHOLD) for n in active}
                return self.branches(step, values, goes)
            case "switch":
                goes = {n: self.position(self.devices[n], what) % len(step.inner) for n in active}
                return self.branches(step, values, goes)
            case "vmap":
                rows = operands[0][active[0]].shape[0]
                found = [
                    self.run(step.inner[0], [*values, each(lambda n, r=r: operands[0][n][r : r + 1])], active)
                    for r in range(rows)
                ]
                return [
                    each(lambda n, k=k: self.xp.concatenate([one[k][n] for one in found], axis=0))
                    for k in range(len(found[0]))
                ]
            case "checkpoint":
                return self.run(step.inner[0], [*values, *operands], active)
        x = operands[0]
        axes = what if isinstance(what[0], str) else what[0]
        groups = {n: self.group(self.devices[n], axes) for n in active}
        place = {n: self.position(self.devices[n], axes) for n in active}
        size = self.program.size(axes)

        def total(n: int) -> Block:
            return sum((x[m] for m in groups[n][1:]), x[groups[n][0]])

        def part(block: Block, dim: int, index: int) -> Block:
            length = block.shape[dim] // size
            return _part(block, dim, index * length, length)

        match step.name:
            case "psum":
                return [each(total)]
            case "pmean":
                return [each(lambda n: total(n) / size)]
            case "pmax":
                return [each(lambda n: self.xp.stack([x[m] for m in groups[n]]).max(0))]
            case "pmin":
                return [each(lambda n: self.xp.stack([x[m] for m in groups[n]]).min(0))]
            case "all_gather" | "all_gather_invariant":
                return [each(lambda n: self.xp.concatenate([x[m] for m in groups[n]], axis=what[1]))]
            case "psum_scatter":
                return [each(lambda n: part(total(n), what[1], place[n]))]
            case "pscatter":
                return [each(lambda n: part(x[n], what[1], place[n]))]
            case "all_to_all":
                return [
                    each(
                        lambda n: self.xp.concatenate([part(x[m], what[1], place[n]) for m in groups[n]], axis=what[2])
                    )
                ]
            case "ppermute":
                source = {t: s for s, t in what[1]}
                return [
                    each(lambda n: x[groups[n][source[place[n]]]] if place[n] in source else self.xp.zeros_like(x[n]))
                ]
        raise AssertionError(step.name)

    def branches(self, step: Step, values: list[list[Block]], goes: dict[int, int]) -> list[list[Block]]:
        """Each device's results of the branch that it takes."""
        outs: list[list[Block]] = []
        for number, inner in enumerate(step.inner):
            mine = [n for n, taken in goes.items() if taken == number]
            if mine:
                found = self.run(inner, values, mine)
                outs = outs or [[None] * len(self.devices) for _ in found]
                for n, k in itertools.product(mine, range(len(found))):
                    outs[k][n] = found[k][n]
        return outs

    def scan(self, step: Step, values: list[list[Block]], active: list[int]) -> list[list[Block]]:
        carry = [values[n] for n in step.operands]
        count, length = len(carry), step.what["length"]
        sums: list[list[Block]] = []
        for t in reversed(range(length)) if step.what["reverse"] else range(length):
            entering = [[None if c is None else c + 0.125 * t for c in x] for x in carry]
            found = self.run(step.inner[0], [*values, *entering], active)
            carry, ys = found[:count], found[count:]
            ys = [[None if b is None else b * (t + 1.0) for b in y] for y in ys]
            sums = (
                ys
                if not sums
                else [
                    [None if a is None else a + b for a, b in zip(s, y, strict=True)]
                    for s, y in zip(sums, ys, strict=True)
                ]
            )
        return [*carry, *sums]


def _part(block: Block, dim: int, start: int, length: int) -> Block:
    return block[start : start + length] if dim == 0 else block[:, start : start + length]


def _known(x: Any) -> Any:
    return np.asarray(mw.lax.stop_gradient(x)) if not hasattr(x, "builder") else x


# Drawing programs


@dataclass(frozen=True)
class Kind:
    """What is known of a value: the shape of its blocks, and the axes it may vary over."""

    shape: Shape
    varying: frozenset[str]


class Writer:
    """Draws steps that fit the values there are."""

    def __init__(self, draw: Any, mesh: dict[str, int], linear: bool, forward: bool, apart: bool) -> None:
        self.draw, self.mesh, self.linear, self.forward, self.apart = draw, mesh, linear, forward, apart

    def meeting(self, allowed: frozenset[str], decided: frozenset[str]) -> frozenset[str]:
        """The axes of collectives where devices along some have decided for themselves: they do not meet."""
        return allowed - decided if self.apart or not decided else frozenset()

    def axes(self, allowed: frozenset[str]) -> Axes:
        names = sorted(allowed)
        chosen = self.draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
        return tuple(chosen)

    def size(self, axes: Axes) -> int:
        return int(np.prod([self.mesh[a] for a in axes], dtype=int))

    def steps(self, kinds: list[Kind], most: int, allowed: frozenset[str], depth: int) -> list[Step]:
        """Further steps; ``kinds`` grows by what they give."""
        found = []
        for _ in range(self.draw(st.integers(1, most))):
            step, new = self.step(kinds, allowed, depth)
            found.append(step)
            kinds += new
        return found

    def step(self, kinds: list[Kind], allowed: frozenset[str], depth: int) -> tuple[Step, list[Kind]]:
        draw = self.draw
        n = len(kinds) - 1 - draw(st.integers(0, min(3, len(kinds) - 1)))
        (a, b), varying = kinds[n].shape, kinds[n].varying
        local = ["unary", "binary", "sum", "transpose", "concatenate"] + ([] if self.linear else ["matmul", "constant"])
        collective = list(LINEAR_COLLECTIVES if self.linear else COLLECTIVES)
        nested = [*NESTED, *(["while"] if self.forward else [])] if depth and not self.linear else []
        name = draw(st.sampled_from(local + (collective * 2 if allowed else []) + nested * 2))
        if name in nested:
            return self.nested(name, n, kinds, allowed, depth)
        if name == "binary":
            partners = [m for m, k in enumerate(kinds) if k.shape == (a, b)]
            m = draw(st.sampled_from(partners))
            what = draw(st.sampled_from(LINEAR_BINARY if self.linear else sorted(BINARY)))
            return Step(name, (n, m), what), [Kind((a, b), varying | kinds[m].varying)]
        if name == "matmul":
            m = draw(st.sampled_from([m for m, k in enumerate(kinds) if k.shape[1] == b]))
            return Step(name, (n, m)), [Kind((a, kinds[m].shape[0]), varying | kinds[m].varying)]
        if name == "sum":
            dim = draw(st.integers(0, 1))
            return Step(name, (n,), dim), [Kind((1, b) if dim == 0 else (a, 1), varying)]
        if name == "transpose":
            return Step(name, (n,)), [Kind((b, a), varying)]
        if name == "concatenate" and 2 * a * b <= MOST:
            dim = draw(st.integers(0, 1))
            return Step(name, (n, n), dim), [Kind((2 * a, b) if dim == 0 else (a, 2 * b), varying)]
        if name == "constant":
            return Step(name, (n,), (a, b)), [Kind((a, b), frozenset())]
        if name in collective:
            made = self.collective(name, n, kinds[n], self.axes(allowed))
            if made is not None:
                return made
        what = draw(st.sampled_from(LINEAR_UNARY if self.linear else sorted(UNARY)))
        return Step("unary", (n,), what), [Kind((a, b), varying)]

    def collective(self, name: str, n: int, kind: Kind, axes: Axes) -> tuple[Step, list[Kind]] | None:
        draw, size, shape = self.draw, self.size(axes), list(kind.shape)
        more, less = kind.varying | set(axes), kind.varying - set(axes)
        dim, other = draw(st.integers(0, 1)), draw(st.integers(0, 1))
        if name in ("psum", "pmean", "pmax", "pmin"):
            return Step(name, (n,), axes), [Kind(kind.shape, less)]
        if name in ("pbroadcast", "axis_index"):
            return Step(name, (n,), axes), [Kind(kind.shape, more)]
        if name == "slice_at":
            shape[dim] = 1
            return Step(name, (n,), (axes, dim)), [Kind((shape[0], shape[1]), more)]
        if name == "ppermute":
            count = draw(st.sampled_from([size, size, size // 2]))
            sources, targets = (draw(st.permutations(range(size))) for _ in range(2))
            pairs = tuple(zip(sources[:count], targets[:count], strict=True))
            return Step(name, (n,), (axes, pairs)), [Kind(kind.shape, more)]
        if name in ("all_gather", "all_gather_invariant"):
            shape[dim] *= size
            if shape[0] * shape[1] > MOST:
                return None
            return Step(name, (n,), (axes, dim)), [Kind((shape[0], shape[1]), more if name == "all_gather" else less)]
        if shape[dim] % size or (name == "pscatter" and kind.varying & set(axes)):
            return None
        shape[dim] //= size
        if name == "all_to_all":
            shape[other] *= size
            return Step(name, (n,), (axes, dim, other)), [Kind((shape[0], shape[1]), more)]
        return Step(name, (n,), (axes, dim)), [Kind((shape[0], shape[1]), more)]

    def nested(
        self, name: str, n: int, kinds: list[Kind], allowed: frozenset[str], depth: int
    ) -> tuple[Step, list[Kind]]:
        everywhere = frozenset(self.mesh)
        inside = list(kinds)
        if name == "checkpoint":
            inside.append(kinds[n])
            steps = self.steps(inside, 4, allowed, depth - 1)
            return Step(name, (n,), None, (Inner(tuple(steps), (len(inside) - 1,)),)), [inside[-1]]
        if name == "vmap":
            inside.append(Kind((1, kinds[n].shape[1]), kinds[n].varying))
            steps = self.steps(inside, 4, allowed, depth - 1)
            rows = [m for m in range(len(inside)) if inside[m].shape[0] == 1]
            m = rows[-1]
            kind = Kind((kinds[n].shape[0], inside[m].shape[1]), inside[m].varying | kinds[n].varying)
            return Step(name, (n,), None, (Inner(tuple(steps), (m,)),)), [kind]
        if name in ("cond", "switch"):
            axes = self.axes(everywhere) if name == "switch" else ()
            decided = kinds[n].varying if name == "cond" else frozenset(axes)
            branches, all_kinds = [], []
            for _ in range(2 if name == "cond" else self.draw(st.integers(1, 4))):
                own = list(kinds)
                branches.append(self.steps(own, 3, self.meeting(allowed, decided), depth - 1))
                all_kinds.append(own)
            shape = all_kinds[0][-1].shape
            if not all(any(k.shape == shape for k in own) for own in all_kinds):
                shape = kinds[n].shape
            results = [max(m for m, k in enumerate(own) if k.shape == shape) for own in all_kinds]
            varying = decided.union(*(own[m].varying for own, m in zip(all_kinds, results, strict=True)))
            inner = tuple(Inner(tuple(steps), (m,)) for steps, m in zip(branches, results, strict=True))
            return Step(name, (n,), axes or None, inner), [Kind(shape, varying)]
        if name in ("fori", "while"):
            axes = self.axes(everywhere) if name == "while" and self.draw(st.booleans()) else ()
            inside.append(Kind(kinds[n].shape, everywhere))
            steps = self.steps(inside, 4, self.meeting(allowed, frozenset(axes)), depth - 1)
            result = max(m for m, k in enumerate(inside) if k.shape == kinds[n].shape)
            what = self.draw(st.integers(1, 3)) if name == "fori" else axes
            return Step(name, (n,), what, (Inner(tuple(steps), (result,)),)), [Kind(kinds[n].shape, everywhere)]
        count = self.draw(st.integers(1, 2))
        carries = tuple(self.draw(st.integers(0, len(kinds) - 1)) for _ in range(count))
        inside += [Kind(kinds[c].shape, everywhere) for c in carries]
        steps = self.steps(inside, 5, allowed, depth - 1)
        results = []
        for c in carries:
            fits = [m for m, k in enumerate(inside) if k.shape == kinds[c].shape]
            results.append(fits[-1] if self.draw(st.booleans()) else self.draw(st.sampled_from(fits)))
        results.append(len(inside) - 1)
        what = {"length": self.draw(st.integers(1, 3)), "reverse": self.draw(st.booleans())}
        made = [Kind(kinds[c].shape, everywhere) for c in carries] + [Kind(inside[-1].shape, everywhere)]
        return Step(name, carries, what, (Inner(tuple(steps), tuple(results)),)), made


SMALL_MESHES = [s for n in (1, 2, 3) for s in itertools.product((1, 2, 3), repeat=n) if np.prod(s) <= 8]


@st.composite
def manual_programs(
    draw: Any,
    linear: bool = False,
    most: int = 7,
    depth: int = 2,
    meshes: Sequence[tuple[int, ...]] = SMALL_MESHES,
    forward: bool = False,
    apart: bool = True,
) -> Manual:
    """A mesh, arguments cut over it, and steps; ``forward`` also has steps that have no gradient.

    Without ``apart`` there are no collectives where devices decide differently, along other axes neither.
    """
    sizes = draw(st.sampled_from(meshes))
    mesh = dict(zip("xyz", sizes, strict=False))
    writer = Writer(draw, mesh, linear, forward, apart)

    def spec(must: frozenset[str]) -> tuple[Axes, Axes]:
        used = draw(st.permutations(sorted(must | set(draw(st.lists(st.sampled_from(sorted(mesh)), unique=True))))))
        at = draw(st.integers(0, len(used)))
        return tuple(used[:at]), tuple(used[at:])

    count = 1 if linear else draw(st.integers(1, 2))
    blocks = tuple((draw(st.sampled_from([1, 2, 3, 4])), draw(st.sampled_from([1, 2, 4]))) for _ in range(count))
    in_specs = tuple(spec(frozenset()) for _ in range(count))
    kinds = [Kind(b, frozenset((*s[0], *s[1]))) for b, s in zip(blocks, in_specs, strict=True)]
    steps = writer.steps(kinds, most, frozenset(mesh), depth)
    results = [len(kinds) - 1] if linear else sorted({len(kinds) - 1, draw(st.integers(0, len(kinds) - 1))})
    out_specs = tuple(spec(kinds[n].varying) for n in results)
    return Manual(mesh, blocks, in_specs, Inner(tuple(steps), tuple(results)), out_specs)
