"""All devices in one program: the body of a shard_map as a program on whole arrays.

Along each mesh axis the devices become the examples of a batch: a value that differs between them has one row for
each, in front; a value that does not is there once, and so is what is computed from such values alone. Collectives
become sums and rearrangements of rows, blocks become reshapes. What is left is an ordinary program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from meshwright.core.facts import Structure
from meshwright.core.op import Value
from meshwright.core.program import Atom, Eqn, Program, Var
from meshwright.core.trace import run
from meshwright.core.types import TensorType
from meshwright.ops.basic import broadcast_in_dim, reshape
from meshwright.ops.collective import first_row, permuted
from meshwright.transform.batch import batch_program, batching_over
from meshwright.transform.fused_sums import fuse_sums
from meshwright.transform.regions.region import batch_type, region, region_with
from meshwright.transform.simplify import chain, cse, dce, with_inputs
from meshwright.transform.summands import sums_as_rows

if TYPE_CHECKING:
    from meshwright.sharding.spec import PartitionSpec

MeshAxes = tuple[tuple[str, int], ...]

Which = bool | Callable[[Eqn], bool]  # shard_maps: all, none, or those of which it is true


def inline_calls(program: Program, shard_maps: Which = True) -> Program:
    """The program with calls that only run a region, and some shard_maps, replaced by equations; in regions, too."""
    if shard_maps is True:
        program = sums_as_rows(program)
    if not _has_calls(program, shard_maps):
        return program
    eqns: list[Eqn] = []
    constants = list(program.constants)
    env: dict[Atom, Atom] = {}

    def rename(var: Var) -> Var:
        env[var] = renamed = Var(var.type)
        return renamed

    def walk(inner: Program, top: bool) -> None:
        for eqn in inner.eqns:
            inputs = [env.get(a, a) for a in eqn.inputs]
            if eqn.op.structure is Structure.DEVICE and _chosen(eqn, shard_maps):
                stacked = _stacked(**eqn.params)  # without calls, and its variables are its own
                given: dict[Atom, Atom] = dict(zip(stacked.inputs, inputs, strict=True))
                constants.extend(stacked.constants)
                eqns.extend(with_inputs(one, given) for one in stacked.eqns)
                env.update(zip(eqn.outputs, [given.get(a, a) for a in stacked.outputs], strict=True))
                continue
            called = eqn.params[eqn.op.calls] if eqn.op.calls is not None else None
            if called is None:
                outputs = eqn.outputs if top else [rename(v) for v in eqn.outputs]
                params = {name: _inline_param(value, shard_maps) for name, value in eqn.params.items()}
                eqns.append(Eqn(eqn.op, inputs, params, outputs, eqn.source))
                continue
            constants.extend((rename(var), data) for var, data in called.constants)
            env.update(zip(called.inputs, inputs, strict=True))
            walk(called, False)
            env.update(zip(eqn.outputs, [env.get(a, a) for a in called.outputs], strict=True))

    walk(program, True)
    outputs = tuple(env.get(a, a) for a in program.outputs)
    return Program(program.inputs, tuple(eqns), outputs, tuple(constants))


def stack(program: Program) -> Program:
    """All devices in one program, of one whose shard_maps are written for one device: no calls are left."""
    return dce(inline_calls(program))


def _has_calls(program: Program, shard_maps: Which) -> bool:
    return any(
        eqn.op.calls is not None
        or (eqn.op.structure is Structure.DEVICE and _chosen(eqn, shard_maps))
        or any(_has_calls(inner, shard_maps) for _, inner in eqn.regions())
        for eqn in program.eqns
    )


def _chosen(eqn: Eqn, shard_maps: Which) -> bool:
    return shard_maps if isinstance(shard_maps, bool) else shard_maps(eqn)


def _inline_param(value: Any, shard_maps: Which) -> Any:
    if isinstance(value, Program):
        return inline_calls(value, shard_maps)
    return tuple(_inline_param(item, shard_maps) for item in value) if isinstance(value, tuple) else value


def _stacked(
    body: Program,
    mesh: MeshAxes,
    manual: tuple[str, ...],
    in_specs: tuple[PartitionSpec, ...],
    out_specs: tuple[PartitionSpec, ...],
) -> Program:
    """The program of all devices on whole operands, from that of one device on blocks; no spec is of a partial sum."""
    sizes = dict(mesh)
    program = inline_calls(body)
    stacks: dict[str, list[bool]] = {}  # by axis, which results have rows along it
    entering = [_entry_axes(spec) for spec in in_specs]
    for axis in reversed(manual):  # the first axis of the mesh is the outermost
        flags = [axis in axes for axes in entering]
        with batching_over(axis):

            def devices(*values: Any, inner: Program = program, axis: str = axis, flags: list[bool] = flags) -> Any:
                return batch_program(inner, sizes[axis], values, flags)

            types = [batch_type(v.type, b, sizes[axis]) for v, b in zip(program.inputs, flags, strict=True)]
            program, stacks[axis] = region_with(devices, types)
        program = dce(program)

    def rows(*args: Value) -> list[Value]:
        return [_cut(x, spec, sizes, manual) for x, spec in zip(args, in_specs, strict=True)]

    def joined(*outs: Value) -> list[Value]:
        along = [[axis for axis in manual if stacks[axis][n]] for n in range(len(outs))]
        return [_join(x, spec, sizes, manual, axes) for x, spec, axes in zip(outs, out_specs, along, strict=True)]

    types = [_whole_type(v.type, axes, spec, sizes, manual)
             for v, axes, spec in zip(program.inputs, entering, in_specs, strict=True)]  # fmt: skip
    before = region(rows, types)
    if before.out_types == program.in_types:
        whole = chain(chain(before, program), region(joined, program.out_types))
    else:  # what varies over other axes around
        whole = region(lambda *args: joined(*run(program, rows(*args))), types)
    return fuse_sums(cse(dce(whole)))


stacked_program = lru_cache(maxsize=256)(_stacked)  # for shard_maps that are run as they are


def _dims(spec: PartitionSpec, ndim: int) -> list[tuple[str, ...]]:
    entries = [*spec.partitions, *[None] * (ndim - len(spec.partitions))]
    return [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in entries]  # type: ignore[arg-type]


def _entry_axes(spec: PartitionSpec) -> set[str]:
    """The axes along which an operand has rows."""
    return {axis for axes in _dims(spec, len(spec.partitions)) for axis in axes}


def _whole_type(
    t: TensorType, axes: set[str], spec: PartitionSpec, sizes: dict[str, int], manual: Sequence[str]
) -> TensorType:
    """The type of an operand outside, from that of its rows."""
    shape = list(t.shape[len(axes) :])
    for dim, names in enumerate(_dims(spec, len(shape))):
        for name in names:
            shape[dim] *= sizes[name]
    return t.with_(shape=tuple(shape))


def _cut(x: Value, spec: PartitionSpec, sizes: dict[str, int], manual: Sequence[str]) -> Value:
    """An operand as rows of blocks, one dim in front for each axis it is cut along."""
    shape: list[int] = []
    places: dict[str, int] = {}
    kept: list[int] = []
    for n, axes in zip(x.shape, _dims(spec, x.ndim), strict=True):
        for axis in axes:
            places[axis] = len(shape)
            shape.append(sizes[axis])
            n //= sizes[axis]
        kept.append(len(shape))
        shape.append(n)
    if places:
        x = reshape(x, shape=tuple(shape))
        x = permuted(x, [places[axis] for axis in manual if axis in places] + kept)
    return x


def _join(x: Value, spec: PartitionSpec, sizes: dict[str, int], manual: Sequence[str], stacked: list[str]) -> Value:
    """A result from its rows of blocks: joined, or one of them."""
    rank = x.ndim - len(stacked)
    dims = _dims(spec, rank)
    joined = {axis for axes in dims for axis in axes}
    for axis in manual:
        if axis in joined:
            continue
        if axis in stacked:
            at = stacked.index(axis)
            others = [d for d in range(x.ndim) if d != at]
            x = first_row(permuted(x, [at, *others]))
            stacked = [a for a in stacked if a != axis]
    order: list[int] = []
    shape: list[int] = []
    for axis in sorted(joined.difference(stacked)):  # all devices hold the same block
        x = broadcast_in_dim(x, shape=(sizes[axis], *x.shape), dims=tuple(range(1, x.ndim + 1)))
        stacked = [axis, *stacked]
    for dim, axes in enumerate(dims):
        order += [stacked.index(axis) for axis in axes]
        order.append(len(stacked) + dim)
        n = x.shape[len(stacked) + dim]
        for axis in axes:
            n *= sizes[axis]
        shape.append(n)
    x = permuted(x, order)
    return reshape(x, shape=tuple(shape)) if stacked else x
