"""Windows: where gathers read and scatters write.

Windows are blocks of an operand, all of one size, each beginning where an index vector says. The index vectors are the
last dim of ``indices``; component ``k`` counts along dim ``start_index_map[k]`` of the operand
(``scatter_dims_to_operand_dims[k]``). The result of a gather, and the updates of a scatter, have one window per index
vector: the dims of a window stand at ``offset_dims`` (``update_window_dims``), the other dims are those of ``indices``.
A window has one element, and no dim, along the collapsed (inserted) dims of the operand and along its batch dims; a
batch dim goes step by step with a dim of ``indices``.

A window that sticks out of the operand is treated by ``mode``: ``clip`` moves it in; ``drop`` (of a scatter) leaves it
out; ``fill`` (of a gather) reads NaN, the lowest integer, the highest unsigned one or True; ``zero`` reads 0, and so is
linear: the derivative of ``fill``. ``promise`` says that there is none: one that is there all the same is clipped by a
gather and dropped by a scatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn, TypedDict

import numpy as np

from meshwright.core import dtypes
from meshwright.core.op import Types
from meshwright.core.program import Params
from meshwright.core.types import Shape
from meshwright.ops.basic import inverse
from meshwright.ops.rules import bad_operands

Ints = tuple[int, ...]


class GatherParams(TypedDict):
    """The params of a gather."""

    offset_dims: Ints
    collapsed_dims: Ints
    operand_batch_dims: Ints
    indices_batch_dims: Ints
    start_index_map: Ints
    slice_sizes: Ints
    mode: str


class ScatterParams(TypedDict):
    """The params of a scatter."""

    update_window_dims: Ints
    inserted_window_dims: Ints
    operand_batch_dims: Ints
    scatter_indices_batch_dims: Ints
    scatter_dims_to_operand_dims: Ints
    mode: str
    unique: bool


class Windows(NamedTuple):
    """Where windows lie: the dimension numbers of a gather, which are also those of the scatter that undoes it."""

    window_dims: Ints
    dropped: Ints
    operand_batch: Ints
    indices_batch: Ints
    index_map: Ints

    @staticmethod
    def of_gather(params: Params) -> Windows:
        names = ("offset_dims", "collapsed_dims", "operand_batch_dims", "indices_batch_dims", "start_index_map")
        return Windows(*(params[name] for name in names))

    @staticmethod
    def of_scatter(params: Params) -> Windows:
        return Windows(
            params["update_window_dims"],
            params["inserted_window_dims"],
            params["operand_batch_dims"],
            params["scatter_indices_batch_dims"],
            params["scatter_dims_to_operand_dims"],
        )

    def gather(self, slice_sizes: Ints, mode: str) -> dict[str, Any]:
        """The params of a gather of these windows."""
        return {
            "offset_dims": self.window_dims,
            "collapsed_dims": self.dropped,
            "operand_batch_dims": self.operand_batch,
            "indices_batch_dims": self.indices_batch,
            "start_index_map": self.index_map,
            "slice_sizes": slice_sizes,
            "mode": mode,
        }

    def scatter(self, mode: str, unique: bool) -> dict[str, Any]:
        """The params of a scatter into these windows."""
        return {
            "update_window_dims": self.window_dims,
            "inserted_window_dims": self.dropped,
            "operand_batch_dims": self.operand_batch,
            "scatter_indices_batch_dims": self.indices_batch,
            "scatter_dims_to_operand_dims": self.index_map,
            "mode": mode,
            "unique": unique,
        }

    def along(self, rank: int) -> list[int | None]:
        """Per dim of the operand, the dim of the result (or updates) that runs along it."""
        kept = iter(self.window_dims)
        return [None if d in self.dropped or d in self.operand_batch else next(kept) for d in range(rank)]

    def sizes(self, rank: int, updates: Shape) -> Ints:
        """The size of a window along each dim of the operand, from the shape of the updates."""
        return tuple(1 if u is None else updates[u] for u in self.along(rank))

    def in_batch_of_operands(self) -> Windows:
        """The windows when operand and result have a new dim 0, along which a window is whole."""
        return Windows(
            (0, *_later(self.window_dims)),
            _later(self.dropped),
            _later(self.operand_batch),
            self.indices_batch,
            _later(self.index_map),
        )

    def in_batch_of_indices(self) -> Windows:
        """The windows when indices and result have a new dim 0."""
        return Windows(
            _later(self.window_dims), self.dropped, self.operand_batch, _later(self.indices_batch), self.index_map
        )

    def in_batch(self) -> Windows:
        """The windows when operand, indices and result have a new dim 0, walked together."""
        return Windows(
            _later(self.window_dims),
            _later(self.dropped),
            (0, *_later(self.operand_batch)),
            (0, *_later(self.indices_batch)),
            _later(self.index_map),
        )


def _later(dims: Ints) -> Ints:
    return tuple(d + 1 for d in dims)


def check_windows(op: str, types: Types, windows: Windows, rank: int, mode: str, modes: Sequence[str]) -> None:
    """Refuse dimension numbers that do not fit an operand, indices, and a result or updates of rank ``rank``."""
    x, indices = types[0], types[1]

    def refuse(why: str, fix: str) -> NoReturn:
        raise bad_operands(op, types, why, fix)

    if not dtypes.is_integer(indices.dtype) or not indices.ndim:
        refuse("indices are integers, with the index vectors as their last dim", "indices[..., None].astype('int32')")
    if mode not in modes:
        refuse(f"there is no mode {mode!r}", f"mode={' or '.join(map(repr, modes))}")
    for name, dims, limit in (
        ("window", windows.window_dims, rank),
        ("dropped", windows.dropped, x.ndim),
        ("operand batch", windows.operand_batch, x.ndim),
    ):
        if list(dims) != sorted(set(dims)) or any(not 0 <= d < limit for d in dims):
            refuse(f"the {name} dims {dims} are not increasing dims below {limit}", f"dims={tuple(sorted(set(dims)))}")
    for name, dims, limit in (
        ("indices batch", windows.indices_batch, indices.ndim - 1),
        ("indexed", windows.index_map, x.ndim),
    ):
        if len(set(dims)) != len(dims) or any(not 0 <= d < limit for d in dims):
            refuse(f"the {name} dims {dims} are not distinct dims below {limit}", "name each dim once")
    if len(windows.index_map) != indices.shape[-1]:
        refuse(
            f"index vectors of {indices.shape[-1]} components are to index the dims {windows.index_map}",
            "give one operand dim per component: the last dim of indices",
        )
    if set(windows.operand_batch) & {*windows.dropped, *windows.index_map}:
        refuse("a batch dim is also dropped or indexed", "name a batch dim of the operand nowhere else")
    if [x.shape[d] for d in windows.operand_batch] != [indices.shape[d] for d in windows.indices_batch]:
        refuse(
            f"batch dims {windows.operand_batch} of the operand and {windows.indices_batch} of indices differ in size",
            "pair batch dims of equal size",
        )
    if len(windows.window_dims) != x.ndim - len(windows.dropped) - len(windows.operand_batch):
        refuse(
            f"{x.ndim - len(windows.dropped) - len(windows.operand_batch)} dims of the operand are neither dropped nor "
            f"batch dims, but windows have the dims {windows.window_dims}",
            "name one window dim for each of them",
        )


class WindowPlan(NamedTuple):
    """How windows are found in arrays of given shapes."""

    batch: Shape  # of the index vectors
    dims: Ints  # the dims of the operand along which windows begin somewhere
    sizes: Ints  # of a window along ``dims``
    starts: tuple[tuple[str, int, int], ...]  # per dim: ("index", component, last start), ("batch", dim, size), …
    checked: tuple[tuple[int, int], ...]  # (component, last start) for every component
    order: Ints  # dims of the result or updates: those of the index vectors, then those of a window
    back: Ints  # the permutation that undoes ``order``
    squeeze: tuple[int | slice, ...]  # windows with all the operand's dims -> without the dropped ones
    expand: tuple[slice | None, ...]  # and back
    empty: bool  # whether the operand has no window at all


@lru_cache(maxsize=4096)
def plan_windows(windows: Windows, x: Shape, indices: Shape, sizes: Ints) -> WindowPlan:
    component = {d: k for k, d in enumerate(windows.index_map)}
    batch_of = dict(zip(windows.operand_batch, windows.indices_batch, strict=True))
    dims, starts = [], []
    for d, (size, n) in enumerate(zip(x, sizes, strict=True)):
        if d in batch_of:
            starts.append(("batch", batch_of[d], size))
        elif size == n:
            continue  # a whole dim: there is one place to begin
        elif d in component:
            starts.append(("index", component[d], size - n))
        else:
            starts.append(("first", 0, 0))
        dims.append(d)
    batch = indices[:-1]
    along = windows.along(len(x))
    rank = len(batch) + len(windows.window_dims)
    order = (*(r for r in range(rank) if r not in windows.window_dims), *windows.window_dims)
    return WindowPlan(
        batch,
        tuple(dims),
        tuple(sizes[d] for d in dims),
        tuple(starts),
        tuple((k, x[d] - sizes[d]) for d, k in component.items()),
        order,
        inverse(order),
        (slice(None),) * len(batch) + tuple(0 if u is None else slice(None) for u in along),
        (slice(None),) * len(batch) + tuple(None if u is None else slice(None) for u in along),
        any(n > size for n, size in zip(sizes, x, strict=True)),
    )


@lru_cache(maxsize=64)
def _highest(dtype: dtypes.DType) -> int:
    return int(np.iinfo(dtype).max)


def window_starts(xp: Any, plan: WindowPlan, indices: Any) -> list[Any]:
    """Where windows begin along each of the plan's dims, moved into bounds, and together of the shape ``batch``."""
    found = []
    rank = len(plan.batch)
    highest = _highest(indices.dtype)
    for source, k, last in plan.starts:
        if source == "index":
            found.append(xp.minimum(xp.maximum(indices[..., k], 0), max(0, min(last, highest))))
        elif source == "batch":
            shape = [1] * rank
            shape[k] = last
            found.append(xp.reshape(xp.arange(last), tuple(shape)))
        else:
            found.append(xp.reshape(xp.arange(1), (1,) * rank))
    if found and all(source != "index" for source, _, _ in plan.starts):
        found[0] = xp.broadcast_to(found[0], plan.batch)
    return found


def windows_inside(xp: Any, plan: WindowPlan, indices: Any) -> Any:
    """Which windows lie within the operand; None if there is nothing to check."""
    highest = _highest(indices.dtype)
    valid: Any = None
    for k, last in plan.checked:
        index = indices[..., k]
        inside = xp.logical_and(index >= 0, index <= min(last, highest))
        valid = inside if valid is None else xp.logical_and(valid, inside)
    return valid
