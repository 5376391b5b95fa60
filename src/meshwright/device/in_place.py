"""Keeping parts where they are: what one body gathers and the next scatters again stays in parts.

    ys = pmap(… y = gather(parts, dim=0, to_device=d) return y …)      ys = pmap(… return parts …)
    zs = allreduce(ys)                                            ==>  zs = allreduce(ys)
    … = pmap(lambda d: lambda (z): { ps = scatter(z, dim=0, …) … })     … = pmap(lambda d: lambda (ps): { … })

An allreduce of tuples reduces them element by element.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from meshwright.device.from_program import takes_program
from meshwright.device.function import DeviceEqn, DeviceValue, Function
from meshwright.device.types import Tensor, Tuple


@takes_program
def keep_in_place(fn: Function) -> Function:
    """The same program, with parts that are gathered only to be scattered again left on their devices.

    It applies to every level where the number of parts is known (a device map of the program, or ``parts=`` of the
    transform): groups of different sizes have parts that do not meet. A program that transforms have nested moves less
    after it.

    >>> from meshwright import dist
    >>> step = "y = MatMul(x, w) g = dot_general(x, y, contract=((0,), (0,)), batch=((), ()), dtype=None) v = sub(w, g)"
    >>> fn = dist.parse(f"def f(w: Tensor[(4, 6), 0], x: Tensor[(8, 4), 0]): {step} return v")
    >>> fn = dist.horizontal_parallel(dist.data_parallel(fn, {"x": 0}), {"x": 0}, ["d"], parts=2)
    >>> [len(dist.resolve(f, {1: [1, 3], 2: [2, 4]}).eqns) for f in (fn, dist.keep_in_place(fn))]
    [28, 25]
    """
    found = fn.with_bodies(keep_in_place)
    parts = _InParts(found)
    kept = [value for eqn in found.eqns for value in eqn.outputs if parts.keep(eqn, value)]
    if not kept:
        return found
    eqns = tuple(_renamed(eqn, parts.new, parts.bodies.get(eqn, eqn.body)) for eqn in found.eqns)
    return keep_in_place(found.with_(eqns=eqns))  # as long as that lets others stay


class _InParts:
    """What stays in parts: ``new`` are tuples of parts in place of values, ``bodies`` those of pmaps, one for each."""

    def __init__(self, fn: Function) -> None:
        self.returned, self.new = frozenset(fn.outputs), dict[DeviceValue, DeviceValue]()
        owners = Counter(id(eqn.body) for eqn in fn.eqns)
        own = [eqn for eqn in fn.eqns if eqn.op == "pmap" and owners[id(eqn.body)] == 1]
        self.bodies = {eqn: eqn.body for eqn in own if eqn.body is not None}
        self.users: dict[DeviceValue, dict[DeviceEqn, None]] = {}
        for eqn in fn.eqns:
            for v in eqn.values:
                self.users.setdefault(v, {})[eqn] = None

    def keep(self, start: DeviceEqn, value: DeviceValue) -> bool:
        """Leave a result of a pmap in the parts that it is gathered from, if all that read it scatter it again in the
        same way, or sum it first."""
        gather = self.gathered(start, value)
        if gather is None:
            return False
        parts, (keys,) = gather.values[0], _keys(self.bodies[start])
        again = {"dim": gather.attributes["dim"], "device_keys": keys}
        new: dict[DeviceValue, DeviceValue] = {}
        bodies = {start: _without(self.bodies[start], [gather], parts)}
        left = [value]
        while left:
            value = left.pop()
            users = self.users.get(value, {})
            if value in self.returned or not users or not isinstance(value.type, Tuple) or parts.type is None:
                return False
            new[value] = DeviceValue(value.name, Tuple((parts.type,) * len(value.type.items), value.type.more))
            for eqn in users:
                if eqn.op == "allreduce" and not eqn.attributes:
                    left.append(eqn.outputs[0])
                    continue
                body = bodies.get(eqn) or self.bodies.get(eqn)
                for index in (n for n, operand in enumerate(eqn.values) if operand is value):
                    body = None if body is None else _taking_parts(body, index, parts, again)
                if body is None:
                    return False
                bodies[eqn] = body
        # The device of a replica is that of its tensors, of which one has to be left.
        kept = self.new.keys() | new.keys()
        if not all(any(_is_flat(v) and v not in kept for v in eqn.values) for eqn in bodies if eqn is not start):
            return False
        self.new |= new
        self.bodies |= bodies
        return True

    def gathered(self, eqn: DeviceEqn, value: DeviceValue) -> DeviceEqn | None:
        """The gather at the end of a pmap's body that a result comes from, if nothing else reads it."""
        body = self.bodies.get(eqn)
        if body is None:
            return None
        out = body.outputs[eqn.outputs.index(value)]
        made = next((e for e in body.eqns if out in e.outputs), None)
        if made is None or made.op != "gather" or len(made.values) != 1 or body.outputs.count(out) > 1:
            return None
        keys, type = _keys(body), made.values[0].type
        at_home = str(made.attributes["to_device"]) == body.variable and len(keys) == 1 and None not in keys
        read = any(out in e.values for e in body.eqns)
        return made if at_home and not read and isinstance(type, Tuple) and not type.more else None


def _keys(body: Function) -> set[object]:
    """The devices that a body spreads values over."""
    return {e.attributes.get("device_keys") for e in body.eqns if e.op in ("scatter", "broadcast")}


def _taking_parts(body: Function, index: int, parts: DeviceValue, again: Mapping[str, object]) -> Function | None:
    """A body that is given the parts that it scattered an input into; None if it does anything else with the input."""
    whole = body.inputs[index]
    users = [e for e in body.eqns if whole in e.values]
    same = all(e.op == "scatter" and again.items() <= e.attributes.items() for e in users)
    if not users or not same or whole in body.outputs:
        return None
    given = DeviceValue(whole.name, parts.type)
    return _without(body.with_(inputs=tuple(given if v is whole else v for v in body.inputs)), users, given)


def _without(body: Function, gone: Sequence[DeviceEqn], parts: DeviceValue) -> Function:
    """A body without some equations, and with parts for their results."""
    new = {v: parts for e in gone for v in e.outputs}
    eqns = tuple(_renamed(e, new, e.body) for e in body.eqns if e not in gone)
    return body.with_(eqns=eqns, outputs=tuple(new.get(v, v) for v in body.outputs))


def _renamed(eqn: DeviceEqn, new: Mapping[DeviceValue, DeviceValue], body: Function | None) -> DeviceEqn:
    inputs = tuple(new.get(x, x) if isinstance(x, DeviceValue) else x for x in eqn.inputs)
    return eqn.with_(inputs=inputs, outputs=tuple(new.get(v, v) for v in eqn.outputs), body=body)


def _is_flat(value: DeviceValue) -> bool:
    return isinstance(value.type, Tuple) and bool(value.type.items) and isinstance(value.type.items[0], Tensor)
