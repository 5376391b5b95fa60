"""``jax.typing``: what can be given where an array or a dtype is asked for."""

from meshwright.arrays.operands import ArrayLike, DTypeLike

__all__ = ["ArrayLike", "DTypeLike"]
