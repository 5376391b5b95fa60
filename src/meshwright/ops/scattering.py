"""The scatters that do not add: scatter_set, scatter_mul, scatter_max, scatter_min.

Where several updates meet in one place they are taken in the order of their index vectors: of a ``scatter_set`` the
last one stays, and it alone has a derivative.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from meshwright.core import dtypes
from meshwright.core.facts import Across, Fusion, Memory, Split
from meshwright.core.linearity import Does, linear_in
from meshwright.core.op import Linear, Linearity, Op, Value, define_op
from meshwright.core.program import Params
from meshwright.core.source import here
from meshwright.core.types import TensorType
from meshwright.errors import DifferentiationError
from meshwright.ops.basic import add, broadcast_in_dim, broadcast_scalar, convert, mul, reshape, scalar_like, zeros
from meshwright.ops.elementwise import div, eq, or_, select
from meshwright.ops.gathering import (
    read_back,
    scatter_add,
    scatter_batch,
    scatter_cost,
    scatter_evaluate,
    scatter_factors,
    scatter_samples,
    scatter_type,
)
from meshwright.ops.rules import not_linear
from meshwright.ops.shape import iota

_ORDERED = tuple(dtype for dtype in dtypes.ALL if not dtypes.is_complex(dtype))


def _filled(type: TensorType, value: float) -> Value:
    return broadcast_scalar(scalar_like(zeros(type.with_(shape=())), value), type.shape)


# scatter_set


def _scatter_set_jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    x, indices, updates = primals
    out, (t, _, t_updates) = op(*primals, **params), tangents
    if t is None and t_updates is None:
        return [out], [None]
    t = zeros(x.type) if t is None else t
    return [out], [op(t, indices, zeros(updates.type) if t_updates is None else t_updates, **params)]


def _last_writers(x: TensorType, indices: Value, updates: TensorType, params: Params) -> Value:
    """Which updates stay: those that find their own number when all have written theirs."""
    window = params["update_window_dims"]
    outer = tuple(u for u in range(updates.ndim) if u not in window)
    shape = tuple(updates.shape[u] for u in outer)
    numbers = reshape(iota(dtype=dtypes.INT32, shape=(prod(shape),), dim=0), shape=shape)
    numbers = broadcast_in_dim(numbers, shape=updates.shape, dims=outer)
    written = scatter_set(zeros(TensorType(x.shape, dtypes.INT32)), indices, numbers, **params)
    return eq(read_back(written, indices, updates, params), numbers)


def _scatter_set_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    ct, (x, indices, updates) = cts[0], inputs
    found: list[Value | None] = [None, None, None]
    if isinstance(x, Linear):
        found[0] = op(ct, indices, zeros(updates.type), **params)
    if isinstance(updates, Linear):
        read = read_back(ct, indices, updates.type, params)
        if not params["unique"]:
            read = select(_last_writers(x.type, indices, updates.type, params), read, zeros(read.type))
        found[2] = read
    return found


scatter_set: Op = define_op(
    "scatter_set",
    type=scatter_type("scatter_set", dtypes.ALL),
    factors=scatter_factors(kind="replicated"),
    linear=linear_in(0, 2, does=Does.MOVES),
    jvp=_scatter_set_jvp,
    transpose=_scatter_set_transpose,
    batch=scatter_batch,
    split=Split(Across.WRITTEN),
    memory=Memory.IN_PLACE,
    fusion=Fusion.ALONE,
    evaluate=scatter_evaluate("set"),
    cost=scatter_cost(0.0),
    samples=scatter_samples,
)

# scatter_mul


def _other_factors(x: Value, indices: Value, updates: Value, params: Params) -> Value:
    """What each update is multiplied by: the place in ``x`` that it meets and all other updates of that place.

    That is the product of all divided by the update, except where there is a zero: there it is the product of the
    nonzero ones for an update that is the only zero, and 0 for the others.
    """
    if params["unique"]:
        return read_back(x, indices, updates.type, params)
    is_zero = eq(updates, 0)
    nonzero = select(is_zero, _filled(updates.type, 1), updates)
    product = read_back(scatter_mul(x, indices, nonzero, **params), indices, updates.type, params)
    counted = convert(is_zero, dtype=dtypes.INT32, weak=False)
    zero_count = scatter_add(zeros(TensorType(x.shape, dtypes.INT32)), indices, counted, **params)
    zero_count = read_back(zero_count, indices, counted.type, params)
    others_nonzero = eq(zero_count, counted)
    return select(others_nonzero, div(product, nonzero), zeros(updates.type))


def _scatter_mul_jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    x, indices, updates = primals
    out, (t, _, t_updates) = op(*primals, **params), tangents
    total = None if t is None else op(t, indices, updates, **params)
    if t_updates is not None:
        term = mul(t_updates, _other_factors(x, indices, updates, params))
        total = scatter_add(zeros(x.type) if total is None else total, indices, term, **params)
    return [out], [total]


def _scatter_mul_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    _, indices, updates = inputs
    if isinstance(updates, Linear):
        raise DifferentiationError(
            "scatter_mul has no transpose in its updates.",
            where=here(),
            why="it multiplies the updates that meet in one place, so it is linear in x alone",
            fix="differentiate it first: mw.vjp(f, updates)",
        )
    return [op(cts[0], indices, updates, **params), None, None]


scatter_mul: Op = define_op(
    "scatter_mul",
    type=scatter_type("scatter_mul", dtypes.NUMBERS),
    factors=scatter_factors(combine="prod", once=True),
    linear=linear_in(0, factors=(2,)),
    jvp=_scatter_mul_jvp,
    transpose=_scatter_mul_transpose,
    batch=scatter_batch,
    split=Split(Across.WRITTEN),
    memory=Memory.IN_PLACE,
    fusion=Fusion.ALONE,
    evaluate=scatter_evaluate("mul"),
    cost=scatter_cost(1.0),
    dtypes=dtypes.NUMBERS,
    samples=lambda: scatter_samples(repeated=dtypes.INT32),
)

# scatter_max and scatter_min


def _scatter_extremum_jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    """The tangent is that of the winner, or the mean of those of all winners."""
    x, indices, updates = primals
    out, (t, _, t_updates) = op(*primals, **params), tangents
    dtype = x.dtype
    won = convert(eq(updates, read_back(out, indices, updates.type, params)), dtype=dtype, weak=False)
    winners = scatter_add(zeros(TensorType(x.shape, dtype)), indices, won, **params)
    kept = convert(or_(eq(x, out), eq(winners, 0)), dtype=dtype, weak=False)
    share = div(_filled(x.type, 1), add(winners, kept))
    total = None if t is None else mul(t, mul(kept, share))
    if t_updates is not None:
        term = mul(t_updates, mul(won, read_back(share, indices, updates.type, params)))
        total = scatter_add(zeros(x.type) if total is None else total, indices, term, **params)
    return [out], [total]


scatter_max: Op = define_op(
    "scatter_max",
    type=scatter_type("scatter_max", _ORDERED),
    factors=scatter_factors(combine="max"),
    linear=Linearity.NONE,
    jvp=_scatter_extremum_jvp,
    transpose=not_linear("scatter_max"),
    batch=scatter_batch,
    split=Split(Across.WRITTEN),
    memory=Memory.IN_PLACE,
    fusion=Fusion.ALONE,
    evaluate=scatter_evaluate("max"),
    cost=scatter_cost(1.0),
    dtypes=_ORDERED,
    samples=scatter_samples,
)

scatter_min: Op = define_op(
    "scatter_min",
    type=scatter_type("scatter_min", _ORDERED),
    factors=scatter_factors(combine="min"),
    linear=Linearity.NONE,
    jvp=_scatter_extremum_jvp,
    transpose=not_linear("scatter_min"),
    batch=scatter_batch,
    split=Split(Across.WRITTEN),
    memory=Memory.IN_PLACE,
    fusion=Fusion.ALONE,
    evaluate=scatter_evaluate("min"),
    cost=scatter_cost(1.0),
    dtypes=_ORDERED,
    samples=scatter_samples,
)
