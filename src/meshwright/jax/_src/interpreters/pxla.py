"""``jax._src.interpreters.pxla``."""

from meshwright.jax.absent import absent

__getattr__ = absent("jax._src.interpreters.pxla")
