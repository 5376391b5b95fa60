"""What is the same on all devices along a mesh axis although types, which follow single equations, do not say so."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.core.facts import Structure
from meshwright.core.program import Atom, Eqn, Literal, Program
from meshwright.ops.collective import all_gather, all_gather_invariant, pinvariant, pmax, pmin, psum

JOINING = (psum, pmax, pmin, all_gather, all_gather_invariant, pinvariant)  # all devices have the same of it


def same_along(axis: str, program: Program, given: Sequence[bool]) -> list[bool]:
    """Which outputs of a program are certain to be the same on all devices along an axis, if the ``given`` inputs are,
    whatever their types say."""
    same: set[Atom] = {var for var, flag in zip(program.inputs, given, strict=True) if flag}
    same.update(var for var, _ in program.constants)

    def same_value(atom: Atom) -> bool:
        return isinstance(atom, Literal) or atom in same or axis not in atom.type.varying

    for eqn in program.eqns:
        joins = eqn.op in JOINING and axis in eqn.params["axes"]
        if joins or (all(map(same_value, eqn.inputs)) and not _tells_apart(eqn, axis)):
            same.update(eqn.outputs)
    return [same_value(atom) for atom in program.outputs]


def _tells_apart(eqn: Eqn, axis: str) -> bool:
    """Whether an equation may give devices along an axis different results of equal operands."""
    own = (
        eqn.op.stack is not None
        and eqn.op not in JOINING
        and eqn.op.structure is not Structure.VARYING
        and axis in eqn.params["axes"]
    )
    return own or eqn.op.effects or any(_tells_apart(e, axis) for _, region in eqn.regions() for e in region.eqns)
