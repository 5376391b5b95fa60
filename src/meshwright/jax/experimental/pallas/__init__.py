"""``jax.experimental.pallas`` over ``meshwright.pallas``."""

from meshwright.pallas import *  # noqa: F403
