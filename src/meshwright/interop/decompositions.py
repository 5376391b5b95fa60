"""Ops that StableHLO and HLO do not have, or not for all operands, in terms of ours that they have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.dtypes import DType
from meshwright.core.op import REGISTRY
from meshwright.core.program import Eqn
from meshwright.core.types import TensorType
from meshwright.ops.basic import zeros
from meshwright.ops.index_windows import Windows
from meshwright.ops.window import best_so_far, dilated, elements_of_windows, highest, lowest

Parts = Callable[..., list[Any]]


def _op(name: str) -> Any:
    return REGISTRY[name]


def _last_starts(x: TensorType, indices: Any, windows: Windows, sizes: tuple[int, ...]) -> Any:
    """The largest start along each indexed dim, one row for each index vector."""
    largest = np.array([x.shape[d] - sizes[d] for d in windows.index_map], indices.dtype)
    return _op("broadcast_in_dim")(largest, shape=indices.shape, dims=(indices.ndim - 1,))


def _filled_gather(x: Any, indices: Any, **params: Any) -> list[Any]:
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


def _clipped_scatter(op: Any, x: Any, indices: Any, updates: Any, **params: Any) -> list[Any]:
    """A scatter whose windows that stick out are moved in first."""
    windows = Windows.of_scatter(params)
    sizes = [1] * x.ndim
    for d, u in enumerate(windows.along(x.ndim)):
        if u is not None:
            sizes[d] = updates.shape[u]
    last = _last_starts(x.type, indices, windows, tuple(sizes))
    moved = _op("minimum")(_op("maximum")(indices, 0), last)
    return [op(x, moved, updates, **{**params, "mode": "drop"})]


def neutral(how: str, dtype: DType) -> Any:
    """What a reduction starts from.

    >>> neutral("and", np.dtype("uint8")), neutral("max", np.dtype("int8"))
    (255, -128)
    """
    if how in ("max", "min"):
        return lowest(dtype) if how == "max" else highest(dtype)
    every = True if dtype.kind == "b" else np.iinfo(dtype).max if dtype.kind == "u" else -1
    return {"sum": 0, "prod": 1, "or": 0, "and": every}[how]


def custom_target(eqn: Eqn) -> str:
    """The name under which others know an op that neither StableHLO nor HLO has."""
    return f"meshwright.{eqn.op.name}"


def in_parts(eqn: Eqn, axes: Sequence[tuple[str, int]] = ()) -> Parts | None:
    """How an equation is written that they have no op for, or none for these operands; None if they have one.

    Results without elements are not computed at all. ``axes`` are those of the mesh around, with their sizes: devices
    that meet nobody send nothing.
    """
    results = [TensorType(v.type.shape, v.type.dtype) for v in eqn.outputs]
    if eqn.op.stack is not None and all((axis, 1) in axes for axis in eqn.params["axes"]):
        return _alone(eqn, results)
    plain = eqn.op.name not in _ANY_SIZE and not eqn.regions()
    if plain and results and not any(t.size for t in results):
        return lambda *operands, **params: [zeros(t) for t in results]
    rule, lacking = _FOR_SOME.get(eqn.op.name), eqn.op.in_parts
    if rule is not None:
        return rule(eqn, results)
    return None if lacking is None else lambda *operands, **params: _listed(lacking(*operands, **params))


def _listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple | list) else [found]


def _alone(eqn: Eqn, results: list[TensorType]) -> Parts:
    """A collective among one device, which has what it would be sent."""
    if eqn.op.name == "axis_index" or eqn.params.get("permutation") == ():
        return lambda *operands, **params: [zeros(t) for t in results]
    return lambda *operands, **params: list(operands)


_ANY_SIZE = frozenset(
    {"sharding_constraint", "broadcast_in_dim"}
)  # which says where an array is; what zeros are made of


def _is_narrow(dtype: DType) -> bool:
    return dtypes.is_float(dtype) and dtype.itemsize < 4


def _narrow_sum(eqn: Eqn, results: list[TensorType]) -> Parts | None:
    """Sums and products of narrow floats are taken at the width of f32 and rounded once."""

    def wide(x: Any, **params: Any) -> list[Any]:
        found = eqn.op(_op("convert")(x, dtype=dtypes.FLOAT32, weak=False), **params)
        return [_op("convert")(found, dtype=x.dtype, weak=False)]

    return wide if _is_narrow(results[0].dtype) else None


def _unsigned_sign(eqn: Eqn, results: list[TensorType]) -> Parts | None:
    return (lambda x: [_op("minimum")(x, 1)]) if results[0].dtype.kind == "u" else None


def _empty_product(eqn: Eqn, results: list[TensorType]) -> Parts | None:
    """A sum of no products."""
    some = all(a.type.size for a in eqn.inputs)
    return None if some else lambda x, y, **params: [zeros(t) for t in results]


def _gather(eqn: Eqn, results: list[TensorType]) -> Parts | None:
    """They move windows that stick out into the operand."""
    return None if eqn.params["mode"] in ("clip", "promise") else _filled_gather


def _scatter(eqn: Eqn, results: list[TensorType]) -> Parts | None:
    """They leave out windows that stick out of the operand."""
    return partial(_clipped_scatter, eqn.op) if eqn.params["mode"] == "clip" else None


def _complex_sort(eqn: Eqn, results: list[TensorType]) -> Parts | None:
    """A complex key is two: its real and then its imaginary part."""
    count = eqn.params["num_keys"]
    if not any(dtypes.is_complex(t.dtype) for t in results[:count]):
        return None

    def by_parts(*operands: Any, dim: int, num_keys: int) -> list[Any]:
        keys = [
            part(x) if part is not None else x
            for x in operands[:count]
            for part in ((_op("real"), _op("imag")) if dtypes.is_complex(x.dtype) else (None,))
        ]
        return list(eqn.op(*keys, *operands, dim=dim, num_keys=len(keys))[len(keys) :])

    return by_parts


def _conjugated_solve(eqn: Eqn, results: list[TensorType]) -> Parts | None:
    """They conjugate what they transpose, and nothing else."""
    if not eqn.params["conjugate_a"] or eqn.params["transpose_a"] or not dtypes.is_complex(results[0].dtype):
        return None
    return lambda a, b, **params: [eqn.op(_op("conj")(a), b, **{**params, "conjugate_a": False})]


def _window_select(eqn: Eqn, results: list[TensorType]) -> Parts | None:
    """They have no dilated windows, and XLA on CPUs takes another of equal elements if windows reach into padding."""
    p = eqn.params
    if any(n != 1 for n in (*p["base_dilation"], *p["window_dilation"])):
        return _dilated_select
    low, high = (tuple(pair[n] for pair in p["padding"]) for n in (0, 1))
    if not any(low) and not any(high):
        return None

    def padded(source: Any, x: Any, **params: Any) -> list[Any]:
        none = (0,) * x.ndim
        wide = _op("pad")(x, _number(neutral(params["select"], x.dtype), x), low=low, high=high, interior=none)
        found = eqn.op(source, wide, **{**params, "padding": ((0, 0),) * x.ndim})
        return [_cropped(found, low, high)]

    return padded


def _dilated_select(source: Any, x: Any, select: str, **params: Any) -> list[Any]:
    """Place by place: the summands of the windows that have their largest (smallest) element there."""
    p = params
    low, high = (tuple(pair[n] for pair in p["padding"]) for n in (0, 1))
    sizes = [
        dilated(n, base) + before + after
        for n, base, before, after in zip(x.shape, p["base_dilation"], low, high, strict=True)
    ]
    best = best_so_far(elements_of_windows(x, neutral(select, x.dtype), **p), select)
    total, left = None, None  # the windows whose element is at none of the later places
    for place, (_, ahead) in reversed(list(zip(np.ndindex(*p["window"]), best, strict=True))):
        chosen = ahead if left is None else _op("and")(ahead, left)
        left = _op("not")(ahead) if left is None else _op("and")(left, _op("not")(ahead))
        first = tuple(at * d for at, d in zip(place, p["window_dilation"], strict=True))
        last = tuple(
            n - start - dilated(count, step)
            for n, start, count, step in zip(sizes, first, source.shape, p["strides"], strict=True)
        )
        summands = _op("select")(chosen, source, zeros(source.type))
        between = tuple(n - 1 for n in p["strides"])
        spread = _op("pad")(summands, _number(0, x), low=first, high=last, interior=between)
        total = spread if total is None else _op("add")(total, spread)
    inside = _cropped(total, low, high)
    bounds = {"starts": (0,) * x.ndim, "limits": inside.shape, "strides": tuple(p["base_dilation"])}
    return [_op("slice")(inside, **bounds)]


def _number(value: Any, like: Any) -> Any:
    return np.asarray(value).astype(like.dtype)


def _cropped(x: Any, low: Sequence[int], high: Sequence[int]) -> Any:
    """An array without what was put around it."""
    before, after = (tuple(-n for n in side) for side in (low, high))
    return _op("pad")(x, _number(0, x), low=before, high=after, interior=(0,) * x.ndim)


def _no_steps(eqn: Eqn, results: list[TensorType]) -> Parts | None:
    """A loop over no rows returns what it starts from."""
    first = eqn.params["consts"]
    last = first + eqn.params["carry"]
    if eqn.params["length"]:
        return None
    return lambda *operands, **params: [*operands[first:last], *(zeros(t) for t in results[last - first :])]


_FOR_SOME: dict[str, Callable[[Eqn, list[TensorType]], Parts | None]] = {
    **dict.fromkeys(("reduce_sum", "reduce_prod", "reduce_window_sum", "cumsum", "cumprod"), _narrow_sum),
    **dict.fromkeys(("scatter_add", "scatter_max", "scatter_min", "scatter_mul", "scatter_set"), _scatter),
    "conv_general_dilated": _empty_product,
    "gather": _gather,
    "scan": _no_steps,
    "select_and_scatter_add": _window_select,
    "sign": _unsigned_sign,
    "sort": _complex_sort,
    "triangular_solve": _conjugated_solve,
}
