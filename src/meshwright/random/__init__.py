"""Random numbers, as in ``jax.random`` and with the same numbers: a key stands for one array of each shape.

Keys are arrays of two uint32 words, the words of JAX's threefry keys. A key is used once: ``split`` it for more.

>>> import meshwright as mw
>>> key = mw.random.key(0)
>>> mw.random.normal(key, (2, 3)).shape
(2, 3)
"""

from meshwright.random.choices import categorical, choice, permutation, randint
from meshwright.random.keys import PRNGKey, bits, clone, fold_in, key, key_data, split, wrap_key_data
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
    "bernoulli",
    "bits",
    "categorical",
    "cauchy",
    "choice",
    "clone",
    "exponential",
    "fold_in",
    "gumbel",
    "key",
    "key_data",
    "laplace",
    "logistic",
    "normal",
    "permutation",
    "rademacher",
    "randint",
    "split",
    "truncated_normal",
    "uniform",
    "wrap_key_data",
]
