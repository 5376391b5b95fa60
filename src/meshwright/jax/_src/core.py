"""``jax._src.core``."""

from meshwright.jax.absent import absent
from meshwright.jax.core import AbstractValue, ShapedArray, Tracer

__getattr__ = absent("jax._src.core")

__all__ = ["AbstractValue", "ShapedArray", "Tracer"]
