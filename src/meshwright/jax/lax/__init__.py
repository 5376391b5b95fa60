"""``jax.lax`` over ``meshwright.lax``: gathers and scatters add and remove a dim unless told that they are tiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as _np

from meshwright import lax as _lax
from meshwright.core import dtypes as _dtypes
from meshwright.jax.lax import devices as _devices
from meshwright.jax.lax import linalg as _linalg
from meshwright.jax.lax.devices import after_all as after_all
from meshwright.jax.lax.devices import composite as composite
from meshwright.jax.lax.devices import create_token as create_token
from meshwright.jax.lax.devices import dce_sink as dce_sink
from meshwright.jax.lax.devices import platform_dependent as platform_dependent
from meshwright.jax.lax.devices import pshuffle as pshuffle
from meshwright.jax.lax.devices import pswapaxes as pswapaxes
from meshwright.jax.lax.primitives import find_primitive as _find_primitive
from meshwright.jax.lax.settings import ACCURATE as _ACCURATE
from meshwright.jax.lax.settings import AccuracyMode as AccuracyMode
from meshwright.jax.lax.settings import ConvGeneralDilatedDimensionNumbers as ConvGeneralDilatedDimensionNumbers
from meshwright.jax.lax.settings import DotAlgorithm as DotAlgorithm
from meshwright.jax.lax.settings import DotAlgorithmPreset as DotAlgorithmPreset
from meshwright.jax.lax.settings import DotDimensionNumbers as DotDimensionNumbers
from meshwright.jax.lax.settings import PrecisionLike as PrecisionLike
from meshwright.jax.lax.settings import RandomAlgorithm as RandomAlgorithm
from meshwright.jax.lax.settings import Tolerance as Tolerance
from meshwright.lax import *  # type: ignore[no-redef]  # noqa: F403
from meshwright.lax.horner import one_minus_square as one_minus_square
from meshwright.lax.horner import polynomial as polynomial
from meshwright.lax.over_axes import AxisName

linalg: Any = _linalg  # type: ignore[no-redef]
pbroadcast: Any = _devices.pbroadcast  # type: ignore[no-redef]
cbrt, cos, erfc, exp, exp2, expm1, log, log1p, logistic, rsqrt, sin, sqrt, tan, tanh, log2 = _ACCURATE


def all_gather(  # type: ignore[no-redef]
    x: Any, axis_name: AxisName, *, axis_index_groups: Any = None, axis: int = 0, tiled: bool = False,
    to: str | None = None,
) -> Any:  # fmt: skip
    """``lax.all_gather``, by default along a new dim; ``to="reduced"`` says that all devices hold the result.

    >>> import meshwright.jax as jax
    >>> mesh = jax.make_mesh((2,), ("i",))
    >>> f = jax.shard_map(lambda x: all_gather(x, "i"), mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
    >>> f(jax.numpy.arange(2.0)).shape
    (4, 1)
    """
    gather = _lax.all_gather_invariant if to in ("reduced", "invariant") else _lax.all_gather
    if axis_index_groups is not None:
        return _lax.all_gather(x, axis_name, axis_index_groups=axis_index_groups, axis=axis, tiled=tiled)
    return gather(x, axis_name, axis=axis, tiled=tiled)


def psum_scatter(  # type: ignore[no-redef]
    x: Any, axis_name: AxisName, *, scatter_dimension: int = 0, axis_index_groups: Any = None, tiled: bool = False
) -> Any:
    """``lax.psum_scatter``, by default of a dim that has one row for each device, and that the result has not."""
    return _lax.psum_scatter(
        x, axis_name, scatter_dimension=scatter_dimension, axis_index_groups=axis_index_groups, tiled=tiled
    )


def all_to_all(  # type: ignore[no-redef]
    x: Any, axis_name: AxisName, split_axis: int, concat_axis: int, *,
    axis_index_groups: Any = None, tiled: bool = False,
) -> Any:  # fmt: skip
    """``lax.all_to_all``, by default of a dim that has one row for each device."""
    return _lax.all_to_all(x, axis_name, split_axis, concat_axis, axis_index_groups=axis_index_groups, tiled=tiled)


_ABSENT: Any = object()


def cond(  # type: ignore[no-redef]
    pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any, operand: Any = _ABSENT
) -> Any:
    """``lax.cond``, of ``operands`` or of the one ``operand``."""
    return _lax.cond(pred, true_fun, false_fun, *_given(operands, operand))


def switch(  # type: ignore[no-redef]
    index: Any, branches: Sequence[Callable[..., Any]], *operands: Any, operand: Any = _ABSENT
) -> Any:
    """``lax.switch``, of ``operands`` or of the one ``operand``."""
    return _lax.switch(index, branches, *_given(operands, operand))


def _given(operands: Sequence[Any], operand: Any) -> Sequence[Any]:
    if operand is _ABSENT:
        return operands
    if operands:
        raise TypeError("operands are given by position, and one as operand=")
    return (operand,)


def dtype(x: Any) -> Any:
    """The dtype of an array or a number."""
    found = getattr(x, "dtype", None)
    return found if isinstance(found, _np.dtype) else _dtypes.canonical(_np.dtype(_np.result_type(x)))


def index_take(src: Any, idxs: Any, axes: Sequence[int]) -> Any:
    """The elements (or slices) of ``src`` at places along ``axes``: an array of places for each of them."""
    axes = tuple(axes)
    places = _lax.stack([_lax.rem(_lax.add(_lax.rem(i, n), n), n)
                         for i, n in zip(idxs, (src.shape[d] for d in axes), strict=True)], 1)  # fmt: skip
    kept = [n for d, n in enumerate(src.shape) if d not in axes]
    numbers = _lax.GatherDimensionNumbers(tuple(range(1, 1 + len(kept))), axes, axes)
    sizes = tuple(1 if d in axes else n for d, n in enumerate(src.shape))
    return _lax.gather(src, places, numbers, sizes)


def shape_as_value(shape: Sequence[int]) -> Any:
    """Sizes as an array of integers."""
    return _np.asarray(tuple(shape), _dtypes.default_int())


def stage(x: Any, /) -> Any:
    """``x`` as an array."""
    return _lax.stop_gradient(x) if x is None else _lax.convert_element_type(x, dtype(x))


def __getattr__(name: str) -> Any:
    """``lax.exp_p``, JAX's primitive; ``lax.exp`` and its like, which take ``accuracy=``."""
    found = _find_primitive(name)
    return getattr(_lax, name) if found is None else found
