"""Tensor ops of device programs: those of the registry, and the few of `named_ops`.

Every fact comes from a factor rule. Symbolic dims are given numbers that occur nowhere else, and read back from the
result.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from inspect import signature as signature_of
from math import prod
from typing import Any

import numpy as np

from meshwright.core.dtypes import DType, is_inexact, short_name
from meshwright.core.factors import Factors, pointwise
from meshwright.core.limits import refuse_impossible
from meshwright.core.linearity import LinearGroup, groups_of
from meshwright.core.op import REGISTRY, Cost, No
from meshwright.core.op import is_contraction as contracts
from meshwright.core.program import Program
from meshwright.core.types import TensorType
from meshwright.device.dims import Dim, Size, Sizes, divide
from meshwright.device.function import DeviceEqn, Number, Operand
from meshwright.device.named_ops import NAMED, IndependentOperands, Params
from meshwright.device.types import Tensor
from meshwright.engine import compile as _compile  # noqa: F401  (runs the regions of scan and cond)
from meshwright.engine.namespace import NUMPY
from meshwright.errors import MeshwrightError, ShapeError
from meshwright.transform import every_op as _every  # noqa: F401  (fills the registry)

Arg = tuple[Sizes, DType]


_BY_LOWER = {**{name.lower(): name for name in REGISTRY}, **{name.lower(): name for name in NAMED}}
# Names that other systems have for ops of the registry, and for their params.
_SPELLINGS = {"Concat": ("concatenate", {"axis": "dim"})}
# `gather` is the collective; the op that takes windows out of a tensor goes by another name.
RENAMED = {"gather": "take_windows"}
_ORIGINAL = {new: old for old, new in RENAMED.items()}


def tensor_op(name: str) -> str | None:
    """The name of a tensor op as programs print it, whatever the case; None for anything else."""
    if name in _ORIGINAL or name in NAMED or name in _SPELLINGS or (name in REGISTRY and name not in RENAMED):
        return name
    found = _BY_LOWER.get(name.lower())
    return found if found not in RENAMED else None


def spelled(name: str, params: Params) -> tuple[str, dict[str, Any]]:
    """An op and its params under the names that programs print."""
    op, renamed = _SPELLINGS.get(name, (name, {}))
    return op, {renamed.get(key, key): value for key, value in params.items()}


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
        rule = _named_factors(name, types, dict(params))
        shapes = [tuple(_size(dim, rule) for dim in dims) for dims in rule.results]
        if NAMED[name].floats and not is_inexact(types[0].dtype):
            raise ShapeError(
                f"{name} takes floats.",
                why=f"its first operand is {short_name(types[0].dtype)}",
                fix=f"convert(x, dtype=f32) first, then {name}(x, …)",
            )
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


def _named_factors(name: str, types: Sequence[TensorType], params: Params) -> Factors:
    text, _, whole = NAMED[name].factors(types, params).partition("|")
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
    return f"({', '.join(str(sized(n)) for n in t.shape)})"


def factors(name: str, args: Sequence[Arg], results: Sequence[Arg], params: Params) -> Factors | None:
    """The factor rule of a call, None for an op that has none and needs its operands whole."""
    types, outs = [plain(a) for a in args], [plain(a) for a in results]
    if name in NAMED:
        return _named_factors(name, types, params)
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


def is_elementwise(eqn: DeviceEqn) -> bool:
    """Whether each element of the one result comes from the same element of the operands."""
    name = registry_name(eqn.op)
    if name in NAMED or name not in REGISTRY or len(eqn.outputs) != 1:
        return len(eqn.outputs) == 1 and name in NAMED and NAMED[name].elementwise
    return REGISTRY[name].factors is pointwise


def shares_of(eqn: DeviceEqn) -> tuple[IndependentOperands, ...]:
    """The parts of an equation that are computed from different operands; most have one."""
    found = NAMED[eqn.op].shares if eqn.op in NAMED else None
    if found is None:
        return (IndependentOperands(tuple(range(len(eqn.inputs))), tuple(range(len(eqn.outputs)))),)
    return found(len(eqn.inputs))


def results_of(name: str, operands: int) -> int:
    """How many results a call has; of ops of the registry, one where it depends on the types."""
    if name not in NAMED:
        return 1
    shares = NAMED[name].shares
    return NAMED[name].results if shares is None else sum(len(share.results) for share in shares(operands)) or 1


def operands_of(eqn: DeviceEqn) -> list[list[Operand]]:
    """The operands that each result of an equation is computed from."""
    shares = shares_of(eqn)
    own = {result: share for share in shares for result in share.results}
    return [[eqn.inputs[n] for n in own[result].operands] for result in range(len(eqn.outputs))]


def groups(name: str, args: Sequence[Arg], results: Sequence[Arg], params: Params) -> tuple[LinearGroup, ...]:
    """The groups of operands that may be summands together; the results then are, too."""
    linear = NAMED[name].linear if name in NAMED else REGISTRY[registry_name(name)].linear
    return groups_of(linear, [plain(a) for a in args], [plain(a) for a in results], _witnessed(params))


def is_contraction(name: str, args: Sequence[Arg], results: Sequence[Arg], params: Params) -> bool:
    """Whether an op runs at the rate of matrix products."""
    if name in NAMED:
        return NAMED[name].contraction
    op = REGISTRY[registry_name(name)]
    return contracts(op, [plain(a) for a in args], [plain(a) for a in results], _witnessed(params))


def evaluate_named(name: str, xp: Any, arrays: Sequence[Any], params: Params) -> tuple[Any, ...]:
    """The results of an op of device programs by a namespace of functions, in the dtypes that its type says."""
    op = NAMED[name]
    found = op.evaluate(xp, *arrays, **params)
    results = found if isinstance(found, tuple) else (found,)
    return tuple(y.astype(arrays[op.like(len(arrays), n)].dtype) for n, y in enumerate(results))


def evaluate(name: str, arrays: Sequence[Any], params: Params) -> tuple[Any, ...]:
    """The results of an op on arrays."""
    if name in NAMED:
        with np.errstate(all="ignore"):
            found = evaluate_named(name, NUMPY, arrays, params)
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
        rule = _named_factors(name, types, params)
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
