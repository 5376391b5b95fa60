"""``jax.numpy`` over ``meshwright.numpy``."""

from ml_dtypes import float8_e4m3fnuz as float8_e4m3fnuz  # names that flax has among its options; no array is of them
from ml_dtypes import float8_e5m2fnuz as float8_e5m2fnuz

from meshwright.jax.numpy import fft as fft
from meshwright.jax.numpy import linalg as linalg
from meshwright.numpy import *  # type: ignore[no-redef]  # noqa: F403
from meshwright.scipy.special import i0 as i0
