"""Looking at where arrays live, and at what kernels do at the same time.

>>> import meshwright as mw
>>> mesh = mw.make_mesh((2, 2), ("x", "y"), kind="tpu")
>>> visualize_sharding((8,), mw.NamedSharding(mesh, mw.P("y")))
┌───────┬───────┐
│TPU 0,2│TPU 1,3│
└───────┴───────┘
>>> visualize_mesh(mesh)
       y=0     y=1
    ┌───────┬───────┐
x=0 │ TPU 0 │ TPU 1 │
    ├───────┼───────┤
x=1 │ TPU 2 │ TPU 3 │
    └───────┴───────┘
x=2, y=2: 4 TPU devices
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.api.callback import debug_callback as callback
from meshwright.api.callback import debug_print as print
from meshwright.api.callback import inspect_array_sharding
from meshwright.chart.colors import ColorMap
from meshwright.core.source import here
from meshwright.errors import MeshError
from meshwright.report.kernels import kernel_picture
from meshwright.report.visualize import Picture, Sharding, as_html, as_text, picture
from meshwright.sharding.mesh import BaseMesh


def visualize_array_sharding(
    x: Any,
    *,
    use_color: bool = True,
    scale: float = 1.0,
    min_width: int = 9,
    max_width: int = 80,
    color_map: ColorMap | None = None,
    ranges: bool | None = None,
) -> None:
    """Draw which devices hold which part of an array: in colour on a terminal, as HTML in a notebook.

    Devices that hold the same block stand in one box, ``TPU 0,2``; devices that hold summands of it are joined by a
    sign, ``TPU 0+2``. The options are those of ``visualize_sharding``.

    >>> import meshwright.numpy as mnp
    >>> visualize_array_sharding(mnp.zeros(3), scale=0.1)
    ┌───────┐
    │ CPU 0 │
    └───────┘
    """
    drawn = picture(x, scale=scale, min_width=min_width, max_width=max_width, color_map=color_map, ranges=ranges)
    drawn.show(use_color)


def visualize_sharding(
    shape: Sequence[int],
    sharding: Sharding,
    *,
    use_color: bool = True,
    scale: float = 1.0,
    min_width: int = 9,
    max_width: int = 80,
    color_map: ColorMap | None = None,
    ranges: bool | None = None,
) -> None:
    """Draw which devices hold which part of a tensor of this shape.

    A box is as large as its block: ``scale`` 1 makes a matrix 10 lines high, ``min_width`` and ``max_width`` bound the
    width of a box and of the whole. ``ranges`` writes beside the boxes what is in them; by default that is done where
    they are not all alike.

    >>> import meshwright as mw
    >>> visualize_sharding((7,), mw.NamedSharding(mw.make_mesh((4,), ("x",)), mw.P("x")))
       0:2     2:4     4:6     6:7
    ┌───────┬───────┬───────┬───────┐
    │ CPU 0 │ CPU 1 │ CPU 2 │ CPU 3 │
    └───────┴───────┴───────┴───────┘
    """
    drawn = picture(
        shape, sharding, scale=scale, min_width=min_width, max_width=max_width, color_map=color_map, ranges=ranges
    )
    drawn.show(use_color)


def visualize_mesh(
    mesh: BaseMesh, *, use_color: bool = True, max_width: int = 80, color_map: ColorMap | None = None
) -> None:
    """Draw a mesh: each device at its place. Of an axis too long to draw, the first places and the last one are shown.

    >>> import meshwright as mw
    >>> visualize_mesh(mw.make_mesh((4,), ("data",), kind="tpu"))
     data=0  data=1  data=2  data=3
    ┌───────┬───────┬───────┬───────┐
    │ TPU 0 │ TPU 2 │ TPU 1 │ TPU 3 │
    └───────┴───────┴───────┴───────┘
    data=4: 4 TPU devices
    """
    if not isinstance(mesh, BaseMesh):
        raise MeshError(
            f"visualize_mesh cannot draw {mesh!r}.",
            where=here(),
            why="it is not a mesh",
            fix='mw.debug.visualize_mesh(mw.make_mesh((2, 4), ("x", "y")))',
        )
    picture(mesh, max_width=max_width, color_map=color_map).show(use_color)


__all__ = [
    "Picture",
    "as_html",
    "as_text",
    "callback",
    "inspect_array_sharding",
    "kernel_picture",
    "picture",
    "print",
    "visualize_array_sharding",
    "visualize_mesh",
    "visualize_sharding",
]
