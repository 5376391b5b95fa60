"""``jax.numpy.fft`` over ``meshwright.numpy.fft``."""

from meshwright.numpy.fft import *  # noqa: F403
