"""How arrays are split over a mesh, in the index notation of seed 001, and what a device then holds and lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from math import prod
from textwrap import indent
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.core.source import here
from meshwright.errors import HardwareError, TextError
from meshwright.hardware.chips import item_bytes
from meshwright.hardware.topology import mesh_sizes
from meshwright.sharding.mesh_check import MOST_LISTED
from meshwright.sharding.text_sdy import pointing

MOST_RANK = 1024
Numbers = NDArray[Any]
Spec = Sequence[str | Sequence[str] | None]


@dataclass(frozen=True)
class Layout:
    """An array by its indices, the mesh axes that split each, and the axes it is unreduced over.

    >>> print(Layout("C", ("I", "K"), (("x",), ()), ("y",)))
    C[I_x,K]{U_y}
    """

    name: str
    indices: tuple[str, ...]
    axes: tuple[tuple[str, ...], ...]
    unreduced: tuple[str, ...] = ()

    def __str__(self) -> str:
        dims = ",".join(index + subscript(axes) for index, axes in zip(self.indices, self.axes))
        return f"{self.name}[{dims}]" + (f"{{U{subscript(self.unreduced)}}}" if self.unreduced else "")

    @property
    def used(self) -> tuple[str, ...]:
        """The axes that split the array."""
        return tuple(axis for axes in self.axes for axis in axes)

    def of(self, index: str) -> tuple[str, ...]:
        """The axes that split an index."""
        return self.axes[self.indices.index(index)]

    def over_many(self, mesh: Mapping[str, int]) -> Layout:
        """The same without axes of size 1: over one device nothing is split, and nothing is a partial sum."""
        axes = tuple(tuple(axis for axis in split if mesh[axis] > 1) for split in self.axes)
        return Layout(self.name, self.indices, axes, tuple(axis for axis in self.unreduced if mesh[axis] > 1))

    def elements(self, sizes: Mapping[str, float], mesh: Mapping[str, int]) -> float:
        """Elements on one device."""
        return prod(sizes[index] for index in self.indices) / prod(mesh[axis] for axis in self.used)


def subscript(axes: Sequence[str]) -> str:
    """``_x``, ``_xy``, or ``_{data,model}`` where names are longer."""
    if not axes:
        return ""
    return "_" + (
        "".join(axes) if all(len(axis) == 1 for axis in axes) or len(axes) == 1 else "{" + ",".join(axes) + "}"
    )


LONGEST = 2000  # characters of an array or a product of arrays
_ARRAY = re.compile(r"\s*([A-Za-z]\w*)\s*\[([^\[\]]*)\]\s*(?:\{\s*U_\s*((?:\{[^{}]*\}|[^{}])*)\}\s*)?")
_INDEX = re.compile(r"([A-Za-z]\w*?)(?:_(\{[^{}]*\}|\w+))?$")


def parse_layout(text: str, mesh: Mapping[str, int], position: int = 0) -> tuple[Layout, int]:
    """Read one array, e.g. ``A[I_x,J]{U_y}``, from ``position``; also where it ends.

    >>> layout, end = parse_layout("A[I_xy,J]{U_z}", {"x": 2, "y": 2, "z": 4})
    >>> layout.axes, layout.unreduced, end
    ((('x', 'y'), ()), ('z',), 14)
    """
    if not isinstance(text, str):
        raise TextError(f"{text!r} is not the text of an array.", where=here(), why="text is a str", fix='"A[I_x,J]"')
    if len(text) > LONGEST:
        why = f"it has {len(text)} characters, and at most {LONGEST} are read"
        raise _text_error(text, position, "The text of an array is too long.", why, "A[I_x,J]")
    found = _ARRAY.match(text, position)
    if found is None:
        raise _text_error(text, position, "An array was expected.", "arrays are written A[I_x,J]", "A[I_x,J]")
    name, dims, summed = found.groups()
    indices, axes = [], []
    at = found.start(2)
    for part in re.split(r",(?![^{]*\})", dims):
        index = _INDEX.match(part.strip())
        if index is None:
            raise _text_error(
                text,
                at,
                f"{part.strip()!r:.60} is not an index.",
                "an index is a name, then _ and its mesh axes",
                "I_x",
            )
        indices.append(index[1])
        axes.append(_axes(index[2], mesh, text, at + part.find("_") + 1))
        at += len(part) + 1
    unreduced = _axes(summed, mesh, text, found.start(3)) if summed is not None else ()
    every = [axis for one in (*axes, unreduced) for axis in one]
    twice = next((axis for axis in every if every.count(axis) > 1), None)
    if twice is not None:
        raise _text_error(
            text,
            found.start(),
            f"{found[0].strip():.60} uses mesh axis {twice!r} twice.",
            "an axis splits one index, or carries summands, but not both",
            f"leave {twice!r} out of all but one",
        )
    again = next((index for index in indices if indices.count(index) > 1), None)
    if again is not None:
        raise _text_error(
            text,
            found.start(),
            f"{found[0].strip():.60} has index {again!r:.60} twice.",
            "an index names one dim",
            "A[I,J]",
        )
    return Layout(name, tuple(indices), tuple(axes), unreduced), found.end()


def _axes(written: str | None, mesh: Mapping[str, int], text: str, at: int) -> tuple[str, ...]:
    if not written:
        return ()
    parts = [part.strip() for part in written.strip().strip("{}").split(",")]
    out: list[str] = []
    for part in parts:
        split = _split(part, mesh)
        if split is None:
            raise _text_error(
                text,
                at,
                f"The mesh has no axis {part!r:.60}.",
                f"its axes are {', '.join(mesh)}",
                f"_{next(iter(mesh), 'x')}",
            )
        out += split
    return tuple(out)


def _split(written: str, mesh: Mapping[str, int]) -> list[str] | None:
    """``xy`` as axes x and y, unless the mesh has an axis xy."""
    if written in mesh:
        return [written]
    first: dict[int, str] = {len(written): ""}  # where the rest is made of axes, and the first of them
    for at in reversed(range(len(written))):
        name = next((n for n in mesh if n and written.startswith(n, at) and at + len(n) in first), None)
        if name is not None:
            first[at] = name
    if 0 not in first:
        return None
    found, at = [], 0
    while at < len(written):
        found.append(first[at])
        at += len(first[at])
    return found


def _text_error(text: str, at: int, what: str, why: str, fix: str) -> TextError:
    return TextError(f"{what}\n{under(text, at)}", where=here(), why=why, fix=fix)


def under(text: str, at: int) -> str:
    """The text of a layout or product with a mark under a place of it; of a long one, the part around the place."""
    return indent(pointing(text, max(at, 0)), "    ", lambda line: True)


# Splits without index names: one entry per dim.


def _dims(spec: Spec, rank: int, mesh: Mapping[str, int]) -> list[tuple[str, ...]]:
    dims = [(entry,) if isinstance(entry, str) else tuple(entry or ()) for entry in spec]
    dims += [()] * (rank - len(dims))
    names = [axis for axes in dims for axis in axes]
    unknown = next((axis for axis in names if axis not in mesh), None)
    if len(dims) > rank or unknown is not None or len(set(names)) != len(names):
        raise HardwareError(
            f"{list(spec)} does not split an array of rank {rank} over a mesh of {', '.join(mesh)}.",
            where=here(),
            why="there is one entry per dim, and each axis of the mesh is used once at most",
            fix=f"{[next(iter(mesh), None), *[None] * (rank - 1)]}",
        )
    return dims


def shard_shape(shape: Sequence[int], spec: Spec, mesh: object) -> tuple[int, ...]:
    """The dims of what one device holds.

    >>> shard_shape((128, 2048), [("x", "y"), None], {"x": 2, "y": 8, "z": 2})
    (8, 2048)
    """
    sizes = mesh_sizes(mesh)
    dims = _dims(spec, len(shape), sizes)
    return tuple(-(-size // prod(sizes[axis] for axis in axes)) for size, axes in zip(shape, dims))


def shard_bytes(shape: Sequence[int], spec: Spec, mesh: object, dtype: object = "bf16") -> float:
    """Bytes that one device holds.

    >>> shard_bytes((128, 2048), [("x", "y"), None], {"x": 2, "y": 8, "z": 2}, "int8")
    16384
    """
    return prod(shard_shape(shape, spec, mesh)) * item_bytes(dtype)


def copies(spec: Spec, mesh: object) -> int:
    """How often each element is stored: the devices over the parts.

    >>> copies(["x", None, None], {"x": 4, "y": 8, "z": 2})
    16
    """
    sizes = mesh_sizes(mesh)
    dims = _dims(spec, len(spec), sizes)
    return prod(sizes.values()) // prod(sizes[axis] for axes in dims for axis in axes)


def missing_bytes(
    shape: Sequence[int], source: Spec, target: Spec, mesh: object, dtype: object = "bf16", *, total: bool = False
) -> float:
    """Bytes of its target part that a device does not hold in its source part: what any resharding must send it.

    The most of any device, or with ``total`` the sum over devices.

    >>> missing_bytes((2048, 8192), ["x", None], [None, "x"], {"x": 4, "y": 2})
    6291456
    """
    every = mesh_sizes(mesh)
    dims = list(zip(shape, _dims(source, len(shape), every), _dims(target, len(shape), every), strict=True))
    used = {axis for _, before, after in dims for axis in (*before, *after)}
    sizes = {axis: size for axis, size in every.items() if axis in used}
    devices = prod(sizes.values())
    if devices > MOST_LISTED:
        raise HardwareError(
            f"What {devices} devices lack is not counted.",
            where=here(),
            why=f"they are listed, and at most {MOST_LISTED} are",
            fix="fewer devices along the axes that split the array",
        )
    kind = np.int64 if prod(shape) * devices < 1 << 62 else np.object_  # numbers of any size
    place = dict(zip(sizes, (along.astype(kind) for along in np.indices(tuple(sizes.values()), sparse=True))))
    wanted: Numbers = np.ones(tuple(sizes.values()), kind)
    held = wanted.copy()
    for size, before, after in dims:
        low_a, high_a = _range(size, before, sizes, place)
        low_b, high_b = _range(size, after, sizes, place)
        wanted = wanted * (high_b - low_b)
        held = held * np.maximum(np.minimum(high_a, high_b) - np.maximum(low_a, low_b), 0)
    lacking = wanted - held
    alike = prod(every.values()) // devices  # along axes that split nothing
    return (alike * int(lacking.sum()) if total else int(lacking.max())) * item_bytes(dtype)


def _range(
    size: int, axes: Sequence[str], sizes: Mapping[str, int], place: Mapping[str, Numbers]
) -> tuple[Numbers, Numbers]:
    """First element and end of every device's part of a dim."""
    block: Numbers = np.zeros((), np.int64)
    for axis in axes:
        block = block * sizes[axis] + place[axis]
    length = -(-size // prod(sizes[axis] for axis in axes))
    return np.minimum(block * length, size), np.minimum((block + 1) * length, size)


def enumerate_layouts(mesh: object, rank: int) -> Iterator[tuple[str | None, ...]]:
    """Every way to split an array with at most one mesh axis per dim: Σ C(M,k) C(N,k) k! of them.

    >>> len(list(enumerate_layouts({"x": 2, "y": 2}, 2)))
    7
    """
    names = tuple(mesh_sizes(mesh))
    if not isinstance(rank, int) or not 0 <= rank <= MOST_RANK:
        raise HardwareError(
            f"An array cannot have the rank {rank!r}.", where=here(), why=f"it is from 0 to {MOST_RANK}", fix="rank=2"
        )
    for count in range(min(len(names), rank) + 1):
        for dims in combinations(range(rank), count):
            for chosen in permutations(names, count):
                given = dict(zip(dims, chosen))
                yield tuple(given.get(dim) for dim in range(rank))
