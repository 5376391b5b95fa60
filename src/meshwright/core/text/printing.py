"""Programs as text. ``core.text.parse`` says what the text means, and reads it."""

from __future__ import annotations

import binascii
from collections.abc import Callable
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.axis_names import axis_text
from meshwright.core.program import Atom, Eqn, Literal, Missing, Params, Program, Rule, Var, digest, set_printer
from meshwright.core.types import Spec, TensorType

LARGEST_INLINE = 16
BARE = {float: TensorType((), dtypes.FLOAT32, True), int: TensorType((), dtypes.INT32, True)}
BARE[bool] = TensorType((), dtypes.BOOL)


Comments = bool | Callable[[Eqn], str]  # the user's lines, none, or what a function says of an equation


def print_program(program: Program, sources: Comments = True, constants: bool = False) -> str:
    """The text of a program; ``sources`` adds the user's lines, ``constants`` writes large arrays in full."""
    named = [", ".join(f"{axis_text(name)}={size}" for name, size in mesh.shape.items()) for mesh in _meshes(program)]
    return "\n".join([*(f"mesh({axes})" for axes in named), *_lines(program, _VarNames(), sources, constants)])


def _meshes(program: Program) -> dict[Any, None]:
    """The meshes that shardings in types are on, in the order they are first seen."""
    variables = [*program.inputs, *(var for var, _ in program.constants), *(v for e in program.eqns for v in e.outputs)]
    found = {v.type.sharding.mesh: None for v in variables if v.type.sharding is not None}
    for eqn in program.eqns:
        for _, region in eqn.regions():
            found.update(_meshes(region))
    return found


set_printer(print_program)


_TAKEN = frozenset({"const", "return", "program", "inf", "nan", "infj", "nanj"})


class _VarNames:
    """Gives vars the names a, b, …, z, ba, bb, … in the order they are first seen."""

    def __init__(self) -> None:
        self._names: dict[Var, str] = {}

    def __call__(self, atom: Atom) -> str:
        if isinstance(atom, Literal):
            return _print_literal(atom)
        name = self._names.get(atom)
        if name is None:
            name = self._names[atom] = letters(len(self._names))
        return name


def letters(n: int) -> str:
    """The name of the n-th value in a text."""
    text = ""
    while True:
        n, digit = divmod(n, 26)
        text = chr(ord("a") + digit) + text
        if not n:
            return text if text not in _TAKEN else text + "_"


def _print_literal(literal: Literal) -> str:
    text = print_number(literal.value, literal.type.dtype)
    bare = BARE.get(type(literal.value))
    return text if literal.type is bare else f"{text}:{literal.type.short().removesuffix('[]')}"


def print_number(value: Any, dtype: dtypes.DType) -> str:
    """The shortest text that reads back as ``value`` at ``dtype``: 0.1, not 0.10000000149011612, for an f32."""
    if dtype in (dtypes.FLOAT16, dtypes.FLOAT32):
        return str(dtype.type(value))
    return repr(float(value) if dtypes.is_float(dtype) else value)


def _lines(program: Program, name: _VarNames, sources: Comments, full: bool) -> list[str]:
    lines = [f"program({', '.join(f'{name(v)}: {v.type.short()}' for v in program.inputs)}) {{"]
    for var, value in program.constants:
        lines.append(f"  const {name(var)}: {var.type.short()} = {_print_constant(value, full)}")
    for eqn in program.eqns:
        inputs = [name(a) for a in eqn.inputs]  # named before the outputs, so that text order is program order
        head = ", ".join(f"{name(v)}: {v.type.short()}" for v in eqn.outputs)
        params = [_print_param(key, eqn.params[key], name, sources, full) for key in sorted(eqn.params)]
        body = " ".join([eqn.op.name, *inputs, *params])
        said = sources(eqn) if callable(sources) else eqn.source if sources else None
        comment = f"  # {said}{' again' * (said is eqn.source and said.again)}" if said else ""
        lines.extend(f"  {line}" for line in f"{head + ' ' if head else ''}= {body}{comment}".split("\n"))
    outputs = ", ".join(name(a) for a in program.outputs)
    lines.append(f"  return {outputs}" if outputs else "  return")
    lines.append("}")
    return lines


def _print_constant(value: Any, full: bool) -> str:
    if isinstance(value, Missing):
        return f"@{value.digest}"
    if value.size <= LARGEST_INLINE:
        return "[" + ", ".join(print_number(x, value.dtype) for x in value.ravel().tolist()) + "]"
    if full:
        return (
            f"@{digest(value)} '{binascii.b2a_base64(np.ascontiguousarray(value).tobytes(), newline=False).decode()}'"
        )
    return f"@{digest(value)}"


def _print_param(key: str, value: Any, name: _VarNames, sources: Comments, full: bool) -> str:
    return f"{key}={_print_value(value, name, sources, full)}"


def print_params(params: Params) -> str:
    """The params of an equation without programs, as its text has them."""
    names = _VarNames()
    return " ".join(_print_param(key, params[key], names, False, False) for key in sorted(params))


def _print_value(value: Any, name: _VarNames, sources: Comments, full: bool) -> str:
    def region(value: Any) -> str | None:
        return "\n".join(_lines(value, name, sources, full)) if isinstance(value, Program) else None

    return print_value(value, region)


def print_value(value: Any, own: Callable[[Any], str | None]) -> str:
    """A param as text; ``own`` writes what is written in another way here, and says None of the rest."""
    text = own(value)
    if text is not None:
        return text
    if isinstance(value, tuple):
        items = [print_value(item, own) for item in value]
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    if isinstance(value, np.dtype):
        return dtypes.short_name(value)
    if isinstance(value, TensorType):
        return value.short()
    if value is None or isinstance(value, bool | int | float | complex | str | Rule | Spec):
        return repr(value)
    raise TypeError(f"param {key_of(value)} cannot be written as text")


def key_of(value: Any) -> str:
    return f"{type(value).__name__} {value!r}"
