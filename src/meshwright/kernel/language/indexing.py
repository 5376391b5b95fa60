"""Indices of refs: integers, slices, ``ds``, ``...``; checked against the shape they index."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from meshwright.arrays.scalars import INDEX
from meshwright.core.source import here
from meshwright.core.trace import Array, Tracer
from meshwright.errors import TracerError
from meshwright.kernel.run.faults import BoundsError

Index = tuple[Any, ...]  # integers and slices of NumPy, one per dim


class Slice(NamedTuple):
    """``size`` elements from ``start``, ``stride`` apart; the start may be computed in the kernel."""

    start: Any
    size: int
    stride: int = 1


def ds(start: Any, size: int | None = None, stride: int | None = None) -> Slice | slice:
    """``size`` elements from ``start``, ``stride`` apart. ``ds(n)`` are the first n, ``ds(None)`` are all.

    >>> ds(8, 4)
    Slice(start=8, size=4, stride=1)
    """
    if start is None:
        return slice(None)
    stride = 1 if stride is None else stride
    return Slice(0, as_int(start), stride) if size is None else Slice(start, as_int(size), as_int(stride))


def as_int(x: Any) -> int:
    """An integer of the kernel as one of Python's."""
    if x.__class__ is int:
        return x  # type: ignore[no-any-return]
    if x.__class__ is Array and x.type is INDEX:
        return int(x._data if x._data.__class__ is np.ndarray else x.data)
    if isinstance(x, Tracer):
        raise TracerError(
            "A traced value is used as an index or a size in a kernel.",
            where=here(),
            why="kernel bodies run on values; this one belongs to a function being traced around the kernel",
            fix="pass the value to the kernel as an argument and read it there: n = n_ref[0]",
        )
    try:
        return int(x.__index__())
    except (AttributeError, TypeError):
        raise BoundsError(
            f"{x!r} is used as an index or a size in a kernel.",
            where=here(),
            why="it is not an integer",
            fix="an integer, a slice or pl.ds(start, size); reshape a value after it is loaded: ref[...][None]",
        ) from None


def resolve(shape: tuple[int, ...], key: Any) -> tuple[Index, bool]:
    """``key`` as an index of NumPy, and whether it only selects (no arrays of indices)."""
    if key is Ellipsis:
        return (Ellipsis,), True
    if shape and (key.__class__ is int or (key.__class__ is Array and key.type is INDEX)):
        return (_position(key, shape[0], shape),), True
    keys = key if key.__class__ is tuple else (key,)
    if len(keys) == 2 == len(shape) and keys[0].__class__ is keys[1].__class__ is int:  # as semaphores are named
        return (_position(keys[0], shape[0], shape), _position(keys[1], shape[1], shape)), True
    views, dots = True, False
    out: list[Any] = []
    for k in keys:
        if k is Ellipsis and not dots and len(keys) - 1 <= len(shape):
            out += [slice(None)] * (len(shape) - len(keys) + 1)
            dots = True
            continue
        if k is Ellipsis:
            raise _too_many(shape, keys)
        if len(out) >= len(shape):
            raise _too_many(shape, keys)
        n = shape[len(out)]
        if k.__class__ is int or (k.__class__ is Array and k.type is INDEX):
            out.append(_position(k, n, shape))
        elif k.__class__ is slice:
            out.append(k if k.start is k.stop is k.step is None else _python_slice(k, n))
        elif k.__class__ is Slice:
            out.append(_slice(k, n, shape))
        elif isinstance(k, Array | np.ndarray | list) and np.ndim(k):  # type: ignore[arg-type]
            out.append(_positions(k, n, shape))
            views = False
        else:
            out.append(_position(k, n, shape))
    return tuple(out), views


def sizes_of(shape: tuple[int, ...], key: Any) -> tuple[int, ...] | None:
    """The shape of what ``key`` selects, inside or not, where it has slices of a start and a size; else None."""
    keys = list(key) if key.__class__ is tuple else [key]
    if len(keys) > len(shape) or Ellipsis in keys or not any(k.__class__ is Slice for k in keys):
        return None
    found: list[int] = []
    for k, n in zip([*keys, *[slice(None)] * (len(shape) - len(keys))], shape, strict=True):
        if k.__class__ is Slice:
            found.append(k.size)
        elif k.__class__ is slice:
            found.append(len(range(n)[_python_slice(k, n)]))
        elif 0 <= as_int(k) < n:
            continue
        else:
            return None
    return tuple(found) if min(found) >= 0 else None


def _too_many(shape: tuple[int, ...], keys: tuple[Any, ...]) -> BoundsError:
    return BoundsError(
        f"A ref of shape {shape} is indexed with {len(keys)} indices.",
        where=here(),
        why="there is one index per dim at most",
        fix="ref[...] takes all of it",
    )


def _python_slice(k: slice, n: int) -> slice:
    start, stop, step = (None if x is None else as_int(x) for x in (k.start, k.stop, k.step))
    if step is not None and step <= 0:
        raise BoundsError(
            f"A ref is sliced with step {step}.",
            where=here(),
            why="memory is read forward",
            fix="load the slice and reverse the value: ref[...][::-1]",
        )
    return slice(start, stop, step)


def _slice(k: Slice, n: int, shape: tuple[int, ...]) -> slice:
    start = as_int(k.start)
    stop = start + (k.size - 1) * k.stride + 1
    if k.size < 0 or start < 0 or (stop > n and k.size):
        raise BoundsError(
            f"A slice of {k.size} elements from {start}{f' in steps of {k.stride}' if k.stride != 1 else ''} "
            f"leaves a dim of {n}.",
            where=here(),
            why=f"the ref has shape {shape}",
            fix=f"pl.ds(start, {k.size}) with 0 <= start <= {max(n - (k.size - 1) * k.stride - 1, 0)}",
        )
    return slice(start, stop if k.size else start, k.stride)


def _position(k: Any, n: int, shape: tuple[int, ...]) -> int:
    at = as_int(k)
    if at < 0 and k.__class__ is int:
        at += n
    if not 0 <= at < n:
        raise BoundsError(
            f"Index {as_int(k)} is outside a dim of {n}.",
            where=here(),
            why=f"the ref has shape {shape}",
            fix=f"an index from 0 to {n - 1}",
        )
    return at


def _positions(k: Any, n: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    at = np.asarray(k)
    if at.size and not (at.min() >= 0 and at.max() < n):
        wrong = at[(at < 0) | (at >= n)].flat[0]
        raise BoundsError(
            f"Index {wrong} is outside a dim of {n}.",
            where=here(),
            why=f"the ref has shape {shape}",
            fix=f"indices from 0 to {n - 1}",
        )
    return at
