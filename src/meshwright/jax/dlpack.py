"""``jax.dlpack``: arrays of other libraries, without a copy."""

from meshwright.jax.absent import absent
from meshwright.jax.numpy import from_dlpack

__getattr__ = absent("jax.dlpack")

__all__ = ["from_dlpack"]
