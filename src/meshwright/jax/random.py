"""``jax.random`` over ``meshwright.random``."""

from typing import Any

from meshwright import random as _random
from meshwright.jax.lax.primitives import primitive as _primitive
from meshwright.random import *  # noqa: F403

random_gamma_p = _primitive("random_gamma")


def __getattr__(name: str) -> Any:
    return getattr(_random, name)
