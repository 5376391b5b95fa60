"""``jax.numpy`` over ``meshwright.numpy``."""

from meshwright.jax.numpy import fft as fft
from meshwright.jax.numpy import linalg as linalg
from meshwright.numpy import *  # type: ignore[no-redef]  # noqa: F403
from meshwright.scipy.special import i0 as i0
