"""``jax.nn`` over ``meshwright.nn``."""

from meshwright.jax.nn import initializers as initializers
from meshwright.nn import *  # type: ignore[no-redef]  # noqa: F403
