"""``jax.scipy.special`` over ``meshwright.scipy.special``."""

from meshwright.scipy.special import *  # noqa: F403
