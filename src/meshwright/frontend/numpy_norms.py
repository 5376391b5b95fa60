"""Norms and factorizations of ``meshwright.numpy.linalg``."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

from meshwright.core.op import Value
from meshwright.core.source import here
from meshwright.errors import ShapeError
from meshwright.frontend.numpy_arithmetic import multiply, power
from meshwright.frontend.numpy_linalg import matmul
from meshwright.frontend.numpy_logic import absolute, conjugate, not_equal, real
from meshwright.frontend.numpy_math import sqrt
from meshwright.frontend.numpy_reduction import max, min, sum
from meshwright.frontend.numpy_shape import matrix_transpose
from meshwright.frontend.operands import ArrayLike, axes_of, axis_of, convert, inexact, promote_operands, value
from meshwright.ops import basic, elementwise, linalg


def norm(x: ArrayLike, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Value:
    """The length of vectors, or a norm of matrices where two dims are named or there are two.

    >>> import meshwright.numpy as mnp
    >>> mnp.linalg.norm(mnp.array([3.0, 4.0]))
    Array(5., dtype=float32)
    """
    x = inexact(value(x))
    axes = axes_of(axis, x.ndim, "mnp.linalg.norm") if not isinstance(axis, tuple) else tuple(axis)
    if ord is None and (axis is None or len(axes) <= 2):
        return sqrt(sum(_squares(x), axes, keepdims=keepdims))
    if len(axes) == 1:
        return _vector_norm(x, ord, axes, keepdims)
    if len(axes) == 2:
        first, second = (axis_of(d, x.ndim, "mnp.linalg.norm") for d in axes)
        return _matrix_norm(x, ord, first, second, keepdims)
    raise ShapeError(
        f"mnp.linalg.norm with ord={ord!r} cannot take {len(axes)} dims.",
        where=here(),
        why="a norm is of vectors (one dim) or matrices (two)",
        fix="axis=-1",
    )


def _squares(x: Value) -> Value:
    if x.type.dtype.kind == "c":
        return real(multiply(x, conjugate(x)))
    return elementwise.square(x)


def _vector_norm(x: Value, ord: Any, axes: tuple[int, ...], keepdims: bool) -> Value:
    if ord is None or ord == 2:
        return sqrt(sum(_squares(x), axes, keepdims=keepdims))
    if ord == math.inf:
        return max(absolute(x), axes, keepdims=keepdims)
    if ord == -math.inf:
        return min(absolute(x), axes, keepdims=keepdims)
    if ord == 0:
        return sum(convert(not_equal(x, 0), absolute(x).type.dtype), axes, keepdims=keepdims)
    if ord == 1:
        return sum(absolute(x), axes, keepdims=keepdims)
    if isinstance(ord, str):
        raise ShapeError(
            f"mnp.linalg.norm of vectors cannot take ord={ord!r}.",
            where=here(),
            why="it is a number or mnp.inf",
            fix="ord=2",
        )
    return power(sum(power(absolute(x), float(ord)), axes, keepdims=keepdims), 1.0 / ord)


def _matrix_norm(x: Value, ord: Any, first: int, second: int, keepdims: bool) -> Value:
    if ord is None or ord in ("fro", "f"):
        return sqrt(sum(_squares(x), (first, second), keepdims=keepdims))
    if ord in (1, -1, math.inf, -math.inf):
        inner, outer = (first, second) if abs(ord) == 1 else (second, first)
        totals = sum(absolute(x), inner, keepdims=keepdims)
        rest = outer - (0 if keepdims or outer < inner else 1)
        return (max if ord > 0 else min)(totals, rest, keepdims=keepdims)
    raise ShapeError(
        f"mnp.linalg.norm of matrices cannot take ord={ord!r}.",
        where=here(),
        why="it is 'fro', 1, -1, mnp.inf or -mnp.inf; the others need singular values",
        fix="ord='fro'",
    )


def vector_norm(x: ArrayLike, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Value:
    """The norm of vectors along dims, of all elements by default."""
    x = inexact(value(x))
    return _vector_norm(x, ord, axes_of(axis, x.ndim, "mnp.linalg.vector_norm"), keepdims)


def matrix_norm(x: ArrayLike, /, *, keepdims: bool = False, ord: Any = "fro") -> Value:
    """The norm of the matrices in the last two dims."""
    x = inexact(value(x))
    return _matrix_norm(x, ord, x.ndim - 2, x.ndim - 1, keepdims)


def cholesky(a: ArrayLike, *, upper: bool = False, symmetrize_input: bool = True) -> Value:
    """The triangular matrix whose product with its conjugate transpose is the positive definite ``a``.

    >>> import meshwright.numpy as mnp
    >>> mnp.linalg.cholesky(mnp.array([[4.0, 2.0], [2.0, 2.0]]))
    Array([[2., 0.],
           [1., 1.]], dtype=float32)
    """
    x = inexact(value(a))
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeError(
            f"mnp.linalg.cholesky cannot take {x.type.short()}.",
            where=here(),
            why="it takes a square matrix, or a stack of them",
            fix="x @ x.mT is one",
        )
    if symmetrize_input:
        x = multiply(basic.add(x, conjugate(matrix_transpose(x))), 0.5)
    lower = linalg.cholesky(x)
    return conjugate(matrix_transpose(lower)) if upper else lower


def triangular_solve(
    a: ArrayLike,
    b: ArrayLike,
    *,
    left_side: bool = False,
    lower: bool = False,
    transpose_a: bool = False,
    conjugate_a: bool = False,
    unit_diagonal: bool = False,
) -> Value:
    """The solution ``x`` of ``x a = b``, or of ``a x = b`` with ``left_side``, for a triangular ``a``."""
    x, y = promote_operands((a, b), inexact=True)
    vector = y.ndim == x.ndim - 1
    if vector:
        place = y.ndim if left_side else y.ndim - 1
        y = basic.reshape(y, shape=(*y.shape[:place], 1, *y.shape[place:]))
    out = linalg.triangular_solve(
        x,
        y,
        left_side=bool(left_side),
        lower=bool(lower),
        transpose_a=bool(transpose_a),
        conjugate_a=bool(conjugate_a),
        unit_diagonal=bool(unit_diagonal),
    )
    return basic.reshape(out, shape=value(b).shape) if vector else out


def solve_triangular(
    a: ArrayLike, b: ArrayLike, trans: int | str = 0, lower: bool = False, unit_diagonal: bool = False
) -> Value:
    """The solution ``x`` of ``a x = b`` for a triangular ``a``, transposed (``trans="T"``) or adjoint (``"C"``)."""
    return triangular_solve(
        a,
        b,
        left_side=True,
        lower=lower,
        transpose_a=trans in (1, 2, "T", "C"),
        conjugate_a=trans in (2, "C"),
        unit_diagonal=unit_diagonal,
    )


def cho_solve(c_and_lower: tuple[ArrayLike, bool], b: ArrayLike) -> Value:
    """The solution of ``a x = b`` from the Cholesky factor of ``a`` and whether it is the lower one."""
    c, lower = c_and_lower
    first = solve_triangular(c, b, "N" if lower else "C", lower)
    return solve_triangular(c, first, "C" if lower else "N", lower)


def multi_dot(arrays: Any, *, precision: Any = None) -> Value:
    """The product of several matrices."""
    return reduce(matmul, [value(x) for x in arrays])
