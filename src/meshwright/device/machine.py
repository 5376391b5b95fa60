"""The one walk over a device program: which device each value is on, with pmaps run replica by replica.

What a value *is* belongs to a domain: arrays for `execute`, types and flat equations for `resolve`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from meshwright.device import ops
from meshwright.device.device_map import DeviceMap, Path
from meshwright.device.dims import Dim, bind
from meshwright.device.function import DeviceEqn, DeviceValue, Function, Keys, Number
from meshwright.device.tensor_ops import operands_of
from meshwright.device.types import Device, Tensor, Tuple, Type
from meshwright.device.typing import check_results
from meshwright.errors import DeviceError, MeshwrightError, ShapeError


@dataclass(frozen=True)
class Leaf:
    """A tensor at run time: what the domain knows of it, and its device."""

    data: Any
    device: int


@dataclass(frozen=True)
class Group:
    """A tuple at run time; ``same``: its elements are copies of one value."""

    items: tuple[Item, ...]
    same: bool = False
    members: tuple[int, ...] = ()  # every device, where one element stands for many alike


Item = Leaf | Group
Members = tuple[int, ...]


class Domain(Protocol):
    """What happens to data: each method is one op on tensors of known devices."""

    def compute(
        self, eqn: DeviceEqn, args: Sequence[Leaf | Number], params: Mapping[str, Any], device: int
    ) -> list[Leaf]: ...
    def scatter(self, eqn: DeviceEqn, x: Leaf, dim: int, devices: Sequence[int], *, folded: bool) -> list[Leaf]: ...
    def broadcast(self, eqn: DeviceEqn, x: Leaf, devices: Sequence[int], *, folded: bool) -> list[Leaf]: ...
    def gather(self, eqn: DeviceEqn, xs: Sequence[Leaf], dim: int, device: int, members: Members) -> Leaf: ...
    def allreduce(self, eqn: DeviceEqn, xs: Sequence[Leaf], how: str, members: Members) -> list[Leaf]: ...
    def allgather(self, eqn: DeviceEqn, xs: Sequence[Leaf], dim: int, members: Members) -> list[Leaf]: ...
    def reduce_scatter(self, eqn: DeviceEqn, xs: Sequence[Leaf], dim: int, members: Members) -> list[Leaf]: ...
    def own_part(self, eqn: DeviceEqn, xs: Sequence[Leaf], dim: int, members: Members) -> list[Leaf]: ...
    def send(self, eqn: DeviceEqn, x: Leaf, device: int) -> Leaf: ...
    def split(self, eqn: DeviceEqn, x: Leaf, dim: int, parts: int) -> list[Leaf]: ...
    def annotate(self, value: DeviceValue, item: Item, scope: Scope) -> None: ...


@dataclass
class Scope:
    """What a body sees: the devices its variables stand for, sizes bound so far, values."""

    variables: dict[str, int] = field(default_factory=dict)
    paths: dict[str, Path | None] = field(default_factory=dict)
    path: Path | None = ()
    sizes: dict[str, int] = field(default_factory=dict)
    values: dict[DeviceValue, Item] = field(default_factory=dict)

    def inner(self, variable: str | None, device: int, path: Path | None) -> Scope:
        names = dict(self.variables)
        paths = dict(self.paths)
        if variable is not None:
            names[variable], paths[variable] = device, path
        return Scope(names, paths, path, dict(self.sizes))


class DeviceMachine:
    """Runs functions over a domain on a device map; ``fold`` says of which groups the first device stands for all."""

    def __init__(
        self,
        domain: Domain,
        device_map: DeviceMap | None,
        sizes: Mapping[str, int] | None = None,
        *,
        fold: Callable[[Path], bool] | None = None,
    ) -> None:
        self.domain = domain
        self.fold = fold
        self.device_map = device_map
        self.sizes = dict(sizes or {})
        self.touched: list[set[int]] = [set()]
        self.replicas: list[Members] = []  # of the pmaps around, those whose first replica stands for all
        self.uses: dict[int, list[frozenset[int]]] = {}
        self.groups: dict[int, tuple[Keys, object]] = {}  # groups of the map that values are spread over, each once

    def run(self, fn: Function, inputs: Sequence[Item]) -> list[Item]:
        """The outputs of a function on inputs that stand on their devices."""
        scope = Scope(sizes=dict(self.sizes))
        return self._body(fn, inputs, scope)

    def _body(self, fn: Function, inputs: Sequence[Item], scope: Scope) -> list[Item]:
        if len(inputs) != len(fn.inputs):
            raise ShapeError(
                f"{fn.name or 'A pmap'} takes {len(fn.inputs)} values, not {len(inputs)}.",
                why=f"its inputs are {', '.join(v.name for v in fn.inputs)}",
                fix="pass one tuple per input",
            )
        for value, item in zip(fn.inputs, inputs, strict=True):
            self.domain.annotate(value, item, scope)
            scope.values[value] = item
        for eqn in fn.eqns:
            try:
                outs = self._eqn(eqn, scope)
                check_results(eqn, len(outs))
                for value, item in zip(eqn.outputs, outs, strict=True):
                    self.domain.annotate(value, item, scope)
                    scope.values[value] = item
            except MeshwrightError as error:
                if not error.where:
                    error.where = repr(eqn)
                raise
        return [self._value(v, scope) for v in fn.outputs]

    def _value(self, value: DeviceValue, scope: Scope) -> Item:
        found = scope.values.get(value)
        if found is None:
            raise DeviceError(
                f"{value.name} is used where it is not defined.",
                why="the body of a pmap sees its own inputs only",
                fix=f"pass {value.name} to the pmap, as a tuple with one element per device",
            )
        return found

    # Devices

    def device(self, device: Device | int, scope: Scope) -> int:
        """The number of a device that may be a variable, a sub-device or an offset."""
        if isinstance(device, int):
            return device
        base = device.base
        if base is None:
            raise DeviceError("A device is not known.", why="it is written `?`", fix="name a device: 0, d, or d.1")
        number, path = self._named(device, scope)
        for step in device.steps:
            if path is None:
                raise DeviceError(
                    f"{device} is not a device.",
                    why=f"{base} is device {number}, which is not on this level of the device map",
                    fix=f"a device map with {number} on this level, such as {{{number}: [{number}, …]}}",
                )
            below = self._map(str(device)).lookup(path)
            if not 0 <= step < len(below):
                raise DeviceError(
                    f"{device} is not a device.",
                    why=f"there are {len(below)} devices below {base}: {', '.join(map(str, below))}",
                    fix=f"{base}.{len(below) - 1}",
                )
            number = below[step]
            path = (*path, number)
        if number + device.offset < 0:
            raise DeviceError(
                f"{device} is not a device.", why=f"{base} is device {number}", fix="devices are numbers: 0, 1, 2, …"
            )
        return number + device.offset

    def _named(self, device: Device, scope: Scope) -> tuple[int, Path | None]:
        """The device that a name begins with, and where it stands in the map."""
        base = device.base
        if base == "device_map":
            keys = self._map("device_map").keys()
            return (keys[0], ()) if device.sub is not None else (self._unnamed(device), None)
        if isinstance(base, str):
            if base not in scope.variables:
                raise _unbound(base, scope)
            return scope.variables[base], scope.paths[base]
        assert isinstance(base, int)
        here = self.device_map is not None and base in self.device_map
        return base, (base,) if here else None

    def _unnamed(self, device: Device) -> int:
        raise DeviceError(
            f"{device} is not a device.", why="it is the device map itself", fix="device_map.0, its first key"
        )

    def _map(self, wanted: str) -> DeviceMap:
        if self.device_map is None:
            raise DeviceError(
                "There is no device map.",
                why=f"{wanted} is looked up in one",
                fix="pass one: dist.resolve(fn, dist.DeviceMap({1: [1, 3], 2: [2, 4]}))",
            )
        return self.device_map

    def targets(self, eqn: DeviceEqn, scope: Scope) -> tuple[Sequence[int], bool]:
        """The devices a scatter or broadcast spreads over, and whether the first of them stands for all."""
        folded = False
        if "devices" in eqn.attributes:
            found: Sequence[int] = [self.device(d, scope) for d in eqn.attributes["devices"]]
            if len(set(found)) < len(found):
                raise DeviceError(
                    f"A {eqn.op} has the same device twice.",
                    why=f"its devices are {', '.join(map(str, found))}",
                    fix=f"devices={sorted(set(found))}",
                )
        else:
            keys = eqn.attributes.get("device_keys", Keys())
            path = []
            for key in keys:
                if isinstance(key, str):
                    if key not in scope.variables:
                        raise _unbound(key, scope)
                    path.append(scope.variables[key])
                else:
                    path.append(key if isinstance(key, int) else self.device(key, scope))
            group = self._map(f"device_keys={list(keys)}").lookup(path)
            found = self.groups.setdefault(id(group), (Keys(group), group))[0]
            folded = self.fold is not None and self.fold(tuple(path))
        parts = eqn.attributes.get("parts")
        if isinstance(parts, Dim):
            ((name, _),) = parts.powers
            scope.sizes[name] = len(found)
        return found, folded

    def _path_of(self, device: int, scope: Scope) -> Path | None:
        if self.device_map is None or scope.path is None:
            return None
        below = self.device_map.below(scope.path)
        return (*scope.path, device) if below is not None and device in below else None

    # Equations

    def _eqn(self, eqn: DeviceEqn, scope: Scope) -> list[Item]:
        if eqn.op is ops.PMAP:
            return self._pmap(eqn, scope)
        if eqn.op is ops.CALL:
            return self._call(eqn, scope)
        args = [x if isinstance(x, Number) else self._value(x, scope) for x in eqn.inputs]
        structural = ops.is_structural(eqn.op)
        outs = self._structural(eqn, args, scope) if structural else self._tensor(eqn, args, scope)
        for item in outs:
            self._touch(item)
        return outs

    def _touch(self, item: Item) -> None:
        if isinstance(item, Leaf):
            self.touched[-1].add(item.device)
        else:
            for inner in item.items:
                self._touch(inner)

    def _tensor(self, eqn: DeviceEqn, args: Sequence[Any], scope: Scope) -> list[Item]:
        first = next((x for x in args if isinstance(x, Leaf)), None)
        home = first.device if first is not None else self._home(args, scope)
        leaves = [x if isinstance(x, Number) else leaf(x, eqn, home) for x in args]
        devices = {x.device for x in leaves if isinstance(x, Leaf)}
        if len(devices) > 1:
            shown = ", ".join(
                f"{v.name} on {x.device}"
                for v, x in zip(eqn.inputs, leaves, strict=True)
                if isinstance(x, Leaf) and isinstance(v, DeviceValue)
            )
            raise DeviceError(
                f"The operands of {eqn.op} are on different devices.",
                why=shown,
                fix=f"send({eqn.values[-1].name}, to_device={min(devices)}) first",
            )
        params = {name: _bound(value, scope.sizes) for name, value in eqn.attributes.items() if name != "device"}
        if "device" in eqn.attributes:
            home = self.device(eqn.attributes["device"], scope)
        return list(self.domain.compute(eqn, leaves, params, devices.pop() if devices else home))

    def _home(self, args: Sequence[Any], scope: Scope) -> int:
        """Where an op without operands runs: a copy of its operand's device, or the device of the body."""
        for x in args:
            if isinstance(x, Group):
                return first_leaf(x).device
        return scope.variables[list(scope.variables)[-1]] if scope.variables else 0

    def _structural(self, eqn: DeviceEqn, args: Sequence[Any], scope: Scope) -> list[Item]:
        op, domain = eqn.op, self.domain
        if not args or any(isinstance(x, Number) for x in args):
            raise ShapeError(
                f"{op} takes values.",
                why="a number has no device" if args else "it is given none",
                fix=f"{op}(x, …) of a value x",
            )
        if op is ops.TUPLE:
            return [Group(tuple(args))]
        if op is ops.ITEM:
            group = _group(args[0], eqn)
            index = _attribute(eqn, "index")
            if not isinstance(index, int) or not 0 <= index < len(group.items):
                raise ShapeError(
                    f"A tuple of {len(group.items)} has no item {index}.", fix=f"index={len(group.items) - 1}"
                )
            return [group.items[index]]
        if op is ops.SCATTER:
            devices, folded = self.targets(eqn, scope)
            parts = domain.scatter(eqn, leaf(args[0], eqn), _dim_of(eqn), devices, folded=folded)
            return _packed(eqn, self._fold(parts, False, devices, folded))
        if op is ops.BROADCAST:
            devices, folded = self.targets(eqn, scope)
            copies = domain.broadcast(eqn, leaf(args[0], eqn), devices, folded=folded)
            return _packed(eqn, self._fold(copies, True, devices, folded))
        if op is ops.SEND:
            to = self.device(_attribute(eqn, "to_device"), scope)
            x = leaf(args[0], eqn, to)
            return [x if x.device == to else domain.send(eqn, x, to)]
        if op is ops.SPLIT:
            parts_count = _bound(_attribute(eqn, "parts"), scope.sizes)
            return _packed(eqn, Group(tuple(domain.split(eqn, leaf(args[0], eqn), _dim_of(eqn), parts_count))))
        return self._collective(eqn, args, scope)

    def _collective(self, eqn: DeviceEqn, args: Sequence[Any], scope: Scope) -> list[Item]:
        """An op on the tensors of a tuple, one on each of several devices."""
        op, domain = eqn.op, self.domain
        # Tensors side by side are a tuple; a single one is where the result is written as one, too.
        alone = isinstance(args[0], Leaf) and isinstance(eqn.outputs[0].type, Tensor)
        group = args[0] if len(args) == 1 and not alone else Group(tuple(args))
        if not isinstance(group, Group):
            raise ShapeError(
                f"{op} takes a tuple.",
                why=f"{eqn.values[0].name} is one tensor",
                fix=f"{op} of what scatter, broadcast or pmap gives",
            )
        inner = [item for item in group.items if isinstance(item, Group)]
        if op is ops.ALLREDUCE and inner and (_nested(eqn.outputs[0].type) or not all(item.same for item in inner)):
            return [self._element_by_element(eqn, group)]
        leaves = [leaf(item, eqn) for item in group.items]
        devices_used = [x.device for x in leaves]
        members = group.members or tuple(devices_used)
        if op is not ops.GATHER and len(set(devices_used)) < len(leaves):
            raise DeviceError(
                f"{op} has two tensors on one device.",
                why=f"they are on {', '.join(map(str, devices_used))}",
                fix="one tensor per device; add those that share one first",
            )
        if op is ops.GATHER:
            return [domain.gather(eqn, leaves, _dim_of(eqn), self.device(_attribute(eqn, "to_device"), scope), members)]
        if op is ops.ALLREDUCE:
            totals = domain.allreduce(eqn, leaves, eqn.attributes.get("reduce", "sum"), members)
            return _packed(eqn, Group(tuple(totals), True, group.members))
        if op is ops.ALLGATHER:
            return _packed(eqn, Group(tuple(domain.allgather(eqn, leaves, _dim_of(eqn), members)), True, group.members))
        if op is ops.OWN_PART:
            if not group.same:
                raise ShapeError(
                    "own_part takes copies of one value.",
                    why=f"the elements of {eqn.values[0].name} differ",
                    fix=f"allgather({eqn.values[0].name}, dim=0) first",
                )
            return _packed(eqn, Group(tuple(domain.own_part(eqn, leaves, _dim_of(eqn), members)), False, group.members))
        parts = domain.reduce_scatter(eqn, leaves, _dim_of(eqn), members)
        return _packed(eqn, Group(tuple(parts), False, group.members))

    def _element_by_element(self, eqn: DeviceEqn, group: Group) -> Group:
        """An allreduce of tuples: the first elements with each other, the second, …"""
        inner = [item for item in group.items if isinstance(item, Group)]
        lengths = {len(item.items) for item in inner}
        if len(inner) < len(group.items) or len(lengths) > 1:
            raise ShapeError(
                f"{eqn.op} takes tuples of one length.",
                why=f"the elements of {eqn.values[0].name} have {', '.join(map(str, sorted(lengths)))} elements",
                fix="gather the parts first",
            )
        how = eqn.attributes.get("reduce", "sum")
        columns = []
        self.replicas += [inner[0].members] if inner[0].members else []  # one column stands for all
        for parts in zip(*(item.items for item in inner), strict=True):
            leaves = [leaf(part, eqn) for part in parts]
            members = group.members or tuple(x.device for x in leaves)
            columns.append(self.domain.allreduce(eqn, leaves, how, members))
        if inner[0].members:
            self.replicas.pop()
        rows = zip(*columns, strict=True)
        items = tuple(Group(tuple(row), item.same, item.members) for row, item in zip(rows, inner, strict=True))
        return Group(items, True, group.members)

    def _fold(self, items: Sequence[Leaf], same: bool, devices: Sequence[int], folded: bool) -> Group:
        return Group((items[0],), same, Keys(devices)) if folded else Group(tuple(items), same)

    def _pmap(self, eqn: DeviceEqn, scope: Scope) -> list[Item]:
        """A pmap; one with a device map of its own has it for its body."""
        own = eqn.attributes.get("device_map")
        if own is None:
            return self._replicas(eqn, scope)
        outer, self.device_map = self.device_map, own
        try:
            return self._replicas(eqn, replace(scope, paths=dict.fromkeys(scope.paths), path=()))
        finally:
            self.device_map = outer

    def _replicas(self, eqn: DeviceEqn, scope: Scope) -> list[Item]:
        body = eqn.body
        assert body is not None
        groups = [_group(self._value(v, scope), eqn, v.name) for v in eqn.values]
        lengths = [len(g.members or g.items) for g in groups]
        if not groups or len(set(lengths)) > 1 or len({len(g.items) for g in groups}) > 1:
            shown = ", ".join(f"{v.name} has {n}" for v, n in zip(eqn.values, lengths, strict=True))
            raise ShapeError(
                "The tuples of a pmap differ in length." if groups else "A pmap has no operands.",
                why=shown or "a pmap runs once per element of its tuples",
                fix="scatter or broadcast them over the same devices",
            )
        owner: dict[int, int] = {}
        members = next((g.members for g in groups if g.members), ())
        self.replicas += [members] if members else []
        columns: list[list[Item]] = [[] for _ in body.outputs]
        for n in range(len(groups[0].items)):
            outs, used = self._replica(eqn, body, [g.items[n] for g in groups], scope)
            for device in used:
                if owner.setdefault(device, n) != n:
                    raise DeviceError(
                        f"Two replicas of a pmap use device {device}.",
                        why=f"replicas {owner[device]} and {n} of {eqn.outputs[0].name} both place values on it",
                        fix="give each replica devices of its own: a device map such as {1: [1, 3], 2: [2, 4]}",
                    )
            for column, item in zip(columns, outs, strict=True):
                column.append(item)
        self.touched[-1].update(owner)
        if members:
            self.replicas.pop()
        same = [all(groups[n].same for n in used) for used in self._uses(body)]
        return [Group(tuple(column), copies, members) for column, copies in zip(columns, same, strict=True)]

    def _uses(self, body: Function) -> list[frozenset[int]]:
        """The inputs each output of a body depends on: from copies come copies."""
        found = self.uses.get(id(body))
        if found is None:
            uses: dict[DeviceValue, frozenset[int]] = {v: frozenset({n}) for n, v in enumerate(body.inputs)}
            for eqn in body.eqns:
                if eqn.body is not None:
                    inner = [[eqn.values[n] for n in used] for used in self._uses(eqn.body)]
                else:
                    inner = [[x for x in xs if isinstance(x, DeviceValue)] for xs in operands_of(eqn)]
                for out, values in zip(eqn.outputs, inner, strict=True):
                    uses[out] = frozenset().union(*(uses[x] for x in values))
            found = self.uses[id(body)] = [uses[v] for v in body.outputs]
        return found

    def _replica(
        self, eqn: DeviceEqn, body: Function, items: Sequence[Item], scope: Scope
    ) -> tuple[list[Item], set[int]]:
        first = first_leaf(next((x for x in items if isinstance(x, Leaf)), items[0]))
        inputs = [
            x if isinstance(x, Leaf) or not x.same or isinstance(v.type, Tuple) else self._near(x, eqn, first.device)
            for v, x in zip(body.inputs, items, strict=True)
        ]
        for value, x in zip(eqn.values, inputs, strict=True):
            if isinstance(x, Leaf) and x.device != first.device:
                raise DeviceError(
                    f"The operands of a {eqn.op} are on different devices.",
                    why=f"{eqn.values[0].name} is on {first.device}, {value.name} on {x.device}",
                    fix="scatter or broadcast them over the same devices, in the same order",
                )
        self.touched.append({first.device})
        inner = scope.inner(body.variable, first.device, self._path_of(first.device, scope))
        outs = self._body(body, inputs, inner)
        # A replica answers on its own device: of copies, the one there counts. Where a tuple is written, it stays one.
        outs = [
            self._near(x, eqn, first.device) if isinstance(x, Group) and x.same and not _tupled(eqn, v) else x
            for v, x in zip(eqn.outputs, outs, strict=True)
        ]
        return outs, self.touched.pop()

    def _near(self, item: Group, eqn: DeviceEqn, device: int) -> Leaf:
        """The copy on a device; where there is none, the first is sent there."""
        found = leaf(item, eqn, device)
        return found if found.device == device else self.domain.send(eqn, found, device)

    def _call(self, eqn: DeviceEqn, scope: Scope) -> list[Item]:
        assert eqn.body is not None
        outs, used = self._replica(eqn, eqn.body, [self._value(v, scope) for v in eqn.values], scope)
        self.touched[-1].update(used)
        return outs


def _packed(eqn: DeviceEqn, group: Group) -> list[Item]:
    """One tuple, or its elements where the equation names each of them: also the only one, written as a tensor."""
    only = len(group.members or group.items) == 1 and isinstance(eqn.outputs[0].type, Tensor)
    return [group] if len(eqn.outputs) == 1 and not only else list(group.items)


def _unbound(name: str, scope: Scope) -> DeviceError:
    known = ", ".join(scope.variables) or "none"
    return DeviceError(
        f"The device variable {name} is not bound here.",
        why=f"it belongs to no enclosing pmap; the variables here are: {known}",
        fix=f"use it inside `pmap(lambda {name}: lambda (…): {{…}}, …)`",
    )


def _group(item: Item, eqn: DeviceEqn, name: str = "") -> Group:
    if isinstance(item, Group):
        return item
    name = name or eqn.values[0].name
    raise ShapeError(
        f"{eqn.op} takes tuples.",
        why=f"{name} is one tensor, on device {item.device}",
        fix=f"broadcast({name}, device_keys=[]) or scatter({name}, dim=0, device_keys=[]) first",
    )


def first_leaf(item: Item) -> Leaf:
    """The first tensor of a (nested) tuple."""
    while isinstance(item, Group):
        item = item.items[0]
    return item


def leaf(item: Item, eqn: DeviceEqn, near: int | None = None) -> Leaf:
    """A tensor where one is wanted: a tuple of copies stands for the copy on device ``near``, or else the first."""
    if isinstance(item, Leaf):
        return item
    if not item.same:
        raise ShapeError(
            f"{eqn.op} takes a tensor where it is given a tuple.",
            why=f"{eqn.values[0].name} has {len(item.items)} different elements",
            fix="gather or allreduce it first; a tuple of copies may stand for one of them",
        )
    copies = [leaf(inner, eqn, near) for inner in item.items]
    return next((x for x in copies if x.device == near), copies[0])


# Attributes


def _attribute(eqn: DeviceEqn, name: str) -> Any:
    """An attribute that an op cannot do without."""
    if name not in eqn.attributes:
        raise ShapeError(
            f"{eqn.op} needs {name}.", why="it does not follow from the operands", fix=f"{eqn.op}(…, {name}=0)"
        )
    return eqn.attributes[name]


def _bound(value: Any, sizes: Mapping[str, int]) -> Any:
    """An attribute with numbers for its symbols."""
    if isinstance(value, Dim):
        return bind(value, sizes)
    return type(value)(_bound(item, sizes) for item in value) if type(value) is tuple else value


def _dim_of(eqn: DeviceEqn) -> int:
    """The dim that an op cuts or joins."""
    found = _attribute(eqn, "dim")
    if not isinstance(found, int) or isinstance(found, bool):
        raise ShapeError(f"The dim of {eqn.op} is a whole number.", why=f"it is {found!r}", fix="dim=0")
    return found


def _nested(type: Type | None) -> bool:
    """Whether a type is a tuple of tuples."""
    return isinstance(type, Tuple) and bool(type.items) and isinstance(type.items[0], Tuple)


def _tupled(eqn: DeviceEqn, value: DeviceValue) -> bool:
    """Whether the result of a replica is written as a tuple."""
    return _nested(value.type) if eqn.op is ops.PMAP else isinstance(value.type, Tuple)
