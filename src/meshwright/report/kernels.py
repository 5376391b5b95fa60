"""Pictures of kernels: which steps see which blocks, and what is copied, computed and sent at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

from meshwright.chart.gantt import Chart, GanttBar, Lane, timeline_part
from meshwright.chart.page import Figure, Part, picture_part, write_sheet
from meshwright.core.program import Eqn, Program
from meshwright.core.source import here
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError
from meshwright.kernel.call import KernelCall, Runner
from meshwright.kernel.pipeline.blocks import Blocked, Squeezed, blocks_of
from meshwright.kernel.timing.slots import Slots
from meshwright.report.drawing import Drawing, Grid, LabelledBox
from meshwright.report.html import fragment
from meshwright.report.visualize import Picture

MOST_STEPS = 4  # named in one block
MOST_BLOCKS = 64  # of an operand
MOST_GRID_STEPS = 4096
WIDTH = 100


class Drawn(NamedTuple):
    """A kernel of a program: what it is called with, and its run in slots."""

    call: KernelCall
    types: tuple[TensorType, ...]
    slots: Slots


def kernels_of(program: Program) -> list[Drawn]:
    """The kernels of a program and of its regions, each run in slots of time."""
    found = [_drawn(eqn) for eqn in _calls(program)]
    if not found:
        raise MeshwrightError(
            "There is no kernel to draw.",
            where=here(),
            why="the program does not call one, or was read from text, which keeps the name of a kernel alone",
            fix="mw.make_program(f)(…) of a function that calls pl.pallas_call",
        )
    return found


def _calls(program: Program) -> Iterator[Eqn]:
    for eqn in program.eqns:
        if isinstance(getattr(eqn.params.get("kernel"), "function", None), Runner):
            yield eqn
        for _, region in eqn.regions():
            yield from _calls(region)


def _drawn(eqn: Eqn) -> Drawn:
    mesh, rows, runner = dict(eqn.params["mesh"]), eqn.params["rows"], eqn.params["kernel"].function
    # The first operands are the device's coordinates; rows, of a vmap or of devices, stand in front of all shapes.
    types = [a.type.with_(shape=a.type.shape[len(rows) :]) for a in eqn.inputs[len(mesh) :]]
    return Drawn(runner.call, tuple(types), runner.slots(mesh, types))


def kernel_picture(program: Program, *, devices: int = 2, slots: int = 12, max_width: int = WIDTH) -> Picture:
    """The pipeline of every kernel of a program: ``devices`` of them, in the first ``slots`` slots.

    In a slot a core computes once, and one block of each operand is copied. A block is drawn with the steps of the
    grid that see it.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> from meshwright import pallas as pl
    >>> rows = pl.BlockSpec((2,), lambda i: (i,))
    >>> def double(x_ref, y_ref):
    ...     y_ref[...] = x_ref[...] * 2
    >>> out = mw.ShapeDtypeStruct((4,), mnp.float32)
    >>> call = pl.pallas_call(double, out, grid=(2,), in_specs=[rows], out_specs=rows)
    >>> kernel_picture(mw.make_program(call)(mnp.ones(4)))
    x_ref float32[4]  y_ref float32[4]
    ┌───┬───┐         ┌───┬───┐
    │ 0 │ 1 │         │ 0 │ 1 │
    └───┴───┘         └───┴───┘
    <BLANKLINE>
                slot 0   slot 1   slot 2   slot 3
              ┌────────┬────────┬────────┬────────┐
     x_ref in │ [0:2]  │ [2:4]  │        │        │
              ├────────┼────────┼────────┼────────┤
      compute │        │   0    │   1    │        │
              ├────────┼────────┼────────┼────────┤
    y_ref out │        │        │ [0:2]  │ [2:4]  │
              └────────┴────────┴────────┴────────┘
    double on one device: 4 slots, in each of which a core computes once and a block of each operand is copied
    2 of the 4 slots with copies compute as well
    """
    rows: list[tuple[Grid, ...]] = []
    captions: list[str] = []
    for one in kernels_of(program):
        blocks = tuple(_block_grids(one))
        rows += [blocks] if blocks else []
        for device, core in one.slots.cores()[:devices]:
            rows += [(grid,) for grid in _bands(one.slots, device, core, slots, max_width)]
        captions += summary(one.slots)
        captions += _left_out(one.slots, devices, slots)
    numbers = [cell.number or 0 for row in rows for grid in row for line in grid.cells for cell in line]
    drawing = Drawing(tuple(rows), tuple(captions), max(numbers, default=0) + 1)
    return Picture(lambda: iter([drawing]), max_width, None)


def write_kernels(path: str, title: str, program: Program) -> None:
    """A page of the kernels of a program: every slot of every core as a timeline, and the blocks of the operands."""
    parts: list[Part] = []
    figures: list[Figure] = []
    for one in kernels_of(program):
        slots = one.slots
        lanes = []
        for device, core in slots.cores():
            owner = f"device {device}" + (f" core {core}" if any(at for _, at in slots.cores()) else "")
            for lane in slots.lanes(device, core):
                at = (device, core, lane)
                works = sorted((w for w in slots.works if (w.device, w.core, w.lane) == at), key=lambda w: w.slot)
                bars = tuple(GanttBar(w.slot, 1.0, w.label, lane) for w in works)
                lanes.append(Lane(owner if len(slots.cores()) > 1 else "", lane, bars))
        where = f"{prod(slots.mesh.values())} devices" if slots.mesh else "one device"
        chart = Chart(f"{slots.name} on {where}, slot by slot", slots.count, tuple(lanes), in_seconds=False)
        parts.append(timeline_part(chart))
        blocks = tuple(_block_grids(one))
        if blocks:
            numbers = [cell.number or 0 for grid in blocks for line in grid.cells for cell in line]
            drawing = Drawing((blocks,), (), max(numbers, default=0) + 1)
            parts.append(picture_part("Which steps of the grid see which blocks", fragment(drawing)))
        counts = [slots.overlapped(device, core) for device, core in slots.cores()]
        copying, both = sum(a for a, _ in counts), sum(b for _, b in counts)
        figures += [
            (slots.name, f"{slots.count} slots", "in each a core computes once"),
            ("copies", f"{both} of {copying}", "slots with copies compute as well"),
        ]
    write_sheet(path, title, parts, figures)


def summary(slots: Slots) -> list[str]:
    """A kernel in two lines: how many slots it takes, and how many copies are behind computing."""
    where = f"{prod(slots.mesh.values())} devices" if slots.mesh else "one device"
    what = "in each of which a core computes once and a block of each operand is copied"
    counts = [slots.overlapped(device, core) for device, core in slots.cores()]
    copying, both = sum(a for a, _ in counts), sum(b for _, b in counts)
    return [
        f"{slots.name} on {where}: {slots.count} slots, {what}",
        f"{both} of the {copying} slots with copies compute as well",
    ]


def _left_out(slots: Slots, devices: int, most: int) -> list[str]:
    hidden = slots.count - most, len(slots.cores()) - devices
    return [f"… {n} more {what}" for n, what in zip(hidden, ("slots", "devices"), strict=True) if n > 0]


def _bands(slots: Slots, device: int, core: int, most: int, max_width: int) -> Iterator[Grid]:
    """The lanes of a core over time, in as many pictures as there is room for side by side."""
    lanes = slots.lanes(device, core)
    count = min(slots.count, most)
    texts: dict[tuple[str, int], str] = {}
    for work in slots.works:
        if (work.device, work.core) == (device, core):
            texts[work.lane, work.slot] = work.label
    widths = [max(len(text) for text in (f"slot {n}", *(texts.get((x, n), "") for x in lanes))) for n in range(count)]
    left = max_width - max(map(len, lanes), default=0) - 2
    title = f"device {device}" + (f" core {core}" if any(at for _, at in slots.cores()) else "")
    first = 0
    while first < count:
        last, room = first + 1, left - widths[first] - 3
        while last < count and room >= widths[last] + 3:
            room -= widths[last] + 3
            last += 1
        shown = range(first, last)
        yield Grid(
            title if len(slots.cores()) > 1 else "",
            tuple(tuple(_cell(texts.get((lane, n)), row) for n in shown) for row, lane in enumerate(lanes)),
            tuple(widths[n] + 4 for n in shown),
            (1,) * len(lanes),
            tuple(lanes),
            tuple(f"slot {n}" for n in shown),
        )
        first = last


def _cell(text: str | None, row: int) -> LabelledBox:
    return LabelledBox(text or "", row if text else None)


# Blocks


def _block_grids(one: Drawn) -> Iterator[Grid]:
    """Of each operand that is cut into blocks, which steps of the grid see which."""
    call = one.call
    grid = tuple(n for n in call.grid if n is not None)
    if not grid or prod(grid) > MOST_GRID_STEPS:
        return
    labels = zip(call.labels, (*call.in_trees, *call.out_trees), strict=False)
    names = [name for name, t in labels for _ in range(t.num_leaves)]
    operands = zip(names, (*call.in_specs, *call.out_specs), (*one.types, *call.out_types), strict=True)
    for name, spec, t in operands:
        blocks = blocks_of(spec, t.shape, name)
        flat = all(isinstance(dim, Blocked | Squeezed) for dim in blocks.dims)
        counts = [-(-n // size) for n, size in zip(t.shape, blocks.sizes, strict=True)]
        if spec.index_map is None or not flat or not counts or prod(counts[:-2]) != 1 or prod(counts) > MOST_BLOCKS:
            continue
        seen: dict[tuple[Any, ...], list[str]] = {}
        for step in product(*map(range, grid)):
            seen.setdefault(blocks.index(step), []).append(str(step[0] if len(step) == 1 else step))
        yield _block_grid(f"{name} {t.dtype.name}{list(t.shape)}", counts, seen)


def _block_grid(title: str, counts: Sequence[int], seen: dict[tuple[Any, ...], list[str]]) -> Grid:
    rows, columns = (1, 1, *counts)[-2:]

    def cell(i: int, j: int) -> LabelledBox:
        place = (*[0] * (len(counts) - 2), i, j)[-len(counts) :]
        steps = seen.get(place, [])
        more = [] if len(steps) <= MOST_STEPS else [f"… {len(steps) - MOST_STEPS} more"]
        return LabelledBox(" ".join([*steps[:MOST_STEPS], *more]), i * columns + j)

    cells = tuple(tuple(cell(i, j) for j in range(columns)) for i in range(rows))
    width = max(len(one.label) for line in cells for one in line) + 4
    return Grid(title, cells, (width,) * columns, (1,) * rows)


def facts(one: Drawn) -> dict[str, Any]:
    """A kernel as JSON has it: what each core does in each slot."""
    slots = one.slots
    return {
        "name": slots.name,
        "mesh": slots.mesh,
        "grid": list(one.call.grid),
        "slots": slots.count,
        "work": [work._asdict() for work in slots.works],
    }
