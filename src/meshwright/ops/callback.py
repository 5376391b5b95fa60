"""Functions of the user's that run on contents while a program runs: one that only computes, one that has effects.

``rows`` are the dims in front of all operands, as batching puts them there: examples of a ``vmap``, devices of a mesh.
The function is called once for each, or, where it takes a batch itself (``vectorized``), once for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from meshwright.core.op import Cost, Linearity, No, Op, Types, Value, define_op
from meshwright.core.program import Params, Rule
from meshwright.core.source import here
from meshwright.core.types import Shape, TensorType
from meshwright.errors import MeshwrightError, ShapeError
from meshwright.ops.basic import broadcast_in_dim


def _type(
    *types: TensorType, function: Rule, out: tuple[TensorType, ...], rows: Shape, vectorized: bool
) -> tuple[TensorType, ...]:
    return tuple(t.with_(shape=rows + t.shape) for t in out)


def _batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    operands = [
        x if is_batched else broadcast_in_dim(x, shape=(size, *x.shape), dims=tuple(range(1, x.ndim + 1)))
        for x, is_batched in zip(args, batched, strict=True)
    ]
    outs = op(*operands, **{**params, "rows": (size, *params["rows"])})
    return list(outs), [True] * len(outs)


def _evaluate(
    xp: Any, *arrays: Any, function: Rule, out: tuple[TensorType, ...], rows: Shape, vectorized: bool
) -> tuple[Any, ...]:
    if function.function is None:
        raise MeshwrightError(
            f"The function {function.name!r} is not part of this program.",
            why="the program was read from text, which keeps the name of a function and not its Python code",
            fix="trace the function again with mw.make_program(f)(…)",
        )
    operands = [np.asarray(x) for x in arrays]
    if vectorized or not rows:
        return _checked(function, function(*operands), [t.with_(shape=rows + t.shape) for t in out])
    results = tuple(np.empty(rows + t.shape, t.dtype) for t in out)
    for place in product(*map(range, rows)):
        for result, part in zip(results, _checked(function, function(*(x[place] for x in operands)), out), strict=True):
            result[place] = part
    return results


def _checked(function: Rule, found: Sequence[Any], out: Sequence[TensorType]) -> tuple[Any, ...]:
    """What the function returned, held to the types that it was to return."""
    values = [np.asarray(x) for x in found]
    if [x.shape for x in values] != [t.shape for t in out]:
        raise ShapeError(
            f"The callback {function.name!r} returned arrays of shapes {[x.shape for x in values]}.",
            where=here(),
            why=f"result_shape_dtypes says {[t.shape for t in out]}",
            fix="return arrays of these shapes",
        )
    return tuple(x.astype(t.dtype, copy=False) for x, t in zip(values, out, strict=True))


def _quiet_jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    """What is called for its effects sees the values, and returns nothing that has a derivative."""
    op(*primals, **params)
    return [], []


def _cost(operands: Types, results: Types, params: Params) -> Cost:
    return Cost(0.0, float(sum(t.nbytes for t in (*operands, *results))))


_WHOLE = No("a callback is given whole arrays")

pure_callback: Op = define_op(
    "pure_callback",
    type=_type,
    factors=_WHOLE,
    linear=Linearity.NONE,
    jvp=No("a callback has no derivative of its own; give it one: mw.custom_jvp around the call"),
    transpose=No("a callback is not linear; give it a derivative: mw.custom_jvp around the call"),
    batch=_batch,
    evaluate=_evaluate,
    cost=_cost,
    samples=lambda: [],
)

debug_callback: Op = define_op(
    "debug_callback",
    type=_type,
    factors=_WHOLE,
    linear=Linearity.NONE,
    jvp=_quiet_jvp,
    transpose=No("a callback is not linear"),
    batch=_batch,
    evaluate=_evaluate,
    cost=_cost,
    effects=True,
    samples=lambda: [],
)

io_callback: Op = define_op(
    "io_callback",
    type=_type,
    factors=_WHOLE,
    linear=Linearity.NONE,
    jvp=No("a callback has no derivative of its own; give it one: mw.custom_jvp around the call"),
    transpose=No("a callback is not linear"),
    batch=_batch,
    evaluate=_evaluate,
    cost=_cost,
    effects=True,
    samples=lambda: [],
)
