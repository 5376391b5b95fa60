"""The part of ``meshwright.lax.linalg`` that works by reflections and rotations, a column at a time, as LAPACK does.

A reflection is ``1 - tau v vᴴ`` with ``v`` 0 above one place and 1 there; kept are ``tau`` and what ``v`` is below.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.api.control import fori_loop, scan, while_loop
from meshwright.api.vmap import vmap
from meshwright.arrays.operands import ArrayLike, promoted_values, value
from meshwright.arrays.static import static_flag, static_size
from meshwright.core import dtypes
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import ShapeError
from meshwright.numpy import (
    abs,
    arange,
    argmax,
    concatenate,
    conj,
    diagonal,
    eye,
    finfo,
    flip,
    max,
    maximum,
    minimum,
    outer,
    real,
    sqrt,
    sum,
    swapaxes,
    where,
    zeros,
)
from meshwright.numpy.factorizations import matrices
from meshwright.ops import factorization


def _stacked(function: Callable[..., Any], lead: int) -> Callable[..., Any]:
    """A function of matrices and vectors as one of stacks with ``lead`` dims in front."""
    for _ in range(lead):
        function = vmap(function)
    return function


def _refuse(name: str, xs: list[Value], why: str, fix: str) -> ShapeError:
    return ShapeError(
        f"lax.linalg.{name} cannot take {', '.join(x.type.short() for x in xs)}.", where=here(), why=why, fix=fix
    )


def _adjoint(x: Any) -> Any:
    return conj(swapaxes(x, -1, -2))


def _reflection(column: Any, k: Any) -> tuple[Any, Any, Any]:
    """The ``v`` and ``tau`` of the reflection that makes a column zero below place ``k``, and what it has at ``k``."""
    places = arange(column.shape[0])
    alpha, below = column[k], places > k
    rest = sum(where(below, abs(column) ** 2, 0))
    trivial = (rest == 0) & (alpha == real(alpha))
    size = sqrt(where(trivial, 1, abs(alpha) ** 2 + rest))
    beta = where(real(alpha) > 0, -size, size).astype(column.dtype)
    tau = where(trivial, 0, (beta - alpha) / beta)
    v = where(below, column / where(trivial, 1, alpha - beta), 0)
    return where(places == k, 1, v), tau, where(trivial, alpha, beta)


def _similar(a: Any) -> tuple[Any, Any]:
    """A square matrix reflected from both sides until it is zero below the first subdiagonal, and the reflections."""

    def step(j: Any, state: Any) -> Any:
        a, vectors, taus = state
        v, tau, _ = _reflection(a[:, j], j + 1)
        a = a - conj(tau) * outer(v, conj(v) @ a)
        a = a - tau * outer(a @ v, conj(v))
        return a, vectors.at[:, j].set(v), taus.at[j].set(tau)

    count = a.shape[0] - 1 if a.shape[0] else 0
    found, vectors, taus = fori_loop(0, count, step, (a, zeros(a.shape, a.dtype), zeros(count, a.dtype)))
    return where(_below(a, -2), vectors, found), taus


def hessenberg(a: ArrayLike) -> tuple[Value, Value]:
    """Square matrices in upper Hessenberg form with the reflections that lead there below it, and their ``taus``.

    >>> import meshwright.numpy as mnp
    >>> from meshwright import lax
    >>> lax.linalg.hessenberg(mnp.ones((3, 3)))[1].shape
    (2,)
    """
    x = matrices(a, "hessenberg", square=True)
    found: tuple[Value, Value] = _stacked(_similar, x.ndim - 2)(x)
    return found


def _tridiagonal(a: Any) -> tuple[Any, Any, Any, Any]:
    found, taus = _similar(_hermitian(a))
    return where(_below(a, 0), found, a), real(diagonal(found)), real(diagonal(found, -1)), taus


def _below(a: Any, diagonal: int) -> Any:
    """Where a matrix has the elements on a diagonal and below it."""
    n = a.shape[-1]
    return arange(n)[:, None] + diagonal >= arange(n)[None, :]


def _hermitian(a: Any) -> Any:
    """The matrix whose lower half is given."""
    lower = where(_below(a, -1), a, 0)
    return lower + _adjoint(lower) + where(eye(a.shape[-1], dtype=bool), real(a), 0).astype(a.dtype)


def tridiagonal(a: ArrayLike, *, lower: bool = True) -> tuple[Value, Value, Value, Value]:
    """Hermitian matrices as tridiagonal ones: with the reflections that lead there, the diagonals, those beside them,
    and the ``taus``.

    >>> import meshwright.numpy as mnp
    >>> from meshwright import lax
    >>> lax.linalg.tridiagonal(mnp.diag(mnp.arange(3.0)))[1].tolist()
    [0.0, 1.0, 2.0]
    """
    x: Any = matrices(a, "tridiagonal", square=True)
    if static_flag(lower, "lower of lax.linalg.tridiagonal"):
        found: tuple[Value, Value, Value, Value] = _stacked(_tridiagonal, x.ndim - 2)(x)
        return found
    turned, d, e, taus = _stacked(_tridiagonal, x.ndim - 2)(flip(x, (-2, -1)))
    return flip(turned, (-2, -1)), flip(d, -1), flip(e, -1), flip(taus, -1)


def _apply(a: Any, taus: Any, c: Any, adjoint: bool) -> Any:
    """The product of the reflections, or its adjoint, times ``c``."""
    count, places = taus.shape[0], arange(a.shape[0])

    def step(n: Any, c: Any) -> Any:
        k = n if adjoint else count - 1 - n
        v = where(places == k, 1, where(places > k, a[:, k], 0))
        tau = conj(taus[k]) if adjoint else taus[k]
        return c - tau * outer(v, conj(v) @ c)

    return fori_loop(0, count, step, c)


def householder_product(a: ArrayLike, taus: ArrayLike) -> Value:
    """The first columns of the product of reflections: with those of LAPACK's ``geqrf``, the ``q`` of ``qr``."""
    x, t = promoted_values(a, taus, inexact=True)
    if x.ndim < 2 or t.ndim != x.ndim - 1 or t.shape[-1] > min(x.shape[-2:]) or x.shape[-1] > x.shape[-2]:
        raise _refuse(
            "householder_product", [x, t],
            "it takes matrices with at least as many rows as columns, and at most one tau for each column",
            "a, taus of a factorization",
        )  # fmt: skip
    made = lambda a, taus: _apply(a, taus, eye(a.shape[0], a.shape[1], dtype=a.dtype), adjoint=False)
    found: Value = _stacked(made, x.ndim - 2)(x, t)
    return found


def ormqr(a: ArrayLike, taus: ArrayLike, c: ArrayLike, *, left: bool = True, transpose: bool = False) -> Value:
    """The product of reflections (or its adjoint) times ``c``, or ``c`` times it, without making it."""
    x, t, y = promoted_values(a, taus, c, inexact=True)
    left = static_flag(left, "left of lax.linalg.ormqr")
    adjoint = static_flag(transpose, "transpose of lax.linalg.ormqr")
    if x.ndim < 2 or y.ndim != x.ndim or y.shape[-2 if left else -1] != x.shape[-2] or t.ndim != x.ndim - 1:
        raise _refuse("ormqr", [x, t, y], "c has as many rows as a, or columns if it stands on the left", "c.mT")

    def one(a: Any, taus: Any, c: Any) -> Any:
        return _apply(a, taus, c, adjoint) if left else _adjoint(_apply(a, taus, _adjoint(c), not adjoint))

    found: Value = _stacked(one, x.ndim - 2)(x, t, y)
    return found


def column_order(x: Value) -> Value:
    """The order of columns in which each next one is the farthest from what those before it span."""

    def one(a: Any) -> Any:
        columns = arange(a.shape[1])

        def step(n: Any, state: Any) -> Any:
            rest, order = state
            lengths = where(columns < n, -1, sum(abs(rest) ** 2, 0))
            at = argmax(lengths)
            swapped = where(columns == n, at, where(columns == at, n, columns))
            rest, order = rest[:, swapped], order[swapped]
            length = sqrt(maximum(lengths[at], 0))
            unit = rest[:, n] / where(length == 0, 1, length)
            return rest - outer(unit, conj(unit) @ rest), order

        count = min(a.shape)
        return fori_loop(0, count, step, (a, arange(a.shape[1], dtype="int32")))[1]

    found: Value = _stacked(one, x.ndim - 2)(x)
    return found


# Changes and systems of a special form


def lu_pivots_to_permutation(pivots: ArrayLike, permutation_size: int) -> Value:
    """The order of rows that exchanging row n with row ``pivots[n]``, for each n in turn, leads to.

    >>> import meshwright.numpy as mnp
    >>> from meshwright import lax
    >>> lax.linalg.lu_pivots_to_permutation(mnp.array([2, 2]), 3).tolist()
    [2, 0, 1]
    """
    p = value(pivots)
    size = static_size(permutation_size, "permutation_size of lax.linalg.lu_pivots_to_permutation")
    if not dtypes.is_integer(p.dtype) or p.ndim < 1 or p.shape[-1] > size:
        raise _refuse("lu_pivots_to_permutation", [p], "pivots are at most as many integers as rows", "lu(x)[1]")

    def one(pivots: Any) -> Any:
        def step(n: Any, order: Any) -> Any:
            other = pivots[n]
            return order.at[n].set(order[other]).at[other].set(order[n])

        return fori_loop(0, pivots.shape[0], step, arange(size, dtype=pivots.dtype))

    found: Value = _stacked(one, p.ndim - 1)(p)
    return found


def cholesky_update(r_matrix: ArrayLike, w_vector: ArrayLike) -> Value:
    """The upper triangle R' with R'ᵀ R' = Rᵀ R + w wᵀ, by a rotation for each row.

    >>> import meshwright.numpy as mnp
    >>> from meshwright import lax
    >>> lax.linalg.cholesky_update(mnp.array([[3.0]]), mnp.array([4.0])).tolist()
    [[5.0]]
    """
    r, w = promoted_values(r_matrix, w_vector, inexact=True)
    if r.ndim < 2 or r.shape[-1] != r.shape[-2] or w.shape != r.shape[:-1] or dtypes.is_complex(r.dtype):
        raise _refuse("cholesky_update", [r, w], "it takes square matrices of real numbers and a vector for each", "x")

    def one(r: Any, w: Any) -> Any:
        def step(k: Any, state: Any) -> Any:
            r, w = state
            length = sqrt(r[k, k] ** 2 + w[k] ** 2)
            cosine, sine = r[k, k] / length, w[k] / length
            return r.at[k].set(cosine * r[k] + sine * w), cosine * w - sine * r[k]

        return fori_loop(0, r.shape[0], step, (r, w))[0]

    found: Value = _stacked(one, r.ndim - 2)(r, w)
    return found


def tridiagonal_solve(
    dl: ArrayLike, d: ArrayLike, du: ArrayLike, b: ArrayLike, *, perturb_singular: bool = False
) -> Value:
    """The solution of tridiagonal systems, given by their three diagonals, by elimination with exchanges of rows.

    ``dl[0]`` and ``du[-1]`` are not looked at.

    >>> import meshwright.numpy as mnp
    >>> from meshwright import lax
    >>> lax.linalg.tridiagonal_solve(mnp.zeros(2), mnp.array([2.0, 4.0]), mnp.zeros(2), mnp.ones((2, 1))).tolist()
    [[0.5], [0.25]]
    """
    low, middle, high, right = promoted_values(dl, d, du, b, inexact=True)
    if static_flag(perturb_singular, "perturb_singular of lax.linalg.tridiagonal_solve"):
        raise _refuse("tridiagonal_solve", [middle], "pivots are not moved away from zero", "perturb_singular=False")
    if not middle.shape == low.shape == high.shape == right.shape[:-1] or not middle.ndim or not middle.shape[-1]:
        raise _refuse(
            "tridiagonal_solve", [low, middle, high, right],
            "the diagonals have one shape, and b has a dim more: as many rows as they have elements", "b[:, None]",
        )  # fmt: skip
    found: Value = _stacked(_eliminate, middle.ndim - 1)(low, middle, high, right)
    return found


def _eliminate(low: Any, middle: Any, high: Any, right: Any) -> Any:
    """Rows are (at the diagonal, right of it, right of that, right-hand side)."""
    nothing = zeros((), middle.dtype)
    high = concatenate([high[:-1], nothing[None]])

    def down(row: Any, below: Any) -> Any:
        swap = abs(below[0]) > abs(row[0])
        upper = [where(swap, x, y) for x, y in zip(below, row, strict=True)]
        lower = [where(swap, y, x) for x, y in zip(below, row, strict=True)]
        ratio = lower[0] / upper[0]
        rest = [y - ratio * x for x, y in zip(upper[1:], lower[1:], strict=True)]
        return (rest[0], rest[1], nothing, rest[2]), tuple(upper)

    def up(later: Any, row: Any) -> Any:
        after, second = later
        x = (row[3] - row[1] * after - row[2] * second) / row[0]
        return (x, after), x

    start = middle[0], high[0], nothing, right[0]
    last, rows = scan(down, start, (low[1:], middle[1:], high[1:], right[1:]))
    end = last[3] / last[0]
    _, found = scan(up, (end, zeros(end.shape, end.dtype)), rows, reverse=True)
    return concatenate([found, end[None]])


# Polar decomposition


def qdwh(
    x: ArrayLike,
    *,
    is_hermitian: bool = False,
    max_iterations: int | None = None,
    eps: float | None = None,
    dynamic_shape: tuple[int, int] | None = None,
) -> tuple[Value, Value, Value, Value]:
    """``x`` as a matrix of orthonormal columns times a Hermitian one, by a weighted Halley iteration.

    With them come the number of iterations and whether they converged. ``dynamic_shape`` is that of the part of ``x``
    that counts.

    >>> import meshwright.numpy as mnp
    >>> from meshwright import lax
    >>> mnp.round(lax.linalg.qdwh(mnp.array([[0.0, 2.0], [1.0, 0.0]]))[1], 3).tolist()
    [[1.0, 0.0], [0.0, 2.0]]
    """
    a: Any = matrices(x, "qdwh")
    static_flag(is_hermitian, "is_hermitian of lax.linalg.qdwh")  # which is no faster
    if a.ndim != 2 or a.shape[0] < a.shape[1]:
        raise _refuse("qdwh", [a], "it takes one matrix with at least as many rows as columns", "x.mT")
    rows, columns = a.shape
    counted = None
    if dynamic_shape is not None:
        counted = (arange(rows)[:, None] < dynamic_shape[0]) & (arange(columns)[None] < dynamic_shape[1])
        a = where(counted, a, 0)
    most = 10 if max_iterations is None else static_size(max_iterations, "max_iterations of lax.linalg.qdwh")
    rounding = float(finfo(a.dtype).eps) if eps is None else float(eps)
    return _polar(a, most, rounding, counted)


def _polar(a: Any, most: int, rounding: float, counted: Any) -> tuple[Value, Value, Value, Value]:
    """Each step is u (a + b uᴴu) / (1 + c uᴴu), with weights that drive the smallest singular value, at least ``low``,
    towards 1 the fastest; it is taken by a factorization of √c u above the identity, which is stable."""
    rows, columns = a.shape
    scale = sqrt(max(sum(abs(a), 0)) * max(sum(abs(a), 1)))
    scale = where(scale == 0, 1, scale)
    closeness = (4 * rounding) ** (1 / 3)

    def step(state: Any) -> Any:
        u, low, n, _ = state
        squared = low**2
        d = (4 * (1 / squared - 1) / squared) ** (1 / 3)
        first = sqrt(1 + d) + sqrt(8 - 4 * d + 8 * (2 - squared) / (squared * sqrt(1 + d))) / 2
        second = (first - 1) ** 2 / 4
        third = first + second - 1
        low = minimum(low * (first + second * squared) / (1 + third * squared), 1)
        tall = concatenate([sqrt(third).astype(u.dtype) * u, eye(columns, dtype=u.dtype)])
        q, _ = factorization.qr(tall, full=False)
        new = (second / third) * u + (first - second / third) / sqrt(third) * (q[:rows] @ _adjoint(q[rows:]))
        new = new if counted is None else where(counted, new, 0)
        moved = sqrt(sum(abs(new - u) ** 2)) > closeness * sqrt(sum(abs(new) ** 2))
        return new.astype(u.dtype), low, n + 1, moved | (abs(1 - low) > 10 * rounding)

    start = a / scale.astype(a.dtype), scale * 0 + rounding, zeros((), "int32"), zeros((), bool) | True
    u, _, count, moving = while_loop(lambda state: state[3] & (state[2] < most), step, start)
    u = 1.5 * u - 0.5 * u @ (_adjoint(u) @ u)  # one step of Newton and Schulz, which is right to rounding
    h = _adjoint(u) @ a
    return u, (h + _adjoint(h)) / 2, count, ~moving
