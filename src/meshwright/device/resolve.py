"""Resolution: a device program on a device map becomes a flat one, every value a tensor on a device with a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any

from meshwright.core.dtypes import is_inexact
from meshwright.core.op import Op
from meshwright.device.device_map import DeviceMap
from meshwright.device.dims import Dim, Size, bind, divide, is_whole, solve
from meshwright.device.from_program import takes_program
from meshwright.device.function import DeviceEqn, DeviceValue, Function, Keys, Number
from meshwright.device.machine import DeviceMachine, Group, Item, Leaf, Members, Scope, first_leaf
from meshwright.device.ops import ALLGATHER, ALLREDUCE, GATHER, ITEM, REDUCE_SCATTER, SEND, SPLIT
from meshwright.device.symmetry import Covers, Folding
from meshwright.device.tensor_ops import infer, signature
from meshwright.device.types import Device, Tensor, Tuple, Type, elements
from meshwright.errors import DeviceError, ShapeError


class Flat:
    """The domain of types: data are the values of the flat program being written."""

    def __init__(self, symbols: frozenset[str], device_map: DeviceMap | None = None) -> None:
        self.covers = Covers(device_map)
        self.eqns: list[DeviceEqn] = []
        self.symbols = symbols
        self.count: dict[tuple[str, int], int] = {}
        self.replicas: list[Members] = []
        self.locate: Callable[[Device, Scope], int] = lambda device, scope: -1
        self.senders: dict[tuple[int, ...], Keys] = {}

    def value(self, name: str, type: Tensor, origin: DeviceValue | None = None) -> Leaf:
        device = type.device.base
        assert isinstance(device, int)
        count = self.count[name, device] = self.count.get((name, device), 0) + 1
        named = f"{name}_{device}" + (f"_{count}" if count > 1 else "")
        return Leaf(DeviceValue(named, type, (origin, count) if origin is not None else None), device)

    def emit(
        self,
        eqn: DeviceEqn,
        op: Op,
        args: Sequence[Leaf | Number],
        types: Sequence[Tensor],
        taken: Members = (),
        made: Members = (),
        /,
        **attributes: Any,
    ) -> list[Leaf]:
        """Write an equation that is ``taken`` from, and ``made`` on, all devices of a group that one stands for."""
        origins = eqn.outputs if len(eqn.outputs) == len(types) else eqn.outputs[:1] * len(types)
        outs = [self.value(v.name, t, v) for v, t in zip(origins, types, strict=True)]
        inputs = tuple(x if isinstance(x, Number) else x.data for x in args)
        self.append(DeviceEqn(op, inputs, tuple(x.data for x in outs), attributes), taken, made)
        return outs

    def append(self, eqn: DeviceEqn, taken: Members, made: Members) -> None:
        self.eqns.append(eqn)
        stack = tuple(self.replicas)
        self.covers.note(eqn, (*stack, taken) if taken else stack, (*stack, made) if made else stack)

    def compute(
        self, eqn: DeviceEqn, args: Sequence[Leaf | Number], params: Mapping[str, Any], device: int
    ) -> list[Leaf]:
        signatures = [signature(x if isinstance(x, Number) else x.data.type) for x in args]
        types = [Tensor(shape, Device(device), dtype) for shape, dtype in infer(eqn.op, signatures, params)]
        if not any(isinstance(x, Leaf) for x in args):
            params = {"device": Device(device), **params}
        return self.emit(eqn, eqn.op, args, types, **params)

    def scatter(self, eqn: DeviceEqn, x: Leaf, dim: int, devices: Sequence[int], *, folded: bool) -> list[Leaf]:
        part = _part(eqn, x.data.type, dim, len(devices))
        return self.spread(eqn, x, part, devices, folded, {"dim": dim})

    def broadcast(self, eqn: DeviceEqn, x: Leaf, devices: Sequence[int], *, folded: bool) -> list[Leaf]:
        return self.spread(eqn, x, x.data.type, devices, folded, {})

    def spread(
        self, eqn: DeviceEqn, x: Leaf, part: Tensor, devices: Sequence[int], folded: bool, attributes: dict[str, Any]
    ) -> list[Leaf]:
        types = [part.on(Device(d)) for d in (devices[:1] if folded else devices)]
        group: Members = Keys(devices) if folded else ()
        return self.emit(eqn, eqn.op, [x], types, (), group, **attributes, devices=Keys(devices))

    def gather(self, eqn: DeviceEqn, xs: Sequence[Leaf], dim: int, device: int, members: Members) -> Leaf:
        whole = _joined(eqn, xs, dim, len(members)).on(Device(device))
        group = _group(xs, members)
        to = Device(device)
        return self.emit(eqn, GATHER, xs, [whole], group, (), dim=dim, to_device=to, **_named(group))[0]

    def allreduce(self, eqn: DeviceEqn, xs: Sequence[Leaf], how: str, members: Members) -> list[Leaf]:
        _equal(eqn, xs)
        _check_reduce(eqn, how, xs[0].data.type)
        group = _group(xs, members)
        extra = {} if how == "sum" else {"reduce": how}
        return self.emit(eqn, ALLREDUCE, xs, [x.data.type for x in xs], group, group, **extra, **_named(group))

    def allgather(self, eqn: DeviceEqn, xs: Sequence[Leaf], dim: int, members: Members) -> list[Leaf]:
        whole, group = _joined(eqn, xs, dim, len(members)), _group(xs, members)
        types = [whole.on(Device(x.device)) for x in xs]
        return self.emit(eqn, ALLGATHER, xs, types, group, group, dim=dim, **_named(group))

    def reduce_scatter(self, eqn: DeviceEqn, xs: Sequence[Leaf], dim: int, members: Members) -> list[Leaf]:
        _equal(eqn, xs)
        part, group = _part(eqn, xs[0].data.type, dim, len(members)), _group(xs, members)
        types = [part.on(Device(x.device)) for x in xs]
        return self.emit(eqn, REDUCE_SCATTER, xs, types, group, group, dim=dim, **_named(group))

    def own_part(self, eqn: DeviceEqn, xs: Sequence[Leaf], dim: int, members: Members) -> list[Leaf]:
        part, group = _part(eqn, xs[0].data.type, dim, len(members)), _group(xs, members)
        made = []
        for n, x in enumerate(xs):
            here = part.on(Device(x.device))
            parts = DeviceValue(f"{eqn.outputs[0].name}_parts_{x.device}", Tuple((here,) * len(members)))
            self.append(DeviceEqn(SPLIT, (x.data,), (parts,), {"dim": dim, "parts": len(members)}), group, group)
            made += self.emit(eqn, ITEM, [Leaf(parts, x.device)], [here], group, group, index=n)
        return made

    def send(self, eqn: DeviceEqn, x: Leaf, device: int) -> Leaf:
        together = {"members": self.sending(x.device)} if self.replicas else {}
        return self.emit(eqn, SEND, [x], [x.data.type.on(Device(device))], to_device=Device(device), **together)[0]

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

    def split(self, eqn: DeviceEqn, x: Leaf, dim: int, parts: int) -> list[Leaf]:
        part = _part(eqn, x.data.type, dim, parts)
        return self.emit(eqn, SPLIT, [x], [part] * parts, dim=dim, parts=parts)

    def annotate(self, value: DeviceValue, item: Item, scope: Scope) -> None:
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
        expected = self.locate(device, scope)
        if expected != item.device:
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


def _part(eqn: DeviceEqn, type: Tensor, dim: int, parts: int) -> Tensor:
    if not 0 <= dim < len(type.shape):
        raise ShapeError(
            f"{eqn.op} cannot cut dim {dim}.", why=f"the tensor is {type}", fix=f"dim={max(len(type.shape) - 1, 0)}"
        )
    size = divide(type.shape[dim], parts)
    if not is_whole(size):
        into = "parts" if eqn.op is SPLIT else "devices"
        raise ShapeError(
            f"Dim {dim} of size {type.shape[dim]} does not divide into {parts} equal parts.",
            why=f"{eqn.op} gives each of {parts} {into} the same number of elements",
            fix=f"a size that is a multiple of {parts}, or another number of {into}",
        )
    return type.resized(dim, size)


# How allreduce combines tensors, and the kinds of dtypes it combines so.
_REDUCTIONS = {"sum": "numbers", "mean": "floats", "max": "numbers", "min": "numbers", "prod": "numbers"}
_REDUCTIONS |= {"or": "bools", "and": "bools"}


def _check_reduce(eqn: DeviceEqn, how: Any, type: Tensor) -> None:
    """Refuse an allreduce that there is not, or not of this dtype."""
    if how not in _REDUCTIONS:
        raise ShapeError(
            f"There is no allreduce by {how!r}.",
            why=f"it combines tensors by {', '.join(_REDUCTIONS)}",
            fix=f'allreduce({eqn.values[0].name}, reduce="sum")',
        )
    kind = "bools" if type.dtype == bool else "floats" if is_inexact(type.dtype) else "integers"
    wanted = _REDUCTIONS[how]
    if wanted != kind and not (wanted == "numbers" and kind != "bools"):
        dtype, name = ("bool" if wanted == "bools" else "f32"), eqn.values[0].name
        raise ShapeError(
            f"An allreduce by {how} takes {wanted}.",
            why=f"{eqn.values[0].name} is {type}",
            fix=f"pmap(lambda d: lambda (x): {{ y = convert(x, dtype={dtype}) return y }}, ({name},)) first",
        )


def _equal(eqn: DeviceEqn, xs: Sequence[Leaf]) -> None:
    for x in xs[1:]:
        if x.data.type.shape != xs[0].data.type.shape or x.data.type.dtype != xs[0].data.type.dtype:
            raise ShapeError(
                f"{eqn.op} takes tensors of one shape.",
                why=", ".join(str(x.data.type) for x in xs),
                fix="make the parts equal first",
            )


def _group(xs: Sequence[Leaf], members: Members) -> Members:
    """The members of a collective, where one operand stands for all."""
    return members if len(members) > len(xs) else ()


def _named(group: Members) -> dict[str, Any]:
    return {"members": Keys(group)} if group else {}


def _joined(eqn: DeviceEqn, xs: Sequence[Leaf], dim: int, count: int) -> Tensor:
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
        return domain.value(name, type.shaped(shape))

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
    if given is None:
        return fn.device_map
    return given if isinstance(given, DeviceMap) else DeviceMap(given)


@takes_program
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
    check_sizes(fn, sizes)
    devices = as_device_map(device_map, fn)
    if not fold or names_devices(fn):
        return resolved(fn, devices, sizes, None)[0]
    found = resolved(fn, devices, sizes, Folding(devices))[0]
    found.__dict__["unfolded"] = (fn, devices, sizes)  # which devices do the same depends on the machine, too
    return found


def resolved(
    fn: Function, device_map: DeviceMap | None, sizes: Mapping[str, int], fold: Folding | None
) -> tuple[Function, Covers]:
    """The flat program, and whom its values stand for where it is folded."""
    return walked(fn, device_map, sizes, fold)[:2]


def walked(
    fn: Function, device_map: DeviceMap | None, sizes: Mapping[str, int], fold: Folding | None = None
) -> tuple[Function, Covers, list[Item]]:
    """The flat program, whom its values stand for, and its outputs: tuples of the values of the flat program."""
    domain = Flat(symbols_of(fn) - set(sizes), device_map)
    inputs = input_items(fn, domain, sizes)
    machine = DeviceMachine(domain, device_map, sizes, fold=fold)
    domain.replicas, domain.locate = machine.replicas, machine.device
    outs = machine.run(fn, inputs)
    for item in outs:  # one tensor is that of one device, also where it stands for copies on others
        for v in _flat_values(item):
            stack = domain.covers.values.get(v, ()) if isinstance(item, Group) else ()
            domain.covers.returned[v] = max(domain.covers.returned.get(v, ()), stack, key=len)
    flat = Function(
        fn.name,
        tuple(v for item in inputs for v in _flat_values(item)),
        tuple(domain.eqns),
        tuple(v for item in outs for v in _flat_values(item)),
    )
    return flat, domain.covers, outs


def check_sizes(fn: Function, sizes: Mapping[str, int]) -> None:
    """Refuse sizes of symbols that a function does not have, and those that are no sizes."""
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


def names_devices(fn: Function) -> bool:
    """Whether devices are named one by one, of which the map does not say that they do the same."""
    return any(map(_names_devices, fn.eqns)) or any(
        any(map(_names_one, body.eqns)) or names_devices(body) for body in fn.bodies()
    )


def _names_devices(eqn: DeviceEqn) -> bool:
    """Whether a tuple is spread over devices with numbers, below one, or by a map that is not the program's."""
    spread = "devices" in eqn.attributes and not (len(eqn.outputs) == 1 and isinstance(eqn.outputs[0].type, Tensor))
    own = "device_map" in eqn.attributes
    return spread or own or any(isinstance(key, int) for key in eqn.attributes.get("device_keys", ()))


def _names_one(eqn: DeviceEqn) -> bool:
    """Whether an equation is on a device of which the map says nothing: the same one in every replica, or ``d+1``."""
    found = [eqn.attributes.get(name) for name in ("to_device", "device")]
    return any(isinstance(d, Device) and (d.is_concrete or d.offset != 0) for d in found)


def _flat_values(item: Item) -> list[DeviceValue]:
    if isinstance(item, Leaf):
        return [item.data]
    return [v for inner in item.items for v in _flat_values(inner)]


@takes_program
def check(fn: Function, device_map: Any = None) -> Function:
    """Return ``fn`` if its annotations, devices and tuples are right on a device map; otherwise say what is not.

    >>> from meshwright import dist
    >>> fn = dist.check(dist.parse("def f(x: Tensor[(B,), 0]): y: Tensor[(B,), 0] = tanh(x) return y"))
    """
    resolve(fn, device_map)
    return fn
