"""``jax.extend``: what libraries built on JAX ask of it."""

from meshwright.jax.extend import core as core
from meshwright.jax.extend import linear_util as linear_util
from meshwright.jax.extend import source_info_util as source_info_util

__all__ = ["core", "linear_util", "source_info_util"]
