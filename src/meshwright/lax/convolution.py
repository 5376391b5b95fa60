"""The part of ``meshwright.lax`` with convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from meshwright.arrays.operands import ArrayLike, DTypeLike, as_dtype, convert, value
from meshwright.arrays.static import check_precision, laid_out_as, placed, static_flag, static_int, static_shape
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.core.types import Shape
from meshwright.errors import ShapeError, ShardingError
from meshwright.ops import basic
from meshwright.ops.contraction import dot_general
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
    one_per_dim("lax.padtype_to_pads", "window_strides", strides, len(sizes[0]))
    one_per_dim("lax.padtype_to_pads", "window_shape", sizes[1], len(sizes[0]), least=0)
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


def dilated(size: int, dilation: int) -> int:
    return (size - 1) * dilation + 1 if size else 0


def padding_pairs(padding: Any, sizes: Sequence[int], widths: Sequence[int], strides: Sequence[int]) -> Pairs:
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


def one_per_dim(name: str, what: str, given: Shape, dims: int, least: int = 1) -> None:
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
        one_per_dim("A convolution", what, given, spatial)
    if isinstance(padding, str) and set(spread) - {1} and padding.upper() != "VALID":
        raise ShapeError(
            f"A convolution with lhs_dilation={spread} cannot take padding={padding!r}.",
            where=here(),
            why="it is not said whether the size to keep is that with the holes or without",
            fix="one (before, after) for each dim, or lax.conv_transpose",
        )
    sizes = [x.shape[d] for d in numbers.lhs_spec[2:]]
    widths = [dilated(w.shape[d], n) for d, n in zip(numbers.rhs_spec[2:], holes, strict=True)]
    target = None if preferred_element_type is None else as_dtype(preferred_element_type)
    if target is not None:
        x, w = convert(x, target), convert(w, target)
    pads = padding_pairs(padding, sizes, widths, strides)
    for size, n, pair in zip(sizes, spread, pads, strict=True):
        if dilated(size, n) + sum(pair) < 0:
            raise ShapeError(
                f"A convolution of {x.type.short()} cannot take padding={pads}.",
                where=here(),
                why=f"it takes away {-sum(pair)} of {dilated(size, n)} elements",
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
    use_consistent_padding: bool = False,
) -> Value:
    """The convolution that enlarges by ``strides``; with ``transpose_kernel``, the gradient of the forward one.

    Padding by name is that of the forward convolution; by numbers, that of this one, or of the forward one with
    ``use_consistent_padding``.
    """
    check_precision(precision)
    forward = static_flag(use_consistent_padding, "use_consistent_padding of lax.conv_transpose")
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
        one_per_dim("lax.conv_transpose", what, given, x.ndim - 2)
    widths = [dilated(w.shape[d], n) for d, n in zip(numbers.rhs_spec[2:], holes, strict=True)]
    if isinstance(padding, str):
        padding = [_transpose_padding(k, s, padding) for k, s in zip(widths, strides, strict=True)]
    elif forward:
        padding = [
            (width - 1 - low, width - 1 - high)
            for width, (low, high) in zip(widths, padding_pairs(padding, widths, widths, strides), strict=True)
        ]
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


# Patches


def conv_general_dilated_patches(
    lhs: ArrayLike,
    filter_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    precision: Any = None,
    preferred_element_type: DTypeLike = None,
) -> Value:
    """What each place of a convolution sees, as features: those of the first channel, then those of the next.

    >>> import meshwright.numpy as mnp
    >>> from meshwright import lax
    >>> lax.conv_general_dilated_patches(mnp.ones((1, 3, 8, 8)), (2, 2), (1, 1), "VALID").shape
    (1, 12, 7, 7)
    """
    x, width = value(lhs), static_shape(filter_shape, "filter_shape of lax.conv_general_dilated_patches")
    numbers = conv_dimension_numbers(x.shape, (1, 1, *width), dimension_numbers)
    channels, places = x.shape[numbers.lhs_spec[1]], prod(width)
    # The kernel of feature n is 1 at the n-th place of the window, and each channel is convolved with them all.
    ones = np.tile(np.eye(places, dtype=x.dtype).reshape(places, 1, *width), (channels, *(1,) * (len(width) + 1)))
    kernel = np.transpose(ones, np.argsort(numbers.rhs_spec))
    return conv_general_dilated(
        x, kernel, window_strides, padding, lhs_dilation, rhs_dilation, numbers, feature_group_count=channels,
        precision=precision, preferred_element_type=preferred_element_type,
    )  # fmt: skip


def conv_general_dilated_local(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: Any,
    filter_shape: Sequence[int],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    precision: Any = None,
) -> Value:
    """A convolution with a kernel of its own for each place of the result.

    The kernel's features are those of ``conv_general_dilated_patches``, and its spatial dims those of the result.
    """
    check_precision(precision)
    w = value(rhs)
    numbers = conv_dimension_numbers(value(lhs).shape, w.shape, dimension_numbers)
    patches = conv_general_dilated_patches(
        lhs, filter_shape, window_strides, padding, lhs_dilation, rhs_dilation, numbers
    )
    out, kernel = numbers.out_spec, numbers.rhs_spec
    found = dot_general(
        w, patches, contract=((kernel[1],), (out[1],)), batch=(tuple(kernel[2:]), tuple(out[2:])), dtype=None
    )  # spatial dims, features, batch
    rank = found.ndim
    stands = (*range(rank - 2), rank - 1, rank - 2)
    order = [0] * rank
    for dim, at in zip((*out[2:], out[0], out[1]), stands, strict=True):
        order[dim] = at
    return basic.transpose(found, permutation=tuple(order))


# Shapes


def conv_shape_tuple(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int], strides: Sequence[int], pads: Any, batch_group_count: int = 1
) -> Shape:
    """The shape of a convolution, batch and features first.

    >>> from meshwright import lax
    >>> lax.conv_shape_tuple((2, 3, 8, 8), (5, 3, 3, 3), (1, 1), "SAME")
    (2, 5, 8, 8)
    """
    x, w = static_shape(lhs_shape), static_shape(rhs_shape)
    pairs = padding_pairs(pads, x[2:], w[2:], strides)
    sizes = [
        max(0, (n + low + high - k) // s + 1) for n, k, s, (low, high) in zip(x[2:], w[2:], strides, pairs, strict=True)
    ]
    return x[0] // batch_group_count, w[0], *sizes


def conv_general_permutations(dimension_numbers: Any) -> tuple[list[int], list[int], list[int]]:
    """How the dims of the input, the kernel and the result are read with batch and features first."""
    x, w, out = dimension_numbers
    spatial = [name for name in w if name not in "OI"]
    of_kernel = [w.index(name) for name in ("O", "I", *spatial)]
    of_input, of_result = ([dims.index(name) for name in ("N", "C", *spatial)] for dims in (x, out))
    return of_input, of_kernel, of_result


def conv_general_shape_tuple(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int], window_strides: Sequence[int], padding: Any,
    dimension_numbers: Any,
) -> Shape:  # fmt: skip
    """The shape of a convolution whose dims are named by letters."""
    x, w, out = conv_general_permutations(dimension_numbers)
    found = conv_shape_tuple([lhs_shape[n] for n in x], [rhs_shape[n] for n in w], window_strides, padding)
    return tuple(found[out.index(dim)] for dim in range(len(out)))


def conv_transpose_shape_tuple(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int], window_strides: Sequence[int], padding: Any,
    dimension_numbers: Any,
) -> Shape:  # fmt: skip
    """The shape of a ``conv_transpose`` whose dims are named by letters."""
    x, w, out = conv_general_permutations(dimension_numbers)
    sizes, kernel = [lhs_shape[n] for n in x], [rhs_shape[n] for n in w]
    if isinstance(padding, str):
        padding = [_transpose_padding(k, s, padding) for k, s in zip(kernel[2:], window_strides, strict=True)]
    spread = [*sizes[:2], *(dilated(n, s) for n, s in zip(sizes[2:], window_strides, strict=True))]
    found = conv_shape_tuple(spread, kernel, (1,) * (len(sizes) - 2), padding)
    return tuple(found[out.index(dim)] for dim in range(len(out)))
