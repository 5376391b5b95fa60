"""Meshes and shardings as text: the document's grammar and MLIR's spelling of it.

    @mesh = <["x"=2, "y"=8]>                        sdy.mesh @mesh = <["x"=2, "y"=8], device_ids=[1, 0, …]>
    sharding<@mesh, [{"x"}, {"y":(2)2, ?}p1]>       #sdy.sharding<@mesh, [{"x"}, {}], replicated={"y"}, unreduced={"z"}>

What is read here is what was *written*, with the place of each part; whether it means something is for the mesh and the
checker to say. Text that begins with ``#sdy.`` or ``sdy.`` is read exactly as MLIR reads it. Without that, the
document's freedoms hold: ``<"x"=2>`` for ``<["x"=2]>``, ``{<[…]>, device_ids=[…]}``, some devices of many in
``device_ids``, empty ``replicated={}``, and a trailing ``: tensor<4x8xf32>``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple, TypeVar

from meshwright.core.source import here
from meshwright.errors import TextError
from meshwright.sharding.axes import quoted

REDUCTIONS = ("sum", "max", "min")
LARGEST = 2**63 - 1
_MOST_DIGITS = 19  # as many as LARGEST has
_AROUND = 80  # characters shown of a long line on either side of a place
_MOST_FOUND = 40  # characters shown of what was found instead

Item = TypeVar("Item")


class WrittenAxis(NamedTuple):
    """``"x"`` or ``"x":(pre)size`` as written; ``at`` is its place in the text, -1 if it was not in one."""

    name: str
    pre: int | None = None
    size: int | None = None
    at: int = -1

    def __str__(self) -> str:
        return quoted(self.name) + ("" if self.pre is None else f":({self.pre}){self.size}")


class WrittenDim(NamedTuple):
    """``{"x", "y", ?}p1`` as written."""

    axes: tuple[WrittenAxis, ...] = ()
    is_open: bool = False
    priority: int | None = None
    at: int = -1


class WrittenMesh(NamedTuple):
    """``<["x"=2], device_ids=[1, 0]>`` as written, perhaps with a name before it."""

    axes: tuple[tuple[str, int, int], ...]  # name, size, place
    device_ids: tuple[int, ...] | None
    ids_at: int
    id_places: tuple[int, ...] = ()
    exact: bool = False  # it is MLIR's text, in which a program's devices are numbered from 0 on
    name: str | None = None


class WrittenSharding(NamedTuple):
    """A sharding as written; ``mesh`` is a name or a mesh written out; ``shape`` that of a tensor type after it."""

    mesh: str | WrittenMesh
    mesh_at: int
    dims: tuple[WrittenDim, ...]
    replicated: tuple[WrittenAxis, ...] = ()
    unreduced: tuple[WrittenAxis, ...] = ()
    reduction: str = "sum"
    shape: tuple[int, ...] | None = None


_ESCAPE = rb'\\(["\\nt]|[0-9A-Fa-f]{2})'
_ESCAPED = {b'"': b'"', b"\\": b"\\", b"n": b"\n", b"t": b"\t"}
_TENSOR = r":\s*tensor<((?:[0-9]+x)*)[A-Za-z][A-Za-z0-9]*>"
_BARE_SYMBOL = r"[A-Za-z_][\w$.]*"

_FIXES = {
    "mesh": 'write a mesh as <["x"=2, "y"=4]> or <["x"=2, "y"=4], device_ids=[…]>, perhaps after `sdy.mesh @name = `',
    "sharding": 'write a sharding as #sdy.sharding<@mesh, [{"x"}, {"y":(1)2, ?}p1], replicated={"z"}, unreduced={"w"}>',
    "HLO sharding": "{replicated}, {maximal device=0} or {devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}",
}


def read_integer(digits: str) -> int | None:
    """The number that decimal or ``0x`` digits stand for; None if it does not fit into 64 bits.

    >>> read_integer("007"), read_integer("0x10"), read_integer("9" * 5000)
    (7, 16, None)
    """
    hexadecimal = digits.startswith("0x")
    plain = digits[2:] if hexadecimal else digits
    plain = plain.lstrip("0") or "0"
    if len(plain) > _MOST_DIGITS:
        return None
    value = int(plain, 16 if hexadecimal else 10)
    return value if value <= LARGEST else None


def pointing(text: str, at: int) -> str:
    """The line of a text that has place ``at``, with a mark under it; of a long line, the part around the place.

    >>> print(pointing("x=2,y=oops", 6))
    x=2,y=oops
          ^
    """
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    line, column = text[start : len(text) if end < 0 else end], at - start
    if len(line) > 2 * _AROUND:
        first, last = max(column - _AROUND, 0), column + _AROUND
        left, right = "…" * (first > 0), "…" * (last < len(line))
        line, column = left + line[first:last] + right, column - first + len(left)
    return f"{line}\n{' ' * column}^"


def unquoted(text: str) -> str:
    r"""The string that a quoted one stands for: ``"a\22b"`` is ``a"b``."""
    if "\\" not in text:
        return text[1:-1]
    raw = text[1:-1].encode("utf-8", "surrogateescape")
    plain = re.sub(_ESCAPE, lambda m: _ESCAPED.get(m[1]) or bytes([int(m[1], 16)]), raw)
    return plain.decode("utf-8", "surrogateescape")


def symbol(name: str) -> str:
    """``@name``, quoted where it must be."""
    return "@" + (name if re.fullmatch(_BARE_SYMBOL, name, re.ASCII) else quoted(name))


@cache
def _tokens() -> re.Pattern[str]:
    return re.compile(
        r"""(?P<space>\s+|//[^\n]*)
          |(?P<string>"(?:[^"\\\n\v\f]|\\["\\nt]|\\[0-9A-Fa-f]{2})*")
          |(?P<symbol>@(?:[A-Za-z_][\w$.]*|"(?:[^"\\\n\v\f]|\\["\\nt]|\\[0-9A-Fa-f]{2})*"))
          |(?P<integer>0x[0-9A-Fa-f]+|[0-9]+(?![0-9.]))
          |(?P<word>\#?[A-Za-z_][\w$.]*)
          |(?P<sign>[-<>\[\]{}(),:=?])""",
        re.VERBOSE | re.ASCII,
    )


def _a(kind: str) -> str:
    return f"{'an' if kind[0] == 'H' else 'a'} {kind}"


class TokenReader:
    """Tokens of a text; every error points at a character."""

    def __init__(self, text: str, kind: str) -> None:
        if not isinstance(text, str):
            raise TextError(
                f"A {type(text).__name__} is not the text of {_a(kind)}.",
                where=here(),
                why="text is a str",
                fix="text.decode()" if isinstance(text, bytes) else _FIXES.get(kind, "a str"),
            )
        self.text, self.kind = text, kind
        self.tokens: list[tuple[str, str, int]] = []
        self.next = 0
        position, tokens = 0, _tokens()
        while position < len(text):
            match = tokens.match(text, position)
            if match is None:
                why = 'this string is not closed, or has an escape other than \\\\, \\", \\n, \\t, \\0A'
                raise self.error(why if text[position] == '"' else f"{text[position]!r} means nothing here", position)
            if match.lastgroup != "space":
                self.tokens.append((match.lastgroup or "", match.group(), position))
            position = match.end()
        self.tokens.append(("end", "the end of the text", len(text)))

    def pointing(self, at: int) -> str:
        """The line of the text that has place ``at``, with a mark under it."""
        return pointing(self.text, at)

    def error(self, why: str, at: int | None = None) -> TextError:
        at = self.at if at is None else at
        before = self.text[:at]
        line, column = before.count("\n") + 1, at - before.rfind("\n")
        place = f"line {line}, column {column}" if "\n" in self.text else f"character {column}"
        return TextError(
            f"This is not {_a(self.kind)}: {place}.",
            where=self.pointing(at),
            why=why,
            fix=_FIXES[self.kind],
        )

    def expected(self, what: str) -> TextError:
        kind, text, _ = self.tokens[self.next]
        text = text if len(text) <= _MOST_FOUND else text[:_MOST_FOUND] + "…"
        return self.error(f"expected {what}, found {text if kind == 'end' else f'`{text}`'}")

    @property
    def at(self) -> int:
        """The place of the next token."""
        return self.tokens[self.next][2]

    def sees(self, text: str) -> bool:
        return self.tokens[self.next][1] == text and self.tokens[self.next][0] in ("sign", "word")

    def accept(self, text: str) -> bool:
        found = self.sees(text)
        self.next += found
        return found

    def take(self, text: str) -> None:
        if not self.accept(text):
            raise self.expected(f"`{text}`")

    def token(self, kind: str, what: str) -> str:
        found, text, _ = self.tokens[self.next]
        if found != kind:
            raise self.expected(what)
        self.next += 1
        return text

    def integer(self) -> int:
        at = self.at
        sign = -1 if self.accept("-") else 1
        text = self.token("integer", "an integer")
        value = read_integer(text)
        if value is None:
            raise self.error("the integer does not fit into 64 bits", at)
        return sign * value

    def name(self) -> str:
        return unquoted(self.token("string", 'an axis name in quotes, such as "x"'))

    def listed(self, item: Callable[[], Item], end: str, may_be_empty: bool = True) -> tuple[Item, ...]:
        """Items with commas between them, up to and with ``end``."""
        if may_be_empty and self.accept(end):
            return ()
        items = [item()]
        while not self.accept(end):
            if not self.accept(","):
                raise self.expected(f"`,` or `{end}`")
            items.append(item())
        return tuple(items)

    def finish(self) -> None:
        if self.tokens[self.next][0] != "end":
            raise self.expected("the end of the text")


# Meshes


def read_mesh(text: str) -> tuple[WrittenMesh, TokenReader]:
    """A mesh, perhaps named: ``sdy.mesh @m = <…>``, ``@m = <…>``, ``#sdy.mesh<…>``, ``mesh<…>``, ``<…>``."""
    reader = TokenReader(text, "mesh")
    strict = reader.sees("sdy.mesh") or reader.sees("#sdy.mesh")
    name = None
    if reader.accept("sdy.mesh") or reader.tokens[reader.next][0] == "symbol":
        name = _symbol_name(reader)
        reader.take("=")
    elif not reader.accept("#sdy.mesh"):
        reader.accept("mesh")
    written = _mesh_body(reader, strict)
    reader.finish()
    return written._replace(name=name), reader


def _symbol_name(reader: TokenReader) -> str:
    text = reader.token("symbol", "the name of a mesh, such as @mesh")[1:]
    name = unquoted(text) if text.startswith('"') else text
    if not name:
        raise reader.error("the name of a mesh cannot be empty", reader.tokens[reader.next - 1][2])
    return name


def _mesh_body(reader: TokenReader, strict: bool) -> WrittenMesh:
    braces = not strict and reader.accept("{")
    reader.take("<")

    def axis() -> tuple[str, int, int]:
        at, name = reader.at, reader.name()
        reader.take("=")
        return name, reader.integer(), at

    bracketed = strict or reader.tokens[reader.next][0] != "string"
    if bracketed:
        reader.take("[")
    axes = reader.listed(axis, "]" if bracketed else ">", may_be_empty=bracketed)
    ids: tuple[int, ...] | None = None
    places: tuple[int, ...] = ()
    ids_at = -1
    if braces and bracketed:
        reader.take(">")
    if (bracketed or braces) and reader.accept(","):
        reader.take("device_ids")
        reader.take("=")
        ids_at = reader.at
        reader.take("[")
        listed = reader.listed(lambda: (reader.at, reader.integer()), "]", may_be_empty=False)
        places, ids = tuple(at for at, _ in listed), tuple(id for _, id in listed)
    if braces:
        reader.take("}")
    elif bracketed:
        reader.take(">")
    return WrittenMesh(axes, ids, ids_at, places, strict)


# Shardings


def read_sharding(text: str) -> tuple[WrittenSharding, TokenReader]:
    """A sharding: ``#sdy.sharding<…>``, ``sharding<…>`` or ``<…>``, perhaps with ``: tensor<4x8xf32>`` after it."""
    reader = TokenReader(text, "sharding")
    strict = reader.accept("#sdy.sharding")
    if not strict:
        reader.accept("sharding")
    elif reader.at != reader.tokens[0][2] + len("#sdy.sharding"):
        raise reader.error("nothing may stand between `#sdy.sharding` and `<`")
    reader.take("<")
    at = reader.at
    mesh = _mesh_body(reader, strict) if reader.accept("mesh") else _symbol_name(reader)
    reader.take(",")
    reader.take("[")
    dims = reader.listed(lambda: _dim(reader), "]")
    lists: dict[str, tuple[WrittenAxis, ...]] = {}
    reduction = "sum"
    while reader.accept(","):
        key = next((k for k in ("replicated", "unreduced") if k not in lists and reader.sees(k)), None)
        if key is None:
            raise reader.expected("`replicated={…}` or `unreduced={…}`, each at most once")
        reader.take(key)
        if key == "replicated" or not reader.sees("{"):
            reader.take("=")
        if key == "unreduced" and any(reader.sees(kind) for kind in REDUCTIONS):
            reduction = reader.token("word", "a reduction")
        reader.take("{")
        lists[key] = reader.listed(lambda: _axis(reader), "}", may_be_empty=not strict)
    reader.take(">")
    shape = None if strict else _tensor_shape(reader)
    reader.finish()
    unreduced = lists.get("unreduced", ())
    kind = reduction if unreduced else "sum"
    return WrittenSharding(mesh, at, dims, lists.get("replicated", ()), unreduced, kind, shape), reader


def _dim(reader: TokenReader) -> WrittenDim:
    at = reader.at
    reader.take("{")
    axes: list[WrittenAxis] = []
    is_open = False
    while not reader.accept("}"):
        if axes and not reader.accept(","):
            raise reader.expected("`,` or `}`")
        is_open = reader.accept("?")
        if is_open:
            reader.take("}")
            break
        axes.append(_axis(reader))
    priority = None
    if reader.tokens[reader.next][0] == "word":
        text = reader.tokens[reader.next][1]
        if not re.fullmatch(r"p(0|[1-9][0-9]*)", text, re.ASCII):
            raise reader.expected("a priority such as `p1`, without leading zeros")
        priority = read_integer(text[1:])
        if priority is None:
            raise reader.error("the priority does not fit into 64 bits")
        reader.next += 1
    return WrittenDim(tuple(axes), is_open, priority, at)


def _axis(reader: TokenReader) -> WrittenAxis:
    at, name = reader.at, reader.name()
    if not reader.accept(":"):
        return WrittenAxis(name, None, None, at)
    reader.take("(")
    pre = reader.integer()
    reader.take(")")
    return WrittenAxis(name, pre, reader.integer(), at)


def _tensor_shape(reader: TokenReader) -> tuple[int, ...] | None:
    if not reader.sees(":"):
        return None
    match = re.compile(_TENSOR, re.ASCII).match(reader.text, reader.at)
    if match is None:
        reader.next += 1
        raise reader.expected("a type such as tensor<4x8xf32>")
    while reader.at < match.end() and reader.tokens[reader.next][0] != "end":
        reader.next += 1
    shape = []
    for size in re.finditer("[0-9]+", match[1]):
        value = read_integer(size[0])
        if value is None:
            raise reader.error("the size does not fit into 64 bits", match.start(1) + size.start())
        shape.append(value)
    return tuple(shape)


# Writing


def mesh_text(axes: tuple[tuple[str, int], ...], device_ids: tuple[int, ...] | None) -> str:
    """``<["x"=2, "y"=4]>``, with the device order if there is one."""
    inside = "[" + ", ".join(f"{quoted(name)}={size}" for name, size in axes) + "]"
    return f"<{inside}>" if device_ids is None else f"<{inside}, device_ids=[{', '.join(map(str, device_ids))}]>"
