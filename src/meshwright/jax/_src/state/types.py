"""``jax._src.state.types``."""

from meshwright.kernel.state import StateRef as AbstractRef

__all__ = ["AbstractRef"]
