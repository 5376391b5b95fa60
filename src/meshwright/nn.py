"""``meshwright.nn``: activations, softmax and what else neural networks are made of, as ``jax.nn`` has them."""

from meshwright.frontend.nn import *  # noqa: F403
from meshwright.frontend.nn import __all__ as __all__
