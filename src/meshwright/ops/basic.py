"""The ops other rules are made of: add, neg, mul, convert, and the rearrangements with their duals.

``broadcast_in_dim`` and ``reduce_sum`` are each other's transpose, and ``reshape`` and ``transpose`` their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd, prod
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.dtypes import DType
from meshwright.core.factors import FactorBuilder, Factors, pointwise
from meshwright.core.facts import Fusion, Memory
from meshwright.core.op import Cost, Linear, Linearity, NotLinear, Op, Operand, Sample, Types, Value, define_op
from meshwright.core.program import Params
from meshwright.core.trace import Array, make_varying
from meshwright.core.types import OutSharding, Shape, TensorType
from meshwright.ops.layout import laid_out
from meshwright.ops.rules import (
    Ufunc,
    bad_operands,
    keep_weak,
    made_of,
    move_cost,
    pointwise_cost,
    pointwise_samples,
    pointwise_type,
    traffic,
)

# Rules made of ops


class Derivatives:
    """The jvp of an op with one result from one function per operand: ``f(t, out, *primals, **params)``.

    ``None`` instead of a function says the op is locally constant in that operand.
    """

    def __init__(self, *functions: Callable[..., Value] | None) -> None:
        self.functions = functions

    def __call__(
        self, op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
    ) -> tuple[list[Value], list[Value | None]]:
        out = op(*primals, **params)
        total: Value | None = None
        for function, tangent in zip(self.functions, tangents, strict=True):
            if tangent is not None and function is not None:
                term = function(tangent, out, *primals, **params)
                if term.ndim < out.ndim:
                    term = broadcast_scalar(term, out.shape)
                total = term if total is None else add(total, term)
        return [out], [total]


def linear_jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    """An op jointly linear in all operands: the tangent of the result is the op of the tangents."""
    out = op(*primals, **params)
    if all(t is None for t in tangents):
        return [out], [None]
    full = [zeros_like(x) if t is None else t for x, t in zip(primals, tangents, strict=True)]
    return [out], [op(*full, **params)]


def pointwise_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    """The op on operands made equal in shape again, batch first."""
    rank = max(x.ndim - b for x, b in zip(args, batched, strict=True))
    aligned = []
    for x, is_batched in zip(args, batched, strict=True):
        inner = x.ndim - is_batched
        if (is_batched and inner == rank) or (not is_batched and inner == 0):
            aligned.append(x)
        else:
            shape = next((y.shape[b:] for y, b in zip(args, batched, strict=True) if y.ndim - b == rank), ())
            dims = tuple(range(0 if is_batched else 1, x.ndim + (0 if is_batched else 1)))
            aligned.append(broadcast_in_dim(x, shape=(size, *shape), dims=dims))
    outs = op(*aligned, **params)
    outs = list(outs) if isinstance(outs, tuple) else [outs]
    return outs, [True] * len(outs)


def scalar_like(x: Value, value: float) -> Value:
    """A rank-0 value of ``x``'s dtype."""
    return Array(np.asarray(value, x.type.dtype), TensorType((), x.type.dtype, True))


def zeros_like(x: Value) -> Value:
    """Zeros of ``x``'s type."""
    return zeros(x.type)


def zeros(type: TensorType) -> Value:
    """Zeros of a type; not stored, whatever the size."""
    return _filled(type, np.zeros((), type.dtype))


def nothing_to_add(type: TensorType) -> Value:
    """What changes no number that it is added to; 0.0 would change -0.0."""
    return _filled(type, additive_identity(type.dtype))


def additive_identity(dtype: DType) -> Any:
    """The number of a dtype that changes no other that it is added to: of floats, -0.0."""
    zero = np.zeros((), dtype)
    return zero if dtype == dtypes.BOOL else np.asarray(-zero)


def _filled(type: TensorType, number: Any) -> Value:
    one = Array(number, TensorType((), type.dtype, type.weak))
    whole = make_varying(one if type.ndim == 0 else broadcast_in_dim(one, shape=type.shape, dims=()), type.varying)
    return whole if type.sharding is None else laid_out(whole, type)


def broadcast_scalar(x: Value, shape: tuple[int, ...]) -> Value:
    """A rank-0 value at every place of ``shape``."""
    return broadcast_in_dim(x, shape=shape, dims=()) if shape else x


def unbroadcast(ct: Value, operand: Linear) -> Value:
    """The cotangent of a rank-0 operand that met arrays of higher rank: the sum of all."""
    if operand.type.ndim == ct.ndim:
        return ct
    return reduce_sum(ct, axes=tuple(range(ct.ndim)))


def number_in(ct: Value, other: Value) -> Value:
    """A cotangent that is to meet another operand: if it is one number at every place of that, the number."""
    found = made_of(broadcast_in_dim, ct)
    return found[0] if found is not None and found[0].ndim == 0 and other.ndim == ct.ndim else ct


# Arithmetic


def _add_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    return [unbroadcast(cts[0], x) if isinstance(x, Linear) else None for x in inputs]


add: Op = define_op(
    "add",
    type=pointwise_type("add", 2, dtypes.ALL),
    factors=pointwise,
    linear=Linearity.ADDS,
    jvp=Derivatives(lambda t, out, x, y: t, lambda t, out, x, y: t),
    transpose=_add_transpose,
    batch=pointwise_batch,
    evaluate=Ufunc("add"),
    cost=pointwise_cost(),
    samples=pointwise_samples(2),
    stablehlo="stablehlo.add",
)


def _mul_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    x, y = inputs
    if isinstance(x, Linear):
        return [unbroadcast(mul(number_in(cts[0], y), y), x), None]
    return [None, unbroadcast(mul(x, number_in(cts[0], x)), y)]


mul: Op = define_op(
    "mul",
    type=pointwise_type("mul", 2, dtypes.ALL),
    factors=pointwise,
    linear=Linearity.EACH,
    jvp=Derivatives(lambda t, out, x, y: mul(t, y), lambda t, out, x, y: mul(x, t)),
    transpose=_mul_transpose,
    batch=pointwise_batch,
    evaluate=Ufunc("multiply"),
    cost=pointwise_cost(),
    samples=pointwise_samples(2),
    stablehlo="stablehlo.multiply",
)

neg: Op = define_op(
    "neg",
    type=pointwise_type("neg", 1, dtypes.NUMBERS),
    factors=pointwise,
    linear=Linearity.JOINTLY,
    jvp=linear_jvp,
    transpose=lambda op, cts, inputs, params: [neg(cts[0])],
    batch=pointwise_batch,
    evaluate=Ufunc("negative"),
    cost=pointwise_cost(),
    dtypes=dtypes.NUMBERS,
    samples=pointwise_samples(1),
    stablehlo="stablehlo.negate",
)


def _convert_jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    out = op(*primals, **params)
    if tangents[0] is None or not dtypes.is_inexact(params["dtype"]):
        return [out], [None]
    return [out], [convert(tangents[0], dtype=params["dtype"], weak=params["weak"])]


def _convert_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    source = inputs[0].type
    if dtypes.is_inexact(source.dtype) and not dtypes.is_inexact(params["dtype"]):
        raise NotLinear  # it rounds
    return [convert(cts[0], dtype=source.dtype, weak=source.weak)]


def _convert_evaluate(xp: Any, x: Any, dtype: Any, weak: bool) -> Any:
    if dtypes.is_complex(x.dtype) and not dtypes.is_complex(dtype):
        x = xp.real(x)
    if dtypes.holds_integers(dtype) and not (dtypes.holds_integers(x.dtype) or x.dtype == dtypes.BOOL):
        return _to_integer(xp, x, dtype)
    return xp.astype(x, dtype)


def _to_integer(xp: Any, x: Any, dtype: Any) -> Any:
    """Toward zero; what does not fit becomes the nearest integer that does, and NaN becomes 0."""
    limits = dtypes.integer_limits(dtype)
    low, high = float(limits.min), float(int(limits.max) + 1)  # powers of two, so exact
    x = xp.astype(x, dtypes.FLOAT32) if x.dtype.itemsize < 4 else x
    whole = xp.astype(xp.where((x >= low) & (x < high), x, xp.zeros_like(x)), dtype)
    whole = xp.where(x >= high, xp.asarray(limits.max, dtype=dtype), whole)
    return xp.where(x < low, xp.asarray(limits.min, dtype=dtype), whole)


def _convert_type(x: TensorType, dtype: dtypes.DType, weak: bool) -> TensorType:
    if x.dtype != dtype and dtypes.KEY in (x.dtype, dtype):
        raise bad_operands("convert", [x], "random keys are no numbers", "random.key_data(keys), their words")
    return TensorType(x.shape, dtype, weak)


def _convert_fusion(operands: Types, results: Types, params: Params) -> Fusion:
    return Fusion.VIEW if operands[0].dtype == results[0].dtype else Fusion.CHEAP


def _convert_memory(operands: Types, results: Types, params: Params) -> Memory:
    before = operands[0].dtype
    return Memory.SHARED if before == results[0].dtype or dtypes.is_complex(before) else Memory.FRESH


convert: Op = define_op(
    "convert",
    type=_convert_type,
    factors=pointwise,
    linear=Linearity.MOVES,
    jvp=_convert_jvp,
    transpose=_convert_transpose,
    batch=pointwise_batch,
    memory=_convert_memory,
    fusion=_convert_fusion,
    evaluate=_convert_evaluate,
    cost=pointwise_cost(),
    samples=lambda: [
        Sample((Operand((2, 4)),), {"dtype": dtype, "weak": False})
        for dtype in map(dtypes.SHORT_NAMES.__getitem__, ("f32", "bf16", "i32", "c64", "bool", "u8", "i64"))
    ],
)

# broadcast_in_dim and reduce_sum


def _broadcast_type(x: TensorType, shape: Shape, dims: tuple[int, ...]) -> TensorType:
    fits = len(dims) == x.ndim and all(
        0 <= d < len(shape) and n in (1, shape[d]) for n, d in zip(x.shape, dims, strict=False)
    )
    if not fits or list(dims) != sorted(set(dims)):
        raise bad_operands(
            "broadcast_in_dim",
            [x],
            f"its dims, placed at {dims}, do not fit into {shape}",
            "give one increasing position per dim; a dim keeps its size or grows from 1",
        )
    return keep_weak(x, shape)


def _broadcast_factors(operands: Types, results: Types, params: Params) -> Factors:
    build = FactorBuilder(operands, results)
    source = {d: n for n, d in enumerate(params["dims"])}
    for dim, size in enumerate(results[0].shape):
        places = [(1, dim)]
        if dim in source and operands[0].shape[source[dim]] == size:
            places.append((0, source[dim]))
        elif dim in source:
            build.add(1, (0, source[dim]))
        build.add(size, *places)
    return build.build()


def _broadcast_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    ct, operand, dims = cts[0], inputs[0].type, params["dims"]
    added = tuple(d for d in range(ct.ndim) if d not in dims)  # type: ignore[union-attr]
    grown = tuple(d for n, d in zip(operand.shape, dims, strict=True) if n != params["shape"][d])
    if added or grown:
        ct = reduce_sum(ct, axes=tuple(sorted(added + grown)))
    return [reshape(ct, shape=operand.shape) if grown else ct]


def _broadcast_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    dims = (0, *(d + 1 for d in params["dims"]))
    return [op(args[0], shape=(size, *params["shape"]), dims=dims)], [True]


def _broadcast_evaluate(xp: Any, x: Any, shape: Shape, dims: tuple[int, ...]) -> Any:
    kept = [1] * len(shape)
    for n, d in zip(x.shape, dims, strict=True):
        kept[d] = n
    return xp.broadcast_to(xp.reshape(x, tuple(kept)), shape)


def _broadcast_fusion(operands: Types, results: Types, params: Params) -> Fusion:
    return Fusion.VIEW if operands[0].size == results[0].size else Fusion.CHEAP


broadcast_in_dim: Op = define_op(
    "broadcast_in_dim",
    type=_broadcast_type,
    factors=_broadcast_factors,
    linear=Linearity.MOVES,
    jvp=linear_jvp,
    transpose=_broadcast_transpose,
    batch=_broadcast_batch,
    fusion=_broadcast_fusion,
    evaluate=_broadcast_evaluate,
    cost=move_cost,
    localize=lambda params, operands, results: {**params, "shape": results[0].shape},
    samples=lambda: [
        Sample((Operand((4,)),), {"shape": (2, 4), "dims": (1,)}),
        Sample((Operand((2, 1)),), {"shape": (2, 3, 4), "dims": (0, 2)}),
        Sample((Operand(()),), {"shape": (2, 3), "dims": ()}),
    ],
)


def reduced_shape(op: str, x: TensorType, axes: tuple[int, ...]) -> Shape:
    """The shape left after dropping ``axes``, which must be increasing dims of ``x``."""
    if list(axes) != sorted(set(axes)) or any(not 0 <= a < x.ndim for a in axes):
        raise bad_operands(
            op, [x], f"axes {axes} are not increasing dims of a rank-{x.ndim} array", f"axes between 0 and {x.ndim - 1}"
        )
    return tuple(n for d, n in enumerate(x.shape) if d not in axes)


def reduce_type(op: str, allowed: Sequence[Any]) -> Callable[..., TensorType]:
    """The type rule of a reduction over ``axes``."""

    def rule(x: TensorType, axes: tuple[int, ...]) -> TensorType:
        if x.dtype not in allowed:
            raise bad_operands(
                op, [x], f"{op} does not take {dtypes.short_name(x.dtype)}", "convert it first: x.astype(…)"
            )
        return keep_weak(x, reduced_shape(op, x, axes))

    return rule


def reduce_factors(combine: str) -> Callable[[Types, Types, Params], Factors]:
    """Reduced dims are factors combined by ``combine``; the others pass through."""

    def rule(operands: Types, results: Types, params: Params) -> Factors:
        build = FactorBuilder(operands, results)
        kept = 0
        for dim, size in enumerate(operands[0].shape):
            if dim in params["axes"]:
                build.add(size, (0, dim), kind="reduced")
            else:
                build.add(size, (0, dim), (1, kept))
                kept += 1
        return build.build(combine, fillable=True)

    return rule


def reduce_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    """A reduction whose axes stand one dim further right."""
    outs = op(*args, **{**params, "axes": tuple(a + 1 for a in params["axes"])})
    outs = list(outs) if isinstance(outs, tuple) else [outs]
    return outs, [True] * len(outs)


def reduce_cost(operands: Types, results: Types, params: Params) -> Cost:
    """One operation per element read."""
    return Cost(float(operands[0].size), traffic(operands, results))


def reduce_samples() -> list[Sample]:
    """Reductions over no, one, several and all axes."""
    return [Sample((Operand((2, 3, 4)),), {"axes": axes}) for axes in ((1,), (0, 2), (0, 1, 2), ())]


def _reduce_sum_transpose(
    op: Op, cts: Sequence[Value | None], inputs: Sequence[Value | Linear], params: Params
) -> list[Value | None]:
    shape = inputs[0].type.shape
    dims = tuple(d for d in range(len(shape)) if d not in params["axes"])
    return [_repeated(cts[0], shape, dims)]


def _repeated(x: Value, shape: Shape, dims: tuple[int, ...]) -> Value:
    """``x`` at the dims of a shape, and repeated along the others. If it lost dims of size 1 just before, those grow.

        b: f32[2] = reshape a shape=(2,)
        c: f32[2,3] = broadcast_in_dim b dims=(0,) shape=(2, 3)
    ==>
        c: f32[2,3] = broadcast_in_dim a dims=(0, 1) shape=(2, 3)
    """
    found = made_of(reshape, x)
    places = _grown(found[0].shape, x.shape, len(shape), dims) if found is not None else None
    if found is None or places is None:
        return broadcast_in_dim(x, shape=shape, dims=dims)
    return broadcast_in_dim(found[0], shape=shape, dims=places)


def _grown(longer: Shape, shorter: Shape, rank: int, dims: tuple[int, ...]) -> tuple[int, ...] | None:
    """Where the dims of ``longer`` go if those of ``shorter``, which lacks some of size 1, go to ``dims``: as far right
    as they can, as NumPy aligns them. None if the two differ in more, or there is no room."""
    places: list[int] = []
    left, end = len(shorter), rank
    for n in range(len(longer), 0, -1):
        if longer[n - 1] == 1 and n > left and end - 1 > (dims[left - 1] if left else -1):
            end -= 1
        elif left and shorter[left - 1] == longer[n - 1]:
            left -= 1
            end = dims[left]
        else:
            return None
        places.append(end)
    return tuple(reversed(places)) if not left else None


def _reduce_sum_batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    if params.get("out_sharding") is not None:
        spec, mesh = params["out_sharding"]
        params = {**params, "out_sharding": (spec.update((spec.UNCONSTRAINED, *spec.partitions)), mesh)}
    return reduce_batch(op, size, args, batched, params)


def _reduce_sum(xp: Any, x: Any, axes: tuple[int, ...], bare: bool = False, out_sharding: Any = None) -> Any:
    """A sum starts from 0.0, so that it is never -0.0, or if it is ``bare``, from nothing."""
    start = {"initial": additive_identity(x.dtype)} if bare and prod(x.shape) else {}
    if dtypes.is_float(x.dtype) and x.dtype.itemsize < 4:  # or 256 ones of bfloat16 and any more would sum to 256
        return xp.sum(x, axis=axes, dtype=dtypes.FLOAT32, **start).astype(x.dtype)
    return xp.sum(x, axis=axes, dtype=x.dtype, **start)


_sum_type = reduce_type("reduce_sum", dtypes.NUMBERS)


def _reduce_sum_type(
    x: TensorType, axes: tuple[int, ...], bare: bool = False, out_sharding: OutSharding | None = None
) -> TensorType:
    return _sum_type(x, axes)


def reduced_memory(operands: Types, results: Types, params: Params) -> Memory:
    """A reduction makes something new, unless it is over no dims."""
    return Memory.FRESH if params["axes"] else Memory.SHARED


reduce_sum: Op = define_op(
    "reduce_sum",
    type=_reduce_sum_type,
    factors=reduce_factors("sum"),
    linear=Linearity.ADDS,
    jvp=linear_jvp,
    transpose=_reduce_sum_transpose,
    batch=_reduce_sum_batch,
    memory=reduced_memory,
    evaluate=_reduce_sum,
    cost=reduce_cost,
    dtypes=dtypes.NUMBERS,
    samples=reduce_samples,
)

# reshape and transpose


def _reshape_type(x: TensorType, shape: Shape) -> TensorType:
    if prod(shape) != x.size or any(n < 0 for n in shape):
        raise bad_operands(
            "reshape", [x], f"{x.size} elements do not fill {shape}", f"mnp.reshape(x, …) with {x.size} elements in all"
        )
    return keep_weak(x, shape)


def _reshape_factors(operands: Types, results: Types, params: Params) -> Factors:
    """Walk both shapes from the left, cutting them into the largest factors they share.

    Where the cuts of the two sides stop lining up, they share one more factor, which moves between neighbours; then
    each side gets factors of its own, which must be whole, until the cuts line up again.
    """
    build = FactorBuilder(operands, results)
    if operands[0].size:
        _cut_both(build, (operands[0].shape, results[0].shape))
    return build.build()


def _cut_both(build: FactorBuilder, shapes: tuple[Shape, Shape]) -> None:
    at = [0, 0]  # the dim each side is in
    left = [0, 0]  # what is left of it; 0 before its first factor
    done = [1, 1]  # the product of the factors so far

    def take(side: int, size: int) -> tuple[int, int]:
        """``size`` off the dim of one side, whose place is returned."""
        place = (side, at[side])
        done[side] *= size
        left[side] //= size
        if left[side] == 1:
            at[side], left[side] = at[side] + 1, 0
        return place

    while at[0] < len(shapes[0]) or at[1] < len(shapes[1]):
        for side in (0, 1):
            while at[side] < len(shapes[side]) and not left[side]:
                left[side] = shapes[side][at[side]]
                if left[side] == 1:
                    build.add(1, take(side, 1), kind="replicated")
        if not left[0] or not left[1]:
            for side in (0, 1):
                if left[side]:
                    build.add(left[side], take(side, left[side]), kind="replicated")
            continue
        common = gcd(*left)
        if done[0] != done[1]:
            behind = 0 if done[0] < done[1] else 1
            ratio, rest = divmod(done[1 - behind], done[behind])
            if rest or left[behind] % ratio:
                ratio = left[behind] // common if left[behind] > common else left[behind]
            build.add(ratio, take(behind, ratio), kind="replicated")
        elif common > 1:
            build.add(common, take(0, common), take(1, common))
        else:
            build.add(left[0], *(take(side, left[side]) for side in (0, 1)), kind="permuted")


reshape: Op = define_op(
    "reshape",
    type=_reshape_type,
    factors=_reshape_factors,
    linear=Linearity.MOVES,
    jvp=linear_jvp,
    transpose=lambda op, cts, inputs, params: [reshape(cts[0], shape=inputs[0].type.shape)],
    batch=lambda op, size, args, batched, params: ([op(args[0], shape=(size, *params["shape"]))], [True]),
    fusion=Fusion.VIEW,
    evaluate=lambda xp, x, shape: xp.reshape(x, shape),
    cost=move_cost,
    localize=lambda params, operands, results: {"shape": results[0].shape},
    samples=lambda: [
        Sample((Operand((2, 6)),), {"shape": (2, 2, 3)}),
        Sample((Operand((4, 6)),), {"shape": (24,)}),
        Sample((Operand((2, 1, 6)),), {"shape": (4, 3)}),
        Sample((Operand((6,)),), {"shape": (6, 1)}),
    ],
)


def _transpose_type(x: TensorType, permutation: tuple[int, ...]) -> TensorType:
    if sorted(permutation) != list(range(x.ndim)):
        raise bad_operands(
            "transpose",
            [x],
            f"{permutation} is not a permutation of its {x.ndim} dims",
            f"permutation={tuple(reversed(range(x.ndim)))}",
        )
    return keep_weak(x, tuple(x.shape[p] for p in permutation))


def _transpose_factors(operands: Types, results: Types, params: Params) -> Factors:
    build = FactorBuilder(operands, results)
    for dim, source in enumerate(params["permutation"]):
        build.add(results[0].shape[dim], (0, source), (1, dim))
    return build.build()


def inverse(permutation: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes ``permutation``."""
    return tuple(sorted(range(len(permutation)), key=permutation.__getitem__))


transpose: Op = define_op(
    "transpose",
    type=_transpose_type,
    factors=_transpose_factors,
    linear=Linearity.MOVES,
    jvp=linear_jvp,
    transpose=lambda op, cts, inputs, params: [transpose(cts[0], permutation=inverse(params["permutation"]))],
    batch=lambda op, size, args, batched, params: (
        [op(args[0], permutation=(0, *(p + 1 for p in params["permutation"])))],
        [True],
    ),
    fusion=Fusion.PERMUTATION,
    evaluate=lambda xp, x, permutation: xp.permute_dims(x, permutation),
    cost=move_cost,
    samples=lambda: [
        Sample((Operand((2, 3, 4)),), {"permutation": (2, 0, 1)}),
        Sample((Operand((2, 3)),), {"permutation": (1, 0)}),
        Sample((Operand(()),), {"permutation": ()}),
    ],
)


def move_dim(x: Value, source: int, target: int) -> Value:
    """``x`` with dim ``source`` at position ``target``, the others in order."""
    if source == target:
        return x
    order = [d for d in range(x.ndim) if d != source]
    order.insert(target, source)
    return transpose(x, permutation=tuple(order))
