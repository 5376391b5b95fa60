"""How often while loops run that count: what compilers call a known trip count."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshwright.core import dtypes
from meshwright.core.program import Atom, Eqn, Literal, Program

_FLIPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "ne": "ne"}


def trip_count(eqn: Eqn) -> int | None:
    """How often the body of a while loop runs, if it counts from a number to a number in steps of one size.

    >>> from meshwright.core.text.parse import parse_program
    >>> loop = '''while 0:i32 body=program(a: i32[]) { b: i32[] = add a 3:i32  return b }
    ...   body_consts=0 cond=program(c: i32[]) { d: bool[] = lt c 10:i32  return d } cond_consts=0'''
    >>> trip_count(parse_program("program() { e: i32[] = " + loop + "  return e }").eqns[0])
    4
    """
    cond, body, n_cond, n_body = (eqn.params[k] for k in ("cond", "body", "cond_consts", "body_consts"))
    for_cond, for_body, start = eqn.inputs[:n_cond], eqn.inputs[n_cond : n_cond + n_body], eqn.inputs[n_cond + n_body :]

    def number(atom: Atom, region: Program, consts: Sequence[Atom]) -> int | None:
        """The integer that an atom of a region is in every step."""
        at = _position(region.inputs, atom)
        if at is not None and at < len(consts):
            atom = consts[at]
        elif at is not None and body.outputs[at - len(consts)] is body.inputs[n_body + at - len(consts)]:
            atom = start[at - len(consts)]
        integer = isinstance(atom, Literal) and dtypes.is_integer(atom.type.dtype)
        return int(atom.value.real) if integer else None  # type: ignore[union-attr]

    test = _made(cond, cond.outputs[0])
    if test is None or test.op.name not in _FLIPPED:
        return None
    (counter, limit), how = test.inputs, test.op.name
    if number(limit, cond, for_cond) is None:
        counter, limit, how = limit, counter, _FLIPPED[how]
    bound, at = number(limit, cond, for_cond), _position(cond.inputs[n_cond:], counter)
    first = None if at is None else start[at]
    if bound is None or at is None or not isinstance(first, Literal):
        return None
    old, moved = body.inputs[n_body + at], _made(body, body.outputs[at])
    if moved is None or moved.op.name not in ("add", "sub") or old not in moved.inputs:
        return None
    left, right = moved.inputs
    size = number(right if left is old else left, body, for_body)
    if size is None or (moved.op.name == "sub" and left is not old):
        return None
    limits = np.iinfo(counter.type.dtype)
    step = size if moved.op.name == "add" else -size
    return _steps(int(first.value.real), bound, step, how, limits.min, limits.max)


def _steps(first: int, bound: int, size: int, how: str, lowest: int, highest: int) -> int | None:
    """Steps of ``size`` from ``first`` while it is lt, le, gt, ge or ne ``bound``; None if the counter overflows."""
    if how == "ne":
        if first != bound and (size == 0 or (bound - first) % size or (bound - first) // size < 0):
            return None
        return (bound - first) // size if size else 0
    if how in ("gt", "ge"):
        first, bound, size, lowest, highest = -first, -bound, -size, -highest, -lowest
    bound += how in ("le", "ge")
    if first >= bound:
        return 0
    count = -((first - bound) // size) if size > 0 else 0
    return count if size > 0 and first + count * size <= highest else None


def _made(program: Program, atom: Atom) -> Eqn | None:
    """The equation of a program that gives a value."""
    return next((eqn for eqn in program.eqns if atom in eqn.outputs), None)


def _position(inputs: Sequence[Atom], atom: Atom) -> int | None:
    return next((n for n, var in enumerate(inputs) if var is atom), None)
