"""What a program says about where its values are: nothing is computed."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.core.factors import pointwise
from meshwright.core.op import Cost, Linearity, Op, Operand, Sample, Value, define_op
from meshwright.core.partition_spec import PartitionSpec
from meshwright.core.program import Params
from meshwright.ops.basic import linear_jvp


def _batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    spec = params["spec"]
    return [op(args[0], spec=spec.update((PartitionSpec.UNCONSTRAINED, *spec.partitions)))], [True]


sharding_constraint: Op = define_op(
    "sharding_constraint",
    type=lambda x, spec: x,
    factors=pointwise,
    linear=Linearity.JOINTLY,
    jvp=linear_jvp,
    transpose=lambda op, cts, inputs, params: [op(cts[0], **params)],
    batch=_batch,
    evaluate=lambda xp, x, spec: x,
    cost=lambda operands, results, params: Cost(0.0, 0.0),
    samples=lambda: [Sample((Operand((2, 4)),), {"spec": PartitionSpec("x", None)})],
)
