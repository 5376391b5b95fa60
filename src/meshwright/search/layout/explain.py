"""Why a layout is the best that `find_layout` found: where its time goes, what others lose, what would change it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf, prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meshwright.arrays.tracing import ShapeDtypeStruct
from meshwright.chart.amounts import time_text
from meshwright.core import tree
from meshwright.core.program import Program, Var
from meshwright.errors import MeshwrightError
from meshwright.hardware.topology import Topology
from meshwright.search.explained import (
    LayoutParts,
    WhatIf,
    bound_lines,
    changed_machines,
    memory_line,
    parts_of,
    table_of,
    what_if_lines,
    with_chip,
)
from meshwright.search.layout.shortened import ShortStep, shortened
from meshwright.search.layout.texts import uneven_dims
from meshwright.search.layout.ways import is_splittable
from meshwright.sharding.mesh import Mesh
from meshwright.sharding.named import NamedSharding, TensorSharding
from meshwright.sharding.spec import PartitionSpec
from meshwright.simulate.spmd import simulate

if TYPE_CHECKING:
    from meshwright.search.layout.found import FoundLayout, FoundLayouts
    from meshwright.search.layout.step import Step

TRIED = 6000  # equations of the layouts that are simulated again after each change
PARTITIONED = 3  # layouts that are partitioned again, for another batch or another number of chips
SAME = 1e-3  # of the time of a step; constraints that change less than that change nothing
OTHER = 1e-2  # of the time of a step, by which another layout must be faster after a change to be named
UNEVEN = 4  # dims that are not in equal parts of which a line is told
MADE = "made by the step"


def mesh_text(sizes: Mapping[str, int]) -> str:
    """The sizes of a mesh.

    >>> mesh_text({"data": 2, "model": 32})
    'data=2 model=32'
    """
    return " ".join(f"{name}={size}" for name, size in sizes.items())


def memory_of(layout: FoundLayout) -> dict[str, int]:
    """What a device holds at the peak: of each argument, and what the step makes; donated arguments may be gone."""
    step = layout.step
    assert step is not None
    held = dict.fromkeys(step.names, 0)
    for n, sharding in enumerate(tree.leaves(layout.in_shardings)):
        shape = sharding.shard_shape(step.types[n].shape)
        held[step.names[step.argument[n]]] += int(prod(shape) * step.types[n].dtype.itemsize)
    made = layout.peak_bytes_per_device - sum(held.values())
    for n in step.donate:
        less = min(held[step.names[n]], max(0, -made))
        held[step.names[n]] -= less
        made += less
    return {**held, MADE: made}


def compared(found: FoundLayouts, runners_up: int) -> tuple[LayoutParts, ...]:
    """The best, and others that are worth a look."""
    shown = contenders(found, runners_up + 1)
    best = shown[0]
    return tuple(
        LayoutParts(
            mesh_text(one.mesh.shape),
            one.seconds,
            parts_of(one.simulation),
            memory_of(one),
            one.fits,
            one.name if one is best else difference(best, one),
        )
        for one in shown
    )


def contenders(found: FoundLayouts, count: int) -> list[FoundLayout]:
    """The best, the fastest of each other mesh and the next on the same, in the order of their seconds."""
    kept: list[FoundLayout] = []
    for one in found:
        near = [k for k in kept if k.mesh == one.mesh and abs(k.seconds - one.seconds) <= SAME * one.seconds]
        if not near or (not one.constraints and not any(k.in_shardings == one.in_shardings for k in near)):
            kept.append(one)
    best = kept[0]
    first = {one.mesh: one for one in reversed(kept) if one.mesh != best.mesh}
    others = sorted([*first.values(), *[one for one in kept[1:] if one.mesh == best.mesh][:1]],
                    key=lambda one: (not one.fits, one.seconds))  # fmt: skip
    rest = [one for one in kept[1:] if one not in others]
    chosen = {id(one) for one in [*others, *rest][: count - 1]}
    return [best, *(one for one in kept[1:] if id(one) in chosen)]


def difference(best: FoundLayout, other: FoundLayout) -> str:
    """What is laid out in another way than in the best: leaf by leaf on the same mesh, in a few words on others."""
    if other.mesh != best.mesh:
        return other.name
    assert best.step is not None
    pairs = zip(best.step.leaf_names, tree.leaves(best.in_shardings), tree.leaves(other.in_shardings), strict=True)
    changed = [f"{name} {theirs.spec}" for name, ours, theirs in pairs if ours.spec != theirs.spec]
    more = f" and {len(changed) - 2} more" if len(changed) > 2 else ""
    constraints = "constraints" if other.constraints and not best.constraints else ""
    return "; ".join(part for part in (", ".join(changed[:2]) + more, constraints) if part) or "no constraints"


def explained(found: FoundLayouts, runners_up: int, what_if: bool) -> str:
    """The whole of it as text."""
    best = found.best
    rows = compared(found, runners_up)
    gap = best.seconds / found.bound_seconds - 1 if found.bound_seconds else inf
    lines = [f"best: {mesh_text(best.mesh.shape)}: {best.name}", *bound_lines(best.simulation)]
    lines.append(memory_line(rows[0].memory, best.memory))
    lines += _uneven(best)
    lines.append(f"  no layout in the space takes less than {time_text(found.bound_seconds)} ({gap:+.0%})")
    if len(rows) > 1:
        lines += ["", table_of(rows)]
    return "\n".join([*lines, *(["", *what_if_lines(what_ifs(found))] if what_if else [])])


def _uneven(layout: FoundLayout) -> list[str]:
    """A line with what is not in equal parts, if there is anything."""
    dims = dict.fromkeys(f"{one.name} {one.length:,} in {one.parts} of {one.padded // one.parts:,}"
                         for one in uneven_dims(layout))  # fmt: skip
    more = f" and {len(dims) - UNEVEN} more" if len(dims) > UNEVEN else ""
    return [f"  has in parts that are not equal: {', '.join(list(dims)[:UNEVEN])}{more}"] if dims else []


# After a change


class _ChangedStep(NamedTuple):
    """One change: its name, the step, the machine with the memory of a device, and the step with few equal layers."""

    change: str
    step: Step
    topology: Topology
    memory: float
    short: ShortStep | None = None


def what_ifs(found: FoundLayouts) -> tuple[WhatIf, ...]:
    """The best of the layouts found after each change, simulated again."""
    best = found.best
    step, topology = best.step, best.simulation.topology
    assert step is not None
    short = shortened(step)
    most = max(2, min(5, TRIED // max(1, short.equations if short is not None else len(step.program.eqns))))
    every = contenders(found, most)
    made = []
    for tried in _changes(step, topology, best.memory):
        layouts = every if tried.step is step and tried.topology.size == topology.size else every[:PARTITIONED]
        results = [min(_results(one, tried), key=lambda r: (not r.fits, r.seconds), default=None) for one in layouts]
        fitting = [(r.seconds, n, r.mesh) for n, r in enumerate(results) if r is not None and r.fits]
        kept = results[0].seconds if results[0] is not None and results[0].fits else inf
        if not fitting:
            made.append(WhatIf(tried.change, "", inf, inf, True, divides=any(r is not None for r in results)))
            continue
        seconds, n, sizes = min(fitting, key=lambda r: r[:2])
        other = n > 0 and seconds < kept * (1 - OTHER)
        name = f"{mesh_text(sizes)}: {difference(best, layouts[n])}"
        made.append(WhatIf(tried.change, name, seconds if other else kept, kept, other))
    return tuple(made)


def _changes(step: Step, topology: Topology, memory: float) -> Iterator[_ChangedStep]:
    for one in changed_machines(topology):
        yield _ChangedStep(one.change, step, one.topology, memory * one.memory)
    for word, chips in (("twice", 2 * topology.size), ("half", topology.size // 2)):
        if chips > 1 and (word == "twice" or topology.size % 2 == 0):
            with suppress(MeshwrightError):
                machine = with_chip(topology, topology.chip, chips)
                yield _ChangedStep(f"{word} the chips", step, machine, memory, shortened(step))
    for word, factor in (("twice", 2.0), ("half", 0.5)):
        other = _with_batch(step, factor)
        if other is not None:
            yield _ChangedStep(f"{word} the batch", other, topology, memory, shortened(other))


def _with_batch(step: Step, factor: float) -> Step | None:
    """The step on more or fewer samples, if it is one that takes any number of them.

    Where it keeps something for each sample, as caches, the dim of that is the one of as many elements.
    """
    rows = {step.types[n].shape[0] for n in step.batch}
    if not rows or any(int(n * factor) != n * factor for n in rows):
        return None
    batches = dict.fromkeys(step.batch, 0)
    kept = {n: t.shape.index(next(iter(rows))) for n, t in enumerate(step.types)
            if len(rows) == 1 and step.argument[n] in step.state and t.shape.count(next(iter(rows))) == 1}  # fmt: skip
    for dims in (batches, {**kept, **batches}):
        args = []
        for n, t in enumerate(step.types):
            shape = tuple(int(size * factor) if dims.get(n) == d else size for d, size in enumerate(t.shape))
            args.append(ShapeDtypeStruct(shape, t.dtype))
        with suppress(MeshwrightError):
            return step.with_arguments(tree.unflatten(step.in_tree, args)[0])
    return None


class _AfterChange(NamedTuple):
    """What a layout takes after a change."""

    mesh: Mapping[str, int]
    seconds: float
    fits: bool


def _results(layout: FoundLayout, tried: _ChangedStep) -> Iterator[_AfterChange]:
    """A layout after a change; on another number of chips, on the meshes of which one axis is longer or shorter."""
    step, now, there = layout.step, layout.simulation, tried.topology
    assert step is not None
    if tried.step is step and there.size == now.topology.size:
        sizes = layout.mesh.shape
        if there.chip != now.topology.chip:
            now = simulate(now.block.program, _on(there, sizes), now.mesh, mode=now.machine.mode, donated=step.donated)
        yield _AfterChange(sizes, now.seconds, now.peak_bytes_per_device <= tried.memory)
        return
    wanted = [s.spec for s in tree.leaves(layout.in_shardings)]
    specs = _same_values(layout.specs, step.program, tried.step.program)
    for sizes in _meshes(layout.mesh.shape, there.size):
        mesh = Mesh(np.arange(prod(sizes.values())).reshape(tuple(sizes.values())), tuple(sizes))
        placed = list(_placed(mesh, wanted, [t.shape for t in tried.step.types]))
        if len(placed) == len(wanted) and specs is not None:
            machine, mode = _on(there, sizes), now.machine.mode
            few = tried.short.expected(placed, machine, specs, mode) if tried.short is not None and not specs else None
            made = tried.step.laid_out(placed, machine, layout.name, specs, tried.memory, mode, few)
            yield _AfterChange(sizes, made.seconds, made.fits)


def _on(there: Topology, sizes: Mapping[str, int]) -> Topology:
    """The machine with a mesh."""
    return Topology(there.chip, there.shape, mesh=dict(sizes), wrap=there.wrap, slices=there.slices)


def _meshes(sizes: Mapping[str, int], chips: int) -> Iterator[dict[str, int]]:
    """The same axes on so many chips, all but one of them as long as they were."""
    if prod(sizes.values()) == chips:
        yield dict(sizes)
        return
    for name, size in sizes.items():
        if size * chips % prod(sizes.values()) == 0:
            yield {**sizes, name: size * chips // prod(sizes.values())}


def _placed(mesh: Mesh, specs: Sequence[PartitionSpec], shapes: Sequence[Any]) -> Iterator[TensorSharding]:
    """Specs on a mesh, as far as their shapes can be in so many parts."""
    for spec, shape in zip(specs, shapes, strict=True):
        sharding = NamedSharding(mesh, spec)
        parts = [prod(mesh.shape[a] for a in _axes(entry)) for entry in spec.partitions]
        if not all(map(is_splittable, shape, parts)):  # a spec may be shorter than the shape
            return
        yield sharding.to_tensor_sharding(len(shape))


def _axes(entry: Any) -> tuple[str, ...]:
    return () if entry is None else tuple(entry) if isinstance(entry, tuple | list) else (entry,)


def _same_values(
    specs: Mapping[Var, PartitionSpec], program: Program, other: Program
) -> dict[Var, PartitionSpec] | None:
    """Specs of values for the same values of a program of another batch; None if it is made of other equations."""
    if program is other or not specs:
        return dict(specs)
    found: dict[Var, PartitionSpec] = {}
    if len(program.eqns) != len(other.eqns):
        return None
    for one, two in zip(program.eqns, other.eqns, strict=True):
        if one.op is not two.op or len(one.outputs) != len(two.outputs):
            return None
        found.update((w, specs[v]) for v, w in zip(one.outputs, two.outputs, strict=True) if v in specs)
        for (_, a), (_, b) in zip(one.regions(), two.regions(), strict=True):
            inner = _same_values(specs, a, b)
            if inner is None:
                return None
            found.update(inner)
    return found
