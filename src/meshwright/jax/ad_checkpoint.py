"""``jax.ad_checkpoint`` over ``meshwright.ad_checkpoint``."""

from meshwright.ad_checkpoint import (
    checkpoint,
    checkpoint_name,
    checkpoint_policies,
    print_saved_residuals,
    remat,
    saved_residuals,
)
from meshwright.transform.policies import Offloadable

Recompute, Saveable = False, True  # what a policy answers besides

__all__ = [
    "Offloadable",
    "Recompute",
    "Saveable",
    "checkpoint",
    "checkpoint_name",
    "checkpoint_policies",
    "print_saved_residuals",
    "remat",
    "saved_residuals",
]
