"""The checker: every variable is given before it is used, once, and every equation has the type its op says."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.op import Op
from meshwright.core.printing import print_program
from meshwright.core.program import Atom, Eqn, Literal, Missing, Program, Var, operand_types
from meshwright.core.source import Source
from meshwright.core.types import TensorType
from meshwright.errors import CheckError, MeshwrightError


def check(program: Program, stage: str = "") -> Program:
    """Return ``program`` if it is right; otherwise a ``CheckError`` shows the equation, its line and its neighbours.

    >>> from meshwright.core.text import parse_program
    >>> p = check(parse_program("program(a: f32[3]) { b: f32[3] = neg a  return b }"))
    """
    known: set[Var] = set()
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
        for _, region in eqn.regions():
            check(region, stage)
        wrong = _wrong_param(eqn)
        if wrong:
            raise _error(program, index, wrong, stage)
        try:
            types = eqn.op.type(*operand_types(eqn.op, eqn.inputs), **eqn.params)
        except Exception as error:  # a rule may stumble in any way over params that are not its own
            raise _error(program, index, _reason(eqn, error), stage) from error
        expected = types if isinstance(types, tuple) else (types,)
        actual = tuple(v.type for v in eqn.outputs)
        if expected != actual:
            raise _error(program, index, f"its result is {_show(*actual)}, but the op gives {_show(*expected)}", stage)
        for var in eqn.outputs:
            if var in known:
                raise _error(program, index, "it defines a variable a second time", stage)
            known.add(var)
    for atom in program.outputs:
        if atom.__class__ is not Literal and atom not in known:
            raise _error(program, len(program.eqns), f"a returned {_show(atom.type)} is not defined", stage)
    return program


def _reason(eqn: Eqn, error: Exception) -> str:
    if isinstance(error, MeshwrightError):
        return f"{error.what.removesuffix('.')}: {error.why}" if error.why else error.what
    # "rule() missing 1 required argument: 'shape'" is about the op, whatever its rule is called.
    text, named = re.subn(r"^[\w.<>]+\(\)", eqn.op.name, str(error) or type(error).__name__)
    return text if named else f"{eqn.op.name}: {text}"


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_sizes(value: object) -> bool:
    return isinstance(value, tuple) and all(_is_int(n) for n in value)


def _is_dtype(value: object) -> bool:
    return isinstance(value, np.dtype) and dtypes.is_supported(value)


# What the annotation of a param in a type rule admits, and how an error says so.
_Kind = tuple[Callable[[object], bool], str]
_KINDS: dict[str, _Kind] = {
    "int": (_is_int, "an int"),
    "bool": (lambda value: isinstance(value, bool), "True or False"),
    "str": (lambda value: isinstance(value, str), "a string"),
    "DType": (_is_dtype, "a dtype"),
    "dtypes.DType": (_is_dtype, "a dtype"),
    "DType | None": (lambda value: value is None or _is_dtype(value), "a dtype or None"),
    "Shape": (_is_sizes, "a tuple of ints"),
    "tuple[int, ...]": (_is_sizes, "a tuple of ints"),
    "Program": (lambda value: isinstance(value, Program), "a program"),
    "tuple[Program, ...]": (
        lambda value: isinstance(value, tuple) and all(isinstance(item, Program) for item in value),
        "a tuple of programs",
    ),
}


@cache
def _kind(op: Op, name: str) -> _Kind | None:
    """What a param of an op may be: what its type rule says, or else whatever is like the op's samples."""
    annotation = getattr(op.type, "__annotations__", {}).get(name)
    if annotation in _KINDS:
        return _KINDS[annotation]
    examples = [sample.params[name] for sample in op.samples() if name in sample.params]
    return (lambda value: _is_like(value, examples), _like(examples)) if examples else None


def _is_like(value: object, examples: list[object]) -> bool:
    if isinstance(value, tuple):
        tuples = [example for example in examples if isinstance(example, tuple)]
        inside = [item for example in tuples for item in example]
        return bool(tuples) and (not inside or all(_is_like(item, inside) for item in value))
    if isinstance(value, np.dtype) and not _is_dtype(value):
        return False
    return any(_class(value) is _class(example) for example in examples)


def _class(value: object) -> type:
    return np.dtype if isinstance(value, np.dtype) else type(value)


_CALLED = {bool: "True or False", int: "an int", float: "a float", str: "a string", np.dtype: "a dtype"}
_SEVERAL = {bool: "bools", int: "ints", float: "floats", str: "strings", np.dtype: "dtypes"}


def _like(examples: list[object], called: dict[type, str] = _CALLED) -> str:
    """How an error calls what the examples are examples of."""
    words = []
    for kind in dict.fromkeys(map(_class, examples)):
        if kind is tuple:
            inside = [item for example in examples if isinstance(example, tuple) for item in example]
            of = f" of {_like(inside, _SEVERAL)}" if inside else ""
            words.append(f"{'a tuple' if called is _CALLED else 'tuples'}{of}")
        else:
            words.append(called.get(kind, kind.__name__))
    return " or ".join(words)


def _wrong_param(eqn: Eqn) -> str:
    """What is wrong with the first param that is not of the kind its op takes."""
    for name, value in eqn.params.items():
        kind = _kind(eqn.op, name)
        if kind is not None and not kind[0](value):
            return f"{name} is {kind[1]}, not {_show_value(value)}"
    return ""


def _show_value(value: object) -> str:
    if isinstance(value, Program):
        return "a program"
    text = dtypes.short_name(value) if _is_dtype(value) else repr(value)  # type: ignore[arg-type]
    return text if len(text) <= 60 else f"{text[:50]}…"


def _contents(value: Any) -> tuple[Any, Any]:
    return getattr(value, "shape", None), getattr(value, "dtype", None)


def _show(*types: object) -> str:
    """Types as the text has them, also those that the text does not have."""
    return ", ".join(_show_type(t) for t in types)


def _show_type(type: object) -> str:
    if not isinstance(type, TensorType):
        return _show_value(type)
    try:
        return type.short()
    except (KeyError, TypeError, AttributeError):
        return f"{type.dtype}{list(type.shape)}"


def _lines(program: Program) -> list[str]:
    """The text with one line for each equation, also where a param or a type has no text."""
    try:
        return print_program(_flat(program)).split("\n")
    except Exception:  # this is on the way to an error about the same program
        constants = [f"  const … = {_show_value(value)}" for _, value in program.constants]
        eqns = [
            f"  {_show(*(v.type for v in e.outputs))} = {' '.join([e.op.name, *(_show(a.type) for a in e.inputs)])}"
            + "".join(f" {name}={_show_value(value)}" for name, value in e.params.items())
            for e in program.eqns
        ]
        inputs = _show(*(v.type for v in program.inputs))
        lines = [f"program({inputs}) {{", *constants, *eqns, f"  return {_show(*program.out_types)}", "}"]
        return [" ".join(line.splitlines()) for line in lines]


def _written_at(source: Source) -> str:
    try:
        return source.show()
    except ValueError:  # no file can have that name
        return str(source)


def _error(program: Program, index: int | None, why: str, stage: str) -> CheckError:
    lines = _lines(program)
    first = 1 + len(program.constants)
    at = 0 if index is None else first + index
    shown = [f"{'>' if n == at else ' '} {lines[n]}" for n in range(max(0, at - 2), min(len(lines), at + 3))]
    source = program.eqns[index].source if index is not None and index < len(program.eqns) else None
    where = "\n".join(shown) + (f"\nwritten at {_written_at(source)}" if source else "")
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
