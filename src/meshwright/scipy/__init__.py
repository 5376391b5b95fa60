"""``meshwright.scipy``: the part of SciPy that ``jax.scipy`` has and that is here.

>>> import meshwright as mw
>>> round(float(mw.scipy.special.ndtr(1.0)), 4)
0.8413
"""

from __future__ import annotations

from meshwright.scipy import linalg, special

__all__ = ["linalg", "special"]
