"""Calls of device programs: with arrays, inside of traced functions, and inside of other device programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshwright.arrays.tracing import leaf_value
from meshwright.core.trace import Value as Traced
from meshwright.device.blocks import compute
from meshwright.device.build import Handle, inline
from meshwright.device.device_map import DeviceMap
from meshwright.device.execute import array_sizes, execute, in_order, item_of, result_of, with_map
from meshwright.device.function import CALLS, DeviceEqn, DeviceValue, Function, Number
from meshwright.device.machine import DeviceMachine, Item, Leaf, Members, Scope
from meshwright.device.resolve import resolve
from meshwright.lax.shapes import concatenate
from meshwright.lax.shapes import split as split_dim
from meshwright.numpy.arithmetic import maximum, minimum
from meshwright.numpy.logic import logical_and, logical_or

_PAIRS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda x, y: x + y,
    "mean": lambda x, y: x + y,
    "max": maximum,
    "min": minimum,
    "prod": lambda x, y: x * y,
    "or": logical_or,
    "and": logical_and,
}


class Wholes:
    """The domain of traced arrays: what devices hold are parts of them, on no mesh."""

    def compute(
        self, eqn: DeviceEqn, args: Sequence[Leaf | Number], params: Mapping[str, Any], device: int
    ) -> list[Leaf]:
        data = [x if isinstance(x, Number) else x.data for x in args]
        return [Leaf(y, device) for y in compute(eqn, data, params)]

    def scatter(self, eqn: DeviceEqn, x: Leaf, dim: int, devices: Sequence[int], *, folded: bool) -> list[Leaf]:
        return [Leaf(part, d) for part, d in zip(_parts(x.data, len(devices), dim), devices, strict=True)]

    def broadcast(self, eqn: DeviceEqn, x: Leaf, devices: Sequence[int], *, folded: bool) -> list[Leaf]:
        return [Leaf(x.data, d) for d in devices]

    def gather(self, eqn: DeviceEqn, xs: Sequence[Leaf], dim: int, device: int, members: Members) -> Leaf:
        return Leaf(concatenate([x.data for x in xs], dim), device)

    def total(self, xs: Sequence[Leaf], how: str) -> Any:
        found = xs[0].data
        for x in xs[1:]:
            found = _PAIRS[how](found, x.data)
        return found / len(xs) if how == "mean" else found

    def allreduce(self, eqn: DeviceEqn, xs: Sequence[Leaf], how: str, members: Members) -> list[Leaf]:
        total = self.total(xs, how)
        return [Leaf(total, x.device) for x in xs]

    def allgather(self, eqn: DeviceEqn, xs: Sequence[Leaf], dim: int, members: Members) -> list[Leaf]:
        whole = concatenate([x.data for x in xs], dim)
        return [Leaf(whole, x.device) for x in xs]

    def reduce_scatter(self, eqn: DeviceEqn, xs: Sequence[Leaf], dim: int, members: Members) -> list[Leaf]:
        parts = _parts(self.total(xs, "sum"), len(xs), dim)
        return [Leaf(part, x.device) for part, x in zip(parts, xs, strict=True)]

    def own_part(self, eqn: DeviceEqn, xs: Sequence[Leaf], dim: int, members: Members) -> list[Leaf]:
        return [Leaf(_parts(x.data, len(xs), dim)[n], x.device) for n, x in enumerate(xs)]

    def send(self, eqn: DeviceEqn, x: Leaf, device: int) -> Leaf:
        return Leaf(x.data, device)

    def split(self, eqn: DeviceEqn, x: Leaf, dim: int, parts: int) -> list[Leaf]:
        return [Leaf(part, x.device) for part in _parts(x.data, parts, dim)]

    def annotate(self, value: DeviceValue, item: Item, scope: Scope) -> None:
        pass


def _parts(x: Any, count: int, dim: int) -> Sequence[Any]:
    return split_dim(x, [x.shape[dim] // count] * count, dim)


def call(fn: Function, inputs: Sequence[Any], by_name: Mapping[str, Any], device_map: Any) -> Any:
    """A device program as a function of its inputs; a device map among them may be given as one, or not at all."""
    names = [v.name for v in fn.inputs]
    if fn.map_input is not None and (len(inputs) + len(by_name) > len(names)):
        names.insert(fn.map_input[1], fn.map_input[0])
    given = in_order(fn.name, names, inputs, by_name)
    if any(isinstance(x, Handle) for x in given):
        return inline(fn, *with_map(fn, given, device_map))
    if not any(isinstance(x, Traced) for part in given for x in (part if isinstance(part, tuple | list) else [part])):
        return execute(fn, given, device_map)
    given, found = with_map(fn, given, device_map)
    devices = DeviceMap(found) if found is not None else fn.device_map
    values = [
        tuple(leaf_value(y, f"the input {v.name}") for y in x)
        if isinstance(x, tuple | list)
        else leaf_value(x, f"the input {v.name}")
        for v, x in zip(fn.inputs, given, strict=True)
    ]
    sizes = array_sizes(fn, values)
    resolve(fn, devices, fold=False, **sizes)
    items = [item_of(v, x) for v, x in zip(fn.inputs, values, strict=True)]
    outs = [result_of(item) for item in DeviceMachine(Wholes(), devices, sizes).run(fn, items)]
    return outs[0] if len(outs) == 1 else tuple(outs)


CALLS.append(call)
