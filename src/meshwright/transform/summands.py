"""Partial sums as rows: a value of which each device holds a summand is an array with one row per device.

A program with partial sums in its types, ``f32[3]{U:i}``, becomes one of plain types. Such a value gets a dim in front
for each axis that it is unreduced over, split over that axis: a ``shard_map`` returns its summands side by side and
takes them as blocks, what is linear works on all rows at once, and the sum, where it is taken, is that of the rows.

    b: f32[2]{U:i} = shard_map a … out_specs=(P(sum='i'),)        b: f32[4,2] = shard_map a … out_specs=(P('i'),)
    c: f32[2]{U:i} = mul b 2.0                              ==>   c: f32[4,2] = mul b 2.0
    d: f32[2] = finish_sum c axes=('i',)                          d: f32[2] = reduce_sum c axes=(0,)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from meshwright.core.axis_names import axis_part
from meshwright.core.facts import Structure
from meshwright.core.op import Op, Value
from meshwright.core.program import Atom, Eqn, Params, Program, Var
from meshwright.core.source import here
from meshwright.core.trace import Array, apply, at_source, read, run, set_summands, write
from meshwright.core.types import TensorType, union
from meshwright.errors import MeshError
from meshwright.ops.basic import move_dim, nothing_to_add, reshape
from meshwright.ops.collective import sum_rows
from meshwright.ops.shape import concatenate
from meshwright.transform.batch import batch_program, batching_over
from meshwright.transform.regions.region import batch_type, region, region_with

if TYPE_CHECKING:
    from meshwright.sharding.spec import PartitionSpec

Axes = tuple[str, ...]


def sums_as_rows(program: Program, sizes: Mapping[str, int] | None = None) -> Program:
    """The program with rows for partial sums, of its inputs and results, too. ``sizes`` are those of mesh axes that no
    shard_map in the program has."""
    if not has_partial_sums(program):
        return program
    return _Rows({**(sizes or {}), **_sizes(program)}).program(program)


def has_partial_sums(program: Program) -> bool:
    """Whether a value of the program, or of one of its regions, is a partial sum."""
    return (
        any(v.type.unreduced for v in program.inputs)
        or any(v.type.unreduced for eqn in program.eqns for v in eqn.outputs)
        or any(has_partial_sums(region) for eqn in program.eqns for _, region in eqn.regions())
    )


def rows_spec(spec: PartitionSpec, unreduced: Axes) -> PartitionSpec:
    """The spec of the rows of a value that is unreduced over ``unreduced``."""
    return spec.update((*unreduced, *spec.partitions), unreduced=())


def summed_spec(spec: PartitionSpec, unreduced: Axes) -> PartitionSpec:
    """The spec of a value that is unreduced over ``unreduced``, from that of its rows."""
    return spec.update(spec.partitions[len(unreduced) :], unreduced=unreduced)


def _sizes(program: Program) -> dict[str, int]:
    """The sizes of the mesh axes of the shard_maps in a program."""
    found: dict[str, int] = {}
    for eqn in program.eqns:
        if eqn.op.structure is Structure.DEVICE:
            found.update(eqn.params["mesh"])
        for _, inner in eqn.regions():
            found.update(_sizes(inner))
    return found


class _Rows:
    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes

    def size(self, axis: str) -> int:
        part = axis_part(axis)
        if part is not None:
            return part.size
        size = self.sizes.get(axis)
        if size is None:
            raise MeshError(
                f"A value is a partial sum over the mesh axis {axis!r}, whose size is not known.",
                where=here(),
                why="no shard_map in the program has it, and the value is on no mesh",
                fix=f"mesh = mw.make_mesh((8,), ({axis!r},)), and a shard_map over it that returns the value",
            )
        return size

    def type(self, t: TensorType) -> TensorType:
        shape = (*map(self.size, t.unreduced), *t.shape)
        return t.with_(shape=shape, unreduced=(), sharding=None) if t.unreduced else t

    def program(self, program: Program) -> Program:
        if not has_partial_sums(program):
            return program
        return region(lambda *args: self.run(program, args), [self.type(v.type) for v in program.inputs])

    def run(self, program: Program, args: Sequence[Value]) -> list[Value]:
        env: dict[Atom, Any] = dict(zip(program.inputs, args, strict=True))
        for var, data in program.constants:
            env[var] = self.constant(data, var.type)
        for eqn in program.eqns:
            with at_source(eqn.source):
                write(env, eqn, self.eqn(eqn, [read(env, a) for a in eqn.inputs]))
        return [read(env, a) for a in program.outputs]

    def constant(self, data: Any, t: TensorType) -> Value:
        if t.unreduced and data.ndim == t.ndim:  # nobody holds summands of it: it is the first device's
            return self.first(Array(data, t.with_(unreduced=())), t.unreduced)
        return Array(data, self.type(t))

    def first(self, x: Value, unreduced: Axes) -> Value:
        """The rows of a sum that the first device holds, beside others that have nothing to add."""
        for axis in reversed(unreduced):
            x = reshape(x, shape=(1, *x.shape))
            rest = x.type.with_(shape=(self.size(axis) - 1, *x.shape[1:]))
            x = concatenate(x, nothing_to_add(rest), dim=0) if rest.shape[0] else x
        return x

    def eqn(self, eqn: Eqn, ins: Sequence[Value]) -> Any:
        params = {name: self.param(value) for name, value in eqn.params.items()}
        unreduced = union(a.type.unreduced for a in (*eqn.inputs, *eqn.outputs))
        if eqn.op.structure is Structure.DEVICE:
            return self.shard_map(eqn, params, ins)
        if eqn.op.structure is Structure.ROWS:
            return self.scan(eqn, params, ins)
        if not unreduced or bool(eqn.regions()):
            return apply(eqn.op, ins, params)
        if eqn.op.structure is Structure.SUMMED:
            have, x = eqn.inputs[0].type.unreduced, ins[0]
            for n in reversed([n for n, axis in enumerate(have) if axis in params["axes"]]):
                x = sum_rows(x, n)
            return x
        params.pop("out_sharding", None)
        if "spec" in params:  # a constraint: of the rows, too
            return apply(eqn.op, ins, {"spec": rows_spec(params["spec"], unreduced)})
        return self.batched(eqn, params, ins, unreduced)

    def param(self, value: Any) -> Any:
        if isinstance(value, Program):
            return self.program(value)
        return tuple(map(self.param, value)) if value.__class__ is tuple else value

    def scan(self, eqn: Eqn, params: Params, ins: Sequence[Value]) -> tuple[Value, ...]:
        """A loop: what it goes over, and what it stacks, has the dim of its steps in front of the rows."""
        before, carry = params["consts"] + params["carry"], params["carry"]
        given = [
            move_dim(x, len(a.type.unreduced), 0) if n >= before and a.type.unreduced else x
            for n, (x, a) in enumerate(zip(ins, eqn.inputs, strict=True))
        ]
        outs = apply(eqn.op, given, params)
        return tuple(
            move_dim(x, 0, len(v.type.unreduced)) if n >= carry and v.type.unreduced else x
            for n, (x, v) in enumerate(zip(outs, eqn.outputs, strict=True))
        )

    def batched(self, eqn: Eqn, params: Params, ins: Sequence[Value], unreduced: Axes) -> tuple[Value, ...]:
        """What is linear, on all rows at once."""
        flags = [bool(a.type.unreduced) for a in eqn.inputs]

        def once(*args: Value) -> Sequence[Value]:
            outs = apply(eqn.op, args, params)
            return outs if isinstance(outs, tuple) else (outs,)

        program = region(once, [a.type.with_(unreduced=(), sharding=None) for a in eqn.inputs])
        for axis in reversed(unreduced):
            size = self.size(axis)

            def rows(*args: Value, inner: Program = program, size: int = size) -> Any:
                with batching_over(None):
                    return batch_program(inner, size, args, flags)

            types = [batch_type(v.type, b, size) for v, b in zip(program.inputs, flags, strict=True)]
            program, found = region_with(rows, types)
            assert all(found), f"{eqn.op.name} is linear in what is unreduced, and so is each of its results"
        return tuple(run(program, ins))

    def shard_map(self, eqn: Eqn, params: Params, ins: Sequence[Value]) -> Any:
        """A part written for one device, which takes a row and returns one."""
        body, given = params["body"], eqn.params["body"]
        results = [v.type.unreduced for v in eqn.outputs]
        in_specs = [
            rows_spec(spec, a.type.unreduced) for a, spec in zip(eqn.inputs, params["in_specs"], strict=True)
        ]  # fmt: skip
        out_specs = []
        for spec, unreduced in zip(params["out_specs"], results, strict=True):
            entries = (axis if axis in spec.unreduced else None for axis in unreduced)
            out_specs.append(spec.update((*entries, *spec.partitions), unreduced=()))

        def blocks(*args: Value) -> list[Value]:
            rows = zip(args, eqn.inputs, given.in_types, strict=True)
            outs = run(body, [reshape(x, shape=t.shape) if a.type.unreduced else x for x, a, t in rows])
            found = []
            for x, spec, unreduced, t in zip(outs, params["out_specs"], results, given.out_types, strict=True):
                shape = (*(1 if axis in spec.unreduced else self.size(axis) for axis in unreduced), *t.shape)
                found.append(reshape(x, shape=shape) if unreduced else x)
            return found

        types = [
            t.with_(shape=(*(1,) * len(a.type.unreduced), *t.shape))
            for a, t in zip(eqn.inputs, body.in_types, strict=True)
        ]
        changed = {"body": region(blocks, types), "in_specs": tuple(in_specs), "out_specs": tuple(out_specs)}
        return apply(eqn.op, ins, {**params, **changed})


# Arrays


@lru_cache(maxsize=256)
def _alone(
    op: Op, types: tuple[TensorType, ...], outs: tuple[TensorType, ...], params: tuple[tuple[str, Any], ...], sizes: Any
) -> Program:
    """An op by itself as a program on rows."""
    inputs = [Var(t.with_(sharding=None)) for t in types]
    outputs = [Var(t.with_(sharding=None)) for t in outs]
    eqn = Eqn(op, inputs, {k: v for k, v in params if k != "out_sharding"}, outputs, None)
    return sums_as_rows(Program(tuple(inputs), (eqn,), tuple(outputs)), dict(sizes))


def _compute(
    namespace: Any, op: Op, operands: Sequence[Array], types: tuple[TensorType, ...], params: Params
) -> Sequence[Any]:
    """The results of an op on arrays of which some are partial sums, or of one that leaves a partial sum."""
    sizes: dict[str, int] = {}
    for x in operands:
        sizes.update(zip(x.type.unreduced, np.shape(x._rows), strict=False))
    program = _alone(
        op, tuple(x.type for x in operands), types, tuple(params.items()), tuple(sorted(sizes.items()))
    )  # fmt: skip
    return namespace.function(program)(*(x._rows for x in operands))  # type: ignore[no-any-return]


set_summands(_compute, sum_rows)
