"""Resolution: a device program on a device map becomes a flat one, every value a tensor on a device with a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

from meshwright.device.device_map import DeviceMap
from meshwright.device.dims import Dim, Size, bind, divide, is_whole, solve
from meshwright.device.function import Eqn, Function, Keys, Number, Value
from meshwright.device.machine import Group, Item, Leaf, Machine, Members, Scope, first_leaf
from meshwright.device.tensor_ops import infer, signature
from meshwright.device.types import Device, Tensor, Tuple, Type, elements
from meshwright.errors import DeviceError, ShapeError


class Flat:
    """The domain of types: data are the values of the flat program being written."""

    def __init__(self, symbols: frozenset[str], *, fold: bool = False) -> None:
        self.fold = fold
        self.eqns: list[Eqn] = []
        self.symbols = symbols
        self.count: dict[tuple[str, int], int] = {}
        self.replicas: list[Members] = []
        self.senders: dict[tuple[int, ...], Keys] = {}

    def value(self, name: str, type: Tensor) -> Leaf:
        device = type.device.base
        assert isinstance(device, int)
        count = self.count[name, device] = self.count.get((name, device), 0) + 1
        return Leaf(Value(f"{name}_{device}" + (f"_{count}" if count > 1 else ""), type), device)

    def emit(
        self, eqn: Eqn, op: str, args: Sequence[Leaf | Number], types: Sequence[Tensor], **attributes: Any
    ) -> list[Leaf]:
        names = [v.name for v in eqn.outputs]
        outs = [self.value(names[n] if len(names) == len(types) else names[0], t) for n, t in enumerate(types)]
        inputs = tuple(x if isinstance(x, Number) else x.data for x in args)
        self.eqns.append(Eqn(op, inputs, tuple(x.data for x in outs), attributes))
        return outs

    def compute(self, eqn: Eqn, args: Sequence[Leaf | Number], params: Mapping[str, Any], device: int) -> list[Leaf]:
        if eqn.op == "constant":
            array = params["value"]
            return self.emit(
                eqn, eqn.op, args, [Tensor(array.shape, Device(device), array.dtype)], device=Device(device), **params
            )
        signatures = [signature(x if isinstance(x, Number) else x.data.type) for x in args]
        types = [Tensor(shape, Device(device), dtype) for shape, dtype in infer(eqn.op, signatures, params)]
        if not any(isinstance(x, Leaf) for x in args):
            params = {"device": Device(device), **params}
        return self.emit(eqn, eqn.op, args, types, **params)

    def scatter(self, eqn: Eqn, x: Leaf, dim: int, devices: Sequence[int]) -> list[Leaf]:
        part = _part(eqn, x.data.type, dim, len(devices))
        made = devices[:1] if self.fold else devices
        return self.emit(eqn, "scatter", [x], [part.on(Device(d)) for d in made], dim=dim, devices=Keys(devices))

    def broadcast(self, eqn: Eqn, x: Leaf, devices: Sequence[int]) -> list[Leaf]:
        made = devices[:1] if self.fold else devices
        return self.emit(eqn, "broadcast", [x], [x.data.type.on(Device(d)) for d in made], devices=Keys(devices))

    def gather(self, eqn: Eqn, xs: Sequence[Leaf], dim: int, device: int, members: Members) -> Leaf:
        whole = _joined(eqn, xs, dim, len(members)).on(Device(device))
        return self.emit(eqn, "gather", xs, [whole], dim=dim, to_device=Device(device), **_group(xs, members))[0]

    def allreduce(self, eqn: Eqn, xs: Sequence[Leaf], how: str, members: Members) -> list[Leaf]:
        _equal(eqn, xs)
        extra = {} if how == "sum" else {"reduce": how}
        return self.emit(eqn, "allreduce", xs, [x.data.type for x in xs], **extra, **_group(xs, members))

    def allgather(self, eqn: Eqn, xs: Sequence[Leaf], dim: int, members: Members) -> list[Leaf]:
        whole = _joined(eqn, xs, dim, len(members))
        types = [whole.on(Device(x.device)) for x in xs]
        return self.emit(eqn, "allgather", xs, types, dim=dim, **_group(xs, members))

    def reduce_scatter(self, eqn: Eqn, xs: Sequence[Leaf], dim: int, members: Members) -> list[Leaf]:
        _equal(eqn, xs)
        part = _part(eqn, xs[0].data.type, dim, len(members))
        types = [part.on(Device(x.device)) for x in xs]
        return self.emit(eqn, "reduce_scatter", xs, types, dim=dim, **_group(xs, members))

    def own_part(self, eqn: Eqn, xs: Sequence[Leaf], dim: int, members: Members) -> list[Leaf]:
        part = _part(eqn, xs[0].data.type, dim, len(members))
        return [
            self.emit(eqn, "item", [Leaf(parts, x.device)], [part.on(Device(x.device))], index=n)[0]
            for n, x in enumerate(xs)
            for parts in [self._split(eqn, x, dim, len(members), part)]
        ]

    def _split(self, eqn: Eqn, x: Leaf, dim: int, parts: int, part: Tensor) -> Value:
        value = Value(f"{eqn.outputs[0].name}_parts_{x.device}", Tuple((part.on(Device(x.device)),) * parts))
        self.eqns.append(Eqn("split", (x.data,), (value,), {"dim": dim, "parts": parts}))
        return value

    def send(self, eqn: Eqn, x: Leaf, device: int) -> Leaf:
        together = {"members": self.sending(x.device)} if self.replicas else {}
        return self.emit(eqn, "send", [x], [x.data.type.on(Device(device))], to_device=Device(device), **together)[0]

    def sending(self, device: int) -> Keys:
        """The devices that send at once, in the replicas that a folded one stands for: each as far as the first."""
        key = (device, *map(id, self.replicas))
        found = self.senders.get(key)
        if found is None:
            places = [device]
            for group in self.replicas:
                places = [at + member - group[0] for at in places for member in group]
            found = self.senders[key] = Keys(places)
        return found

    def split(self, eqn: Eqn, x: Leaf, dim: int, parts: int) -> list[Leaf]:
        part = _part(eqn, x.data.type, dim, parts)
        return self.emit(eqn, "split", [x], [part] * parts, dim=dim, parts=parts)

    def annotate(self, value: Value, item: Item, scope: Scope) -> None:
        if value.type is not None:
            self._match(value.name, value.type, item, scope)

    def _match(self, name: str, written: Type, item: Item, scope: Scope) -> None:
        if isinstance(written, Tensor) and isinstance(item, Group) and item.same:
            item = first_leaf(item)
            written = written.on(Device())
        if isinstance(written, Tuple) != isinstance(item, Group):
            raise ShapeError(
                f"{name} is not what its annotation says.",
                why=f"it is written {written}, and is {show(item)}",
                fix=f"{name}: {show(item)}",
            )
        if isinstance(written, Tuple):
            assert isinstance(item, Group)
            if not written.more and len(written.items) != len(item.members or item.items):
                raise ShapeError(
                    f"{name} has {len(item.items)} elements, its annotation {len(written.items)}.",
                    why=f"it is written {written}, and is {show(item)}",
                    fix=f"{name}: {show(item)}",
                )
            for n, inner in enumerate(item.items):
                self._match(name, written.items[min(n, len(written.items) - 1)], inner, scope)
            return
        assert isinstance(item, Leaf)
        found = item.data.type
        shape = [bind(n, scope.sizes) for n in written.shape]
        if len(shape) != len(found.shape) or written.dtype != found.dtype:
            raise _mismatch(name, written, found)
        for n, (size, real) in enumerate(zip(shape, found.shape, strict=True)):
            if size != real and not self._bind(size, real, scope):
                raise _mismatch(name, written, found, n)
        device = written.device
        if device.base is None or (device.base == "device_map" and device.sub is None):
            return
        if isinstance(device.base, str) and device.base in scope.variables and device.sub is None:
            expected: int | None = scope.variables[device.base] + device.offset
        else:
            expected = device.base if isinstance(device.base, int) else None
        if expected is not None and expected != item.device:
            raise DeviceError(
                f"{name} is on another device than its annotation says.",
                why=f"it is written {written}, and is on device {item.device}"
                + (f" ({device} stands for {expected})" if str(expected) != str(device) else ""),
                fix=f"{name}: {found}",
            )

    def _bind(self, written: Size, found: Size, scope: Scope) -> bool:
        """Agree by giving a number to a symbol that is none of the inputs': ``B/N`` is ``B/2`` where N = 2."""
        solved = solve(written, found)
        if solved is None or solved[0] in self.symbols or solved[0] in scope.sizes:
            return False
        scope.sizes[solved[0]] = solved[1]
        return True


def show(item: Item) -> str:
    """A run-time value's type as text."""
    if isinstance(item, Leaf):
        return str(item.data.type)
    return f"Tuple[{', '.join(show(inner) for inner in item.items)}]"


def _mismatch(name: str, written: Tensor, found: Tensor, dim: int | None = None) -> ShapeError:
    where = "" if dim is None else f": dim {dim} is {found.shape[dim]}, not {written.shape[dim]}"
    return ShapeError(
        f"{name} is not what its annotation says.",
        why=f"it is written {written}, and is {found}{where}",
        fix=f"{name}: {found}",
    )


def _part(eqn: Eqn, type: Tensor, dim: int, parts: int) -> Tensor:
    if not 0 <= dim < len(type.shape):
        raise ShapeError(
            f"{eqn.op} cannot cut dim {dim}.", why=f"the tensor is {type}", fix=f"dim={max(len(type.shape) - 1, 0)}"
        )
    size = divide(type.shape[dim], parts)
    if not is_whole(size):
        into = "parts" if eqn.op == "split" else "devices"
        raise ShapeError(
            f"Dim {dim} of size {type.shape[dim]} does not divide into {parts} equal parts.",
            why=f"{eqn.op} gives each of {parts} {into} the same number of elements",
            fix=f"a size that is a multiple of {parts}, or another number of {into}",
        )
    return type.resized(dim, size)


def _equal(eqn: Eqn, xs: Sequence[Leaf]) -> None:
    for x in xs[1:]:
        if x.data.type.shape != xs[0].data.type.shape or x.data.type.dtype != xs[0].data.type.dtype:
            raise ShapeError(
                f"{eqn.op} takes tensors of one shape.",
                why=", ".join(str(x.data.type) for x in xs),
                fix="make the parts equal first",
            )


def _group(xs: Sequence[Leaf], members: Members) -> dict[str, Any]:
    """The members of a collective, where one operand stands for all."""
    return {"members": Keys(members)} if len(members) > len(xs) else {}


def _joined(eqn: Eqn, xs: Sequence[Leaf], dim: int, count: int) -> Tensor:
    first: Tensor = xs[0].data.type
    if not 0 <= dim < len(first.shape):
        raise ShapeError(f"{eqn.op} cannot join along dim {dim}.", why=f"the parts are {first}", fix="dim=0")
    _equal(eqn, xs)
    return first.resized(dim, first.shape[dim] * count)


def symbols_of(fn: Function) -> frozenset[str]:
    """The symbols among the sizes of a function's inputs."""
    found: set[str] = set()
    for v in fn.inputs:
        if v.type is not None:
            for size in elements(v.type).shape:
                if isinstance(size, Dim):
                    found.update(name for name, _ in size.powers)
    return frozenset(found)


def input_items(fn: Function, domain: Flat, sizes: Mapping[str, int]) -> list[Item]:
    """The inputs of a function as run-time values, on the devices it names."""

    def make(name: str, type: Type) -> Item:
        if isinstance(type, Tuple):
            return Group(tuple(make(name, inner) for inner in type.items))
        if not type.device.is_concrete:
            raise DeviceError(
                f"The device of the input {name} is not known.",
                why=f"it is written {type}",
                fix=f"{name}: {type.on(Device(0))}",
            )
        shape = tuple(bind(n, sizes) for n in type.shape)
        return domain.value(name, replace(type, shape=shape))

    items = []
    for v in fn.inputs:
        if v.type is None:
            raise DeviceError(
                f"The input {v.name} has no type.",
                why="its device and shape are not known",
                fix=f"{v.name}: Tensor[(B, F), 0]",
            )
        items.append(make(v.name, v.type))
    return items


def as_device_map(given: Any, fn: Function) -> DeviceMap | None:
    """The map to use: the one given, or the function's own."""
    return DeviceMap(given) if given is not None else fn.device_map


def resolve(fn: Function, device_map: Any = None, *, fold: bool = False, **sizes: int) -> Function:
    """The flat program: no pmaps, every value a tensor on a device with a number; sizes of symbols may be given.

    Every annotation is checked on the way: shapes, devices, lengths of tuples, replicas that share a device. With
    ``fold``, devices that do the same are written once: the first of a group stands for all, and its collectives name
    their ``members``; devices that a program names one by one are all written.

    >>> from meshwright import dist
    >>> fn = dist.parse("def f(x: Tensor[(B, F), 0]): xs = scatter(x, dim=0, device_keys=[]) return xs")
    >>> print(dist.resolve(fn, {1: [1, 3], 2: [2, 4]}, B=8))
    def f(x_0: Tensor[(8, F), 0]):
        xs_1: Tensor[(4, F), 1], xs_2: Tensor[(4, F), 2] = scatter(x_0, dim=0, devices=[1, 2])
        return xs_1, xs_2
    """
    unknown = sorted(set(sizes) - symbols_of(fn))
    if unknown:
        raise ShapeError(
            f"{fn.name} has no symbol {unknown[0]}.",
            why=f"its symbols are {', '.join(sorted(symbols_of(fn))) or 'none'}",
            fix="name a symbol of the inputs' shapes",
        )
    for name, size in sizes.items():
        if not isinstance(size, Integral) or isinstance(size, bool) or size < 0:
            raise ShapeError(f"{name} is {size!r}.", why="it is the size of a dim: a whole number", fix=f"{name}=8")
    fold = fold and not names_devices(fn)
    domain = Flat(symbols_of(fn) - set(sizes), fold=fold)
    inputs = input_items(fn, domain, sizes)
    machine = Machine(domain, as_device_map(device_map, fn), sizes, fold=fold)
    domain.replicas = machine.replicas
    outs = machine.run(fn, inputs)
    return Function(
        fn.name,
        tuple(v for item in inputs for v in _flat_values(item)),
        tuple(domain.eqns),
        tuple(v for item in outs for v in _flat_values(item)),
    )


def names_devices(fn: Function) -> bool:
    """Whether a tuple is spread over devices named one by one, of which the map does not say that they do the same."""
    return any(
        "devices" in eqn.attributes and not (len(eqn.outputs) == 1 and isinstance(eqn.outputs[0].type, Tensor))
        for eqn in fn.eqns
    ) or any(map(names_devices, fn.bodies()))


def _flat_values(item: Item) -> list[Value]:
    if isinstance(item, Leaf):
        return [item.data]
    return [v for inner in item.items for v in _flat_values(inner)]


def check(fn: Function, device_map: Any = None) -> Function:
    """Return ``fn`` if its annotations, devices and tuples are right on a device map; otherwise say what is not.

    >>> from meshwright import dist
    >>> fn = dist.check(dist.parse("def f(x: Tensor[(B,), 0]): y: Tensor[(B,), 0] = tanh(x) return y"))
    """
    resolve(fn, device_map)
    return fn
