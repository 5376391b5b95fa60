"""``jax._src.numpy``: ``jax.numpy``, with the modules that JAX makes it of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from meshwright.jax import numpy as _numpy

einsum, vectorize = SimpleNamespace(einsum=_numpy.einsum), SimpleNamespace(vectorize=_numpy.vectorize)
lax_numpy = _numpy


def __getattr__(name: str) -> Any:
    """What ``jax.numpy`` has by this name."""
    return getattr(_numpy, name)
