"""``jax.numpy`` over ``meshwright.numpy``."""

from typing import Any

from meshwright.jax.numpy import fft as fft
from meshwright.jax.numpy import linalg as linalg
from meshwright.jax.numpy import newest as _newest
from meshwright.jax.numpy.newest import minmax as minmax
from meshwright.jax.numpy.newest import top_k as top_k
from meshwright.numpy import *  # type: ignore[no-redef]  # noqa: F403
from meshwright.scipy.special import i0 as i0

lexsort: Any = _newest.lexsort  # type: ignore[no-redef]
