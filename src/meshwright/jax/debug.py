"""``jax.debug`` over ``meshwright.debug``."""

from meshwright.debug import visualize_array_sharding, visualize_sharding

__all__ = ["visualize_array_sharding", "visualize_sharding"]
