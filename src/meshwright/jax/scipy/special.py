"""``jax.scipy.special`` over the special functions of ``meshwright``."""

from meshwright.lax import digamma, erf, erfc, polygamma
from meshwright.lax import erf_inv as erfinv
from meshwright.lax import lgamma as gammaln
from meshwright.nn import log_softmax, logsumexp, softmax
from meshwright.nn import sigmoid as expit

__all__ = [
    "digamma",
    "erf",
    "erfc",
    "erfinv",
    "expit",
    "gammaln",
    "log_softmax",
    "logsumexp",
    "polygamma",
    "softmax",
]
