"""``jax.stages``: a function on its way to code."""

from meshwright.compile.compiled import Compiled, Lowered
from meshwright.compile.compiled import TracedCall as Traced
from meshwright.compile.jit import Jitted as Wrapped

__all__ = ["Compiled", "Lowered", "Traced", "Wrapped"]
