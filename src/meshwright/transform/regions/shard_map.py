"""shard_map: the program of one device, run by all devices of a mesh, each on its own blocks.

``mesh`` holds the axes with their sizes, ``manual`` those that the body is written for. A spec says how an operand is
cut into blocks, or how a result is put together from them:

    in_specs                                       out_specs                                 transpose
    P('i')              a block for each device     blocks are joined                         P('i')
    P()                 the same for all devices    all devices return the same               P()
    P(unreduced='i')    a summand for each device   the sum of what the devices return        P(replicated='i')
    P(replicated='i')   the same for all devices,   the devices return the same, though the   P(unreduced='i')
                        typed as varying over i     type does not say so
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

from meshwright.core.facts import Structure
from meshwright.core.op import Cost, Linear, Linearity, Op, Types, Value, define_op
from meshwright.core.program import Atom, Eqn, Literal, Params, Program, Var
from meshwright.core.source import here
from meshwright.core.trace import Array, Tracer, run
from meshwright.core.types import TensorType, Variance, union
from meshwright.errors import ShardingError, VarianceError
from meshwright.ops.basic import reshape, zeros
from meshwright.ops.collective import (
    all_gather,
    all_gather_invariant,
    finish_sum,
    pbroadcast,
    pinvariant,
    pmax,
    pmin,
    psum,
)
from meshwright.ops.layout import split_first
from meshwright.sharding.spec import PartitionSpec
from meshwright.transform.batch import batch_axis, batch_program, batch_split, batching_over, spmd_axes
from meshwright.transform.jvp import jvp_program, linearize_program
from meshwright.transform.recompute import Recomputation, used_inputs
from meshwright.transform.regions.region import (
    NO_FACTORS,
    Mask,
    as_type,
    batch_type,
    cut,
    fill,
    pick,
    present,
    program_cost,
    region_with,
    show_types,
    spread,
)
from meshwright.transform.simplify import dce
from meshwright.transform.stack import stacked_program
from meshwright.transform.transpose import transpose_program

Axes = tuple[str, ...]
MeshAxes = tuple[tuple[str, int], ...]


# Specs


def dim_axes(spec: PartitionSpec, dim: int) -> Axes:
    """The axes that a dim is cut along, from major to minor."""
    entry = spec.partitions[dim] if dim < len(spec.partitions) else None
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)  # type: ignore[arg-type]


def split_axes(spec: PartitionSpec) -> Axes:
    """All axes that a spec cuts some dim along."""
    return tuple(axis for dim in range(len(spec.partitions)) for axis in dim_axes(spec, dim))


def varying_axes(spec: PartitionSpec) -> Axes:
    """The axes that a value with this spec varies over inside of the body."""
    return union((split_axes(spec), tuple(spec.unreduced), tuple(spec.replicated)))


def dual(spec: PartitionSpec) -> PartitionSpec:
    """The spec of the cotangent of a value with this one."""
    return spec.update(unreduced=spec.replicated, replicated=spec.unreduced)


@lru_cache(maxsize=4096)
def block_type(t: TensorType, spec: PartitionSpec, mesh: MeshAxes) -> TensorType:
    """The type inside of the body of an operand with a spec."""
    sizes = dict(mesh)
    shape = []
    for dim, n in enumerate(t.shape):
        parts = prod(sizes[axis] for axis in dim_axes(spec, dim))
        if n % parts:
            raise ShardingError(
                f"dim {dim} of {t.short()} is not cut into {parts} equal blocks by {spec}.",
                where=here(),
                why=f"{n} is not a multiple of {parts}, and every device runs the same program on blocks of one shape",
                fix=f"pad dim {dim} to {-(-n // parts) * parts}, or leave it whole: None instead of "
                f"{spec.partitions[dim]!r}",
            )
        shape.append(n // parts)
    if set(t.unreduced) != set(spec.unreduced):
        raise VarianceError(
            f"{t.short()} does not enter by {spec}.",
            where=here(),
            why="each device holds a summand of it" if t.unreduced else "it is whole, and not a summand on each device",
            fix=f"in_specs=mw.{spec.update(unreduced=t.unreduced)!r}"
            + (", or sum it first: mw.reshard(x, mw.P())" if t.unreduced else ""),
        )
    return t.with_(shape=tuple(shape), varying=union((t.varying, varying_axes(spec))), unreduced=(), sharding=None)


def whole_type(b: TensorType, spec: PartitionSpec, mesh: MeshAxes, manual: Axes) -> TensorType:
    """The type outside of a result with a spec, from that of what each device returns."""
    sizes = dict(mesh)
    shape = tuple(n * prod(sizes[axis] for axis in dim_axes(spec, dim)) for dim, n in enumerate(b.shape))
    varying = tuple(axis for axis in b.varying if axis not in manual)
    return b.with_(shape=shape, varying=varying, unreduced=union((b.unreduced, tuple(spec.unreduced))))


# Rules


def _check_mesh(mesh: MeshAxes, manual: Axes) -> None:
    """Refuse a mesh that cannot be, and axes that are not its own."""
    names = [name for name, _ in mesh]
    if len(set(names)) < len(names) or any(size < 1 for _, size in mesh):
        raise ShardingError(
            f"A shard_map cannot run on the mesh {mesh}.",
            where=here(),
            why="each axis has a name of its own and a size from 1",
            fix="mesh=(('x', 2), ('y', 4))",
        )
    if len(set(manual)) < len(manual) or not set(manual) <= set(names):
        raise ShardingError(
            f"A shard_map cannot be over the axes {', '.join(manual)}.",
            where=here(),
            why=f"the mesh has the axes {', '.join(names) or 'none'}, each of which can be named once",
            fix="manual=('x', 'y'), axes of the mesh",
        )


def _check_specs(what: str, specs: Sequence[PartitionSpec], types: Types, manual: Axes) -> None:
    """Refuse specs that are not one for each value, of no more dims than it has, over axes of the shard_map."""
    why = f"there are {len(specs)} specs for {len(types)} values" if len(specs) != len(types) else ""
    for spec, t in zip(specs, types, strict=False):
        if len(spec.partitions) > t.ndim or not spec.is_closed:
            why = why or f"{spec} says something else than how each of the {t.ndim} dims of {t.short()} is cut"
            continue
        axes = [*split_axes(spec), *spec.unreduced, *spec.replicated]
        if len(set(axes)) < len(axes) or not set(axes) <= set(manual):
            why = why or f"{spec} names another axis than {', '.join(manual) or 'none'}, or one twice"
    if why:
        raise ShardingError(
            f"The {what} of a shard_map do not fit.", where=here(), why=why, fix=f"{what}=(mw.P('x', None), mw.P())"
        )


def _check_sizes(body: Program, sizes: dict[str, int], manual: Axes) -> None:
    """Hold the collectives of a body to the sizes that axes have in the mesh."""
    for eqn in body.eqns:
        given = zip(eqn.params["axes"], eqn.params["sizes"], strict=True) if _has_sizes(eqn) else ()
        for axis, size in given:
            if axis in manual and size != sizes[axis]:
                raise ShardingError(
                    f"{eqn.op.name} takes {axis} to have the size {size}.",
                    where=eqn.source.show() if eqn.source else here(),
                    why=f"in the mesh of the shard_map around it {axis} has the size {sizes[axis]}",
                    fix=f"sizes=({sizes[axis]},) for the axis {axis}",
                )
        for _, region in eqn.regions():
            _check_sizes(region, sizes, manual)


def _has_sizes(eqn: Eqn) -> bool:
    return eqn.op.stack is not None and "sizes" in eqn.params


def _type(
    *types: TensorType,
    body: Program,
    mesh: MeshAxes,
    manual: Axes,
    in_specs: tuple[PartitionSpec, ...],
    out_specs: tuple[PartitionSpec, ...],
) -> tuple[TensorType, ...]:
    _check_mesh(mesh, manual)
    _check_specs("in_specs", in_specs, types, manual)
    _check_specs("out_specs", out_specs, body.out_types, manual)
    _check_sizes(body, dict(mesh), manual)
    blocks = [block_type(t, spec, mesh) for t, spec in zip(types, in_specs, strict=True)]
    if list(body.in_types) != blocks:
        raise ShardingError(
            "The body of a shard_map does not fit its operands.",
            why=f"it takes ({show_types(body.in_types)}) and is given blocks ({show_types(blocks)})",
            fix="trace the function again with operands of these types",
        )
    for t, spec in zip(body.out_types, out_specs, strict=True):
        found = tuple(axis for axis in t.varying if axis in manual)
        if set(found) != set(varying_axes(spec)):
            raise VarianceError(
                f"A result {t.short()} does not leave a shard_map by {spec}.",
                why=f"it varies over {', '.join(found) or 'no axis'}",
                fix="name in its spec the axes it varies over",
            )
    return tuple(whole_type(t, spec, mesh, manual) for t, spec in zip(body.out_types, out_specs, strict=True))


def _evaluate(xp: Any, *args: Any, **params: Any) -> tuple[Any, ...]:
    return tuple(xp.function(stacked_program(**params))(*args))


def _jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    body, mask = params["body"], present(tangents)
    n = len(primals)

    def both(*args: Any) -> tuple[list[Any], Mask]:
        outs, out_ts = jvp_program(body, args[:n], spread(args[n:], mask))
        return outs + [t for t in out_ts if t is not None], present(out_ts)

    pushed, nonzero = region_with(both, [*body.in_types, *pick(body.in_types, mask)])
    outs = op(
        *primals, *pick(tangents, mask),
        **{**params, "body": pushed, "in_specs": (*params["in_specs"], *pick(params["in_specs"], mask)),
           "out_specs": (*params["out_specs"], *pick(params["out_specs"], nonzero))},
    )  # fmt: skip
    values, out_ts = cut(outs, len(body.outputs))
    return values, spread(out_ts, nonzero)


def _linearize(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    """A forward shard_map that also returns what the derivative needs, and a linear one that takes it.

    What the derivative needs of the operands is passed on as it came, and what was lifted is lifted again: only what
    the devices computed crosses the boundary.
    """
    body, mask, manual = params["body"], present(tangents), params["manual"]

    def forward(*args: Any) -> tuple[list[Any], Any]:
        outs, linear = linearize_program(body, args, mask)
        position = {arg.variable: n for n, arg in enumerate(args)}
        found: list[tuple[str, Any, Axes]] = []  # where the linear body gets each residual from, and how it is lifted
        saved: list[Any] = []
        for r in linear.residuals:
            made_varying: Axes = ()
            r, made_varying = _unlifted(r)
            n = position.get(r.variable, -1) if isinstance(r, Tracer) else -1
            if n >= 0:
                found.append(("operand", n, made_varying))
            elif isinstance(r, Array):
                found.append(("constant", r, made_varying))
            else:
                found.append(("saved", len(saved), made_varying))
                saved.append(r)
        specs = [_kept_spec(r.type, manual) for r in saved]
        return outs + [_as_block(r) for r in saved], (linear, found, [r.type for r in saved], specs)

    program, (linear, found, saved_types, saved_specs) = region_with(forward, body.in_types)
    outs = op(*primals, **{**params, "body": program, "out_specs": (*params["out_specs"], *saved_specs)})
    values, saved = cut(outs, len(body.outputs))

    needed = list(dict.fromkeys(place for kind, place, _ in found if kind == "operand"))
    active_types = pick(body.in_types, mask)

    def linear_body(*args: Any) -> list[Any]:
        operands, blocks, active = cut(args, len(needed), len(saved))
        given: list[Any] = []
        for kind, place, made_varying in found:
            if kind == "operand":
                value = operands[needed.index(place)]
            elif kind == "constant":
                value = place
            else:
                value = blocks[place]
                value = reshape(value, shape=()) if saved_types[place].ndim == 0 else value
            given.append(pbroadcast(value, axes=made_varying) if made_varying else value)
        outs = run(linear.program, [*given, *active])
        wanted = pick(body.out_types, linear.nonzero)
        return [as_type(x, t) for x, t in zip(outs, wanted, strict=True)]

    in_types = [body.in_types[n] for n in needed]
    in_types += [t.with_(shape=t.shape or (1,)) for t in saved_types]
    program, _ = region_with(lambda *args: (linear_body(*args), None), [*in_types, *active_types])
    in_specs = [params["in_specs"][n] for n in needed] + saved_specs + pick(params["in_specs"], mask)
    out_ts = op(
        *(primals[n] for n in needed), *saved, *pick(tangents, mask),
        **{**params, "body": program, "in_specs": tuple(in_specs),
           "out_specs": tuple(pick(params["out_specs"], linear.nonzero))},
    )  # fmt: skip
    return values, spread(out_ts, linear.nonzero)


def _kept_spec(t: TensorType, manual: Axes) -> PartitionSpec:
    """How what devices computed for themselves is joined outside, block behind block along its first dim."""
    return PartitionSpec(tuple(a for a in manual if a in t.varying) or None)


def _as_block(x: Value) -> Value:
    """A value with a dim to be joined along."""
    return reshape(x, shape=(1,)) if x.ndim == 0 else x


def _recompute(
    eqn: Eqn, wanted: Sequence[bool], split: Callable[[Program, Sequence[bool]], Recomputation]
) -> tuple[Eqn, Eqn, Sequence[Var]]:
    """What is kept inside crosses the boundary as blocks."""
    params, body = eqn.params, eqn.params["body"]
    n_out = len(body.outputs)
    found = split(body, wanted)
    types = found.first.out_types[n_out:]
    specs = tuple(_kept_spec(t, params["manual"]) for t in types)

    def keeping(*args: Any) -> tuple[list[Any], None]:
        outs, kept = cut(run(found.first, args), n_out)
        return outs + [_as_block(x) for x in kept], None

    needed = used_inputs(found.again)[found.kept :]

    def from_kept(*args: Any) -> tuple[list[Any], None]:
        blocks, entered = cut(args, found.kept)
        kept = [reshape(x, shape=t.shape) if t.ndim == 0 else x for x, t in zip(blocks, types, strict=True)]
        unused = [zeros(t) if not flag else None for t, flag in zip(body.in_types, needed, strict=True)]
        given = [u if x is None else x for x, u in zip(spread(entered, needed), unused, strict=True)]
        return run(found.again, [*kept, *given]), None

    first_body, _ = region_with(keeping, body.in_types)
    again_types = [t.with_(shape=t.shape or (1,)) for t in types] + pick(body.in_types, needed)
    again_body, _ = region_with(from_kept, again_types)
    first_params = {**params, "body": first_body, "out_specs": (*params["out_specs"], *specs)}
    again_params = {
        **params,
        "body": dce(again_body, effects=False),
        "in_specs": (*specs, *pick(params["in_specs"], needed)),
        "out_specs": tuple(pick(params["out_specs"], wanted)),
    }
    kept = [Var(t) for t in eqn.op.type(*(a.type for a in eqn.inputs), **first_params)[n_out:]]  # type: ignore[index]
    first = Eqn(eqn.op, eqn.inputs, first_params, (*eqn.outputs, *kept), eqn.source)
    inputs = (*kept, *pick(eqn.inputs, needed))
    return first, Eqn(eqn.op, inputs, again_params, pick(eqn.outputs, wanted), eqn.source), kept


def _unlifted(r: Any) -> tuple[Any, Axes]:
    """A value from before it was lifted, and the axes that it was lifted over."""
    if isinstance(r, Tracer):
        made = next((eqn for eqn in reversed(r.builder.eqns) if r.variable in eqn.outputs), None)
        if made is not None and made.op.structure is Structure.VARYING and isinstance(made.inputs[0], Var):
            return Tracer(r.builder, made.inputs[0]), made.params["axes"]
    return r, ()


def _transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    """The body backward, with the specs of operands and results in each other's place."""
    body, mesh = params["body"], params["mesh"]
    linear = tuple(isinstance(x, Linear) for x in inputs)
    known = [x for x in inputs if not isinstance(x, Linear)]
    ct_mask = present(cts)
    active = pick(cts, ct_mask)
    known_specs = pick(params["in_specs"], [not is_linear for is_linear in linear])
    ct_specs = [dual(spec) for spec in pick(params["out_specs"], ct_mask)]
    wanted = pick(body.in_types, linear)

    def backward(*args: Any) -> tuple[list[Any], Mask]:
        values, out_cts = cut(args, len(known))
        found = transpose_program(body, linear, fill(values, linear), spread(out_cts, ct_mask))
        nonzero = present(pick(found, linear))
        kept = zip(pick(pick(found, linear), nonzero), pick(wanted, nonzero), strict=True)
        return [as_type(ct, t) for ct, t in kept], nonzero

    types = pick(body.in_types, [not is_linear for is_linear in linear])
    active = [_whole(ct, spec) for ct, spec in zip(active, ct_specs, strict=True)]
    types += [block_type(ct.type, spec, mesh) for ct, spec in zip(active, ct_specs, strict=True)]
    program, nonzero = region_with(backward, types)
    entered = pick(pick(params["in_specs"], linear), nonzero)
    _check_sums(program, [tuple(spec.replicated) for spec in (*known_specs, *ct_specs)], entered)
    out_specs = [dual(spec) for spec in entered]
    found = op(
        *known, *active,
        **{**params, "body": dce(program), "in_specs": (*known_specs, *ct_specs), "out_specs": tuple(out_specs)},
    )  # fmt: skip
    return spread(spread(found, nonzero), linear)


def _whole(ct: Value, spec: PartitionSpec) -> Value:
    """A cotangent that is to enter by a spec: one that is a partial sum is summed where the spec has no summands."""
    axes = tuple(axis for axis in ct.type.unreduced if axis not in spec.unreduced)
    return finish_sum(ct, axes=axes) if axes else ct


def _check_sums(program: Program, same: Sequence[Axes], specs: Sequence[PartitionSpec]) -> None:
    """Refuse a body whose results depend on summands by themselves: the cotangent of a sum is one for all devices.

    ``program`` is the body backward, ``same`` the axes along which each of its inputs is known not to differ, and
    ``specs`` are those by which the operands, whose cotangents it returns, entered.
    """
    for axis in sorted({axis for spec in specs for axis in spec.unreduced}):
        found = same_along(axis, program, [axis in axes for axes in same])
        for n, (spec, atom) in enumerate(zip(specs, program.outputs, strict=True)):
            if axis in spec.unreduced and not found[n]:
                raise VarianceError(
                    f"shard_map has no derivative in an argument that enters by {spec!r}: {atom.type.short()}.",
                    where=here(),
                    why="the function depends on the summands that devices hold, and not on their sum alone, so that "
                    f"the derivative would differ between devices along {axis}",
                    fix="sum it first: mw.reshard(x, mw.P()), or return it from the function before by out_specs=mw.P("
                    f"{axis!r}) if each device is to have its own",
                )


def _batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    """Each device runs its body on a batch of blocks; the batch may be split over further axes."""
    body, sizes = params["body"], dict(params["mesh"])
    spmd = spmd_axes()
    _check_spmd(spmd, size, params)
    spmd = spmd or _axes_of_batch(args, batched, params)
    local = size // prod(sizes[axis] for axis in spmd)
    manual = union_in_order(params["mesh"], (*params["manual"], *spmd))
    entry = (spmd if len(spmd) > 1 else spmd[0]) if spmd else None

    def placed(spec: PartitionSpec, is_batched: bool) -> PartitionSpec:
        return spec.update((entry, *spec.partitions)) if is_batched else spec

    def step(*values: Any) -> tuple[list[Any], list[bool]]:
        with batching_over(batch_axis(), split=union((batch_split(), spmd))):
            outs, flags = batch_program(body, local, values, batched)
        wanted = [union((varying_axes(placed(spec, b)), _outer(x.type.varying, manual)))
                  for x, spec, b in zip(outs, params["out_specs"], flags, strict=True)]  # fmt: skip
        return [as_type(x, x.type.with_(varying=v)) for x, v in zip(outs, wanted, strict=True)], flags

    types = [batch_type(t, b, local) for t, b in zip(body.in_types, batched, strict=True)]
    types = [t.with_(varying=union((t.varying, spmd))) if b else t for t, b in zip(types, batched, strict=True)]
    program, flags = region_with(step, types)
    in_specs = tuple(placed(spec, b) for spec, b in zip(params["in_specs"], batched, strict=True))
    out_specs = tuple(placed(spec, b) for spec, b in zip(params["out_specs"], flags, strict=True))
    outs = op(*args, body=program, mesh=params["mesh"], manual=manual, in_specs=in_specs, out_specs=out_specs)
    typed = next((x.type.sharding for x in args if x.type.sharding is not None), None)
    if entry is None or typed is None:
        return list(outs), flags
    return [split_first(x, entry, typed.mesh) if b else x for x, b in zip(outs, flags, strict=True)], flags


def union_in_order(mesh: MeshAxes, axes: Sequence[str]) -> Axes:
    """The named axes in the order of the mesh."""
    return tuple(name for name, _ in mesh if name in axes)


def _outer(varying: Axes, manual: Axes) -> Axes:
    return tuple(axis for axis in varying if axis not in manual)


def _axes_of_batch(args: Sequence[Value], batched: Sequence[bool], params: Params) -> Axes:
    """The Explicit axes that the batch is split over, by the types of all operands that say so; the devices along them
    go on with their own examples."""
    found = {
        tuple(axis.short() for axis in x.type.sharding.dims[0].axes)
        for x, is_batched in zip(args, batched, strict=True)
        if is_batched and x.type.sharding is not None
    }
    axes = found.pop() if len(found) == 1 else ()
    return axes if all(_leaves_alone(params, axis) for axis in axes) else ()


def _leaves_alone(params: Params, axis: str) -> bool:
    """Whether the devices along an axis do the same, each by itself, so that each can take other examples."""
    if axis not in dict(params["mesh"]):
        return False
    if axis not in params["manual"]:
        return True
    specs = (*params["in_specs"], *params["out_specs"])
    return not any(axis in varying_axes(spec) for spec in specs) and not _names(params["body"], axis)


def _names(program: Program, axis: str) -> bool:
    """Whether an equation of a program, or of its regions, is about an axis."""
    return any(
        axis in eqn.params.get("axes", ()) or any(_names(region, axis) for _, region in eqn.regions())
        for eqn in program.eqns
    )


def _check_spmd(spmd: Axes, size: int, params: Params) -> None:
    sizes = dict(params["mesh"])
    for axis in spmd:
        if not _leaves_alone(params, axis):
            raise ShardingError(
                f"vmap cannot split its batch over the mesh axis {axis!r}.",
                where=here(),
                why=f"the shard_map inside works over {', '.join(params['manual'])} by hand"
                if axis in sizes
                else f"the mesh has the axes {', '.join(sizes)}",
                fix="spmd_axis_name=… with an axis of the mesh that the shard_map leaves alone",
            )
    parts = prod(sizes[axis] for axis in spmd)
    if size % parts:
        raise ShardingError(
            f"vmap cannot split a batch of {size} over {parts} devices.",
            where=here(),
            why=f"{size} is not a multiple of {parts}",
            fix=f"a batch of {-(-size // parts) * parts}",
        )


def _prune(eqn: Eqn, live: Sequence[bool]) -> Eqn:
    """The equation without results that nobody reads, and without what was computed for them alone."""
    body = eqn.params["body"]
    kept = dce(Program(body.inputs, body.eqns, tuple(pick(body.outputs, live)), body.constants))
    used = {a for e in kept.eqns for a in e.inputs} | set(kept.outputs)
    needed = tuple(v in used for v in kept.inputs)
    program = Program(tuple(pick(kept.inputs, needed)), kept.eqns, kept.outputs, kept.constants)
    params = {
        **eqn.params,
        "body": program,
        "in_specs": tuple(pick(eqn.params["in_specs"], needed)),
        "out_specs": tuple(pick(eqn.params["out_specs"], live)),
    }
    return Eqn(eqn.op, tuple(pick(eqn.inputs, needed)), params, tuple(pick(eqn.outputs, live)), eqn.source)


def _cost(operands: Types, results: Types, params: Params) -> Cost:
    """The work of one device."""
    return program_cost(params["body"])


shard_map: Op = define_op(
    "shard_map",
    type=_type,
    factors=NO_FACTORS,
    variance=Variance.OWN,
    linear=Linearity.NONE,
    jvp=_jvp,
    linearize=_linearize,
    transpose=_transpose,
    batch=_batch,
    structure=Structure.DEVICE,
    evaluate=_evaluate,
    cost=_cost,
    prune=_prune,
    recompute=_recompute,
    samples=lambda: [],
)


# What is the same on all devices along a mesh axis although types, which follow single equations, do not say so

JOINING = (psum, pmax, pmin, all_gather, all_gather_invariant, pinvariant)  # all devices have the same of it


def same_along(axis: str, program: Program, given: Sequence[bool]) -> list[bool]:
    """Which outputs of a program are certain to be the same on all devices along an axis, if the ``given`` inputs are,
    whatever their types say."""
    same: set[Atom] = {var for var, flag in zip(program.inputs, given, strict=True) if flag}
    same.update(var for var, _ in program.constants)

    def same_value(atom: Atom) -> bool:
        return isinstance(atom, Literal) or atom in same or axis not in atom.type.varying

    for eqn in program.eqns:
        joins = eqn.op in JOINING and axis in eqn.params["axes"]
        if joins or (all(map(same_value, eqn.inputs)) and not _tells_apart(eqn, axis)):
            same.update(eqn.outputs)
    return [same_value(atom) for atom in program.outputs]


def _tells_apart(eqn: Eqn, axis: str) -> bool:
    """Whether an equation may give devices along an axis different results of equal operands."""
    own = (
        eqn.op.stack is not None
        and eqn.op not in JOINING
        and eqn.op.structure is not Structure.VARYING
        and axis in eqn.params["axes"]
    )
    return own or eqn.op.effects or any(_tells_apart(e, axis) for _, region in eqn.regions() for e in region.eqns)
