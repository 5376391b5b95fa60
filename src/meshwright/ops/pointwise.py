"""How an elementwise op is defined: the rules all of them share are given here, the others where the op is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from meshwright.core.dtypes import INEXACT, DType
from meshwright.core.factors import pointwise
from meshwright.core.facts import Fusion
from meshwright.core.linearity import LinearRule
from meshwright.core.op import JvpRule, Linearity, No, Op, Sample, TransposeRule, define_op
from meshwright.ops.basic import pointwise_batch
from meshwright.ops.rules import not_linear, pointwise_cost, pointwise_samples, pointwise_type, zero_jvp

# Additions and multiplications in one evaluation of a function that has no instruction of its own.
TRANSCENDENTAL = 10.0


def pointwise_op(
    name: str,
    *,
    arity: int = 1,
    dtypes: tuple[DType, ...] = INEXACT,
    result: Callable[[DType], DType] | None = None,
    evaluate: Callable[..., Any],
    jvp: JvpRule | No,
    linear: Linearity | LinearRule = Linearity.NONE,
    transpose: TransposeRule | None = None,
    flops: float = 1.0,
    params: Mapping[str, Any] = MappingProxyType({}),
    samples: Callable[[], Sequence[Sample]] | None = None,
    fusion: Fusion | None = None,
    stablehlo: str | None = None,
    in_parts: Callable[..., Any] | None = None,
) -> Op:
    """An op on ``arity`` operands of one of ``dtypes`` and one shape; ``params`` say what each of its params may be."""
    return define_op(
        name,
        type=pointwise_type(name, arity, dtypes, result, params),
        factors=pointwise,
        linear=linear,
        jvp=jvp,
        transpose=transpose or not_linear(name),
        batch=pointwise_batch,
        evaluate=evaluate,
        cost=pointwise_cost(flops),
        fusion=fusion,
        stablehlo=stablehlo,
        in_parts=in_parts,
        dtypes=dtypes,
        samples=samples or pointwise_samples(arity),
    )


# An op of integers or truth values, or one that is constant almost everywhere: what it returns has no tangent.
constant_op = partial(pointwise_op, jvp=zero_jvp)
