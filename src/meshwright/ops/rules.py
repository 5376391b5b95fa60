"""Rules that many ops share: each is written once here and named where an op is defined."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from meshwright.core.dtypes import BOOL, DType, short_name
from meshwright.core.op import Cost, Linear, No, Op, Operand, Sample, Types, Value
from meshwright.core.program import Params, Var
from meshwright.core.signature import declare
from meshwright.core.source import here
from meshwright.core.trace import Tracer
from meshwright.core.types import TensorType
from meshwright.errors import ShapeError


class Ufunc:
    """Evaluation by the namespace's function of this name, elementwise and with an optional ``out`` on NumPy."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, xp: Any, *arrays: Any) -> Any:
        return getattr(xp, self.name)(*arrays)


class Negative(NamedTuple):
    """What a transpose rule returns for the negative of ``x``: where something is added to it, a difference."""

    x: Value


def made_of(op: Op, x: Value) -> tuple[Value, Params] | None:
    """The operand and the params of the op of one operand that a traced value was made by, if it was made by this one.

    Transposes that undo it take the operand, so that a program transposed twice is what it was.
    """
    made = x.builder.made_by(x.variable) if isinstance(x, Tracer) and x.type.sharding is None else None
    if made is None or made.op is not op or not isinstance(made.inputs[0], Var):
        return None
    return Tracer(x.builder, made.inputs[0]), made.params


def bad_operands(op: str, types: Types, why: str, fix: str) -> ShapeError:
    """The error of a type rule."""
    shown = ", ".join(t.short() for t in types)
    return ShapeError(f"{op} cannot take {shown}.", where=here(), why=why, fix=fix)


def check_dtype(op: str, types: Types, dtype: DType, allowed: Sequence[DType]) -> None:
    """Refuse a dtype the op does not take."""
    if dtype not in allowed:
        accepted = ", ".join(short_name(d) for d in allowed)
        raise bad_operands(
            op, types, f"{op} takes {accepted}", f"convert the operand first: x.astype('{allowed[-1].name}')"
        )


def pointwise_type(
    op: str,
    arity: int,
    allowed: Sequence[DType],
    result: Callable[[DType], DType] | None = None,
    params: Mapping[str, Any] = MappingProxyType({}),
) -> Callable[..., TensorType]:
    """Operands of one dtype and one shape, rank-0 ones excepted, give that shape (and dtype, unless ``result``).

    ``params`` are those the op has, with what they may be.
    """
    permitted = frozenset(allowed)

    def rule(*types: TensorType, **given: Any) -> TensorType:
        first = types[0]
        if first.dtype not in permitted:
            check_dtype(op, types, first.dtype, allowed)
        same = first
        for t in types[1:]:
            if t is same:
                continue
            if t.dtype != first.dtype:
                raise bad_operands(op, types, "the operands differ in dtype", "x.astype(y.dtype)")
            if t.shape != same.shape:
                if same.ndim == 0:
                    same = t if same.weak or not t.weak else t.with_(weak=False)
                    continue
                if t.ndim:
                    raise bad_operands(
                        op,
                        types,
                        "the operands differ in shape and neither is a scalar",
                        "mnp.broadcast_to(x, y.shape), or the function of the same name in meshwright.numpy",
                    )
            if same.weak and not t.weak:
                same = same.with_(weak=False)
        if result is not None:
            dtype = result(first.dtype)
            return same if dtype == same.dtype else same.with_(dtype=dtype, weak=same.weak and dtype != BOOL)
        return same

    declare(rule, arity, params)
    return rule


def linear_in_first_jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    """An op linear in its first operand, whose other operands are integers."""
    out = op(*primals, **params)
    return [out], [None if tangents[0] is None else op(tangents[0], *primals[1:], **params)]


def zero_jvp(
    op: Op, primals: Sequence[Value], tangents: Sequence[Value | None], params: Params
) -> tuple[list[Value], list[Value | None]]:
    """An op that is constant almost everywhere (comparisons, floor, …)."""
    outs = op(*primals, **params)
    outs = list(outs) if isinstance(outs, tuple) else [outs]
    return outs, [None] * len(outs)


def pointwise_cost(flops: float = 1.0) -> Callable[[Types, Types, Params], Cost]:
    """``flops`` per element of the result, every operand read and every result written once."""

    def rule(operands: Types, results: Types, params: Params) -> Cost:
        return Cost(flops * results[0].size, traffic(operands, results))

    return rule


def traffic(operands: Types, results: Types) -> float:
    """Bytes read and written when every tensor is touched once."""
    return float(sum(t.nbytes for t in operands) + sum(t.nbytes for t in results))


def move_cost(operands: Types, results: Types, params: Params) -> Cost:
    """An op that moves data and computes nothing: what it returns is read and written."""
    return Cost(0.0, 2.0 * sum(t.nbytes for t in results))


def pointwise_samples(
    arity: int, low: float = -2.0, high: float = 2.0, params: dict[str, Any] | None = None
) -> Callable[[], list[Sample]]:
    """Operands of equal shape, and (for several operands) a scalar beside an array."""

    def samples() -> list[Sample]:
        given = params or {}
        found = [Sample(tuple(Operand((2, 4), None, low, high) for _ in range(arity)), given)]
        if arity > 1:
            mixed = (Operand((2, 4), None, low, high), *(Operand((), None, low, high) for _ in range(arity - 1)))
            found.append(Sample(mixed, given))
            found.append(Sample(tuple(reversed(mixed)), given))
        return found

    return samples


def is_linear(x: Any) -> bool:
    return isinstance(x, Linear)


def not_linear(name: str) -> No:
    return No(f"{name} is not linear; differentiate it first, then transpose the derivative")


def keep_weak(like: TensorType, shape: tuple[int, ...]) -> TensorType:
    """The type of a rearrangement of ``like``."""
    return TensorType(shape, like.dtype, like.weak)
