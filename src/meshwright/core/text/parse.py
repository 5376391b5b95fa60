"""Programs as text, and back: ``parse_program(str(p)) == p``.

    program(a: f32[8,4], b: f32[4]) {
      const c: f32[2] = [1.0, 2.0]
      d: f32[8,4] = broadcast_in_dim b dims=(1,) shape=(8, 4)  # mlp.py:12
      e: f32[8,4] = add a d  # mlp.py:12
      f: f32[8,4] = mul e 2.0
      return f
    }

A bare ``2.0``, ``2`` or ``True`` is a weak f32, a weak i32, a bool; any other literal names its type: ``2.0:bf16``.
Where shardings are part of types, the Explicit axes of the mesh come first, and a dim names those that split it:

    mesh(x=2, y=4)
    program(a: f32[8@x,4], b: f32[16@(y,x)]) {

An axis whose name is not a word is in quotes: ``f32[8@'a b']``.

Params are numbers, strings, tuples, dtypes, types, programs and the names of users' rules. A constant of more than
``LARGEST_INLINE`` elements is kept by the digest of its contents.
"""

from __future__ import annotations

import binascii
import re
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.op import REGISTRY
from meshwright.core.program import Atom, Eqn, Literal, Missing, Program, Rule, Var, digest
from meshwright.core.text.printing import BARE
from meshwright.core.text.tokens import TextReader, brief, following, read_list, read_string
from meshwright.core.text.types import read_dtype_name, read_int, read_mesh, read_type
from meshwright.core.trace import python_number
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError

_EQUALS = re.compile(r"[ \t]*=")


def parse_program(text: str) -> Program:
    """Read a program.

    >>> text = "program(a: f32[3]) { b: f32[3] = neg a  return b }"
    >>> parse_program(text).out_types
    (ShapedArray(float32[3]),)
    """
    reader = TextReader(text, "a program")
    while reader.accept("mesh"):
        reader.meshes.append(read_mesh(reader))
    program = _parse_program(reader, {})
    reader.finish()
    return program


def _parse_var(reader: TextReader, names: dict[str, Var]) -> Var:
    position = reader.peek_full()[2]
    name = reader.word("a name")
    if name in names:
        raise reader.error_at(position, f"{brief(name)!r} is given twice")
    reader.take(":")
    var = Var(read_type(reader))
    names[name] = var
    return var


def _parse_program(reader: TextReader, outer: dict[str, Var]) -> Program:
    names: dict[str, Var] = {}
    reader.take("program")
    reader.take("(")
    inputs = read_list(reader, ")", lambda: _parse_var(reader, names))
    reader.take("{")
    constants = []
    while reader.accept("const"):
        var = _parse_var(reader, names)
        reader.take("=")
        constants.append((var, _parse_constant(reader, var.type)))
    eqns: list[Eqn] = []
    while not (reader.peek_full()[0] == "word" and reader.peek() == "return"):
        eqns.append(_parse_eqn(reader, names))
    reader.take("return")
    outputs: list[Atom] = []
    while reader.peek() != "}":
        outputs.append(_parse_atom(reader, names))
        if not reader.accept(","):
            break
    reader.take("}")
    return Program(tuple(inputs), tuple(eqns), tuple(outputs), tuple(constants))


def _parse_eqn(reader: TextReader, names: dict[str, Var]) -> Eqn:
    heads: dict[str, TensorType] = {}
    while reader.peek() != "=":
        position = reader.peek_full()[2]
        name = reader.word("the name of a result, or `return`")
        if name in names or name in heads:
            raise reader.error_at(position, f"{brief(name)!r} is given twice")
        reader.take(":")
        heads[name] = read_type(reader)
        if reader.peek() != "=":
            reader.take(",")
    reader.take("=")
    position = reader.peek_full()[2]
    op_name = reader.word("an op")
    op = REGISTRY.find(op_name)
    if op is None:
        raise reader.error_at(position, f"there is no op {brief(op_name)!r}")
    inputs: list[Atom] = []
    params: dict[str, Any] = {}
    while not _ends_equation(reader):
        if _is_param(reader):
            if reader.peek() in params:
                raise reader.error(f"the param {brief(reader.peek())!r} is given twice")
            key = reader.word("a param")
            reader.take("=")
            params[key] = _parse_value(reader, names)
        else:
            inputs.append(_parse_atom(reader, names))
    source = reader.trailing_source()
    outputs = {name: Var(t) for name, t in heads.items()}
    names.update(outputs)
    return Eqn(op, tuple(inputs), params, tuple(outputs.values()), source)


def _is_param(reader: TextReader) -> bool:
    """Whether `name=` follows; an `=` on the next line starts an equation without results."""
    kind, name, position = reader.peek_full()
    return kind == "word" and _EQUALS.match(reader.text, position + len(name)) is not None


def _ends_equation(reader: TextReader) -> bool:
    """Whether what follows is `return`, the head of the next equation (`name: type`), or a headless one (`= op`)."""
    if reader.peek() in ("return", "}", "=") or reader.peek_full()[0] == "end":
        return True
    return (
        reader.peek_full()[0] == "word"
        and reader.peek() not in ("True", "False")
        and (following(reader, 2)[1:] == [":"])
    )


def _parse_atom(reader: TextReader, names: dict[str, Var]) -> Atom:
    kind, text, position = reader.peek_full()
    if kind == "word" and text not in ("True", "False"):
        reader.take()
        if text not in names:
            raise reader.error_at(position, f"{brief(text)!r} is not defined before this line")
        return names[text]
    value = _parse_number(reader)
    if reader.accept(":"):
        weak = reader.accept("~")
        type_ = TensorType((), dtypes.SHORT_NAMES[read_dtype_name(reader)], weak)
    elif type(value) in BARE:
        type_ = BARE[type(value)]
    else:
        raise reader.error_at(position, "a complex literal names its type: (1+2j):c64")
    return Literal(_at_dtype(reader, position, value, type_.dtype), type_)


def _at_dtype(reader: TextReader, position: int, value: Any, dtype: dtypes.DType) -> Any:
    """The number of ``dtype`` that ``value`` stands for."""
    if dtype == dtypes.BOOL:
        fits = isinstance(value, bool)
    elif isinstance(value, bool) or dtype == dtypes.KEY:
        fits = False
    elif dtypes.holds_integers(dtype):
        limits = dtypes.integer_limits(dtype)
        fits = isinstance(value, int) and limits.min <= value <= limits.max
    else:
        fits = dtypes.is_complex(dtype) or not isinstance(value, complex)
    if not fits:
        raise reader.error_at(position, f"{value!r} is not a value of {dtypes.short_name(dtype)}")
    if dtypes.is_float(dtype):
        value = float(value)
    with np.errstate(over="ignore"):
        return python_number(np.asarray(value, dtype))


def _parse_number(reader: TextReader) -> Any:
    kind, text, position = reader.peek_full()
    if text in ("True", "False"):
        reader.take()
        return text == "True"
    if text == "(":
        reader.take()
        parts = ""
        while not reader.accept(")"):
            parts += reader.take()[1]
        try:
            return complex(parts)
        except ValueError:
            raise reader.error_at(position, f"({brief(parts)}) is not a complex number") from None
    if text in ("inf", "nan") or kind == "number":
        if text.lstrip("+-").isdigit():
            return read_int(reader)
        reader.take()
        return complex(text) if text.endswith("j") else float(text)
    if text == "-":
        reader.take()
        if reader.peek() in ("-", "True", "False"):
            raise reader.expected("a number")
        return -_parse_number(reader)
    raise reader.expected("a value")


def _parse_value(reader: TextReader, names: dict[str, Var]) -> Any:
    kind, text, _ = reader.peek_full()
    if text == "program":
        with reader.deeper():
            return _parse_program(reader, names)
    if text == "(":
        if _is_complex(reader):
            return _parse_number(reader)
        with reader.deeper():
            reader.take()
            return tuple(read_list(reader, ")", lambda: _parse_value(reader, names)))
    if kind == "string":
        return read_string(reader)
    if text == "None":
        reader.take()
        return None
    if text == "P":
        with reader.deeper():
            return _parse_spec(reader, names)
    if text == "UNCONSTRAINED":
        from meshwright.sharding.spec import UNCONSTRAINED

        reader.take()
        return UNCONSTRAINED
    if text == "rule":
        reader.take()
        reader.take("(")
        rule = Rule(read_string(reader))
        reader.take(")")
        return rule
    if text == "~" or text in dtypes.SHORT_NAMES:
        if text != "~" and following(reader, 2)[1:] != ["["]:
            reader.take()
            return dtypes.SHORT_NAMES[text]
        return read_type(reader)
    return _parse_number(reader)


def _parse_spec(reader: TextReader, names: dict[str, Var]) -> Any:
    """A partition spec: ``P('x', None, unreduced={'y'})``."""
    from meshwright.sharding.spec import PartitionSpec  # few programs have one

    position = reader.peek_full()[2]
    reader.take()
    reader.take("(")
    entries: list[Any] = []
    sets: dict[str, Any] = {}
    while not reader.accept(")"):
        if _is_param(reader):
            key = reader.word("a set of axes")
            reader.take("=")
            reader.take("{")
            sets[key] = read_list(reader, "}", lambda: read_string(reader))
        elif reader.accept("UNCONSTRAINED"):
            entries.append(PartitionSpec.UNCONSTRAINED)
        elif following(reader, 2) == ["P", "."]:
            entries.append(_parse_dim(reader, names))
        else:
            entries.append(_parse_value(reader, names))
        if reader.peek() != ")":
            reader.take(",")
    try:
        return PartitionSpec(*entries, **sets)
    except (TypeError, MeshwrightError) as error:
        raise reader.error_at(position, str(error).split("\n")[0]) from None


def _parse_dim(reader: TextReader, names: dict[str, Var]) -> Any:
    """A dim of a partition spec: ``P.dim('x', open=True, priority=1)``."""
    from meshwright.sharding.spec import PartitionSpec

    position = reader.peek_full()[2]
    for token in ("P", ".", "dim", "("):
        reader.take(token)
    axes: list[Any] = []
    said: dict[str, Any] = {}
    while not reader.accept(")"):
        if _is_param(reader):
            key = reader.word("open or priority")
            reader.take("=")
            said[key] = _parse_value(reader, names)
        else:
            axes.append(_parse_value(reader, names))
        if reader.peek() != ")":
            reader.take(",")
    try:
        return PartitionSpec.dim(*axes, **said)
    except (TypeError, MeshwrightError) as error:
        raise reader.error_at(position, str(error).split("\n")[0]) from None


def _is_complex(reader: TextReader) -> bool:
    """Whether `(` starts a complex number such as (1+2j) rather than a tuple."""
    tokens = following(reader, 5)
    ends = tokens.index(")") if ")" in tokens else -1
    return ends > 1 and not {"(", ","} & set(tokens[1:ends]) and tokens[ends - 1].endswith("j")


def _parse_constant(reader: TextReader, type: TensorType) -> Any:
    kind, text, position = reader.peek_full()
    if kind == "digest":
        reader.take()
        if reader.peek_full()[0] != "string":
            return Missing(text[1:])
        try:
            raw = binascii.a2b_base64(read_string(reader), strict_mode=True)
        except ValueError:
            raise reader.error_at(position, "the data is not base64") from None
        if len(raw) != type.nbytes:
            raise reader.error_at(position, f"the data has {len(raw)} bytes, the type {type.short()} {type.nbytes}")
        if type.dtype == dtypes.BOOL and raw.translate(None, b"\0\1"):
            raise reader.error_at(position, "the data of a bool has bytes other than 0 and 1")
        array = _shaped(reader, position, np.frombuffer(raw, type.dtype), type).copy()
        if digest(array) != text[1:]:
            raise reader.error_at(position, f"the digest is {brief(text)}, that of the data @{digest(array)}")
        return array
    reader.take("[")
    items = read_list(reader, "]", lambda: _parse_element(reader, type.dtype))
    if len(items) != type.size:
        raise reader.error_at(position, f"{len(items)} elements given for the type {type.short()}")
    return _shaped(reader, position, np.asarray(items, type.dtype), type)


def _shaped(reader: TextReader, position: int, flat: Any, type: TensorType) -> Any:
    try:
        return flat.reshape(type.shape)
    except (ValueError, OverflowError):  # more dims, or empty ones beside larger ones, than NumPy holds
        raise reader.error_at(position, f"NumPy has no array of the type {brief(type.short())}") from None


def _parse_element(reader: TextReader, dtype: dtypes.DType) -> Any:
    position = reader.peek_full()[2]
    return _at_dtype(reader, position, _parse_number(reader), dtype)
