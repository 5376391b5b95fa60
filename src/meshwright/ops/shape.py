"""Ops that cut, join and place: reverse, concatenate, slice, pad, iota.

``slice`` and ``pad`` are each other's transpose, and a ``concatenate`` is undone by slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.core import dtypes
from meshwright.core.factors import FactorBuilder, Factors
from meshwright.core.facts import Across, Fusion, Memory, Split
from meshwright.core.op import Cost, Linear, Linearity, No, Op, Operand, Sample, Types, Value, define_op
from meshwright.core.program import Params
from meshwright.core.types import Shape, TensorType
from meshwright.ops.basic import broadcast_in_dim, inverse, linear_jvp, mul, reduce_sum, reshape, transpose, zeros
from meshwright.ops.elementwise import select
from meshwright.ops.rules import bad_operands, keep_weak, made_of, move_cost, zero_jvp


def batch_first(x: Value, is_batched: bool, size: int) -> Value:
    """``x`` with the batch as dim 0, repeated if it has none."""
    if is_batched:
        return x
    return broadcast_in_dim(x, shape=(size, *x.shape), dims=tuple(range(1, x.ndim + 1)))


# reverse


def _reverse_type(x: TensorType, dims: tuple[int, ...]) -> TensorType:
    if len(set(dims)) != len(dims) or any(not 0 <= d < x.ndim for d in dims):
        raise bad_operands("reverse", [x], f"{dims} are not distinct dims of it", f"dims={tuple(range(x.ndim))}")
    return x


def _reverse_factors(operands: Types, results: Types, params: Params) -> Factors:
    build = FactorBuilder(operands, results)
    for dim, size in enumerate(operands[0].shape):
        build.add(size, (0, dim), (1, dim), kind="permuted" if dim in params["dims"] else "")
    return build.build()


reverse: Op = define_op(
    "reverse",
    type=_reverse_type,
    factors=_reverse_factors,
    linear=Linearity.MOVES,
    jvp=linear_jvp,
    transpose=lambda op, cts, inputs, params: [reverse(cts[0], **params)],
    batch=lambda op, size, args, batched, params: ([op(args[0], dims=tuple(d + 1 for d in params["dims"]))], [True]),
    split=Split(Across.REVERSED),
    evaluate=lambda xp, x, dims: xp.flip(x, axis=dims),
    cost=move_cost,
    samples=lambda: [
        Sample((Operand((2, 3, 4)),), {"dims": (1,)}),
        Sample((Operand((2, 3, 4)),), {"dims": (2, 0)}),
        Sample((Operand((4,)),), {"dims": ()}),
    ],
)

# concatenate


def _concatenate_type(first: TensorType, *others: TensorType, dim: int) -> TensorType:
    types = (first, *others)
    if not 0 <= dim < first.ndim:
        raise bad_operands("concatenate", types, f"they have no dim {dim}", "dim=0")
    if any(t.dtype != first.dtype for t in types):
        raise bad_operands("concatenate", types, "the operands differ in dtype", "x.astype(y.dtype)")
    if any(t.ndim != first.ndim for t in types):
        raise bad_operands("concatenate", types, "the operands differ in rank", "x[None] adds a dim of size 1")
    if any(t.shape[:dim] != first.shape[:dim] or t.shape[dim + 1 :] != first.shape[dim + 1 :] for t in types):
        raise bad_operands(
            "concatenate",
            types,
            f"they differ in another dim than {dim}",
            "join arrays that differ only in the dim they are joined along",
        )
    joined = sum(t.shape[dim] for t in types)
    weak = all(t.weak for t in types)
    return TensorType((*first.shape[:dim], joined, *first.shape[dim + 1 :]), first.dtype, weak)


def _concatenate_factors(operands: Types, results: Types, params: Params) -> Factors:
    build = FactorBuilder(operands, results)
    whole = "replicated" if len(operands) > 1 else ""
    for dim, size in enumerate(results[0].shape):
        places = [(tensor, dim) for tensor in range(len(operands) + 1)]
        build.add(size, *places, kind=whole if dim == params["dim"] else "")
    return build.build()


def _concatenate_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    ct, dim = cts[0], params["dim"]
    found: list[Value | None] = []
    stop = ct.shape[dim]  # type: ignore[union-attr]
    for x in reversed(inputs):  # the last first, as all is transposed
        start = stop - x.type.shape[dim]
        found.append(slice_along(ct, dim, start, stop) if isinstance(x, Linear) else None)
        stop = start
    return found[::-1]


def _concatenate_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    aligned = [batch_first(x, b, size) for x, b in zip(args, batched, strict=True)]
    return [op(*aligned, dim=params["dim"] + 1)], [True]


concatenate: Op = define_op(
    "concatenate",
    type=_concatenate_type,
    factors=_concatenate_factors,
    linear=Linearity.MOVES,
    jvp=linear_jvp,
    transpose=_concatenate_transpose,
    batch=_concatenate_batch,
    split=Split(Across.JOINED),
    memory=Memory.FRESH,
    fusion=Fusion.ELEMENTWISE,
    evaluate=lambda xp, *arrays, dim: xp.concat(arrays, axis=dim),
    cost=move_cost,
    samples=lambda: [
        Sample((Operand((2, 3)), Operand((4, 3))), {"dim": 0}),
        Sample((Operand((2, 3)), Operand((2, 1)), Operand((2, 2))), {"dim": 1}),
        Sample((Operand((2, 0)), Operand((2, 4))), {"dim": 1}),
        Sample((Operand((4,)),), {"dim": 0}),
    ],
)


def before(op: Op, x: Value, **params: Any) -> Value | None:
    """What ``x`` was before it was rearranged, if the op with these params undoes that; else None."""
    found = made_of(op, x)
    if found is None:
        return None
    operand, done = found
    if op is reverse:
        same = set(done["dims"]) == set(params["dims"])
    elif op is reshape:
        same = operand.shape == params["shape"]
    else:
        same = op is transpose and params["permutation"] == inverse(done["permutation"])
    return operand if same else None


def rearranged(op: Op, x: Value, **params: Any) -> Value:
    """What a reshape or a transpose makes of ``x``; if it undoes one, what ``x`` was before."""
    found = before(op, x, **params)
    return op(x, **params) if found is None else found


# slice and pad


def _slice_type(
    x: TensorType, starts: tuple[int, ...], limits: tuple[int, ...], strides: tuple[int, ...]
) -> TensorType:
    if not len(starts) == len(limits) == len(strides) == x.ndim:
        raise bad_operands(
            "slice", [x], "starts, limits and strides need one entry per dim", f"starts={(0,) * x.ndim}, …"
        )
    for start, limit, stride, size in zip(starts, limits, strides, x.shape, strict=True):
        if not 0 <= start <= limit <= size or stride < 1:
            raise bad_operands(
                "slice",
                [x],
                f"{start}:{limit}:{stride} is not within a dim of size {size}",
                "0 <= start <= limit <= size, stride >= 1",
            )
    bounds = zip(starts, limits, strides, strict=True)
    return keep_weak(x, tuple(-(-(limit - start) // stride) for start, limit, stride in bounds))


def _slice_factors(operands: Types, results: Types, params: Params) -> Factors:
    """Dims that are kept whole pass; of the others, what is next to a cut moves between neighbours."""
    build = FactorBuilder(operands, results)
    for dim, (size, kept) in enumerate(zip(operands[0].shape, results[0].shape, strict=True)):
        build.add(size, (0, dim), (1, dim), kind="" if size == kept else "permuted")
    return build.build()


def _slice_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    ct, shape = cts[0], inputs[0].type.shape
    low, high, interior = [], [], []
    for size, kept, start, stride in zip(shape, ct.shape, params["starts"], params["strides"], strict=True):  # type: ignore[union-attr]
        covered = (kept - 1) * stride + 1 if kept else 0
        low.append(start)
        high.append(size - start - covered)
        interior.append(stride - 1)
    return [pad(ct, 0, low=tuple(low), high=tuple(high), interior=tuple(interior))]


def _slice_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    out = op(args[0], starts=(0, *params["starts"]), limits=(size, *params["limits"]), strides=(1, *params["strides"]))
    return [out], [True]


def _slice_localize(params: Params, operands: Types, results: Types) -> Params:
    """A dim whose local size differs from the params' is one that is not cut: there it is taken whole."""
    starts, limits, strides = list(params["starts"]), list(params["limits"]), list(params["strides"])
    for dim, size in enumerate(results[0].shape):
        if size != -(-(limits[dim] - starts[dim]) // strides[dim]):
            starts[dim], limits[dim], strides[dim] = 0, size, 1
    return {"starts": tuple(starts), "limits": tuple(limits), "strides": tuple(strides)}


slice_: Op = define_op(
    "slice",
    type=_slice_type,
    factors=_slice_factors,
    linear=Linearity.MOVES,
    jvp=linear_jvp,
    transpose=_slice_transpose,
    batch=_slice_batch,
    split=Split(Across.CUT),
    evaluate=lambda xp, x, starts, limits, strides: x[tuple(map(slice, starts, limits, strides))],
    cost=move_cost,
    localize=_slice_localize,
    samples=lambda: [
        Sample((Operand((4, 6)),), {"starts": (1, 0), "limits": (3, 6), "strides": (1, 1)}),
        Sample((Operand((2, 6, 5)),), {"starts": (0, 1, 0), "limits": (2, 6, 5), "strides": (1, 2, 3)}),
        Sample((Operand(()),), {"starts": (), "limits": (), "strides": ()}),
    ],
)


def slice_along(x: Value, dim: int, start: int, stop: int) -> Value:
    """``x[start:stop]`` along one dim."""
    starts, limits = [0] * x.ndim, list(x.shape)
    starts[dim], limits[dim] = start, stop
    return slice_(x, starts=tuple(starts), limits=tuple(limits), strides=(1,) * x.ndim)


def _pad_type(
    x: TensorType, value: TensorType, low: tuple[int, ...], high: tuple[int, ...], interior: tuple[int, ...]
) -> TensorType:
    types = [x, value]
    if value.ndim or value.dtype != x.dtype:
        raise bad_operands("pad", types, "the padding value is a scalar of the array's dtype", "value.astype(x.dtype)")
    if not len(low) == len(high) == len(interior) == x.ndim or any(n < 0 for n in interior):
        raise bad_operands(
            "pad",
            types,
            "low, high and interior need one entry per dim, and interior ones are not negative",
            f"low={(0,) * x.ndim}, high={(0,) * x.ndim}, interior={(0,) * x.ndim}",
        )
    spread = [n + max(n - 1, 0) * i for n, i in zip(x.shape, interior, strict=True)]
    shape = tuple(n + a + b for n, a, b in zip(spread, low, high, strict=True))
    if any(n < 0 for n in shape):
        raise bad_operands(
            "pad", types, f"low={low} and high={high} cut off more than there is", f"low + high >= -{tuple(spread)}"
        )
    return TensorType(shape, x.dtype, x.weak and value.weak)


def _pad_factors(operands: Types, results: Types, params: Params) -> Factors:
    """Dims that are padded or cut move between neighbours; one element has no space between its elements."""
    build = FactorBuilder(operands, results)
    rows = zip(operands[0].shape, params["low"], params["high"], params["interior"], strict=True)
    for dim, (size, low, high, interior) in enumerate(rows):
        kind = "permuted" if low or high or interior else ""
        build.add(size, (0, dim), (2, dim), kind=kind, guarded=bool(low or high or (interior and size > 1)))
    return build.build()


def _pad_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    ct: Value = cts[0]
    x, value = inputs
    found: list[Value | None] = [None, None]
    if isinstance(x, Linear) and min((0, *params["low"], *params["high"])) == 0:  # nothing is cut off
        steps = tuple(n + 1 for n in params["interior"])
        limits = tuple(size - high for size, high in zip(ct.shape, params["high"], strict=True))
        found[0] = slice_(ct, starts=params["low"], limits=limits, strides=steps)
    elif isinstance(x, Linear):
        low, high = (tuple(-n for n in params[side]) for side in ("low", "high"))
        spread = pad(ct, 0, low=low, high=high, interior=(0,) * len(low)) if any(low + high) else ct
        steps = tuple(n + 1 for n in params["interior"])
        found[0] = spread
        if any(params["interior"]):
            found[0] = slice_(spread, starts=(0,) * len(steps), limits=spread.shape, strides=steps)
    if isinstance(value, Linear):
        padding = pad(zeros(x.type.with_(weak=False)), 1, **params)
        found[1] = reduce_sum(mul(ct, padding), axes=tuple(range(ct.ndim)))
    return found


def _pad_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    shifted = {name: (0, *params[name]) for name in ("low", "high", "interior")}
    x = batch_first(args[0], batched[0], size)
    if not batched[1]:
        return [op(x, args[1], **shifted)], [True]
    padded = op(x, 0, **shifted)
    padding = op(zeros(TensorType(x.shape, dtypes.BOOL)), True, **shifted)
    return [select(padding, broadcast_in_dim(args[1], shape=padded.shape, dims=(0,)), padded)], [True]


pad: Op = define_op(
    "pad",
    type=_pad_type,
    factors=_pad_factors,
    linear=Linearity.MOVES,
    jvp=linear_jvp,
    transpose=_pad_transpose,
    batch=_pad_batch,
    split=Split(Across.PADDED),
    evaluate=lambda xp, x, value, low, high, interior: xp.pad_interior(x, value, low, high, interior),
    cost=move_cost,
    samples=lambda: (
        [
            Sample((Operand((2, 3)), Operand(())), {"low": low, "high": high, "interior": interior})
            for low, high, interior in (
                ((0, 1), (0, 2), (0, 0)),
                ((1, 0), (2, 0), (2, 0)),
                ((-1, 0), (1, -2), (0, 1)),
                ((-1, 2), (-1, -2), (1, 2)),
                ((0, -3), (0, 1), (0, 0)),
                ((0, 0), (0, 0), (0, 0)),
            )
        ]
        + [
            Sample((Operand((0, 1)), Operand(())), {"low": (1, 0), "high": (1, 0), "interior": (3, 3)}),
            Sample((Operand(()), Operand(())), {"low": (), "high": (), "interior": ()}),
        ]
    ),
)

# iota


def _iota_type(dtype: dtypes.DType, shape: Shape, dim: int) -> TensorType:
    if dtype not in dtypes.NUMBERS or not 0 <= dim < len(shape) or any(n < 0 for n in shape):
        raise bad_operands(
            "iota", (), f"there is no iota of {dtype} over dim {dim} of {shape}", "mnp.arange(n), or dtype=mnp.int32"
        )
    return TensorType(shape, dtype)


def _iota_factors(operands: Types, results: Types, params: Params) -> Factors:
    build = FactorBuilder(operands, results)
    for dim, size in enumerate(results[0].shape):
        build.add(size, (0, dim), kind="replicated" if dim == params["dim"] else "")
    return build.build()


def _iota_evaluate(xp: Any, dtype: dtypes.DType, shape: Shape, dim: int) -> Any:
    if 0 in shape:  # of which the counted dim may be as long as it likes
        return xp.zeros(shape, dtype=dtype)
    counted = xp.astype(xp.arange(shape[dim]), dtype)
    return xp.broadcast_to(xp.reshape(counted, (-1,) + (1,) * (len(shape) - dim - 1)), shape)


iota: Op = define_op(
    "iota",
    type=_iota_type,
    factors=_iota_factors,
    linear=Linearity.NONE,
    jvp=zero_jvp,
    transpose=No("iota has no operands"),
    batch=No("iota has no operands"),
    split=Split(Across.COUNTED),
    evaluate=_iota_evaluate,
    cost=lambda operands, results, params: Cost(0.0, float(results[0].nbytes)),
    localize=lambda params, operands, results: {**params, "shape": results[0].shape},
    dtypes=dtypes.NUMBERS,
    samples=lambda: (
        [
            Sample((), {"dtype": dtype, "shape": (4,), "dim": 0})
            for dtype in (dtypes.INT8, dtypes.UINT32, dtypes.BFLOAT16, dtypes.FLOAT8_E4M3FN, dtypes.COMPLEX64)
        ]
        + [
            Sample((), {"dtype": dtypes.INT32, "shape": (2, 4, 3), "dim": 1}),
            Sample((), {"dtype": dtypes.FLOAT32, "shape": (2, 3), "dim": 0}),
        ]
    ),
)
