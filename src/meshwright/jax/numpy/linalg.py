"""``jax.numpy.linalg`` over ``meshwright.numpy.linalg``."""

from meshwright.numpy.linalg import *  # noqa: F403
