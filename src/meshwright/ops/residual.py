"""Ops about the values that a forward run keeps for the backward one: a name for them."""

from __future__ import annotations

from meshwright.core.factors import pointwise
from meshwright.core.facts import Fusion, Structure
from meshwright.core.op import Cost, Linearity, Op, Operand, Sample, define_op
from meshwright.core.types import TensorType
from meshwright.ops.basic import pointwise_batch


def _name_type(x: TensorType, name: str) -> TensorType:
    return x


# Its operand, by a name that policies of checkpoint read. Tangents have no names.
checkpoint_name: Op = define_op(
    "checkpoint_name",
    type=_name_type,
    factors=pointwise,
    linear=Linearity.MOVES,
    jvp=lambda op, primals, tangents, params: ([op(*primals, **params)], list(tangents)),
    transpose=lambda op, cts, inputs, params: list(cts),
    batch=pointwise_batch,
    structure=Structure.NAMED,
    fusion=Fusion.VIEW,
    evaluate=lambda xp, x, name: x,
    cost=lambda operands, results, params: Cost(0.0, 0.0),
    samples=lambda: [Sample((Operand((2, 4)),), {"name": "hidden"})],
)
