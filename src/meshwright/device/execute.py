"""Device programs run: on NumPy, the reference; on traced arrays; and as part of another device program.

A program is resolved first, which finds what is wrong before anything is computed. Then its flat equations run in
turn, each on the tensors of its devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

import meshwright.numpy as mnp
from meshwright.arrays.tracing import leaf_value
from meshwright.core.limits import out_of_memory
from meshwright.core.op import Op
from meshwright.core.trace import Value as Traced
from meshwright.device import ops
from meshwright.device.build import Handle, inline
from meshwright.device.device_map import DeviceMap
from meshwright.device.dims import bind, solve
from meshwright.device.from_program import takes_program
from meshwright.device.function import CALLS, DeviceEqn, DeviceValue, Function, Number
from meshwright.device.resolve import as_device_map
from meshwright.device.tensor_ops import evaluate, params_of
from meshwright.device.types import Tensor, Tuple
from meshwright.device.walk import Item, Walk, symbols_of
from meshwright.errors import DeviceError, ShapeError
from meshwright.lax.elementwise import erf


class Arrays(NamedTuple):
    """What arrays are computed with: functions by NumPy's names, and what gives the results of an op."""

    xp: Any
    compute: Callable[[Op, Sequence[Any], Mapping[str, Any]], Sequence[Any]]

    def run(self, flat: Function, values: dict[DeviceValue, Any]) -> None:
        """Compute the values of a flat program; those that nobody reads again are dropped."""
        kept = set(flat.outputs)
        last = {v: n for n, eqn in enumerate(flat.eqns) for v in (*eqn.outputs, *eqn.values)}
        for n, eqn in enumerate(flat.eqns):
            args = [x if isinstance(x, Number) else values[x] for x in eqn.inputs]
            values.update(zip(eqn.outputs, self.results(eqn, args), strict=True))
            for v in {*eqn.values, *eqn.outputs}:
                if last[v] == n and v not in kept:
                    del values[v]

    def results(self, eqn: DeviceEqn, args: list[Any]) -> Any:
        """The results of an equation, on tensors of one device or of several."""
        op, count, dim = eqn.op, len(eqn.outputs), eqn.attributes.get("dim", 0)
        if not ops.is_structural(op):
            arrays = [self.xp.asarray(x.value, x.dtype) if isinstance(x, Number) else x for x in args]
            return self.compute(op, arrays, params_of(eqn))
        if op is ops.ITEM:
            return [args[0][eqn.attributes["index"]]]
        if op is ops.SPLIT:
            parts = self.xp.split(args[0], eqn.attributes["parts"], dim)
            return [parts] if isinstance(eqn.outputs[0].type, Tuple) else parts
        if op is ops.SCATTER:
            return self.xp.split(args[0], count, dim)
        if op is ops.REDUCE_SCATTER:
            return self.xp.split(self.total(args, "sum"), count, dim)
        if op is ops.ALLREDUCE:
            return [self.total(args, eqn.attributes.get("reduce", "sum"))] * count
        if op in (ops.GATHER, ops.ALLGATHER):
            return [self.xp.concatenate(args, dim)] * count
        return args * count  # a broadcast, or a send

    def total(self, xs: Sequence[Any], how: str) -> Any:
        found = reduce(getattr(self.xp, _PAIRS[how]), xs)
        return (found / len(xs)).astype(found.dtype) if how == "mean" else found


_PAIRS = {"sum": "add", "mean": "add", "max": "maximum", "min": "minimum", "prod": "multiply"}
_PAIRS |= {"or": "logical_or", "and": "logical_and"}


def _on_numpy(op: Op, arrays: Sequence[Any], params: Mapping[str, Any]) -> Sequence[Any]:
    return [np.asarray(y) for y in evaluate(op, arrays, params)]


def _traced(op: Op, arrays: Sequence[Any], params: Mapping[str, Any]) -> Sequence[Any]:
    op = ops.registered(op)
    found = op.evaluate(TRACED.xp, *arrays, **params) if isinstance(op, ops.DeviceOp) else op(*arrays, **params)
    return found if isinstance(found, tuple | list) else (found,)


NUMPY = Arrays(np, _on_numpy)
TRACED = Arrays(SimpleNamespace(**vars(mnp), erf=erf), _traced)


@takes_program
def execute(fn: Function, inputs: Mapping[str, Any] | Sequence[Any], device_map: Any = None) -> Any:
    """The outputs of a device program: one array, or a tuple of them.

    Inputs are arrays by name or in order, the device map among them where the program has it as an input. A tuple of
    copies is returned as one array, another tuple as a tuple.

    >>> from meshwright import dist
    >>> import numpy as np
    >>> fn = dist.parse("def f(x: Tensor[(B,), 0]): xs = scatter(x, dim=0, device_keys=[]) s = allreduce(xs) return s")
    >>> dist.execute(fn, {"x": np.arange(4.0, dtype=np.float32)}, [1, 2])
    array([2., 4.], dtype=float32)
    """
    by_name = inputs if isinstance(inputs, Mapping) else {}
    names = [v.name for v in fn.inputs]
    if isinstance(inputs, Mapping) and {*names} != by_name.keys() - {fn.map_input[0] if fn.map_input else None}:
        raise ShapeError(
            f"{fn.name} has the inputs {', '.join(names)}.",
            why=f"given are {', '.join(map(str, inputs))}",
            fix=f"{{{', '.join(f'{n!r}: …' for n in names)}}}",
        )
    given, device_map = arranged(fn, () if isinstance(inputs, Mapping) else inputs, by_name, device_map)
    arrays = [
        tuple(map(np.asarray, x)) if isinstance(x, tuple | list) and isinstance(v.type, Tuple) else np.asarray(x)
        for x, v in zip(given, fn.inputs, strict=True)
    ]
    try:
        return _results(fn, arrays, as_device_map(device_map, fn), NUMPY)
    except MemoryError as error:
        out_of_memory(error)


def _results(fn: Function, given: Sequence[Any], device_map: DeviceMap | None, on: Arrays) -> Any:
    walk = Walk(fn, device_map, array_sizes(fn, given)).run()
    arrays = [x for part in given for x in (part if isinstance(part, tuple) else (part,))]
    values = dict(zip(walk.flat.inputs, arrays, strict=True))
    on.run(walk.flat, values)

    def result(item: Item) -> Any:
        if isinstance(item, DeviceValue):
            return values[item]
        return result(item.items[0]) if item.same else tuple(result(inner) for inner in item.items)

    found = tuple(map(result, walk.outputs))
    return found[0] if len(found) == 1 else found


def call(fn: Function, inputs: Sequence[Any], by_name: Mapping[str, Any], device_map: Any) -> Any:
    """A device program as a function of its inputs; a device map among them may be given as one, or not at all."""
    given, found = arranged(fn, inputs, by_name, device_map)
    if any(isinstance(x, Handle) for x in given):
        return inline(fn, given, found)
    if not any(isinstance(x, Traced) for part in given for x in (part if isinstance(part, tuple | list) else [part])):
        return execute(fn, given, found)
    values = [
        tuple(leaf_value(y, f"the input {v.name}") for y in x)
        if isinstance(x, tuple | list)
        else leaf_value(x, f"the input {v.name}")
        for v, x in zip(fn.inputs, given, strict=True)
    ]
    return _results(fn, values, as_device_map(found, fn), TRACED)


CALLS.append(call)


def arranged(fn: Function, inputs: Sequence[Any], by_name: Mapping[str, Any], device_map: Any) -> tuple[list[Any], Any]:
    """The inputs of a call in order, and the device map: that among the inputs, or the one given beside them."""
    names = [v.name for v in fn.inputs]
    name, at = fn.map_input or ("", 0)
    if fn.map_input is not None and len(inputs) + len(by_name) > len(names):
        names.insert(at, name)
    left = names[len(inputs) :]
    if len(inputs) > len(names) or sorted(left) != sorted(by_name):
        raise ShapeError(
            f"{fn.name} takes {len(names)} inputs: {', '.join(names)}.",
            why=f"given are {len(inputs)} by position" + (f" and {', '.join(by_name)}" if by_name else ""),
            fix="one array per input, by position or by name",
        )
    given = [*inputs, *(by_name[key] for key in left)]
    found = given.pop(at) if len(given) > len(fn.inputs) else None
    if found is not None and device_map is not None and DeviceMap(found) != DeviceMap(device_map):
        raise DeviceError(
            "There are two device maps.",
            why=f"{DeviceMap(found)} is the input {name}, and {DeviceMap(device_map)} is given beside the inputs",
            fix=f"{{{name!r}: dist.DeviceMap({DeviceMap(found)}), …}} alone",
        )
    return given, found if found is not None else device_map


def array_sizes(fn: Function, arrays: Sequence[Any]) -> dict[str, int]:
    """The numbers that symbols must be for the inputs to have the shapes of the arrays."""
    sizes: dict[str, int] = {}
    parts = [x if isinstance(x, tuple) else (x,) for x in arrays]
    types = [v.type.items if isinstance(v.type, Tuple) else (v.type,) for v in fn.inputs]
    pairs = (zip(repeat(v.name), ts, xs) for v, ts, xs in zip(fn.inputs, types, parts, strict=True))
    for name, type, x in chain.from_iterable(pairs):
        if not isinstance(type, Tensor):
            continue  # it has no type, which the walk says
        if len(type.shape) != x.ndim or x.dtype != type.dtype:
            raise _wrong_input(name, type, x, {})
        for size, n in zip(type.shape, x.shape, strict=True):
            left = bind(size, sizes)
            solved = solve(left, n) if left != n else None
            if left != n and solved is None:
                raise _wrong_input(name, type, x, sizes)
            sizes |= [solved] if solved is not None else []
    known = symbols_of(fn)
    return {name: n for name, n in sizes.items() if name in known}


def _wrong_input(name: str, type: Tensor, x: Any, sizes: Mapping[str, int]) -> ShapeError:
    bound = "".join(f", {k} = {v}" for k, v in sizes.items())
    return ShapeError(
        f"The input {name} does not fit.",
        why=f"it is {x.dtype}{list(x.shape)}, and {name} is {type}{bound}",
        fix=f"{name} = np.zeros(({', '.join(map(str, type.shape))},), np.{type.dtype})",
    )
