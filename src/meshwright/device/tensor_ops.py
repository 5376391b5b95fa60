"""Tensor ops of device programs: those of the registry, and the few that have a name of their own here.

Every fact comes from a factor rule. Symbolic dims are given numbers that occur nowhere else, and read back from the
result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from inspect import signature as signature_of
from math import prod
from typing import Any, NamedTuple

import numpy as np

from meshwright.core.dtypes import DType
from meshwright.core.factors import Factors, names, pointwise
from meshwright.core.limits import refuse_impossible
from meshwright.core.linearity import LinearGroup, Linearity, groups_of
from meshwright.core.op import REGISTRY, Cost, No
from meshwright.core.program import Program
from meshwright.core.types import TensorType
from meshwright.device.dims import Dim, Size, Sizes, divide
from meshwright.device.function import Eqn, Number, Operand
from meshwright.device.types import Tensor
from meshwright.engine import compile as _compile  # noqa: F401  (runs the regions of scan and cond)
from meshwright.engine.namespace import NUMPY
from meshwright.errors import MeshwrightError, ShapeError
from meshwright.ops import every as _every  # noqa: F401  (fills the registry)

Arg = tuple[Sizes, DType]
Params = Mapping[str, Any]


class Share(NamedTuple):
    """Operands and results of an op, by number, that have nothing to do with its other operands and results."""

    operands: tuple[int, ...]
    results: tuple[int, ...]


class Named(NamedTuple):
    """An op of device programs alone: its factor rule for given ranks, and its value by a namespace of functions.

    ``shares`` are the independent parts of a call with so many operands, such as the updates of several weights.
    ``like`` is the operand whose dtype a result has, given how many operands there are and which result it is. Results
    of an op ``in_place`` take the memory of operands.
    """

    factors: Callable[[Sequence[TensorType]], str]
    evaluate: Callable[..., Any]
    linear: Linearity
    flops_per_point: float = 1.0
    shares: Callable[[int], tuple[Share, ...]] | None = None
    like: Callable[[int, int], int] = lambda operands, result: 0
    in_place: bool = False
    results: int = 1


def _rank(t: TensorType) -> str:
    return " ".join(names(t.ndim))


def _matmul(types: Sequence[TensorType]) -> str:
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


def _same(operands: int) -> Callable[[Sequence[TensorType]], str]:
    """Elementwise on so many tensors; all but the first may be numbers."""

    def rule(types: Sequence[TensorType]) -> str:
        shown = _rank(types[0]) if types else "i"
        rest = [" " if t.ndim == 0 else shown for t in types[1:]]
        return f"{', '.join([shown, *rest, *[shown] * operands][:operands])} -> {shown}"

    return rule


def _updates(taken: int, given: int, more: int = 0) -> Callable[[Sequence[TensorType]], str]:
    """The rule of an optimizer: ``taken`` tensors of each weight, then ``more`` numbers, give ``given`` of each.

    All weights come first, then all their gradients, and so on; each weight has factors of its own.
    """

    def rule(types: Sequence[TensorType]) -> str:
        weights = types[: max((len(types) - more) // taken, 1)]
        sides = [" ".join(f"{letter}_{n}" for letter in names(t.ndim)) for n, t in enumerate(weights)]
        return f"{', '.join([*sides * taken, *[' '] * more])} -> {', '.join(sides * given)}"

    return rule


def _weights(taken: int, given: int, more: int = 0) -> Callable[[int], tuple[Share, ...]]:
    """Each weight with its gradient and state; the numbers after them belong to all."""

    def shares(operands: int) -> tuple[Share, ...]:
        count = (operands - more) // taken
        numbers = tuple(range(count * taken, operands))
        return tuple(
            Share((*range(n, count * taken, count), *numbers), tuple(range(n, count * given, count)))
            for n in range(count)
        )

    return shares


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


NAMED: dict[str, Named] = {
    "MatMul": Named(_matmul, lambda xp, x, y: xp.matmul(x, y), Linearity.EACH, 2.0),
    "MatMulGrad": Named(
        lambda types: "i k, k j, i j -> i k, k j",
        _matmul_grad,
        Linearity.NONE,
        4.0,
        like=lambda operands, result: result,
        results=2,
    ),
    "Relu": Named(_same(1), lambda xp, x: xp.maximum(x, 0), Linearity.NONE),
    "ReluGrad": Named(_same(2), lambda xp, x, dy: xp.where(x > 0, dy, 0).astype(dy.dtype), Linearity.NONE),
    "Loss": Named(_same(3), lambda xp, y, z, n: xp.square(y - z) / n, Linearity.NONE, 3.0),
    "LossGrad": Named(_same(3), lambda xp, y, z, n: 2 * (y - z) / n, Linearity.NONE, 3.0),
    "SGDOptimizer": Named(
        _updates(2, 1),
        lambda xp, *xs, lr=0.01: tuple(w - lr * g for w, g in zip(xs[: len(xs) // 2], xs[len(xs) // 2 :], strict=True)),
        Linearity.NONE,
        2.0,
        _weights(2, 1),
        like=lambda operands, result: result,
        in_place=True,
    ),
    "AdamOptimizer": Named(
        _updates(4, 3, 1),
        _adam,
        Linearity.NONE,
        12.0,
        _weights(4, 3, 1),
        # Gradients stand between the weights and their moments.
        like=lambda operands, result: result if result < (operands - 1) // 4 else result + (operands - 1) // 4,
        in_place=True,
    ),
    "Identity": Named(_same(1), lambda xp, x: x, Linearity.MOVES, 0.0),
}
_BY_LOWER = {**{name.lower(): name for name in REGISTRY}, **{name.lower(): name for name in NAMED}}
# `gather` is the collective; the op that takes windows out of a tensor goes by another name.
RENAMED = {"gather": "take_windows"}
_ORIGINAL = {new: old for old, new in RENAMED.items()}


def tensor_op(name: str) -> str | None:
    """The name of a tensor op as programs print it, whatever the case; None for anything else."""
    if name in _ORIGINAL or name in NAMED or (name in REGISTRY and name not in RENAMED):
        return name
    found = _BY_LOWER.get(name.lower())
    return found if found not in RENAMED else None


def registry_name(name: str) -> str:
    """The registry's name of a tensor op."""
    return _ORIGINAL.get(name, name)


def signature(x: Tensor | Number) -> Arg:
    """What inference needs to know of an operand."""
    return ((), x.dtype) if isinstance(x, Number) else (x.shape, x.dtype)


# Symbolic dims as numbers


# Symbols and fractions stand as large numbers without pattern, which sums and products of other sizes miss.
_STAND_INS: dict[str, int] = {}
_LEAST = 1 << 60


def _stand_in(name: str) -> int:
    found = _STAND_INS.get(name)
    if found is None:
        digits = int.from_bytes(sha256(name.encode()).digest()[:8], "big")
        found = _STAND_INS[name] = _LEAST + digits % _LEAST
        _decoded.cache_clear()
    return found


def _witness(size: Any) -> Any:
    """The number of a size: products of sizes have products of their numbers, as far as nothing cancels."""
    if not isinstance(size, Dim):
        return tuple(_witness(item) for item in size) if isinstance(size, tuple) else size
    found = size.coefficient.numerator
    for name, power in size.powers:
        found *= _stand_in(name if power > 0 else f"1/{name}") ** abs(power)
    if size.coefficient.denominator != 1:
        found *= _stand_in(f"1/{size.coefficient.denominator}")
    return found


@lru_cache(maxsize=4096)
def _decoded(number: int) -> Size | None:
    """The size that a number stands for, None where it is none."""
    size: Size = 1
    for name, base in _STAND_INS.items():
        while number % base == 0 and number:
            number //= base
            below = name.removeprefix("1/")
            factor: Size = int(below) if below.isdecimal() else Dim.symbol(below)
            size = size * factor if below == name else divide(size, factor)
    return size * number if number < _LEAST else None


def _unwitness(size: Any) -> Any:
    if isinstance(size, tuple):
        return tuple(_unwitness(item) for item in size)
    if isinstance(size, int) and not isinstance(size, bool) and size >= _LEAST:
        found = _decoded(size)
        if found is None:
            raise ShapeError(
                "The sizes of this op do not follow from symbols.",
                why="it joins or cuts dims whose sizes are not known",
                fix="give the sizes as numbers: dist.resolve(fn, device_map, B=8, …)",
            )
        return found
    return size


def sized(size: int) -> Size:
    """The size that a number stands for, a symbol's included."""
    found = _decoded(size) if size >= _LEAST else size
    return size if found is None else found


def _readable(text: str) -> str:
    """A message with symbols for the numbers that stand for them."""
    return re.sub(r"\d{19,}", lambda found: str(sized(int(found[0]))), text)


def plain(arg: Arg) -> TensorType:
    """A type with every symbol replaced by a number of its own."""
    return TensorType(_witness(arg[0]), arg[1])


@lru_cache(maxsize=16384)
def _infer(name: str, args: tuple[Arg, ...], params: tuple[tuple[str, Any], ...]) -> tuple[Arg, ...]:
    types = [plain(arg) for arg in args]
    given = {key: _witness(value) for key, value in params}
    if name in NAMED:
        _check_params(name, dict(params))
        rule = _named_factors(name, types)
        shapes = [tuple(_size(dim, rule) for dim in dims) for dims in rule.results]
        like = NAMED[name].like
        return tuple((_unwitness(shape), types[like(len(types), n)].dtype) for n, shape in enumerate(shapes))
    found = REGISTRY[name].type(*types, **given)
    results = found if isinstance(found, tuple) else (found,)
    wrong = next((t.dtype for t in results if not isinstance(t.dtype, np.dtype)), None)
    if wrong is not None:
        raise TypeError(f"{_unwitness(wrong)} is not a dtype")
    return tuple((_unwitness(t.shape), t.dtype) for t in results)


def _check_params(name: str, params: Params) -> None:
    """Refuse params that an op of device programs does not have, and those that are no numbers."""
    known = [p.name for p in signature_of(NAMED[name].evaluate).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for key, value in params.items():
        if key not in known:
            raise ShapeError(
                f"{name} has no param {key}.",
                why=f"its params are {', '.join(known) or 'none'}",
                fix=f"{name}(…, {known[0]}=…)" if known else f"{name}(…)",
            )
        if not isinstance(value, int | float):
            raise ShapeError(f"The {key} of {name} is {value!r}.", why="it is a number", fix=f"{name}(…, {key}=1)")


def infer(name: str, args: Sequence[Arg], params: Params) -> tuple[Arg, ...]:
    """Shapes and dtypes of an op's results."""
    found = registry_name(name)
    try:
        key = tuple(params.items())
        try:
            hash(key)
        except TypeError:  # a param such as an array is no key of a cache
            return _infer.__wrapped__(found, tuple(args), key)
        return _infer(found, tuple(args), key)
    except MeshwrightError as error:
        error.what, error.why, error.fix = _readable(error.what), _readable(error.why), _readable(error.fix)
        error.where = ""  # the equation, which is known to the caller
        raise
    except Exception as error:  # a rule may stumble in any way over operands and params that are not its own
        text = re.sub(r"^[\w.<>]+\(\)", name, _readable(str(error)) or type(error).__name__)
        raise ShapeError(
            f"{name} cannot be used so.",
            why=text,
            fix=f"{name}(…) with the operands and params of the op of that name",
        ) from error


def _size(dim: Sequence[str], rule: Factors) -> int:
    size = 1
    for factor in dim:
        size *= rule.sizes[factor]
    return size


def _named_factors(name: str, types: Sequence[TensorType]) -> Factors:
    text = NAMED[name].factors(types)
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
    return Factors.parse(text, sizes)


def _show(t: TensorType) -> str:
    return f"({', '.join(str(sized(n)) for n in t.shape)})"


def factors(name: str, args: Sequence[Arg], results: Sequence[Arg], params: Params) -> Factors | None:
    """The factor rule of a call, None for an op that has none and needs its operands whole."""
    types, outs = [plain(a) for a in args], [plain(a) for a in results]
    if name in NAMED:
        return _named_factors(name, types)
    rule = REGISTRY[registry_name(name)].factors
    return None if isinstance(rule, No) else rule(types, outs, _witnessed(params))


def _witnessed(params: Params) -> dict[str, Any]:
    return {key: _witness(value) for key, value in params.items()}


def localize(name: str, params: Params, args: Sequence[Arg], results: Sequence[Arg]) -> Params:
    """The params of the same op on shards of those types."""
    if name in NAMED:
        return params
    found = REGISTRY[registry_name(name)].localize(
        _witnessed(params), [plain(a) for a in args], [plain(a) for a in results]
    )
    return {key: _unwitness(value) if not isinstance(value, Program) else value for key, value in found.items()}


def is_elementwise(eqn: Eqn) -> bool:
    """Whether each element of the one result comes from the same element of the operands."""
    name = registry_name(eqn.op)
    return len(eqn.outputs) == 1 and (
        name in ("Relu", "ReluGrad") or (name in REGISTRY and REGISTRY[name].factors is pointwise)
    )


def shares_of(eqn: Eqn) -> tuple[Share, ...]:
    """The parts of an equation that are computed from different operands; most have one."""
    found = NAMED[eqn.op].shares if eqn.op in NAMED else None
    if found is None:
        return (Share(tuple(range(len(eqn.inputs))), tuple(range(len(eqn.outputs)))),)
    return found(len(eqn.inputs))


def results_of(name: str, operands: int) -> int:
    """How many results a call has; of ops of the registry, one where it depends on the types."""
    if name not in NAMED:
        return 1
    shares = NAMED[name].shares
    return NAMED[name].results if shares is None else sum(len(share.results) for share in shares(operands)) or 1


def operands_of(eqn: Eqn) -> list[list[Operand]]:
    """The operands that each result of an equation is computed from."""
    shares = shares_of(eqn)
    own = {result: share for share in shares for result in share.results}
    return [[eqn.inputs[n] for n in own[result].operands] for result in range(len(eqn.outputs))]


def groups(name: str, args: Sequence[Arg], results: Sequence[Arg], params: Params) -> tuple[LinearGroup, ...]:
    """The groups of operands that may be summands together; the results then are, too."""
    linear = NAMED[name].linear if name in NAMED else REGISTRY[registry_name(name)].linear
    return groups_of(linear, [plain(a) for a in args], [plain(a) for a in results], _witnessed(params))


def evaluate_named(name: str, xp: Any, arrays: Sequence[Any], params: Params) -> tuple[Any, ...]:
    """The results of an op of device programs by a namespace of functions, in the dtypes that its type says."""
    op = NAMED[name]
    found = op.evaluate(xp, *arrays, **params)
    results = found if isinstance(found, tuple) else (found,)
    return tuple(y.astype(arrays[op.like(len(arrays), n)].dtype) for n, y in enumerate(results))


def evaluate(name: str, arrays: Sequence[Any], params: Params) -> tuple[Any, ...]:
    """The results of an op on arrays."""
    if name in NAMED:
        found = evaluate_named(name, np, arrays, params)
    else:
        op = REGISTRY[registry_name(name)]
        try:
            with np.errstate(all="ignore"):
                found = op.evaluate(NUMPY, *arrays, **params)
        except (ValueError, OverflowError):
            types = op.type(*[TensorType(x.shape, x.dtype) for x in arrays], **params)
            refuse_impossible(name, types if isinstance(types, tuple) else (types,))
            raise
    return tuple(found) if isinstance(found, tuple | list) else (found,)


def cost(name: str, args: Sequence[Arg], results: Sequence[Arg], params: Params) -> Cost:
    """Work of one call; dims must be numbers."""
    types, outs = [plain(a) for a in args], [plain(a) for a in results]
    if name in NAMED:
        rule = _named_factors(name, types)
        nbytes = float(sum(t.nbytes for t in (*types, *outs)))
        return Cost(NAMED[name].flops_per_point * _points(rule), nbytes)
    return REGISTRY[registry_name(name)].cost(types, outs, params)


def _points(rule: Factors) -> int:
    """How many points an op iterates over; parts of it that share no factor, such as updates of weights, do in turn."""
    parts: list[set[str]] = []
    for dims in (*rule.operands, *rule.results):
        here = {factor for dim in dims for factor in dim}
        joined = [part for part in parts if part & here]
        parts = [part for part in parts if not part & here] + [here.union(*joined)] if here else parts
    return sum(prod(rule.sizes[factor] for factor in part) for part in parts) or 1
