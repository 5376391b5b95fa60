"""Pictures of shardings and meshes: as text, on a terminal in colour, in a notebook as HTML."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from operator import index
from typing import Any

import numpy as np

from meshwright.chart.colors import ColorMap, color, ink
from meshwright.chart.showing import Shown
from meshwright.core.source import here
from meshwright.core.trace import Tracer
from meshwright.errors import MeshError, ShapeError, ShardingError, TracerError
from meshwright.report.blocks import blocks_of, device_numbers, kind_of
from meshwright.report.boxes import Line, plain, text_lines
from meshwright.report.drawing import (
    MOST_CELLS,
    Drawing,
    PictureError,
    Sizes,
    captions_of,
    drawings_of_blocks,
    drawings_of_mesh,
)
from meshwright.report.html import fragment
from meshwright.sharding.mesh import BaseMesh, get_mesh
from meshwright.sharding.named import NamedSharding, TensorSharding
from meshwright.sharding.single_device import SingleDeviceSharding
from meshwright.sharding.spec import PartitionSpec, pasted

MOST_RANK = 62  # of the dims of a NumPy array two are for the devices of a block
MOST_SCALE = 100
MOST_WIDTH = 10_000

Sharding = NamedSharding | TensorSharding | SingleDeviceSharding | PartitionSpec


class Picture(Shown):
    """A picture that can be printed (``str``) and that a notebook shows as HTML."""

    def __init__(self, drawings: Callable[[], Iterator[Drawing]], max_width: int, color_map: ColorMap | None) -> None:
        self._drawings, self._max_width, self._color_map = drawings, max_width, color_map

    @cached_property
    def _chosen(self) -> tuple[Drawing, list[Line]]:
        """The most detailed drawing that has room on a page of text, and its lines."""
        drawing = None
        for drawing in self._drawings():
            lines = text_lines(drawing, self._max_width)
            if lines is not None:
                return drawing, lines
        assert drawing is not None
        return drawing, text_lines(drawing, self._max_width, whatever=True) or []

    def __str__(self) -> str:
        return plain(self._chosen[1])

    __repr__ = __str__

    def html(self) -> str:
        """The picture as an HTML element."""
        fits = (drawing for drawing in self._drawings() if drawing.cells <= MOST_CELLS)
        return fragment(next(fits), self._color_map)

    _repr_html_ = html

    def _print_in_color(self) -> None:
        from rich.console import Console
        from rich.text import Text

        drawing, lines = self._chosen
        text = Text()
        for line in lines:
            for part, number in line:
                back = None if number is None else color(number, drawing.numbers, self._color_map)
                text.append(part, None if back is None else f"{ink(back)} on {back}")
            text.append("\n")
        Console(highlight=False, soft_wrap=True).print(text, end="")


# What is drawn


def picture(
    what: Any,
    sharding: Sharding | None = None,
    *,
    scale: float = 1.0,
    min_width: int = 9,
    max_width: int = 80,
    color_map: ColorMap | None = None,
    ranges: bool | None = None,
) -> Picture:
    """The picture of an array, of a mesh, or of a shape and its sharding.

    A box is as large as its block: ``scale`` 1 makes a matrix 10 lines high, ``min_width`` and ``max_width`` bound the
    width of a box and of the whole. ``ranges`` says whether to write beside the boxes what is in them; by default it is
    written where they are not all alike. ``color_map`` takes a number in 0 … 1 to red, green and blue.

    >>> import meshwright as mw
    >>> mesh = mw.make_mesh((2, 2), ("x", "y"), kind="tpu")
    >>> picture((4, 4), mw.NamedSharding(mesh, mw.P("x")), scale=0.5)
    ┌──────────┐
    │ TPU 0,1  │
    ├──────────┤
    │ TPU 2,3  │
    └──────────┘
    """
    _check_options(scale, min_width, max_width, color_map)
    if isinstance(what, BaseMesh) and sharding is None:
        mesh = what
        return Picture(lambda: drawings_of_mesh(mesh), max_width, color_map)
    shape = what
    if sharding is None:
        shape, sharding = _array_sharding(what)
    dims, sizes = checked_shape(shape), Sizes(scale, min_width, max_width)
    found = resolved(dims, sharding)
    blocks, captions = blocks_of(dims, found), captions_of(found)
    return Picture(lambda: drawings_of_blocks(blocks, captions, sizes, ranges), max_width, color_map)


def as_text(what: Any, sharding: Sharding | None = None, **options: Any) -> str:
    """The picture of an array, of a mesh, or of a shape and its sharding, as text; options as in ``picture``.

    >>> import meshwright as mw
    >>> mesh = mw.make_mesh((2, 2), ("x", "y"), kind="tpu")
    >>> print(as_text((8,), mw.NamedSharding(mesh, mw.P("y"))))
    ┌───────┬───────┐
    │TPU 0,2│TPU 1,3│
    └───────┴───────┘
    >>> print(as_text((8,), mw.NamedSharding(mesh, mw.P("y", unreduced={"x"}))))
    ┌───────┬───────┐
    │TPU 0+2│TPU 1+3│
    └───────┴───────┘
    unreduced sum over x
    """
    return str(picture(what, sharding, **options))


def as_html(what: Any, sharding: Sharding | None = None, **options: Any) -> str:
    """The picture of an array, of a mesh, or of a shape and its sharding, as an HTML element.

    >>> import meshwright as mw
    >>> as_html((8,), mw.NamedSharding(mw.make_mesh((2,), ("x",)), mw.P("x")))[:40]
    '<figure class="meshwright-picture" style'
    """
    return picture(what, sharding, **options).html()


def facts(shape: Sequence[int], sharding: Sharding) -> dict[str, Any]:
    """The same as a picture, for programs: each block with its range and its devices.

    >>> import meshwright as mw
    >>> found = facts((4,), mw.NamedSharding(mw.make_mesh((2,), ("x",)), mw.P("x")))
    >>> found["local_shape"], found["blocks"][1]
    ([2], {'start': [2], 'stop': [4], 'devices': [[1]]})
    """
    dims = checked_shape(shape)
    found = resolved(dims, sharding)
    blocks = blocks_of(dims, found)
    places = list(np.ndindex(*blocks.counts))
    ranges = [[blocks.range(dim, block) for dim, block in enumerate(place)] for place in places]
    return {
        "mesh": str(found.mesh),
        "kind": blocks.kind,
        "shape": list(dims),
        "sharding": str(found),
        "local_shape": list(blocks.block_shape),
        "reduction": found.reduction if found.unreduced else None,
        "unreduced": [axis.short() for axis in found.unreduced],
        "blocks": [
            {"start": [a for a, _ in part], "stop": [b for _, b in part], "devices": blocks.devices[place].tolist()}
            for place, part in zip(places, ranges, strict=True)
        ],
    }


def mesh_facts(mesh: BaseMesh) -> dict[str, Any]:
    """A mesh, for programs.

    >>> import meshwright as mw
    >>> mesh_facts(mw.make_mesh((2,), ("x",), kind="tpu"))
    {'mesh': '<["x"=2]>', 'kind': 'TPU', 'axes': {'x': 2}, 'types': {'x': 'Auto'}, 'devices': [0, 1]}
    """
    return {
        "mesh": str(mesh),
        "kind": kind_of(mesh),
        "axes": mesh.shape,
        "types": {name: str(type) for name, type in zip(mesh.axis_names, mesh.axis_types, strict=True)},
        "devices": device_numbers(mesh).reshape(mesh.axis_sizes or (-1,)).tolist(),
    }


# What was given


def _check_options(scale: Any, min_width: Any, max_width: Any, color_map: Any) -> None:
    """Raise unless a picture can be that large."""
    number = isinstance(scale, int | float | np.integer | np.floating) and not isinstance(scale, bool)
    if not number or not 0 <= scale <= MOST_SCALE:
        raise PictureError(
            f"A picture cannot have the scale {scale!r}.",
            where=here(),
            why=f"1 makes a matrix 10 lines high, and {MOST_SCALE} is the most",
            fix="scale=1.0",
        )
    for name, width, usual in (("min_width", min_width, 9), ("max_width", max_width, 80)):
        if not isinstance(width, int | np.integer) or isinstance(width, bool) or not 0 <= width <= MOST_WIDTH:
            raise PictureError(
                f"A picture cannot have {name}={width!r}.",
                where=here(),
                why=f"it is a whole number of characters, at most {MOST_WIDTH}",
                fix=f"{name}={usual}",
            )
    if color_map is not None and not callable(color_map):
        raise PictureError(
            f"{_short(color_map)} is not a color map.",
            where=here(),
            why="it is a function from 0 … 1 to red, green and blue",
            fix="color_map=lambda x: (x, 0.5, 1 - x)",
        )


def checked_shape(shape: Any) -> tuple[int, ...]:
    """A shape as a tuple; an error if it is none."""
    try:
        dims = tuple(index(size) for size in ((shape,) if isinstance(shape, int) else shape))
    except TypeError:
        dims = (-1,)
    if any(size < 0 for size in dims) or len(dims) > MOST_RANK:
        raise ShapeError(
            f"{_short(shape)} is not a shape.",
            where=here(),
            why=f"a shape is a tuple of at most {MOST_RANK} sizes, none of them negative",
            fix="mw.debug.visualize_sharding((64, 64), sharding)",
        )
    return dims


def resolved(shape: tuple[int, ...], sharding: Any) -> TensorSharding:
    """The whole representation of a sharding, for a tensor of this shape."""
    if isinstance(sharding, PartitionSpec):
        mesh = get_mesh()
        if mesh is None:
            raise MeshError(
                f"{sharding} is drawn without a mesh.",
                where=here(),
                why="a partition spec alone does not say which devices there are, and no mesh is set",
                fix=f"mw.NamedSharding(mesh, {pasted(sharding)}), or mw.set_mesh(mesh) before",
            )
        sharding = NamedSharding(mesh, sharding)
    if not isinstance(sharding, NamedSharding | TensorSharding | SingleDeviceSharding):
        raise ShardingError(
            f"{_short(sharding)} is not a sharding.",
            where=here(),
            why="a picture is drawn of a NamedSharding, a TensorSharding, or a P on the current mesh",
            fix='mw.NamedSharding(mesh, mw.P("x", "y"))',
        )
    sharding.local_shape(shape)  # the rank is right, or an error says so
    return sharding if isinstance(sharding, TensorSharding) else sharding.to_tensor_sharding(len(shape))


def _array_sharding(x: Any) -> tuple[tuple[int, ...], Any]:
    sharding = getattr(x, "sharding", None)
    if sharding is not None and hasattr(x, "shape"):
        return tuple(x.shape), sharding
    if isinstance(x, Tracer):
        if x.type.sharding is not None:
            return x.shape, x.type.sharding
        raise TracerError(
            f"A traced value {x.type} has no sharding to draw.",
            where=here(),
            why="where it lives is decided when the whole program is compiled",
            fix="draw the function's result, or mw.debug.visualize_sharding(x.shape, sharding)",
        )
    raise ShardingError(
        f"{_short(x)} has no sharding to draw.",
        where=here(),
        why="only an mw.Array is laid out on devices",
        fix="mw.debug.visualize_sharding(shape, sharding), or give an mw.Array",
    )


def _short(thing: Any) -> str:
    text = repr(thing)
    return text if len(text) <= 60 and "\n" not in text else f"A {type(thing).__name__}"
