"""JAX's first-order primitives as ops: a line each, by the names that ``jax.lax`` gives them.

What is not here is read from the StableHLO that JAX writes for it (``stablehlo_of``), which has less of what was meant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright import lax
from meshwright import numpy as mnp
from meshwright.core import dtypes
from meshwright.core.op import REGISTRY
from meshwright.core.trace import Array, Value
from meshwright.core.types import TensorType
from meshwright.lax.horner import one_minus_square, polynomial

Rule = Callable[..., Any]


def constant(x: Any, dtype: Any = None) -> Array:
    """Numbers that JAX has in a program, as an array; those of no type (tangents of integers) are false."""
    data = np.asarray(x) if dtype is None or np.dtype(dtype).kind == "V" else np.asarray(x, dtype)
    data = np.zeros(data.shape, bool) if data.dtype.names else data
    return Array(data, TensorType(data.shape, data.dtype))


def together(*xs: Value) -> list[Value]:
    """Operands in one shape: dims of size 1 are stretched, as ``jax.lax`` does; numbers stay numbers."""
    shapes = {x.shape for x in xs if x.ndim}
    if len(shapes) < 2:
        return list(xs)
    shape = np.broadcast_shapes(*shapes)
    return [x if not x.ndim or x.shape == shape else _stretched(x, shape) for x in xs]


def _stretched(x: Value, shape: tuple[int, ...]) -> Value:
    kept = tuple(d for d, (n, m) in enumerate(zip(x.shape, shape, strict=True)) if n == m)
    bare = REGISTRY["reshape"](x, shape=tuple(shape[d] for d in kept))
    return REGISTRY["broadcast_in_dim"](bare, shape=shape, dims=kept)  # type: ignore[no-any-return]


def _op(name: str) -> Rule:
    """Our op of this name, elementwise and without params that matter; ``accuracy`` is XLA's own concern."""
    return lambda *xs, **params: REGISTRY[name](*together(*xs))


# fmt: off
_SAME = (
    "abs", "acos", "acosh", "add", "and", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "clz", "complex",
    "conj", "cos", "cosh", "digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge",
    "gt", "imag", "is_finite", "le", "lgamma", "log", "log1p", "logistic", "lt", "mul", "ne", "neg", "nextafter",
    "not", "or", "population_count", "real", "rem", "rsqrt", "shift_left", "shift_right_arithmetic",
    "shift_right_logical", "sign", "sin", "sinh", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor",
)
# fmt: on


def _convert(x: Value, new_dtype: Any, **_: Any) -> Any:
    return REGISTRY["convert"](x, dtype=np.dtype(new_dtype), weak=False)


def _select_n(which: Value, *cases: Value) -> Any:
    return lax.select_n(which, *cases)


def _clamp(low: Value, x: Value, high: Value) -> Any:
    return lax.clamp(low, x, high)


def _integer_pow(x: Value, y: int) -> Any:
    return lax.integer_pow(x, y)


def _pow(x: Value, y: Value) -> Any:
    """A power; of an integer exponent, as JAX has it, by ``lax.pow``."""
    return REGISTRY["pow"](*together(x, y)) if x.dtype == y.dtype else lax.pow(x, y)


def _broadcast_in_dim(x: Value, *dynamic: Any, shape: Any, broadcast_dimensions: Any, **_: Any) -> Any:
    shape, dims = tuple(map(int, shape)), tuple(map(int, broadcast_dimensions))
    return x if x.shape == shape and dims == tuple(range(x.ndim)) else lax.broadcast_in_dim(x, shape, dims)


def _reshape(x: Value, *dynamic: Any, new_sizes: Any, dimensions: Any = None, **_: Any) -> Any:
    if dimensions is not None:
        x = lax.transpose(x, dimensions)
    return REGISTRY["reshape"](x, shape=tuple(map(int, new_sizes)))


def _squeeze(x: Value, dimensions: Any) -> Any:
    return lax.squeeze(x, tuple(map(int, dimensions)))


def _expand_dims(x: Value, dimensions: Any) -> Any:
    return lax.expand_dims(x, tuple(map(int, dimensions)))


def _concatenate(*xs: Value, dimension: int) -> Any:
    return lax.concatenate(list(xs), dimension)


def _slice(x: Value, start_indices: Any, limit_indices: Any, strides: Any) -> Any:
    steps = (1,) * x.ndim if strides is None else tuple(map(int, strides))
    given = {"starts": tuple(map(int, start_indices)), "limits": tuple(map(int, limit_indices)), "strides": steps}
    return REGISTRY["slice"](x, **given)


def _dynamic_slice(x: Value, *starts: Value, slice_sizes: Any) -> Any:
    return REGISTRY["dynamic_slice"](x, *starts, sizes=tuple(map(int, slice_sizes)))


def _dynamic_update_slice(x: Value, update: Value, *starts: Value) -> Any:
    return REGISTRY["dynamic_update_slice"](x, update, *starts)


def _pad(x: Value, value: Value, padding_config: Any) -> Any:
    names = ("low", "high", "interior")
    amounts = {name: tuple(int(config[n]) for config in padding_config) for n, name in enumerate(names)}
    return REGISTRY["pad"](x, value, **amounts)


def _iota(*dynamic: Any, dtype: Any, shape: Any, dimension: int, **_: Any) -> Any:
    return REGISTRY["iota"](dtype=np.dtype(dtype), shape=tuple(map(int, shape)), dim=int(dimension))


def _dot_general(x: Value, y: Value, dimension_numbers: Any, preferred_element_type: Any = None, **_: Any) -> Any:
    contract, batch = (tuple(tuple(map(int, dims)) for dims in pair) for pair in dimension_numbers)
    dtype = None if preferred_element_type is None else np.dtype(preferred_element_type)
    if x.dtype != y.dtype:
        mixed = dtypes.is_inexact(x.dtype) != dtypes.is_inexact(y.dtype) or dtypes.BOOL in (x.dtype, y.dtype)
        if dtype is not None and mixed:
            x, y = (REGISTRY["convert"](v, dtype=dtype, weak=False) for v in (x, y))
        return lax.dot_general(x, y, (contract, batch), preferred_element_type=dtype)
    return REGISTRY["dot_general"](x, y, contract=contract, batch=batch, dtype=None if dtype == x.dtype else dtype)


def _reduction(name: str) -> Rule:
    return lambda x, axes, **_: REGISTRY[name](x, axes=tuple(sorted(map(int, axes)))) if axes else x


def _arg(name: str) -> Rule:
    return lambda x, axes, index_dtype: REGISTRY[name](x, axis=int(axes[0]), dtype=np.dtype(index_dtype))


def _cumulative(name: str) -> Rule:
    return lambda x, axis, reverse: REGISTRY[name](x, axis=int(axis), reverse=bool(reverse))


def _numbers(kind: Any, given: Any) -> Any:
    """Dimension numbers of JAX, with integers that are Python's."""
    return kind(*(tuple(map(int, getattr(given, name))) for name in kind._fields))


def _gather(x: Value, indices: Value, dimension_numbers: Any, slice_sizes: Any, **params: Any) -> Any:
    numbers = _numbers(lax.GatherDimensionNumbers, dimension_numbers)
    mode, fill = lax.GatherScatterMode[params["mode"].name], params["fill_value"]
    fill = None if fill is None else constant(fill, x.dtype)
    return lax.gather(x, indices, numbers, tuple(map(int, slice_sizes)), mode=mode, fill_value=fill)


def _scatter(name: str) -> Rule:
    function = getattr(lax, name)

    def rule(x: Value, indices: Value, updates: Value, dimension_numbers: Any, **params: Any) -> Any:
        numbers = _numbers(lax.ScatterDimensionNumbers, dimension_numbers)
        mode, unique = lax.GatherScatterMode[params["mode"].name], params["unique_indices"]
        return function(x, indices, updates, numbers, mode=mode, unique_indices=unique)

    return rule


def _sort(*xs: Value, dimension: int, is_stable: bool, num_keys: int) -> Any:
    found = lax.sort(tuple(xs), dimension=int(dimension), num_keys=num_keys, is_stable=is_stable)
    return tuple(found)


def _top_k(x: Value, k: int, **params: Any) -> Any:
    axis = params.get("axis", x.ndim - 1)
    if axis % x.ndim == x.ndim - 1:
        return tuple(lax.top_k(x, k))
    order = (*(d for d in range(x.ndim) if d != axis), axis)
    back = tuple(np.argsort(order).tolist())
    return tuple(lax.transpose(found, back) for found in lax.top_k(lax.transpose(x, order), k))


def _convolution(x: Value, w: Value, dimension_numbers: Any, **params: Any) -> Any:
    dtype = params.get("preferred_element_type")
    numbers = lax.ConvDimensionNumbers(*(tuple(map(int, spec)) for spec in dimension_numbers))
    return lax.conv_general_dilated(
        x,
        w,
        params["window_strides"],
        [tuple(map(int, pair)) for pair in params["padding"]],
        params["lhs_dilation"],
        params["rhs_dilation"],
        numbers,
        params["feature_group_count"],
        params["batch_group_count"],
        preferred_element_type=None if dtype is None else np.dtype(dtype),
    )


def _windowed(name: str) -> Rule:
    def rule(x: Value, **params: Any) -> Any:
        return REGISTRY[f"reduce_window_{name}"](
            x,
            window=tuple(map(int, params["window_dimensions"])),
            strides=tuple(map(int, params["window_strides"])),
            padding=tuple(tuple(map(int, pair)) for pair in params["padding"]),
            base_dilation=tuple(map(int, params["base_dilation"])),
            window_dilation=tuple(map(int, params["window_dilation"])),
        )

    return rule


def _round(x: Value, rounding_method: Any) -> Any:
    return REGISTRY["round"](x, away=rounding_method.name == "AWAY_FROM_ZERO")


def _fft(x: Value, fft_type: Any, fft_lengths: Any) -> Any:
    return REGISTRY["fft"](x, kind=fft_type.name.lower(), lengths=tuple(map(int, fft_lengths)))


def _triangular_solve(a: Value, b: Value, **flags: Any) -> Any:
    return REGISTRY["triangular_solve"](a, b, **{name: bool(flag) for name, flag in flags.items()})


def _qr(x: Value, full_matrices: bool, pivoting: bool = False, **_: Any) -> Any:
    return tuple(lax.linalg.qr(x, pivoting=bool(pivoting), full_matrices=bool(full_matrices)))


def _eigh(x: Value, lower: bool, **_: Any) -> Any:
    """Vectors and values of the matrix whose half is given; the other half may hold anything."""
    half, rest = (mnp.tril(x), mnp.tril(x, -1)) if lower else (mnp.triu(x), mnp.triu(x, 1))
    return REGISTRY["eigh"](half + mnp.conj(mnp.swapaxes(rest, -1, -2)))


def _svd(x: Value, full_matrices: bool, compute_uv: bool, **_: Any) -> Any:
    return REGISTRY["svd"](x, full=bool(full_matrices), vectors=bool(compute_uv))


def _eig(x: Value, compute_left_eigenvectors: bool, compute_right_eigenvectors: bool, **_: Any) -> Any:
    flags = {"compute_left_eigenvectors": compute_left_eigenvectors}
    return tuple(lax.linalg.eig(x, compute_right_eigenvectors=compute_right_eigenvectors, **flags))


def _total_order(compare: str) -> Rule:
    """A comparison in which -0 is below 0 and every NaN has its place: that of the bits, read as integers."""

    def rule(x: Value, y: Value) -> Any:
        return REGISTRY[compare](*together(*(_ordered(operand) for operand in (x, y))))

    return rule


def _ordered(x: Value) -> Any:
    if x.dtype.kind in "biu":
        return x
    bits = REGISTRY["bitcast"](x, dtype=np.dtype(f"int{8 * x.dtype.itemsize}"))
    return lax.select(lax.lt(bits, 0), lax.bitwise_xor(bits, np.iinfo(bits.dtype).max), bits)


def _all_of(function: Any) -> Rule:
    """A function of arrays alone; what JAX says besides, of sharding or accuracy, changes no number."""
    return lambda *xs, **_: function(*xs)


def _unstack(x: Value, axis: int, **_: Any) -> Any:
    return tuple(lax.unstack(x, int(axis)))


def _approx_top_k(x: Value, k: int, reduction_dimension: int, is_max_k: bool, **_: Any) -> Any:
    return tuple((lax.approx_max_k if is_max_k else lax.approx_min_k)(x, k, int(reduction_dimension)))


def _ormqr(a: Value, taus: Value, c: Value, left: bool, transpose: bool, **_: Any) -> Any:
    return lax.linalg.ormqr(a, taus, c, left=left, transpose=transpose)


def _barrier(*xs: Value) -> Any:
    found = REGISTRY["optimization_barrier"](*xs)
    return tuple(found) if isinstance(found, list | tuple) else (found,)


RULES: dict[str, Rule] = {
    **{name: _op(name) for name in _SAME},
    "max": _op("maximum"),
    "min": _op("minimum"),
    "add_any": _op("add"),
    "pow": _pow,
    "copy": lambda x: x,
    "copy_p": lambda x: x,
    "convert_element_type": _convert,
    "bitcast_convert_type": lambda x, new_dtype: REGISTRY["bitcast"](x, dtype=np.dtype(new_dtype)),
    "reduce_precision": lambda x, exponent_bits, mantissa_bits: REGISTRY["reduce_precision"](
        x, exponent_bits=exponent_bits, mantissa_bits=mantissa_bits
    ),
    "select_n": _select_n,
    "clamp": _clamp,
    "integer_pow": _integer_pow,
    "round": _round,
    "broadcast_in_dim": _broadcast_in_dim,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "expand_dims": _expand_dims,
    "transpose": lambda x, permutation: REGISTRY["transpose"](x, permutation=tuple(map(int, permutation))),
    "rev": lambda x, dimensions: REGISTRY["reverse"](x, dims=tuple(map(int, dimensions))),
    "concatenate": _concatenate,
    "stack": lambda *xs, axis: mnp.stack(xs, axis),
    "split": lambda x, sizes, axis: tuple(lax.split(x, sizes, axis)),
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "pad": _pad,
    "iota": _iota,
    "dot_general": _dot_general,
    **{name: _reduction(name) for name in
       ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_and", "reduce_or")},
    "argmax": _arg("argmax"),
    "argmin": _arg("argmin"),
    **{name: _cumulative(name) for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")},
    "gather": _gather,
    "scatter": _scatter("scatter"),
    **{f"scatter-{name}": _scatter(f"scatter_{name}") for name in ("add", "mul", "min", "max", "sub")},
    "sort": _sort,
    "top_k": _top_k,
    "conv_general_dilated": _convolution,
    "reduce_window_sum": _windowed("sum"),
    "reduce_window_max": _windowed("max"),
    "reduce_window_min": _windowed("min"),
    "optimization_barrier": _barrier,
    "fft": _fft,
    "triangular_solve": _triangular_solve,
    "polygamma": lambda order, x: lax.polygamma(order, x),
    **{f"{name}_to": _total_order(name) for name in ("eq", "le", "lt")},
    "lu": lambda x, **_: tuple(REGISTRY["lu"](x)),
    "qr": _qr,
    "eigh": _eigh,
    "svd": _svd,
    "eig": _eig,
    "cholesky": lambda x, **_: REGISTRY["cholesky"](x),
    **{name: _all_of(getattr(lax, name)) for name in (
        "bessel_i0e", "bessel_i1e", "igamma", "igammac", "igamma_grad_a", "mulhi", "random_gamma_grad", "zeta",
    )},
    "regularized_incomplete_beta": _all_of(lax.betainc),
    "reduce_xor": lambda x, axes, **_: lax.reduce_xor(x, tuple(map(int, axes))),
    "stage": lambda x, **_: x,
    "tile": lambda x, reps, **_: lax.tile(x, tuple(map(int, reps))),
    "unstack": _unstack,
    "log2": lambda x, **_: mnp.log2(x),
    "one_minus_square": one_minus_square,
    "polynomial": lambda x, *coeffs, **_: polynomial(x, coeffs),
    "approx_top_k": _approx_top_k,
    **{name: _all_of(getattr(lax.linalg, name)) for name in ("cholesky_update", "hessenberg", "householder_product")},
    "lu_pivots_to_permutation": lambda x, permutation_size: lax.linalg.lu_pivots_to_permutation(x, permutation_size),
    "ormqr": _ormqr,
    "symmetric_product": lambda a, c, alpha, beta: lax.linalg.symmetric_product(a, c, alpha=alpha, beta=beta),
    "tridiagonal": lambda x, lower: lax.linalg.tridiagonal(x, lower=lower),
    "tridiagonal_solve": lambda *xs, **_: lax.linalg.tridiagonal_solve(*xs),
    "threefry2x32": lambda *xs: tuple(REGISTRY["threefry2x32"](*together(*xs))),
}  # fmt: skip


def results(outs: Any) -> Sequence[Any]:
    """What a rule returned, as a list."""
    return outs if isinstance(outs, list | tuple) else [outs]
