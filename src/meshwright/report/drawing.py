"""What is drawn: boxes in rows and columns, or a table where there would be too many.

A drawing has no characters yet: ``report.boxes`` makes text of it and ``report.html`` a page. Of one thing there
are several drawings, each with less in it than the one before; whoever draws takes the first that has room.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from meshwright.errors import MeshwrightError
from meshwright.report.blocks import TensorBlocks, kind_of
from meshwright.sharding.axes import AxisRef, quoted
from meshwright.sharding.mesh import AxisType, BaseMesh, Mesh
from meshwright.sharding.named import TensorSharding

MOST_CELLS = 1024
HEIGHT_TO_WIDTH = 2.5  # a character is that much higher than wide
BASE_HEIGHT = 10  # lines of a whole matrix


class PictureError(MeshwrightError, ValueError):
    """A picture that cannot be drawn so."""


class Sizes(NamedTuple):
    """How large a picture is: ``min_width`` and ``max_width`` are in characters."""

    scale: float = 1.0
    min_width: int = 9
    max_width: int = 80


class LabelledBox(NamedTuple):
    """A box; those of one number have one colour, and None has none."""

    label: str
    number: int | None = None


class Grid(NamedTuple):
    """Boxes in rows and columns, with what is written above, left of each row and above each column."""

    title: str
    cells: tuple[tuple[LabelledBox, ...], ...] = ()
    widths: tuple[int, ...] = ()
    heights: tuple[int, ...] = ()
    row_marks: tuple[str, ...] = ()
    column_marks: tuple[str, ...] = ()


class Table(NamedTuple):
    """Lines of text in columns; a line with fewer entries stands for those that are left out."""

    title: str
    heads: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


class Drawing(NamedTuple):
    """Grids in rows, or tables, and lines below them; ``numbers`` is how many numbers the cells have."""

    rows: tuple[tuple[Grid | Table, ...], ...]
    captions: tuple[str, ...]
    numbers: int

    @property
    def cells(self) -> int:
        """How many boxes there are."""
        return sum(len(line) for row in self.rows for g in row if isinstance(g, Grid) for line in g.cells)


# Shardings


def drawings_of_blocks(
    blocks: TensorBlocks, captions: tuple[str, ...], sizes: Sizes, ranges: bool | None
) -> Iterator[Drawing]:
    """The blocks with their devices; with the numbers of the devices alone; as a table."""
    if blocks.number <= MOST_CELLS:
        yield Drawing(_slices(blocks, sizes, ranges, bare=False), captions, blocks.number)
        numbers = (*captions, f"the numbers are those of {blocks.kind} devices")
        yield Drawing(_slices(blocks, sizes, ranges, bare=True), numbers, blocks.number)
    yield Drawing(((block_table(blocks),),), captions, blocks.number)


def captions_of(sharding: TensorSharding) -> tuple[str, ...]:
    """What the boxes do not show: parts of axes, partial sums, dims that are still open."""
    captions = []
    axes = [axis for dim in sharding.dims for axis in dim.axes]
    if not all(axis.is_full for axis in axes):
        split = [f"dim {i} over {_axes_text(dim.axes)}" for i, dim in enumerate(sharding.dims) if dim.axes]
        captions.append("; ".join(split))
    if sharding.unreduced:
        captions.append(f"unreduced {sharding.reduction} over {_axes_text(sharding.unreduced)}")
    still_open = [str(i) for i, dim in enumerate(sharding.dims) if dim.is_open]
    if still_open:
        captions.append(f"dim{'s' * (len(still_open) > 1)} {', '.join(still_open)} may be split further")
    return tuple(captions)


def _axes_text(axes: Sequence[AxisRef]) -> str:
    return ", ".join(axis.short() if axis.name.isprintable() else str(axis) for axis in axes)


def _slices(blocks: TensorBlocks, sizes: Sizes, ranges: bool | None, bare: bool) -> tuple[tuple[Grid, ...], ...]:
    """One grid for each block of the dims before the last two, those of the last of them side by side."""
    *major, across = blocks.counts[:-2] or (1,)
    rank = len(blocks.shape)

    def grid(lead: tuple[int, ...]) -> Grid:
        title = f"[{', '.join([*map(blocks.range_text, range(rank), lead), ':', ':'])}]" if rank > 2 else ""
        return _block_grid(blocks, title, lead if rank > 2 else (), sizes, ranges, bare)

    return tuple(
        tuple(grid((*first, last)) for last in range(across)) for first in product(*(range(count) for count in major))
    )


def _block_grid(
    blocks: TensorBlocks, title: str, lead: tuple[int, ...], sizes: Sizes, ranges: bool | None, bare: bool
) -> Grid:
    """The blocks of the last two dims (or fewer) at ``lead`` in the others; a box is as large as its block."""
    rank = len(blocks.shape)
    shown = range(max(rank - 2, 0), rank)
    counts = [blocks.counts[dim] for dim in shown]
    rows, columns = (1, 1, *counts)[-2:]
    base_height = int(BASE_HEIGHT * sizes.scale)
    size = [blocks.shape[dim] for dim in shown]
    aspect = (size[1] if len(size) == 2 else 1) / max(size[0], 1) if size else 0.0
    base_width = int(base_height * aspect) * HEIGHT_TO_WIDTH

    def part(dim: int, number: int) -> float:
        start, stop = blocks.range(dim, number)
        return (stop - start) / max(blocks.shape[dim], 1)

    widths = [int(part(rank - 1, j) * base_width) if counts else 0 for j in range(columns)]
    heights = [int(part(rank - 2, i) * base_height) if len(counts) == 2 else 1 for i in range(rows)]
    number = 0
    for count, place in zip(blocks.counts, lead, strict=False):
        number = number * count + place

    def cell(i: int, j: int) -> LabelledBox:
        block = (*lead, i, j)[-rank:] if rank else ()
        return LabelledBox(blocks.label(block, bare), (number * rows + i) * columns + j)

    marked = ranges if ranges is not None else not all(map(blocks.is_even, shown))
    return Grid(
        title,
        tuple(tuple(cell(i, j) for j in range(columns)) for i in range(rows)),
        tuple(min(max(width, sizes.min_width), sizes.max_width) for width in widths),
        tuple(heights),
        tuple(blocks.range_text(rank - 2, i) for i in range(rows)) if marked and len(counts) == 2 else (),
        tuple(blocks.range_text(rank - 1, j) for j in range(columns)) if marked and counts else (),
    )


def block_table(blocks: TensorBlocks, first: int = 12, last: int = 4) -> Table:
    """The blocks one by one: the first ones and the last ones."""

    def line(number: int) -> tuple[str, ...]:
        block = _coordinates(number, blocks.counts)
        return f"({', '.join(map(str, block))})", blocks.index_text(block), blocks.label(block)

    total = blocks.number
    few = total <= first + last
    lines = [line(number) for number in range(total if few else first)]
    if not few:
        lines += [(f"… {total - first - last} more",), *(line(number) for number in range(total - last, total))]
    title = f"{_by(blocks.shape)} in {total} block{'s' * (total != 1)} of {_by(blocks.block_shape)}"
    on = f"{blocks.devices.size} {blocks.kind}" + " devices" * (blocks.kind != "device")
    return Table(f"{title} on {on}", ("block", "holds", "devices"), tuple(lines))


def _coordinates(number: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The place with this number, counted up from the last coordinate."""
    found: list[int] = []
    for size in reversed(sizes):
        number, place = divmod(number, size)
        found.append(place)
    return tuple(reversed(found))


def _by(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "a scalar"


# Meshes


def drawings_of_mesh(mesh: BaseMesh) -> Iterator[Drawing]:
    """Each device at its place; its number alone; the first and last places of each axis alone."""
    captions = (_mesh_text(mesh),)
    if mesh.size <= MOST_CELLS:
        yield Drawing(_mesh_slices(mesh, None, bare=False), captions, mesh.size)
        yield Drawing(_mesh_slices(mesh, None, bare=True), captions, mesh.size)
    yield Drawing(_mesh_slices(mesh, 3, bare=False), captions, mesh.size)
    yield Drawing(_mesh_slices(mesh, 3, bare=True), captions, mesh.size)


def _mesh_text(mesh: BaseMesh) -> str:
    if mesh.is_maximal:
        return "one device"
    axes = [
        f"{_printable(name)}={size}" + ("" if type is AxisType.Auto else f" {type}")
        for name, size, type in zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types, strict=True)
    ]
    kind = f"{kind_of(mesh)} " if isinstance(mesh, Mesh) else ""
    devices = f"{mesh.size} {kind}device{'s' * (mesh.size != 1)}"
    return f"{', '.join(axes)}: {devices}" if axes else "no axes and no devices"


def _printable(name: str) -> str:
    return name if name.isprintable() else quoted(name)


def _places(size: int, most: int | None) -> list[int | None]:
    """The coordinates along an axis, or ``most`` of them, a gap and the last one."""
    return list(range(size)) if most is None or size <= most + 2 else [*range(most), None, size - 1]


def _mesh_slices(mesh: BaseMesh, most: int | None, bare: bool) -> tuple[tuple[Grid, ...], ...]:
    if mesh.empty:
        return ()
    sizes, names = mesh.axis_sizes, [_printable(name) for name in mesh.axis_names]
    kind, order = kind_of(mesh), mesh.order
    lead = sizes[:-2]
    rows, columns = (1, 1, *sizes)[-2:]

    def grid(slice: int | None) -> Grid:
        if slice is None:
            return Grid("…")
        places = zip(names[:-2], _coordinates(slice, lead), strict=True)

        def cell(i: int | None, j: int | None) -> LabelledBox:
            if i is None or j is None:
                return LabelledBox("…")
            position = (slice * rows + i) * columns + j
            device = position if order is None else order[position]
            return LabelledBox(f"{device}" if bare else f"{kind} {device}", position)

        down, across = _places(rows, most), _places(columns, most)
        cells = tuple(tuple(cell(i, j) for j in across) for i in down)
        width = max(len(c.label) for line in cells for c in line) + 4
        return Grid(
            ", ".join(f"{name}={place}" for name, place in places),
            cells,
            (width,) * len(across),
            (1,) * len(down),
            tuple("…" if i is None else f"{names[-2]}={i}" for i in down) if len(sizes) > 1 else (),
            tuple("…" if j is None else f"{names[-1]}={j}" for j in across) if sizes else (),
        )

    slices = _places(prod(lead), most)
    across = lead[-1] if lead and most is None else len(slices)
    return tuple(tuple(map(grid, slices[start : start + across])) for start in range(0, len(slices), across))
