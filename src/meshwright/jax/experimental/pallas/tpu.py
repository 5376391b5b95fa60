"""``jax.experimental.pallas.tpu`` over ``meshwright.pallas.tpu``."""

from meshwright.pallas.tpu import *  # noqa: F403
