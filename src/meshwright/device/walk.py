"""The one walk over a device program: which device each value is on, with pmaps run replica by replica.

It writes the flat program, in which every value is a tensor on a device with a number, and checks annotations on the
way. What else is made of a device program (its outputs, a simulation, a program on a mesh) is made of the flat one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from meshwright.core.dtypes import is_inexact
from meshwright.core.op import Op
from meshwright.device import ops
from meshwright.device.device_map import DeviceMap, Devices, Members, Path, as_members
from meshwright.device.dims import Dim, bind, divide, is_whole, solve
from meshwright.device.function import DeviceEqn, DeviceValue, Function, Keys, Number, Operand
from meshwright.device.symmetry import Covers, device_of
from meshwright.device.tensor_ops import infer, operands_of, params_of, signatures, tensor_of
from meshwright.device.types import Device, Tensor, Tuple, Type
from meshwright.device.typing import check_results
from meshwright.errors import DeviceError, MeshwrightError, ShapeError


@dataclass(frozen=True)
class Group:
    """A tuple of values of the flat program; ``same``: its elements are copies of one value."""

    items: tuple[Item, ...]
    same: bool = False
    members: Members = ()  # every device, where one element stands for many alike


Item = DeviceValue | Group
Variables = dict[str, tuple[int, Path | None]]


@dataclass
class Scope:
    """What a body sees: its variables' devices and where these stand in the map, sizes bound so far, values."""

    variables: Variables = field(default_factory=dict)
    path: Path | None = ()
    sizes: dict[str, int] = field(default_factory=dict)
    values: dict[DeviceValue, Item] = field(default_factory=dict)

    @property
    def home(self) -> int | None:
        """The device of the innermost body, None outside of all."""
        return [*self.variables.values()][-1][0] if self.variables else None

    def variable(self, name: str) -> tuple[int, Path | None]:
        """The device that a variable stands for, and where it is in the map."""
        if name not in self.variables:
            raise DeviceError(
                f"The device variable {name} is not bound here.",
                why="it belongs to no enclosing pmap; the variables here are: " + (", ".join(self.variables) or "none"),
                fix=f"use it inside `pmap(lambda {name}: lambda (…): {{…}}, …)`",
            )
        return self.variables[name]


class Walk:
    """Writes the flat program of a function; ``fold`` says of which groups the first device stands for all."""

    def __init__(
        self,
        fn: Function,
        device_map: DeviceMap | None,
        sizes: Mapping[str, int],
        fold: Callable[[Path], bool] | None = None,
    ) -> None:
        self.device_map, self.fold = device_map, fold
        self.symbols = symbols_of(fn) - set(sizes)
        self.covers = Covers(device_map)
        self.eqns: list[DeviceEqn] = []
        self.count: dict[tuple[str, int], int] = {}
        self.replicas: list[Members] = []  # of the pmaps around, those whose first replica stands for all
        self.uses: dict[int, list[frozenset[int]]] = {}
        self.fn, self.scope = fn, Scope(sizes=dict(sizes))
        self.inputs = [self.input(v.name, v.type, self.scope) for v in fn.inputs]

    def run(self) -> Self:
        """Walk the function: its outputs, as tuples of the values of the flat program, and that program."""
        self.outputs = self.body(self.fn, self.inputs, self.scope)
        for item in self.outputs:  # one tensor is that of one device, also where it stands for copies on others
            for v in flat_values([item]):
                stack = self.covers.values.get(v, ()) if isinstance(item, Group) else ()
                self.covers.returned[v] = max(self.covers.returned.get(v, ()), stack, key=len)
        self.flat = Function(self.fn.name, flat_values(self.inputs), tuple(self.eqns), flat_values(self.outputs))
        return self

    def input(self, name: str, type: Type | None, scope: Scope) -> Item:
        """An input, on the devices that its type names."""
        if type is None:
            raise DeviceError(
                f"The input {name} has no type.",
                why="its device and shape are not known",
                fix=f"{name}: Tensor[(B, F), 0]",
            )
        if isinstance(type, Tuple):
            return Group(tuple(self.input(name, inner, scope) for inner in type.items))
        if not type.device.is_concrete:
            raise DeviceError(
                f"The device of the input {name} is not known.",
                why=f"it is written {type}",
                fix=f"{name}: {type.on(Device(0))}",
            )
        return self.value(name, type.shaped(tuple(bind(n, scope.sizes) for n in type.shape)))

    def body(self, fn: Function, inputs: Sequence[Item], scope: Scope) -> list[Item]:
        """The outputs of a function on inputs that stand on their devices."""
        if len(inputs) != len(fn.inputs):
            raise ShapeError(
                f"{fn.name or 'A pmap'} takes {len(fn.inputs)} values, not {len(inputs)}.",
                why=f"its inputs are {', '.join(v.name for v in fn.inputs)}",
                fix="pass one tuple per input",
            )
        self.define(fn.inputs, inputs, scope)
        for eqn in fn.eqns:
            try:
                outs = self.eqn(eqn, scope)
                check_results(eqn, len(outs))
                self.define(eqn.outputs, outs, scope)
            except MeshwrightError as error:
                error.where = error.where or repr(eqn)
                raise
        return [self.known(v, scope) for v in fn.outputs]

    def define(self, values: Sequence[DeviceValue], items: Sequence[Item], scope: Scope) -> None:
        for value, item in zip(values, items, strict=True):
            if value.type is not None:
                self.match(value.name, value.type, item, scope)
            scope.values[value] = item

    def known(self, value: DeviceValue, scope: Scope) -> Item:
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
        path: Path | None
        if base is None:
            raise DeviceError("A device is not known.", why="it is written `?`", fix="name a device: 0, d, or d.1")
        if isinstance(base, int):
            number, path = base, (base,) if self.device_map is not None and base in self.device_map else None
        elif base == "device_map":
            if device.sub is None:
                raise _no_device(device, "it is the device map itself", "device_map.0, its first key")
            number, path = self.map("device_map").keys()[0], ()
        else:
            number, path = scope.variable(base)
        for step in device.steps:
            if path is None:
                raise _no_device(
                    device,
                    f"{base} is device {number}, which is not on this level of the device map",
                    f"a device map with {number} on this level, such as {{{number}: [{number}, …]}}",
                )
            below = self.map(str(device)).lookup(path)
            if not 0 <= step < len(below):
                shown = ", ".join(map(str, below))
                why = f"there are {len(below)} devices below {base}: {shown}"
                raise _no_device(device, why, f"{base}.{len(below) - 1}")
            number = below[step]
            path = (*path, number)
        if number + device.offset < 0:
            raise _no_device(device, f"{base} is device {number}", "devices are numbers: 0, 1, 2, …")
        return number + device.offset

    def map(self, wanted: str) -> DeviceMap:
        if self.device_map is None:
            raise DeviceError(
                "There is no device map.",
                why=f"{wanted} is looked up in one",
                fix="pass one: dist.resolve(fn, dist.DeviceMap({1: [1, 3], 2: [2, 4]}))",
            )
        return self.device_map

    def targets(self, eqn: DeviceEqn, scope: Scope) -> tuple[Members, bool]:
        """The devices a scatter or broadcast spreads over, and whether the first of them stands for all."""
        folded = False
        if "devices" in eqn.attributes:
            found = as_members([self.device(d, scope) for d in eqn.attributes["devices"]])
            if len(set(found)) < len(found):
                raise DeviceError(
                    f"A {eqn.op} has the same device twice.",
                    why=f"its devices are {', '.join(map(str, found))}",
                    fix=f"devices={sorted(set(found))}",
                )
        else:
            keys = eqn.attributes.get("device_keys", Keys())
            path = tuple(scope.variable(k)[0] if isinstance(k, str) else self.device(k, scope) for k in keys)
            found = self.map(f"device_keys={list(keys)}").group(path)
            folded = self.fold is not None and self.fold(path)
        parts = eqn.attributes.get("parts")
        if isinstance(parts, Dim):
            ((name, _),) = parts.powers
            scope.sizes[name] = len(found)
        return found, folded

    # Flat equations

    def value(self, name: str, type: Tensor, origin: DeviceValue | None = None) -> DeviceValue:
        device = type.device.base
        assert isinstance(device, int)
        count = self.count[name, device] = self.count.get((name, device), 0) + 1
        named = f"{name}_{device}" + (f"_{count}" if count > 1 else "")
        return DeviceValue(named, type, (origin, count) if origin is not None else None)

    def emit(
        self, eqn: DeviceEqn, op: Op, xs: Sequence[Operand], types: Sequence[Tensor], *groups: Members, **params: Any
    ) -> list[DeviceValue]:
        """Write an equation that is taken from all devices of a first group, and made on all of a second."""
        origins = eqn.outputs if len(eqn.outputs) == len(types) else eqn.outputs[:1] * len(types)
        outs = [self.value(v.name, t, v) for v, t in zip(origins, types, strict=True)]
        self.append(DeviceEqn(op, tuple(xs), tuple(outs), params), *(groups or ((), ())))
        return outs

    def append(self, eqn: DeviceEqn, taken: Members, made: Members) -> None:
        self.eqns.append(eqn)
        stack = tuple(self.replicas)
        self.covers.note(eqn, (*stack, taken) if taken else stack, (*stack, made) if made else stack)

    def eqn(self, eqn: DeviceEqn, scope: Scope) -> list[Item]:
        """The results of an equation."""
        args = [x if isinstance(x, Number) else self.known(x, scope) for x in eqn.inputs]
        if not ops.is_structural(eqn.op):
            return self.tensor(eqn, args, scope)
        items = [x for x in args if not isinstance(x, Number)]
        if eqn.body is not None:
            return self.pmap(eqn, items, scope) if eqn.op is ops.PMAP else self.replica(eqn, items, scope)
        if not items or len(items) < len(args):
            raise ShapeError(
                f"{eqn.op} takes values.",
                why="a number has no device" if args else "it is given none",
                fix=f"{eqn.op}(x, …) of a value x",
            )
        return self.structural(eqn, items, scope)

    def tensor(self, eqn: DeviceEqn, args: Sequence[Item | Number], scope: Scope) -> list[Item]:
        """An op on tensors of one device; without operands, on the device that is written or that of the body."""
        items = [x for x in args if not isinstance(x, Number)]
        home = self.device(eqn.attributes["device"], scope) if "device" in eqn.attributes else scope.home or 0
        home = home_of(items) if items else home
        inputs = [x if isinstance(x, Number) else tensor_in(x, eqn, home) for x in args]
        devices = {device_of(x) for x in inputs if isinstance(x, DeviceValue)}
        if len(devices) > 1:
            pairs = zip(eqn.values, (x for x in inputs if isinstance(x, DeviceValue)), strict=True)
            raise DeviceError(
                f"The operands of {eqn.op} are on different devices.",
                why=", ".join(f"{v.name} on {device_of(x)}" for v, x in pairs),
                fix=f"send({eqn.values[-1].name}, to_device={min(devices)}) first",
            )
        params = {name: _bound(value, scope.sizes) for name, value in params_of(eqn).items()}
        found = infer(eqn.op, signatures(inputs), params)
        here = Device(home)
        types = [Tensor(shape, here, dtype) for shape, dtype in found]
        return [*self.emit(eqn, eqn.op, inputs, types, **({} if items else {"device": here}), **params)]

    def structural(self, eqn: DeviceEqn, items: Sequence[Item], scope: Scope) -> list[Item]:
        """An op on tuples, or between devices."""
        op = eqn.op
        if op is ops.TUPLE:
            return [Group(tuple(items))]
        if op is ops.ITEM:
            group = _tuple(items[0], eqn)
            index = _attribute(eqn, "index")
            if not isinstance(index, int) or not 0 <= index < len(group.items):
                last = len(group.items) - 1
                raise ShapeError(f"A tuple of {last + 1} has no item {index}.", fix=f"index={last}")
            return [group.items[index]]
        if op in (ops.SCATTER, ops.BROADCAST):
            devices, folded = self.targets(eqn, scope)
            x = tensor_in(items[0], eqn)
            part, cut = tensor_of(x), {} if op is ops.BROADCAST else {"dim": _number(eqn, "dim", 0, scope.sizes)}
            if cut:
                part = _resized(eqn, part, cut["dim"], len(devices))
            types = [part.on(Device(d)) for d in (devices[:1] if folded else devices)]
            made = devices if folded else ()
            parts = self.emit(eqn, op, [x], types, (), made, **cut, devices=Keys(made or [*devices]))
            return _packed(eqn, Group(tuple(parts), not cut, made))
        if op is ops.SEND:
            to = self.device(_attribute(eqn, "to_device"), scope)
            return [self.near(items[0], eqn, to)]
        if op is ops.SPLIT:
            count, dim = _number(eqn, "parts", 1, scope.sizes), _number(eqn, "dim", 0, scope.sizes)
            x = tensor_in(items[0], eqn)
            part = _resized(eqn, tensor_of(x), dim, count)
            return _packed(eqn, Group(tuple(self.emit(eqn, op, [x], [part] * count, dim=dim, parts=count))))
        return self.collective(eqn, items, scope)

    def near(self, item: Item, eqn: DeviceEqn, device: int) -> DeviceValue:
        """A tensor on a device: the copy there, or else what is sent there."""
        x = tensor_in(item, eqn, device)
        if device_of(x) == device:
            return x
        # In the replicas that a folded one stands for, devices that are as far apart send at once.
        together = {"members": Keys(Devices(device_of(x), self.replicas))} if self.replicas else {}
        to = Device(device)
        return self.emit(eqn, ops.SEND, [x], [tensor_of(x).on(to)], to_device=to, **together)[0]

    def collective(self, eqn: DeviceEqn, items: Sequence[Item], scope: Scope) -> list[Item]:
        """An op on the tensors of a tuple, one on each of several devices."""
        op = eqn.op
        # Tensors side by side are a tuple; a single one is where the result is written as one, too.
        alone = isinstance(items[0], DeviceValue) and isinstance(eqn.outputs[0].type, Tensor)
        group = items[0] if len(items) == 1 and not alone else Group(tuple(items))
        if not isinstance(group, Group):
            raise ShapeError(
                f"{op} takes a tuple.",
                why=f"{eqn.values[0].name} is one tensor",
                fix=f"{op} of what scatter, broadcast or pmap gives",
            )
        inner = [item for item in group.items if isinstance(item, Group)]
        if op is ops.ALLREDUCE and inner and (_nested(eqn.outputs[0].type) or not all(item.same for item in inner)):
            return [self.element_by_element(eqn, group, inner)]
        xs = [tensor_in(item, eqn) for item in group.items]
        if op is ops.GATHER:
            to = Device(self.device(_attribute(eqn, "to_device"), scope))
            return [*self.together(eqn, xs, group, to_device=to)]
        if len({device_of(x) for x in xs}) < len(xs):
            raise DeviceError(
                f"{op} has two tensors on one device.",
                why=f"they are on {', '.join(str(device_of(x)) for x in xs)}",
                fix="one tensor per device; add those that share one first",
            )
        if op is ops.OWN_PART and not group.same:
            raise ShapeError(
                "own_part takes copies of one value.",
                why=f"the elements of {eqn.values[0].name} differ",
                fix=f"allgather({eqn.values[0].name}, dim=0) first",
            )
        same = op in (ops.ALLREDUCE, ops.ALLGATHER)
        return _packed(eqn, Group(tuple(self.together(eqn, xs, group)), same, group.members))

    def together(self, eqn: DeviceEqn, xs: Sequence[DeviceValue], group: Group, **to: Device) -> list[DeviceValue]:
        """The results of a collective: one where it says ``to`` which device, or one on each device."""
        op, type, attributes = eqn.op, tensor_of(xs[0]), dict[str, Any](to)
        count = len(group.members or xs)
        members = group.members if count > len(xs) else ()  # where one stands for all
        if len(set(signatures(xs))) > 1:
            raise ShapeError(
                f"{op} takes tensors of one shape.",
                why=", ".join(str(x.type) for x in xs),
                fix="make the parts equal first",
            )
        if op is ops.ALLREDUCE:
            how = eqn.attributes.get("reduce", "sum")
            _check_reduce(eqn, how, type)
            attributes = {} if how == "sum" else {"reduce": how}
        else:
            dim = _number(eqn, "dim", 0, {})
            attributes = {"dim": dim, **attributes}
            type = _resized(eqn, type, dim, count)
        if members:
            attributes["members"] = Keys(members)
        types = [type.on(d) for d in to.values()] or [type.on(tensor_of(x).device) for x in xs]
        if op is not ops.OWN_PART:
            return self.emit(eqn, op, xs, types, members, () if to else members, **attributes)
        made = []
        for n, (x, here) in enumerate(zip(xs, types, strict=True)):
            parts = DeviceValue(f"{eqn.outputs[0].name}_parts_{device_of(x)}", Tuple((here,) * count))
            self.append(DeviceEqn(ops.SPLIT, (x,), (parts,), {"dim": dim, "parts": count}), members, members)
            made += self.emit(eqn, ops.ITEM, [parts], [here], members, members, index=n)
        return made

    def element_by_element(self, eqn: DeviceEqn, group: Group, inner: Sequence[Group]) -> Group:
        """An allreduce of tuples: the first elements with each other, the second, …"""
        lengths = {len(item.items) for item in inner}
        if len(inner) < len(group.items) or len(lengths) > 1:
            raise ShapeError(
                f"{eqn.op} takes tuples of one length.",
                why=f"the elements of {eqn.values[0].name} have {', '.join(map(str, sorted(lengths)))} elements",
                fix="gather the parts first",
            )
        outer, members = self.replicas, inner[0].members
        self.replicas = [*outer, members] if members else outer
        columns = zip(*(item.items for item in inner), strict=True)  # where one stands for all, it is in each replica
        totals = [self.together(eqn, [tensor_in(part, eqn) for part in parts], group) for parts in columns]
        self.replicas = outer
        rows = zip(zip(*totals, strict=True), inner, strict=True)
        return Group(tuple(Group(row, item.same, item.members) for row, item in rows), True, group.members)

    # Bodies

    def pmap(self, eqn: DeviceEqn, items: Sequence[Item], scope: Scope) -> list[Item]:
        """The replicas of a pmap, one per element of its tuples; a device map of its own is for its body."""
        body, outer = eqn.body, self.device_map
        assert body is not None
        groups = [_tuple(item, eqn, v.name) for v, item in zip(eqn.values, items, strict=True)]
        lengths = [len(g.members or g.items) for g in groups]
        if not groups or len(set(lengths)) > 1 or len({len(g.items) for g in groups}) > 1:
            shown = ", ".join(f"{v.name} has {n}" for v, n in zip(eqn.values, lengths, strict=True))
            raise ShapeError(
                "The tuples of a pmap differ in length." if groups else "A pmap has no operands.",
                why=shown or "a pmap runs once per element of its tuples",
                fix="scatter or broadcast them over the same devices",
            )
        if "device_map" in eqn.attributes:
            self.device_map = eqn.attributes["device_map"]
            lost: Variables = {name: (device, None) for name, (device, _) in scope.variables.items()}
            scope = replace(scope, variables=lost, path=())
        owner: dict[int, int] = {}
        members = next((g.members for g in groups if g.members), ())
        outside, self.replicas = self.replicas, [*self.replicas, members] if members else self.replicas
        rows = []
        for n, row in enumerate(zip(*(g.items for g in groups), strict=True)):
            start = len(self.eqns)
            rows.append(self.replica(eqn, row, scope))
            for device in (home_of(row), *(device_of(v) for e in self.eqns[start:] for v in e.outputs)):
                if owner.setdefault(device, n) != n:
                    raise DeviceError(
                        f"Two replicas of a pmap use device {device}.",
                        why=f"replicas {owner[device]} and {n} of {eqn.outputs[0].name} both place values on it",
                        fix="give each replica devices of its own: a device map such as {1: [1, 3], 2: [2, 4]}",
                    )
        self.device_map, self.replicas = outer, outside
        same = [all(groups[n].same for n in used) for used in self.used(body)]
        return [Group(column, copies, members) for column, copies in zip(zip(*rows), same, strict=True)]

    def used(self, body: Function) -> list[frozenset[int]]:
        """The inputs each output of a body depends on: from copies come copies."""
        found = self.uses.get(id(body))
        if found is None:
            uses: dict[DeviceValue, frozenset[int]] = {v: frozenset({n}) for n, v in enumerate(body.inputs)}
            for eqn in body.eqns:
                if eqn.body is not None:
                    inner = [[eqn.values[n] for n in used] for used in self.used(eqn.body)]
                else:
                    inner = [[x for x in xs if isinstance(x, DeviceValue)] for xs in operands_of(eqn)]
                for out, values in zip(eqn.outputs, inner, strict=True):
                    uses[out] = frozenset().union(*(uses[x] for x in values))
            found = self.uses[id(body)] = [uses[v] for v in body.outputs]
        return found

    def replica(self, eqn: DeviceEqn, items: Sequence[Item], scope: Scope) -> list[Item]:
        """The outputs of a body on its device."""
        body, home = eqn.body, home_of(items)
        assert body is not None
        inputs = [
            self.near(x, eqn, home) if isinstance(x, Group) and x.same and not isinstance(v.type, Tuple) else x
            for v, x in zip(body.inputs, items, strict=True)
        ]
        for value, x in zip(eqn.values, inputs, strict=True):
            if isinstance(x, DeviceValue) and device_of(x) != home:
                raise DeviceError(
                    f"The operands of a {eqn.op} are on different devices.",
                    why=f"{eqn.values[0].name} is on {home}, {value.name} on {device_of(x)}",
                    fix="scatter or broadcast them over the same devices, in the same order",
                )
        below = self.device_map.below(scope.path) if self.device_map is not None and scope.path is not None else None
        path = (*(scope.path or ()), home) if below is not None and home in below else None
        named = {} if body.variable is None else {body.variable: (home, path)}
        outs = self.body(body, inputs, Scope({**scope.variables, **named}, path, dict(scope.sizes)))
        # A replica answers on its own device: of copies, the one there counts. Where a tuple is written, it stays one.
        return [
            self.near(x, eqn, home) if isinstance(x, Group) and x.same and not _tupled(eqn, v) else x
            for v, x in zip(eqn.outputs, outs, strict=True)
        ]

    # Annotations

    def match(self, name: str, written: Type, item: Item, scope: Scope) -> None:
        """Check what is written of a value."""
        if isinstance(written, Tensor) and isinstance(item, Group) and item.same:
            (item, *_) = flat_values([item])
            written = written.on(Device())
        if isinstance(written, Tuple) != isinstance(item, Group):
            raise _mismatch(name, written, show(item))
        if isinstance(written, Tuple):
            assert isinstance(item, Group)
            if not written.more and len(written.items) != len(item.members or item.items):
                raise ShapeError(
                    f"{name} has {len(item.items)} elements, its annotation {len(written.items)}.",
                    why=f"it is written {written}, and is {show(item)}",
                    fix=f"{name}: {show(item)}",
                )
            for n, inner in enumerate(item.items):
                self.match(name, written.items[min(n, len(written.items) - 1)], inner, scope)
            return
        assert isinstance(item, DeviceValue)
        found = tensor_of(item)
        shape = [bind(n, scope.sizes) for n in written.shape]
        if len(shape) != len(found.shape) or written.dtype != found.dtype:
            raise _mismatch(name, written, str(found))
        for n, (size, real) in enumerate(zip(shape, found.shape, strict=True)):
            # A symbol that is none of the inputs' is given a number: ``B/N`` is ``B/2`` where N = 2.
            solved = solve(size, real) if size != real else None
            if solved is not None and solved[0] not in self.symbols | scope.sizes.keys():
                scope.sizes[solved[0]] = solved[1]
            elif size != real:
                raise _mismatch(name, written, str(found), f": dim {n} is {real}, not {written.shape[n]}")
        device = written.device
        if device.base is None or (device.base == "device_map" and device.sub is None):
            return
        expected = self.device(device, scope)
        if expected != device_of(item):
            raise DeviceError(
                f"{name} is on another device than its annotation says.",
                why=f"it is written {written}, and is on device {device_of(item)}"
                + (f" ({device} stands for {expected})" if str(expected) != str(device) else ""),
                fix=f"{name}: {found}",
            )


# Values


def flat_values(items: Iterable[Item]) -> tuple[DeviceValue, ...]:
    """The tensors of (nested) tuples, in order."""
    found: list[DeviceValue] = []
    for item in items:
        found += (item,) if isinstance(item, DeviceValue) else flat_values(item.items)
    return tuple(found)


def home_of(items: Sequence[Item]) -> int:
    """Where a body or an op on these runs: a tensor says so, or else the first of a tuple."""
    return device_of(next((x for x in items if isinstance(x, DeviceValue)), None) or flat_values(items[:1])[0])


def tensor_in(item: Item, eqn: DeviceEqn, near: int | None = None) -> DeviceValue:
    """A tensor where one is wanted: a tuple of copies stands for the copy on device ``near``, or else the first."""
    if isinstance(item, DeviceValue):
        return item
    if not item.same:
        raise ShapeError(
            f"{eqn.op} takes a tensor where it is given a tuple.",
            why=f"{eqn.values[0].name} has {len(item.items)} different elements",
            fix="gather or allreduce it first; a tuple of copies may stand for one of them",
        )
    copies = [tensor_in(inner, eqn, near) for inner in item.items]
    return next((x for x in copies if device_of(x) == near), copies[0])


def _tuple(item: Item, eqn: DeviceEqn, name: str = "") -> Group:
    if isinstance(item, Group):
        return item
    name = name or eqn.values[0].name
    raise ShapeError(
        f"{eqn.op} takes tuples.",
        why=f"{name} is one tensor, on device {device_of(item)}",
        fix=f"broadcast({name}, device_keys=[]) or scatter({name}, dim=0, device_keys=[]) first",
    )


def _packed(eqn: DeviceEqn, group: Group) -> list[Item]:
    """One tuple, or its elements where the equation names each of them: also the only one, written as a tensor."""
    only = len(group.members or group.items) == 1 and isinstance(eqn.outputs[0].type, Tensor)
    return [group] if len(eqn.outputs) == 1 and not only else list(group.items)


# Types and attributes


def _no_device(device: Device, why: str, fix: str) -> DeviceError:
    return DeviceError(f"{device} is not a device.", why=why, fix=fix)


def symbols_of(fn: Function) -> frozenset[str]:
    """The symbols among the sizes of a function's inputs."""
    sizes = (size for v in fn.inputs if v.type is not None for size in tensor_of(v).shape)
    return frozenset(name for size in sizes if isinstance(size, Dim) for name, _ in size.powers)


def show(item: Item) -> str:
    """A value's type as text."""
    return str(item.type) if isinstance(item, DeviceValue) else f"Tuple[{', '.join(map(show, item.items))}]"


def _mismatch(name: str, written: Type, found: str, where: str = "") -> ShapeError:
    return ShapeError(
        f"{name} is not what its annotation says.",
        why=f"it is written {written}, and is {found}{where}",
        fix=f"{name}: {found}",
    )


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


def _number(eqn: DeviceEqn, name: str, least: int, sizes: Mapping[str, int]) -> int:
    """An attribute that is a number: the dim that an op cuts or joins, or how many parts there are."""
    found = _bound(_attribute(eqn, name), sizes)
    if not isinstance(found, int) or isinstance(found, bool) or (least and found < least):
        raise ShapeError(f"The {name} of {eqn.op} is a whole number.", why=f"it is {found!r}", fix=f"{name}={least}")
    return found


def _nested(type: Type | None) -> bool:
    """Whether a type is a tuple of tuples."""
    return isinstance(type, Tuple) and bool(type.items) and isinstance(type.items[0], Tuple)


def _tupled(eqn: DeviceEqn, value: DeviceValue) -> bool:
    """Whether the result of a replica is written as a tuple."""
    return _nested(value.type) if eqn.op is ops.PMAP else isinstance(value.type, Tuple)


def _resized(eqn: DeviceEqn, type: Tensor, dim: int, parts: int) -> Tensor:
    """A tensor of which there are so many parts, or which is one of so many."""
    joins = eqn.op in (ops.GATHER, ops.ALLGATHER)
    if not 0 <= dim < len(type.shape):
        what, of = (f"join along dim {dim}", "the parts are") if joins else (f"cut dim {dim}", "the tensor is")
        last = 0 if joins else max(len(type.shape) - 1, 0)
        raise ShapeError(f"{eqn.op} cannot {what}.", why=f"{of} {type}", fix=f"dim={last}")
    size = type.shape[dim] * parts if joins else divide(type.shape[dim], parts)
    if not is_whole(size):
        into = "parts" if eqn.op is ops.SPLIT else "devices"
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
    wanted, name = _REDUCTIONS[how], eqn.values[0].name
    if wanted != kind and not (wanted == "numbers" and kind != "bools"):
        dtype = "bool" if wanted == "bools" else "f32"
        raise ShapeError(
            f"An allreduce by {how} takes {wanted}.",
            why=f"{name} is {type}",
            fix=f"pmap(lambda d: lambda (x): {{ y = convert(x, dtype={dtype}) return y }}, ({name},)) first",
        )
