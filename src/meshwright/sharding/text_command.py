"""Meshes, shapes and shardings as one types them on a command line: ``x=2,y=4``, ``64x64``, ``(x,y),None``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshwright.errors import MeshError, MeshwrightError, ShapeError, TextError
from meshwright.sharding.check import check_sharding, rank_error
from meshwright.sharding.dimension import resolved
from meshwright.sharding.mesh import BaseMesh, Mesh, make_mesh
from meshwright.sharding.named import TensorSharding
from meshwright.sharding.spec import read_axis
from meshwright.sharding.text_sdy import TokenReader, WrittenAxis, WrittenDim, pointing, read_integer


def read_mesh(text: str, kind: str = "cpu") -> Mesh:
    """A mesh: ``x=2,y=4``, or the sdy grammar ``<["x"=2, "y"=4]>``.

    >>> print(read_mesh("x=2,y=4"))
    <["x"=2, "y"=4]>
    """
    if not kind.strip():
        raise MeshError("Devices cannot have an empty kind.", why="it is what they are called", fix="--kind tpu")
    if not text.strip() or any(sign in text for sign in '<>[]"@#'):
        return Mesh.parse(text).with_(kind=kind)
    names, sizes, at = [], [], 0
    for part in text.split(","):
        match = re.fullmatch(r"\s*([^=]+?)\s*=\s*([0-9]+)\s*", part, re.ASCII)
        if match is None:
            raise TextError(
                f"{_short(part)} is not an axis of a mesh.",
                where=pointing(text, at),
                why="an axis has a name and a size",
                fix="x=2,y=4",
            )
        names.append(match[1])
        sizes.append(_size(text, at + match.start(2), match[2], "a mesh", "x=2,y=4"))
        at += len(part) + 1
    try:
        return make_mesh(sizes, names, kind=kind)
    except MeshwrightError as error:
        error.where = pointing(text, 0)
        raise


def _size(text: str, at: int, digits: str, kind: str, fix: str) -> int:
    """The number with these digits at place ``at`` of the text."""
    value = read_integer(digits)
    if value is None:
        raise TextError(
            f"This is not {kind}: character {at + 1}.",
            where=pointing(text, at),
            why="the integer does not fit into 64 bits",
            fix=fix,
        )
    return value


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "…")


def read_shape(text: str) -> tuple[int, ...]:
    """A shape: ``64x64`` or ``64,64``; nothing for a scalar.

    >>> read_shape("64x8"), read_shape("7"), read_shape("")
    ((64, 8), (7,), ())
    """
    inside = text.strip().strip("()[]")
    parts = re.split(r"[x×,]", inside)
    if parts == [""]:
        return ()
    if parts[-1].strip() == "":
        parts.pop()
    if not all(re.fullmatch(r"\s*[0-9]+\s*", part, re.ASCII) for part in parts):
        raise ShapeError(f"{_short(text)} is not a shape.", why="a shape is sizes with an x between them", fix="64x64")
    sizes, at = [], text.index(inside)
    for part in parts:
        place = at + len(part) - len(part.lstrip())
        sizes.append(_size(text, place, part.strip(), "a shape", "64x64"))
        at += len(part) + 1
    return tuple(sizes)


def read_spec(text: str, mesh: BaseMesh, shape: Sequence[int]) -> TensorSharding:
    """A sharding of a tensor of this shape: as a partition spec, in the sdy grammar, or as HLO writes it.

    >>> mesh = read_mesh("x=4,y=2")
    >>> print(read_spec("(x, y), None", mesh, (8, 8)), read_spec("x:(1)2", mesh, (8, 8)))
    #sdy.sharding<@mesh, [{"x", "y"}, {}]> #sdy.sharding<@mesh, [{"x":(1)2}, {}]>
    >>> print(read_spec("None, y, unreduced={x}", mesh, (8, 8)))
    #sdy.sharding<@mesh, [{}, {"y"}], unreduced={"x"}>
    """
    start = text.lstrip()
    if start.startswith(("#", "sharding", "<")) and "<" in start:
        return TensorSharding.parse(text, mesh, shape)
    if start.startswith("["):
        return TensorSharding.parse(f"<@mesh, {start}>", mesh, shape)
    if start.startswith("{"):
        found = TensorSharding.from_hlo(text.strip(), mesh, len(shape))
        found.check_shape(shape)
        return found
    return _read_partition_spec(text, mesh, shape)


class _SpecReader(TokenReader):
    """Tokens of a partition spec; single quotes are as good as double ones."""

    def __init__(self, text: str) -> None:
        super().__init__(text.replace("'", '"'), "spec")

    def error(self, why: str, at: int | None = None) -> TextError:
        at = self.at if at is None else at
        what = f"This is not a partition spec: character {at + 1}."
        return TextError(what, where=self.pointing(at), why=why, fix="x,None or (x,y),z:(1)2 or x,unreduced={y}")

    def axis(self) -> WrittenAxis:
        """``x``, ``x:(1)2``, ``"x"``, ``"x:(1)2"``."""
        at, kind = self.at, self.tokens[self.next][0]
        if kind == "string":
            return read_axis(self.name(), lambda place: self.pointing(at + 1 + place))._replace(at=at)
        name = self.token("word", "an axis such as x, or None")
        if not self.accept(":"):
            return WrittenAxis(name, None, None, at)
        self.take("(")
        pre = self.integer()
        self.take(")")
        return WrittenAxis(name, pre, self.integer(), at)

    def axes(self) -> tuple[WrittenAxis, ...]:
        """One axis, or several in brackets."""
        for left, right in ("()", "{}"):
            if self.accept(left):
                found: list[WrittenAxis] = []
                while not self.accept(right):
                    if found and not self.accept(","):
                        raise self.expected(f"`,` or `{right}`")
                    if not self.sees(right):
                        found.append(self.axis())
                return tuple(found)
        return (self.axis(),)

    def dim(self) -> WrittenDim:
        """None, ``?`` for a dim that is still open, or axes."""
        at = self.at
        if self.accept("None"):
            return WrittenDim((), False, None, at)
        if self.accept("?") or self.accept("UNCONSTRAINED") or self.accept("P.UNCONSTRAINED"):
            return WrittenDim((), True, None, at)
        return WrittenDim(self.axes(), False, None, at)


def _read_partition_spec(text: str, mesh: BaseMesh, shape: Sequence[int]) -> TensorSharding:
    reader = _SpecReader(text)
    named = any(reader.accept(name) for name in ("P", "mw.P", "PartitionSpec")) if "(" in text else False
    if named and not reader.accept("("):  # an axis that is called P
        reader.next, named = 0, False

    def at_end() -> bool:
        return reader.tokens[reader.next][0] == "end" or (named and reader.sees(")"))

    dims: list[WrittenDim] = []
    sets: dict[str, tuple[WrittenAxis, ...]] = {"replicated": (), "unreduced": ()}
    while not at_end():
        key = next((key for key in sets if reader.sees(key) and reader.tokens[reader.next + 1][1] == "="), None)
        if key is None:
            dims.append(reader.dim())
        else:
            reader.next += 2
            sets[key] = tuple(sorted(reader.axes(), key=lambda axis: _place(mesh, axis)))
        if not at_end():
            reader.take(",")
    if named:
        reader.take(")")
        reader.finish()
    if len(dims) > len(shape):
        error = rank_error(text, len(dims), shape, reader.pointing(dims[len(shape)].at))
        error.fix = f"leave out the last {len(dims) - len(shape)}"
        raise error
    dims += [WrittenDim()] * (len(shape) - len(dims))
    parts = dims, sets["replicated"], sets["unreduced"]
    check_sharding(mesh, *parts, reader.pointing)
    return TensorSharding.unchecked(mesh, *resolved(mesh, *parts))


def _place(mesh: BaseMesh, axis: WrittenAxis) -> tuple[int, int, int]:
    known = axis.name in mesh.axis_names
    return mesh.axis_names.index(axis.name) if known else len(mesh.axis_names), axis.pre or 1, axis.size or 0
