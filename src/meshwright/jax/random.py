"""``jax.random`` over ``meshwright.random``."""

from meshwright.random import *  # noqa: F403
