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

Params are numbers, strings, tuples, dtypes, types, programs and the names of users' rules. A constant of more than
``LARGEST_INLINE`` elements is kept by the digest of its contents.
"""

from __future__ import annotations

import ast
import binascii
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.op import REGISTRY
from meshwright.core.printing import BARE
from meshwright.core.program import Atom, Eqn, Literal, Missing, Program, Rule, Var, digest
from meshwright.core.source import Source
from meshwright.core.trace import python_number
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError, TextError

if TYPE_CHECKING:
    from meshwright.core.axes import AxisRef
    from meshwright.core.mesh import AbstractMesh
    from meshwright.core.sharding import TensorSharding

DEEPEST = 100  # regions and tuples inside each other; the reader and the printer call themselves for each
_MOST_DIGITS = 100  # of an integer; Python itself refuses to read some thousands
_LARGEST_SIZE = 2**63 - 1
_SHOWN = 160  # characters of a line in an error


_TOKENS = re.compile(
    r"""(?P<space>[ \t]+)|(?P<newline>\n)|(?P<comment>\#[^\n]*)
      |(?P<number>[-+]?(?:\d+\.\d*(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+|\d+|(?:inf|nan)(?=j?\b))j?)
      |(?P<string>'[^'\\\n]*(?:\\.[^'\\\n]*)*'|"[^"\\\n]*(?:\\.[^"\\\n]*)*")
      |(?P<word>[A-Za-z_][A-Za-z_0-9]*)
      |(?P<digest>(?<![0-9])@[0-9a-f]+)
      |(?P<sign>[-=:,(){}\[\]~+@])""",
    re.VERBOSE | re.ASCII,
)
_EQUALS = re.compile(r"[ \t]*=")
_SOURCE = re.compile(r"#\s*(\S.*):([0-9]{1,9})\s*")
# The escapes that ``repr`` writes; Python warns about some others.
_STRING = re.compile(
    r"""(['"])(?:[^\\]|\\(?:[\\'"nrt]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U(?:000[0-9a-fA-F]|0010)[0-9a-fA-F]{4}))*\1"""
)


def _brief(text: str) -> str:
    """A token as an error shows it."""
    return text if len(text) <= 60 else f"{text[:40]}…{text[-10:]}"


class _Reader:
    """Tokens of a text with one token of lookahead; every error points at a character."""

    def __init__(self, text: str, what: str) -> None:
        if not isinstance(text, str):
            raise _not_text(text, what)
        self.text = text
        self.depth = 0
        self.tokens: list[tuple[str, str, int]] = []
        self.next = 0
        position = 0
        while position < len(text):
            match = _TOKENS.match(text, position)
            if match is None:
                raise self.error_at(position, f"the character {text[position]!r} means nothing here")
            if match.lastgroup not in ("space", "newline"):
                self.tokens.append((match.lastgroup or "", match.group(), position))
            position = match.end()
        self.tokens.append(("end", "the end of the text", len(text)))
        self.source: Source | None = None
        self.mesh: AbstractMesh | None = None

    def error_at(self, position: int, why: str) -> TextError:
        before = self.text[:position]
        line = before.count("\n")
        column = position - (before.rfind("\n") + 1)
        shown = self.text.split("\n")[line] if self.text else ""
        if len(shown) > _SHOWN:
            first = max(0, min(column - _SHOWN // 2, len(shown) - _SHOWN))
            rest = "…" if first + _SHOWN < len(shown) else ""
            shown = ("…" if first else "") + shown[first : first + _SHOWN] + rest
            caret = column - first + (1 if first else 0)
        else:
            caret = column
        return TextError(
            f"This is not a program: line {line + 1}, column {column + 1}.",
            where=f"{shown}\n{' ' * caret}^",
            why=why,
            fix="write equations as `c: f32[8,4] = add a b`, inside `program(a: f32[8,4], …) { … return c }`",
        )

    def error(self, why: str) -> TextError:
        return self.error_at(self.peek_full()[2], why)

    def expected(self, what: str) -> TextError:
        """The error for what comes next not being ``what``."""
        kind, text, position = self.peek_full()
        return self.error_at(position, f"expected {what}, found {text if kind == 'end' else repr(_brief(text))}")

    def peek_full(self) -> tuple[str, str, int]:
        index = self.next
        while self.tokens[index][0] == "comment":
            index += 1
        return self.tokens[index]

    def peek(self) -> str:
        return self.peek_full()[1]

    def take(self, expected: str | None = None) -> tuple[str, str]:
        while self.tokens[self.next][0] == "comment":
            self.next += 1
        kind, text, _ = self.tokens[self.next]
        if expected is not None and text != expected:
            raise self.expected(repr(expected))
        if kind == "end":
            raise self.expected("more")
        self.next += 1
        return kind, text

    def accept(self, text: str) -> bool:
        if self.peek_full()[0] != "end" and self.peek() == text:
            self.take()
            return True
        return False

    def word(self, what: str) -> str:
        kind, text, _ = self.peek_full()
        if kind != "word":
            raise self.expected(what)
        self.take()
        return text

    def trailing_source(self) -> Source | None:
        """The source written as a comment right after what was just read."""
        kind, text, _ = self.tokens[self.next]
        match = _SOURCE.fullmatch(text) if kind == "comment" else None
        return Source(match[1], int(match[2])) if match else None

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """Around what is inside something else: the text may nest ``DEEPEST`` levels."""
        if self.depth == DEEPEST:
            raise self.error(f"regions and tuples nest more than {DEEPEST} deep")
        self.depth += 1
        yield
        self.depth -= 1


def _not_text(given: object, what: str) -> TextError:
    if isinstance(given, Program):
        fix = "str(program)"
    elif isinstance(given, bytes | bytearray):
        fix = "text.decode()"
    else:
        fix = "'program(a: f32[3]) { b: f32[3] = neg a  return b }'" if what == "a program" else "'f32[8,4]'"
    article = "an" if type(given).__name__[0] in "aeiouAEIOU" else "a"
    return TextError(
        f"This is not {what}.", why=f"it is read from a str, not from {article} {type(given).__name__}", fix=fix
    )


def parse_program(text: str) -> Program:
    """Read a program.

    >>> text = "program(a: f32[3]) { b: f32[3] = neg a  return b }"
    >>> parse_program(text).out_types
    (f32[3],)
    """
    reader = _Reader(text, "a program")
    if reader.accept("mesh"):
        reader.mesh = _parse_mesh(reader)
    program = _parse_program(reader, {})
    if reader.peek_full()[0] != "end":
        raise reader.expected("the end of the text")
    return program


def parse_type(text: str) -> TensorType:
    """Read a type such as ``f32[8,4]``."""
    reader = _Reader(text, "a type")
    result = _parse_type(reader)
    if reader.peek_full()[0] != "end":
        raise reader.expected("the end of the text")
    return result


def _parse_mesh(reader: _Reader) -> AbstractMesh:
    from meshwright.core.explicit import explicit_mesh  # few programs have one

    position = reader.peek_full()[2]
    reader.take("(")

    def axis() -> tuple[str, int]:
        name = reader.word("a mesh axis")
        reader.take("=")
        return name, _parse_size(reader)

    axes = tuple(_parse_list(reader, ")", axis))
    try:
        return explicit_mesh(axes)
    except MeshwrightError as error:
        raise reader.error_at(position, error.what) from None


def _parse_split(reader: _Reader) -> tuple[AxisRef, ...]:
    """The axes that split a dim: ``@x``, ``@(x,y)``, or nothing."""
    if not reader.accept("@"):
        return ()
    if reader.mesh is None:
        raise reader.error("a dim is split over an axis, and no mesh is given: mesh(x=2, y=4) before the program")
    several = reader.accept("(")
    return tuple(_parse_list(reader, ")", lambda: _parse_ref(reader))) if several else (_parse_ref(reader),)


def _parse_ref(reader: _Reader) -> AxisRef:
    from meshwright.core.partition_spec import read_axis  # few programs have one
    from meshwright.core.sharding_check import resolve

    position = reader.peek_full()[2]
    text = _parse_axis(reader)
    assert reader.mesh is not None
    try:
        return resolve(reader.mesh, [read_axis(text)])[0]
    except KeyError:
        why = f"the mesh has the axes {', '.join(reader.mesh.axis_names)}, and not {_brief(text)}"
    except (MeshwrightError, ValueError, ZeroDivisionError):
        why = f"{_brief(text)} is no part of the axis"
    raise reader.error_at(position, why)


def _parse_sharding(reader: _Reader, position: int, dims: list[tuple[AxisRef, ...]]) -> TensorSharding | None:
    if not any(dims):
        return None
    from meshwright.core.sharding import type_sharding  # few programs have one

    axes = [axis for dim in dims for axis in dim]
    for n, axis in enumerate(axes):
        if any(axis.overlaps(other) for other in axes[:n]):
            raise reader.error_at(position, f"{axis.name} splits two dims")
    assert reader.mesh is not None
    return type_sharding(reader.mesh, tuple(dims))


def _parse_type(reader: _Reader) -> TensorType:
    weak = reader.accept("~")
    position = reader.peek_full()[2]
    name = _parse_dtype_name(reader)
    shape: list[int] = []
    dims: list[tuple[AxisRef, ...]] = []
    reader.take("[")
    while not reader.accept("]"):
        shape.append(_parse_size(reader))
        dims.append(_parse_split(reader))
        if reader.peek() != "]":
            reader.take(",")
    varying: list[str] = []
    unreduced: list[str] = []
    if reader.peek() == "{":
        reader.take()
        while not reader.accept("}"):
            if reader.peek() == "U" and _following(reader, 2)[1:] == [":"]:
                reader.take()
                reader.take()
                unreduced.append(_parse_axis(reader))
            else:
                varying.append(_parse_axis(reader))
            reader.accept(",")
    sharding = _parse_sharding(reader, position, dims)
    return TensorType(tuple(shape), dtypes.SHORT_NAMES[name], weak, sharding, tuple(varying), tuple(unreduced))


def _parse_axis(reader: _Reader) -> str:
    """A mesh axis, ``x``, or a part of one, ``x:(1)2``."""
    name = reader.word("a mesh axis")
    if not reader.accept(":"):
        return name
    reader.take("(")
    before = _parse_size(reader)
    reader.take(")")
    return f"{name}:({before}){_parse_size(reader)}"


def _parse_dtype_name(reader: _Reader) -> str:
    name = reader.peek()
    if name not in dtypes.SHORT_NAMES:
        raise reader.expected(f"a dtype ({', '.join(dtypes.SHORT_NAMES)})")
    reader.take()
    return name


def _parse_size(reader: _Reader) -> int:
    kind, text, position = reader.peek_full()
    if kind != "number" or not text.isdigit():
        raise reader.expected("a size")
    size = _parse_int(reader)
    if size > _LARGEST_SIZE:
        raise reader.error_at(position, f"the size {_brief(text)} is more than {_LARGEST_SIZE}")
    return size


def _parse_int(reader: _Reader) -> int:
    text = reader.peek()
    digits = len(text.lstrip("+-"))
    if digits > _MOST_DIGITS:
        raise reader.error(f"the integer has {digits} digits, and at most {_MOST_DIGITS} are read")
    reader.take()
    return int(text)


def _parse_var(reader: _Reader, names: dict[str, Var]) -> Var:
    position = reader.peek_full()[2]
    name = reader.word("a name")
    if name in names:
        raise reader.error_at(position, f"{_brief(name)!r} is given twice")
    reader.take(":")
    var = Var(_parse_type(reader))
    names[name] = var
    return var


def _parse_list(reader: _Reader, end: str, item: Callable[[], Any]) -> list[Any]:
    items = []
    while not reader.accept(end):
        items.append(item())
        if reader.peek() != end:
            reader.take(",")
    return items


def _parse_program(reader: _Reader, outer: dict[str, Var]) -> Program:
    names: dict[str, Var] = {}
    reader.take("program")
    reader.take("(")
    inputs = _parse_list(reader, ")", lambda: _parse_var(reader, names))
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


def _parse_eqn(reader: _Reader, names: dict[str, Var]) -> Eqn:
    heads: list[tuple[str, TensorType]] = []
    while reader.peek() != "=":
        position = reader.peek_full()[2]
        name = reader.word("the name of a result, or `return`")
        if name in names or any(name == other for other, _ in heads):
            raise reader.error_at(position, f"{_brief(name)!r} is given twice")
        reader.take(":")
        heads.append((name, _parse_type(reader)))
        if reader.peek() != "=":
            reader.take(",")
    reader.take("=")
    position = reader.peek_full()[2]
    op_name = reader.word("an op")
    op = REGISTRY.find(op_name)
    if op is None:
        raise reader.error_at(position, f"there is no op {_brief(op_name)!r}")
    inputs: list[Atom] = []
    params: dict[str, Any] = {}
    while not _ends_equation(reader):
        if _is_param(reader):
            if reader.peek() in params:
                raise reader.error(f"the param {_brief(reader.peek())!r} is given twice")
            key = reader.word("a param")
            reader.take("=")
            params[key] = _parse_value(reader, names)
        else:
            inputs.append(_parse_atom(reader, names))
    source = reader.trailing_source()
    outputs = [Var(t) for _, t in heads]
    for (name, _), var in zip(heads, outputs, strict=True):
        names[name] = var
    return Eqn(op, tuple(inputs), params, tuple(outputs), source)


def _following(reader: _Reader, count: int) -> list[str]:
    """The next ``count`` tokens, comments left out."""
    found: list[str] = []
    index = reader.next
    while len(found) < count and index < len(reader.tokens):
        if reader.tokens[index][0] != "comment":
            found.append(reader.tokens[index][1])
        index += 1
    return found


def _is_param(reader: _Reader) -> bool:
    """Whether `name=` follows; an `=` on the next line starts an equation without results."""
    kind, name, position = reader.peek_full()
    return kind == "word" and _EQUALS.match(reader.text, position + len(name)) is not None


def _ends_equation(reader: _Reader) -> bool:
    """Whether what follows is `return`, the head of the next equation (`name: type`), or a headless one (`= op`)."""
    if reader.peek() in ("return", "}", "=") or reader.peek_full()[0] == "end":
        return True
    return (
        reader.peek_full()[0] == "word"
        and reader.peek() not in ("True", "False")
        and (_following(reader, 2)[1:] == [":"])
    )


def _parse_atom(reader: _Reader, names: dict[str, Var]) -> Atom:
    kind, text, position = reader.peek_full()
    if kind == "word" and text not in ("True", "False"):
        reader.take()
        if text not in names:
            raise reader.error_at(position, f"{_brief(text)!r} is not defined before this line")
        return names[text]
    value = _parse_number(reader)
    if reader.accept(":"):
        weak = reader.accept("~")
        type_ = TensorType((), dtypes.SHORT_NAMES[_parse_dtype_name(reader)], weak)
    elif type(value) in BARE:
        type_ = BARE[type(value)]
    else:
        raise reader.error_at(position, "a complex literal names its type: (1+2j):c64")
    return Literal(_at_dtype(reader, position, value, type_.dtype), type_)


def _at_dtype(reader: _Reader, position: int, value: Any, dtype: dtypes.DType) -> Any:
    """The number of ``dtype`` that ``value`` stands for."""
    if dtype == dtypes.BOOL:
        fits = isinstance(value, bool)
    elif isinstance(value, bool):
        fits = False
    elif dtypes.is_integer(dtype):
        fits = isinstance(value, int) and np.iinfo(dtype).min <= value <= np.iinfo(dtype).max
    else:
        fits = dtypes.is_complex(dtype) or not isinstance(value, complex)
    if not fits:
        raise reader.error_at(position, f"{value!r} is not a value of {dtypes.short_name(dtype)}")
    if dtypes.is_float(dtype):
        value = float(value)
    with np.errstate(over="ignore"):
        return python_number(np.asarray(value, dtype))


def _parse_number(reader: _Reader) -> Any:
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
            raise reader.error_at(position, f"({_brief(parts)}) is not a complex number") from None
    if text in ("inf", "nan") or kind == "number":
        if text.lstrip("+-").isdigit():
            return _parse_int(reader)
        reader.take()
        return complex(text) if text.endswith("j") else float(text)
    if text == "-":
        reader.take()
        if reader.peek() in ("-", "True", "False"):
            raise reader.expected("a number")
        return -_parse_number(reader)
    raise reader.expected("a value")


def _parse_value(reader: _Reader, names: dict[str, Var]) -> Any:
    kind, text, _ = reader.peek_full()
    if text == "program":
        with reader.deeper():
            return _parse_program(reader, names)
    if text == "(":
        if _is_complex(reader):
            return _parse_number(reader)
        with reader.deeper():
            reader.take()
            return tuple(_parse_list(reader, ")", lambda: _parse_value(reader, names)))
    if kind == "string":
        return _parse_string(reader)
    if text == "None":
        reader.take()
        return None
    if text == "P":
        return _parse_spec(reader, names)
    if text == "UNCONSTRAINED":
        from meshwright.core.partition_spec import UNCONSTRAINED

        reader.take()
        return UNCONSTRAINED
    if text == "rule":
        reader.take()
        reader.take("(")
        rule = Rule(_parse_string(reader))
        reader.take(")")
        return rule
    if text == "~" or text in dtypes.SHORT_NAMES:
        if text != "~" and _following(reader, 2)[1:] != ["["]:
            reader.take()
            return dtypes.SHORT_NAMES[text]
        return _parse_type(reader)
    return _parse_number(reader)


def _parse_spec(reader: _Reader, names: dict[str, Var]) -> Any:
    """A partition spec: ``P('x', None, unreduced={'y'})``."""
    from meshwright.core.partition_spec import PartitionSpec  # few programs have one

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
            sets[key] = _parse_list(reader, "}", lambda: _parse_string(reader))
        elif reader.accept("UNCONSTRAINED"):
            entries.append(PartitionSpec.UNCONSTRAINED)
        else:
            entries.append(_parse_value(reader, names))
        if reader.peek() != ")":
            reader.take(",")
    try:
        return PartitionSpec(*entries, **sets)
    except (TypeError, MeshwrightError) as error:
        raise reader.error_at(position, str(error).split("\n")[0]) from None


def _is_complex(reader: _Reader) -> bool:
    """Whether `(` starts a complex number such as (1+2j) rather than a tuple."""
    tokens = _following(reader, 5)
    ends = tokens.index(")") if ")" in tokens else -1
    return ends > 1 and not {"(", ","} & set(tokens[1:ends]) and tokens[ends - 1].endswith("j")


def _parse_string(reader: _Reader) -> str:
    kind, text, _ = reader.peek_full()
    if kind != "string":
        raise reader.expected("a string")
    try:
        if _STRING.fullmatch(text) is None:
            raise ValueError
        value: str = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        raise reader.error(f"{_brief(text)} is not a string") from None
    reader.take()
    return value


def _parse_constant(reader: _Reader, type: TensorType) -> Any:
    kind, text, position = reader.peek_full()
    if kind == "digest":
        reader.take()
        if reader.peek_full()[0] != "string":
            return Missing(text[1:])
        try:
            raw = binascii.a2b_base64(_parse_string(reader), strict_mode=True)
        except ValueError:
            raise reader.error_at(position, "the data is not base64") from None
        if len(raw) != type.nbytes:
            raise reader.error_at(position, f"the data has {len(raw)} bytes, the type {type.short()} {type.nbytes}")
        if type.dtype == dtypes.BOOL and raw.translate(None, b"\0\1"):
            raise reader.error_at(position, "the data of a bool has bytes other than 0 and 1")
        array = _shaped(reader, position, np.frombuffer(raw, type.dtype), type).copy()
        if digest(array) != text[1:]:
            raise reader.error_at(position, f"the digest is {_brief(text)}, that of the data @{digest(array)}")
        return array
    reader.take("[")
    items = _parse_list(reader, "]", lambda: _parse_element(reader, type.dtype))
    if len(items) != type.size:
        raise reader.error_at(position, f"{len(items)} elements given for the type {type.short()}")
    return _shaped(reader, position, np.asarray(items, type.dtype), type)


def _shaped(reader: _Reader, position: int, flat: Any, type: TensorType) -> Any:
    try:
        return flat.reshape(type.shape)
    except (ValueError, OverflowError):  # more dims, or empty ones beside larger ones, than NumPy holds
        raise reader.error_at(position, f"NumPy has no array of the type {_brief(type.short())}") from None


def _parse_element(reader: _Reader, dtype: dtypes.DType) -> Any:
    position = reader.peek_full()[2]
    return _at_dtype(reader, position, _parse_number(reader), dtype)
