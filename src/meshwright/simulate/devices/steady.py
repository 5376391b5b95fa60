"""The steady state of a resolved program: inputs where they are used, outputs where they are made."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.device.function import DeviceEqn, DeviceValue, Function, Operand
from meshwright.device.ops import GATHER, is_structural


def steady_state(fn: Function) -> Function:
    """A resolved program without the moves that bring its inputs to their devices and its outputs back.

        w_1, w_2 = broadcast(w_0, devices=[1, 2])        a_1 = tanh(w_1)
        a_1 = tanh(w_1)                             ==>  a_2 = tanh(w_2)
        a_2 = tanh(w_2)                                  return a_1, a_2
        y_0 = gather(a_1, a_2, dim=0, to_device=0)

    >>> from meshwright import dist
    >>> body = "y = send(x, to_device=1) z = neg(y) w = send(z, to_device=0)"
    >>> print(steady_state(dist.resolve(dist.parse(f"def f(x: Tensor[(8,), 0]): {body} return w"))))
    def f(y_1: Tensor[(8,), 1]):
        z_1: Tensor[(8,), 1] = neg(y_1)
        return z_1
    """
    placed = dict.fromkeys(fn.inputs)
    first = set()
    same: dict[DeviceValue, DeviceValue] = {}  # what is brought to the same place twice is there once
    moved: dict[tuple[object, ...], DeviceEqn] = {}
    eqns = []
    for eqn in fn.eqns:
        eqn = DeviceEqn(eqn.op, tuple(_one(x, same) for x in eqn.inputs), eqn.outputs, eqn.attributes)
        eqns.append(eqn)
        if _moves(eqn) and eqn.op is not GATHER and all(v in placed for v in eqn.values):
            first.add(eqn)
            key = (eqn.op, eqn.inputs, *eqn.attributes.items())
            earlier = moved.setdefault(key, eqn)
            same.update(zip(eqn.outputs, earlier.outputs, strict=True))
            placed.update(dict.fromkeys(earlier.outputs))
    fn = fn.with_(eqns=tuple(eqns), outputs=tuple(same.get(v, v) for v in fn.outputs))
    last = _last_moves([eqn for eqn in fn.eqns if eqn not in first], fn.outputs)
    kept = [eqn for eqn in fn.eqns if eqn not in first and eqn not in last]
    used = {v for eqn in kept for v in eqn.values}
    inputs = tuple(v for v in placed if v in used)
    made = {v for eqn in kept for v in eqn.outputs}
    returned = dict.fromkeys(v for eqn in fn.eqns if eqn in last for v in eqn.values if v in made)
    outputs = (*(v for v in fn.outputs if v in made), *(v for v in returned if v not in fn.outputs))
    return Function(fn.name, inputs, tuple(kept), outputs)


def _last_moves(eqns: Sequence[DeviceEqn], outputs: Sequence[DeviceValue]) -> set[DeviceEqn]:
    """The moves after which only outputs remain.

    Where replicas make copies of an output and one of them is returned, the moves of the others are last as well.
    """
    last: set[DeviceEqn] = set()
    returning: set[object] = set()
    for _ in range(len(eqns) + 1):
        wanted: set[DeviceValue] = set()
        leaving, used = set(outputs), set()
        found: set[DeviceEqn] = set()
        keys: set[object] = set()
        for eqn in reversed(eqns):
            key: object = eqn.outputs[0].origin or eqn
            if any(v in wanted for v in eqn.outputs):
                used.add(key)
            moves = _moves(eqn) and not any(v in wanted for v in eqn.outputs)
            if moves and (any(v in leaving for v in eqn.outputs) or key in returning):
                found.add(eqn)
                keys.add(key)
                leaving.update(eqn.values)
            else:
                wanted.update(eqn.values)
        if found == last:
            break
        last, returning = found, keys - used
    return last


def _one(x: Operand, same: dict[DeviceValue, DeviceValue]) -> Operand:
    return same.get(x, x) if isinstance(x, DeviceValue) else x


def _moves(eqn: DeviceEqn) -> bool:
    """Whether an equation says where values are, and devices compute nothing together."""
    return is_structural(eqn.op) and eqn.op.collective is None
