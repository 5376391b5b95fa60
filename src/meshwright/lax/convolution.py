"""The part of ``meshwright.lax`` with convolutions and pooling."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from meshwright.arrays.operands import ArrayLike, DTypeLike, as_dtype, axes_of, convert, value
from meshwright.arrays.static import check_precision, laid_out_as, placed, static_flag, static_int, static_shape
from meshwright.core import dtypes
from meshwright.core.op import Op
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.core.types import Shape
from meshwright.errors import ShapeError, ShardingError
from meshwright.lax import elementwise as lax
from meshwright.numpy import arithmetic as numpy_arithmetic
from meshwright.numpy import logic as numpy_logic
from meshwright.ops import basic, elementwise, reduction, window
from meshwright.ops.convolution import conv_general_dilated as conv_op
from meshwright.ops.shape import reverse

Pairs = tuple[tuple[int, int], ...]


class ConvDimensionNumbers(NamedTuple):
    """Where batch, features and spatial dims are: (batch, feature, *spatial) of the input and the result, and
    (output feature, input feature, *spatial) of the kernel."""

    lhs_spec: tuple[int, ...]
    rhs_spec: tuple[int, ...]
    out_spec: tuple[int, ...]


def conv_dimension_numbers(lhs_shape: Sequence[int], rhs_shape: Sequence[int], dimension_numbers: Any) -> Any:
    """Dimension numbers from strings such as ``("NHWC", "HWIO", "NHWC")``, or None for batch and features first.

    >>> from meshwright import lax
    >>> lax.conv_dimension_numbers((1, 8, 8, 3), (3, 3, 3, 5), ("NHWC", "HWIO", "NHWC")).rhs_spec
    (3, 2, 0, 1)
    """
    rank = len(static_shape(lhs_shape))
    if isinstance(dimension_numbers, ConvDimensionNumbers):
        return dimension_numbers
    if dimension_numbers is None:
        return ConvDimensionNumbers(*(tuple(range(rank)),) * 3)
    texts = tuple(dimension_numbers) if isinstance(dimension_numbers, list | tuple) else ()
    if len(texts) == 3 and not any(isinstance(t, str) for t in texts):
        numbers = ConvDimensionNumbers(*(static_shape(t, "a dim of a convolution") for t in texts))
        if all(sorted(t) == list(range(rank)) for t in numbers):
            return numbers
    if len(texts) != 3 or not all(isinstance(t, str) for t in texts):
        raise ShapeError(
            f"Dimension numbers {dimension_numbers!r} do not fit a convolution of rank {rank}.",
            where=here(),
            why="they are three texts or three permutations of the dims: of the input, the kernel and the result",
            fix='("NCHW", "OIHW", "NCHW") or ("NHWC", "HWIO", "NHWC")',
        )
    lhs, rhs, out = texts
    spatial = [c for c in rhs if c not in "OI"]
    for text, first in ((lhs, "NC"), (rhs, "OI"), (out, "NC")):
        if len(text) != rank or sorted(text) != sorted([*first, *spatial]):
            raise ShapeError(
                f"Dimension numbers {texts} do not fit a convolution of rank {rank}.",
                where=here(),
                why=f"'{text}' must have {first[0]}, {first[1]} and the kernel's spatial dims once each",
                fix='("NCHW", "OIHW", "NCHW") or ("NHWC", "HWIO", "NHWC")',
            )
    return ConvDimensionNumbers(
        *(tuple(text.index(c) for c in (*first, *spatial)) for text, first in ((lhs, "NC"), (rhs, "OI"), (out, "NC")))
    )


def padtype_to_pads(in_shape: Any, window_shape: Any, window_strides: Any, padding: str) -> list[tuple[int, int]]:
    """How much to pad for "SAME", "SAME_LOWER" or "VALID"."""
    name = padding.upper() if isinstance(padding, str) else ""
    sizes = [
        static_shape(given, f"a size of {what}")
        for what, given in (("in_shape", in_shape), ("window_shape", window_shape))
    ]
    strides = static_shape(window_strides, "a stride")
    _one_per_dim("lax.padtype_to_pads", "window_strides", strides, len(sizes[0]))
    _one_per_dim("lax.padtype_to_pads", "window_shape", sizes[1], len(sizes[0]), least=0)
    if name == "VALID":
        return [(0, 0)] * len(sizes[0])
    if name not in ("SAME", "SAME_LOWER"):
        raise ShapeError(
            f"padding={padding!r} is not known.",
            where=here(),
            why="it is 'SAME', 'SAME_LOWER' or 'VALID'",
            fix="'SAME'",
        )
    pads = []
    for size, width, stride in zip(*sizes, strides, strict=True):
        total = max((-(-size // stride) - 1) * stride + width - size, 0)
        less, more = total // 2, total - total // 2
        pads.append((less, more) if name == "SAME" else (more, less))
    return pads


def _dilated(size: int, dilation: int) -> int:
    return (size - 1) * dilation + 1 if size else 0


def _padding(padding: Any, sizes: Sequence[int], widths: Sequence[int], strides: Sequence[int]) -> Pairs:
    if isinstance(padding, str):
        return tuple(padtype_to_pads(sizes, widths, strides, padding))
    pairs = [
        static_shape(pair, "a width of padding") for pair in (padding if isinstance(padding, list | tuple) else [])
    ]
    if len(pairs) != len(sizes) or any(len(pair) != 2 for pair in pairs):
        raise ShapeError(
            f"padding={padding!r} does not fit {len(sizes)} dims.",
            where=here(),
            why="it is 'SAME', 'SAME_LOWER', 'VALID', or one (before, after) for each dim",
            fix=f"padding={[(0, 0)] * len(sizes)}",
        )
    return tuple((low, high) for low, high in pairs)


def _check_ranks(x: Value, w: Value) -> None:
    """Refuse arrays that cannot be the input and the kernel of a convolution."""
    if x.ndim < 2 or x.ndim != w.ndim:
        raise ShapeError(
            f"A convolution cannot take {x.type.short()} and {w.type.short()}.",
            where=here(),
            why="input and kernel have one rank: batch, features and the spatial dims",
            fix="x[None, None] adds batch and features; for vectors, mnp.convolve(x, w)",
        )


def _one_per_dim(name: str, what: str, given: Shape, dims: int, least: int = 1) -> None:
    """Refuse settings of windows other than one number per dim that is not too small."""
    if len(given) != dims or any(n < least for n in given):
        raise ShapeError(
            f"{name} cannot take {what}={given}.",
            where=here(),
            why=f"it is one number, {least} or more, for each of {dims} dims",
            fix=f"{what}={(1,) * dims}",
        )


def conv_general_dilated(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: DTypeLike = None,
    out_sharding: Any = None,
) -> Value:
    """The convolution of ``lhs`` with the kernel ``rhs``.

    >>> import meshwright.numpy as mnp
    >>> from meshwright import lax
    >>> image, kernel = mnp.ones((1, 8, 8, 3)), mnp.ones((3, 3, 3, 5))
    >>> lax.conv_general_dilated(image, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")).shape
    (1, 4, 4, 5)
    """
    check_precision(precision)
    x, w = value(lhs), value(rhs)
    _check_ranks(x, w)
    numbers = conv_dimension_numbers(x.shape, w.shape, dimension_numbers)
    spatial = x.ndim - 2
    spread = (1,) * spatial if lhs_dilation is None else static_shape(lhs_dilation, "a dilation")
    holes = (1,) * spatial if rhs_dilation is None else static_shape(rhs_dilation, "a dilation")
    strides = static_shape(window_strides, "a stride")
    for what, given in (("window_strides", strides), ("lhs_dilation", spread), ("rhs_dilation", holes)):
        _one_per_dim("A convolution", what, given, spatial)
    if isinstance(padding, str) and set(spread) - {1} and padding.upper() != "VALID":
        raise ShapeError(
            f"A convolution with lhs_dilation={spread} cannot take padding={padding!r}.",
            where=here(),
            why="it is not said whether the size to keep is that with the holes or without",
            fix="one (before, after) for each dim, or lax.conv_transpose",
        )
    sizes = [x.shape[d] for d in numbers.lhs_spec[2:]]
    widths = [_dilated(w.shape[d], n) for d, n in zip(numbers.rhs_spec[2:], holes, strict=True)]
    target = None if preferred_element_type is None else as_dtype(preferred_element_type)
    if target is not None:
        x, w = convert(x, target), convert(w, target)
    pads = _padding(padding, sizes, widths, strides)
    for size, n, pair in zip(sizes, spread, pads, strict=True):
        if _dilated(size, n) + sum(pair) < 0:
            raise ShapeError(
                f"A convolution of {x.type.short()} cannot take padding={pads}.",
                where=here(),
                why=f"it takes away {-sum(pair)} of {_dilated(size, n)} elements",
                fix="lax.conv(x[:, :, :0], w, …) of no elements, or less negative padding",
            )
    if out_sharding is None:
        _refuse_split(x, w, numbers.lhs_spec[1])
    asked = laid_out_as((x.type, w.type), out_sharding, x.ndim)
    found = conv_op(
        x,
        w,
        strides=strides,
        padding=pads,
        lhs_dilation=spread,
        rhs_dilation=holes,
        dims=tuple(static_shape(spec) for spec in numbers),
        feature_groups=static_int(feature_group_count, "feature_group_count"),
        batch_groups=static_int(batch_group_count, "batch_group_count"),
        **asked,
    )
    return placed(found, None, out_sharding)


def _refuse_split(x: Value, w: Value, features: int) -> None:
    """Refuse a kernel, or features of the input, that Explicit axes split: each result is a sum over them."""
    own = () if x.type.sharding is None else x.type.sharding.dims[features].axes
    kernel = () if w.type.sharding is None else tuple(axis for dim in w.type.sharding.dims for axis in dim.axes)
    if own or kernel:
        names = ", ".join(axis.short() for axis in own or kernel)
        raise ShardingError(
            f"The layout of a convolution of {x.type.short()} with {w.type.short()} is ambiguous.",
            where=here(),
            why=f"{f'dim {features} of the input' if own else 'the kernel'} is split over {names}",
            fix="lax.conv_general_dilated(x, kernel, …, out_sharding=mw.P(…)), or mw.reshard(kernel, mw.P())",
        )


def conv(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: Any,
    precision: Any = None,
    preferred_element_type: DTypeLike = None,
) -> Value:
    """The convolution of arrays with batch and features first."""
    check_precision(precision)
    return conv_general_dilated(
        lhs, rhs, window_strides, padding, precision=precision, preferred_element_type=preferred_element_type
    )


def conv_with_general_padding(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None,
    rhs_dilation: Sequence[int] | None,
    precision: Any = None,
    preferred_element_type: DTypeLike = None,
) -> Value:
    """The convolution of arrays with batch and features first, padded and dilated."""
    check_precision(precision)
    kind = preferred_element_type
    return conv_general_dilated(
        lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation, precision=precision, preferred_element_type=kind
    )


def conv_transpose(
    lhs: ArrayLike,
    rhs: ArrayLike,
    strides: Sequence[int],
    padding: Any,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    transpose_kernel: bool = False,
    precision: Any = None,
    preferred_element_type: DTypeLike = None,
) -> Value:
    """The convolution that enlarges by ``strides``; with ``transpose_kernel``, the gradient of the forward one."""
    check_precision(precision)
    transpose_kernel = static_flag(transpose_kernel, "transpose_kernel of lax.conv_transpose")
    x, w = value(lhs), value(rhs)
    _check_ranks(x, w)
    if dimension_numbers is None:
        spatial_names = "HWD"[: x.ndim - 2] if x.ndim <= 4 else "DHW"[: x.ndim - 2]
        dimension_numbers = (f"N{spatial_names}C", f"{spatial_names}IO", f"N{spatial_names}C")
    numbers = conv_dimension_numbers(x.shape, w.shape, dimension_numbers)
    strides = static_shape(strides, "a stride")
    holes = (1,) * (x.ndim - 2) if rhs_dilation is None else static_shape(rhs_dilation, "a dilation")
    for what, given in (("strides", strides), ("rhs_dilation", holes)):
        _one_per_dim("lax.conv_transpose", what, given, x.ndim - 2)
    widths = [_dilated(w.shape[d], n) for d, n in zip(numbers.rhs_spec[2:], holes, strict=True)]
    if isinstance(padding, str):
        padding = [_transpose_padding(k, s, padding) for k, s in zip(widths, strides, strict=True)]
    if transpose_kernel:
        out_feature, in_feature, *spatial = numbers.rhs_spec
        w = reverse(w, dims=tuple(sorted(spatial)))
        w = basic.transpose(w, permutation=_swapped(w.ndim, out_feature, in_feature))
    ones = (1,) * (x.ndim - 2)
    return conv_general_dilated(
        x, w, ones, padding, strides, holes, numbers, preferred_element_type=preferred_element_type
    )


def _swapped(rank: int, a: int, b: int) -> tuple[int, ...]:
    return tuple(b if d == a else a if d == b else d for d in range(rank))


def _transpose_padding(width: int, stride: int, padding: str) -> tuple[int, int]:
    if padding.upper() not in ("SAME", "VALID"):
        raise ShapeError(
            f"lax.conv_transpose cannot take padding={padding!r}.",
            where=here(),
            why="it is 'SAME', 'VALID', or one (before, after) for each dim",
            fix="'SAME'",
        )
    if padding.upper() == "SAME":
        total = width + stride - 2
        before = width - 1 if stride > width - 1 else -(-total // 2)
    else:
        total = width + stride - 2 + max(width - stride, 0)
        before = width - 1
    return before, total - before


# Reductions by a function


def _named(computation: Any) -> str:
    """Which combination a function is."""
    known = {
        "add": (lax.add, numpy_arithmetic.add, operator.add),
        "mul": (lax.mul, numpy_arithmetic.multiply, operator.mul),
        "max": (lax.max, numpy_arithmetic.maximum),
        "min": (lax.min, numpy_arithmetic.minimum),
        "and": (lax.bitwise_and, numpy_logic.bitwise_and, numpy_logic.logical_and, operator.and_),
        "or": (lax.bitwise_or, numpy_logic.bitwise_or, numpy_logic.logical_or, operator.or_),
    }
    for name, functions in known.items():
        if any(computation is f for f in functions):
            return name
    raise ShapeError(
        f"A reduction by {getattr(computation, '__name__', computation)} is not known.",
        where=here(),
        why="reductions combine by add, mul, max, min, bitwise_and or bitwise_or",
        fix="lax.add, lax.max, …; for another function, mw.lax.scan",
    )


_COMBINE: dict[str, Op] = {
    "add": basic.add,
    "mul": basic.mul,
    "max": elementwise.maximum,
    "min": elementwise.minimum,
    "and": elementwise.and_,
    "or": elementwise.or_,
}
_REDUCE: dict[str, Op] = {
    "add": basic.reduce_sum,
    "mul": reduction.reduce_prod,
    "max": reduction.reduce_max,
    "min": reduction.reduce_min,
    "and": reduction.reduce_and,
    "or": reduction.reduce_or,
}
_WINDOW: dict[str, Op] = {
    "add": window.reduce_window_sum,
    "max": window.reduce_window_max,
    "min": window.reduce_window_min,
}


def _is_neutral(init: Value, name: str) -> bool:
    """Whether a start value changes nothing; a traced one may."""
    data = getattr(init, "_data", None)
    if data is None:
        return False
    dtype = init.type.dtype
    if name in ("max", "min") and dtype != dtypes.BOOL:
        edge = window.lowest(dtype) if name == "max" else window.highest(dtype)
        return bool(np.asarray(data) == np.asarray(edge, dtype))
    neutral = {"add": 0, "mul": 1, "max": False, "min": True, "and": True if dtype == dtypes.BOOL else -1, "or": 0}
    return bool(np.asarray(data) == np.asarray(neutral[name]).astype(dtype))


def _start(init: ArrayLike, x: Value, name: str) -> Value:
    """What a reduction starts from: one number of the dtype of the array."""
    found = value(init)
    if found.ndim or (found.type.dtype != x.type.dtype and not found.type.weak):
        raise ShapeError(
            f"{name} of {x.type.short()} cannot start from {found.type.short()}.",
            where=here(),
            why="it starts from one number of the dtype of the array",
            fix="init.astype(x.dtype)",
        )
    return convert(found, x.type.dtype)


def reduce(operands: ArrayLike, init_values: ArrayLike, computation: Any, dimensions: Sequence[int]) -> Value:
    """The elements over ``dimensions`` combined by ``lax.add``, ``lax.max``, …, starting from ``init_values``."""
    x, name = value(operands), _named(computation)
    init = _start(init_values, x, "lax.reduce")
    out = _REDUCE[name](x, axes=axes_of(static_shape(dimensions, "a dim of lax.reduce"), x.ndim, "lax.reduce"))
    return out if _is_neutral(init, name) else _COMBINE[name](out, init)


def reduce_window(
    operand: ArrayLike,
    init_value: ArrayLike,
    computation: Any,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Any,
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Value:
    """The elements of every window combined by ``lax.add``, ``lax.max`` or ``lax.min``: pooling.

    >>> import meshwright.numpy as mnp
    >>> from meshwright import lax
    >>> lax.reduce_window(mnp.arange(6.0), -mnp.inf, lax.max, (2,), (2,), "VALID")
    Array([1., 3., 5.], dtype=float32)
    """
    x, name = value(operand), _named(computation)
    op = _WINDOW.get(name)
    if op is None:
        raise ShapeError(
            f"lax.reduce_window cannot combine by {name}.", where=here(), why="it is add, max or min", fix="lax.max"
        )
    init = _start(init_value, x, "lax.reduce_window")
    widths, strides = static_shape(window_dimensions, "a window"), static_shape(window_strides, "a stride")
    spread = (1,) * x.ndim if base_dilation is None else static_shape(base_dilation, "a dilation")
    holes = (1,) * x.ndim if window_dilation is None else static_shape(window_dilation, "a dilation")
    settings = {
        "window_dimensions": widths,
        "window_strides": strides,
        "base_dilation": spread,
        "window_dilation": holes,
    }
    for what, given in settings.items():
        _one_per_dim("lax.reduce_window", what, given, x.ndim)
    reach = [_dilated(n, d) for n, d in zip(widths, holes, strict=True)]
    out = op(
        x,
        window=widths,
        strides=strides,
        padding=_padding(padding, x.shape, reach, strides),  # by name, that of the array without holes
        base_dilation=spread,
        window_dilation=holes,
    )
    return out if _is_neutral(init, name) else _COMBINE[name](out, init)
