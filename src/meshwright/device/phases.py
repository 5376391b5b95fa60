"""Which equations of a training program go forward, which go back, and on which stage of a pipeline they run."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.device.function import DeviceEqn, DeviceValue, Function
from meshwright.device.tensor_ops import flops_of, nbytes_of, tensor_of
from meshwright.errors import ShapeError


def loss_of(body: Function) -> DeviceValue | None:
    """The loss of a training program: its first output without dims. Without one, the program only goes forward."""
    return next((v for v in body.outputs if not tensor_of(v).shape and v not in body.inputs), None)


def ancestors(body: Function, values: Sequence[DeviceValue]) -> set[DeviceEqn]:
    """The equations that values are computed by."""
    wanted = set(values)
    found: set[DeviceEqn] = set()
    for eqn in reversed(body.eqns):
        if any(v in wanted for v in eqn.outputs):
            found.add(eqn)
            wanted.update(eqn.values)
    return found


def forward_equations(body: Function, among: Sequence[DeviceEqn]) -> list[DeviceEqn]:
    """The equations of the forward pass: all those before the last one that the loss depends on.

    What the forward pass keeps for the backward pass stands between the equations of the loss; gradients stand after.
    """
    loss = loss_of(body)
    if loss is None:
        return list(among)
    needed = ancestors(body, [loss])
    where = {eqn: n for n, eqn in enumerate(body.eqns)}
    last = max((where[eqn] for eqn in needed), default=-1)
    return [eqn for eqn in among if where[eqn] <= last]


def cut_by_cost(eqns: Sequence[DeviceEqn], stages: int) -> dict[DeviceEqn, int]:
    """Contiguous stages whose largest cost is as small as can be; each has an equation at least."""
    if len(eqns) < stages:
        raise ShapeError(
            f"A program of {len(eqns)} equations has no {stages} stages.",
            why="each stage runs one equation at least",
            fix=f"stages={max(len(eqns), 1)}",
        )
    costs = [flops_of(eqn) + sum(nbytes_of(v) for v in eqn.outputs) for eqn in eqns]
    low, high = max(costs, default=0.0), sum(costs)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _fill(costs, stages, middle) is not None else (middle, high)
    found = _fill(costs, stages, high)
    assert found is not None
    return dict(zip(eqns, found, strict=True))


def _fill(costs: Sequence[float], stages: int, bound: float) -> list[int] | None:
    """Stages filled one after the other up to a bound, None where more would be needed."""
    found: list[int] = []
    stage, used, held = 0, 0.0, 0
    for n, cost in enumerate(costs):
        must = len(costs) - n <= stages - 1 - stage and held
        if held and (used + cost > bound * (1 + 1e-12) or must):
            stage, used, held = stage + 1, 0.0, 0
        if stage >= stages:
            return None
        found.append(stage)
        used, held = used + cost, held + 1
    return found if not found or found[-1] == stages - 1 else None


def cut_by_names(body: Function, eqns: Sequence[DeviceEqn], names: Sequence[str]) -> dict[DeviceEqn, int]:
    """Stages that end with the values named; the last one with the program."""
    ends = {v.name: eqn for eqn in eqns for v in eqn.outputs}
    missing = [name for name in names if name not in ends]
    if missing:
        raise ShapeError(
            f"There is no value {missing[0]} to end a stage with.",
            why=f"{body.name or 'the body'} computes {', '.join(list(ends)[:8])}{', …' if len(ends) > 8 else ''}",
            fix=f"stages={[next(iter(ends))]}",
        )
    found: dict[DeviceEqn, int] = {}
    stage = 0
    left = list(names)
    for eqn in eqns:
        found[eqn] = stage
        if left and ends[left[0]] is eqn:
            left.pop(0)
            stage += 1
    if left:
        raise ShapeError(
            f"The stages are not in the order of the program: {left[0]}.",
            why="a stage ends after the one before it",
            fix=f"stages={sorted(names, key=lambda name: list(ends).index(name))}",
        )
    return found


def place_backward(forward: dict[DeviceEqn, int], backward: Sequence[DeviceEqn], stages: int) -> dict[DeviceEqn, int]:
    """Stages of the backward equations: gradients go down the pipeline, to where the activations they need are kept."""
    home: dict[DeviceValue, int] = {}
    for eqn, stage in forward.items():
        for v in eqn.outputs:
            home.setdefault(v, stage)
        for v in eqn.values:
            home[v] = max(home.get(v, 0), stage)
    placed: dict[DeviceEqn, int] = {}
    at: dict[DeviceValue, int] = {}
    for eqn in backward:
        above = [at[v] for v in eqn.values if v in at]
        kept = [home[v] for v in eqn.values if v in home and v not in at]
        stage = max(kept, default=min(above, default=stages - 1))
        placed[eqn] = min([stage, *above])
        at.update(dict.fromkeys(eqn.outputs, placed[eqn]))
    return placed
