"""What an op is: one object that holds every rule about it.

Rules are written with the same functions users call, so a rule applied to traced values extends the program being
traced, and applied to concrete ones computes. A rule that cannot be is ``No("reason")``; one left out fails at import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from meshwright.core.dtypes import ALL, DType
from meshwright.core.factors import Factors
from meshwright.core.program import Params
from meshwright.core.trace import apply
from meshwright.core.types import Shape, TensorType

Value = Any  # a traced or concrete value
Types = Sequence[TensorType]


class No(NamedTuple):
    """A rule that does not exist, and why; the reason ends an error message."""

    reason: str


class Linear(NamedTuple):
    """Stands, in a transpose rule, for an operand the op is linear in: its value is unknown, its type is not."""

    type: TensorType


class Linearity(Enum):
    """In which operands an op is linear: what may owe a sum, and what may be transposed."""

    NONE = "none"
    JOINTLY = "jointly"  # f(x + x', y + y') = f(x, y) + f(x', y'), as add, concatenate
    EACH = "each"  # in each operand while the others are held, as mul, dot_general
    FIRST = "first"  # in the first operand only, as div, dynamic_slice


class Cost(NamedTuple):
    """Work of one call: floating-point (or integer) operations, and bytes read and written."""

    flops: float
    nbytes: float


class Operand(NamedTuple):
    """An operand to test an op with: a shape, a dtype (None: each the op takes), and the range of its values."""

    shape: Shape
    dtype: DType | None = None
    low: float = -2.0
    high: float = 2.0


class Sample(NamedTuple):
    """One call to test an op with. ``prepare`` turns drawn arrays into valid operands (say, a positive matrix)."""

    operands: tuple[Operand, ...]
    params: Mapping[str, Any] = MappingProxyType({})
    prepare: Callable[[list[Any]], list[Any]] | None = None


TypeRule = Callable[..., TensorType | tuple[TensorType, ...]]
FactorRule = Callable[[Types, Types, Params], Factors]
JvpRule = Callable[["Op", Sequence[Value], Sequence[Value | None], Params], tuple[list[Value], list[Value | None]]]
TransposeRule = Callable[["Op", Sequence[Value | None], Sequence[Value | Linear], Params], list[Value | None]]
BatchRule = Callable[["Op", int, Sequence[Value], Sequence[bool], Params], tuple[list[Value], list[bool]]]
CostRule = Callable[[Types, Types, Params], Cost]
LocalizeRule = Callable[[Params, Types, Types], Params]


@dataclass(frozen=True, eq=False)
class Op:
    """An operation and all its rules.

    - ``type(*types, **params)``: the type of the result, or a tuple of types for several results.
    - ``factors(operands, results, params)``: the factor rule, or ``No``.
    - ``linear``: in which operands the op is linear.
    - ``jvp(op, primals, tangents, params) -> (outs, out_tangents)``; a tangent that is zero is None.
    - ``linearize``: as ``jvp``, but tangents may live in a program of their own; region ops need a rule of their own.
    - ``transpose(op, cotangents, inputs, params) -> cotangents of inputs``; linear inputs come as ``Linear``.
    - ``batch(op, size, args, batched, params) -> (outs, batched)``; a batched value has the batch as dim 0.
    - ``evaluate(xp, *arrays, **params)``: the value, on any array namespace.
    - ``cost(operands, results, params)``: work on those types.
    - ``localize(params, operands, results)``: the params of the same op on smaller shards of those types.
    - ``dtypes``: what an operand without a dtype of its own may be; ``samples()``: calls to test the op with.
    """

    name: str
    type: TypeRule
    factors: FactorRule | No
    linear: Linearity
    jvp: JvpRule | No
    linearize: JvpRule | No
    transpose: TransposeRule | No
    batch: BatchRule | No
    evaluate: Callable[..., Any]
    cost: CostRule
    localize: LocalizeRule
    dtypes: tuple[DType, ...]
    samples: Callable[[], Sequence[Sample]]

    def __call__(self, *args: Value, **params: Any) -> Any:
        return apply(self, args, params)

    def __repr__(self) -> str:
        return f"<op {self.name}>"


REGISTRY: dict[str, Op] = {}


def same_params(params: Params, operands: Types, results: Types) -> Params:
    """Localize rule of an op none of whose params is a size."""
    return params


def define_op(
    name: str,
    *,
    type: TypeRule,
    factors: FactorRule | No,
    linear: Linearity,
    jvp: JvpRule | No,
    transpose: TransposeRule | No,
    batch: BatchRule | No,
    evaluate: Callable[..., Any],
    cost: CostRule,
    samples: Callable[[], Sequence[Sample]],
    localize: LocalizeRule = same_params,
    linearize: JvpRule | No | None = None,
    dtypes: tuple[DType, ...] = ALL,
) -> Op:
    """Make an op and enter it in the registry. Without a ``linearize`` rule, the jvp rule serves.

    The type rule of an op without regions is asked once for the same types and params.
    """
    if name in REGISTRY:
        raise ValueError(f"op {name!r} is defined twice")
    rule = type if isinstance(factors, No) else lru_cache(maxsize=4096)(type)
    op = Op(
        name, rule, factors, linear, jvp, linearize or jvp, transpose, batch, evaluate, cost, localize, dtypes, samples
    )
    REGISTRY[name] = op
    return op
