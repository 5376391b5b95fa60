"""Trees: as text with lines between the nodes, and as a drawing of boxes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple, Protocol

from meshwright.chart.colors import color, ink
from meshwright.chart.views import Line, TextPiece, View

MOST_NODES = 40


class TreeNode(NamedTuple):
    """A node: its label, what stands below it, and the number of its colour."""

    label: str
    below: tuple[TreeNode, ...] = ()
    number: int | None = None

    @property
    def size(self) -> int:
        """How many nodes there are, this one among them."""
        return 1 + sum(node.size for node in self.below)


class Branches(Protocol):
    """A tree that may be too large to draw: the keys of a level, and what stands below a path of them."""

    def keys(self) -> Sequence[int]: ...
    def below(self, keys: Sequence[int]) -> Branches | None: ...


def shortened(tree: Branches) -> tuple[TreeNode, ...]:
    """The nodes of a tree, of each level the first ones and the last, so that they are not too many to look at."""
    most = min(len(tree.keys()), MOST_NODES)
    nodes = _nodes(tree, most, None)
    while sum(node.size for node in nodes) > MOST_NODES and most > 2:
        most = min(most - 1, 8)
        nodes = _nodes(tree, most, None)
    return nodes


def _nodes(tree: Branches, most: int, number: int | None) -> tuple[TreeNode, ...]:
    """The nodes of a level; of more than ``most`` the first ones, how many are left out, and the last one."""
    keys = tree.keys()

    def node(n: int) -> TreeNode:
        below, mine = tree.below([keys[n]]), n if number is None else number
        return TreeNode(str(keys[n]), _nodes(below, most, mine) if below is not None else (), mine)

    if len(keys) <= most + 1:
        return tuple(map(node, range(len(keys))))
    return (*map(node, range(most - 1)), TreeNode(f"… {len(keys) - most:,} more"), node(len(keys) - 1))


def tree_view(title: str, nodes: Sequence[TreeNode], numbers: int) -> View:
    """The tree to look at: a line per node, or a drawing."""
    return View(title, lambda: [[TextPiece(title)], *text_lines(nodes, numbers)], lambda: fragment(nodes, numbers))


def text_lines(nodes: Sequence[TreeNode], numbers: int, indent: str = "") -> list[Line]:
    """A line per node.

    >>> for line in text_lines([TreeNode("1", (TreeNode("1"), TreeNode("3"))), TreeNode("2")], 2):
    ...     print("".join(piece.text for piece in line))
    ├─ 1
    │  ├─ 1
    │  └─ 3
    └─ 2
    """
    lines: list[Line] = []
    for n, node in enumerate(nodes):
        last = n == len(nodes) - 1
        back = None if node.number is None else color(node.number, numbers)
        lines.append([TextPiece(f"{indent}{'└─' if last else '├─'} "), TextPiece(node.label, back)])
        lines += text_lines(node.below, numbers, indent + ("   " if last else "│  "))
    return lines


_LINE, _CHARACTER, _STEP = 26, 8, 40


def fragment(nodes: Sequence[TreeNode], numbers: int) -> str:
    """The tree as an SVG element: levels from left to right, each node in the middle of what stands below it."""
    boxes: list[str] = []
    lines: list[str] = []
    widths: list[int] = []

    def measure(nodes: Sequence[TreeNode], level: int) -> None:
        for node in nodes:
            if len(widths) <= level:
                widths.append(0)
            widths[level] = max(widths[level], len(node.label) * _CHARACTER + 12)
            measure(node.below, level + 1)

    def place(node: TreeNode, level: int, top: float) -> tuple[float, float]:
        """Draw a node and what is below it from ``top`` on; its middle, and where the next one begins."""
        left = sum(widths[:level]) + level * _STEP
        at, middles = top, []
        for child in node.below:
            middle, at = place(child, level + 1, at)
            middles.append(middle)
        middle = (middles[0] + middles[-1]) / 2 if middles else top + _LINE / 2
        right, next_left = left + len(node.label) * _CHARACTER + 12, left + widths[level] + _STEP
        for child_middle in middles:
            lines.append(f'<path d="M{right} {middle}H{next_left - _STEP / 2}V{child_middle}H{next_left}"/>')
        back = "#ffffff" if node.number is None else color(node.number, numbers)
        boxes.append(
            f'<rect x="{left}" y="{middle - 10}" width="{right - left}" height="20" rx="3" fill="{back}" '
            f'stroke="#555"/><text x="{left + 6}" y="{middle + 4}" fill="{ink(back)}">{escape(node.label)}</text>'
        )
        return middle, max(at, top + _LINE)

    measure(nodes, 0)
    bottom = 0.0
    for node in nodes:
        _, bottom = place(node, 0, bottom)
    width = sum(widths) + _STEP * max(0, len(widths) - 1) + 2
    return (
        f'<figure class="meshwright-tree" style="margin:0"><svg width="{width}" height="{bottom + 2}" '
        f'viewBox="-1 -1 {width} {bottom + 2}" xmlns="http://www.w3.org/2000/svg" '
        f'style="font:13px ui-monospace,monospace"><g fill="none" stroke="#888">{"".join(lines)}</g>'
        f"{''.join(boxes)}</svg></figure>"
    )
