"""``meshwright.lax.linalg`` and Fourier transforms by the names of ``jax.lax``."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from meshwright.core.op import Value
from meshwright.frontend.numpy_norms import cholesky, triangular_solve
from meshwright.frontend.operands import ArrayLike, static_shape, value
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
    kind = fft_type.value if isinstance(fft_type, FftType) else str(fft_type).lower()
    return fft_op(value(x), kind=kind, lengths=static_shape(tuple(fft_lengths)))
