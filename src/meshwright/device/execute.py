"""The reference: a device program run on NumPy, replica by replica."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meshwright.core.limits import out_of_memory
from meshwright.device.device_map import DeviceMap
from meshwright.device.dims import bind, solve
from meshwright.device.from_program import takes_program
from meshwright.device.function import DeviceEqn, DeviceValue, Function, Number
from meshwright.device.machine import DeviceMachine, Group, Item, Leaf, Members, Scope
from meshwright.device.resolve import as_device_map, resolve, symbols_of
from meshwright.device.tensor_ops import evaluate
from meshwright.device.types import Tensor, Tuple, Type
from meshwright.errors import DeviceError, ShapeError

_REDUCE = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "or": np.logical_or,
    "and": np.logical_and,
    "prod": np.multiply,
    "mean": np.add,
}


class Arrays:
    """The domain of NumPy arrays."""

    def compute(
        self, eqn: DeviceEqn, args: Sequence[Leaf | Number], params: Mapping[str, Any], device: int
    ) -> list[Leaf]:
        arrays = [np.asarray(x.value, x.dtype) if isinstance(x, Number) else x.data for x in args]
        return [Leaf(np.asarray(y), device) for y in evaluate(eqn.op, arrays, params)]

    def scatter(self, eqn: DeviceEqn, x: Leaf, dim: int, devices: Sequence[int], *, folded: bool) -> list[Leaf]:
        return [Leaf(part, d) for part, d in zip(np.split(x.data, len(devices), dim), devices, strict=True)]

    def broadcast(self, eqn: DeviceEqn, x: Leaf, devices: Sequence[int], *, folded: bool) -> list[Leaf]:
        return [Leaf(x.data, d) for d in devices]

    def gather(self, eqn: DeviceEqn, xs: Sequence[Leaf], dim: int, device: int, members: Members) -> Leaf:
        return Leaf(np.concatenate([x.data for x in xs], dim), device)

    def _total(self, xs: Sequence[Leaf], how: str) -> Any:
        total = xs[0].data
        for x in xs[1:]:
            total = _REDUCE[how](total, x.data)
        return (total / len(xs)).astype(total.dtype) if how == "mean" else total

    def allreduce(self, eqn: DeviceEqn, xs: Sequence[Leaf], how: str, members: Members) -> list[Leaf]:
        total = self._total(xs, how)
        return [Leaf(total, x.device) for x in xs]

    def allgather(self, eqn: DeviceEqn, xs: Sequence[Leaf], dim: int, members: Members) -> list[Leaf]:
        whole = np.concatenate([x.data for x in xs], dim)
        return [Leaf(whole, x.device) for x in xs]

    def reduce_scatter(self, eqn: DeviceEqn, xs: Sequence[Leaf], dim: int, members: Members) -> list[Leaf]:
        parts = np.split(self._total(xs, "sum"), len(xs), dim)
        return [Leaf(part, x.device) for part, x in zip(parts, xs, strict=True)]

    def own_part(self, eqn: DeviceEqn, xs: Sequence[Leaf], dim: int, members: Members) -> list[Leaf]:
        return [Leaf(np.split(x.data, len(xs), dim)[n], x.device) for n, x in enumerate(xs)]

    def send(self, eqn: DeviceEqn, x: Leaf, device: int) -> Leaf:
        return Leaf(x.data, device)

    def split(self, eqn: DeviceEqn, x: Leaf, dim: int, parts: int) -> list[Leaf]:
        return [Leaf(part, x.device) for part in np.split(x.data, parts, dim)]

    def annotate(self, value: DeviceValue, item: Item, scope: Scope) -> None:
        pass


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
    inputs, device_map = with_map(fn, inputs, device_map)
    arrays = _arrays(fn, inputs)
    sizes = array_sizes(fn, arrays)
    # The walk over types comes first: it finds what is wrong before anything is computed.
    resolve(fn, device_map, fold=False, **sizes)
    items = [item_of(v, x) for v, x in zip(fn.inputs, arrays, strict=True)]
    try:
        outs = [
            result_of(item) for item in DeviceMachine(Arrays(), as_device_map(device_map, fn), sizes).run(fn, items)
        ]
    except MemoryError as error:
        out_of_memory(error)
    return outs[0] if len(outs) == 1 else tuple(outs)


def with_map(fn: Function, inputs: Any, device_map: Any) -> tuple[Any, Any]:
    """The arrays among inputs, and the device map: that among the inputs, or the one given beside them."""
    if fn.map_input is None:
        return inputs, device_map
    name, at = fn.map_input
    if isinstance(inputs, Mapping):
        found = inputs.get(name)
        arrays: Any = {key: value for key, value in inputs.items() if key != name}
    else:
        arrays = list(inputs)
        found = arrays.pop(at) if len(arrays) > len(fn.inputs) else None
    if found is not None and device_map is not None and DeviceMap(found) != DeviceMap(device_map):
        raise DeviceError(
            "There are two device maps.",
            why=f"{DeviceMap(found)} is the input {name}, and {DeviceMap(device_map)} is given beside the inputs",
            fix=f"{{{name!r}: dist.DeviceMap({DeviceMap(found)}), …}} alone",
        )
    return arrays, found if found is not None else device_map


def in_order(name: str, names: Sequence[str], inputs: Sequence[Any], by_name: Mapping[str, Any]) -> list[Any]:
    """The inputs of a call in the order of their names; those given by name come last."""
    left = names[len(inputs) :]
    if len(inputs) > len(names) or sorted(left) != sorted(by_name):
        raise ShapeError(
            f"{name} takes {len(names)} inputs: {', '.join(names)}.",
            why=f"given are {len(inputs)} by position" + (f" and {', '.join(by_name)}" if by_name else ""),
            fix="one array per input, by position or by name",
        )
    return [*inputs, *(by_name[key] for key in left)]


def _arrays(fn: Function, inputs: Mapping[str, Any] | Sequence[Any]) -> list[Any]:
    names = [v.name for v in fn.inputs]
    if isinstance(inputs, Mapping):
        wrong = [n for n in names if n not in inputs] + [n for n in inputs if n not in names]
        if wrong:
            raise ShapeError(
                f"{fn.name} has the inputs {', '.join(names)}.",
                why=f"given are {', '.join(map(str, inputs))}",
                fix=f"{{{', '.join(f'{n!r}: …' for n in names)}}}",
            )
        given = [inputs[n] for n in names]
    else:
        given = list(inputs)
        if len(given) != len(names):
            raise ShapeError(
                f"{fn.name} takes {len(names)} inputs, not {len(given)}.",
                why=", ".join(names),
                fix="one array per input",
            )
    return [
        tuple(map(np.asarray, x)) if isinstance(x, tuple | list) and isinstance(v.type, Tuple) else np.asarray(x)
        for x, v in zip(given, fn.inputs, strict=True)
    ]


def array_sizes(fn: Function, arrays: Sequence[Any]) -> dict[str, int]:
    """The numbers that symbols must be for the inputs to have the shapes of the arrays."""
    sizes: dict[str, int] = {}
    pairs: list[tuple[str, Tensor, Any]] = []

    def collect(name: str, type: Type | None, x: Any) -> None:
        if isinstance(type, Tuple):
            for inner, part in zip(type.items, x, strict=True):
                collect(name, inner, part)
        elif type is not None:
            pairs.append((name, type, x))

    for v, x in zip(fn.inputs, arrays, strict=True):
        collect(v.name, v.type, x)
    for name, type, x in pairs:
        if len(type.shape) != x.ndim or x.dtype != type.dtype:
            raise _wrong_input(name, type, x)
        for size, n in zip(type.shape, x.shape, strict=True):
            left = bind(size, sizes)
            if left != n:
                solved = solve(left, n)
                if solved is None:
                    raise _wrong_input(name, type, x, sizes)
                sizes[solved[0]] = solved[1]
    known = symbols_of(fn)
    return {name: n for name, n in sizes.items() if name in known}


def _wrong_input(name: str, type: Tensor, x: Any, sizes: Mapping[str, int] | None = None) -> ShapeError:
    bound = "".join(f", {k} = {v}" for k, v in (sizes or {}).items())
    return ShapeError(
        f"The input {name} does not fit.",
        why=f"it is {x.dtype}{list(x.shape)}, and {name} is {type}{bound}",
        fix=f"{name} = np.zeros(({', '.join(map(str, type.shape))},), np.{type.dtype})",
    )


def item_of(value: DeviceValue, x: Any) -> Item:
    def make(type: Type | None, part: Any) -> Item:
        if isinstance(type, Tuple):
            return Group(tuple(make(inner, p) for inner, p in zip(type.items, part, strict=True)))
        assert isinstance(type, Tensor)
        assert isinstance(type.device.base, int)
        return Leaf(part, type.device.base)

    return make(value.type, x)


def result_of(item: Item) -> Any:
    if isinstance(item, Leaf):
        return item.data
    return result_of(item.items[0]) if item.same else tuple(result_of(inner) for inner in item.items)
