"""Ops that StableHLO and HLO do not have, or not for all operands, in terms of ours that they have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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
from meshwright.ops.window import dilated, highest, lowest

Parts = Callable[..., list[Any]]


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
    plain = eqn.op.name not in _ANY_SIZE and not any(True for _ in eqn.regions())
    if plain and results and not any(t.size for t in results):
        return lambda *operands, **params: [zeros(t) for t in results]
    rule = _FOR_SOME.get(eqn.op.name)
    return _LACKING.get(eqn.op.name) if rule is None else rule(eqn, results)


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
    best = _best_so_far(_windows(x, neutral(select, x.dtype), **p), select)
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


def _cumlogsumexp(x: Any, axis: int, reverse: bool) -> list[Any]:
    """In as many steps as the length has digits: each adds what the last ones found twice as far away."""
    wide = _op("convert")(x, dtype=dtypes.FLOAT32, weak=False) if _is_narrow(x.dtype) else x
    none, step = (0,) * x.ndim, 1
    while step < x.shape[axis]:
        here = tuple(step if d == axis else 0 for d in range(x.ndim))
        back = tuple(-n for n in here)
        low, high = (back, here) if reverse else (here, back)
        other = _op("pad")(wide, np.asarray(-np.inf, wide.dtype), low=low, high=high, interior=none)
        wide = _log_of_sum(wide, other)
        step *= 2
    return [_op("convert")(wide, dtype=x.dtype, weak=False)]


def _log_of_sum(x: Any, y: Any) -> Any:
    """log(exp(x) + exp(y)), without leaving the range of numbers on the way."""
    most = _op("maximum")(x, y)
    shift = _op("select")(_op("is_finite")(most), most, zeros(most.type))
    total = _op("add")(*(_op("exp")(_op("sub")(z, shift)) for z in (x, y)))
    return _op("add")(_op("log")(total), shift)


def _select_and_gather(t: Any, x: Any, select: str, **params: Any) -> list[Any]:
    """The companion of the largest (smallest) element of each window, the first of equal ones."""
    best = _best_so_far(_windows(x, neutral(select, x.dtype), **params), select)
    found = None
    for other, (_, ahead) in zip(_windows(t, 0, **params), best, strict=True):
        found = other if found is None else _op("select")(ahead, other, found)
    return [found]


def _best_so_far(values: Iterable[Any], select: str) -> Iterator[tuple[Any, Any]]:
    """Of arrays one by one, the largest (smallest) elements so far, and where the last one has them; NaN is ahead."""
    better = _op("gt" if select == "max" else "lt")
    best = None
    for value in values:
        if best is None:
            best = value
            yield best, _op("eq")(zeros(value.type), 0)
            continue
        first_nan = _op("and")(_op("ne")(value, value), _op("eq")(best, best))
        ahead = _op("or")(better(value, best), first_nan)
        best = _op("select")(ahead, value, best)
        yield best, ahead


def _windows(
    x: Any, value: Any, window: Any, strides: Any, padding: Any, base_dilation: Any, window_dilation: Any
) -> Iterator[Any]:
    """For each place in a window, the elements of all windows there."""
    low, high = (tuple(pair[n] for pair in padding) for n in (0, 1))
    wide = _op("pad")(x, _number(value, x), low=low, high=high, interior=tuple(n - 1 for n in base_dilation))
    reach = [(w - 1) * d for w, d in zip(window, window_dilation, strict=True)]
    for place in np.ndindex(*window):
        starts = tuple(p * d for p, d in zip(place, window_dilation, strict=True))
        limits = tuple(n - r + start for n, r, start in zip(wide.shape, reach, starts, strict=True))
        yield _op("slice")(wide, starts=starts, limits=limits, strides=tuple(strides))


_LACKING: dict[str, Parts] = {
    "conj": _conj,
    "cumlogsumexp": _cumlogsumexp,
    "exp2": _exp2,
    "fma": lambda x, y, z: [_op("add")(_op("mul")(x, y), z)],
    "integer_pow": _integer_pow,
    "select_and_gather_add": _select_and_gather,
    "square": lambda x: [_op("mul")(x, x)],
    "threefry2x32": _threefry,
}
