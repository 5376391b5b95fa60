"""Ops that StableHLO does not have, in terms of ours that it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshwright.core.op import REGISTRY
from meshwright.core.types import TensorType
from meshwright.ops.basic import zeros
from meshwright.ops.index_windows import Windows


def _op(name: str) -> Any:
    return REGISTRY[name]


def _integer_pow(x: Any, exponent: int) -> list[Any]:
    """By squaring; a negative power is one over the positive one."""
    result, power, left = None, x, abs(exponent)
    while left:
        if left % 2:
            result = power if result is None else _op("mul")(result, power)
        left //= 2
        power = _op("mul")(power, power) if left else power
    one = _op("add")(zeros(x.type), 1)
    if result is None:
        return [one]
    return [result if exponent > 0 else _op("div")(one, result)]


def _exp2(x: Any) -> list[Any]:
    return [_op("pow")(_op("add")(zeros(x.type), 2), x)]


def _conj(x: Any) -> list[Any]:
    if x.dtype.kind != "c":
        return [_op("complex")(x, zeros(x.type))]
    return [_op("complex")(_op("real")(x), _op("neg")(_op("imag")(x)))]


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA  # a constant of the cipher


def _threefry(k1: Any, k2: Any, x1: Any, x2: Any) -> list[Any]:
    """Twenty rounds of adding, rotating and mixing, with a key put in after every four."""
    add, xor, left, right = _op("add"), _op("xor"), _op("shift_left"), _op("shift_right_logical")
    keys = (k1, k2, xor(xor(k1, k2), np.uint32(_PARITY)))
    x, y = add(x1, k1), add(x2, k2)
    for group in range(5):
        for turn in _ROTATIONS[group % 2]:
            x = add(x, y)
            y = xor(x, _op("or")(left(y, np.uint32(turn)), right(y, np.uint32(32 - turn))))
        x = add(x, keys[(group + 1) % 3])
        y = add(add(y, keys[(group + 2) % 3]), np.uint32(group + 1))
    return [x, y]


DECOMPOSITIONS: dict[str, Callable[..., list[Any]]] = {
    "conj": _conj,
    "exp2": _exp2,
    "fma": lambda x, y, z: [_op("add")(_op("mul")(x, y), z)],
    "integer_pow": _integer_pow,
    "square": lambda x: [_op("mul")(x, x)],
    "threefry2x32": _threefry,
}


def _last_starts(x: TensorType, indices: Any, windows: Windows, sizes: tuple[int, ...]) -> Any:
    """The largest start along each indexed dim, one row for each index vector."""
    largest = np.array([x.shape[d] - sizes[d] for d in windows.index_map], indices.dtype)
    return _op("broadcast_in_dim")(largest, shape=indices.shape, dims=(indices.ndim - 1,))


def filled_gather(x: Any, indices: Any, **params: Any) -> list[Any]:
    """A gather that reads a filling where windows stick out: the windows moved in, and chosen by where they were."""
    windows, sizes = Windows.of_gather(params), params["slice_sizes"]
    found = _op("gather")(x, indices, **{**params, "mode": "clip"})
    last = _last_starts(x.type, indices, windows, sizes)
    inside = _op("and")(_op("ge")(indices, 0), _op("le")(indices, last))
    inside = _op("reduce_and")(inside, axes=(indices.ndim - 1,))
    batch = tuple(d for d in range(found.ndim) if d not in windows.window_dims)
    inside = _op("broadcast_in_dim")(inside, shape=found.shape, dims=batch)
    dtype = found.dtype
    number: Any = 0
    if params["mode"] == "fill":
        number = {"b": True, "i": np.iinfo(dtype).min if dtype.kind == "i" else 0,
                  "u": np.iinfo(dtype).max if dtype.kind == "u" else 0}.get(dtype.kind, np.nan)  # fmt: skip
    filling = _op("broadcast_in_dim")(np.asarray(number).astype(dtype), shape=found.shape, dims=())
    return [_op("select")(inside, found, filling)]


def clipped_scatter(op: Any, x: Any, indices: Any, updates: Any, **params: Any) -> list[Any]:
    """A scatter whose windows that stick out are moved in first."""
    windows = Windows.of_scatter(params)
    sizes = [1] * x.ndim
    for d, u in enumerate(windows.along(x.ndim)):
        if u is not None:
            sizes[d] = updates.shape[u]
    last = _last_starts(x.type, indices, windows, tuple(sizes))
    moved = _op("minimum")(_op("maximum")(indices, 0), last)
    return [op(x, moved, updates, **{**params, "mode": "drop"})]
