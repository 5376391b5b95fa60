"""What collectives have in common: which axes they are over, operands that vary over them, and gathers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from meshwright.api import direct
from meshwright.api.axis_names import resolve
from meshwright.arrays.tracing import leaf_value
from meshwright.core import tree
from meshwright.core.source import here
from meshwright.core.trace import Value, make_varying, state
from meshwright.core.types import union
from meshwright.errors import ShapeError
from meshwright.ops import collective as ops
from meshwright.ops.basic import add, mul, reshape

AxisName = str | Sequence[str]


def each(op: str, function: Callable[[Value], Value], x: Any) -> Any:
    return tree.map(lambda leaf: _unchecked(function(leaf_value(leaf, f"an operand of {op}", enter=False))), x)


def _unchecked(x: Value) -> Value:
    """With ``check_vma=False`` all values vary over all axes of the shard_map, the results of sums included."""
    manual = state.manual
    if manual is None or manual.checked or manual.mesh is None:
        return x
    return make_varying(x, union((x.type.varying, tuple(manual.axes))))  # type: ignore[no-any-return]


def absent_axes(x: Value, axes: Sequence[str]) -> list[int]:
    """The positions of the axes that ``x`` does not vary over."""
    return [n for n, axis in enumerate(axes) if axis not in x.type.varying]


def varying(x: Value, axes: Sequence[str]) -> Value:
    assert state.manual is not None
    return make_varying(x, tuple(sorted({*x.type.varying, *axes}))) if state.manual.automatic else x


def strict() -> bool:
    return state.manual is not None and not state.manual.automatic


def dim_of(op: str, axis: int, rank: int) -> int:
    if isinstance(axis, bool) or not hasattr(axis, "__index__") or not -rank <= axis < rank:
        raise ShapeError(
            f"{op} is given dim {axis!r} of a value of rank {rank}.",
            where=here(),
            why=("its only dim is 0" if rank == 1 else f"its dims are 0 to {rank - 1}")
            if rank
            else "a scalar has no dims",
            fix=f"a dim between {-rank} and {rank - 1}" if rank else "x[None], a vector of one element",
        )
    return int(axis) % rank


def gather(name: str, op: Any, x: Any, axis_name: AxisName, axis: int, tiled: bool) -> Any:
    axes, sizes = resolve(name, axis_name)

    def one(x: Value) -> Any:
        dim = dim_of(name, axis, x.ndim if tiled else x.ndim + 1)
        if not tiled:
            x = reshape(x, shape=(*x.shape[:dim], 1, *x.shape[dim:]))
        if strict():
            return op(x, axes=axes, sizes=sizes, dim=dim)
        absent = absent_axes(x, axes)
        if len(absent) == len(axes):  # what all devices hold need not be sent
            return ops.repeated(x, dim, prod(sizes))
        return op(varying(x, axes), axes=axes, sizes=sizes, dim=dim)

    return each(name, one, x)


def check_untiled(name: str, x: Value, dim: int, count: int, tiled: bool) -> None:
    if not tiled and x.shape[dim] != count:
        raise ShapeError(
            f"{name} with tiled=False cannot take {x.type}.",
            where=here(),
            why=f"dim {dim} has size {x.shape[dim]}, and is to be given away to {count} devices, one row each",
            fix="tiled=True, which gives each device a block of rows",
        )


def axis_index(axis_name: AxisName) -> Any:
    """The position of a device along an axis, or along several taken together, the first of them major.

    >>> import meshwright as mw
    >>> mesh = mw.make_mesh((4,), ("i",))
    >>> mw.shard_map(lambda: axis_index("i")[None], mesh=mesh, in_specs=(), out_specs=mw.P("i"))().tolist()
    [0, 1, 2, 3]
    """
    if direct.state.place is not None:
        return direct.state.place.axis_index(axis_name)
    axes, sizes = resolve("axis_index", axis_name, before="")
    position: Value | None = None
    for axis, size in zip(axes, sizes, strict=True):
        here_ = ops.axis_index(axes=(axis,), sizes=(size,))
        position = here_ if position is None else add(mul(position, size), here_)
    return leaf_value(np.int32(0), "a position") if position is None else position
