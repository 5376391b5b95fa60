"""``jax.core``: the public part of it, traced values and their types."""

from meshwright.core.trace import Tracer
from meshwright.core.types import TensorType as ShapedArray

AbstractValue = ShapedArray

__all__ = ["AbstractValue", "ShapedArray", "Tracer"]
