"""Loops, branches and hand-written parts: their regions are localized like the program around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.core.facts import Structure
from meshwright.core.op import Value
from meshwright.core.program import Atom, Eqn, Program, Var
from meshwright.core.source import here
from meshwright.core.trace import apply, at_source, make_varying, read, write
from meshwright.core.types import TensorType, union
from meshwright.errors import MeshError, ShardingError
from meshwright.ops.collective import pinvariant
from meshwright.ops.placement import constraint_sharding
from meshwright.partition.across import is_on
from meshwright.partition.layouts import axes_used, closed, finished, layout, on_mesh, replicated
from meshwright.partition.localize import RULES, Localizer, Version, sharded_as
from meshwright.sharding.axes import Axes, total_size
from meshwright.sharding.named import TensorSharding
from meshwright.sharding.spec import PartitionSpec, entry_axes, is_open, pasted, read_axis
from meshwright.transform.regions.control import cond, while_
from meshwright.transform.regions.region import as_type, cut, region_with
from meshwright.transform.regions.scan import scan
from meshwright.transform.regions.shard_map import dim_axes


def _row(sharding: TensorSharding) -> TensorSharding:
    """The layout of a row of an array whose first dim is whole."""
    return layout(sharding.mesh, tuple(dim.axes for dim in sharding.dims[1:]))


def _stack(sharding: TensorSharding) -> TensorSharding:
    return layout(sharding.mesh, ((), *(dim.axes for dim in sharding.dims)))


def _read(local: Localizer, atoms: Sequence[Atom], layouts: Sequence[TensorSharding], reader: str) -> list[Value]:
    """Values as a region reads them."""
    return [local.get(a, s, f"{reader} {sharded_as(s, a.type)}") for a, s in zip(atoms, layouts, strict=True)]


def _reduced_layout(local: Localizer, atom: Atom) -> TensorSharding:
    return finished(local.best(atom, unreduced=False))


def _region(
    local: Localizer,
    program: Program,
    layouts: Sequence[TensorSharding],
    types: Sequence[TensorType],
    results: Sequence[TensorSharding | None],
) -> tuple[Program, list[TensorSharding], list[TensorSharding]]:
    """A region on blocks of the given layouts; results in the given ones, or as they come out, sums taken.

    Also the layouts that its inputs are first brought into.
    """

    def body(*values: Value) -> tuple[list[Value], tuple[list[TensorSharding], list[TensorSharding]]]:
        inner = local.inside()
        for var, sharding, value in zip(program.inputs, layouts, values, strict=True):
            inner.define(var, Version(sharding, value))
        inner.run(program)
        found = []
        for atom, wanted in zip(program.outputs, results, strict=True):
            need = wanted or _reduced_layout(inner, atom)
            found.append((inner.get(atom, need, f"the region returns it {sharded_as(need, atom.type)}"), need))
        brought = [inner.moved.get(var, sharding) for var, sharding in zip(program.inputs, layouts, strict=True)]
        return [value for value, _ in found], ([need for _, need in found], brought)

    program_, (needs, brought) = region_with(body, types)
    return program_, needs, brought


def _carry_layouts(local: Localizer, outs: Sequence[Var], init: Sequence[Atom]) -> list[TensorSharding]:
    """One layout for each value that a loop carries and returns: what propagation found for it, or where it starts."""
    found = []
    for var, atom in zip(outs, init, strict=False):
        wanted = local.wanted.get(var)
        found.append(finished(closed(wanted)) if wanted is not None else _reduced_layout(local, atom))
    return found


def _grown(types: Sequence[TensorType], program: Program) -> list[TensorType]:
    """The types of a carry, varying also as what the body returns for it."""
    outs = program.out_types[: len(types)]
    return [t.with_(varying=union((t.varying, o.varying))) for t, o in zip(types, outs, strict=True)]


def _with_carry(program: Program, types: Sequence[TensorType]) -> Program:
    """The region with a carry of exactly these types."""
    for n, t in enumerate(types):
        if program.outputs[n].type is not t:
            program = _then(program, n, lambda x, t=t: as_type(x, t))  # type: ignore[misc]
    return program


def _then(program: Program, n: int, function: Callable[[Value], Value]) -> Program:
    """A program with a function of one of its results in that one's place."""
    outputs = list(program.outputs)
    after, _ = region_with(lambda x: ([function(x)], None), [outputs[n].type])
    at: dict[Atom, Atom] = {after.inputs[0]: outputs[n]}
    eqns = [Eqn(e.op, [at.get(a, a) for a in e.inputs], e.params, e.outputs, e.source) for e in after.eqns]
    outputs[n] = at.get(after.outputs[0], after.outputs[0])
    return Program(program.inputs, (*program.eqns, *eqns), tuple(outputs), (*program.constants, *after.constants))


def _exactly(local: Localizer, x: Value, sharding: TensorSharding) -> Value:
    """A value that varies, also for its type, along no other axes of the mesh than those of its layout.

    On its way from another layout it may have been along more; where those end, all devices have the same.
    """
    differs = {name for axis in axes_used(sharding) for name, _ in local.names(axis)}
    here = {name: size for axis in local.mesh.axes for name, size in local.names(axis)}
    same = tuple(name for name in x.type.varying if name in here and name not in differs)
    return pinvariant(x, axes=same, sizes=tuple(here[name] for name in same)) if same else x


def _scan(local: Localizer, eqn: Eqn) -> list[Version]:
    params = eqn.params
    body, n_consts, n_carry = params["body"], params["consts"], params["carry"]
    consts, init, xs = cut(eqn.inputs, n_consts, n_carry)
    row_vars = body.inputs[n_consts + n_carry :]
    const_layouts = [_reduced_layout(local, atom) for atom in consts]
    carry_layouts = _carry_layouts(local, eqn.outputs, init)
    row_layouts = []
    for var, atom in zip(row_vars, xs, strict=True):
        wanted = local.wanted.get(var)
        row_layouts.append(finished(closed(wanted)) if wanted is not None else _row(_reduced_layout(local, atom)))
    why = "the loop reads it row by row"
    init_values = _read(local, init, carry_layouts, "the loop starts from it")
    rows = [local.get(a, _stack(s), why) for a, s in zip(xs, row_layouts, strict=True)]
    row_types = [x.type.with_(shape=x.shape[1:]) for x in rows]
    carry_types = [x.type for x in init_values]
    y_wanted = [local.wanted.get(v) for v in eqn.outputs[n_carry:]]
    y_layouts = [_row(finished(closed(w))) if w is not None and not w.dims[0].axes else None for w in y_wanted]
    hoisted = False  # what every step would bring constants into is brought there once, before the loop
    while True:
        const_values = _read(local, consts, const_layouts, "the loop reads it")
        types = [*(x.type for x in const_values), *carry_types, *row_types]
        layouts = [*const_layouts, *carry_layouts, *row_layouts]
        program, needs, brought = _region(local, body, layouts, types, [*carry_layouts, *y_layouts])
        grown = _grown(carry_types, program)
        if grown == carry_types and (hoisted or brought[:n_consts] == const_layouts):
            break
        const_layouts, hoisted = brought[:n_consts], True
        carry_types = grown
    outs = scan(
        *const_values, *(as_type(x, t) for x, t in zip(init_values, carry_types, strict=True)), *rows,
        **{**params, "body": _with_carry(program, carry_types)},
    )  # fmt: skip
    found = [*carry_layouts, *(_stack(s) for s in needs[n_carry:])]
    return [Version(s, x) for s, x in zip(found, outs, strict=True)]


def _while(local: Localizer, eqn: Eqn) -> list[Version]:
    params = eqn.params
    test, body, n_test, n_body = (params[k] for k in ("cond", "body", "cond_consts", "body_consts"))
    test_consts, body_consts, init = cut(eqn.inputs, n_test, n_body)
    test_layouts = [_reduced_layout(local, atom) for atom in test_consts]
    body_layouts = [_reduced_layout(local, atom) for atom in body_consts]
    carry_layouts = _carry_layouts(local, eqn.outputs, init)
    values = [
        _read(local, atoms, layouts, "the loop reads it")
        for atoms, layouts in ((test_consts, test_layouts), (body_consts, body_layouts), (init, carry_layouts))
    ]
    carry_types = [x.type for x in values[2]]
    decided = replicated(local.mesh, 0)
    while True:
        body_types = [*(x.type for x in values[1]), *carry_types]
        program, _, _ = _region(local, body, [*body_layouts, *carry_layouts], body_types, carry_layouts)
        grown = _grown(carry_types, program)
        if grown == carry_types:
            break
        carry_types = grown
    test_types = [*(x.type for x in values[0]), *carry_types]
    tested, _, _ = _region(local, test, [*test_layouts, *carry_layouts], test_types, [decided])
    tested = _then(tested, 0, lambda x: _exactly(local, x, decided))
    start = [as_type(x, t) for x, t in zip(values[2], carry_types, strict=True)]
    outs = while_(
        *values[0], *values[1], *start,
        cond=tested, body=_with_carry(program, carry_types), cond_consts=n_test, body_consts=n_body,
    )  # fmt: skip
    return [Version(s, x) for s, x in zip(carry_layouts, outs, strict=True)]


def _cond(local: Localizer, eqn: Eqn) -> list[Version]:
    index, *operands = eqn.inputs
    decided = replicated(local.mesh, 0)
    chosen = _exactly(local, local.get(index, decided, "it decides which branch all devices take"), decided)
    layouts = [_reduced_layout(local, atom) for atom in operands]
    values = _read(local, operands, layouts, "a branch reads it")
    wanted: list[TensorSharding | None] = []
    for var in eqn.outputs:
        found = local.wanted.get(var)
        wanted.append(finished(closed(found)) if found is not None else None)
    types = [x.type for x in values]
    programs = []
    for branch in eqn.params["branches"]:
        program, needs, _ = _region(local, branch, layouts, types, wanted)
        wanted = list(needs)  # the other branches return the same layouts
        programs.append(program)
    joined = [union(p.out_types[n].varying for p in programs) for n in range(len(eqn.outputs))]
    fitted = []
    for program in programs:
        out_types = [t.with_(varying=v) for t, v in zip(program.out_types, joined, strict=True)]
        fitted.append(_with_carry(program, out_types))
    outs = cond(chosen, *values, branches=tuple(fitted))
    return [Version(s, x) for s, x in zip(needs, outs, strict=True)]


def _shard_map(local: Localizer, eqn: Eqn) -> list[Version]:
    """A part written for one device: its operands are brought into its layouts, and its equations run as they are.

    If it is written for some of the axes only, the rest is done along the others as in the program around it.
    """
    params = eqn.params
    by_hand = {read_axis(name).name for name in params["manual"]}
    others = [name for name in local.mesh.axis_names if name not in by_hand]
    inner = local.along(others) if others else None
    values, layouts = [], []
    for n, (atom, spec, var) in enumerate(zip(eqn.inputs, params["in_specs"], params["body"].inputs, strict=True)):
        unnamed = _unnamed_axes(local.best(atom, unreduced=False), others, var.type)
        need = _spec_layout(local, spec, atom.type.ndim, unnamed)
        value = local.get(atom, need, f"operand {n} of a shard_map is laid out by {spec}")
        value = _exactly(local, value, need)
        values.append(make_varying(value, union((value.type.varying, local.renamed(var.type.varying)))))
        layouts.append(unnamed)
    kept: list[tuple[Axes, ...]] = [((),) * var.type.ndim for var in eqn.outputs]
    if inner is None:
        outs = _run_renamed(local, params["body"], values)
    else:
        outs, kept = _run_over_unnamed(inner, params["body"], values, layouts)
    return [
        Version(_spec_layout(local, spec, var.type.ndim, unnamed), x)
        for x, var, spec, unnamed in zip(outs, eqn.outputs, params["out_specs"], kept, strict=True)
    ]


def _spec_layout(local: Localizer, spec: PartitionSpec, rank: int, unnamed: Sequence[Axes]) -> TensorSharding:
    """The layout of a spec, each dim split further over the axes beside it."""
    dims = tuple((*map(local.part, dim_axes(spec, dim)), *unnamed[dim]) for dim in range(rank))
    return layout(local.mesh, dims, tuple(map(local.part, sorted(spec.unreduced))))


def _unnamed_axes(sharding: TensorSharding, names: Sequence[str], block: TensorType) -> tuple[Axes, ...]:
    """The axes of these names that split each dim of a block without a rest."""
    found = (tuple(axis for axis in dim.axes if axis.name in names) for dim in sharding.dims)
    return tuple(axes if n % total_size(axes) == 0 else () for axes, n in zip(found, block.shape, strict=True))


def _run_over_unnamed(
    inner: Localizer, program: Program, values: Sequence[Value], layouts: Sequence[tuple[Axes, ...]]
) -> tuple[list[Value], list[tuple[Axes, ...]]]:
    """A program that is written for some axes, along the others; its results, and how they are split over those."""
    for var, dims, value in zip(program.inputs, layouts, values, strict=True):
        inner.define(var, Version(layout(inner.mesh, dims), value))
    inner.run(program)
    outs, kept = [], []
    for atom in program.outputs:
        unnamed = _unnamed_axes(_reduced_layout(inner, atom), inner.mesh.axis_names, atom.type)
        value = inner.get(atom, layout(inner.mesh, unnamed), "the shard_map returns it")
        outs.append(make_varying(value, union((value.type.varying, inner.renamed(atom.type.varying)))))
        kept.append(unnamed)
    return outs, kept


def _collective(local: Localizer, eqn: Eqn) -> list[Version]:
    """A collective that somebody wrote: each block of what is split over other axes takes part in one of its own."""
    params = local.renamed_params(eqn)
    touched = {params[name] for name in ("dim", "split", "concat") if name in params}
    needs = []
    for atom in eqn.inputs:
        found = _reduced_layout(local, atom)
        dims = tuple(() if d in touched else dim.axes for d, dim in enumerate(found.dims))
        needs.append(layout(local.mesh, dims))
    why = f"{eqn.op.name} was written for it whole along these dims"
    values = [local.get(atom, need, why) for atom, need in zip(eqn.inputs, needs, strict=True)]
    outs = apply(eqn.op, values, params)
    made = outs if isinstance(outs, tuple | list) else [outs]
    kept = needs or [replicated(local.mesh, 0)]
    return [Version(s, x) for s, x in zip(kept, made, strict=True)]


def _run_renamed(local: Localizer, program: Program, values: Sequence[Value]) -> list[Value]:
    """A program's equations, with collectives over the axes that make up those they name."""
    env: dict[Atom, Any] = dict(zip(program.inputs, values, strict=True))
    env.update((var, local.constant(var, data)) for var, data in program.constants)
    for eqn in program.eqns:
        params, found = local.renamed_params(eqn), [read(env, a) for a in eqn.inputs]
        if eqn.regions():
            params = {name: _renamed_region(local, value) for name, value in params.items()}
        with at_source(eqn.source):
            write(env, eqn, apply(eqn.op, found, params))
    return [read(env, a) for a in program.outputs]


def _renamed_region(local: Localizer, value: Any) -> Any:
    if isinstance(value, Program):
        types = list(map(local.renamed_type, value.in_types))
        return region_with(lambda *args: (_run_renamed(local, value, args), None), types)[0]
    return tuple(_renamed_region(local, item) for item in value) if isinstance(value, tuple) else value


def _constraint(local: Localizer, eqn: Eqn) -> list[Version]:
    """A layout that the user asked for."""
    wanted = local.wanted.get(eqn.outputs[0])
    need = closed(wanted) if wanted is not None else _asked(local, eqn)
    unreduced = sorted(eqn.params["spec"].unreduced)
    if unreduced and eqn.params.get("mesh") is not None:
        raise ShardingError(
            f"A value cannot be left unreduced over {', '.join(unreduced)} of {eqn.params['mesh']}.",
            where=eqn.source.show() if eqn.source is not None else here(),
            why=f"the program runs on {local.mesh}, and sums that are open are over its axes",
            fix=f"mw.NamedSharding(mesh, {pasted(eqn.params['spec'].update(unreduced=()))}), which takes the sum",
        )
    if unreduced:
        need = layout(local.mesh, tuple(dim.axes for dim in need.dims), tuple(map(local.part, unreduced)))
    need = local.cuts.fitted(need) if is_on(need, local.mesh) else need
    why = f"it is constrained to {eqn.params['spec']}"
    return [Version(need, local.get(eqn.inputs[0], need, why, asked=True))]


def _asked(local: Localizer, eqn: Eqn) -> TensorSharding:
    """The sharding of a constraint that propagation has not seen, in a part written for other axes."""
    if eqn.params.get("mesh") is not None:
        found = constraint_sharding(eqn.params, eqn.outputs[0].type.ndim, local.mesh)
        if local.around is None:
            return closed(on_mesh(found, local.mesh))
        raise MeshError(
            f"A value inside of a shard_map cannot be sharded as {eqn.params['spec']} on {eqn.params['mesh']}.",
            where=eqn.source.show() if eqn.source is not None else here(),
            why=f"the shard_map runs over axes of {local.around}, and leaves those of {local.mesh}",
            fix="mw.P() with axes that are left, or the constraint outside of the shard_map",
        )
    spec, found = eqn.params["spec"], _reduced_layout(local, eqn.inputs[0])
    dims = []
    for n, dim in enumerate(found.dims):
        entry = spec.partitions[n] if n < len(spec.partitions) else None
        written = tuple(map(local.part, entry_axes(entry)))
        dims.append(dim.axes if is_open(entry) and dim.axes[: len(written)] == written else written)
    return layout(local.mesh, tuple(dims))


RULES.update(
    {
        Structure.COLLECTIVE: _collective,
        Structure.VARYING: _collective,
        Structure.CONSTRAINT: _constraint,
        Structure.ROWS: _scan,
        Structure.LOOP: _while,
        Structure.BRANCH: _cond,
        Structure.DEVICE: _shard_map,
    }
)
