"""Explicit mode: what ``out_sharding=`` of a product asks for, and programs whose types say where values are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from meshwright.arrays.device_put import sharding_for
from meshwright.core.facts import Structure
from meshwright.core.program import Atom, Eqn, Literal, Params, Program, Var, operand_types
from meshwright.core.source import here
from meshwright.core.types import TensorType
from meshwright.errors import ShardingError
from meshwright.sharding.axes import Axes, in_mesh_order
from meshwright.sharding.check import resolve
from meshwright.sharding.dimension import DimensionSharding, axis_set
from meshwright.sharding.explicit import asked_by, left_open
from meshwright.sharding.mesh import BaseMesh, get_mesh
from meshwright.sharding.named import NamedSharding, TensorSharding
from meshwright.sharding.spec import PartitionSpec, entry_axes, pasted, priority_of, read_axis


def product_params(
    types: Sequence[TensorType], out_sharding: Any, ndim: int, order: Sequence[int] | None = None
) -> Params:
    """The params by which a product of operands with shardings in their types is laid out as ``out_sharding`` says.

    Without one, it is as the operands say, with all sums taken. ``order`` is how the dims of the product are permuted
    afterwards to what ``out_sharding`` is about.
    """
    sharding = next((t.sharding for t in types if t.sharding is not None), None)
    if sharding is None:
        return {}
    if out_sharding is None:
        out_sharding = left_open(ndim)
    if isinstance(out_sharding, PartitionSpec):
        current = get_mesh()
        same = current is not None and current.explicit_mesh == sharding.mesh
        out_sharding = NamedSharding(current if current is not None and same else sharding.mesh, out_sharding)
    if isinstance(out_sharding, TensorSharding) and not out_sharding.mesh.is_maximal:
        out_sharding.check_shape((1,) * ndim)
        out_sharding = out_sharding.to_named()
    if not isinstance(out_sharding, NamedSharding):
        sharding_for(out_sharding, ())  # an error if it is no place
    if not isinstance(out_sharding, NamedSharding) or out_sharding.mesh.explicit_mesh is None:
        return {}
    if len(out_sharding.spec) > ndim:
        raise ShardingError(
            f"A product of {ndim} dims cannot be sharded as {out_sharding.spec}.",
            where=here(),
            why=f"the spec has {len(out_sharding.spec)} dims",
            fix=f"out_sharding={pasted(out_sharding.spec.update(out_sharding.spec.partitions[:ndim]))}",
        )
    spec, mesh = asked_by(out_sharding, ndim)
    if order is not None:
        entries = dict(zip(order, spec.partitions, strict=True))
        spec = spec.update([entries[d] for d in range(ndim)])
    return {"out_sharding": (spec, mesh)}


def typed(types: Sequence[TensorType], shardings: Sequence[NamedSharding | None]) -> list[TensorType]:
    """The types of arrays where they are: over Explicit axes, shardings are part of them."""
    return [t if s is None else s.typed(t) for t, s in zip(types, shardings, strict=True)]


class Untyped(NamedTuple):
    """A program without shardings in its types, what they said about each of its values, and which is which."""

    program: Program
    fixed: Mapping[Var, TensorSharding]
    vars: Mapping[Atom, Var]


def untyped(program: Program, mesh: BaseMesh, others: Sequence[BaseMesh] = ()) -> Untyped:
    """A program for a mesh with Explicit axes as one of plain types, and the layouts that its types fixed.

    Along Explicit axes a value is laid out as its type says; dims stay open to Auto axes. ``others`` are meshes that
    some of its types are on.
    """
    if mesh.explicit_mesh is None:
        return Untyped(program, {}, {})
    reader = _Stripper(mesh, {other.explicit_mesh: other for other in others if other != mesh})
    found = reader.program(program)
    return Untyped(found, reader.fixed, reader.vars)


class _Stripper:
    def __init__(self, mesh: BaseMesh, others: Mapping[BaseMesh | None, BaseMesh]) -> None:
        self.mesh = mesh
        self.others = others  # by what the shardings in types are on
        self.explicit = tuple(mesh.axis_by_name[name] for name in mesh.explicit_axes)
        self.has_auto = bool(mesh.auto_axes)
        self.fixed: dict[Var, TensorSharding] = {}
        self.vars: dict[Atom, Var] = {}

    def program(self, program: Program) -> Program:
        vars: dict[Atom, Var] = {}

        def enter(var: Var) -> Var:
            vars[var] = found = Var(_plain(var.type))
            self.fix(found, var.type)
            return found

        def atom(a: Atom) -> Atom:
            return a if isinstance(a, Literal) else vars[a]

        constants = tuple((enter(var), value) for var, value in program.constants)
        inputs = tuple(enter(var) for var in program.inputs)
        eqns = []
        for eqn in program.eqns:
            params = self.params(eqn)
            operands = tuple(atom(a) for a in eqn.inputs)
            if eqn.op.structure is Structure.SUMMED:
                vars[eqn.outputs[0]] = vars[eqn.inputs[0]]  # whoever uses it takes the sum, into the layout it needs
                continue
            if eqn.op.structure is Structure.DEVICE:  # its specs say which operands and results are partial sums
                types: Any = tuple(_plain(v.type) for v in eqn.outputs)
            else:
                types = eqn.op.type(*operand_types(eqn.op, operands), **params)
            outs = []
            for var, t in zip(eqn.outputs, types if isinstance(types, tuple) else (types,), strict=True):
                vars[var] = new = Var(t)
                spec = params["spec"] if eqn.op.structure is Structure.CONSTRAINT else None
                self.fix(new, var.type, spec)
                outs.append(new)
            eqns.append(Eqn(eqn.op, operands, params, tuple(outs), eqn.source))
        self.vars.update(vars)
        return Program(inputs, tuple(eqns), tuple(atom(a) for a in program.outputs), constants)

    def params(self, eqn: Eqn) -> Params:
        if eqn.op.structure is Structure.DEVICE:  # inside, nothing is on the mesh
            return eqn.params
        found = {key: self.value(value) for key, value in eqn.params.items() if key != "out_sharding"}
        other = self.other(eqn.outputs[0].type) if eqn.op.structure is Structure.CONSTRAINT else None
        return found if other is None else {**found, "mesh": str(other)}

    def other(self, type: TensorType) -> BaseMesh | None:
        """The mesh that a type is on, if it is not the program's."""
        return None if type.sharding is None else self.others.get(type.sharding.mesh)

    def value(self, value: Any) -> Any:
        if isinstance(value, Program):
            return self.program(value)
        return tuple(self.value(item) for item in value) if value.__class__ is tuple else value

    def fix(self, var: Var, type: TensorType, spec: PartitionSpec | None = None) -> None:
        """Note the layout that a type says; a spec may add Auto axes to it."""
        other = self.other(type)
        if other is not None and type.sharding is not None:
            self.fixed[var] = TensorSharding(other, [DimensionSharding(dim.axes) for dim in type.sharding.dims])
            return
        dims: list[Axes] = [()] * type.ndim
        if type.sharding is not None:
            dims = [dim.axes for dim in type.sharding.dims]
        priorities: list[int | None] = [None] * type.ndim
        kept: Axes = ()
        if spec is not None and self.has_auto:
            kept = resolve(self.mesh, axis_set(self.mesh, spec.replicated))
        for n, entry in enumerate(spec.partitions if spec is not None else ()):
            priorities[n] = priority_of(entry)
            named = resolve(self.mesh, [read_axis(axis) for axis in entry_axes(entry)])
            if any(axis.name not in self.mesh.explicit_axes for axis in named):
                dims[n] = named
        names = {axis.name for axes in dims for axis in axes}
        unreduced = [
            axis for axis in type.unreduced if axis in self.mesh.explicit_axes and axis not in var.type.unreduced
        ]
        unused = [axis for axis in self.explicit if axis.name not in names and axis.name not in unreduced]
        unused += [axis for axis in kept if axis.name not in self.mesh.explicit_axes]
        self.fixed[var] = TensorSharding(
            self.mesh,
            [DimensionSharding(axes, self.has_auto, n) for axes, n in zip(dims, priorities, strict=True)],
            in_mesh_order(unused, self.mesh.axis_names) if self.has_auto else (),
            unreduced,
        )


def with_sums_taken(sharding: TensorSharding | None, t: TensorType) -> TensorSharding | None:
    """The sharding of a returned value with only those sums left open that the result's type leaves open."""
    if sharding is None or not sharding.unreduced:
        return sharding
    unreduced = [axis for axis in sharding.unreduced if axis.short() in t.unreduced]
    if unreduced or t.sharding is None:
        return sharding.with_(unreduced=unreduced)
    return TensorSharding(sharding.mesh, [DimensionSharding(dim.axes) for dim in t.sharding.dims])


def _plain(t: TensorType) -> TensorType:
    return t.with_(sharding=None, unreduced=())
