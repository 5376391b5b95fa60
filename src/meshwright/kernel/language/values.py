"""Functions of values that kernels for TPUs are written with: rolls, packed bits, reshapes by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

import meshwright.numpy as mnp
from meshwright import lax
from meshwright.core import dtypes
from meshwright.core.source import here
from meshwright.kernel.run.faults import KernelError


def align_to(a: Any, alignment: Any) -> Any:
    """``a`` rounded up to a multiple of ``alignment``.

    >>> align_to(5, 4)
    8
    """
    return (a + alignment - 1) // alignment * alignment


def next_power_of_2(x: int) -> int:
    """The least power of 2 that is not below ``x``.

    >>> next_power_of_2(5), next_power_of_2(8)
    (8, 8)
    """
    if x < 0:
        raise KernelError(f"next_power_of_2 is given {x}.", where=here(), why="it takes a size", fix="0 or more")
    return 1 << max(x - 1, 0).bit_length()


def strides_from_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """How many elements apart neighbours along each dim are, the last dim running fastest.

    >>> strides_from_shape((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(prod(shape[n + 1 :]) for n in range(len(shape)))


def broadcast_to(a: Any, shape: Sequence[int]) -> Any:
    """``mnp.broadcast_to``, which a kernel may use."""
    return mnp.broadcast_to(a, tuple(shape))


def reciprocal(x: Any, *, approx: bool = False, full_range: bool = True) -> Any:
    """``1 / x``; approximations are computed in full.

    >>> reciprocal(mnp.array([2.0, 4.0]), approx=True)
    Array([0.5 , 0.25], dtype=float32)
    """
    return 1 / x


def roll(x: Any, shift: Any, axis: int, *, stride: int | None = None, stride_axis: int | None = None) -> Any:
    """``mnp.roll``; with a ``stride``, each slice along ``stride_axis`` is rolled by so much more than the one before.

    >>> roll(mnp.arange(6).reshape(2, 3), 1, 1, stride=1, stride_axis=0)
    Array([[2, 0, 1],
           [4, 5, 3]], dtype=int32)
    """
    if (stride is None) != (stride_axis is None):
        raise KernelError(
            f"roll is given stride={stride} and stride_axis={stride_axis}.",
            where=here(),
            why="slices along one axis are rolled by a stride more than the ones before",
            fix="pltpu.roll(x, 1, axis=1, stride=2, stride_axis=0)",
        )
    if stride is None or stride_axis is None:
        return mnp.roll(x, shift, axis)
    axis, stride_axis = axis % x.ndim, stride_axis % x.ndim
    at = mnp.arange(x.shape[axis]).reshape([-1 if n == axis else 1 for n in range(x.ndim)])
    row = mnp.arange(x.shape[stride_axis]).reshape([-1 if n == stride_axis else 1 for n in range(x.ndim)])
    places = (at - shift - stride * row) % x.shape[axis]
    return mnp.take_along_axis(x, mnp.broadcast_to(places, x.shape), axis)


def bits_of(dtype: Any) -> int:
    """How many bits an element has: 4 of an ``int4``."""
    found = dtypes.as_dtype(dtype)
    return dtypes.PACKED.get(found, found.itemsize * 8)


def bitcast(x: Any, ty: Any, dim: int = -2) -> Any:
    """The bits of ``x`` as another dtype, in the same rank: dim ``dim`` grows or shrinks by the ratio of the widths.

    Elements that come from, or make up, one wide element lie next to each other along ``dim``, the low bits first.

    >>> bitcast(mnp.array([[1], [2]], dtype="int16"), "int32")
    Array([[131073]], dtype=int32)
    """
    wanted = dtypes.as_dtype(ty)
    before, after = x.dtype.itemsize, wanted.itemsize
    if before == after:
        return lax.bitcast_convert_type(x, wanted)
    dim = dim % x.ndim if x.ndim else 0
    if bits_of(x.dtype) != 8 * before or bits_of(wanted) != 8 * after or not x.ndim or x.shape[dim] * before % after:
        raise KernelError(
            f"{x.dtype.name}{list(x.shape)} cannot be seen as {wanted.name} along dim {dim}.",
            where=here(),
            why="whole elements of the one width are made of whole elements of the other, along a dim",
            fix=f"a dim whose size is a multiple of {max(after // before, 1)}, and dtypes of 8 bits or more",
        )
    if before < after:
        ratio = after // before
        parts = x.reshape((*x.shape[:dim], x.shape[dim] // ratio, ratio, *x.shape[dim + 1 :]))
        return lax.bitcast_convert_type(mnp.moveaxis(parts, dim + 1, -1), wanted)
    parts = mnp.moveaxis(lax.bitcast_convert_type(x, wanted), -1, dim + 1)
    return parts.reshape((*x.shape[:dim], -1, *x.shape[dim + 1 :]))


def pack_elementwise(xs: Sequence[Any], *, packed_dtype: Any) -> Any:
    """Several arrays as one of integers of their width: each narrowed to ``packed_dtype``, the first in the low bits.

    >>> packed = pack_elementwise([mnp.array([1.0]), mnp.array([2.0])], packed_dtype="bfloat16")
    >>> packed.dtype, unpack_elementwise(packed, index=1, packed_dtype="bfloat16", unpacked_dtype="float32")
    (dtype('uint32'), Array([2.], dtype=float32))
    """
    narrow = dtypes.as_dtype(packed_dtype)
    wide, width = 8 * xs[0].dtype.itemsize, bits_of(narrow)
    if len(xs) != wide // width or any(x.dtype != xs[0].dtype or x.shape != xs[0].shape for x in xs):
        raise KernelError(
            f"pack_elementwise is given {len(xs)} arrays of {xs[0].dtype.name} for {narrow.name}.",
            where=here(),
            why=f"{wide // width} elements of {width} bits make up one of {wide}, all of one shape and dtype",
            fix=f"a list of {wide // width} arrays",
        )
    word = np.dtype(f"uint{wide}")
    total = mnp.zeros(xs[0].shape, word)
    for n, x in enumerate(xs):
        if narrow.kind in "iu" or width < 8:
            bits = lax.bitcast_convert_type(x, word)
        else:
            bits = lax.bitcast_convert_type(x.astype(narrow), np.dtype(f"uint{width}")).astype(word)
        total = total | ((bits & mnp.asarray((1 << width) - 1, word)) << mnp.asarray(n * width, word))
    return total


def unpack_elementwise(x: Any, *, index: int, packed_dtype: Any, unpacked_dtype: Any) -> Any:
    """Array ``index`` of those that ``pack_elementwise`` has made one of."""
    narrow, wanted = dtypes.as_dtype(packed_dtype), dtypes.as_dtype(unpacked_dtype)
    wide, width = 8 * x.dtype.itemsize, bits_of(narrow)
    word = np.dtype(f"uint{wide}")
    bits = lax.bitcast_convert_type(x, word)
    if narrow.kind in "iu" or width < 8:
        up = mnp.asarray(wide - width, word)
        high = bits << mnp.asarray(wide - (index + 1) * width, word)
        signed = not narrow.name.startswith("u")
        found = (
            lax.bitcast_convert_type(high, np.dtype(f"int{wide}")) >> up.astype(f"int{wide}") if signed else high >> up
        )
        return found.astype(wanted)
    low = (bits >> mnp.asarray(index * width, word)) & mnp.asarray((1 << width) - 1, word)
    return lax.bitcast_convert_type(low.astype(f"uint{width}"), narrow).astype(wanted)


def _bits(x: Any, count: int, offset: int = 0) -> Any:
    """Some bits of integers of 8 or fewer, as an int8 with zeros above them."""
    byte = x.astype(dtypes.INT8)
    moved = lax.shift_right_logical(byte, mnp.full(byte.shape, offset, dtypes.INT8)) if offset else byte
    return moved & mnp.asarray((1 << count) - 1, dtypes.INT8)


def join_bits(*, two_bits: Any = None, four_bits: Any = None) -> Any:
    """An int8 with ``four_bits`` lowest and ``two_bits`` above them, or lowest where they are alone; zeros above.

    >>> join_bits(two_bits=mnp.array([1, -1]).astype("int2"), four_bits=mnp.array([3, -1]).astype("int4"))
    Array([19, 63], dtype=int8)
    """
    given = [(x, width) for x, width in ((four_bits, 4), (two_bits, 2)) if x is not None]
    if not given or any(bits_of(x.dtype) != width or x.shape != given[0][0].shape for x, width in given):
        raise KernelError(
            f"join_bits is given {' and '.join(f'{x.dtype.name}{list(x.shape)}' for x, _ in given) or 'nothing'}.",
            where=here(),
            why="it joins 2 and 4 bits of each element, or has one of them",
            fix="join_bits(two_bits=x.astype('int2'), four_bits=y.astype('int4')), of one shape",
        )
    total, offset = None, 0
    for x, width in given:
        part = _bits(x, width) << mnp.asarray(offset, dtypes.INT8)
        total, offset = part if total is None else total | part, offset + width
    return total


def split_bits(x: Any, bitwidths: Sequence[int]) -> tuple[Any, ...]:
    """Parts of each byte, the lowest first: an int2 or an int4 for each width.

    >>> [part.astype("int32") for part in split_bits(mnp.array([19, 63], dtype="int8"), (4, 2))]
    [Array([ 3, -1], dtype=int32), Array([ 1, -1], dtype=int32)]
    """
    if bits_of(x.dtype) != 8 or not dtypes.is_integer(x.dtype) or not set(bitwidths) <= {2, 4} or sum(bitwidths) > 8:
        raise KernelError(
            f"split_bits is given {x.dtype.name} and the widths {tuple(bitwidths)}.",
            where=here(),
            why="a byte is cut into parts of 2 and 4 bits",
            fix="split_bits(x.astype('int8'), (4, 2))",
        )
    narrow = {2: dtypes.INT2, 4: dtypes.INT4}
    return tuple(_bits(x, n, sum(bitwidths[:at])).astype(narrow[n]) for at, n in enumerate(bitwidths))


def pack_fp6(fp6_in_8b: Any) -> tuple[Any, Any]:
    """Floats of 6 bits, each in a byte, as their high two bits (int2) and their low four (int4).

    >>> [part.astype("int32") for part in pack_fp6(mnp.array([19, 63], dtype="int8"))]
    [Array([ 1, -1], dtype=int32), Array([ 3, -1], dtype=int32)]
    """
    four_bits, two_bits = split_bits(fp6_in_8b, (4, 2))
    return two_bits, four_bits


def unpack_fp6(two_bits: Any, four_bits: Any) -> Any:
    """What ``pack_fp6`` has taken apart.

    >>> unpack_fp6(*pack_fp6(mnp.array([19, 63], dtype="int8")))
    Array([19, 63], dtype=int8)
    """
    return join_bits(two_bits=two_bits, four_bits=four_bits)


def stochastic_round(x: Any, random_bits: Any, *, target_dtype: Any) -> Any:
    """Floats narrowed to bfloat16, up or down as ``random_bits`` (uint32) say: the nearer, the likelier.

    >>> stochastic_round(mnp.array([1.0]), mnp.array([0], dtype="uint32"), target_dtype="bfloat16")
    Array([1], dtype=bfloat16)
    """
    wanted = dtypes.as_dtype(target_dtype)
    if x.dtype != dtypes.FLOAT32 or wanted.name != "bfloat16" or random_bits.dtype != dtypes.UINT32:
        raise KernelError(
            f"stochastic_round goes from {x.dtype.name} with {random_bits.dtype.name} to {wanted.name}.",
            where=here(),
            why="it goes from float32 to bfloat16, with a uint32 for each element",
            fix="stochastic_round(x.astype('float32'), bits.astype('uint32'), target_dtype='bfloat16')",
        )
    low = mnp.asarray(0xFFFF, dtypes.UINT32)
    bits = lax.bitcast_convert_type(x, dtypes.UINT32) + (random_bits & low)
    rounded = lax.bitcast_convert_type(bits & ~low, dtypes.FLOAT32)
    return mnp.where(mnp.isfinite(x), rounded, x).astype(wanted)


def einshape(equation: str, x: Any, assert_is_tile_preserving: bool = False, **sizes: int) -> Any:
    """``x`` with dims split, merged and in another order: ``"ab(cd)->cabd"``; sizes that do not follow are given.

    >>> einshape("(ab)c->bac", mnp.arange(6).reshape(6, 1), a=2).shape
    (3, 2, 1)
    """
    parts = equation.replace(" ", "").split("->")
    groups = [re.findall(r"\(\w*\)|\w", part) for part in parts]
    names = [[list(group.strip("()")) for group in side] for side in groups]
    flat = [[name for group in side for name in group] for side in names]
    known = dict(sizes)
    right = len(parts) == 2 and len(names[0]) == x.ndim and sorted(flat[0]) == sorted(flat[1])
    if right and len(set(flat[0])) == len(flat[0]) and all("".join(g) == p for g, p in zip(groups, parts, strict=True)):
        for group, size in zip(names[0], x.shape, strict=True):
            missing = [name for name in group if name not in known]
            rest = prod(known[name] for name in group if name in known)
            if len(missing) == 1 and rest and size % rest == 0:
                known[missing[0]] = size // rest
            right = right and all(name in known for name in group) and prod(known[n] for n in group) == size
    else:
        right = False
    if not right:
        raise KernelError(
            f"einshape cannot apply {equation!r} to an array of shape {tuple(x.shape)} with {sizes}.",
            where=here(),
            why="each name stands once on each side, and the sizes of a group multiply to that of its dim",
            fix='einshape("a(bc)->bac", x, b=2)',
        )
    split = x.reshape([known[name] for name in flat[0]])
    moved = mnp.transpose(split, [flat[0].index(name) for name in flat[1]])
    return moved.reshape([prod(known[name] for name in group) for group in names[1]])


def with_memory_space_constraint(x: Any, memory_space: Any) -> Any:
    """``x``: an operand of a call is where the call's specs say."""
    return x


def conv(
    lhs: Any,
    rhs: Any,
    acc: Any = None,
    *,
    dimension_numbers: Any,
    window_strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] | None = None,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    window_reversal: Sequence[bool] | None = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """A convolution, added to ``acc``: ``lax.conv_general_dilated``, unless given without padding and by strides of 1.

    >>> import meshwright.numpy as mnp
    >>> conv(mnp.ones((1, 4, 2)), mnp.ones((3, 2, 1)), dimension_numbers=("NHC", "HIO", "NHC"))[0, :, 0]
    Array([6., 6.], dtype=float32)
    """
    numbers = lax.conv_dimension_numbers(tuple(lhs.shape), tuple(rhs.shape), dimension_numbers)
    count = len(lhs.shape) - 2
    reversed_dims = [dim for dim, turned in zip(numbers.rhs_spec[2:], window_reversal or (), strict=False) if turned]
    result = lax.conv_general_dilated(
        lhs,
        lax.rev(rhs, reversed_dims) if reversed_dims else rhs,
        tuple(window_strides or (1,) * count),
        ((0, 0),) * count if padding is None else padding,
        lhs_dilation=lhs_dilation,
        rhs_dilation=rhs_dilation,
        dimension_numbers=numbers,
        feature_group_count=feature_group_count,
        batch_group_count=batch_group_count,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )
    return result if acc is None else acc + result
