"""Polynomials by their coefficients, highest power first, and windows of signals, as ``jax.numpy`` has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.arrays.operands import ArrayLike, inexact, promoted_values, value
from meshwright.arrays.static import static_size
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import ShapeError
from meshwright.numpy import creation, shapes
from meshwright.numpy.linalg import eigvals, lstsq, norm
from meshwright.numpy.reductions import sum as total
from meshwright.numpy.statistics import convolve


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
    if cov:
        raise ShapeError(
            "polyfit does not return a covariance.", where=here(), why="cov=True asks for one", fix="cov=False"
        )
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
    return (found, residuals, rank, s, limit) if full else found


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
