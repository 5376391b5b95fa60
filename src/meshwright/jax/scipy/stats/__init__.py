"""``jax.scipy.stats``: the distribution that optimizers ask for."""

from meshwright.jax.absent import absent
from meshwright.jax.scipy.stats import norm as norm

__getattr__ = absent("jax.scipy.stats")

__all__ = ["norm"]
