"""``jax.experimental.pallas`` over ``meshwright.pallas``."""

from meshwright.jax.lax.primitives import primitive as _primitive
from meshwright.pallas import *  # noqa: F403

pallas_call_p = _primitive("pallas_call")
