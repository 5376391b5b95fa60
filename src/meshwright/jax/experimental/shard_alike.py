"""``jax.experimental.shard_alike``."""

from meshwright.jax.api import shard_alike as shard_alike
