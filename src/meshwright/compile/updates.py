"""Which results of a program are arguments anew: parameters that a step has updated, and caches it has written into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.core import tree
from meshwright.core.facts import Memory, Structure
from meshwright.core.op import is_elementwise, memory_of
from meshwright.core.program import Atom, Program
from meshwright.core.types import TensorType


def arguments_anew(program: Program, args: Sequence[Any], out_tree: tree.TreeDef) -> dict[int, int]:
    """By the number of a result, the argument that it is anew: trees of results that arguments have, too, of the
    same types, whose leaves follow by elementwise ops from that argument, as in an update (parameters may follow
    from a copy in higher precision beside them), or are written into it, as caches are; or from another that the
    program returns anew."""
    results = tree.unflatten(out_tree, range(out_tree.num_leaves))
    made_of = _made_of(program)
    given, types = [_kind(v.type) for v in program.inputs], [_kind(atom.type) for atom in program.outputs]
    found: dict[int, int] = {}
    parts = [results, *(results if isinstance(results, tuple | list) else [])]
    argument = [n for n, arg in enumerate(args) for _ in tree.leaves(arg)]
    arguments = [[n for n, arg in enumerate(argument) if arg == number] for number in range(len(args))]
    for others in (False, True):
        known = set(found.values())
        for arg, mine in zip(args, arguments, strict=True):
            if not mine or mine[0] in found.values():
                continue
            sources = known if others else set(mine)
            for part in parts:
                numbers = tree.leaves(part)
                same = tree.flatten(arg)[1] == tree.flatten(part)[1] and not any(n in found for n in numbers)
                if same and all(
                    types[m] == given[n] and made_of[m] & sources for n, m in zip(mine, numbers, strict=True)
                ):
                    found.update(zip(numbers, mine, strict=True))
                    break
    return found


def _made_of(program: Program) -> list[frozenset[int]]:
    """For each result the arguments of its shape from which it follows by elementwise ops, or is written over."""
    made = _follow(program, [frozenset((n,)) for n in range(len(program.inputs))])
    return [
        frozenset(n for n in sources if program.inputs[n].type.shape == atom.type.shape)
        for sources, atom in zip(made, program.outputs, strict=True)
    ]


def _follow(program: Program, given: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """For each result what it follows from by elementwise ops, or is written over; in scans, too."""
    known: dict[Atom, frozenset[int]] = dict(zip(program.inputs, given, strict=True))
    nothing: frozenset[int] = frozenset()
    for eqn in program.eqns:
        sources = [known.get(a, nothing) for a in eqn.inputs]
        if is_elementwise(eqn) or eqn.op.structure is Structure.CONSTRAINT:
            known.update(dict.fromkeys(eqn.outputs, nothing.union(*sources)))
        elif eqn.op.structure is Structure.ROWS:
            inside = _follow(eqn.params["body"], [frozenset((n,)) for n in range(len(sources))])
            for var, numbers in zip(eqn.outputs, inside, strict=True):
                known[var] = nothing.union(*(sources[n] for n in numbers))
        elif memory_of(eqn) is Memory.IN_PLACE and len(eqn.outputs) == 1:
            known[eqn.outputs[0]] = sources[0]
    return [known.get(atom, nothing) for atom in program.outputs]


def _kind(t: TensorType) -> tuple[Any, Any]:
    """The shape and dtype of a value."""
    return t.shape, t.dtype
