"""The collectives that take an array from one layout to another: slices first, gathers last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from meshwright.hardware.layouts import Layout, subscript

_TITLES = {
    "slice": "Slice",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "all_reduce": "AllReduce",
    "all_to_all": "AllToAll",
    "permute": "Permute",
}


@dataclass(frozen=True)
class ConversionStep:
    """One collective (or slice, which is local) over ``axes``, from one layout to the next."""

    kind: str
    axes: tuple[str, ...]
    before: Layout
    after: Layout

    @property
    def name(self) -> str:
        """``AllGather_x(A)``."""
        return f"{_TITLES[self.kind]}{subscript(self.axes)}({self.before.name})"

    def __str__(self) -> str:
        return f"{_TITLES[self.kind]}{subscript(self.axes)}({self.before}) -> {self.after}"

    def group(self, mesh: Mapping[str, int]) -> int:
        """Devices that take part together."""
        return prod(mesh[axis] for axis in self.axes)

    def elements(self, sizes: Mapping[str, float], mesh: Mapping[str, int]) -> float:
        """V, in elements: see `meshwright.hardware.links`."""
        larger = self.after if self.kind == "all_gather" else self.before
        held = larger.elements(sizes, mesh)
        return held * self.group(mesh) if self.kind in ("all_to_all", "permute") else held

    def received(self, sizes: Mapping[str, float], mesh: Mapping[str, int]) -> float:
        """Elements that each device takes in."""
        group = self.group(mesh)
        share = {
            "slice": 0.0,
            "all_reduce": 2 * (group - 1) / group,
            "all_to_all": (group - 1) / group**2,
            "permute": 1 / group,
        }.get(self.kind, (group - 1) / group)
        return share * self.elements(sizes, mesh)


def convert(source: Layout, target: Layout) -> list[ConversionStep] | None:
    """Steps from ``source`` to ``target``, an array of the same indices; None if a sum would have to be taken apart.

        A[I_x,J] -> A[I,J]       AllGather_x
        A[I_x,J] -> A[I,J_x]     AllToAll_x
        A[I]{U_x} -> A[I_x]      ReduceScatter_x

    Splits are blocks, the first axis of an index the major one: what is gathered must be the minor axes, or the
    blocks are permuted first.

    >>> mesh = {"x": 2, "y": 2}
    >>> from meshwright.hardware.layouts import parse_layout
    >>> source, target = parse_layout("A[I_x,J]{U_y}", mesh)[0], parse_layout("A[I,J_y]", mesh)[0]
    >>> for step in convert(source, target): print(step)
    ReduceScatter_y(A[I_x,J]{U_y}) -> A[I_x,J_y]
    AllGather_x(A[I_x,J_y]) -> A[I,J_y]
    """
    if set(target.unreduced) - set(source.unreduced):
        return None
    steps: list[ConversionStep] = []
    now = {index: list(axes) for index, axes in zip(source.indices, source.axes)}
    goal = {index: list(axes) for index, axes in zip(target.indices, target.axes)}
    unreduced = list(source.unreduced)
    home = {axis: index for index, axes in now.items() for axis in axes}
    last = source

    def step(kind: str, axes: Sequence[str]) -> None:
        nonlocal last
        after = Layout(source.name, source.indices, tuple(tuple(now[i]) for i in source.indices), tuple(unreduced))
        steps.append(ConversionStep(kind, tuple(axes), last, after))
        last = after

    def to_minor(index: str, leaving: Sequence[str]) -> None:
        """Permute blocks so that the axes that leave an index are its minor ones."""
        kept = [axis for axis in now[index] if axis not in leaving]
        order = [*kept, *(axis for axis in now[index] if axis in leaving)]
        if order != now[index]:
            changed = [axis for axis in now[index] if order.index(axis) != now[index].index(axis)]
            now[index] = order
            step("permute", changed)

    arriving = [(axis, index) for index in source.indices for axis in goal[index] if home.get(axis) != index]
    sliced = [(axis, index) for axis, index in arriving if axis not in home and axis not in unreduced]
    for axis, index in sliced:
        now[index].append(axis)
    if sliced:
        step("slice", [axis for axis, _ in sliced])
    scattered = [(axis, index) for axis, index in arriving if axis in unreduced]
    for axis, index in scattered:
        now[index].append(axis)
        unreduced.remove(axis)
    if scattered:
        step("reduce_scatter", [axis for axis, _ in scattered])
    moves: dict[tuple[str, str], list[str]] = {}
    for axis, index in arriving:
        if axis in home:
            moves.setdefault((home[axis], index), []).append(axis)
    for (leaves, enters), axes in moves.items():
        to_minor(leaves, axes)
        now[leaves] = [axis for axis in now[leaves] if axis not in axes]
        now[enters] += axes
        step("all_to_all", axes)
    reduced = [axis for axis in unreduced if axis not in target.unreduced]
    if reduced:
        unreduced = [axis for axis in unreduced if axis not in reduced]
        step("all_reduce", reduced)
    gathered = {index: [axis for axis in now[index] if axis not in goal[index]] for index in source.indices}
    for index, axes in gathered.items():
        # Kept blocks take their final order here, while they are small.
        kept = [axis for axis in now[index] if axis not in axes]
        if kept != goal[index]:
            now[index] = [*goal[index], *axes]
            step("permute", [*kept, *axes])
        else:
            to_minor(index, axes)
    for index, axes in gathered.items():
        now[index] = [axis for axis in now[index] if axis not in axes]
    if any(gathered.values()):
        step("all_gather", [axis for index in source.indices for axis in gathered[index]])
    return steps


def convert_by_permute(source: Layout, target: Layout, mesh: Mapping[str, int]) -> list[ConversionStep] | None:
    """A slice and one permute of the blocks from ``source`` to ``target``; None if there is no such way.

        A[I,J_x] -> A[I,J_y]       Permute_xy
        A[I,J_x] -> A[I_x,J_y]     Slice_y to A[I_y,J_x], Permute_xy

    The axes that only the target has split the source further, wherever that makes blocks of the target's shape.

    >>> from meshwright.hardware.layouts import parse_layout
    >>> sizes = {"x": 2, "y": 2}
    >>> source, target = parse_layout("A[I,J_x]", sizes)[0], parse_layout("A[I_x,J_y]", sizes)[0]
    >>> for step in convert_by_permute(source, target, sizes): print(step)
    Slice_y(A[I,J_x]) -> A[I_y,J_x]
    Permute_xy(A[I_y,J_x]) -> A[I_x,J_y]
    """
    if source.unreduced or target.unreduced or source.axes == target.axes:
        return None
    free = [axis for axis in target.used if axis not in source.used]
    goal = [prod(mesh[axis] for axis in axes) for axes in target.axes]
    for places in product(range(-1, len(source.indices)), repeat=len(free)):
        added = [tuple(axis for axis, place in zip(free, places) if place == n) for n in range(len(source.indices))]
        axes = tuple((*have, *more) for have, more in zip(source.axes, added))
        if [prod(mesh[axis] for axis in one) for one in axes] == goal and axes != target.axes:
            cut = Layout(source.name, source.indices, axes, ())
            end = Layout(source.name, source.indices, target.axes, ())
            moved = [
                axis for axis in mesh if any(_place(axis, a) != _place(axis, b) for a, b in zip(axes, target.axes))
            ]
            slices = (
                [ConversionStep("slice", tuple(axis for more in added for axis in more), source, cut)]
                if cut != source
                else []
            )
            return [*slices, ConversionStep("permute", tuple(moved), cut, end)]
    return None


def convert_by_scatter(source: Layout, target: Layout) -> Iterator[list[ConversionStep]]:
    """Ways that take a sum in parts and gather them along with what is gathered anyway, rather than sum it whole.

        C[I_x,K]{U_y} -> C[I,K]    ReduceScatter_y to C[I_xy,K], AllGather_xy

    >>> from meshwright.hardware.layouts import parse_layout
    >>> sizes = {"x": 2, "y": 2}
    >>> source, target = parse_layout("C[I_x,K]{U_y}", sizes)[0], parse_layout("C[I,K]", sizes)[0]
    >>> for step in next(convert_by_scatter(source, target)): print(step)
    ReduceScatter_y(C[I_x,K]{U_y}) -> C[I_xy,K]
    AllGather_xy(C[I_xy,K]) -> C[I,K]
    """
    summed = tuple(axis for axis in source.unreduced if axis not in (*target.unreduced, *target.used))
    if not summed or not any(axis not in target.used for axis in source.used):
        return
    for place in range(len(source.indices)):
        axes = tuple((*have, *summed) if n == place else have for n, have in enumerate(source.axes))
        left = tuple(axis for axis in source.unreduced if axis not in summed)
        middle = Layout(source.name, source.indices, axes, left)
        first, second = convert(source, middle), convert(middle, target)
        if first is not None and second is not None:
            yield [*first, *second]


def _place(axis: str, axes: Sequence[str]) -> int:
    return axes.index(axis) if axis in axes else -1
