"""Recomputation: the backward pass computes again what the forward pass would have had to keep."""

from __future__ import annotations

from math import isqrt

from meshwright.device.from_program import takes_program
from meshwright.device.function import DeviceEqn, DeviceValue, Function, Number, Operand
from meshwright.device.phases import ancestors, cut_by_cost, forward_equations, loss_of
from meshwright.device.transforms import Keys, at_level, plain_keys
from meshwright.device.typing import typed
from meshwright.errors import ShapeError


@takes_program
def recompute(fn: Function, segments: int | None = None, device_keys: Keys = ()) -> Function:
    """Keep the values between segments of the forward pass alone; the backward pass runs each segment again.

    Segments are cut by cost; about the square root of the number of equations, unless ``segments`` says otherwise. The
    last segment is kept as it is: the backward pass begins with it.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> from meshwright import dist
    >>> loss = lambda w, x: mnp.sum(mnp.sin(mnp.sin(x * w)))
    >>> fn = dist.from_program(mw.make_program(mw.value_and_grad(loss))(mnp.ones(3), mnp.ones(3)), ["w", "x"])
    >>> len(fn.eqns), len(dist.recompute(fn, segments=2).eqns)
    (10, 11)
    """
    if segments is not None and (not isinstance(segments, int) or segments < 1):
        raise ShapeError(
            "The number of segments is a whole number from 1.", why=f"it is {segments!r}", fix="segments=4"
        )
    trains = []

    def change(body: Function, depth: int) -> Function:
        if loss_of(body) is None:  # on a level of several bodies, that of an update goes neither forward nor back
            return body
        trains.append(body)
        return _recompute(body, segments)

    found = at_level(typed(fn), plain_keys(device_keys), change)
    if not trains:
        raise ShapeError(
            "There is no loss, so that nothing goes back.",
            why="recompute takes a training program: its first output without dims is the loss",
            fix="dist.from_program(mw.make_program(mw.value_and_grad(loss))(…))",
        )
    return found


def _recompute(body: Function, segments: int | None) -> Function:
    forward = forward_equations(body, body.eqns)
    known = set(forward)
    backward = [eqn for eqn in body.eqns if eqn not in known]
    count = min(segments or max(1, isqrt(len(forward))), len(forward))
    stage = cut_by_cost(forward, count)
    made = {v: stage[eqn] for eqn in forward for v in eqn.outputs}
    # What a later segment reads is kept; all else of a segment is computed again, except in the last.
    kept = {v for eqn in forward for v in eqn.values if v in made and made[v] != stage[eqn]} | set(body.outputs)
    by_segment = {n: [eqn for eqn in forward if stage[eqn] == n] for n in range(count)}
    again: dict[int, dict[DeviceValue, DeviceValue]] = {}
    eqns = list(forward)

    def use(x: Operand) -> Operand:
        if isinstance(x, Number) or x not in made or x in kept or made[x] == count - 1:
            return x
        n = made[x]
        if n not in again:
            again[n] = _copy(by_segment[n], kept, backward, eqns)
        return again[n][x]

    for eqn in backward:
        inputs = tuple(use(x) for x in eqn.inputs)
        eqns.append(eqn.with_(inputs=inputs))
    whole = body.with_(eqns=tuple(eqns))
    used = ancestors(whole, whole.outputs)  # what only the backward pass needed is no longer computed before it
    return whole.with_(eqns=tuple(eqn for eqn in eqns if eqn in used))


def _copy(
    segment: list[DeviceEqn], kept: set[DeviceValue], backward: list[DeviceEqn], eqns: list[DeviceEqn]
) -> dict[DeviceValue, DeviceValue]:
    """Run again the equations of a segment that the backward pass needs."""
    wanted = {v for eqn in backward for v in eqn.values}
    # Which operand a maximum is equal to must not hang on the last bit: both sides are computed again, in one place.
    compared: set[DeviceValue] = set()
    needed = []
    for eqn in reversed(segment):
        if any(v in wanted and (v not in kept or v in compared) for v in eqn.outputs):
            needed.append(eqn)
            wanted.update(eqn.values)
            if eqn.op in ("eq", "ne"):
                compared.update(eqn.values)
    copies: dict[DeviceValue, DeviceValue] = {}
    for eqn in reversed(needed):
        inputs = tuple(copies.get(x, x) if isinstance(x, DeviceValue) else x for x in eqn.inputs)
        outputs = []
        for v in eqn.outputs:
            copies[v] = DeviceValue(f"{v.name}_again", v.type)
            outputs.append(copies[v])
        eqns.append(eqn.with_(inputs=inputs, outputs=tuple(outputs)))
    return copies
