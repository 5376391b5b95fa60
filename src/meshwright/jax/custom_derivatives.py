"""``jax.custom_derivatives``: derivatives of one's own, and functions without closures."""

from meshwright.api.custom import custom_jvp, custom_vjp
from meshwright.jax.absent import absent
from meshwright.jax.api import closure_convert, custom_gradient

__getattr__ = absent("jax.custom_derivatives")

__all__ = ["closure_convert", "custom_gradient", "custom_jvp", "custom_vjp"]
