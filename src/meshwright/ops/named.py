"""The tensor ops that device programs have beside those of the registry: by their names in other systems.

Each is its factor rule, its value by a namespace of functions (NumPy's, or those that are traced), and what transforms
and simulations must know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from inspect import Signature as PythonSignature
from inspect import signature as python_signature
from math import prod
from typing import Any, NamedTuple

from meshwright.core.dtypes import is_inexact, short_name
from meshwright.core.factors import Factors, names
from meshwright.core.facts import Fusion, Memory
from meshwright.core.linearity import Linearity, Types
from meshwright.core.op import REGISTRY, Cost, No, Op, define_op
from meshwright.core.types import TensorType, Variance
from meshwright.errors import ShapeError

Params = Mapping[str, Any]
Like = Callable[[int, int], int]
OPS: dict[str, Op] = {}
Rule = Callable[[Sequence[TensorType], Params], str]


class IndependentOperands(NamedTuple):
    """Operands and results of an op, by number, that have nothing to do with its other operands and results."""

    operands: tuple[int, ...]
    results: tuple[int, ...]


class OpStep(NamedTuple):
    """A part of what an op does; its operands are those of the op, then the results of earlier steps."""

    op: str
    operands: tuple[int, ...]
    params: Params
    name: str


def first_operand(operands: int, result: int) -> int:
    return 0


@dataclass(frozen=True, eq=False)
class DeviceOp(Op):
    """An op of device programs alone.

    ``shares`` are the independent parts of a call with so many operands, such as the updates of several weights;
    ``result_count`` is how many results a call has that is one part. ``like`` is the operand whose dtype a result has,
    and whose memory if it takes none, given how many operands there are and which result it is. ``steps`` do
    the same as this op and can be split more; the last gives the result.
    """

    shares: Callable[[int], tuple[IndependentOperands, ...]] | None = None
    result_count: int = 1
    like: Like = first_operand
    steps: Callable[[Sequence[TensorType], Params], tuple[OpStep, ...]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return find_op, (self.name,)

    def results_of(self, operands: int) -> int:
        """How many results a call has."""
        return self.result_count if self.shares is None else sum(len(x.results) for x in self.shares(operands)) or 1


def define_device_op(name: str, **rules: Any) -> DeviceOp:
    """Make an op of device programs; most rules that a traced program needs are for the ops of the registry alone."""
    none = No(f"{name} is an op of device programs")
    given: dict[str, Any] = {"linear": Linearity.NONE, "jvp": none, "transpose": none, "batch": none}
    given |= {"factors": none, "evaluate": none, "cost": lambda operands, results, params: Cost(0.0, 0.0)}
    given |= {"samples": tuple, "variance": Variance.OWN, "fusion": Fusion.ALONE}
    made = define_op(name, **{**given, **rules}, registry=OPS, kind=DeviceOp)
    assert isinstance(made, DeviceOp)
    return made


def find_op(name: str) -> Op | None:
    """The op of exactly this name, if there is one."""
    return OPS.get(name) or REGISTRY.find(name)


def _named(
    name: str,
    text: Rule,
    value: Callable[..., Any],
    flops: float = 1.0,
    *,
    like: Like = first_operand,
    floats: bool = False,
    **facts: Any,
) -> DeviceOp:
    """An op by its factor rule for given ranks and params, and its value by a namespace.

    The rule ends in the factors that must be whole on a device, as in ``i j -> i j | j``. ``like`` is the operand whose
    dtype a result has, given how many operands there are and which result it is; an op of ``floats`` refuses integers.
    ``flops`` are those of one point of the space that the factors span.
    """

    def type(*types: TensorType, **params: Any) -> tuple[TensorType, ...]:
        rule = _factors(name, text(types, params), types)
        if floats and not is_inexact(types[0].dtype):
            raise ShapeError(
                f"{name} takes floats.",
                why=f"its first operand is {short_name(types[0].dtype)}",
                fix=f"convert(x, dtype=f32) first, then {name}(x, …)",
            )
        shapes = [tuple(prod(rule.sizes[factor] for factor in dim) for dim in dims) for dims in rule.results]
        return tuple(TensorType(shape, types[like(len(types), n)].dtype) for n, shape in enumerate(shapes))

    def evaluate(xp: Any, *arrays: Any, **params: Any) -> tuple[Any, ...]:
        found = value(xp, *arrays, **params)
        results = found if isinstance(found, tuple) else (found,)
        return tuple(y.astype(arrays[like(len(arrays), n)].dtype) for n, y in enumerate(results))

    def factors(operands: Types, results: Types, params: Params) -> Factors:
        return _factors(name, text(operands, params), operands)

    def cost(operands: Types, results: Types, params: Params) -> Cost:
        points = _points(factors(operands, results, params))
        return Cost(flops * points, float(sum(t.nbytes for t in (*operands, *results))))

    keywords = [p for p in python_signature(value).parameters.values() if p.kind is p.KEYWORD_ONLY]
    operands = Parameter("types", Parameter.VAR_POSITIONAL, annotation=TensorType)
    type.__signature__ = PythonSignature([operands, *(p.replace(annotation=Any) for p in keywords)])  # type: ignore[attr-defined]
    return define_device_op(name, type=type, factors=factors, evaluate=evaluate, cost=cost, like=like, **facts)


def _factors(name: str, written: str, types: Sequence[TensorType]) -> Factors:
    text, _, whole = written.partition("|")
    text = text.strip()
    sides = text.split("->")[0].split(",")
    sizes: dict[str, int] = {}
    if len(sides) != len(types):
        raise ShapeError(
            f"{name} takes {len(sides)} operands, not {len(types)}.", why=f"its rule is {text}", fix=f"{name}(…)"
        )
    for side, t in zip(sides, types, strict=True):
        letters = side.split()
        wrong = next((x for x, n in zip(letters, t.shape, strict=False) if sizes.setdefault(x, n) != n), None)
        if wrong is not None or len(letters) != t.ndim:
            shown = ", ".join(str(_show(t)) for t in types)
            why = f"{wrong} has two sizes" if wrong else f"{_show(t)} stands where {side.strip() or 'a number'} does"
            raise ShapeError(
                f"{name} cannot take {shown}.",
                why=f"its dims are {text}, and {why}",
                fix=f"{name} of tensors whose dims agree",
            )
    return Factors.parse(text, sizes, replicated=whole.split())


def _show(t: TensorType) -> str:
    return f"({', '.join(map(str, t.shape))})"


def _points(rule: Factors) -> int:
    """How many points an op iterates over; parts of it that share no factor, such as updates of weights, do in turn."""
    parts: list[set[str]] = []
    for dims in (*rule.operands, *rule.results):
        here = {factor for dim in dims for factor in dim}
        joined = [part for part in parts if part & here]
        parts = [part for part in parts if not part & here] + [here.union(*joined)] if here else parts
    return sum(prod(rule.sizes[factor] for factor in part) for part in parts) or 1


def _rank(t: TensorType) -> str:
    return " ".join(names(t.ndim))


def _matmul(types: Sequence[TensorType], params: Params) -> str:
    """``b i k, k j -> b i j``; a right operand of higher rank has the batch dims of the left."""
    x, y = types
    if x.ndim < 1 or y.ndim not in (2, x.ndim) or (y.ndim > 2 and y.ndim != x.ndim):
        raise ShapeError(
            f"MatMul cannot take {x.short()}, {y.short()}.",
            why="it takes a matrix on the right, or equal batch dims on both sides",
            fix="dot_general(x, y, contract=…, batch=…, dtype=None)",
        )
    batch = [f"b{n}" for n in range(x.ndim - 1 - (y.ndim > 1 and x.ndim > 1))]
    rows = ["i"] if x.ndim > 1 else []
    shared = batch if y.ndim > 2 else []
    return f"{' '.join([*batch, *rows, 'k'])}, {' '.join([*shared, 'k', 'j'])} -> {' '.join([*batch, *rows, 'j'])}"


def _same(operands: int) -> Rule:
    """Elementwise on so many tensors; all but the first may be numbers."""

    def rule(types: Sequence[TensorType], params: Params) -> str:
        shown = _rank(types[0]) if types else "i"
        rest = [" " if t.ndim == 0 else shown for t in types[1:]]
        return f"{', '.join([shown, *rest, *[shown] * operands][:operands])} -> {shown}"

    return rule


def _updates(taken: int, given: int, more: int = 0) -> Rule:
    """The rule of an optimizer: ``taken`` tensors of each weight, then ``more`` numbers, give ``given`` of each.

    All weights come first, then all their gradients, and so on; each weight has factors of its own.
    """

    def rule(types: Sequence[TensorType], params: Params) -> str:
        weights = types[: max((len(types) - more) // taken, 1)]
        sides = [" ".join(f"{letter}_{n}" for letter in names(t.ndim)) for n, t in enumerate(weights)]
        return f"{', '.join([*sides * taken, *[' '] * more])} -> {', '.join(sides * given)}"

    return rule


def _weights(taken: int, given: int, more: int = 0) -> Callable[[int], tuple[IndependentOperands, ...]]:
    """Each weight with its gradient and state; the numbers after them belong to all."""

    def shares(operands: int) -> tuple[IndependentOperands, ...]:
        count = (operands - more) // taken
        numbers = tuple(range(count * taken, operands))
        return tuple(
            IndependentOperands((*range(n, count * taken, count), *numbers), tuple(range(n, count * given, count)))
            for n in range(count)
        )

    return shares


def _softmax_rule(types: Sequence[TensorType], params: Params) -> str:
    ndim = types[0].ndim if types else 1
    axis = params.get("axis", -1)
    if not isinstance(axis, int) or not -ndim <= axis < ndim:
        raise ShapeError(f"Softmax has no axis {axis}.", why=f"its operand has {ndim} dims", fix="Softmax(x, axis=-1)")
    letters = names(ndim)
    return f"{' '.join(letters)} -> {' '.join(letters)} | {letters[axis]}"


def _softmax(xp: Any, x: Any, *, axis: int = -1) -> Any:
    parts = xp.exp(x - xp.max(x, axis=axis, keepdims=True))
    return parts / xp.sum(parts, axis=axis, keepdims=True)


def _layer_norm_rule(types: Sequence[TensorType], params: Params) -> str:
    """Over the last dim, with or without a scale and a bias along it."""
    letters = names(types[0].ndim if types and types[0].ndim else 1)
    more = min(max(len(types) - 1, 0), 2)
    return f"{', '.join([' '.join(letters), *[letters[-1]] * more])} -> {' '.join(letters)} | {letters[-1]}"


def _layer_norm(xp: Any, x: Any, scale: Any = 1.0, bias: Any = 0.0, *, epsilon: float = 1e-5) -> Any:
    centred = x - xp.mean(x, axis=-1, keepdims=True)
    return centred / xp.sqrt(xp.mean(xp.square(centred), axis=-1, keepdims=True) + epsilon) * scale + bias


def _gemm_rule(types: Sequence[TensorType], params: Params) -> str:
    """A matmul; onto a third operand, it needs the summed dim whole, lest each part adds it."""
    left, right = ("k i" if params.get("transA") else "i k"), ("j k" if params.get("transB") else "k j")
    if len(types) < 3:
        return f"{left}, {right} -> i j"
    return f"{left}, {right}, {' '.join(['i', 'j'][2 - min(types[2].ndim, 2) :]) or ' '} -> i j | k"


_PLAIN_GEMM = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}


def _gemm(
    xp: Any, a: Any, b: Any, c: Any = 0.0, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0
) -> Any:
    return alpha * xp.matmul(a.T if transA else a, b.T if transB else b) + beta * c


def _gemm_steps(types: Sequence[TensorType], params: Params) -> tuple[OpStep, ...]:
    """A matmul, and a sum with the third operand after it."""
    if len(types) < 3 or any(params.get(name, plain) != plain for name, plain in _PLAIN_GEMM.items()):
        return ()
    product, shape = OpStep("MatMul", (0, 1), {}, "product"), (types[0].shape[0], types[1].shape[1])
    dims = tuple(range(2 - types[2].ndim, 2))
    rows = OpStep("broadcast_in_dim", (2,), {"shape": shape, "dims": dims}, "rows")
    return (product, rows, OpStep("add", (3, 4), {}, "")) if len(dims) < 2 else (product, OpStep("add", (3, 2), {}, ""))


def _adam(
    xp: Any, *xs: Any, lr: float = 0.001, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8
) -> tuple[Any, ...]:
    """Weights, gradients, first and second moments, and how many steps there have been, this one included."""
    *tensors, t = xs
    count = len(tensors) // 4
    new: list[tuple[Any, Any, Any]] = []
    for w, g, m, v in zip(*(tensors[n * count : (n + 1) * count] for n in range(4)), strict=True):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        scaled = (m / (1 - beta1**t)) / (xp.sqrt(v / (1 - beta2**t)) + eps)
        new.append((w - lr * scaled, m, v))
    return tuple(x for column in zip(*new, strict=True) for x in column)


def _matmul_grad(xp: Any, x: Any, w: Any, dy: Any) -> tuple[Any, Any]:
    return dy @ w.T, x.T @ dy


_named("MatMul", _matmul, lambda xp, x, y: xp.matmul(x, y), 2.0, linear=Linearity.EACH, fusion=Fusion.CONTRACTION)
_named(
    "MatMulGrad",
    lambda types, params: "i k, k j, i j -> i k, k j",
    _matmul_grad,
    4.0,
    like=lambda operands, result: result,
    result_count=2,
    fusion=Fusion.CONTRACTION,
)
_named("Relu", _same(1), lambda xp, x: xp.maximum(x, 0), fusion=Fusion.ELEMENTWISE)
_named("ReluGrad", _same(2), lambda xp, x, dy: xp.where(x > 0, dy, 0).astype(dy.dtype), fusion=Fusion.ELEMENTWISE)
_named(
    "Gelu", _same(1), lambda xp, x: x * 0.5 * (1 + xp.erf(x * 0.5**0.5)), 8.0, floats=True, fusion=Fusion.ELEMENTWISE
)
_named("Softmax", _softmax_rule, _softmax, 5.0, floats=True)
_named("LayerNorm", _layer_norm_rule, _layer_norm, 8.0, floats=True)
_named("Gemm", _gemm_rule, _gemm, 2.0, steps=_gemm_steps)
_named("Loss", _same(3), lambda xp, y, z, n: xp.square(y - z) / n, 3.0, floats=True)
_named("LossGrad", _same(3), lambda xp, y, z, n: 2 * (y - z) / n, 3.0, floats=True)
_named(
    "SGDOptimizer",
    _updates(2, 1),
    lambda xp, *xs, lr=0.01: tuple(w - lr * g for w, g in zip(xs[: len(xs) // 2], xs[len(xs) // 2 :], strict=True)),
    2.0,
    shares=_weights(2, 1),
    like=lambda operands, result: result,
    memory=Memory.IN_PLACE,
    floats=True,
)
_named(
    "AdamOptimizer",
    _updates(4, 3, 1),
    _adam,
    12.0,
    shares=_weights(4, 3, 1),
    # Gradients stand between the weights and their moments.
    like=lambda operands, result: result if result < (operands - 1) // 4 else result + (operands - 1) // 4,
    memory=Memory.IN_PLACE,
    floats=True,
)
IDENTITY = _named("Identity", _same(1), lambda xp, x: x, 0.0, linear=Linearity.MOVES)
