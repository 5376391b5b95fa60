"""NumPy as the array namespace that ``evaluate`` rules are written against.

A rule takes from ``xp`` the names NumPy has, and these, which NumPy lacks:

- ``astype(x, dtype)``, ``permute_dims(x, dims)``;
- ``pad_interior``, ``dynamic_slice``, ``dynamic_update_slice``, ``gather_windows``, ``scatter_windows``: see
  ``engine.windows``;
- ``add_parts(shape, dtype, [(place, part), …])``: zeros with each part added at its place;
- ``conv_general_dilated(x, w, …)``, ``cholesky(x)``, ``solve_triangular(a, b, lower, unit_diagonal)``, ``top_k(x, k)``;
- ``lu(x)``, ``qr(x, full)``, ``eigh(x)``, ``svd(x, full, vectors)``, ``eig(x)``: see ``engine.linear_algebra``;
- ``logistic``, ``rsqrt``, ``erf``, ``erfc``, ``erf_inv``, ``lgamma``, ``digamma`` of x, ``polygamma(x, order)``;
- ``complex(re, im)``, ``population_count(x)``, ``clz(x)``, ``bitcast(x, dtype)``,
  ``reduce_precision(x, exponent_bits, mantissa_bits)``;
- ``function(program)``: a region as a function of arrays that returns a tuple (added by ``engine.compile``).

Functions that NumPy wraps in Python are taken here without the wrapper, which costs more than a small array's work.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from meshwright.core.dtypes import PACKED
from meshwright.core.limits import refuse_impossible
from meshwright.core.trace import set_namespace
from meshwright.core.types import TensorType
from meshwright.engine import random_special, special
from meshwright.engine.blas import matmul
from meshwright.engine.convolution import conv_general_dilated
from meshwright.engine.linear_algebra import cholesky, eig, eigh, lu, qr, solve_triangular, svd
from meshwright.engine.ordering import top_k
from meshwright.engine.threefry import threefry2x32
from meshwright.engine.windows import dynamic_slice, dynamic_update_slice, gather_windows, pad_interior, scatter_windows

SMALL_BYTES = 8192  # below this, filling an array is faster than making a view that repeats elements


class NumpyNamespace(SimpleNamespace):
    """NumPy's functions, found by name, beside the ones added here."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(np, name)
        setattr(self, name, value)
        return value


def _astype(x: Any, dtype: Any) -> Any:
    try:
        return x.astype(dtype)
    except TypeError:
        if x.dtype not in PACKED:
            raise
        return x.astype(np.int8).astype(dtype)  # NumPy knows no way from one of them to another


def _reshape(x: Any, shape: Any) -> Any:
    return x.reshape(shape)


def _permute_dims(x: Any, dims: Any) -> Any:
    return x.transpose(dims)


def fill(x: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """``x`` broadcast to ``shape`` in memory of its own."""
    out = np.empty(shape, dtype)
    out[...] = x
    return out


def _broadcast_to(x: Any, shape: tuple[int, ...]) -> Any:
    if prod(shape) * x.dtype.itemsize <= SMALL_BYTES:
        return fill(x, shape, x.dtype)
    return np.broadcast_to(x, shape)


def power(x: Any, y: Any, out: Any = None) -> Any:
    """``x ** y`` as C has it: for one exponent of 0.5 NumPy takes the square root, which differs below zero."""
    if np.ndim(y) or y != 0.5 or x.dtype.kind == "c":
        return np.power(x, y, out=out)
    lowest = x == -np.inf
    root = np.abs(np.sqrt(x, out=out), out=out)
    if not np.any(lowest):
        return root
    root = np.asarray(root) if np.ndim(root) else np.array(root)
    np.copyto(root, root.dtype.type(np.inf), where=lowest)
    return root


def _reduction(ufunc: np.ufunc) -> Callable[..., Any]:
    reduce = ufunc.reduce

    def function(x: Any, axis: Any = None, **options: Any) -> Any:
        return reduce(x, axis, **options)

    return function


def _add_parts(shape: tuple[int, ...], dtype: Any, parts: Any) -> Any:
    refuse_impossible("a sum of windows", [TensorType(shape, dtype)])
    total = np.zeros(shape, dtype)
    for place, part in parts:
        total[place] += part
    return total


NUMPY = NumpyNamespace(
    add_parts=_add_parts,
    power=power,
    matmul=matmul,
    conv_general_dilated=conv_general_dilated,
    cholesky=cholesky,
    eig=eig,
    eigh=eigh,
    lu=lu,
    qr=qr,
    svd=svd,
    solve_triangular=solve_triangular,
    top_k=top_k,
    logistic=special.logistic,
    rsqrt=special.rsqrt,
    log1p=special.log1p,
    nextafter=special.nextafter,
    erf=special.erf,
    erfc=special.erfc,
    erf_inv=special.erf_inv,
    lgamma=special.lgamma,
    digamma=special.digamma,
    polygamma=special.polygamma,
    complex=special.complex_from,
    population_count=special.population_count,
    clz=special.clz,
    bitcast=special.bitcast,
    reduce_precision=special.reduce_precision,
    dynamic_slice=dynamic_slice,
    dynamic_update_slice=dynamic_update_slice,
    gather_windows=gather_windows,
    pad_interior=pad_interior,
    scatter_windows=scatter_windows,
    threefry2x32=threefry2x32,
    fma=random_special.fma,
    reproducible_log=random_special.log,
    reproducible_log1p=random_special.log1p,
    reproducible_erf=random_special.erf,
    reproducible_erf_inv=random_special.erf_inv,
    reproducible_tan=random_special.tan,
    astype=_astype,
    broadcast_to=_broadcast_to,
    permute_dims=_permute_dims,
    reshape=_reshape,
    sum=_reduction(np.add),
    prod=_reduction(np.multiply),
    max=_reduction(np.maximum),
    min=_reduction(np.minimum),
    all=_reduction(np.logical_and),
    any=_reduction(np.logical_or),
)
set_namespace(NUMPY)


def _error_state() -> tuple[Any, Any]:
    """The context variable that holds NumPy's error state, and the state in which nothing warns.

    ``np.errstate`` sets and resets this variable too, but spends ten times as long on it.
    """
    before, after = copy_context(), copy_context()
    after.run(np.seterr, all="ignore")
    ((variable, quiet),) = [(v, state) for v, state in after.items() if v not in before or before[v] is not state]
    return variable, quiet


ERROR_STATE, QUIET = _error_state()
