"""``jax.lax.linalg`` over ``meshwright.lax.linalg``."""

from meshwright.lax.linalg import *  # noqa: F403
