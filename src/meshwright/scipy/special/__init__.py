"""``meshwright.scipy.special``: special functions, as ``jax.scipy.special`` has them.

Each is made of ops, so that it is differentiated, batched, partitioned and lowered as they are.
"""

from __future__ import annotations

from meshwright.arrays.operands import ArrayLike, Axis
from meshwright.core.trace import Value
from meshwright.nn import log_softmax as nn_log_softmax
from meshwright.nn import logsumexp
from meshwright.nn import softmax as nn_softmax
from meshwright.scipy.special.bessel import bessel_jn, i0, i0e, i1, i1e, sph_harm_y
from meshwright.scipy.special.elementary import boxcox, boxcox1p, entr, expit, kl_div, logit, rel_entr, xlog1py, xlogy
from meshwright.scipy.special.gammas import (
    bernoulli,
    beta,
    betainc,
    betaln,
    comb,
    digamma,
    factorial,
    gamma,
    gammainc,
    gammaincc,
    gammaln,
    gammasgn,
    loggamma,
    multigammaln,
    poch,
    polygamma,
    zeta,
)
from meshwright.scipy.special.hypergeometric import hyp1f1, hyp2f1
from meshwright.scipy.special.integrals import exp1, expi, expn, fresnel, sici, spence
from meshwright.scipy.special.normal import (
    dawsn,
    erf,
    erfc,
    erfcinv,
    erfcx,
    erfinv,
    log_ndtr,
    ndtr,
    ndtri,
    owens_t,
    wofz,
)


def softmax(x: ArrayLike, /, *, axis: Axis = None) -> Value:
    """``exp(x)`` divided by its sum over ``axis``, by default over all."""
    return nn_softmax(x, axis)


def log_softmax(x: ArrayLike, /, *, axis: Axis = None) -> Value:
    """The logarithm of the softmax over ``axis``, by default over all."""
    return nn_log_softmax(x, axis)


__all__ = [
    "bernoulli",
    "bessel_jn",
    "beta",
    "betainc",
    "betaln",
    "boxcox",
    "boxcox1p",
    "comb",
    "dawsn",
    "digamma",
    "entr",
    "erf",
    "erfc",
    "erfcinv",
    "erfcx",
    "erfinv",
    "exp1",
    "expi",
    "expit",
    "expn",
    "factorial",
    "fresnel",
    "gamma",
    "gammainc",
    "gammaincc",
    "gammaln",
    "gammasgn",
    "hyp1f1",
    "hyp2f1",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "kl_div",
    "log_ndtr",
    "log_softmax",
    "loggamma",
    "logit",
    "logsumexp",
    "multigammaln",
    "ndtr",
    "ndtri",
    "owens_t",
    "poch",
    "polygamma",
    "rel_entr",
    "sici",
    "softmax",
    "spence",
    "sph_harm_y",
    "wofz",
    "xlog1py",
    "xlogy",
    "zeta",
]
