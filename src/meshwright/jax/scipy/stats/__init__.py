"""``jax.scipy.stats``: the distribution that optimizers ask for."""

from meshwright.jax.absent import library
from meshwright.jax.scipy.stats import norm as norm

__getattr__ = library("jax.scipy.stats")

__all__ = ["norm"]
