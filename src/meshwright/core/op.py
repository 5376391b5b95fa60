"""What an op is: one object that holds every rule about it.

Rules are written with the same functions users call, so a rule applied to traced values extends the program being
traced, and applied to concrete ones computes. A rule that cannot be is ``No("reason")``; one left out fails at import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, wraps
from importlib import import_module
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from meshwright.core.dtypes import ALL, DType
from meshwright.core.factors import Factors, pointwise
from meshwright.core.facts import (
    BLOCKS,
    Across,
    ExplicitFacts,
    Fusion,
    FusionRule,
    Memory,
    MemoryRule,
    Split,
    Structure,
    fusion_by_factors,
)
from meshwright.core.linearity import LinearGroup, LinearRule, groups_of
from meshwright.core.linearity import Linearity as Linearity
from meshwright.core.linearity import Types as Types
from meshwright.core.program import Eqn, Params, Var
from meshwright.core.signature import signature_of
from meshwright.core.source import here
from meshwright.core.trace import apply
from meshwright.core.types import Shape, TensorType, Variance, union
from meshwright.errors import ShapeError, VarianceError

Value = Any  # a traced or concrete value


class No(NamedTuple):
    """A rule that does not exist, and why; the reason ends an error message."""

    reason: str


class NotLinear(Exception):
    """A transpose rule needs the value of an operand in which the function is to be linear."""


@dataclass(frozen=True, slots=True)
class Linear:
    """Stands, in a transpose rule, for an operand the op is linear in: its value is unknown, its type is not."""

    type: TensorType

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def ndim(self) -> int:
        return self.type.ndim

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotLinear


class Cost(NamedTuple):
    """Work of one call: floating-point (or integer) operations, and bytes read and written."""

    flops: float
    nbytes: float


class Runs(NamedTuple):
    """How often an equation runs one of its regions, None if only a run can tell; whether it runs another instead."""

    times: int | None = 1
    or_another: bool = False


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
PruneRule = Callable[[Eqn, Sequence[bool]], Eqn]
RunsRule = Callable[[Eqn, str], Runs]
RecomputeRule = Callable[[Eqn, Sequence[bool], Callable[..., Any]], tuple[Eqn, Eqn, Sequence[Var]]]
ReachRule = Callable[[Eqn, Sequence[bool]], tuple[bool, ...]]
StackRule = Callable[[str, int, Value, bool, Params], tuple[Value, bool]]


@dataclass(frozen=True, eq=False)
class Op:
    """An operation and all its rules.

    - ``type(*types, **params)``: the type of the result, or a tuple of types for several results. Its annotations say
      how many operands and which params the op takes (``core.signature``); others are refused before it is asked.
    - ``factors(operands, results, params)``: the factor rule, or ``No``.
    - ``linear``: in which groups of operands the op is linear: for most ops one of ``Linearity``, else a rule
      ``linear(operands, results, params)``; ``groups`` asks it.
    - ``jvp(op, primals, tangents, params) -> (outs, out_tangents)``; a tangent that is zero is None.
    - ``linearize``: as ``jvp``, but tangents may live in a program of their own; region ops need a rule of their own.
    - ``transpose(op, cotangents, inputs, params) -> cotangents of inputs``; linear inputs come as ``Linear``.
    - ``batch(op, size, args, batched, params) -> (outs, batched)``; a batched value has the batch as dim 0.
    - ``evaluate(xp, *arrays, **params)``: the value, on any array namespace.
    - ``cost(operands, results, params)``: work on those types.
    - ``localize(params, operands, results)``: the params of the same op on smaller shards of those types.
    - ``variance``: whether operands must agree in variance, or the type rule decides.
    - ``stack(axis, size, x, stacked, params) -> (out, stacked)``: a collective, when the devices along one of its axes
      are rows of an array (dim 0, if ``stacked``); None for every other op.
    - ``prune(eqn, live)``: an equation with a region without the results that are not ``live``, or None.
    - ``runs(eqn, name)``: how often an equation runs its region of that name.
    - ``reaches(eqn, marked)``: which results of an equation with a region depend on the operands that are ``marked``;
      None if every result depends on every operand.
    - ``recompute(eqn, wanted, split)``: an equation with a region as one that also returns what is kept inside, one
      that takes that and computes the ``wanted`` results again, and what is kept; None if it all is computed again.
    - ``fusion``: how it fuses (``core.facts``), or a rule for that; None where it follows from the factor rule and the
      cost. ``memory``: where its results lie, or a rule for that. ``fusion_of`` and ``memory_of`` ask.
    - ``split``: what devices do where a dim is split that it looks across.
    - ``structure``: what it is in the structure of a program, None for most ops.
    - ``collective``: what kind of collective it is (``all_reduce``, …), None for every other op.
    - ``calls``: the param that holds a program which it only runs, None for every other op.
    - ``stablehlo``: what StableHLO calls it (``stablehlo.sine``, ``chlo.erf``), if it is elementwise and has no params.
      ``in_parts(*operands, **params)``: its results in terms of ops that StableHLO and HLO have, where they lack it. An
      op that has neither is a custom call.
    - ``effects``: whether it does more than compute its results, so that it runs even if nothing reads them.
    - ``word``: what people call it (a ``dot_general`` is a matmul); its name, where that is what they say.
    - ``dtypes``: what an operand without a dtype of its own may be; ``samples()``: calls to test the op with.
    """

    name: str
    type: TypeRule
    factors: FactorRule | No
    linear: Linearity | LinearRule
    jvp: JvpRule | No
    linearize: JvpRule | No
    transpose: TransposeRule | No
    batch: BatchRule | No
    evaluate: Callable[..., Any]
    cost: CostRule
    localize: LocalizeRule
    variance: Variance
    stack: StackRule | None
    prune: PruneRule | None
    runs: RunsRule
    reaches: ReachRule | None
    recompute: RecomputeRule | None
    fusion: Fusion | FusionRule | None
    memory: Memory | MemoryRule
    split: Split
    structure: Structure | None
    stablehlo: str | None
    in_parts: Callable[..., Any] | None
    collective: str | None
    calls: str | None
    effects: bool
    word: str
    dtypes: tuple[DType, ...]
    samples: Callable[[], Sequence[Sample]]

    def __call__(self, *args: Value, **params: Any) -> Any:
        return apply(self, args, params)

    def groups(self, operands: Types, results: Types, params: Params) -> tuple[LinearGroup, ...]:
        """The groups of operands that may be partial sums together on these types; the results then are, too."""
        return groups_of(self.linear, operands, results, params)

    def __eq__(self, other: object) -> bool:
        """An op is itself, and answers to its name: ``eqn.op == "add"``."""
        return self is other or (other.__class__ is str and self.name == other)

    def __hash__(self) -> int:
        return hash(self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return registered_op, (self.name,)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<op {self.name}>"


def fusion_of(eqn: Eqn) -> Fusion:
    """How an equation fuses with its neighbours."""
    fusion, factors = eqn.op.fusion, eqn.op.factors
    if isinstance(fusion, Fusion):
        return fusion
    if fusion is None and isinstance(factors, No):
        return Fusion.ALONE
    operands, results = tuple(a.type for a in eqn.inputs), tuple(v.type for v in eqn.outputs)
    return _fusion(eqn.op, operands, results, tuple(eqn.params.items()))


def is_contraction(op: Op, operands: Types, results: Types, params: Params) -> bool:
    """Whether an op runs at the rate of matrix products on these types."""
    if isinstance(op.fusion, Fusion) or (op.fusion is None and isinstance(op.factors, No)):
        return op.fusion is Fusion.CONTRACTION
    return _fusion(op, tuple(operands), tuple(results), tuple(params.items())) is Fusion.CONTRACTION


@lru_cache(maxsize=8192)
def _fusion(op: Op, operands: Types, results: Types, params: tuple[tuple[str, Any], ...]) -> Fusion:
    given = dict(params)
    if callable(op.fusion):
        return op.fusion(operands, results, given)
    assert not isinstance(op.factors, No)
    rule = op.factors(operands, results, given)
    return fusion_by_factors(rule, op.cost(operands, results, given).flops, results)


def is_elementwise(eqn: Eqn) -> bool:
    """Whether each element of the results of an equation is made of those at its place in the operands."""
    op = eqn.op
    if op.factors is pointwise or isinstance(op.factors, No):
        return op.factors is pointwise
    operands, results = tuple(a.type for a in eqn.inputs), tuple(v.type for v in eqn.outputs)
    return _elementwise(op, operands, results, tuple(eqn.params.items()))


@lru_cache(maxsize=8192)
def _elementwise(op: Op, operands: Types, results: Types, params: tuple[tuple[str, Any], ...]) -> bool:
    assert not isinstance(op.factors, No)
    return op.factors(operands, results, dict(params)).elementwise


def memory_of(eqn: Eqn) -> Memory:
    """Where the results of an equation lie."""
    memory = eqn.op.memory
    if isinstance(memory, Memory):
        return memory
    return memory([a.type for a in eqn.inputs], [v.type for v in eqn.outputs], eqn.params)


class Registry(dict[str, Op]):
    """All ops by name. Those that need meshes and specs are loaded when they are first asked for."""

    LATE: ClassVar[dict[str, str]] = {
        "shard_map": "meshwright.transform.regions.shard_map",
        "sharding_constraint": "meshwright.ops.placement",
    }

    def __missing__(self, name: str) -> Op:
        if name not in self.LATE:
            raise KeyError(name)
        import_module(self.LATE[name])
        return self[name]

    def find(self, name: str) -> Op | None:
        """The op of this name, if there is one."""
        return self[name] if name in self or name in self.LATE else None


REGISTRY = Registry()


def registered_op(name: str) -> Op:
    """The op of a name, as a process that reads a pickled program has it."""
    return REGISTRY[name]


def same_params(params: Params, operands: Types, results: Types) -> Params:
    """Localize rule of an op none of whose params is a size."""
    return params


def once(eqn: Eqn, name: str) -> Runs:
    """Rule of an op that runs each of its regions once."""
    return Runs()


def define_op(
    name: str,
    *,
    type: TypeRule,
    factors: FactorRule | No,
    linear: Linearity | LinearRule,
    jvp: JvpRule | No,
    transpose: TransposeRule | No,
    batch: BatchRule | No,
    evaluate: Callable[..., Any],
    cost: CostRule,
    samples: Callable[[], Sequence[Sample]],
    localize: LocalizeRule = same_params,
    linearize: JvpRule | No | None = None,
    variance: Variance = Variance.EQUAL,
    stack: StackRule | None = None,
    prune: PruneRule | None = None,
    runs: RunsRule = once,
    reaches: ReachRule | None = None,
    recompute: RecomputeRule | None = None,
    fusion: Fusion | FusionRule | None = None,
    memory: Memory | MemoryRule = Memory.SHARED,
    split: Split = BLOCKS,
    structure: Structure | None = None,
    stablehlo: str | None = None,
    in_parts: Callable[..., Any] | None = None,
    collective: str | None = None,
    calls: str | None = None,
    effects: bool = False,
    word: str = "",
    dtypes: tuple[DType, ...] = ALL,
    registry: dict[str, Op] | None = None,
    kind: Callable[..., Op] = Op,
    **more: Any,
) -> Op:
    """Make an op and enter it in a registry: that of all ops, if none is named. A ``kind`` of op with fields of its own
    takes ``more``. Without a ``linearize`` rule, the jvp rule serves.

    The type rule of an op without regions is asked once for the same types and params.
    """
    entered = REGISTRY if registry is None else registry
    if name in entered:
        raise ValueError(f"op {name!r} is defined twice")
    facts = ExplicitFacts(
        linear is Linearity.EACH,
        split.across is Across.JOINED,
        split.across is Across.EXTREME,
        split.across is Across.UNWINDOWED,
        structure is Structure.CONSTRAINT,
    )
    plain = _with_layout(name, linear, factors, type, facts) if variance is Variance.EQUAL else type
    rule = _with_signature(name, plain)
    op = kind(
        name=name,
        type=rule if isinstance(factors, No) else lru_cache(maxsize=4096)(rule),
        factors=factors,
        linear=linear,
        jvp=jvp,
        linearize=linearize or jvp,
        transpose=transpose,
        batch=batch,
        evaluate=evaluate,
        cost=cost,
        localize=localize,
        variance=variance,
        stack=stack,
        prune=prune,
        runs=runs,
        reaches=reaches,
        recompute=recompute,
        fusion=fusion,
        memory=memory,
        split=split,
        structure=structure or (Structure.COLLECTIVE if stack is not None else None),
        stablehlo=stablehlo,
        in_parts=in_parts,
        collective=collective,
        calls=calls,
        effects=effects,
        word=word or name,
        dtypes=dtypes,
        samples=samples,
        **more,
    )
    entered[name] = op
    return op


def _with_signature(name: str, rule: TypeRule) -> TypeRule:
    """The type rule of an op that is asked for what it says it takes, and for nothing else."""

    @wraps(rule)
    def typed(*types: TensorType, **params: Any) -> TensorType | tuple[TensorType, ...]:
        fault = signature_of(rule).fault(name, len(types), params)
        if fault:
            raise ShapeError(f"{name} cannot be called so.", where=here(), why=fault, fix=f"{name}({_call(rule)})")
        return rule(*types, **params)

    return typed


def _call(rule: TypeRule) -> str:
    """How an op with a type rule is called."""
    least, most, params, _ = signature_of(rule)
    operands = ["x", "y", "z", "w"][:least] if least <= 4 else ["…"]
    return ", ".join([*operands, *["…"] * (most is None), *(f"{param}=…" for param in params)])


def _with_layout(
    name: str, linear: Linearity | LinearRule, factors: FactorRule | No, rule: TypeRule, facts: ExplicitFacts
) -> TypeRule:
    """The type rule of a first-order op from its rule for plain types: operands agree in what they vary over, results
    vary likewise, a partial sum is handed on by what is linear, and shardings follow the factor rule."""

    @wraps(rule)
    def typed(*types: TensorType, **params: Any) -> TensorType | tuple[TensorType, ...]:
        split = any(t.sharding is not None for t in types) or params.get("out_sharding") is not None
        if not split and not any(t.varying or t.unreduced for t in types):
            return rule(*types, **params)
        varying = union(t.varying for t in types)
        if any(t.varying != varying for t in types):
            raise VarianceError(
                f"{name} cannot take {', '.join(t.short() for t in types)}.",
                where=here(),
                why="its operands differ in the mesh axes they vary over",
                fix=_lift_fix(types, varying),
            )
        plain = [t.with_(varying=(), unreduced=(), sharding=None) for t in types]
        found = rule(*plain, **params)
        results = found if isinstance(found, tuple) else (found,)
        unreduced: tuple[str, ...] = ()
        if any(t.unreduced for t in types):
            unreduced = _unreduced_axes(name, groups_of(linear, plain, results, params), types)
        if split:
            from meshwright.sharding.explicit import result_layouts  # no program without a mesh needs to load it

            asked = "out_sharding" in signature_of(rule).params
            layouts = result_layouts(name, factors, facts, asked, types, results, params)
            results = tuple(
                t.with_(varying=varying, unreduced=union((unreduced, layout.unreduced)), sharding=layout.sharding)
                for t, layout in zip(results, layouts, strict=True)
            )
        else:
            results = tuple(t.with_(varying=varying, unreduced=unreduced) for t in results)
        return results if isinstance(found, tuple) else results[0]

    return typed


def _lift_fix(types: Types, varying: tuple[str, ...]) -> str:
    number, t = next((n, t) for n, t in enumerate(types) if t.varying != varying)
    missing = tuple(axis for axis in varying if axis not in t.varying)
    return f"lift operand {number}, {t.short()}: lax.pbroadcast(x, {(missing[0] if len(missing) == 1 else missing)!r})"


def _unreduced_axes(name: str, groups: Sequence[LinearGroup], types: Types) -> tuple[str, ...]:
    """The axes over which the result of an op is still to be summed."""
    unreduced = tuple(n for n, t in enumerate(types) if t.unreduced)
    axes = {types[n].unreduced for n in unreduced}
    if len(axes) == 1 and any(group.operands == unreduced for group in groups):
        return axes.pop()
    raise VarianceError(
        f"{name} cannot take {', '.join(t.short() for t in types)}.",
        where=here(),
        why=f"each device holds a summand of an unreduced value, and {_why_not_linear(name, groups, len(types))}",
        fix="sum it first: mw.reshard(x, mw.P())",
    )


def _why_not_linear(name: str, groups: Sequence[LinearGroup], count: int) -> str:
    """In which operands an op is linear, in words."""
    if not groups:
        return f"{name} of the sum is not the sum of {name}"
    if len(groups) == count > 1:
        return f"{name} takes one operand that is a partial sum"
    found = [group.operands for group in groups]
    if found == [tuple(range(count))]:
        return f"{name} takes operands that are partial sums over the same axes"
    if found == [(0,)]:
        return f"{name} is linear in its first operand alone"
    listed = " or ".join(" and ".join(map(str, operands)) for operands in found)
    return f"{name} takes operands {listed} that are partial sums over the same axes, and no others"
