"""``meshwright.numpy``: the functions of NumPy, as ``jax.numpy`` has them, over arrays and traced values.

>>> import meshwright.numpy as mnp
>>> mnp.sum(mnp.arange(4.0) ** 2)
Array(14., dtype=float32)
"""

from __future__ import annotations

from importlib import import_module
from math import e, inf, nan, pi
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.exceptions import ComplexWarning

import meshwright.numpy.operators  # noqa: F401  gives arrays their operators
from meshwright.core.trace import Value as ndarray  # tracers too, as a function being traced sees them

# isort: off
# fmt: off
from meshwright.numpy.arithmetic import (
    clip, copysign, divide, divmod, fabs, float_power, floor_divide, fmax, fmin, fmod, heaviside, isclose, mod,
    nextafter, positive, pow, power, reciprocal, remainder, sign, signbit, square, true_divide,
)
from meshwright.numpy.bits import frexp, packbits, spacing, unpackbits
from meshwright.numpy.contraction import einsum, einsum_path
from meshwright.numpy.creation import (
    arange, array, asarray, copy, diag, diag_indices, diagflat, diagonal, empty, empty_like, eye, fromfunction, full,
    full_like, geomspace, identity, indices, linspace, logspace, meshgrid, ones, ones_like, tri, tril, tril_indices,
    triu, triu_indices, vander, zeros, zeros_like,
)
from meshwright.numpy.dtypes import (
    bfloat16, bool_, can_cast, cdouble, complex128, complex64, complex_, complexfloating, csingle, double, finfo,
    float16, float32, float64, float8_e3m4, float8_e4m3, float8_e4m3b11fnuz, float8_e4m3fn, float8_e4m3fnuz,
    float8_e5m2, float8_e5m2fnuz, float8_e8m0fnu, float_, floating, generic, iinfo, inexact, int16, int2, int32, int4,
    int64, int8, int_, integer, iscomplexobj, isdtype, isrealobj, isscalar, issubdtype, iterable, number, promote_types,
    result_type, signedinteger, single, uint, uint16, uint2, uint32, uint4, uint64, uint8, unsignedinteger,
)
from meshwright.numpy.functions import apply_along_axis, apply_over_axes, piecewise, vectorize
from meshwright.numpy.grids import c_, index_exp, mgrid, ogrid, r_, s_
from meshwright.numpy.histograms import histogram, histogram2d, histogram_bin_edges, histogramdd
from meshwright.numpy.ignoring_nan import (
    nanargmax, nanargmin, nancumprod, nancumsum, nanmax, nanmean, nanmin, nanprod, nanstd, nansum, nanvar,
)
from meshwright.numpy.logic import (
    abs, absolute, bitwise_count, bitwise_invert, bitwise_left_shift, bitwise_not, bitwise_right_shift, conj,
    conjugate, equal, greater, greater_equal, imag, invert, iscomplex, isfinite, isinf, isnan, isneginf, isposinf,
    isreal, left_shift, less, less_equal, logical_not, not_equal, real, right_shift, select,
)
from meshwright.numpy.mathematics import (
    acos, acosh, angle, arccos, arccosh, arcsin, arcsinh, arctan, arctan2, arctanh, around, asin, asinh, atan, atan2,
    atanh, cbrt, ceil, cos, cosh, deg2rad, degrees, exp, exp2, expm1, fix, floor, hypot, ldexp, log, log10, log1p,
    log2, modf, nan_to_num, rad2deg, radians, rint, round, sin, sinc, sinh, sqrt, tan, tanh, trunc,
)
from meshwright.numpy.methods import astype
from meshwright.numpy.order import (
    allclose, argpartition, argsort, argwhere, array_equal, array_equiv, bincount, digitize, flatnonzero, lexsort,
    nonzero, partition, searchsorted, sort, sort_complex, where,
)
from meshwright.numpy.padding import pad
from meshwright.numpy.polynomials import (
    bartlett, blackman, hamming, hanning, kaiser, matvec, poly, polyadd, polyder, polydiv, polyfit, polyint, polymul,
    polysub, roots, vecmat,
)
from meshwright.numpy.positions import (
    block, compress, delete, diag_indices_from, extract, fill_diagonal, gcd, insert, ix_, lcm, mask_indices, place,
    put, ravel_multi_index, tril_indices_from, trim_zeros, triu_indices_from, unravel_index,
)
from meshwright.numpy.products import cross, dot, inner, kron, matmul, outer, tensordot, trace, vdot, vecdot
from meshwright.numpy.quantiles import interp, median, nanmedian, nanpercentile, nanquantile, percentile, quantile
from meshwright.numpy.reductions import (
    all, amax, amin, any, argmax, argmin, average, count_nonzero, cumprod, cumsum, diff, max, mean, min, prod, ptp,
    std, sum, var,
)
from meshwright.numpy.sets import (
    intersect1d, isin, setdiff1d, setxor1d, union1d, unique, unique_all, unique_counts, unique_inverse, unique_values,
)
from meshwright.numpy.shapes import (
    append, array_split, atleast_1d, atleast_2d, atleast_3d, broadcast_arrays, broadcast_shapes, broadcast_to,
    column_stack, concat, concatenate, dsplit, dstack, expand_dims, flip, fliplr, flipud, hsplit, hstack,
    matrix_transpose, moveaxis, ndim, permute_dims, ravel, reshape, resize, rollaxis, rot90, shape, size, split,
    squeeze, stack, swapaxes, tile, transpose, unstack, vsplit, vstack,
)
from meshwright.numpy.statistics import (
    convolve, corrcoef, correlate, cov, cumulative_prod, cumulative_sum, ediff1d, gradient, polyval, trapezoid,
    unwrap,
)
from meshwright.numpy.taking import choose, put_along_axis, repeat, roll, take, take_along_axis
from meshwright.numpy.texts import (
    array_repr, array_str, from_dlpack, frombuffer, fromfile, fromiter, fromstring, get_printoptions, load,
    printoptions, save, savez, set_printoptions,
)
from meshwright.numpy.ufuncs import (
    add, bitwise_and, bitwise_or, bitwise_xor, frompyfunc, logaddexp, logaddexp2, logical_and, logical_or,
    logical_xor, maximum, minimum, multiply, negative, subtract, ufunc,
)
# fmt: on
# isort: on

if TYPE_CHECKING:
    from meshwright.numpy import fft, linalg

newaxis = None
euler_gamma = 0.5772156649015329
dtype = np.dtype
bool = bool_
character, flexible, object_ = np.character, np.flexible, np.object_  # kinds of dtypes that arrays do not have


def __getattr__(name: str) -> Any:
    if name in ("fft", "linalg"):  # loaded when used
        return import_module(f"meshwright.numpy.{name}")
    raise AttributeError(f"module 'meshwright.numpy' has no attribute {name!r}")


# fmt: off
__all__ = [
    "ComplexWarning", "abs", "absolute", "acos", "acosh", "add", "all", "allclose", "amax", "amin", "angle", "any",
    "append", "apply_along_axis", "apply_over_axes", "arange", "arccos", "arccosh", "arcsin", "arcsinh", "arctan",
    "arctan2", "arctanh", "argmax", "argmin", "argpartition", "argsort", "argwhere", "around", "array", "array_equal",
    "array_equiv", "array_repr", "array_split", "array_str", "asarray", "asin", "asinh", "astype", "atan", "atan2",
    "atanh", "atleast_1d", "atleast_2d", "atleast_3d", "average", "bartlett", "bfloat16", "bincount", "bitwise_and",
    "bitwise_count", "bitwise_invert", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift",
    "bitwise_xor", "blackman", "block", "bool", "bool_", "broadcast_arrays", "broadcast_shapes", "broadcast_to", "c_",
    "can_cast", "cbrt", "cdouble", "ceil", "character", "choose", "clip", "column_stack", "complex64", "complex128",
    "complex_", "complexfloating", "compress", "concat", "concatenate", "conj", "conjugate", "convolve", "copy",
    "copysign", "corrcoef", "correlate", "cos", "cosh", "count_nonzero", "cov", "cross", "csingle", "cumprod", "cumsum",
    "cumulative_prod", "cumulative_sum", "deg2rad", "degrees", "delete", "diag", "diag_indices", "diag_indices_from",
    "diagflat", "diagonal", "diff", "digitize", "divide", "divmod", "dot", "double", "dsplit", "dstack", "dtype", "e",
    "ediff1d", "einsum", "einsum_path", "empty", "empty_like", "equal", "euler_gamma", "exp", "exp2", "expand_dims",
    "expm1", "extract", "eye", "fabs", "fft", "fill_diagonal", "finfo", "fix", "flatnonzero", "flexible", "flip",
    "fliplr", "flipud", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz",
    "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float16", "float32", "float64", "float_", "float_power",
    "floating", "floor", "floor_divide", "fmax", "fmin", "fmod", "frexp", "from_dlpack", "frombuffer", "fromfile",
    "fromfunction", "fromiter", "frompyfunc", "fromstring", "full", "full_like", "gcd", "generic", "geomspace",
    "get_printoptions", "gradient", "greater", "greater_equal", "hamming", "hanning", "heaviside", "histogram",
    "histogram2d", "histogram_bin_edges", "histogramdd", "hsplit", "hstack", "hypot", "identity", "iinfo", "imag",
    "index_exp", "indices", "inexact", "inf", "inner", "insert", "int2", "int4", "int8", "int16", "int32", "int64",
    "int_", "integer", "interp", "intersect1d", "invert", "isclose", "iscomplex", "iscomplexobj", "isdtype", "isfinite",
    "isin", "isinf", "isnan", "isneginf", "isposinf", "isreal", "isrealobj", "isscalar", "issubdtype", "iterable",
    "ix_", "kaiser", "kron", "lcm", "ldexp", "left_shift", "less", "less_equal", "lexsort", "linalg", "linspace",
    "load", "log", "log1p", "log2", "log10", "logaddexp", "logaddexp2", "logical_and", "logical_not", "logical_or",
    "logical_xor", "logspace", "mask_indices", "matmul", "matrix_transpose", "matvec", "max", "maximum", "mean",
    "median", "meshgrid", "mgrid", "min", "minimum", "mod", "modf", "moveaxis", "multiply", "nan", "nan_to_num",
    "nanargmax", "nanargmin", "nancumprod", "nancumsum", "nanmax", "nanmean", "nanmedian", "nanmin", "nanpercentile",
    "nanprod", "nanquantile", "nanstd", "nansum", "nanvar", "ndarray", "ndim", "negative", "newaxis", "nextafter",
    "nonzero", "not_equal", "number", "object_", "ogrid", "ones", "ones_like", "outer", "packbits", "pad", "partition",
    "percentile", "permute_dims", "pi", "piecewise", "place", "poly", "polyadd", "polyder", "polydiv", "polyfit",
    "polyint", "polymul", "polysub", "polyval", "positive", "pow", "power", "printoptions", "prod", "promote_types",
    "ptp", "put", "put_along_axis", "quantile", "r_", "rad2deg", "radians", "ravel", "ravel_multi_index", "real",
    "reciprocal", "remainder", "repeat", "reshape", "resize", "result_type", "right_shift", "rint", "roll", "rollaxis",
    "roots", "rot90", "round", "s_", "save", "savez", "searchsorted", "select", "set_printoptions", "setdiff1d",
    "setxor1d", "shape", "sign", "signbit", "signedinteger", "sin", "sinc", "single", "sinh", "size", "sort",
    "sort_complex", "spacing", "split", "sqrt", "square", "squeeze", "stack", "std", "subtract", "sum", "swapaxes",
    "take", "take_along_axis", "tan", "tanh", "tensordot", "tile", "trace", "transpose", "trapezoid", "tri", "tril",
    "tril_indices", "tril_indices_from", "trim_zeros", "triu", "triu_indices", "triu_indices_from", "true_divide",
    "trunc", "ufunc", "uint", "uint2", "uint4", "uint8", "uint16", "uint32", "uint64", "union1d", "unique",
    "unique_all", "unique_counts", "unique_inverse", "unique_values", "unpackbits", "unravel_index", "unsignedinteger",
    "unstack", "unwrap", "vander", "var", "vdot", "vecdot", "vecmat", "vectorize", "vsplit", "vstack", "where", "zeros",
    "zeros_like",
]
# fmt: on
