"""Reductions over sliding windows, and the pair that differentiates pooling.

A window op has five params with one entry per dim: ``window`` sizes, ``strides`` from one window to the next,
``padding`` as (low, high) pairs (negative ones crop), ``base_dilation`` (element ``i`` of the operand stands at
``i * base_dilation``) and ``window_dilation`` (the same for the elements of a window). Padding and holes hold the
identity of the reduction.

``select_and_gather_add`` and ``select_and_scatter_add`` are each other's transpose: the first takes from each window
the tangent that stands where an operand is largest (or smallest), the second sends one number per window there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, TypedDict, Unpack

import numpy as np

from meshwright.core import dtypes
from meshwright.core.dtypes import DType
from meshwright.core.factors import FactorBuilder, Factors
from meshwright.core.facts import Across, Fusion, Split
from meshwright.core.linearity import Does, linear_in
from meshwright.core.op import Cost, Linear, Linearity, Op, Operand, Sample, Types, Value, define_op
from meshwright.core.program import Params
from meshwright.core.types import Shape, TensorType
from meshwright.ops.basic import Derivatives, linear_jvp, pointwise_batch, zeros
from meshwright.ops.bits import and_, or_
from meshwright.ops.choice import eq, gt, lt, ne
from meshwright.ops.choice import select as choose
from meshwright.ops.rules import bad_operands, check_dtype, keep_weak, linear_in_first_jvp, not_linear, traffic
from meshwright.ops.shape import batch_first, pad, slice_

Pairs = tuple[tuple[int, int], ...]
Place = tuple[slice, ...]

REALS = dtypes.INTEGERS + dtypes.FLOATS
ORDERED = (dtypes.BOOL, *REALS)

_E4M3FN_MAX = 448.0  # this dtype has no infinity

# Types


class WindowParams(TypedDict):
    """Where windows are; each has one entry per dim."""

    window: Shape
    strides: Shape
    padding: Pairs
    base_dilation: Shape
    window_dilation: Shape


def dilated(size: int, step: int) -> int:
    """How far ``size`` elements reach when they stand ``step`` apart."""
    return (size - 1) * step + 1 if size else 0


@lru_cache(maxsize=1024)
def window_counts(
    shape: Shape, window: Shape, strides: Shape, padding: Pairs, base_dilation: Shape, window_dilation: Shape
) -> Shape:
    """How many windows fit along each dim."""
    counts = []
    for n, w, s, (low, high), base, step in zip(
        shape, window, strides, padding, base_dilation, window_dilation, strict=True
    ):
        room = low + dilated(n, base) + high - dilated(w, step)
        counts.append(max(0, room // s + 1))
    return tuple(counts)


def _check_window(op: str, types: Types, x: TensorType, params: Params) -> None:
    positive = ("window", "strides", "base_dilation", "window_dilation")
    if any(len(params[name]) != x.ndim for name in (*positive, "padding")):
        raise bad_operands(
            op, types, f"a rank-{x.ndim} operand needs {x.ndim} entries in each param", "window=(1, 2, 2, 1) for NHWC"
        )
    for name in positive:
        if any(n < 1 for n in params[name]):
            raise bad_operands(op, types, f"{name}={params[name]} has an entry below 1", f"{name}={(1,) * x.ndim}")
    for n, base, (low, high) in zip(x.shape, params["base_dilation"], params["padding"], strict=True):
        if dilated(n, base) + low + high < 0:
            raise bad_operands(
                op, types, f"padding ({low}, {high}) crops more than the {dilated(n, base)} elements", "padding=(0, 0)"
            )


def _reduce_window_type(op: str, allowed: Sequence[DType]) -> Callable[..., TensorType]:
    def rule(x: TensorType, **params: Unpack[WindowParams]) -> TensorType:
        check_dtype(op, [x], x.dtype, allowed)
        _check_window(op, [x], x, params)
        return keep_weak(x, window_counts(x.shape, **params))

    return rule


def _select_type(op: str, first_has_windows: bool) -> Callable[..., TensorType]:
    def rule(first: TensorType, x: TensorType, select: str, **params: Unpack[WindowParams]) -> TensorType:
        types = [first, x]
        check_dtype(op, types, x.dtype, REALS)
        _check_window(op, types, x, params)
        counts = window_counts(x.shape, **params)
        expected = counts if first_has_windows else x.shape
        if first.dtype != x.dtype or first.shape != expected:
            wanted = TensorType(expected, x.dtype).short()
            raise bad_operands(op, types, f"the first operand must be {wanted}", "mnp.broadcast_to(x, shape)")
        if select not in ("max", "min"):
            raise bad_operands(op, types, f"select={select!r} is not 'max' or 'min'", "select='max'")
        return TensorType(x.shape if first_has_windows else counts, x.dtype)

    return rule


# Factors, batching, cost


def _untouched(params: Params, dim: int) -> bool:
    """Whether windows along ``dim`` are its elements, one by one."""
    return (
        params["window"][dim] == params["strides"][dim] == params["base_dilation"][dim] == 1
        and tuple(params["padding"][dim]) == (0, 0)
    )  # fmt: skip


def _window_factors(operands: Types, results: Types, params: Params) -> Factors:
    """Dims without windows pass through; the others need their neighbours."""
    build = FactorBuilder(operands, results)
    for dim, size in enumerate(results[0].shape):
        places = [(tensor, dim) for tensor in range(len(operands) + 1)]
        build.add(size, *places, kind="" if _untouched(params, dim) else "permuted")
    return build.build()


def _scatter_factors(operands: Types, results: Types, params: Params) -> Factors:
    """As for the other window ops, but what is sent along a dim with windows must be whole."""
    build = FactorBuilder(operands, results)
    for dim, size in enumerate(results[0].shape):
        if _untouched(params, dim):
            build.add(size, (0, dim), (1, dim), (2, dim))
        else:
            build.add(operands[0].shape[dim], (0, dim), kind="replicated")
            build.add(size, (1, dim), (2, dim), kind="permuted")
    return build.build()


def _with_batch_dim(params: Params) -> Params:
    """The params of the same windows on operands with one more dim in front."""
    wider = {name: (1, *params[name]) for name in ("window", "strides", "base_dilation", "window_dilation")}
    return {**params, **wider, "padding": ((0, 0), *params["padding"])}


def _window_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    return pointwise_batch(op, size, args, batched, _with_batch_dim(params))


def _scatter_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    full = [batch_first(x, b, size) for x, b in zip(args, batched, strict=True)]
    return [op(*full, **_with_batch_dim(params))], [True]


def _window_cost(operands: Types, results: Types, params: Params) -> Cost:
    """One operation per element of each window."""
    windows = min(operands[0].size, results[0].size) if "select" in params else results[0].size
    return Cost(float(windows * prod(params["window"])), traffic(operands, results))


# Evaluation


def _spread(xp: Any, x: Any, value: Any, padding: Pairs, dilation: Shape) -> Any:
    """``x`` with ``dilation - 1`` copies of ``value`` between neighbours and ``padding`` of it around."""
    if not any(low or high or step > 1 for (low, high), step in zip(padding, dilation, strict=True)):
        return x
    low, high = zip(*padding, strict=True)
    return xp.pad_interior(x, xp.asarray(value, dtype=x.dtype), low, high, tuple(step - 1 for step in dilation))


def _gathered(xp: Any, x: Any, padding: Pairs, dilation: Shape) -> Any:
    """The elements of a spread array that stand where the operand's did: the transpose of ``_spread``."""
    cropped = _spread(xp, x, 0, tuple((-low, -high) for low, high in padding), (1,) * len(padding))
    return cropped[tuple(slice(0, None, step) for step in dilation)]


def _along(dim: int, where: slice) -> Place:
    return (*[slice(None)] * dim, where)


@lru_cache(maxsize=64)
def lowest(dtype: DType) -> Any:
    """The identity of max: what no element is below."""
    if dtype == dtypes.BOOL:
        return False
    if dtypes.is_integer(dtype):
        return np.iinfo(dtype).min
    return -_E4M3FN_MAX if dtype == dtypes.FLOAT8_E4M3FN else -np.inf


@lru_cache(maxsize=64)
def highest(dtype: DType) -> Any:
    """The identity of min: what no element is above."""
    if dtype == dtypes.BOOL:
        return True
    if dtypes.is_integer(dtype):
        return np.iinfo(dtype).max
    return _E4M3FN_MAX if dtype == dtypes.FLOAT8_E4M3FN else np.inf


def _reduce_windows(
    xp: Any,
    x: Any,
    combine: Callable[[Any, Any], Any],
    identity: Any,
    window: Shape,
    strides: Shape,
    padding: Pairs,
    base_dilation: Shape,
    window_dilation: Shape,
) -> Any:
    """Windows are boxes, so one dim is reduced after the other; outer ones first, while inner runs are longest."""
    counts = window_counts(tuple(x.shape), window, strides, padding, base_dilation, window_dilation)
    if 0 in counts:  # windows that reach beyond the array on all sides, perhaps far
        return xp.zeros(tuple(counts), dtype=x.dtype)
    x = _spread(xp, x, identity, padding, base_dilation)
    for dim, (count, size, stride, step) in enumerate(zip(counts, window, strides, window_dilation, strict=True)):
        if size != 1 or stride != 1:
            x = _reduce_dim(x, combine, dim, count, size, stride, step)
    return x


def _reduce_dim(
    x: Any, combine: Callable[[Any, Any], Any], dim: int, count: int, size: int, stride: int, step: int
) -> Any:
    if not count:  # not one window fits, however long it is
        return x[_along(dim, slice(0, 0))]
    reach = dilated(count, stride)
    if size * count <= 2 * size.bit_length() * x.shape[dim]:
        total = x[_along(dim, slice(0, reach, stride))]
        for k in range(1, size):
            total = combine(total, x[_along(dim, slice(k * step, k * step + reach, stride))])
        return total
    # Long windows that overlap: runs of 1, 2, 4, … elements, of which each window is a sum of a few.
    run, length, done, total = x, 1, 0, None
    while True:
        if size & length:
            part = run[_along(dim, slice(done * step, done * step + reach))]
            total = part if total is None else combine(total, part)
            done += length
        if done == size:
            return total[_along(dim, slice(0, None, stride))]  # type: ignore[index]
        shift = length * step
        left = run[_along(dim, slice(0, run.shape[dim] - shift))]
        run = combine(left, run[_along(dim, slice(shift, None))])
        length *= 2


def _sum_evaluate(xp: Any, x: Any, **params: Any) -> Any:
    dtype = x.dtype
    if dtype.itemsize < 4 and dtypes.is_float(dtype):
        return xp.astype(_reduce_windows(xp, xp.astype(x, dtypes.FLOAT32), xp.add, 0, **params), dtype)
    return _reduce_windows(xp, x, xp.add, 0, **params)


@lru_cache(maxsize=256)
def _places(counts: Shape, window: Shape, strides: Shape, window_dilation: Shape) -> tuple[Place, ...]:
    """For each element of a window in row-major order, where all windows' elements of that kind stand."""
    ranges = [
        [slice(k * step, k * step + dilated(count, stride), stride) for k in range(size)]
        for count, size, stride, step in zip(counts, window, strides, window_dilation, strict=True)
    ]
    return tuple(product(*ranges))


@lru_cache(maxsize=64)
def _inside(
    shape: Shape, window: Shape, strides: Shape, padding: Pairs, base_dilation: Shape, window_dilation: Shape
) -> tuple[Any, ...]:
    """Per place, in which windows it holds an element and not padding; () where nothing is padded.

    A dim without padding has size 1 here.
    """
    padded = [tuple(pair) != (0, 0) or step != 1 for pair, step in zip(padding, base_dilation, strict=True)]
    if not any(padded):
        return ()
    real = np.ones((), bool)
    for n, (low, high), step, p in zip(shape, padding, base_dilation, padded, strict=True):
        position = np.arange(dilated(n, step) + low + high if p else 1) - low
        real = real[..., None] & ((position >= 0) & (position < n * step) & (position % step == 0))
    counts = window_counts(shape, window, strides, padding, base_dilation, window_dilation)
    return tuple(
        real[tuple(where if p else slice(None) for where, p in zip(place, padded, strict=True))]
        for place in _places(counts, window, strides, window_dilation)
    )


def _selected(xp: Any, x: Any, select: str, **params: Any) -> Iterator[tuple[Place, Any]]:
    """Walk the places of a window: (place, in which windows it holds the selected element).

    Selected is the first of a window's largest (smallest) elements, or its first NaN; padding never is.
    """
    largest = select == "max"
    identity = lowest(x.dtype) if largest else highest(x.dtype)
    extreme = _reduce_windows(xp, x, xp.maximum if largest else xp.minimum, identity, **params)
    if not extreme.size:  # no window fits, however many elements one has
        return
    inside = _inside(tuple(x.shape), **params)
    spread = _spread(xp, x, identity, params["padding"], params["base_dilation"])
    places = _places(tuple(extreme.shape), params["window"], params["strides"], params["window_dilation"])
    found: Any = None
    for index, place in enumerate(places):
        candidate = spread[place]
        match = candidate == extreme
        if dtypes.is_float(x.dtype):
            match = match | (candidate != candidate)
        if inside:
            match = match & inside[index]
        yield place, match if found is None else match & ~found
        found = match if found is None else found | match


def _select_gather_evaluate(xp: Any, tangents: Any, x: Any, select: str, **params: Any) -> Any:
    spread = _spread(xp, tangents, 0, params["padding"], params["base_dilation"])
    counts = window_counts(tuple(x.shape), **params)
    chosen = xp.zeros(tuple(counts) if 0 in counts else (), dtype=tangents.dtype)
    for place, selected in _selected(xp, x, select, **params):
        chosen = xp.where(selected, spread[place], chosen)
    return chosen


def _select_scatter_evaluate(xp: Any, source: Any, x: Any, select: str, **params: Any) -> Any:
    zero = xp.zeros((), dtype=source.dtype)
    parts = ((place, xp.where(chosen, source, zero)) for place, chosen in _selected(xp, x, select, **params))
    sizes = zip(x.shape, params["padding"], params["base_dilation"], strict=True)
    shape = tuple(dilated(n, step) + low + high for n, (low, high), step in sizes)
    return _gathered(xp, xp.add_parts(shape, source.dtype, parts), params["padding"], params["base_dilation"])


# Samples


def _geometries() -> list[tuple[Shape, Params]]:
    """Shapes and params: disjoint and overlapping windows, a dim without windows, padding, cropping, dilations."""
    found: list[tuple[Any, ...]] = [
        ((4, 6), (2, 3), (2, 3), ((0, 0), (0, 0)), (1, 1), (1, 1)),
        ((2, 5), (1, 3), (1, 2), ((0, 0), (1, 1)), (1, 1), (1, 1)),
        ((3, 4), (2, 2), (1, 1), ((1, 0), (0, 1)), (1, 1), (1, 1)),
        ((4, 3), (2, 2), (2, 1), ((1, 1), (0, 1)), (1, 2), (1, 1)),
        ((6, 4), (3, 2), (1, 2), ((0, 1), (0, 0)), (1, 1), (2, 1)),
        ((6, 2), (2, 1), (1, 1), ((-1, -2), (0, 0)), (1, 1), (1, 1)),
        ((6,), (6,), (1,), ((5, 0),), (1,), (1,)),
    ]
    names = ("window", "strides", "padding", "base_dilation", "window_dilation")
    return [(shape, dict(zip(names, params, strict=True))) for shape, *params in found]


def _window_samples() -> list[Sample]:
    return [Sample((Operand(shape),), dict(params)) for shape, params in _geometries()]


def _select_samples(first_has_windows: bool) -> Callable[[], list[Sample]]:
    def samples() -> list[Sample]:
        found = []
        for index, (shape, params) in enumerate(_geometries()):
            first = window_counts(shape, **params) if first_has_windows else shape
            given = {"select": ("max", "min")[index % 2], **params}
            found.append(Sample((Operand(first), Operand(shape, low=1.0, high=4.0)), given))
        return found

    return samples


# The ops


def _sum_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    """Window sums of the cotangent: element ``i`` is in the windows ``o`` with ``o s + k step = low + i base``.

    Counting ``k`` from the window's end, these are the places of a window over the cotangent dilated by ``s``.
    """
    ct, operand = cts[0], inputs[0].type
    if operand.size == 0 or ct.size == 0:  # type: ignore[union-attr]
        return [zeros(operand)]
    padding = []
    for n, count, w, s, (low, _), base, step in zip(
        operand.shape,
        ct.shape,  # type: ignore[union-attr]
        params["window"],
        params["strides"],
        params["padding"],
        params["base_dilation"],
        params["window_dilation"],
        strict=True,
    ):
        before = dilated(w, step) - 1 - low
        padding.append((before, dilated(n, base) + dilated(w, step) - 1 - before - dilated(count, s)))
    return [
        reduce_window_sum(
            ct,
            window=params["window"],
            strides=params["base_dilation"],
            padding=tuple(padding),
            base_dilation=params["strides"],
            window_dilation=params["window_dilation"],
        )
    ]


reduce_window_sum: Op = define_op(
    "reduce_window_sum",
    type=_reduce_window_type("reduce_window_sum", dtypes.NUMBERS),
    factors=_window_factors,
    linear=Linearity.ADDS,
    jvp=linear_jvp,
    transpose=_sum_transpose,
    batch=_window_batch,
    split=Split(Across.WINDOWED, "sum"),
    fusion=Fusion.ALONE,
    evaluate=_sum_evaluate,
    cost=_window_cost,
    dtypes=dtypes.NUMBERS,
    samples=_window_samples,
)

reduce_window_max: Op = define_op(
    "reduce_window_max",
    type=_reduce_window_type("reduce_window_max", dtypes.ALL),
    factors=_window_factors,
    linear=Linearity.NONE,
    jvp=Derivatives(lambda t, out, x, **params: select_and_gather_add(t, x, select="max", **params)),
    transpose=not_linear("reduce_window_max"),
    batch=_window_batch,
    split=Split(Across.WINDOWED, "max"),
    fusion=Fusion.ALONE,
    evaluate=lambda xp, x, **params: _reduce_windows(xp, x, xp.maximum, lowest(x.dtype), **params),
    cost=_window_cost,
    dtypes=ORDERED,
    samples=_window_samples,
)

reduce_window_min: Op = define_op(
    "reduce_window_min",
    type=_reduce_window_type("reduce_window_min", dtypes.ALL),
    factors=_window_factors,
    linear=Linearity.NONE,
    jvp=Derivatives(lambda t, out, x, **params: select_and_gather_add(t, x, select="min", **params)),
    transpose=not_linear("reduce_window_min"),
    batch=_window_batch,
    split=Split(Across.WINDOWED, "min"),
    fusion=Fusion.ALONE,
    evaluate=lambda xp, x, **params: _reduce_windows(xp, x, xp.minimum, highest(x.dtype), **params),
    cost=_window_cost,
    dtypes=ORDERED,
    samples=_window_samples,
)


def elements_of_windows(
    x: Value, fill: Any, window: Shape, strides: Shape, padding: Pairs, base_dilation: Shape, window_dilation: Shape
) -> Iterator[Value]:
    """For each place in a window, the elements of all windows there; ``fill`` stands around and between those of x."""
    low, high = (tuple(pair[n] for pair in padding) for n in (0, 1))
    wide = pad(x, np.asarray(fill).astype(x.dtype), low=low, high=high, interior=tuple(n - 1 for n in base_dilation))
    reach = [(w - 1) * d for w, d in zip(window, window_dilation, strict=True)]
    for place in np.ndindex(*window):
        starts = tuple(p * d for p, d in zip(place, window_dilation, strict=True))
        limits = tuple(n - r + start for n, r, start in zip(wide.shape, reach, starts, strict=True))
        yield slice_(wide, starts=starts, limits=limits, strides=tuple(strides))


def best_so_far(values: Iterable[Value], select_by: str) -> Iterator[tuple[Value, Value]]:
    """Of arrays one by one, the largest (smallest) elements so far, and where the last one has them; NaN is ahead."""
    better = gt if select_by == "max" else lt
    best = None
    for value in values:
        if best is None:
            best = value
            yield best, eq(zeros(value.type), 0)
            continue
        first_nan = and_(ne(value, value), eq(best, best))
        ahead = or_(better(value, best), first_nan)
        best = choose(ahead, value, best)
        yield best, ahead


def _select_in_parts(t: Value, x: Value, select: str, **params: Any) -> Value:
    """The companion of the largest (smallest) element of each window, the first of equal ones."""
    worst = lowest(x.dtype) if select == "max" else highest(x.dtype)
    best = best_so_far(elements_of_windows(x, worst, **params), select)
    found = None
    for other, (_, ahead) in zip(elements_of_windows(t, 0, **params), best, strict=True):
        found = other if found is None else choose(ahead, other, found)
    return found


select_and_gather_add: Op = define_op(
    "select_and_gather_add",
    type=_select_type("select_and_gather_add", first_has_windows=False),
    factors=_window_factors,
    linear=linear_in(0, does=Does.MOVES),
    jvp=linear_in_first_jvp,
    transpose=lambda op, cts, inputs, params: [select_and_scatter_add(cts[0], inputs[1], **params), None],
    batch=_window_batch,
    split=Split(Across.WINDOWED),
    in_parts=_select_in_parts,
    fusion=Fusion.ALONE,
    evaluate=_select_gather_evaluate,
    cost=_window_cost,
    dtypes=REALS,
    samples=_select_samples(first_has_windows=False),
)

select_and_scatter_add: Op = define_op(
    "select_and_scatter_add",
    type=_select_type("select_and_scatter_add", first_has_windows=True),
    factors=_scatter_factors,
    linear=linear_in(0, does=Does.ADDS),
    jvp=linear_in_first_jvp,
    transpose=lambda op, cts, inputs, params: [select_and_gather_add(cts[0], inputs[1], **params), None],
    batch=_scatter_batch,
    split=Split(Across.UNWINDOWED),
    fusion=Fusion.ALONE,
    evaluate=_select_scatter_evaluate,
    cost=_window_cost,
    dtypes=REALS,
    samples=_select_samples(first_has_windows=True),
)
