"""Ops about the values that a forward run keeps for the backward one: a name for them, and the way to the host's memory
and back.

A type does not say in which memory a value is. What ``offload`` returns is in the host's, and so is what a loop stacks
of it, until ``reload`` brings it back; policies of checkpoint are all that writes these two, always in pairs, so that
nothing else reads a value which is not there. Both are the identity: an engine that has one memory does nothing.
"""

from __future__ import annotations

from meshwright.core.factors import pointwise
from meshwright.core.facts import Fusion, Memory, Structure
from meshwright.core.op import Cost, Linearity, Op, Operand, Sample, define_op
from meshwright.core.types import TensorType
from meshwright.ops.basic import pointwise_batch
from meshwright.ops.rules import move_cost


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


def _transfer(name: str, structure: Structure) -> Op:
    """A value in another memory. Tangents stay where they are."""
    return define_op(
        name,
        type=_same_type,
        factors=pointwise,
        linear=Linearity.MOVES,
        jvp=lambda op, primals, tangents, params: ([op(*primals)], list(tangents)),
        transpose=lambda op, cts, inputs, params: list(cts),
        batch=pointwise_batch,
        structure=structure,
        fusion=Fusion.ALONE,
        memory=Memory.SHARED,
        evaluate=lambda xp, x: x,
        cost=move_cost,
        samples=lambda: [Sample((Operand((2, 4)),))],
    )


def _same_type(x: TensorType) -> TensorType:
    return x


offload: Op = _transfer("offload", Structure.OFFLOAD)
reload: Op = _transfer("reload", Structure.RELOAD)
