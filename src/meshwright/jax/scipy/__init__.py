"""``jax.scipy``: the part of it that is here."""

from meshwright.jax.absent import library
from meshwright.jax.scipy import linalg as linalg
from meshwright.jax.scipy import special as special
from meshwright.jax.scipy import stats as stats

__getattr__ = library("jax.scipy")
