"""What random numbers are made with: a hash of counters, and arithmetic whose rounding is part of the numbers.

NumPy's log and XLA's differ in the last bit, and so does a product and sum rounded once from one rounded twice. The
ops here have the bits XLA gives on a CPU, so that a key stands for the same samples wherever a program runs.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.factors import pointwise
from meshwright.core.facts import Memory
from meshwright.core.op import Linearity, Op, Operand, Sample, Value, define_op
from meshwright.core.types import TensorType
from meshwright.ops.arithmetic import div, square
from meshwright.ops.basic import Derivatives, add, mul, neg, pointwise_batch
from meshwright.ops.bits import or_, shift_left, shift_right_logical, xor
from meshwright.ops.pointwise import TRANSCENDENTAL, pointwise_op
from meshwright.ops.rules import not_linear, pointwise_cost, pointwise_samples, pointwise_type, zero_jvp
from meshwright.ops.special import erf, erf_inv, exp, log, log1p, tan


class Own:
    """Evaluation by the namespace's own function of this name, or by ``otherwise`` where it has none."""

    def __init__(self, name: str, otherwise: Callable[..., Any]) -> None:
        self.name = name
        self.otherwise = otherwise

    def __call__(self, xp: Any, *arrays: Any) -> Any:
        function = getattr(xp, self.name, None)
        return self.otherwise(xp, *arrays) if function is None else function(*arrays)


# Five groups of four rounds; one word of the key is added to each word before the first group and after each group.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_INTEGER_OPERATIONS = 20 * 5 + 15.0

_threefry_word = pointwise_type("threefry2x32", 4, (dtypes.UINT32,))


def _threefry_type(k1: TensorType, k2: TensorType, x1: TensorType, x2: TensorType) -> tuple[TensorType, TensorType]:
    word = _threefry_word(k1, k2, x1, x2).with_(weak=False)
    return word, word


def _threefry_evaluate(xp: Any, k1: Any, k2: Any, x1: Any, x2: Any) -> tuple[Any, Any]:
    def word(n: int) -> Any:
        return xp.asarray(n, dtype=k1.dtype)

    keys = (k1, k2, k1 ^ k2 ^ word(_PARITY))
    x, y = x1 + k1, x2 + k2
    for group in range(5):
        for r in _ROTATIONS[group % 2]:
            x = x + y
            y = ((y << word(r)) | (y >> word(32 - r))) ^ x
        x, y = x + keys[(group + 1) % 3], y + keys[(group + 2) % 3] + word(group + 1)
    return x, y


def _threefry_in_parts(k1: Value, k2: Value, x1: Value, x2: Value) -> tuple[Value, Value]:
    """Twenty rounds of adding, rotating and mixing, with a key put in after every four."""
    keys = (k1, k2, xor(xor(k1, k2), np.uint32(_PARITY)))
    x, y = add(x1, k1), add(x2, k2)
    for group in range(5):
        for turn in _ROTATIONS[group % 2]:
            x = add(x, y)
            y = xor(x, or_(shift_left(y, np.uint32(turn)), shift_right_logical(y, np.uint32(32 - turn))))
        x = add(x, keys[(group + 1) % 3])
        y = add(add(y, keys[(group + 2) % 3]), np.uint32(group + 1))
    return x, y


threefry2x32: Op = define_op(
    "threefry2x32",
    type=_threefry_type,
    factors=pointwise,
    linear=Linearity.NONE,
    jvp=zero_jvp,
    transpose=not_linear("threefry2x32"),
    batch=pointwise_batch,
    memory=Memory.FRESH,
    in_parts=_threefry_in_parts,
    evaluate=Own("threefry2x32", _threefry_evaluate),
    cost=pointwise_cost(_INTEGER_OPERATIONS),
    dtypes=(dtypes.UINT32,),
    samples=lambda: [
        *pointwise_samples(4, 0.0, 2.0**32)(),
        Sample((*[Operand((), None, 0.0, 2.0**32)] * 2, *[Operand((2, 3), None, 0.0, 2.0**32)] * 2)),
        Sample((Operand((), None, 0.0, 2.0**32),) * 4),
    ],
)

fma: Op = pointwise_op(
    "fma",
    arity=3,
    dtypes=(dtypes.FLOAT32, dtypes.FLOAT64),
    evaluate=Own("fma", lambda xp, x, y, z: x * y + z),
    jvp=Derivatives(lambda t, out, x, y, z: mul(t, y), lambda t, out, x, y, z: mul(x, t), lambda t, out, x, y, z: t),
    flops=2.0,
    in_parts=lambda x, y, z: add(mul(x, y), z),
)

_REAL = (dtypes.FLOAT16, dtypes.BFLOAT16, dtypes.FLOAT32, dtypes.FLOAT64)


def _reproducible(like: Op, low: float, high: float, slope: Callable[..., Value]) -> Op:
    """An elementary function with the bits samples are made of."""
    name = like.name
    return pointwise_op(
        f"reproducible_{name}",
        dtypes=_REAL,
        evaluate=Own(f"reproducible_{name}", lambda xp, x: getattr(xp, name)(x)),
        jvp=Derivatives(slope),
        flops=TRANSCENDENTAL,
        samples=pointwise_samples(1, low, high),
        stablehlo=like.stablehlo,
    )


reproducible_log: Op = _reproducible(log, 0.1, 2.0, lambda t, out, x: div(t, x))
reproducible_log1p: Op = _reproducible(log1p, -0.8, 2.0, lambda t, out, x: div(t, add(x, 1.0)))
reproducible_erf: Op = _reproducible(erf, -2.0, 2.0, lambda t, out, x: mul(t, mul(exp(neg(square(x))), 2 / sqrt(pi))))
reproducible_erf_inv: Op = _reproducible(
    erf_inv, -0.8, 0.8, lambda t, out, x: mul(t, mul(exp(square(out)), sqrt(pi) / 2))
)
reproducible_tan: Op = _reproducible(tan, -1.2, 1.2, lambda t, out, x: mul(t, add(square(out), 1.0)))
