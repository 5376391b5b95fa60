"""``jax.image`` over ``meshwright.image``."""

from meshwright.image import *  # noqa: F403
