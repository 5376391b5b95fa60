"""The JAX function that computes what an op computes, on the same operands and from our params."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

Twin = Callable[..., Any]


def _svd(x: Any, full: bool, vectors: bool) -> Any:
    found = lax.linalg.svd(x, full_matrices=full, compute_uv=vectors)
    return (found[1], found[0], found[2]) if vectors else (found,)


def _pointwise(function: Twin) -> Twin:
    return lambda *xs, **params: function(*jnp.broadcast_arrays(*xs), **params)


def _or_on_bools(function: Twin, on_bools: Twin) -> Twin:
    """``function``, which JAX does not define on bools."""
    return _pointwise(lambda x, y: (on_bools if x.dtype == np.bool_ else function)(x, y))


def _as_real(x: Any, dtype: Any) -> Any:
    return lax.real(x) if x.dtype.kind == "c" and np.dtype(dtype).kind != "c" else x


# Elementwise ops whose JAX function has the same operands and no params.
_SAME = (
    "sub", "div", "rem", "pow", "neg", "abs", "sign", "square", "nextafter", "atan2",
    "exp", "exp2", "expm1", "log", "log1p", "sqrt", "rsqrt", "cbrt", "logistic",
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    "erf", "erfc", "erf_inv", "lgamma", "digamma", "ceil", "floor", "is_finite",
    "eq", "ne", "lt", "le", "gt", "ge", "clamp", "real", "imag", "complex", "conj",
    "shift_left", "shift_right_arithmetic", "shift_right_logical", "population_count", "clz",
)  # fmt: skip

_ROUNDING = {True: lax.RoundingMethod.AWAY_FROM_ZERO, False: lax.RoundingMethod.TO_NEAREST_EVEN}

POINTWISE: dict[str, Twin] = {
    **{name: _pointwise(getattr(lax, name)) for name in _SAME},
    "add": _or_on_bools(lax.add, lax.bitwise_or),
    "mul": _or_on_bools(lax.mul, lax.bitwise_and),
    "maximum": _pointwise(lax.max),
    "minimum": _pointwise(lax.min),
    "and": _pointwise(lax.bitwise_and),
    "or": _pointwise(lax.bitwise_or),
    "xor": _pointwise(lax.bitwise_xor),
    "not": lax.bitwise_not,
    "integer_pow": lambda x, exponent: lax.integer_pow(x, exponent),
    "round": lambda x, away: lax.round(x, _ROUNDING[away]),
    "select": _pointwise(lax.select),
    "reduce_precision": lambda x, exponent_bits, mantissa_bits: lax.reduce_precision(x, exponent_bits, mantissa_bits),
    "sharding_constraint": lambda x, spec: x,
    "checkpoint_name": checkpoint_name,
    "offload": lambda x: x,
    "reload": lambda x: x,
    "stop_gradient": lax.stop_gradient,
    **{f"reproducible_{name}": getattr(lax, name) for name in ("log", "log1p", "erf", "erf_inv", "tan")},
    "fma": jax.jit(_pointwise(lambda x, y, z: x * y + z)),  # compiled into one instruction
    "convert": lambda x, dtype, weak: lax.convert_element_type(jnp.asarray(_as_real(x, dtype)), dtype),
}

_MODES = {
    "clip": lax.GatherScatterMode.CLIP,
    "fill": lax.GatherScatterMode.FILL_OR_DROP,
    "zero": lax.GatherScatterMode.FILL_OR_DROP,
    "drop": lax.GatherScatterMode.FILL_OR_DROP,
    "promise": lax.GatherScatterMode.PROMISE_IN_BOUNDS,
}


def _gather(x: Any, indices: Any, **params: Any) -> Any:
    numbers = lax.GatherDimensionNumbers(
        offset_dims=params["offset_dims"],
        collapsed_slice_dims=params["collapsed_dims"],
        start_index_map=params["start_index_map"],
        operand_batching_dims=params["operand_batch_dims"],
        start_indices_batching_dims=params["indices_batch_dims"],
    )
    filled = 0 if params["mode"] == "zero" else None
    return lax.gather(x, indices, numbers, params["slice_sizes"], mode=_MODES[params["mode"]], fill_value=filled)


def _scatter(function: Twin) -> Twin:
    def counterpart(x: Any, indices: Any, updates: Any, **params: Any) -> Any:
        numbers = lax.ScatterDimensionNumbers(
            update_window_dims=params["update_window_dims"],
            inserted_window_dims=params["inserted_window_dims"],
            scatter_dims_to_operand_dims=params["scatter_dims_to_operand_dims"],
            operand_batching_dims=params["operand_batch_dims"],
            scatter_indices_batching_dims=params["scatter_indices_batch_dims"],
        )
        mode = _MODES[params["mode"]]
        return function(x, indices, updates, numbers, unique_indices=params["unique"], mode=mode)

    return counterpart


def _conv(x: Any, w: Any, **params: Any) -> Any:
    return lax.conv_general_dilated(
        x,
        w,
        params["strides"],
        params["padding"],
        lhs_dilation=params["lhs_dilation"],
        rhs_dilation=params["rhs_dilation"],
        dimension_numbers=lax.ConvDimensionNumbers(*params["dims"]),
        feature_group_count=params["feature_groups"],
        batch_group_count=params["batch_groups"],
    )


def _window(reducer: Twin, initial: Callable[[Any], Any]) -> Twin:
    def counterpart(x: Any, window: Any, strides: Any, padding: Any, base_dilation: Any, window_dilation: Any) -> Any:
        start = np.asarray(initial(x.dtype), x.dtype)
        unusual = any(step > 1 for step in window_dilation) or np.min(padding) < 0
        if reducer is not lax.add and unusual:  # which has no vjp in JAX
            stacked = _windows(x, start, window, strides, padding, base_dilation, window_dilation)
            return (jnp.max if reducer is lax.max else jnp.min)(stacked, axis=0)
        return lax.reduce_window(x, start, reducer, window, strides, padding, base_dilation, window_dilation)

    return counterpart


def _lowest(dtype: Any) -> Any:
    if dtype == np.bool_:
        return False
    if jnp.issubdtype(dtype, jnp.integer):
        return np.iinfo(dtype).min
    return -np.inf if np.isinf(np.asarray(np.inf, dtype)) else jnp.finfo(dtype).min


def _highest(dtype: Any) -> Any:
    if dtype == np.bool_:
        return True
    if jnp.issubdtype(dtype, jnp.integer):
        return np.iinfo(dtype).max
    return np.inf if np.isinf(np.asarray(np.inf, dtype)) else jnp.finfo(dtype).max


def _select_and_gather_add(t: Any, x: Any, select: str, **params: Any) -> Any:
    """From each window of ``t``, the element standing where the window of ``x`` has its first extreme."""
    worst = np.asarray((_lowest if select == "max" else _highest)(x.dtype), x.dtype)
    values, tangents = _windows(x, worst, **params), _windows(t, np.zeros((), t.dtype), **params)
    chosen = (jnp.argmax if select == "max" else jnp.argmin)(values, axis=0)
    return jnp.take_along_axis(tangents, chosen[None], axis=0)[0]


def _windows(
    x: Any, value: Any, window: Any, strides: Any, padding: Any, base_dilation: Any, window_dilation: Any
) -> Any:
    """The elements of every window, on a new leading dim."""
    x = lax.pad(x, value, [(low, high, d - 1) for (low, high), d in zip(padding, base_dilation, strict=True)])
    reach = [(w - 1) * d for w, d in zip(window, window_dilation, strict=True)]
    found = []
    for place in np.ndindex(*window):
        starts = [p * d for p, d in zip(place, window_dilation, strict=True)]
        limits = [n - r + start for n, r, start in zip(x.shape, reach, starts, strict=True)]
        found.append(lax.slice(x, starts, limits, strides))
    return jnp.stack(found)


def _select_and_scatter_add(source: Any, x: Any, **params: Any) -> Any:
    """The transpose of ``_select_and_gather_add`` in its first operand; integers go through f64, which holds them."""
    dtype = source.dtype if jnp.issubdtype(source.dtype, jnp.inexact) else np.dtype(np.float64)
    like = jax.ShapeDtypeStruct(x.shape, dtype)
    back = jax.linear_transpose(lambda t: _select_and_gather_add(t, x, **params), like)
    return back(source.astype(dtype))[0].astype(source.dtype)


_FFT = {kind: lax.FftType[kind.upper()] for kind in ("fft", "ifft", "rfft", "irfft")}

COUNTERPARTS: dict[str, Twin] = {
    **POINTWISE,
    # basic
    "broadcast_in_dim": lambda x, shape, dims: lax.broadcast_in_dim(x, shape, dims),
    "reduce_sum": lambda x, axes: lax.reduce_sum(x, axes),
    "reshape": lambda x, shape: lax.reshape(x, shape),
    "transpose": lambda x, permutation: lax.transpose(x, permutation),
    # elementwise in all but shape, number of results or domain
    "polygamma": lambda x, order: lax.polygamma(jnp.full_like(x, order), x),  # nan left of 0, where ours goes on
    "bitcast": lambda x, dtype: lax.bitcast_convert_type(x, dtype),
    "optimization_barrier": lambda *xs: lax.optimization_barrier(xs),
    # shape
    "reverse": lambda x, dims: lax.rev(x, dims),
    "concatenate": lambda *xs, dim: lax.concatenate(xs, dim),
    "slice": lambda x, starts, limits, strides: lax.slice(x, starts, limits, strides),
    "pad": lambda x, value, low, high, interior: lax.pad(x, value, tuple(zip(low, high, interior, strict=True))),
    "iota": lambda dtype, shape, dim: lax.broadcasted_iota(dtype, shape, dim),
    # indexing
    "dynamic_slice": lambda x, *starts, sizes: lax.dynamic_slice(x, starts, sizes, allow_negative_indices=False),
    "dynamic_update_slice": lambda x, update, *starts: lax.dynamic_update_slice(
        x, update, starts, allow_negative_indices=False
    ),
    "gather": _gather,
    "scatter_add": _scatter(lax.scatter_add),
    "scatter_set": _scatter(lax.scatter),
    "scatter_max": _scatter(lax.scatter_max),
    "scatter_min": _scatter(lax.scatter_min),
    "scatter_mul": _scatter(lax.scatter_mul),
    # contraction
    "dot_general": lambda x, y, contract, batch, dtype=None: lax.dot_general(
        x, y, (contract, batch), preferred_element_type=dtype
    ),
    "conv_general_dilated": _conv,
    # reduction
    "reduce_max": lambda x, axes: lax.reduce_max(x, axes),
    "reduce_min": lambda x, axes: lax.reduce_min(x, axes),
    "reduce_prod": lambda x, axes: lax.reduce_prod(x, axes),
    "reduce_and": lambda x, axes: lax.reduce_and(x, axes),
    "reduce_or": lambda x, axes: lax.reduce_or(x, axes),
    "argmax": lambda x, axis, dtype: lax.argmax(x, axis, dtype),
    "argmin": lambda x, axis, dtype: lax.argmin(x, axis, dtype),
    "cumsum": lambda x, axis, reverse: lax.cumsum(x, axis, reverse),
    "cumprod": lambda x, axis, reverse: lax.cumprod(x, axis, reverse),
    "cummax": lambda x, axis, reverse: lax.cummax(x, axis, reverse),
    "cummin": lambda x, axis, reverse: lax.cummin(x, axis, reverse),
    "cumlogsumexp": lambda x, axis, reverse: lax.cumlogsumexp(x, axis, reverse),
    # window
    "reduce_window_sum": _window(lax.add, lambda dtype: 0),
    "reduce_window_max": _window(lax.max, _lowest),
    "reduce_window_min": _window(lax.min, _highest),
    "select_and_gather_add": _select_and_gather_add,
    "select_and_scatter_add": _select_and_scatter_add,
    # sorting
    "sort": lambda *xs, dim, num_keys: tuple(lax.sort(xs, dim, is_stable=True, num_keys=num_keys)),
    "top_k": lambda x, k: tuple(lax.top_k(x, k)),
    # linalg
    "fft": lambda x, kind, lengths: lax.fft(x, _FFT[kind], lengths),
    "cholesky": lambda x: lax.linalg.cholesky(x),
    "triangular_solve": lambda a, b, **params: lax.linalg.triangular_solve(a, b, **params),
    "lu": lambda x: tuple(lax.linalg.lu(x)),
    "qr": lambda x, full: tuple(lax.linalg.qr(x, full_matrices=full)),
    "eigh": lambda x: tuple(lax.linalg.eigh(x)),
    "svd": _svd,
    "eig": lambda x: tuple(lax.linalg.eig(x, compute_left_eigenvectors=False, enable_eigvec_derivs=True)),
    # random
    "threefry2x32": _pointwise(lambda *xs: tuple(jax.extend.random.threefry2x32_p.bind(*xs))),
}

# Ops that JAX has nothing to compare with; their values are checked by tests of their own.
WITHOUT_COUNTERPART: frozenset[str] = frozenset()
