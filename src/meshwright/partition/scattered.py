"""A sum of which each device keeps a part is a reduce-scatter."""

from __future__ import annotations

from collections import Counter
from typing import Any

from meshwright.core.op import Op
from meshwright.core.program import Atom, Eqn, Params, Program, Var
from meshwright.core.source import Source
from meshwright.ops.basic import reshape
from meshwright.ops.collective import pscatter, psum, psum_scatter
from meshwright.partition.combine import CollectiveReason
from meshwright.partition.cost import NO_MACHINE, MachineCost
from meshwright.transform.simplify import dce


def scatter_sums(program: Program, whys: dict[Var, CollectiveReason], cost: MachineCost = NO_MACHINE) -> Program:
    """The program, regions included, with sums that are only cut into parts afterwards taken part by part.

    Sums without an entry in ``whys`` were written by the user, and stay. An axis that the parts do not lie along is
    summed over afterwards, when there is less to sum, unless one sum over all axes is faster on the machine named. The
    reason is what leaves the sum, and what reads the parts.

    b: f32[8] = psum a axes=('i',)            ==>    c: f32[4]{i} = psum_scatter a axes=('i',) dim=0
    c: f32[4]{i} = pscatter b axes=('i',)
    """
    uses = Counter[Atom](program.outputs)
    for eqn in program.eqns:
        uses.update(eqn.inputs)
    made: dict[Atom, Eqn] = {}
    eqns: list[Eqn] = []
    changed = False

    def add(eqn: Eqn) -> None:
        eqns.append(eqn)
        made.update(dict.fromkeys(eqn.outputs, eqn))

    def new(
        op: Op, x: Atom, params: Params, source: Source | None, why: CollectiveReason, out: Var | None = None
    ) -> Var:
        """The result of an equation, ``out`` if it is given."""
        found = out
        if found is None:
            found = Var(op.type(x.type, **params))  # type: ignore[arg-type]
            uses[found] = 1
        add(Eqn(op, (x,), params, (found,), source))
        whys[found] = why
        return found

    for eqn in program.eqns:
        found = _sum_below(eqn, made, uses, whys, cost) if eqn.op is pscatter else None
        if found is None:
            params = {name: _inside(value, whys, cost) for name, value in eqn.params.items()}
            same = all(value is eqn.params[name] for name, value in params.items())
            changed = changed or not same
            add(eqn if same else Eqn(eqn.op, eqn.inputs, params, eqn.outputs, eqn.source))
            continue
        total, shapes = found
        changed = True
        why, x = whys[total.outputs[0]], total.inputs[0]
        needed = whys.get(eqn.outputs[0], why).text.partition("; ")[2]  # by those who read the parts
        why = why._replace(text=f"{why.text.partition('; ')[0]}; {needed}" if needed else why.text)
        for shape in shapes:
            x = new(reshape, x, {"shape": shape}, total.source, why)
        rest = tuple(axis for axis in total.params["axes"] if axis not in eqn.params["axes"])
        x = new(psum_scatter, x, eqn.params, total.source, why, None if rest else eqn.outputs[0])
        if rest:
            new(psum, x, {"axes": rest}, total.source, why, eqn.outputs[0])
    return dce(Program(program.inputs, tuple(eqns), program.outputs, program.constants)) if changed else program


def _sum_below(
    eqn: Eqn, made: dict[Atom, Eqn], uses: Counter[Atom], whys: dict[Var, CollectiveReason], cost: MachineCost
) -> tuple[Eqn, list[tuple[int, ...]]] | None:
    """The sum whose result an equation alone cuts, and the shapes it is brought into before."""
    shapes: list[tuple[int, ...]] = []
    atom = eqn.inputs[0]
    while uses[atom] == 1 and atom in made:
        below = made[atom]
        if below.op is reshape:
            shapes.append(below.params["shape"])
            atom = below.inputs[0]
            continue
        if below.op is psum and len(below.inputs) == 1 and atom in whys:
            return (below, shapes[::-1]) if _is_worth_it(below, eqn, cost) else None
        return None
    return None


def _is_worth_it(total: Eqn, cut: Eqn, cost: MachineCost) -> bool:
    """Whether a sum can be taken over the axes of its parts first, and is not slower so."""
    axes, parts = total.params["axes"], cut.params["axes"]
    if not set(parts) <= set(axes):
        return False
    rest = [axis for axis in axes if axis not in parts]
    whole, part = total.inputs[0].type.nbytes, cut.outputs[0].type.nbytes
    if not rest or cost.topology is None:
        return True
    in_two = cost.along("reduce_scatter", whole, parts) + cost.along("all_reduce", part, rest)
    return in_two <= cost.along("all_reduce", whole, axes) + cost.work(0, 2 * part, "f32")


def _inside(value: Any, whys: dict[Var, CollectiveReason], cost: MachineCost) -> Any:
    if isinstance(value, Program):
        return scatter_sums(value, whys, cost)
    if isinstance(value, tuple) and any(isinstance(item, Program) for item in value):
        return tuple(_inside(item, whys, cost) for item in value)
    return value
