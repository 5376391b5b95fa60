"""Collectives by the names of ``jax.lax``: what the devices of a mesh compute together inside a ``shard_map``.

A value that is the same on all devices along an axis is never sent along it: its sum is a multiple of it, its gather
copies of it. Gathers and scatters are tiled, as in the type table of ``ops.collective``: they join or cut an existing
dim. With ``tiled=False`` they add or remove a dim instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from operator import index
from typing import Any, TypeVar

from meshwright.api import direct
from meshwright.api.axis_names import resolve
from meshwright.api.cotangents import refuse_summed
from meshwright.core import dtypes
from meshwright.core.source import here
from meshwright.core.trace import Value, is_number
from meshwright.errors import MeshError, MeshwrightError, ShapeError
from meshwright.lax.groups import (
    exchange_in_group,
    gather_in_group,
    in_group,
    mean_in_group,
    scatter_in_group,
    sum_in_group,
)
from meshwright.lax.over_axes import AxisName, absent_axes, check_untiled, dim_of, each, gather, strict, varying
from meshwright.ops import collective as ops
from meshwright.ops.basic import convert, move_dim, mul, reshape
from meshwright.ops.elementwise import div
from meshwright.ops.reduction import reduce_max, reduce_min

T = TypeVar("T")

# What to write instead of a sum of what is summed already.
_NO_PSUM = "leave the psum out; the identity whose transpose is a psum is lax.pbroadcast(x, {names!r})"
_SCATTER = "lax.pscatter(x, {names!r}), which sums nothing"


def psum(x: T, axis_name: AxisName | None = None, *, axis: AxisName | None = None, axis_index_groups: Any = None) -> T:
    """The sum over the devices along one axis or several; the same on all of them. ``axis`` is ``axis_name``.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mesh = mw.make_mesh((4,), ("i",))
    >>> f = mw.shard_map(lambda x: psum(x, "i"), mesh=mesh, in_specs=mw.P("i"), out_specs=mw.P())
    >>> f(mnp.arange(8.0)).tolist()
    [12.0, 16.0]
    """
    if axis is not None and axis_name is not None:
        raise MeshError(
            "psum is given axis_name= and axis=.",
            where=here(),
            why="they are two names of one argument",
            fix=f"lax.psum(x, {axis_name!r})",
        )
    axis_name = axis if axis_name is None else axis_name
    assert axis_name is not None
    number: Any = x
    if axis_index_groups is not None:
        return each("psum", lambda x: sum_in_group("psum", x, axis_name, axis_index_groups)[0], x)
    if direct.state.place is not None and is_number(x):  # how kernels ask for the number of devices
        return number * direct.state.place.axis_size(axis_name)
    axes, sizes = resolve("psum", axis_name, ordered=False)
    if is_number(x) and not strict():
        return number * prod(sizes)

    def one(x: Value) -> Any:
        if x.dtype == dtypes.BOOL:
            x = convert(x, dtype=dtypes.INT32, weak=False)
        absent = [] if strict() else absent_axes(x, axes)
        present = tuple(axis for n, axis in enumerate(axes) if n not in absent)
        if absent:
            refuse_summed("psum", x, [axes[n] for n in absent], prod(sizes[n] for n in absent), _NO_PSUM)
        total = ops.psum(x, axes=present) if present else x
        return mul(total, prod(sizes[n] for n in absent)) if absent else total

    return each("psum", one, x)


def pmean(x: T, axis_name: AxisName, *, axis_index_groups: Any = None) -> T:
    """The mean over the devices along one axis or several.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mesh = mw.make_mesh((4,), ("i",))
    >>> f = mw.shard_map(lambda x: pmean(x, "i"), mesh=mesh, in_specs=mw.P("i"), out_specs=mw.P())
    >>> f(mnp.arange(8.0)).tolist()
    [3.0, 4.0]
    """
    if axis_index_groups is not None:
        return each("pmean", lambda x: mean_in_group(x, axis_name, axis_index_groups), x)
    axes, sizes = resolve("pmean", axis_name, ordered=False)

    def one(x: Value) -> Any:
        if not dtypes.is_inexact(x.dtype):
            x = convert(x, dtype=dtypes.default_float(), weak=False)
        if strict():
            ops.need_varying("pmean", x.type, axes)
        present = [n for n in range(len(axes)) if n not in absent_axes(x, axes)]
        if not present:
            return x
        return div(ops.psum(x, axes=tuple(axes[n] for n in present)), prod(sizes[n] for n in present))

    return each("pmean", one, x)


def _extreme(name: str, op: Any, x: Any, axis_name: AxisName, groups: Any) -> Any:
    if groups is not None:
        reduce = reduce_max if name == "pmax" else reduce_min
        return each(name, lambda x: reduce(in_group(name, x, axis_name, groups, equal=False)[0], axes=(0,)), x)
    axes, _ = resolve(name, axis_name, ordered=False)

    def one(x: Value) -> Any:
        present = axes if strict() else tuple(axis for axis in axes if axis in x.type.varying)
        return op(x, axes=present) if present else x

    return each(name, one, x)


def pmax(x: T, axis_name: AxisName, *, axis_index_groups: Any = None) -> T:
    """The largest over the devices along one axis or several.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mesh = mw.make_mesh((4,), ("i",))
    >>> f = mw.shard_map(lambda x: pmax(x, "i"), mesh=mesh, in_specs=mw.P("i"), out_specs=mw.P())
    >>> f(mnp.arange(8.0)).tolist()
    [6.0, 7.0]
    """
    return _extreme("pmax", ops.pmax, x, axis_name, axis_index_groups)


def pmin(x: T, axis_name: AxisName, *, axis_index_groups: Any = None) -> T:
    """The smallest over the devices along one axis or several.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mesh = mw.make_mesh((4,), ("i",))
    >>> f = mw.shard_map(lambda x: pmin(x, "i"), mesh=mesh, in_specs=mw.P("i"), out_specs=mw.P())
    >>> f(mnp.arange(8.0)).tolist()
    [0.0, 1.0]
    """
    return _extreme("pmin", ops.pmin, x, axis_name, axis_index_groups)


def pbroadcast(x: Any, axis_name: AxisName) -> Any:
    """A value that is the same on all devices as one that may differ: nothing is done, and the transpose is a psum.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mesh = mw.make_mesh((4,), ("i",))
    >>> f = mw.shard_map(lambda x: pbroadcast(x, "i"), mesh=mesh, in_specs=mw.P(), out_specs=mw.P("i"))
    >>> f(mnp.ones(1)).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    axes, _ = resolve("pbroadcast", axis_name, ordered=False)
    if strict():
        return each("pbroadcast", lambda x: ops.pbroadcast(x, axes=axes), x)
    return each("pbroadcast", lambda x: varying(x, axes), x)


pvary = pbroadcast


def pcast(x: T, axis_name: AxisName, *, to: str) -> T:
    """``pbroadcast`` by its name in JAX: ``to`` is ``"varying"``.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mesh = mw.make_mesh((4,), ("i",))
    >>> f = mw.shard_map(lambda x: pcast(x, "i", to="varying"), mesh=mesh, in_specs=mw.P(), out_specs=mw.P("i"))
    >>> f(mnp.ones(1)).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    if to != "varying":
        raise MeshwrightError(
            f"pcast is given to={to!r}.",
            where=here(),
            why="it makes values that are the same on all devices into ones that vary",
            fix=f"lax.pcast(x, {axis_name!r}, to='varying'); a partial sum leaves by out_specs=mw.P(sum='i')",
        )
    return pbroadcast(x, axis_name)


def all_gather(x: T, axis_name: AxisName, *, axis_index_groups: Any = None, axis: int = 0, tiled: bool = True) -> T:
    """The blocks of all devices along an axis, joined along a dim; typed as varying, so that its transpose is a
    ``psum_scatter``.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mesh = mw.make_mesh((2,), ("i",))
    >>> f = mw.shard_map(lambda x: all_gather(x, "i"), mesh=mesh, in_specs=mw.P("i"), out_specs=mw.P("i"))
    >>> f(mnp.arange(2.0)).tolist()
    [0.0, 1.0, 0.0, 1.0]
    """
    if axis_index_groups is not None:
        return each("all_gather", lambda x: gather_in_group(x, axis_name, axis_index_groups, axis, tiled), x)
    return gather("all_gather", ops.all_gather, x, axis_name, axis, tiled)


def all_gather_invariant(x: Any, axis_name: AxisName, *, axis: int = 0, tiled: bool = True) -> Any:
    """As ``all_gather``, typed as the same on all devices: its transpose is a ``pscatter``, which sends nothing.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mesh = mw.make_mesh((2,), ("i",))
    >>> f = mw.shard_map(lambda x: all_gather_invariant(x, "i"), mesh=mesh, in_specs=mw.P("i"), out_specs=mw.P())
    >>> f(mnp.arange(2.0)).tolist()
    [0.0, 1.0]
    """
    return gather("all_gather_invariant", ops.all_gather_invariant, x, axis_name, axis, tiled)


def psum_scatter(
    x: T,
    axis_name: AxisName,
    *,
    scatter_dimension: int = 0,
    axis_index_groups: Any = None,
    axis: int | None = None,
    tiled: bool = True,
) -> T:
    """The sum over the devices along an axis, of which each keeps a block along a dim.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mesh = mw.make_mesh((2,), ("i",))
    >>> f = mw.shard_map(lambda x: psum_scatter(x, "i"), mesh=mesh, in_specs=mw.P("i"), out_specs=mw.P("i"))
    >>> f(mnp.arange(4.0)).tolist()
    [2.0, 4.0]
    """
    if axis_index_groups is not None:
        dim_ = scatter_dimension if axis is None else axis
        return each("psum_scatter", lambda x: scatter_in_group(x, axis_name, axis_index_groups, dim_, tiled), x)
    axes, sizes = resolve("psum_scatter", axis_name)
    count = prod(sizes)

    def one(x: Value) -> Any:
        if x.dtype == dtypes.BOOL:
            x = convert(x, dtype=dtypes.INT32, weak=False)
        dim = dim_of("psum_scatter", scatter_dimension if axis is None else axis, x.ndim)
        check_untiled("psum_scatter", x, dim, count, tiled)
        absent = [] if strict() else absent_axes(x, axes)
        if absent:
            refuse_summed("psum_scatter", x, [axes[n] for n in absent], prod(sizes[n] for n in absent), _SCATTER)
        if not strict() and len(absent) == len(axes):
            x = mul(ops.pscatter(x, axes=axes, sizes=sizes, dim=dim), count)
        else:
            x = ops.psum_scatter(varying(x, axes), axes=axes, sizes=sizes, dim=dim)
        return x if tiled else reshape(x, shape=(*x.shape[:dim], *x.shape[dim + 1 :]))

    return each("psum_scatter", one, x)


def pscatter(x: Any, axis_name: AxisName, *, axis: int = 0, tiled: bool = True) -> Any:
    """Of a value that all devices hold, each device's block along a dim; nothing is sent.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mesh = mw.make_mesh((2,), ("i",))
    >>> f = mw.shard_map(lambda x: pscatter(x, "i"), mesh=mesh, in_specs=mw.P(), out_specs=mw.P("i"))
    >>> f(mnp.arange(4.0)).tolist()
    [0.0, 1.0, 2.0, 3.0]
    """
    axes, sizes = resolve("pscatter", axis_name)

    def one(x: Value) -> Any:
        dim = dim_of("pscatter", axis, x.ndim)
        check_untiled("pscatter", x, dim, prod(sizes), tiled)
        x = ops.pscatter(x, axes=axes, sizes=sizes, dim=dim)
        return x if tiled else reshape(x, shape=(*x.shape[:dim], *x.shape[dim + 1 :]))

    return each("pscatter", one, x)


def all_to_all(
    x: T, axis_name: AxisName, split_axis: int, concat_axis: int, *, axis_index_groups: Any = None, tiled: bool = True
) -> T:
    """Cut the dim ``split_axis``, send each device along the axis its part, join what comes along ``concat_axis``.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mesh = mw.make_mesh((2,), ("i",))
    >>> f = mw.shard_map(lambda x: all_to_all(x, "i", 1, 0), mesh=mesh, in_specs=mw.P("i"), out_specs=mw.P(None, "i"))
    >>> f(mnp.arange(4.0).reshape(2, 2)).tolist()
    [[0.0, 1.0], [2.0, 3.0]]
    """
    if axis_index_groups is not None:
        dims = split_axis, concat_axis
        return each("all_to_all", lambda x: exchange_in_group(x, axis_name, axis_index_groups, *dims, tiled), x)
    axes, sizes = resolve("all_to_all", axis_name, after=", 0, 0")
    count = prod(sizes)

    def one(x: Value) -> Any:
        split, concat = dim_of("all_to_all", split_axis, x.ndim), dim_of("all_to_all", concat_axis, x.ndim)
        check_untiled("all_to_all", x, split, count, tiled)
        target = concat if tiled else split
        if not strict() and len(absent_axes(x, axes)) == len(axes):  # everybody has every part already
            x = ops.repeated(ops.pscatter(x, axes=axes, sizes=sizes, dim=split), target, count)
        else:
            x = ops.all_to_all(varying(x, axes), axes=axes, sizes=sizes, split=split, concat=target)
        return x if tiled else move_dim(x, split, concat)

    return each("all_to_all", one, x)


def ppermute(x: T, axis_name: AxisName, perm: Iterable[tuple[int, int]]) -> T:
    """Send the values of devices to others: ``perm`` has pairs (source, target); a device that gets nothing has zeros.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mesh = mw.make_mesh((4,), ("i",))
    >>> right = [(i, (i + 1) % 4) for i in range(4)]
    >>> f = mw.shard_map(lambda x: ppermute(x, "i", right), mesh=mesh, in_specs=mw.P("i"), out_specs=mw.P("i"))
    >>> f(mnp.arange(4.0)).tolist()
    [3.0, 0.0, 1.0, 2.0]
    """
    axes, sizes = resolve("ppermute", axis_name, after=", perm")
    try:
        pairs = tuple(sorted((index(source), index(target)) for source, target in perm))
    except (TypeError, ValueError):
        raise ShapeError(
            f"ppermute is given {perm!r} as its permutation.",
            where=here(),
            why="it is a list of pairs (source, target) of positions along the axis",
            fix="perm=[(i, (i + 1) % n) for i in range(n)]",
        ) from None

    def one(x: Value) -> Any:
        known = not strict() and len(absent_axes(x, axes)) == len(axes)
        if known and {t for _, t in pairs} == set(range(prod(sizes))) == {s for s, _ in pairs}:
            return x  # everybody gets what everybody has
        return ops.ppermute(varying(x, axes), axes=axes, sizes=sizes, permutation=pairs)

    return each("ppermute", one, x)


def axis_size(axis_name: AxisName) -> int:
    """The number of devices along an axis, or along several together.

    >>> import meshwright as mw
    >>> mesh = mw.make_mesh((4,), ("i",))
    >>> sizes = []
    >>> f = mw.shard_map(lambda x: (sizes.append(axis_size("i")), x)[1], mesh=mesh, in_specs=mw.P(), out_specs=mw.P())
    >>> _ = f(1.0)
    >>> sizes
    [4]
    """
    if direct.state.place is not None:
        return direct.state.place.axis_size(axis_name)
    return prod(resolve("axis_size", axis_name, ordered=False, before="")[1])
