"""StableHLO with sdy: ``load`` reads a module as a program, ``dump`` writes a program as a module.

The functions of a module run on tracers, op by op. Calls are written out where they stand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from meshwright.api.control import switch, while_loop
from meshwright.core.check import check
from meshwright.core.op import REGISTRY
from meshwright.core.program import Program
from meshwright.core.trace import Array, building, close, trace
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError
from meshwright.interop.shardy.module_shardings import Shardings, meshes_of
from meshwright.interop.shardy.module_walk import SHARDING
from meshwright.interop.stablehlo.bounds import check_calls, too_deep
from meshwright.interop.stablehlo.context import (
    Types,
    boolean,
    context,
    integer,
    integers,
    keyword,
    parse_module,
    string,
)
from meshwright.interop.stablehlo.dumping import dump
from meshwright.interop.stablehlo.instance import Instance, Match, TensorPosition
from meshwright.interop.stablehlo.ops import COMBINATIONS, body_operation, counterpart, scatter_combination
from meshwright.sharding.named import TensorSharding
from meshwright.sharding.spec import PartitionSpec
from meshwright.transform.simplify import dce

__all__ = ["dump", "load"]

_STARTS: dict[str, Callable[[np.dtype[Any]], Any]] = {
    "sum": lambda dtype: 0,
    "prod": lambda dtype: 1,
    "and": lambda dtype: True if dtype.kind == "b" else -1,
    "or": lambda dtype: 0,
    "max": lambda dtype: _lowest(dtype),
    "min": lambda dtype: _highest(dtype),
}
_MOVES = ("stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.transpose")  # of a scalar, they do nothing
_COMBINE = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "and": "and", "or": "or"}


def load(text: str) -> Program:
    """The program of a module of StableHLO, with sdy's shardings as constraints.

    The main function is the one named ``main``, or the only public one; calls are written out where they stand.

    >>> from meshwright.interop import mlir
    >>> program = mlir.load('''
    ...   func.func @main(%x: tensor<2x3xf32>) -> tensor<3x2xf32> {
    ...     %0 = stablehlo.tanh %x : tensor<2x3xf32>
    ...     %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    ...     return %1 : tensor<3x2xf32>
    ...   }''')
    >>> print(program.to_text(sources=False))
    program(a: f32[2,3]) {
      b: f32[2,3] = tanh a
      c: f32[3,2] = transpose b permutation=(1, 0)
      return c
    }
    """
    with context():
        try:
            return _Loader(parse_module(text)).program()
        except RecursionError:
            raise too_deep("loops, branches and calls stand inside of too many others") from None


class _Loader:
    def __init__(self, module: Any) -> None:
        self.module = module  # its ops live as long as it does
        self.types = Types()
        self.shardings = Shardings(meshes_of(module))
        self.functions = {
            string(op.attributes["sym_name"]): op.operation
            for op in module.body.operations
            if op.operation.name == "func.func" and len(op.operation.regions[0].blocks)
        }
        self.called: list[str] = []

    def program(self) -> Program:
        main = self._main()
        self._check_calls(main)
        arguments = main.regions[0].blocks[0].arguments
        types = [self.type(value, main) for value in arguments]
        program, captured = trace(lambda *values: self.function(main, values), types)
        return check(dce(close(program, captured)), "reading a module")

    def _main(self) -> Any:
        if "main" in self.functions:
            return self.functions["main"]
        public = [op for op in self.functions.values() if "sym_visibility" not in op.attributes]
        if len(public) != 1:
            raise MeshwrightError(
                "The module has no main function.",
                why=f"it has {', '.join('@' + name for name in self.functions) or 'no functions'}",
                fix="name one of them @main",
            )
        return public[0]

    def _check_calls(self, main: Any) -> None:
        """Calls are written out where they stand, which must come to an end."""
        own: dict[str, int] = {}
        calls: dict[str, list[str]] = {}
        for name, function in self.functions.items():
            ops = list(_inside(function))
            own[name] = len(ops)
            calls[name] = [_callee(op) for op in ops if op.name == "func.call"]
        check_calls(string(main.attributes["sym_name"]), own, calls)

    def type(self, value: Any, op: Any) -> TensorType:
        found = self.types(value.type)
        if found is None or (found.dtype.kind == "V" and str(found.dtype) == "|V0"):
            raise _unsupported(op, f"{_type_text(value.type)} is no array of numbers of known shape")
        return found

    def function(self, op: Any, arguments: Sequence[Any]) -> list[Any]:
        """The results of a function on our values."""
        block = op.regions[0].blocks[0]
        given = self.shardings.of_dictionaries(op.attributes.get("arg_attrs"), len(arguments))
        placed = [self._constrained(x, sharding, op) for x, sharding in zip(arguments, given, strict=True)]
        found = self.block(block, placed, {})
        wanted = self.shardings.of_dictionaries(op.attributes.get("res_attrs"), len(found))
        return [self._constrained(x, sharding, op) for x, sharding in zip(found, wanted, strict=True)]

    def _constrained(self, x: Any, sharding: TensorSharding | None, op: Any) -> Any:
        if sharding is None:
            return x
        return REGISTRY["sharding_constraint"](x, spec=_spec(sharding, op))

    def block(self, block: Any, arguments: Sequence[Any], outside: dict[Any, Any]) -> list[Any]:
        env = {**outside, **dict(zip(block.arguments, arguments, strict=True))}
        *ops, end = [op.operation for op in block.operations]
        for op in ops:
            outs = self.operation(op, [env[value] for value in op.operands], env)
            if SHARDING in op.attributes and len(op.results):
                written = self.shardings.several(op.attributes[SHARDING])
                outs = [self._constrained(x, sharding, op) for x, sharding in zip(outs, written, strict=True)]
            env.update(zip(op.results, outs, strict=True))
        return [env[value] for value in end.operands]

    def operation(self, op: Any, operands: list[Any], env: dict[Any, Any]) -> Sequence[Any]:
        """The results of one op on our values."""
        special = _SPECIAL.get(op.name)
        if special is not None:
            return special(self, op, operands, env)
        if op.name in _MOVES and op.operands[0].type == op.results[0].type and operands[0].ndim == 0:
            return operands
        attributes = dict(op.attributes.items())
        types = tuple(self.type(value, op) for value in op.operands)
        results = tuple(self.type(value, op) for value in op.results)
        instance = Instance(op.name, types, results, attributes, op)
        if op.name == "stablehlo.reduce" and len(results) == 2:
            return self.best_place(instance, operands)
        match = counterpart(instance)
        if match is None:
            raise _unsupported(op, "meshwright has no op that does the same")
        exact = _EXACT.get(op.name)
        if exact is not None:
            operands = exact(instance, match, operands)
        outs = _applied(match, operands, len(types))
        after = _AFTER.get(op.name)
        return outs if after is None else after(instance, match, outs, operands)

    def best_place(self, x: Instance, operands: list[Any]) -> list[Any]:
        """A reduction of values with their places: the largest, or the smallest, and the first place that has it.

        The region is tried on numbers, NaN and ties among them: it is known by what it does.
        """
        axes = integers(x.attributes["dimensions"])
        places = x.op.operands[1].owner
        numbered = getattr(getattr(places, "operation", None), "name", "") == "stablehlo.iota" and (
            len(axes) == 1 and integer(places.attributes["iota_dimension"]) == axes[0]
        )
        value, place = x.operands[0].dtype, x.operands[1].dtype
        for how, start in (("max", _lowest(value)), ("min", _highest(value))):
            starts = _is(operands[2], start) and _is(operands[3], 0)
            if numbered and starts and place.kind in "iu" and self._picks(x.op.regions[0].blocks[0], how, value, place):
                best = REGISTRY[f"reduce_{how}"](operands[0], axes=axes)
                return [best, REGISTRY[f"arg{how}"](operands[0], axis=axes[0], dtype=place)]
        raise _unsupported(x.op, "its region does not pick the largest or the smallest value and its first place")

    def _picks(self, block: Any, how: str, value: Any, place: Any) -> bool:
        better = np.greater if how == "max" else np.less
        numbers = [0, 1] if value.kind == "b" else [0, 1, 5] + ([np.nan, -1.5] if value.kind not in "iub" else [])
        for one, i, other, j in product(numbers, (0, 3), numbers, (1, 3)):
            pairs = (value, one), (place, i), (value, other), (place, j)
            arguments = [Array(np.asarray(n).astype(t), TensorType((), t)) for t, n in pairs]
            with building(None):
                found = [np.asarray(out.data) for out in self.block(block, arguments, {})]
            if one != one and other != other:  # either of two NaN will do
                continue
            first = (one, i) if better(one, other) or one != one or (one == other and i < j) else (other, j)
            if not all(np.array_equal(f, np.asarray(e).astype(f.dtype), equal_nan=f.dtype.kind not in "biu")
                       for f, e in zip(found, first, strict=True)):  # fmt: skip
                return False
        return True

    # Control flow

    def constant(self, op: Any, operands: list[Any], env: dict[Any, Any]) -> Sequence[Any]:
        """One number for all is stored once."""
        t = self.type(op.results[0], op)
        found = _numbers(op, t)
        if t.size > 1 and (found == found.flat[0]).all():
            scalar = TensorType((), t.dtype)
            return [REGISTRY["broadcast_in_dim"](Array(found.flat[0].reshape(()), scalar), shape=t.shape, dims=())]
        return [Array(found.reshape(t.shape), t)]

    def call(self, op: Any, operands: list[Any], env: dict[Any, Any]) -> Sequence[Any]:
        name = _callee(op)
        if name not in self.functions:
            raise _unsupported(op, f"@{name} is declared and not defined")
        if name in self.called:
            raise _unsupported(op, f"@{name} calls itself")
        self.called.append(name)
        try:
            return self.function(self.functions[name], operands)
        finally:
            self.called.pop()

    def loop(self, op: Any, operands: list[Any], env: dict[Any, Any]) -> Sequence[Any]:
        condition, body = (region.blocks[0] for region in op.regions)
        return while_loop(  # type: ignore[no-any-return]
            lambda values: self.block(condition, values, env)[0],
            lambda values: tuple(self.block(body, values, env)),
            tuple(operands),
        )

    def branches(self, op: Any, operands: list[Any], env: dict[Any, Any]) -> Sequence[Any]:
        """Any index that is none of a branch takes the last one."""
        count = len(op.regions)
        index, last = operands[0], Array(np.asarray(count - 1, np.int32), TensorType((), np.dtype(np.int32)))
        zero = Array(np.asarray(0, np.int32), last.type)
        outside = REGISTRY["or"](REGISTRY["lt"](index, zero), REGISTRY["gt"](index, last))
        index = REGISTRY["select"](outside, last, index)

        def branch(region: Any) -> Callable[[], tuple[Any, ...]]:
            return lambda: tuple(self.block(region.blocks[0], (), env))

        return switch(index, [branch(region) for region in op.regions])  # type: ignore[no-any-return]

    def choice(self, op: Any, operands: list[Any], env: dict[Any, Any]) -> Sequence[Any]:
        """``stablehlo.if``: the first region where the predicate holds."""
        first, second = op.regions
        index = REGISTRY["convert"](operands[0], dtype=np.dtype(np.int32), weak=False)
        return switch(  # type: ignore[no-any-return]
            index, [lambda region=r: tuple(self.block(region.blocks[0], (), env)) for r in (second, first)]
        )

    def constraint(self, op: Any, operands: list[Any], env: dict[Any, Any]) -> Sequence[Any]:
        return [self._constrained(operands[0], self.shardings.one(op.attributes["sharding"]), op)]

    def nothing(self, op: Any, operands: list[Any], env: dict[Any, Any]) -> Sequence[Any]:
        return operands if len(op.results) else []


_SPECIAL: dict[str, Callable[[_Loader, Any, list[Any], dict[Any, Any]], Sequence[Any]]] = {
    "stablehlo.constant": _Loader.constant,
    "sdy.constant": _Loader.constant,
    "func.call": _Loader.call,
    "stablehlo.while": _Loader.loop,
    "stablehlo.case": _Loader.branches,
    "stablehlo.if": _Loader.choice,
    "sdy.sharding_constraint": _Loader.constraint,
    "sdy.reshard": _Loader.constraint,
    "sdy.propagation_barrier": _Loader.nothing,
    "sdy.data_flow_edge": _Loader.nothing,
}


def _inside(op: Any) -> Iterator[Any]:
    """The ops in the regions of an op, however deep."""
    for region in op.regions:
        for block in region.blocks:
            for found in block.operations:
                yield found.operation
                yield from _inside(found.operation)


def _callee(op: Any) -> str:
    return str(op.attributes["callee"]).removeprefix("@").strip('"')


def _type_text(type: Any) -> str:
    """A value of a type, in a word if it is made of others, whose names may be without end."""
    from jaxlib.mlir import ir

    if isinstance(type, ir.TupleType):
        return f"a tuple of {type.num_types} values"
    return "a function" if isinstance(type, ir.FunctionType) else f"a value of type {type}"


def _unsupported(op: Any, why: str) -> MeshwrightError:
    return MeshwrightError(
        f"{op.name} cannot become part of a program.",
        where=str(op.location).removeprefix("loc(").removesuffix(")"),
        why=why,
        fix="meshwright opt takes it: passes let ops they do not know pass through",
    )


def _spec(sharding: TensorSharding, op: Any) -> PartitionSpec:
    if sharding.mesh.is_maximal or sharding.reduction != "sum":
        raise _unsupported(op, f"{sharding} is about one device, or about partial results that are no sums")
    return sharding.to_named().spec


def _applied(match: Match, operands: Sequence[Any], count: int) -> list[Any]:
    """Our op on the operands that it takes, turned as it takes them."""
    given = [_turned(operands[p.tensors[0]], p) for p in match.places if p.tensors[0] < count]
    outs = match.op(*given, **match.params)
    return list(outs) if isinstance(outs, tuple) else [outs]


def _turned(x: Any, place: TensorPosition) -> Any:
    if place.order is None:
        return x
    kept = tuple(d for d in place.order if d >= 0)
    if kept != tuple(range(x.ndim)):
        x = REGISTRY["transpose"](x, permutation=kept)
    if len(kept) != len(place.order):
        sizes = iter(x.shape)
        x = REGISTRY["reshape"](x, shape=tuple(next(sizes) if d >= 0 else 1 for d in place.order))
    return x


# Where an op does what its counterpart does only under conditions


def _check_reduce(x: Instance, match: Match, operands: list[Any]) -> list[Any]:
    if len(x.results) != 1 or body_operation(x.op.regions[0]) not in COMBINATIONS:
        raise _unsupported(x.op, "its region is not one of add, multiply, maximum, minimum, and, or of its arguments")
    return operands


def _check_window(x: Instance, match: Match, operands: list[Any]) -> list[Any]:
    if len(x.results) != 1 or body_operation(x.op.regions[0]) not in ("add", "maximum", "minimum"):
        raise _unsupported(x.op, "its region is not one of add, maximum, minimum of its arguments")
    if not _is_start(operands[1], match.op.name.removeprefix("reduce_window_")):
        raise _unsupported(x.op, "it starts from another value than one that changes nothing")
    return operands


def _check_scatter(x: Instance, match: Match, operands: list[Any]) -> list[Any]:
    if len(x.results) != 1 or scatter_combination(x) not in ("add", "multiply", "maximum", "minimum", "second"):
        raise _unsupported(x.op, "its region is not one of add, multiply, maximum, minimum, or the update itself")
    return operands


def _check_sort(x: Instance, match: Match, operands: list[Any]) -> list[Any]:
    """Ascending by the first operand: the region compares its first two arguments, however it prepares them."""
    block = x.op.regions[0].blocks[0]
    ops = [op.operation for op in block.operations]
    others = set(list(block.arguments)[2:])
    last = ops[-2] if len(ops) > 1 else None
    compares = last is not None and last.name == "stablehlo.compare" and ops[-1].operands[0] == last.results[0]
    used = {value for op in ops for value in op.operands}
    if last is None or not compares or keyword(last.attributes["comparison_direction"]) != "LT" or used & others:
        raise _unsupported(x.op, "its region is not one that orders by the first operand, smallest first")
    return operands


def _check_select_and_scatter(x: Instance, match: Match, operands: list[Any]) -> list[Any]:
    select, scatter = x.op.regions
    ops = [op.operation for op in select.blocks[0].operations]
    found = keyword(ops[0].attributes["comparison_direction"]) if ops[0].name == "stablehlo.compare" else ""
    straight = list(ops[0].operands) == list(select.blocks[0].arguments)
    direction = {"GE": "max", "LE": "min"}.get(found)
    if not straight or direction is None or body_operation(scatter) != "add" or not _is_start(operands[2], "sum"):
        raise _unsupported(x.op, "its regions are not those that add to the first largest element, starting from zero")
    match.params["select"] = direction  # type: ignore[index]
    return operands


def _check_cholesky(x: Instance, match: Match, operands: list[Any]) -> list[Any]:
    if not x.get("lower", boolean, False):
        raise _unsupported(x.op, "it asks for the upper triangle")
    return operands


def _check_compare(x: Instance, match: Match, operands: list[Any]) -> list[Any]:
    if x.get("compare_type", keyword, "") == "TOTALORDER" and x.operands[0].dtype.kind not in "biu":
        raise _unsupported(x.op, "it compares by the total order of floating point numbers")
    return operands


_EXACT: dict[str, Callable[[Instance, Match, list[Any]], list[Any]]] = {
    "stablehlo.reduce": _check_reduce,
    "stablehlo.reduce_window": _check_window,
    "stablehlo.scatter": _check_scatter,
    "stablehlo.sort": _check_sort,
    "stablehlo.select_and_scatter": _check_select_and_scatter,
    "stablehlo.cholesky": _check_cholesky,
    "stablehlo.compare": _check_compare,
}


def _with_start(x: Instance, match: Match, outs: list[Any], operands: list[Any]) -> list[Any]:
    """A reduction that starts from another value than one that changes nothing is combined with it."""
    how = match.op.name.removeprefix("reduce_")
    return outs if _is_start(operands[1], how) else [REGISTRY[_COMBINE[how]](outs[0], operands[1])]


_AFTER: dict[str, Callable[[Instance, Match, list[Any], list[Any]], list[Any]]] = {"stablehlo.reduce": _with_start}


def _is_start(x: Any, how: str) -> bool:
    return _is(x, _STARTS[how](x.dtype))


def _is(x: Any, number: Any) -> bool:
    return isinstance(x, Array) and bool(np.asarray(x.data) == np.asarray(number).astype(x.dtype))


def _lowest(dtype: np.dtype[Any]) -> Any:
    return False if dtype.kind == "b" else np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def _highest(dtype: np.dtype[Any]) -> Any:
    return True if dtype.kind == "b" else np.iinfo(dtype).max if dtype.kind in "iu" else np.inf


def _numbers(op: Any, t: TensorType) -> np.ndarray[Any, Any]:
    """The contents of a constant; one number for all is there once."""
    from jaxlib.mlir import ir

    try:
        value = ir.DenseElementsAttr(op.attributes["value"])
        if t.dtype.kind in "biuf" and t.dtype.itemsize and np.dtype(t.dtype).isbuiltin:
            one: Any = value.get_splat_value() if value.is_splat else None
            found = np.asarray(one.value) if one is not None else np.array(value)
            return found.astype(t.dtype)
    except (TypeError, ValueError, AttributeError):
        pass
    inside = re.search(r"dense<(.*)> : tensor", str(op), re.DOTALL)
    if inside is None:
        raise _unsupported(op, "its contents are not written out")
    return _written(inside[1], t)


def _written(text: str, t: TensorType) -> np.ndarray[Any, Any]:
    """Numbers as MLIR writes them: one for all, nested lists, or all bytes in hexadecimal."""
    if text.startswith('"0x'):
        return np.frombuffer(bytes.fromhex(text[3:-1]), t.dtype).copy()
    if t.dtype.kind == "c":
        numbers = [complex(_number(a), _number(b)) for a, b in re.findall(r"\(([^,()]*),([^,()]*)\)", text)]
    else:
        numbers = [_number(word, t.dtype) for word in re.findall(r"[^\s,\[\]]+", text)]
    return np.array(numbers).astype(t.dtype)


def _number(word: str, dtype: np.dtype[Any] | None = None) -> Any:
    word = word.strip()
    if word in ("true", "false"):
        return word == "true"
    if word.startswith("0x"):
        bits = bytes.fromhex(word[2:])[::-1]
        kind = dtype if dtype is not None and dtype.itemsize == len(bits) else np.dtype(f"f{len(bits)}")
        return np.frombuffer(bits, kind)[0].astype(np.float64)
    return float(word) if dtype is None or dtype.kind not in "iu" else int(word)
