"""``meshwright.lax.linalg`` and Fourier transforms by the names of ``jax.lax``."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from meshwright.arrays.operands import ArrayLike, value
from meshwright.arrays.static import one_of, static_shape
from meshwright.core.trace import Value
from meshwright.numpy.linalg import cholesky, triangular_solve
from meshwright.ops.linalg import fft as fft_op

__all__ = ["cholesky", "triangular_solve"]


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
