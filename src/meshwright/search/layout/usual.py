"""Layouts that people write, as they follow from a step: its batch split, its parameters whole or split (FSDP), tensor
parallel, both of these, and sequences in parts.

Which dim of which parameter tensor parallelism splits is what costs least, when the batch is where it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

from meshwright.core.types import TensorType
from meshwright.partition.layouts import is_even, layout
from meshwright.search.layout.searching import LayoutSearch, mesh_of
from meshwright.search.layout.ways import is_splittable
from meshwright.sharding.axes import AxisRef
from meshwright.sharding.named import TensorSharding

Layouts = tuple[TensorSharding, ...]


class UsualLayout(NamedTuple):
    """Shardings of arguments that somebody might write, on a mesh, and the seconds that are estimated for them."""

    sizes: Mapping[str, int]
    given: Layouts
    seconds: float


def usual_layouts(search: LayoutSearch, meshes: Sequence[Mapping[str, int]]) -> list[UsualLayout]:
    """Usual layouts on the meshes, what is estimated to be the fastest first."""
    found: dict[Layouts, UsualLayout] = {}
    for n, sizes in enumerate(meshes):
        for given in _on(search, sizes, all_axes=n == 0):
            one = search.restricted(sizes, lambda n, s, given=given: s == given[n])  # type: ignore[misc]
            if one is not None:
                found.setdefault(given, UsualLayout(sizes, given, one.seconds))
    return sorted(found.values(), key=lambda one: one.seconds)


def split_batch(
    search: LayoutSearch, sizes: Mapping[str, int], split: bool, batch: Collection[int] | None = None
) -> Layouts:
    """The batch in parts over all axes, with parameters whole or in parts, too: along the first dim that can be.
    ``batch`` are leaves of arguments, if it is not all of the step's that may be one."""
    axes, batch = mesh_of(sizes).axes, search.step.batch if batch is None else batch
    whole = tuple(_rows(search, t, axes, sizes) if n in batch else layout(mesh_of(sizes), ((),) * t.ndim)
                  for n, t in enumerate(search.step.types))  # fmt: skip
    return fsdp(search, whole, axes, largest=False) if split else whole


def _on(search: LayoutSearch, sizes: Mapping[str, int], all_axes: bool) -> Iterator[Layouts]:
    """The usual layouts on one mesh; those in which all its axes are one axis are the same on every mesh."""
    mesh, step = mesh_of(sizes), search.step
    axes = [axis for axis in mesh.axes if axis.size > 1]
    if all_axes:
        whole = split_batch(search, sizes, False)
        yield whole
        yield split_batch(search, sizes, True)
        yield fsdp(search, whole, axes, largest=True)
        tensor = search.restricted(sizes, lambda n, s: bool(_axes(s)) == (n not in step.batch and len(s.dims) > 1))
        if tensor is not None:
            yield search.inputs(tensor)
    if len(axes) == 2:
        for data, model in (axes, axes[::-1]):
            yield from _both(search, sizes, [data], model)
    elif len(axes) == 3:  # nodes first: parameters are in parts among the chips of each
        yield from _both(search, sizes, axes[:2], axes[2])


def _both(search: LayoutSearch, sizes: Mapping[str, int], data: Sequence[AxisRef], model: AxisRef) -> Iterator[Layouts]:
    """The batch in parts along some axes, and tensor parallel along another; parameters in parts along the last of
    those of the batch."""
    step = search.step
    rows = [_rows(search, t, data, sizes) for t in step.types]

    longer = [_with(search, s, 1, [model], t) if t.ndim > 1 else s for s, t in zip(rows, step.types, strict=True)]
    for every in (False, True):  # parameter that is a matrix, or as it is estimated to be faster

        def along_model(n: int, s: TensorSharding, every: bool = every) -> bool:
            if n in step.batch:
                return s == rows[n]
            return _axes(s) == {model.name} if every and len(s.dims) > 1 else _axes(s) <= {model.name}

        tensor = search.restricted(sizes, along_model)
        if tensor is None:
            return
        given = search.inputs(tensor)
        yield given
        yield fsdp(search, given, data[-1:], largest=True)
        if any(longer[n] != rows[n] for n in step.batch):
            yield tuple(longer[n] if n in step.batch else s for n, s in enumerate(given))


def _axes(s: TensorSharding) -> set[str]:
    return {axis.name for dim in s.dims for axis in dim.axes}


def _rows(search: LayoutSearch, t: TensorType, axes: Sequence[AxisRef], sizes: Mapping[str, int]) -> TensorSharding:
    """A value with its first dim in parts over axes, if it can be."""
    whole = layout(mesh_of(sizes), ((),) * t.ndim)
    return _with(search, whole, 0, axes, t) if t.ndim else whole


def _with(search: LayoutSearch, s: TensorSharding, dim: int, axes: Sequence[AxisRef], t: TensorType) -> TensorSharding:
    """A layout with axes added to a dim, if that can be in so many parts."""
    dims = [d.axes for d in s.dims]
    if not t.shape[dim] or not is_splittable(t.shape[dim], prod(axis.size for axis in (*dims[dim], *axes))):
        return s
    dims[dim] = (*dims[dim], *axes)
    found = layout(s.mesh, tuple(dims))
    return found if search.is_for_arguments(t, found) else s


def fsdp(search: LayoutSearch, given: Layouts, axes: Sequence[AxisRef], largest: bool) -> Layouts:
    """Layouts with the parameters in parts over axes that they are whole on: along the first dim that is not split and
    can be, or along the largest of these."""
    found = []
    for n, (s, t) in enumerate(zip(given, search.step.types, strict=True)):
        dims = [d for d in range(t.ndim) if not s.dims[d].axes and _with(search, s, d, axes, t) != s]
        if n in search.step.batch or t.ndim < 2 or not dims:
            found.append(s)
        else:
            even = [d for d in dims if is_even(_with(search, s, d, axes, t), t.shape)] or dims
            found.append(_with(search, s, max(even, key=lambda d: t.shape[d]) if largest else even[0], axes, t))
    return tuple(found)
