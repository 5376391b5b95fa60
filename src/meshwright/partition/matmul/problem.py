"""Products of split arrays as they are written: the text, the case of each mesh axis, the result that costs nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.core.source import here
from meshwright.errors import TextError
from meshwright.hardware.layouts import Layout, parse_layout, under
from meshwright.hardware.topology import Topology

CASES = {
    1: "the contracted index is whole, and no axis splits an index of each operand",
    2: "one operand alone is split along the contracted index",
    3: "both operands are split alike along the contracted index",
    4: "one axis splits an index of each operand, and the result cannot have both",
}
UNLIKE = "both operands are split along the contracted index, and not alike: one is first resharded like the other"


@dataclass(frozen=True)
class MatmulProblem:
    """What is asked: the layouts, sizes and machine."""

    left: Layout
    right: Layout
    result: Layout
    mesh: dict[str, int]
    sizes: dict[str, float]
    dtype: str
    topology: Topology
    mode: str
    overlap: bool

    @property
    def indices(self) -> tuple[str, ...]:
        """Every index once."""
        return tuple(dict.fromkeys((*self.left.indices, *self.right.indices)))

    @property
    def contracted(self) -> tuple[str, ...]:
        """The indices that are summed over."""
        return tuple(index for index in self.indices if index not in self.result.indices)


def parse_matmul(text: str, mesh: Mapping[str, int]) -> tuple[Layout, Layout, Layout | None]:
    """Read ``A[I_x,J] @ B[J,K_y] -> C[I,K]``; without an arrow there is no result.

    >>> [str(layout) for layout in parse_matmul("A[I_x,J] · B[J,K_y] → C[I_x,K]{U_y}", {"x": 2, "y": 4})]
    ['A[I_x,J]', 'B[J,K_y]', 'C[I_x,K]{U_y}']
    """
    left, at = parse_layout(text, mesh)
    times = re.compile(r"\s*(?:@|·|\*)").match(text, at)
    if times is None:
        raise _unreadable(text, at, "A product was expected.", "operands are joined by @")
    right, at = parse_layout(text, mesh, times.end())
    arrow = re.compile(r"\s*(?:->|→)").match(text, at)
    result = None
    if arrow is not None:
        result, at = parse_layout(text, mesh, arrow.end())
    if text[at:].strip():
        raise _unreadable(text, at, "There is more after the product.", "a plan is about one product")
    both = {*left.indices, *right.indices}
    if result is not None:
        alone = [
            index
            for index in both
            if index not in result.indices and not (index in left.indices and index in right.indices)
        ]
        new = [index for index in result.indices if index not in both]
        if alone or new:
            index = min([*alone, *new])
            why = (
                "the result has it and no operand does"
                if index in new
                else "one operand has it, and neither the other nor the result"
            )
            found = re.search(rf"[\[,]\s*{index}(?![A-Za-z0-9])", text)
            raise _unreadable(
                text, found.end() - len(index) if found else 0, f"Index {index!r:.60} has nowhere to go.", why
            )
    return left, right, result


def _unreadable(text: str, at: int, what: str, why: str) -> TextError:
    return TextError(f"{what}\n{under(text, at)}", where=here(), why=why, fix='"A[I_x,J] @ B[J,K_y] -> C[I,K]"')


def unlike_indices(left: Layout, right: Layout, summed: Sequence[str]) -> list[str]:
    """The contracted indices that both operands are split along, by other axes or in another order."""
    return [index for index in summed if left.of(index) and right.of(index) and left.of(index) != right.of(index)]


def natural_result(
    left: Layout, right: Layout, result: Layout | None, mesh: Mapping[str, int], text: str
) -> tuple[dict[str, int], str, Layout]:
    """The case of each axis, the result that needs no communication, and the result that is wanted."""
    shared = [index for index in left.indices if index in right.indices]
    indices = result.indices if result is not None else tuple(
        index for index in dict.fromkeys((*left.indices, *right.indices)) if index not in shared
    )  # fmt: skip
    summed = [index for index in shared if index not in indices]
    cases: dict[str, int] = {}
    unreduced: list[str] = [*left.unreduced, *(axis for axis in right.unreduced if axis not in left.unreduced)]
    unlike = unlike_indices(left, right, summed)
    for axis in mesh:
        at = [next((i for i, axes in zip(one.indices, one.axes) if axis in axes), None) for one in (left, right)]
        contracted = [index in summed for index in at]
        if any(index in unlike for index in at):
            cases[axis] = 3
        elif all(contracted) and at[0] == at[1]:
            cases[axis] = 3
            unreduced.append(axis)
        elif any(contracted):
            cases[axis] = 2
        elif at[0] is not None and at[1] is not None and at[0] != at[1]:
            cases[axis] = 4
        elif at != [None, None]:
            cases[axis] = 1
    split = []
    for index in indices:
        found = [one.of(index) for one in (left, right) if index in one.indices]
        split.append(max(found, key=len))
    natural = Layout(result.name if result else "C", indices, tuple(split), tuple(dict.fromkeys(unreduced)))
    used = [*natural.used, *natural.unreduced]
    valid = len(set(used)) == len(used)
    partial = any(case == 2 for case in cases.values())
    shown = (
        f"{natural}, which is invalid"
        if not valid
        else f"{natural}, once {left.name} and {right.name} are split alike along {', '.join(unlike)}, and summed"
        if unlike
        else f"{natural}, once the contracted index is whole"
        if partial
        else str(natural)
    )
    if result is None and not valid:
        raise _unreadable(text, len(text), "The result must be written out.", f"the natural one, {natural}, is invalid")
    return cases, shown, result or natural
