"""``meshwright.nn``: activations, softmax and what else neural networks are made of, as ``jax.nn`` has them."""

from meshwright.frontend import initializers
from meshwright.frontend.nn import *  # noqa: F403
from meshwright.frontend.nn import __all__ as _names

__all__ = [*_names, "initializers"]  # noqa: PLE0604
