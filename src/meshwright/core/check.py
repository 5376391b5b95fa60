"""The checker: every variable is given before it is used, once, and every equation has the type its op says."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from meshwright.core.limits import impossible
from meshwright.core.program import Atom, Eqn, Literal, Missing, Program, Var, operand_types
from meshwright.core.signature import show_value, signature_of
from meshwright.core.text.printing import print_program
from meshwright.core.types import TensorType
from meshwright.errors import CheckError, MeshwrightError


def check(program: Program, stage: str = "", before: Program | None = None) -> Program:
    """Return ``program`` if it is right; otherwise a ``CheckError`` shows the equation, its line and its neighbours.

    The equations that it shares with ``before``, a program that is right, are known to have the types that they say.

    >>> from meshwright.core.text.parse import parse_program
    >>> p = check(parse_program("program(a: f32[3]) { b: f32[3] = neg a  return b }"))
    """
    known: set[Var] = set()
    typed = set(before.eqns) if before is not None else set()
    for var, value in program.constants:
        if not isinstance(value, Missing) and _contents(value) != (var.type.shape, var.type.dtype):
            given = _show(TensorType(*_contents(value)) if isinstance(value, np.ndarray) else value)
            raise _error(program, None, f"a constant {_show(var.type)} has contents {given}", stage)
    for var in (*(v for v, _ in program.constants), *program.inputs):
        if var in known:
            raise _error(program, None, "an input is listed twice", stage)
        known.add(var)
    for index, eqn in enumerate(program.eqns):
        for atom in eqn.inputs:
            if atom.__class__ is not Literal and atom not in known:
                raise _error(program, index, f"it uses a {_show(atom.type)} that is not defined before it", stage)
        if eqn not in typed:
            _check_types(program, index, stage)
        for var in eqn.outputs:
            if var in known:
                raise _error(program, index, "it defines a variable a second time", stage)
            known.add(var)
    for atom in program.outputs:
        if atom.__class__ is not Literal and atom not in known:
            raise _error(program, len(program.eqns), f"a returned {_show(atom.type)} is not defined", stage)
    return program


def _check_types(program: Program, index: int, stage: str) -> None:
    """Raise unless an equation has the type that its op says, and its regions are right."""
    eqn = program.eqns[index]
    for _, region in eqn.regions():
        check(region, stage)
    fault = signature_of(eqn.op.type).fault(eqn.op.name, len(eqn.inputs), eqn.params)
    if fault:
        raise _error(program, index, fault, stage)
    try:
        types = eqn.op.type(*operand_types(eqn.op, eqn.inputs), **eqn.params)
    except Exception as error:  # a rule may stumble in any way over params that are not its own
        raise _error(program, index, _reason(eqn, error), stage) from error
    expected = types if isinstance(types, tuple) else (types,)
    large = impossible(expected)
    if large:
        raise _error(program, index, large, stage)
    actual = tuple(v.type for v in eqn.outputs)
    if expected != actual:
        raise _error(program, index, f"its result is {_show(*actual)}, but the op gives {_show(*expected)}", stage)


def _reason(eqn: Eqn, error: Exception) -> str:
    if isinstance(error, MeshwrightError):
        return f"{error.what.removesuffix('.')}: {error.why}" if error.why else error.what
    # "rule() missing 1 required argument: 'shape'" is about the op, whatever its rule is called.
    text, named = re.subn(r"^[\w.<>]+\(\)", eqn.op.name, str(error) or type(error).__name__)
    return text if named else f"{eqn.op.name}: {text}"


def _contents(value: Any) -> tuple[Any, Any]:
    return getattr(value, "shape", None), getattr(value, "dtype", None)


def _show(*types: object) -> str:
    """Types as the text has them, also those that the text does not have."""
    return ", ".join(_show_type(t) for t in types)


def _show_type(type: object) -> str:
    if not isinstance(type, TensorType):
        return show_value(type)
    try:
        return type.short()
    except (KeyError, TypeError, AttributeError):
        return f"{type.dtype}{list(type.shape)}"


def _lines(program: Program) -> list[str]:
    """The text with one line for each equation, also where a param or a type has no text."""
    try:
        return print_program(_flat(program)).split("\n")
    except Exception:  # this is on the way to an error about the same program
        constants = [f"  const … = {show_value(value)}" for _, value in program.constants]
        eqns = [
            f"  {_show(*(v.type for v in e.outputs))} = {' '.join([e.op.name, *(_show(a.type) for a in e.inputs)])}"
            + "".join(f" {name}={show_value(value)}" for name, value in e.params.items())
            for e in program.eqns
        ]
        inputs = _show(*(v.type for v in program.inputs))
        lines = [f"program({inputs}) {{", *constants, *eqns, f"  return {_show(*program.out_types)}", "}"]
        return [" ".join(line.splitlines()) for line in lines]


def _error(program: Program, index: int | None, why: str, stage: str) -> CheckError:
    lines = _lines(program)
    first = 1 + len(program.constants)
    at = 0 if index is None else first + index
    shown = [f"{'>' if n == at else ' '} {lines[n]}" for n in range(max(0, at - 2), min(len(lines), at + 3))]
    source = program.eqns[index].source if index is not None and index < len(program.eqns) else None
    where = "\n".join(shown) + (f"\nwritten at {source.show()}" if source else "")
    return CheckError(
        f"The program{f' after {stage}' if stage else ''} is not well formed.",
        where=where,
        why=why,
        fix="correct the equation marked with >",
    )


def _flat(program: Program) -> Program:
    """The program with its regions left out, so that each equation is one line."""

    def without(value: object) -> object:
        if isinstance(value, Program):
            return "…"
        return tuple(without(item) for item in value) if isinstance(value, tuple) else value

    def strip(eqn: Eqn) -> Eqn:
        return Eqn(eqn.op, eqn.inputs, {k: without(v) for k, v in eqn.params.items()}, eqn.outputs, eqn.source)

    outputs: tuple[Atom, ...] = program.outputs
    return Program(program.inputs, tuple(strip(e) for e in program.eqns), outputs, program.constants)
