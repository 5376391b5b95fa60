"""``jax.checkpoint_policies``: what a checkpointed function keeps for its backward pass."""

from meshwright.transform.policies import *  # noqa: F403
