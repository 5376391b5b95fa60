"""``jax.nn.initializers`` over ``meshwright.nn.initializers``."""

from meshwright.nn.initializers import *  # noqa: F403
