"""Random numbers, as in ``jax.random`` and with the same numbers: a key stands for one array of each shape.

Keys are arrays of two uint32 words, the words of JAX's threefry keys, or elements of a dtype of their own
(``key_dtype``) that hold both. A key is used once: ``split`` it for more.

>>> import meshwright as mw
>>> key = mw.random.key(0)
>>> mw.random.normal(key, (2, 3)).shape
(2, 3)
"""

from meshwright.random.choices import categorical, choice, permutation, randint
from meshwright.random.counts import binomial, multinomial, poisson
from meshwright.random.distributions import (
    double_sided_maxwell,
    geometric,
    lognormal,
    maxwell,
    multivariate_normal,
    orthogonal,
    pareto,
    rayleigh,
    triangular,
    wald,
    weibull_min,
)
from meshwright.random.gammas import ball, beta, chisquare, dirichlet, f, gamma, generalized_normal, loggamma, t
from meshwright.random.keys import (
    PRNGKey,
    bits,
    clone,
    fold_in,
    key,
    key_data,
    key_dtype,
    key_impl,
    split,
    wrap_key_data,
)
from meshwright.random.samples import (
    bernoulli,
    cauchy,
    exponential,
    gumbel,
    laplace,
    logistic,
    normal,
    rademacher,
    truncated_normal,
    uniform,
)

__all__ = [
    "PRNGKey",
    "ball",
    "bernoulli",
    "beta",
    "binomial",
    "bits",
    "categorical",
    "cauchy",
    "chisquare",
    "choice",
    "clone",
    "dirichlet",
    "double_sided_maxwell",
    "exponential",
    "f",
    "fold_in",
    "gamma",
    "generalized_normal",
    "geometric",
    "gumbel",
    "key",
    "key_data",
    "key_dtype",
    "key_impl",
    "laplace",
    "loggamma",
    "logistic",
    "lognormal",
    "maxwell",
    "multinomial",
    "multivariate_normal",
    "normal",
    "orthogonal",
    "pareto",
    "permutation",
    "poisson",
    "rademacher",
    "randint",
    "rayleigh",
    "split",
    "t",
    "triangular",
    "truncated_normal",
    "uniform",
    "wald",
    "weibull_min",
    "wrap_key_data",
]
