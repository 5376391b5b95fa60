"""``jax.experimental``: the part of it that programs for many devices use."""

from meshwright.api.callback import io_callback as io_callback
from meshwright.jax.experimental import mesh_utils as mesh_utils
from meshwright.jax.experimental import multihost_utils as multihost_utils
from meshwright.jax.experimental import pjit as pjit
from meshwright.jax.experimental import shard_alike as shard_alike
from meshwright.jax.experimental import shard_map as shard_map
