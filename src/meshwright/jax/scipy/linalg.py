"""``jax.scipy.linalg`` over ``meshwright.scipy.linalg``."""

from meshwright.jax.absent import absent
from meshwright.scipy.linalg import *  # noqa: F403

__getattr__ = absent("jax.scipy.linalg")
