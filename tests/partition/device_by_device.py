"""Partitioned programs run device by device in plain NumPy: every device has blocks of its own, and collectives copy
and sum between them. Nothing is batched or compiled, so this shares no rule with the engine that runs all at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import product
from math import prod
from typing import Any

import numpy as np

from meshwright.core.program import Atom, Eqn, Literal, Program
from meshwright.engine.namespace import NUMPY
from meshwright.sharding.spec import PartitionSpec
from meshwright.transform.regions.shard_map import dim_axes

Sizes = tuple[tuple[str, int], ...]
Blocks = list[Any]  # one array for each device; the same object where devices are known to hold the same


Seen = Callable[[Eqn, set[int]], None]  # told of a collective, and of the devices that come to it


def run_by_device(program: Program, arrays: Sequence[Any], seen: Seen = lambda eqn, devices: None) -> list[Any]:
    """The results of a program of shard_maps and plain equations; loops and branches are in shard_maps."""
    with np.errstate(all="ignore"):
        return _run(program, [np.asarray(x) for x in arrays], partial(_outside, seen))


def _run(program: Program, values: Sequence[Any], step: Callable[[Eqn, list[Any]], list[Any]]) -> list[Any]:
    env: dict[Atom, Any] = dict(zip(program.inputs, values, strict=True))
    env.update(program.constants)

    def read(atom: Atom) -> Any:
        return np.asarray(atom.value, atom.type.dtype) if isinstance(atom, Literal) else env[atom]

    for eqn in program.eqns:
        env.update(zip(eqn.outputs, step(eqn, [read(a) for a in eqn.inputs]), strict=True))
    return [read(atom) for atom in program.outputs]


def _evaluated(eqn: Eqn, values: Sequence[Any]) -> list[Any]:
    assert not list(eqn.regions()), f"{eqn.op.name} has a region"
    outs = eqn.op.evaluate(NUMPY, *values, **eqn.params)
    outs = [np.asarray(x) for x in (outs if isinstance(outs, tuple) else (outs,))]
    for x, var in zip(outs, eqn.outputs, strict=True):
        assert (x.shape, x.dtype) == (var.type.shape, var.type.dtype), f"{eqn.op.name} gives {x.dtype}{x.shape}"
    return outs


def _outside(seen: Seen, eqn: Eqn, values: list[Any]) -> list[Any]:
    if eqn.op.name != "shard_map":
        return _evaluated(eqn, values)
    params = eqn.params
    mesh = params["mesh"]
    blocks = [_cut(x, spec, mesh) for x, spec in zip(values, params["in_specs"], strict=True)]
    results = _Devices(mesh, seen).run(params["body"], blocks)
    return [_join(x, spec, mesh) for x, spec in zip(results, params["out_specs"], strict=True)]


class _Devices:
    """All devices of a mesh at one equation after the other. Those that took another branch, or have left a loop that
    others are still in, are not ``here``: what is computed for them is thrown away."""

    def __init__(self, mesh: Sizes, seen: Seen) -> None:
        self.mesh, self.seen, self.count = mesh, seen, prod(size for _, size in mesh)
        self.here = set(range(self.count))

    def run(self, program: Program, blocks: Sequence[Blocks]) -> list[Blocks]:
        constants = tuple((var, [np.asarray(data)] * self.count) for var, data in program.constants)
        outs = _run(Program(program.inputs, program.eqns, program.outputs, constants), blocks, self.step)
        return [self.each(x) for x in outs]

    def each(self, x: Any) -> Blocks:
        return x if isinstance(x, list) else [x] * self.count

    def step(self, eqn: Eqn, operands: list[Any]) -> list[Blocks]:
        operands = [self.each(x) for x in operands]
        if eqn.op.stack is not None:
            self.seen(eqn, self.here)
            return [_collective(eqn, x, self.mesh, self.count) for x in operands or [[None] * self.count]]
        if eqn.op.name in ("scan", "while", "cond"):
            return getattr(self, f"run_{eqn.op.name}")(eqn.params, operands)
        done: dict[tuple[int, ...], list[Any]] = {}
        outs = []
        for mine in zip(*operands, strict=True) if operands else [()] * self.count:
            key = tuple(map(id, mine))
            if key not in done:
                done[key] = _evaluated(eqn, mine)
            outs.append(done[key])
        return [list(x) for x in zip(*outs, strict=True)]

    def among(self, devices: set[int], program: Program, blocks: Sequence[Blocks]) -> list[Blocks]:
        """A region that some of the devices run."""
        before, self.here = self.here, self.here & devices
        outs = self.run(program, blocks)
        self.here = before
        return outs

    def run_scan(self, params: Any, operands: list[Blocks]) -> list[Blocks]:
        n, m, length = params["consts"], params["carry"], params["length"]
        consts, carry, xs = operands[:n], operands[n : n + m], operands[n + m :]
        rows: list[list[Blocks]] = []
        for at in reversed(range(length)) if params["reverse"] else range(length):
            outs = self.run(params["body"], [*consts, *carry, *([block[at] for block in x] for x in xs)])
            carry = outs[:m]
            rows.append(outs[m:])
        rows = rows[::-1] if params["reverse"] else rows
        shapes = [v.type for v in params["body"].outputs[m:]]
        stacked = [
            [np.array([row[k][d] for row in rows], t.dtype).reshape(length, *t.shape) for d in range(self.count)]
            for k, t in enumerate(shapes)
        ]
        return [*carry, *stacked]

    def run_while(self, params: Any, operands: list[Blocks]) -> list[Blocks]:
        n, m = params["cond_consts"], params["body_consts"]
        for_cond, for_body, carry = operands[:n], operands[n : n + m], operands[n + m :]
        going = set(self.here)
        while True:
            (test,) = self.among(going, params["cond"], [*for_cond, *carry])
            going = {d for d in going if test[d]}
            if not going:
                return carry
            new = self.among(going, params["body"], [*for_body, *carry])
            carry = [[y[d] if d in going else x[d] for d in range(self.count)] for x, y in zip(carry, new, strict=True)]

    def run_cond(self, params: Any, operands: list[Blocks]) -> list[Blocks]:
        index, *rest = operands
        branches = params["branches"]
        taken = [min(max(int(x), 0), len(branches) - 1) for x in index]
        outs: list[Blocks] = [[None] * self.count for _ in branches[0].outputs]
        for number, branch in enumerate(branches):
            devices = {d for d in range(self.count) if taken[d] == number}
            if devices & self.here:
                for out, new in zip(outs, self.among(devices, branch, rest), strict=True):
                    for d in devices:
                        out[d] = new[d]
        known = [next(x for x in out if x is not None) for out in outs]
        return [[x if x is not None else np.zeros_like(y) for x in out] for out, y in zip(outs, known, strict=True)]


# Blocks


@cache
def _coordinates(mesh: Sizes) -> list[dict[str, int]]:
    """The place of each device along each axis."""
    names = [name for name, _ in mesh]
    return [dict(zip(names, place, strict=True)) for place in product(*(range(size) for _, size in mesh))]


def _position(place: dict[str, int], axes: Sequence[str], sizes: dict[str, int]) -> int:
    position = 0
    for axis in axes:
        position = position * sizes[axis] + place[axis]
    return position


@cache
def _groups(mesh: Sizes, axes: tuple[str, ...]) -> list[list[int]]:
    """The devices that meet along axes, each group in order of its devices' position along them."""
    sizes, found = dict(mesh), {}
    for device, place in enumerate(_coordinates(mesh)):
        key = tuple(place[name] for name, _ in mesh if name not in axes)
        found.setdefault(key, {})[_position(place, axes, sizes)] = device
    return [[group[n] for n in sorted(group)] for group in found.values()]


@cache
def _windows(spec: PartitionSpec, shape: tuple[int, ...], mesh: Sizes) -> list[tuple[slice, ...]]:
    """Where each device's block lies in an array that the axes divide."""
    sizes, found = dict(mesh), []
    for place in _coordinates(mesh):
        window = []
        for dim, n in enumerate(shape):
            axes = dim_axes(spec, dim)
            size, rest = divmod(n, prod(sizes[axis] for axis in axes))
            assert rest == 0
            start = _position(place, axes, sizes) * size
            window.append(slice(start, start + size))
        found.append(tuple(window))
    return found


def _cut(x: Any, spec: PartitionSpec, mesh: Sizes) -> Blocks:
    assert not spec.unreduced
    blocks: dict[str, Any] = {}
    return [blocks.setdefault(str(w), x[(*w, ...)]) for w in _windows(spec, x.shape, mesh)]


def _join(blocks: Blocks, spec: PartitionSpec, mesh: Sizes) -> Any:
    """The whole array. Devices that hold the same part of it must hold the same numbers."""
    assert not spec.unreduced
    sizes, block = dict(mesh), blocks[0]
    shape = tuple(n * prod(sizes[axis] for axis in dim_axes(spec, dim)) for dim, n in enumerate(block.shape))
    whole, seen = np.empty(shape, block.dtype), dict[str, Any]()
    for x, window in zip(blocks, _windows(spec, shape, mesh), strict=True):
        first = seen.setdefault(str(window), x)
        if first is x:
            whole[window] = x
        else:
            assert first.tobytes() == x.tobytes(), f"devices return different numbers as {spec}"
    return whole


# Collectives


def _collective(eqn: Eqn, x: Blocks, mesh: Sizes, count: int) -> Blocks:
    params = eqn.params
    out: Blocks = [None] * count
    for group in _groups(mesh, params["axes"]):
        for device, y in zip(group, _RULES[eqn.op.name]([x[d] for d in group], params), strict=True):
            out[device] = y
    return out


def _total(xs: Blocks) -> Any:
    """A sum in order of the devices, at the summands' width."""
    total = xs[0].copy()
    for x in xs[1:]:
        total = np.add(total, x)
    return total


def _same(xs: Blocks) -> Blocks:
    assert all(x.tobytes() == xs[0].tobytes() for x in xs), "devices hold different numbers as one"
    return xs


def _permuted(xs: Blocks, pairs: Sequence[tuple[int, int]]) -> Blocks:
    out = [np.zeros_like(xs[0])] * len(xs)
    for source, target in pairs:
        out[target] = xs[source]
    return out


def _exchanged(xs: Blocks, split: int, concat: int) -> Blocks:
    parts = [np.split(x, len(xs), split) for x in xs]
    return [np.concatenate([part[n] for part in parts], concat) for n in range(len(xs))]


_RULES: dict[str, Callable[[Blocks, Any], Blocks]] = {
    "psum": lambda xs, p: [_total(xs)] * len(xs),
    "pmax": lambda xs, p: [np.maximum.reduce(xs)] * len(xs),
    "pmin": lambda xs, p: [np.minimum.reduce(xs)] * len(xs),
    "pbroadcast": lambda xs, p: xs,
    "pinvariant": lambda xs, p: _same(xs),
    "all_gather": lambda xs, p: [np.concatenate(xs, p["dim"])] * len(xs),
    "all_gather_invariant": lambda xs, p: [np.concatenate(xs, p["dim"])] * len(xs),
    "pscatter": lambda xs, p: [np.split(x, len(xs), p["dim"])[n] for n, x in enumerate(xs)],
    "psum_scatter": lambda xs, p: np.split(_total(xs), len(xs), p["dim"]),
    "all_to_all": lambda xs, p: _exchanged(xs, p["split"], p["concat"]),
    "ppermute": lambda xs, p: _permuted(xs, p["permutation"]),
    "axis_index": lambda xs, p: [np.asarray(n, np.int32) for n in range(len(xs))],
}
