"""``meshwright.lax.linalg`` and Fourier transforms by the names of ``jax.lax``."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from meshwright.arrays.operands import ArrayLike, promoted_values, value
from meshwright.arrays.static import one_of, static_flag, static_shape
from meshwright.core import dtypes
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import ShapeError
from meshwright.lax.reflections import (
    cholesky_update,
    column_order,
    hessenberg,
    householder_product,
    lu_pivots_to_permutation,
    ormqr,
    qdwh,
    tridiagonal,
    tridiagonal_solve,
)
from meshwright.numpy import (
    abs,
    argmax,
    conj,
    expand_dims,
    matmul,
    real,
    sqrt,
    sum,
    swapaxes,
    take_along_axis,
    tril,
    where,
)
from meshwright.numpy import linalg as numpy_linalg
from meshwright.numpy.factorizations import matrices
from meshwright.numpy.linalg import cholesky, triangular_solve
from meshwright.ops import factorization
from meshwright.ops.linalg import fft as fft_op

__all__ = [
    "EigImplementation",
    "EighImplementation",
    "SvdAlgorithm",
    "cholesky",
    "cholesky_update",
    "eig",
    "eigh",
    "hessenberg",
    "householder_product",
    "lu",
    "lu_pivots_to_permutation",
    "ormqr",
    "qdwh",
    "qr",
    "svd",
    "symmetric_product",
    "triangular_solve",
    "tridiagonal",
    "tridiagonal_solve",
]


class FftType(Enum):
    """The kinds of Fourier transforms."""

    FFT = "fft"
    IFFT = "ifft"
    RFFT = "rfft"
    IRFFT = "irfft"


def fft(x: ArrayLike, fft_type: Any, fft_lengths: Sequence[int]) -> Value:
    """The Fourier transform over the last dims, of the given lengths."""
    kind = fft_type.value if isinstance(fft_type, FftType) else fft_type
    kind = one_of(kind.lower() if isinstance(kind, str) else kind, [t.value for t in FftType], "fft_type of lax.fft")
    return fft_op(value(x), kind=kind, lengths=static_shape(fft_lengths, "a length of lax.fft"))


# Which library's algorithm computes a factorization: accepted where JAX has it. What comes out is the same up to
# rounding and to what the factorization leaves open; here it is LAPACK's.


class EigImplementation(Enum):
    """Who computes eigenvalues of any matrices."""

    CUSOLVER = "cusolver"
    MAGMA = "magma"
    LAPACK = "lapack"


class EighImplementation(Enum):
    """Who computes eigenvalues of Hermitian matrices."""

    QR = "qr"
    JACOBI = "jacobi"
    QDWH = "qdwh"


class SvdAlgorithm(Enum):
    """How singular values are computed."""

    DEFAULT = "default"
    QR = "QR"
    JACOBI = "Jacobi"
    POLAR = "polar"


def _check_choice(given: Any, kind: type[Enum], what: str) -> None:
    if given is not None and getattr(given, "name", None) not in kind.__members__:
        raise ShapeError(
            f"{what} is {given!r}.",
            where=here(),
            why=f"it is None or one of {', '.join(map(str, kind))}",
            fix=f"{what.partition(' ')[0]}=None",
        )


def lu(x: ArrayLike) -> tuple[Value, Value, Value]:
    """The triangles of ``x[permutation] = l u`` in one matrix, the exchanges of rows, and the order they lead to.

    >>> import meshwright.numpy as mnp
    >>> from meshwright import lax
    >>> lax.linalg.lu(mnp.array([[1.0, 2.0], [2.0, 1.0]]))[2].tolist()
    [1, 0]
    """
    both, pivots, order = factorization.lu(matrices(x, "lu"))
    return both, pivots, order


def qr(x: ArrayLike, *, pivoting: bool = False, full_matrices: bool = True, use_magma: bool | None = None) -> Any:
    """``q`` and ``r`` with ``q @ r == x``; with ``pivoting``, of ``x[:, p]`` and ``p``, in which the diagonal of ``r``
    does not grow.

    >>> import meshwright.numpy as mnp
    >>> from meshwright import lax
    >>> lax.linalg.qr(mnp.array([[1.0, 5.0], [2.0, 6.0]]), pivoting=True)[2].tolist()
    [1, 0]
    """
    full = static_flag(full_matrices, "full_matrices of lax.linalg.qr")
    static_flag(use_magma, "use_magma of lax.linalg.qr")  # which library computes it does not change what it is
    a: Any = matrices(x, "qr")
    if not static_flag(pivoting, "pivoting of lax.linalg.qr"):
        q, r = factorization.qr(a, full=full)
        return q, r
    order = column_order(a)
    q, r = factorization.qr(take_along_axis(a, expand_dims(order, -2), -1), full=full)
    return q, r, order


def eigh(
    x: ArrayLike,
    *,
    lower: bool = True,
    symmetrize_input: bool = True,
    sort_eigenvalues: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    implementation: Any = None,
) -> tuple[Value, Value]:
    """The eigenvectors of Hermitian matrices as columns, and their eigenvalues: the vectors first.

    >>> import meshwright.numpy as mnp
    >>> from meshwright import lax
    >>> lax.linalg.eigh(mnp.array([[2.0, 0.0], [0.0, 1.0]]))[1].tolist()
    [1.0, 2.0]
    """
    _check_choice(implementation, EighImplementation, "implementation of lax.linalg.eigh")
    static_flag(sort_eigenvalues, "sort_eigenvalues of lax.linalg.eigh")  # they are sorted either way
    half = "L" if static_flag(lower, "lower of lax.linalg.eigh") else "U"
    w, v = numpy_linalg.eigh(x, half, symmetrize_input)
    if subset_by_index is None:
        return v, w
    low, high = static_shape(subset_by_index, "subset_by_index of lax.linalg.eigh")
    return v[..., low:high], w[..., low:high]  # type: ignore[index]


def eig(
    x: ArrayLike,
    *,
    compute_left_eigenvectors: bool = True,
    compute_right_eigenvectors: bool = True,
    enable_eigvec_derivs: bool = False,
    implementation: Any = None,
    use_magma: bool | None = None,
) -> list[Value]:
    """The eigenvalues of square matrices, and as asked for the eigenvectors on the left and on the right, as columns.

    A left one has ``conj(v) @ x == w * conj(v)``. Derivatives of the vectors are there in either case.

    >>> import meshwright.numpy as mnp
    >>> from meshwright import lax
    >>> w, left, right = lax.linalg.eig(mnp.array([[2.0, 1.0], [0.0, 1.0]]))
    >>> w.real.tolist()
    [2.0, 1.0]
    """
    _check_choice(implementation, EigImplementation, "implementation of lax.linalg.eig")
    static_flag(enable_eigvec_derivs, "enable_eigvec_derivs of lax.linalg.eig")
    static_flag(use_magma, "use_magma of lax.linalg.eig")
    w, v = numpy_linalg.eig(x)
    found = [w]
    if static_flag(compute_left_eigenvectors, "compute_left_eigenvectors of lax.linalg.eig"):
        found.append(_left_vectors(v))
    return [*found, v] if static_flag(compute_right_eigenvectors, "compute_right_eigenvectors") else found


def _left_vectors(v: Any) -> Value:
    """The rows of the inverse, of length 1 and real where they are largest."""
    rows = conj(swapaxes(numpy_linalg.inv(v), -1, -2))
    rows = rows / sqrt(sum(abs(rows) ** 2, -2, keepdims=True))
    largest = take_along_axis(rows, expand_dims(argmax(abs(rows), -2), -2), -2)
    sign = where(real(largest) < 0, -1, 1)
    found: Value = rows * conj(largest) / abs(largest) * sign
    return found


def svd(
    x: ArrayLike,
    *,
    full_matrices: bool = True,
    compute_uv: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    algorithm: Any = None,
) -> Any:
    """``u, s, vh`` with ``u @ diag(s) @ vh == x``, the singular values decreasing; without ``compute_uv`` these alone.

    >>> import meshwright.numpy as mnp
    >>> from meshwright import lax
    >>> lax.linalg.svd(mnp.array([[0.0, 3.0], [2.0, 0.0]]), compute_uv=False).tolist()
    [3.0, 2.0]
    """
    _check_choice(algorithm, SvdAlgorithm, "algorithm of lax.linalg.svd")
    found = numpy_linalg.svd(x, full_matrices, compute_uv, subset_by_index=subset_by_index)
    return tuple(found) if isinstance(found, tuple) else found


def symmetric_product(
    a_matrix: ArrayLike, c_matrix: ArrayLike, *, alpha: float = 1.0, beta: float = 0.0, symmetrize_output: bool = False
) -> Value:
    """``alpha a aᵀ + beta c``; with ``symmetrize_output``, from the lower half of that.

    >>> import meshwright.numpy as mnp
    >>> from meshwright import lax
    >>> lax.linalg.symmetric_product(mnp.array([[1.0, 2.0]]), mnp.ones((1, 1)), alpha=2.0, beta=1.0).tolist()
    [[11.0]]
    """
    a, c = promoted_values(a_matrix, c_matrix, inexact=True)
    if a.ndim < 2 or c.shape != (*a.shape[:-1], a.shape[-2]) or dtypes.is_complex(a.dtype):
        raise ShapeError(
            f"lax.linalg.symmetric_product cannot take {a.type.short()} and {c.type.short()}.",
            where=here(),
            why="c is a square matrix of real numbers with as many rows as a",
            fix="mnp.zeros((a.shape[0], a.shape[0]))",
        )
    found: Any = alpha * matmul(a, swapaxes(a, -1, -2)) + beta * c  # type: ignore[operator]
    if static_flag(symmetrize_output, "symmetrize_output of lax.linalg.symmetric_product"):
        found = tril(found) + swapaxes(tril(found, -1), -1, -2)
    return found  # type: ignore[no-any-return]
