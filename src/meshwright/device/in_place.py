"""Keeping parts where they are: what one body gathers and the next scatters again stays in parts.

    ys = pmap(… y = gather(parts, dim=0, to_device=d) return y …)      ys = pmap(… return parts …)
    zs = allreduce(ys)                                            ==>  zs = allreduce(ys)
    … = pmap(lambda d: lambda (z): { ps = scatter(z, dim=0, …) … })     … = pmap(lambda d: lambda (ps): { … })

An allreduce of tuples reduces them element by element.
"""

from __future__ import annotations

from typing import Any

from meshwright.device.from_program import takes_program
from meshwright.device.function import DeviceEqn, DeviceValue, Function
from meshwright.device.types import Tensor, Tuple, Type


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
    for eqn in found.eqns:
        for index, value in enumerate(eqn.outputs):
            chain = _Chain(found)
            if chain.starts(eqn, index) and chain.follows(value):
                return keep_in_place(chain.rewritten())
    return found


class _Chain:
    """One value that leaves a body in parts, and all that becomes of it."""

    def __init__(self, fn: Function) -> None:
        self.fn = fn
        self.start: tuple[DeviceEqn, int] | None = None
        self.parts: DeviceValue | None = None
        self.dim = 0
        self.keys: Any = None
        self.values: list[DeviceValue] = []
        self.sums: set[DeviceEqn] = set()
        self.ends: dict[DeviceEqn, set[int]] = {}

    def starts(self, eqn: DeviceEqn, index: int) -> bool:
        body = eqn.body
        if eqn.op != "pmap" or body is None or sum(e.body is body for e in self.fn.eqns) > 1:
            return False
        out = body.outputs[index]
        made = next((e for e in body.eqns if out in e.outputs), None)
        if made is None or made.op != "gather" or len(made.values) != 1 or body.outputs.count(out) > 1:
            return False
        keys = {e.attributes.get("device_keys") for e in body.eqns if e.op in ("scatter", "broadcast")}
        at_home = str(made.attributes["to_device"]) == body.variable
        if len(keys) != 1 or None in keys or not at_home or any(out in e.values for e in body.eqns):
            return False
        self.start, self.parts = (eqn, index), made.values[0]
        self.dim, self.keys = made.attributes["dim"], keys.pop()
        return isinstance(self.parts.type, Tuple) and not self.parts.type.more

    def follows(self, value: DeviceValue) -> bool:
        """Whether all that use the value scatter it again in the same way, or sum it first."""
        self.values.append(value)
        if value in self.fn.outputs:
            return False
        users = [eqn for eqn in self.fn.eqns if value in eqn.values]
        for eqn in users:
            if eqn.op == "allreduce" and not eqn.attributes:
                self.sums.add(eqn)
                if not self.follows(eqn.outputs[0]):
                    return False
            elif eqn.op != "pmap" or eqn.body is None or not self.ends_in(eqn, value):
                return False
        return bool(users)

    def ends_in(self, eqn: DeviceEqn, value: DeviceValue) -> bool:
        body = eqn.body
        assert body is not None
        if sum(e.body is body for e in self.fn.eqns) > 1:
            return False
        for index, operand in enumerate(eqn.values):
            if operand is not value:
                continue
            inner = body.inputs[index]
            users = [e for e in body.eqns if inner in e.values]
            same = all(
                e.op == "scatter" and e.attributes["dim"] == self.dim and e.attributes.get("device_keys") == self.keys
                for e in users
            )
            if not users or not same or inner in body.outputs:
                return False
            self.ends.setdefault(eqn, set()).add(index)
        # The device of a replica is that of its tensors, of which one has to be left.
        left = [v for n, v in enumerate(eqn.values) if n not in self.ends[eqn] and _is_flat(v)]
        return bool(left)

    # Writing

    def rewritten(self) -> Function:
        new = {v: DeviceValue(v.name, self.nested(v.type)) for v in self.values}
        eqns = []
        for eqn in self.fn.eqns:
            body = eqn.body
            if self.start is not None and eqn is self.start[0]:
                body = self.started(eqn, self.start[1])
            if eqn in self.ends:
                assert body is not None
                body = self.ended(body, self.ends[eqn])
            inputs = tuple(new.get(x, x) if isinstance(x, DeviceValue) else x for x in eqn.inputs)
            eqns.append(eqn.with_(inputs=inputs, outputs=tuple(new.get(v, v) for v in eqn.outputs), body=body))
        return self.fn.with_(eqns=tuple(eqns))

    def nested(self, type: Type | None) -> Type | None:
        if not isinstance(type, Tuple) or self.parts is None or self.parts.type is None:
            return None
        return Tuple((self.parts.type,) * len(type.items), type.more)

    def started(self, eqn: DeviceEqn, index: int) -> Function:
        body = eqn.body
        assert body is not None
        assert self.parts is not None
        out = body.outputs[index]
        kept = tuple(e for e in body.eqns if out not in e.outputs)
        outputs = tuple(self.parts if n == index else v for n, v in enumerate(body.outputs))
        return body.with_(eqns=kept, outputs=outputs)

    def ended(self, body: Function, indices: set[int]) -> Function:
        assert self.parts is not None
        new = {body.inputs[n]: DeviceValue(body.inputs[n].name, self.parts.type) for n in indices}
        gone = {e for e in body.eqns if e.op == "scatter" and e.values[0] in new}
        renamed = {e.outputs[0]: new[e.values[0]] for e in gone}
        eqns = []
        for e in body.eqns:
            if e in gone:
                continue
            inputs = tuple(renamed.get(x, x) if isinstance(x, DeviceValue) else x for x in e.inputs)
            eqns.append(e.with_(inputs=inputs))
        inputs_ = tuple(new.get(v, v) for v in body.inputs)
        return body.with_(inputs=inputs_, eqns=tuple(eqns), outputs=tuple(renamed.get(v, v) for v in body.outputs))


def _is_flat(value: DeviceValue) -> bool:
    return isinstance(value.type, Tuple) and bool(value.type.items) and isinstance(value.type.items[0], Tensor)
