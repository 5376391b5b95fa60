"""``jax._src.typing``: what annotations of JAX's libraries name."""

from meshwright.core.trace import Value as Array
from meshwright.jax.absent import absent
from meshwright.jax.typing import ArrayLike, DTypeLike

Shape = tuple[int, ...]
__getattr__ = absent("jax._src.typing")

__all__ = ["Array", "ArrayLike", "DTypeLike", "Shape"]
