"""vmap: a function of one example becomes a function of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import optree

from meshwright.arrays.static import static_size
from meshwright.arrays.tracing import check_function, leaf_value, trace_flat
from meshwright.core import tree
from meshwright.core.source import here
from meshwright.core.trace import Manual, Value, state
from meshwright.core.types import TensorType, union
from meshwright.errors import MeshwrightError, ShapeError, TreeError
from meshwright.ops.basic import broadcast_in_dim, move_dim
from meshwright.transform.batch import batch_program, batching_over

Function = Callable[..., Any]


def vmap(
    fun: Function,
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: str | None = None,
    axis_size: int | None = None,
    spmd_axis_name: str | Sequence[str] | None = None,
) -> Function:
    """``fun`` applied to each example of a batch.

    ``in_axes`` says which dim of each argument is the batch (None: the same for all examples), as one number, a tuple
    with one entry per argument, or a tree of them; ``out_axes`` where the batch goes in the results. With ``axis_name``
    the examples can work together: collectives over that name go over the batch. ``spmd_axis_name`` names mesh axes
    that a ``shard_map`` inside splits the batch over.

    >>> import meshwright.numpy as mnp
    >>> vmap(mnp.dot, in_axes=(0, None))(mnp.ones((2, 3)), mnp.ones(3)).tolist()
    [3.0, 3.0]
    """
    check_function(fun, "vmap")
    several = isinstance(spmd_axis_name, list | tuple)
    spmd: Any = () if spmd_axis_name is None else spmd_axis_name if several else (spmd_axis_name,)
    axis_size = None if axis_size is None else static_size(axis_size, "axis_size of vmap")
    if not all(isinstance(name, str) for name in (*spmd, *((axis_name,) if axis_name is not None else ()))):
        raise MeshwrightError(
            f"vmap is given {axis_name!r} and {spmd_axis_name!r} as the names of axes.",
            where=here(),
            why="axes are named by strings",
            fix="axis_name='batch'",
        )

    @wraps(fun)
    def batched(*args: Any, **kwargs: Any) -> Any:
        leaves, in_tree = tree.flatten((args, kwargs))
        values = [leaf_value(x, "an argument of vmap") for x in leaves]
        axes = _axes_for(in_axes, args, "in_axes") + [0] * len(tree.leaves(kwargs))
        size = _batch_size(values, axes, tree.argument_names(args, kwargs), axis_size)
        flags = [axis is not None for axis in axes]
        moved = [x if axis is None else move_dim(x, axis % x.ndim, 0) for x, axis in zip(values, axes, strict=True)]
        types = [x.type.row() if b else x.type for x, b in zip(moved, flags, strict=True)]
        if axis_name is not None:
            types = [_varying(t, axis_name) if b else t for t, b in zip(types, flags, strict=True)]
        with _named(axis_name, size):
            traced = trace_flat(fun, in_tree, types)
        with batching_over(axis_name, tuple(spmd)):
            outs, out_flags = batch_program(
                traced.program, size, [*traced.captured, *moved], [False] * len(traced.captured) + flags
            )
        placeholders = tree.unflatten(traced.out_tree, range(len(outs)))
        targets = _axes_for(out_axes, placeholders, "out_axes")
        placed = [_place(x, b, axis, size) for x, b, axis in zip(outs, out_flags, targets, strict=True)]
        return tree.unflatten(traced.out_tree, placed)

    return batched


def _varying(t: TensorType, axis: str) -> TensorType:
    return t.with_(varying=union((t.varying, (axis,))))


@contextmanager
def _named(axis: str | None, size: int) -> Iterator[None]:
    """Let collectives over ``axis`` be written in the function being traced."""
    before = state.manual
    if axis is not None:
        if before is not None and (axis in before.axes or axis in before.parts):
            raise MeshwrightError(
                f"vmap's axis_name {axis!r} is the name of an axis that is there already.",
                where=here(),
                why="a collective could not tell them apart",
                fix="another name",
            )
        level = state.builder.level + 1 if state.builder is not None else 0
        outer = before or Manual(None, {}, {}, {}, True)
        axes, levels = {**outer.axes, axis: size}, {**outer.level, axis: level}
        state.manual = Manual(outer.mesh, axes, levels, outer.parts, outer.automatic)
    try:
        yield
    finally:
        state.manual = before


def _axes_for(axes: Any, target: Any, name: str) -> list[int | None]:
    """One axis (or None) per leaf of ``target``, from a prefix of its tree."""
    if isinstance(axes, list) and name == "in_axes":
        axes = tuple(axes)
    try:
        found = optree.broadcast_prefix(axes, target, none_is_leaf=True, namespace=tree.NAMESPACE)
    except RecursionError:
        raise tree.too_deep() from None
    except ValueError:
        given = "arguments" if name == "in_axes" else "results"
        raise TreeError(
            f"vmap's {name} does not fit the {given}.",
            where=here(),
            why=f"it is {axes!r:.200}, and the {given} are {tree.outline(target, '*')}",
            fix=f"{name}=0, or one entry per {'argument' if name == 'in_axes' else 'result'}: a number or None",
        ) from None
    kept = optree.tree_leaves(target, none_is_leaf=True, namespace=tree.NAMESPACE)
    result = [axis for axis, leaf in zip(found, kept, strict=True) if leaf is not None]
    for axis in result:
        if axis is not None and (isinstance(axis, bool) or not isinstance(axis, int)):
            raise TreeError(
                f"vmap's {name} holds {axis!r}.",
                where=here(),
                why="an axis is a number, or None for a value that is the same for all examples",
                fix=f"{name}=0",
            )
    return result


def _batch_size(values: list[Value], axes: list[int | None], names: list[str], given: int | None) -> int:
    sizes: dict[int, str] = {}
    for x, axis, name in zip(values, axes, names, strict=True):
        if axis is None:
            continue
        if not -x.ndim <= axis < x.ndim:
            raise ShapeError(
                f"vmap is to map dim {axis} of {name}, which is {x.type}.",
                where=here(),
                why=f"it has {x.ndim} dims",
                fix="use in_axes=None for an argument that all examples share",
            )
        sizes.setdefault(x.shape[axis], name)
    if given is not None:
        sizes.setdefault(given, "axis_size")
    if len(sizes) != 1:
        shown = ", ".join(f"{size} at {name}" for size, name in sizes.items())
        raise ShapeError(
            "vmap needs one batch size." if sizes else "vmap has nothing to map over.",
            where=here(),
            why=f"the mapped dims have sizes {shown}" if sizes else "every entry of in_axes is None",
            fix="pass arrays of equal size along the mapped dims, or in_axes=None for those that are shared",
        )
    return next(iter(sizes))


def _place(x: Value, is_batched: bool, axis: int | None, size: int) -> Any:
    if axis is None:
        if is_batched:
            raise ShapeError(
                f"vmap's out_axes is None for a result that differs between examples ({x.type} with its batch).",
                where=here(),
                why="None says that the result is the same for all examples",
                fix="out_axes=0, or reduce over the batch after vmap",
            )
        return x
    rank = x.ndim if is_batched else x.ndim + 1
    if not -rank <= axis < rank:
        raise ShapeError(
            f"vmap is to put the batch at dim {axis} of a result of rank {rank}.",
            where=here(),
            why="with its batch the result has that many dims",
            fix=f"out_axes between {-rank} and {rank - 1}",
        )
    if not is_batched:
        x = broadcast_in_dim(x, shape=(size, *x.shape), dims=tuple(range(1, x.ndim + 1)))
    return move_dim(x, 0, axis % x.ndim)
