"""Matmuls that are transposed are matmuls with their operands exchanged."""

from __future__ import annotations

from collections import Counter
from typing import Any

from meshwright.core.program import Atom, Eqn, Program
from meshwright.ops.basic import transpose
from meshwright.ops.contraction import dot_general, free_dims


def turn_matmuls(program: Program) -> Program:
    """The program, regions included, in which no transpose only exchanges the two sides of a matmul that nothing else
    reads. JAX's gradients of weights are made so; XLA on a CPU has no fast kernel for a product of two transposes.

    c: f32[8,4] = dot_general a b contract=((0,), (0,))         d: f32[4,8] = dot_general b a contract=((0,), (0,))
    d: f32[4,8] = transpose c permutation=(1, 0)          ==>   return d
    return d
    """
    uses = Counter[Atom](program.outputs)
    for eqn in program.eqns:
        uses.update(eqn.inputs)
    made = {eqn.outputs[0]: eqn for eqn in program.eqns if eqn.op is dot_general}
    turned: dict[Eqn, Eqn] = {}  # by the matmul, which stands before its transpose
    gone: set[Eqn] = set()
    for eqn in program.eqns:
        below = made.get(eqn.inputs[0]) if eqn.op is transpose else None  # type: ignore[arg-type]
        if below is not None and uses[eqn.inputs[0]] == 1 and _exchanges(eqn, below):
            params = {**below.params, "contract": below.params["contract"][::-1], "batch": below.params["batch"][::-1]}
            turned[below] = Eqn(dot_general, below.inputs[::-1], params, eqn.outputs, below.source)
            gone.add(eqn)
    eqns, changed = [], bool(turned)
    for eqn in program.eqns:
        if eqn in gone:
            continue
        params = {name: _inside(value) if eqn.regions() else value for name, value in eqn.params.items()}
        if any(value is not eqn.params[name] for name, value in params.items()):
            eqn, changed = Eqn(eqn.op, eqn.inputs, params, eqn.outputs, eqn.source), True
        eqns.append(turned.get(eqn, eqn))
    return Program(program.inputs, tuple(eqns), program.outputs, program.constants) if changed else program


def _exchanges(eqn: Eqn, below: Eqn) -> bool:
    """Whether a transpose puts the free dims of a matmul's right operand before those of its left one."""
    if below.params.get("out_sharding") is not None or eqn.outputs[0].type.sharding is not None:
        return False
    x, y = (atom.type.ndim for atom in below.inputs)
    (xc, yc), (xb, yb) = below.params["contract"], below.params["batch"]
    batch, left, right = len(xb), len(free_dims(x, xc, xb)), len(free_dims(y, yc, yb))
    dims = (*range(batch), *range(batch + left, batch + left + right), *range(batch, batch + left))
    return left > 0 < right and eqn.params["permutation"] == dims


def _inside(value: Any) -> Any:
    if isinstance(value, Program):
        return turn_matmuls(value)
    if isinstance(value, tuple) and any(isinstance(item, Program) for item in value):
        return tuple(map(_inside, value))
    return value
