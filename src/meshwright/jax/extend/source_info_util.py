"""``jax.extend.source_info_util``: whose lines an equation is said to come from."""

from meshwright.core.source import leave_out as register_exclusion
from meshwright.jax.absent import absent

__getattr__ = absent("jax.extend.source_info_util")

__all__ = ["register_exclusion"]
