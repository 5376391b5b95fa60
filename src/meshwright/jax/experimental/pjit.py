"""``jax.experimental.pjit``: ``jit`` by its former name."""

from meshwright.jax.api import jit as pjit

__all__ = ["pjit"]
