"""Polynomials by their coefficients, highest power first, and windows of signals, as ``jax.numpy`` has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.arrays.operands import ArrayLike, inexact, known, promoted_values, value
from meshwright.arrays.refusals import refuse
from meshwright.arrays.static import static_flag, static_size
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import ShapeError
from meshwright.numpy import creation, shapes
from meshwright.numpy.dtypes import finfo
from meshwright.numpy.linalg import eigvals, inv, lstsq, norm
from meshwright.numpy.logic import absolute, either
from meshwright.numpy.order import argsort
from meshwright.numpy.products import outer
from meshwright.numpy.reductions import cumprod
from meshwright.numpy.reductions import sum as total
from meshwright.numpy.statistics import convolve
from meshwright.numpy.taking import roll


def polyadd(a1: ArrayLike, a2: ArrayLike) -> Value:
    """The sum of two polynomials.

    >>> import meshwright.numpy as mnp
    >>> polyadd(mnp.array([1, 2]), mnp.array([1, 0, 0])).tolist()
    [1, 1, 2]
    """
    x, y = promoted_values(a1, a2)
    size = max(x.shape[0], y.shape[0])
    return _filled(x, size) + _filled(y, size)


def polysub(a1: ArrayLike, a2: ArrayLike) -> Value:
    """The difference of two polynomials."""
    x, y = promoted_values(a1, a2)
    size = max(x.shape[0], y.shape[0])
    return _filled(x, size) - _filled(y, size)


def _filled(x: Value, size: int) -> Value:
    return shapes.concatenate([creation.zeros(size - x.shape[0], x.dtype), x])


def polymul(a1: ArrayLike, a2: ArrayLike, *, trim_leading_zeros: bool = False) -> Value:
    """The product of two polynomials.

    >>> import meshwright.numpy as mnp
    >>> polymul(mnp.array([1.0, 1.0]), mnp.array([1.0, -1.0])).tolist()
    [1.0, 0.0, -1.0]
    """
    x, y = (inexact(v) for v in promoted_values(a1, a2))
    if trim_leading_zeros:
        x, y = (creation.asarray(np.trim_zeros(np.asarray(v), "f")) for v in (x, y))
    return convolve(x, y)


def polyder(p: ArrayLike, m: int = 1) -> Value:
    """The ``m``-th derivative of a polynomial.

    >>> import meshwright.numpy as mnp
    >>> polyder(mnp.array([1.0, 2.0, 3.0])).tolist()
    [2.0, 2.0]
    """
    x = inexact(value(p))
    for _ in range(static_size(m, "m of polyder")):
        powers = creation.arange(x.shape[0] - 1, 0, -1).astype(x.dtype)
        x = x[:-1] * powers
    return x


def polyint(p: ArrayLike, m: int = 1, k: Any = None) -> Value:
    """The ``m``-th integral of a polynomial, with the constants ``k``.

    >>> import meshwright.numpy as mnp
    >>> polyint(mnp.array([2.0, 2.0])).tolist()
    [1.0, 2.0, 0.0]
    """
    x = inexact(value(p))
    count = static_size(m, "m of polyint")
    constants = creation.zeros(count, x.dtype) if k is None else creation.asarray(k, x.dtype).reshape(-1)
    if constants.shape[0] == 1:
        constants = shapes.broadcast_to(constants, (count,))
    if constants.shape[0] != count:
        raise ShapeError(
            f"polyint is given {constants.shape[0]} constants for {count} integrals.",
            where=here(),
            why="each integral has one",
            fix=f"k=mnp.zeros({count})",
        )
    for n in range(count):
        powers = creation.arange(x.shape[0], 0, -1).astype(x.dtype)
        x = shapes.concatenate([x / powers, constants[n : n + 1]])
    return x


def poly(seq_of_zeros: ArrayLike) -> Value:
    """The polynomial with the given zeros, or of which the given matrix is one.

    >>> import meshwright.numpy as mnp
    >>> poly(mnp.array([1.0, -1.0])).tolist()
    [1.0, 0.0, -1.0]
    """
    zeros = inexact(value(seq_of_zeros))
    if zeros.ndim == 2:
        zeros = eigvals(zeros)
    found = creation.ones(1, zeros.dtype)
    for n in range(zeros.size):
        found = convolve(found, shapes.stack([creation.ones((), zeros.dtype), -zeros.reshape(-1)[n]]))
    return found


def polyfit(
    x: ArrayLike, y: ArrayLike, deg: int, rcond: float | None = None, full: bool = False, w: Any = None,
    cov: bool | str = False,
) -> Any:  # fmt: skip
    """The polynomial of degree ``deg`` that is nearest to the points.

    >>> import meshwright.numpy as mnp
    >>> [round(c, 3) for c in polyfit(mnp.arange(4.0), 2 * mnp.arange(4.0) + 1, 1).tolist()]
    [2.0, 1.0]
    """
    px, py = (inexact(v) for v in promoted_values(x, y))
    degree = static_size(deg, "deg of polyfit")
    limit = px.shape[0] * float(np.finfo(px.dtype).eps) if rcond is None else rcond
    left = creation.vander(px, degree + 1)
    right = py
    if w is not None:
        weights = creation.asarray(w, px.dtype)
        left, right = left * weights[:, None], (right.T * weights).T
    scale = norm(left, axis=0)
    found, residuals, rank, s = lstsq(left / scale, right, limit)
    found = (found.T / scale).T
    if full:
        return found, residuals, rank, s, limit
    if not cov:
        return found
    spread = inv(left.T @ left / outer(scale, scale)) / outer(scale, scale)
    freedom = px.shape[0] - degree - 1
    if not isinstance(cov, str):
        if freedom <= 0:
            raise ShapeError(
                f"polyfit has {px.shape[0]} points for {degree + 1} coefficients.", where=here(),
                why="their covariance follows from what the points leave over", fix="cov='unscaled'",
            )  # fmt: skip
        spread = spread * (residuals / freedom) if py.ndim == 1 else spread[:, :, None] * (residuals / freedom)
    elif py.ndim > 1:
        spread = spread[:, :, None]
    return found, spread


def polydiv(u: ArrayLike, v: ArrayLike, *, trim_leading_zeros: bool = False) -> tuple[Value, Value]:
    """The quotient and the remainder of two polynomials.

    >>> import meshwright.numpy as mnp
    >>> [x.tolist() for x in mnp.polydiv(mnp.array([5.0, 7.0, 9.0]), mnp.array([4.0, 1.0]))]
    [[1.25, 1.4375], [0.0, 0.0, 7.5625]]
    """
    rest, divisor = (inexact(x) for x in promoted_values(u, v))
    if rest.ndim != 1 or divisor.ndim != 1 or not divisor.shape[0]:
        refuse("mnp.polydiv", [rest.type, divisor.type], "a polynomial is a vector of coefficients", "u.ravel()")
    size, length = divisor.shape[0], rest.shape[0]
    steps = max(length - size + 1, 1)
    quotient = []
    for n in range(length - size + 1):
        factor = rest[n] / divisor[0]
        quotient.append(factor)
        rest = shapes.concatenate([rest[:n], rest[n : n + size] - factor * divisor, rest[n + size :]])
    found = shapes.stack(quotient) if quotient else creation.zeros(steps, rest.dtype)
    if static_flag(trim_leading_zeros, "trim_leading_zeros of mnp.polydiv"):
        rest = _without_leading_zeros(rest, "mnp.polydiv")
    return found, rest


def _without_leading_zeros(x: Value, name: str) -> Value:
    """Known coefficients from the first that is more than rounding on."""
    data = np.asarray(known(x, f"{name} with trim_leading_zeros", "trim_leading_zeros=False"))
    small = np.isclose(data, 0, rtol=0, atol=float(finfo(data.dtype).eps) * 10)
    first = int(np.argmin(small)) if not small.all() else data.size - 1
    return x[max(first, 0) :]


def roots(p: ArrayLike, *, strip_zeros: bool = True) -> Value:
    """The zeros of a polynomial, as complex numbers.

    Leading zeros of a known polynomial are left out; with ``strip_zeros=False``, zeros that there are not are NaN.

    >>> import meshwright.numpy as mnp
    >>> mnp.roots(mnp.array([1.0, -5.0])).tolist()
    [(5+0j)]
    """
    x = inexact(value(p))
    if x.ndim != 1:
        refuse("mnp.roots", [x.type], "a polynomial is a vector of coefficients", "p.ravel()")
    if x.shape[0] < 2:
        return creation.zeros(0, complex)
    if static_flag(strip_zeros, "strip_zeros of mnp.roots"):
        filled = np.nonzero(np.asarray(known(x, "mnp.roots", "mnp.roots(p, strip_zeros=False)")))[0]
        if not filled.size:
            return creation.zeros(0, complex)
        return _eigenvalues(x[int(filled[0]) : int(filled[-1]) + 1], x.shape[0] - int(filled[-1]) - 1)
    size = x.shape[0]
    # Leading zeros are moved behind, where they add zeros to the zeros; the last ones of those are none.
    none = x == 0
    leading = total(cumprod(none.astype(int)))
    moved = roll(x, -leading)
    first = either(leading == size, 1.0, moved[0])
    found = _of_companion(moved / first)
    found = found[argsort(-absolute(found))]  # those moved are exactly 0
    kept = creation.arange(size - 1) < size - 1 - leading
    return either(kept, found, complex("nan+nanj"))


def _eigenvalues(x: Value, zeros: int) -> Value:
    found = _of_companion(x / x[0])
    return shapes.concatenate([found, creation.zeros(zeros, found.dtype)])


def _of_companion(x: Value) -> Value:
    """The eigenvalues of the matrix whose characteristic polynomial has these coefficients, the first of them 1."""
    size = x.shape[0] - 1
    if not size:
        return creation.zeros(0, complex)
    below = creation.eye(size - 1, size, dtype=x.dtype)
    return eigvals(shapes.concatenate([-x[None, 1:], below]))


def bartlett(M: int) -> Value:
    """A window that rises to 1 in the middle in straight lines."""
    return creation.asarray(np.bartlett(M), float)


def blackman(M: int) -> Value:
    """The Blackman window."""
    return creation.asarray(np.blackman(M), float)


def hamming(M: int) -> Value:
    """The Hamming window."""
    return creation.asarray(np.hamming(M), float)


def hanning(M: int) -> Value:
    """The Hann window.

    >>> hanning(3).tolist()
    [0.0, 1.0, 0.0]
    """
    return creation.asarray(np.hanning(M), float)


def kaiser(M: int, beta: float) -> Value:
    """The Kaiser window."""
    return creation.asarray(np.kaiser(M, beta), float)


def matvec(x1: ArrayLike, x2: ArrayLike, /) -> Value:
    """The products of matrices in the last two dims with vectors in the last one.

    >>> import meshwright.numpy as mnp
    >>> matvec(mnp.ones((2, 3)), mnp.ones(3)).tolist()
    [3.0, 3.0]
    """
    a, b = promoted_values(x1, x2)
    return total(a * b[..., None, :], -1)


def vecmat(x1: ArrayLike, x2: ArrayLike, /) -> Value:
    """The products of vectors in the last dim, conjugated, with matrices in the last two."""
    a, b = promoted_values(x1, x2)
    return total(a.conj()[..., :, None] * b, -2)
