"""``meshwright.numpy.linalg``: norms, factorizations and products of matrices, as ``jax.numpy.linalg`` has them."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from meshwright.arrays.operands import (
    ArrayLike,
    DTypeLike,
    axes_of,
    axis_of,
    convert,
    fitting,
    inexact,
    promoted_values,
    value,
)
from meshwright.arrays.static import check_precision, items_of, static_flag
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import ShapeError
from meshwright.numpy import creation, products
from meshwright.numpy.arithmetic import multiply, power
from meshwright.numpy.contraction import einsum
from meshwright.numpy.factorizations import (
    cond,
    det,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    inv,
    lstsq,
    matrix_rank,
    pinv,
    qr,
    slogdet,
    solve,
    svd,
    svdvals,
    tensorinv,
    tensorsolve,
)
from meshwright.numpy.logic import absolute, conjugate, not_equal, real
from meshwright.numpy.mathematics import sqrt
from meshwright.numpy.products import matmul, matrix_power, tensordot, vecdot
from meshwright.numpy.reductions import max, min, sum
from meshwright.numpy.shapes import expand_dims, matrix_transpose, transpose
from meshwright.ops import basic, elementwise, linalg

__all__ = [
    "cho_solve",
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "lstsq",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "multi_dot",
    "norm",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svdvals",
    "tensordot",
    "tensorinv",
    "tensorsolve",
    "trace",
    "vecdot",
    "vector_norm",
]


def norm(x: ArrayLike, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Value:
    """The length of vectors, or a norm of matrices where two dims are named or there are two.

    >>> import meshwright.numpy as mnp
    >>> mnp.linalg.norm(mnp.array([3.0, 4.0]))
    Array(5., dtype=float32)
    """
    keepdims = static_flag(keepdims, "keepdims of mnp.linalg.norm")
    x = inexact(value(x))
    axes_of(axis, x.ndim, "mnp.linalg.norm")  # which has no dim twice
    given = axis if isinstance(axis, list | tuple) else range(x.ndim) if axis is None else (axis,)
    axes = tuple(axis_of(d, x.ndim, "mnp.linalg.norm") for d in given)
    if ord is None and (axis is None or len(axes) in (1, 2)):
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
    if ord is not None and not isinstance(ord, int | float | np.number):
        raise ShapeError(
            f"mnp.linalg.norm of vectors cannot take ord={ord!r}.",
            where=here(),
            why="it is a number or mnp.inf",
            fix="ord=2",
        )
    if ord is None or ord == 2:
        return sqrt(sum(_squares(x), axes, keepdims=keepdims))
    if ord == math.inf:
        return max(absolute(x), axes, keepdims=keepdims, initial=0 if 0 in x.shape else None)
    if ord == -math.inf:
        return min(absolute(x), axes, keepdims=keepdims)
    if ord == 0:
        return sum(convert(not_equal(x, 0), absolute(x).type.dtype), axes, keepdims=keepdims)
    if ord == 1:
        return sum(absolute(x), axes, keepdims=keepdims)
    exponent = float(fitting(ord, x.type.dtype))
    return power(sum(power(absolute(x), exponent), axes, keepdims=keepdims), 1.0 / exponent)


def _matrix_norm(x: Value, ord: Any, first: int, second: int, keepdims: bool) -> Value:
    if ord is None or (isinstance(ord, str) and ord in ("fro", "f")):
        return sqrt(sum(_squares(x), (first, second), keepdims=keepdims))
    if isinstance(ord, int | float | np.number) and ord in (1, -1, math.inf, -math.inf):
        inner, outer = (first, second) if abs(ord) == 1 else (second, first)
        totals = sum(absolute(x), inner, keepdims=keepdims)
        rest = outer - (0 if keepdims or outer < inner else 1)
        if ord < 0:
            return min(totals, rest, keepdims=keepdims)
        return max(totals, rest, keepdims=keepdims, initial=0 if 0 in x.shape else None)
    if (isinstance(ord, str) and ord == "nuc") or (isinstance(ord, int | float | np.number) and ord in (2, -2)):
        others = [d for d in range(x.ndim) if d not in (first, second)]
        s = svdvals(transpose(x, [*others, first, second]))
        found = sum(s, -1) if ord == "nuc" else max(s, -1, initial=0) if ord == 2 else min(s, -1)
        return expand_dims(found, sorted((first, second))) if keepdims else found
    raise ShapeError(
        f"mnp.linalg.norm of matrices cannot take ord={ord!r}.",
        where=here(),
        why="it is 'fro', 'nuc', 1, -1, 2, -2, mnp.inf or -mnp.inf",
        fix="ord='fro'",
    )


def vector_norm(x: ArrayLike, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Value:
    """The norm of vectors along dims, of all elements by default."""
    keepdims = static_flag(keepdims, "keepdims of mnp.linalg.vector_norm")
    x = inexact(value(x))
    return _vector_norm(x, ord, axes_of(axis, x.ndim, "mnp.linalg.vector_norm"), keepdims)


def matrix_norm(x: ArrayLike, /, *, keepdims: bool = False, ord: Any = "fro") -> Value:
    """The norm of the matrices in the last two dims."""
    keepdims = static_flag(keepdims, "keepdims of mnp.linalg.matrix_norm")
    x = inexact(value(x))
    if x.ndim < 2:
        raise ShapeError(
            f"mnp.linalg.matrix_norm cannot take {x.type.short()}.",
            where=here(),
            why="a matrix has two dims",
            fix="mnp.linalg.vector_norm(x)",
        )
    return _matrix_norm(x, ord, x.ndim - 2, x.ndim - 1, keepdims)


def cholesky(a: ArrayLike, *, upper: bool = False, symmetrize_input: bool = True) -> Value:
    """The triangular matrix whose product with its conjugate transpose is the positive definite ``a``.

    >>> import meshwright.numpy as mnp
    >>> mnp.linalg.cholesky(mnp.array([[4.0, 2.0], [2.0, 2.0]]))
    Array([[2., 0.],
           [1., 1.]], dtype=float32)
    """
    upper = static_flag(upper, "upper of mnp.linalg.cholesky")
    symmetrize_input = static_flag(symmetrize_input, "symmetrize_input of mnp.linalg.cholesky")
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
    left_side = static_flag(left_side, "left_side of mnp.linalg.triangular_solve")
    lower = static_flag(lower, "lower of mnp.linalg.triangular_solve")
    transpose_a = static_flag(transpose_a, "transpose_a of mnp.linalg.triangular_solve")
    conjugate_a = static_flag(conjugate_a, "conjugate_a of mnp.linalg.triangular_solve")
    unit_diagonal = static_flag(unit_diagonal, "unit_diagonal of mnp.linalg.triangular_solve")
    x, y = promoted_values(a, b, inexact=True)
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
    lower = static_flag(lower, "lower of mnp.linalg.solve_triangular")
    unit_diagonal = static_flag(unit_diagonal, "unit_diagonal of mnp.linalg.solve_triangular")
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
    """The product of several matrices, those first multiplied that save the most.

    >>> import meshwright.numpy as mnp
    >>> mnp.linalg.multi_dot([mnp.ones((2, 3)), mnp.ones((3, 4)), mnp.ones(4)])
    Array([12., 12.], dtype=float32)
    """
    check_precision(precision)
    factors = [value(x) for x in items_of(arrays, "mnp.linalg.multi_dot")]
    if len(factors) < 2:
        raise ShapeError(
            f"mnp.linalg.multi_dot got {len(factors)} arrays.",
            where=here(),
            why="it multiplies two or more",
            fix="mnp.linalg.multi_dot([x, y])",
        )
    for n, x in enumerate(factors):
        if x.ndim != 2 and not (x.ndim == 1 and n in (0, len(factors) - 1)):
            raise ShapeError(
                f"mnp.linalg.multi_dot cannot take {x.type.short()} as array {n} of {len(factors)}.",
                where=here(),
                why="it multiplies matrices; the first and the last may be vectors",
                fix="mnp.matmul(x, y), which takes batches of matrices",
            )
    shapes = [x.shape for x in factors]
    for left, right in pairwise(shapes):
        if left[-1] != right[0]:
            raise ShapeError(
                f"mnp.linalg.multi_dot cannot multiply {list(left)} by {list(right)}.",
                where=here(),
                why=f"the last dim of one has {left[-1]} elements, the first of the next {right[0]}",
                fix="mnp.linalg.multi_dot([x, y.T])",
            )
    terms = [[n, n + 1] for n in range(len(factors))]
    terms[0], terms[-1] = terms[0][-len(shapes[0]) :], terms[-1][: len(shapes[-1])]
    labelled = [part for pair in zip(factors, terms, strict=True) for part in pair]
    return einsum(*labelled, [n for n in (0, len(factors)) if n in (*terms[0], *terms[-1])])


def diagonal(x: ArrayLike, /, *, offset: int = 0) -> Value:
    """The diagonals of the matrices in the last two dims."""
    return creation.diagonal(x, offset, -2, -1)


def trace(x: ArrayLike, /, *, offset: int = 0, dtype: DTypeLike = None) -> Value:
    """The sums of the diagonals of the matrices in the last two dims."""
    return products.trace(x, offset, -2, -1, dtype)


def cross(x1: ArrayLike, x2: ArrayLike, /, *, axis: int = -1) -> Value:
    """The cross product of vectors of three components."""
    for x in (value(x1), value(x2)):
        if not x.ndim or x.shape[axis_of(axis, x.ndim, "mnp.linalg.cross")] != 3:
            raise ShapeError(
                f"mnp.linalg.cross cannot take {x.type.short()}.",
                where=here(),
                why="a vector has three components along axis=",
                fix="mnp.cross(x, y), which also takes two",
            )
    return products.cross(x1, x2, axis=axis)


def outer(x1: ArrayLike, x2: ArrayLike, /) -> Value:
    """The product of every element of one vector with every element of another."""
    for x in (value(x1), value(x2)):
        if x.ndim != 1:
            raise ShapeError(
                f"mnp.linalg.outer cannot take {x.type.short()}.",
                where=here(),
                why="it takes vectors",
                fix="mnp.outer(x, y)",
            )
    return products.outer(x1, x2)
