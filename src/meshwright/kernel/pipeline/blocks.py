"""How operands are cut into blocks: one block of each per grid step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from meshwright.core.dtypes import DType
from meshwright.core.source import Source, here
from meshwright.kernel.language.indexing import Slice, as_int
from meshwright.kernel.language.refs import Ref
from meshwright.kernel.language.spaces import MemorySpace
from meshwright.kernel.run.faults import AlignmentError, BoundsError, KernelError

IndexMap = Callable[..., Any]


class Blocked(NamedTuple):
    """A dim cut into blocks of a size; the index counts blocks."""

    block_size: int


class Squeezed(NamedTuple):
    """A dim of which a block has one element, and which the kernel does not see."""


squeezed = Squeezed()


class Element(NamedTuple):
    """A dim of which a block has some elements; the index counts elements, over ``padding`` before and after."""

    block_size: int
    padding: tuple[int, int] = (0, 0)


class BoundedSlice(NamedTuple):
    """A dim of which a block has at most so many elements; the index is ``pl.ds(start, size)``."""

    block_size: int


class Indirect(NamedTuple):
    """A dim of which a block has the elements that an array names: of inputs a gather, of outputs a scatter."""

    block_size: int


BlockDim = Blocked | Squeezed | Element | BoundedSlice | Indirect


class RevisitMode(Enum):
    """When a grid may come back to a block of an output: in the next step, or at any time, when it is fetched again."""

    IMMEDIATE = "immediate"
    ANY = "any"


@dataclass(frozen=True)
class Buffered:
    """How a block is fetched ahead: into how many buffers, and whether beyond the next step.

    The blocks of the first ``prefetched_count`` steps of an ``emit_pipeline`` are there already, in memory that its
    ``allocations`` name; with lookahead, as many blocks.
    """

    buffer_count: int = 2
    use_lookahead: bool = False
    revisit: RevisitMode | None = None
    prefetched_count: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.prefetched_count <= max(self.buffer_count, 0):
            raise KernelError(
                f"Of {self.buffer_count} buffers {self.prefetched_count} are said to be full before a pipeline starts.",
                where=here(),
                why="each of them holds a block",
                fix=f"pl.Buffered({max(self.prefetched_count, 2)}, prefetched_count={max(self.prefetched_count, 1)})",
            )
        if self.buffer_count < 1:
            raise KernelError(
                f"A block is to be fetched into {self.buffer_count} buffers.",
                why="the body works on at least one",
                fix="pl.Buffered(2)",
            )


class BlockSpec:
    """Which block of an operand a grid step works on: ``BlockSpec(block_shape, index_map)``, in either order.

    Without a block shape it is the whole operand. ``memory_space=ANY`` leaves the operand where it is.

    >>> BlockSpec((128, 128), lambda i, j: (i, j)).block_shape
    (128, 128)
    >>> BlockSpec(lambda i, j: (i, j), (128, 128)).block_shape
    (128, 128)
    """

    __slots__ = ("block_shape", "index_map", "indexing_mode", "memory_space", "pipeline_mode")

    def __init__(
        self,
        block_shape: Sequence[Any] | IndexMap | None = None,
        index_map: IndexMap | Sequence[Any] | None = None,
        pipeline_mode: Buffered | None = None,
        *,
        memory_space: MemorySpace | None = None,
        indexing_mode: Any = None,
    ) -> None:
        if callable(block_shape) or (index_map is not None and not callable(index_map)):
            block_shape, index_map = index_map, block_shape  # type: ignore[assignment]
        self.block_shape: tuple[Any, ...] | None = None if block_shape is None else tuple(block_shape)  # type: ignore[arg-type]
        self.index_map: IndexMap | None = index_map  # type: ignore[assignment]
        self.memory_space = memory_space
        self.pipeline_mode = pipeline_mode
        self.indexing_mode = indexing_mode
        if index_map is not None and not callable(index_map):
            raise KernelError(
                "A BlockSpec is given two shapes.",
                where=here(),
                why="it takes a block shape and a function from grid indices to block indices",
                fix="pl.BlockSpec((128, 128), lambda i, j: (i, j))",
            )

    @property
    def revisits(self) -> bool:
        """Whether a grid may come back to a block at any time."""
        return self.pipeline_mode is not None and self.pipeline_mode.revisit is RevisitMode.ANY

    def replace(self, **changes: Any) -> BlockSpec:
        """The same blocks with some things otherwise: ``replace(pipeline_mode=pl.Buffered(3))``."""
        names = ("block_shape", "index_map", "pipeline_mode", "memory_space", "indexing_mode")
        return BlockSpec(**{name: getattr(self, name) for name in names} | changes)

    def __repr__(self) -> str:
        space = f", memory_space={self.memory_space.name}" if self.memory_space else ""
        return f"BlockSpec({self.block_shape}{space})"


no_block_spec = BlockSpec()


class Box(NamedTuple):
    """The part of an operand that a block is: starts and stops per dim, inside the operand or not."""

    starts: tuple[int, ...]
    stops: tuple[int, ...]


Cut = tuple[slice, ...]


class OperandBlocks:
    """The blocks of one operand: a spec checked against the operand's shape."""

    __slots__ = ("cut", "dims", "gathers", "index_map", "kept", "label", "seen", "shape", "sizes", "whole")

    def __init__(self, spec: BlockSpec, shape: tuple[int, ...], label: str) -> None:
        self.shape = shape
        self.label = label
        self.index_map = spec.index_map
        dims = spec.block_shape if spec.block_shape is not None else shape
        if len(dims) != len(shape):
            raise KernelError(
                f"The block shape of {label} has {len(dims)} dims, the operand {len(shape)}.",
                where=self.where(),
                why=f"the operand has shape {shape}",
                fix="one size per dim; None for a dim of one element that the kernel does not see",
            )
        self.dims = tuple(_mode(dim, n, spec.indexing_mode) for dim, n in zip(dims, shape, strict=True))
        self.sizes = tuple(1 if isinstance(dim, Squeezed) else dim.block_size for dim in self.dims)
        if any(size < 1 <= n for size, n in zip(self.sizes, shape, strict=True)):
            raise KernelError(
                f"A block of {label} has shape {self.sizes}.",
                where=self.where(),
                why="it has at least one element along each dim",
                fix="a positive size per dim; None for a dim of one element that the kernel does not see",
            )
        self.kept = tuple(0 if isinstance(dim, Squeezed) else slice(None) for dim in self.dims)
        self.seen = tuple(n for n, dim in zip(self.sizes, self.dims, strict=True) if not isinstance(dim, Squeezed))
        self.cut: dict[tuple[Any, ...], tuple[Cut, Cut | None]] = {}
        self.gathers = any(isinstance(dim, Indirect) for dim in self.dims)  # whether a block is no box
        self.whole = spec.index_map is None and self.sizes == shape and not self.gathers

    @property
    def fit(self) -> bool:
        """Whether every block lies inside the operand and has the block's shape."""
        return all(
            isinstance(dim, Squeezed)
            or (isinstance(dim, Blocked) and n % max(dim.block_size, 1) == 0)
            or (isinstance(dim, Element) and dim.padding == (0, 0))
            for dim, n in zip(self.dims, self.shape, strict=True)
        )

    def index(self, step: tuple[Any, ...]) -> tuple[Any, ...]:
        """The block index of a grid step, as Python numbers: equal ones are the same block."""
        if self.index_map is None:
            return tuple(tuple(range(dim.block_size)) if isinstance(dim, Indirect) else 0 for dim in self.dims)
        try:
            found = self.index_map(*step)
        except TypeError:
            self._require_arity(self.index_map, len(step))
            raise
        values = found if isinstance(found, tuple | list) else (found,)
        if len(values) != len(self.dims):
            raise KernelError(
                f"The index map of {self.label} returns {len(values)} indices.",
                where=self.where(),
                why=f"the operand has {len(self.dims)} dims",
                fix="lambda i, j: (i, j), one index per dim of the operand",
            )
        try:
            if self.gathers:
                both = zip(values, self.dims, strict=True)
                return tuple([self._named(v, dim) if isinstance(dim, Indirect) else _at(v) for v, dim in both])
            return tuple([_at(v) for v in values])
        except BoundsError:
            raise BoundsError(
                f"The index map of {self.label} returns {found!r}.",
                where=self.where(),
                why="indices of blocks are integers",
                fix="integers, or pl.ds(start, size) for a dim that is a pl.BoundedSlice; i // 2 divides integers",
            ) from None

    def _named(self, value: Any, dim: Indirect) -> tuple[int, ...]:
        """The elements of a dim that an index map names: by an array, a ref of one, or a list."""
        found = np.asarray(value[...] if isinstance(value, Ref) else value)
        if found.shape != (dim.block_size,) or found.dtype.kind not in "iu":
            raise KernelError(
                f"The index map of {self.label} returns {found.dtype.name}{list(found.shape)} for a dim that is {dim}.",
                where=self.where(),
                why="each element of the block is named by an integer",
                fix=f"an array of {dim.block_size} integers: rows[pl.ds(i * {dim.block_size}, {dim.block_size})]",
            )
        return tuple(found.tolist())

    def box(self, index: tuple[Any, ...]) -> Box:
        """Where a block is, or one of its rows."""
        starts, stops = [], []
        for n, (at, dim, size) in enumerate(zip(index, self.dims, self.sizes, strict=True)):
            if isinstance(dim, BoundedSlice):
                start, length = at if isinstance(at, tuple) else (at, size)
                if length > size:
                    raise self._outside(index, n, f"the slice of {length} is longer than the block's {size}")
                stop = start + length
            elif isinstance(dim, Indirect):
                start, stop = at, at + 1
                if not 0 <= at < self.shape[n]:
                    raise self._outside(index, n, f"element {at} is not one of {self.shape[n]}")
            elif isinstance(dim, Element):
                start = at - dim.padding[0]
                stop = start + size
                if start < -dim.padding[0] or stop > self.shape[n] + dim.padding[1]:
                    raise self._outside(index, n, f"elements {start} to {stop} leave {self.shape[n]} and its padding")
            else:
                start = at * size
                stop = start + size
                if start < 0 or start >= max(self.shape[n], 1):
                    raise self._outside(index, n, f"it starts at {start} of {self.shape[n]}")
            starts.append(start)
            stops.append(stop)
        return Box(tuple(starts), tuple(stops))

    def parts(self, index: tuple[Any, ...]) -> tuple[Cut, Cut | None]:
        """What of the operand a block is, and what of the block that is: None for all of it."""
        found = self.cut.get(index)
        if found is not None:
            return found
        box = self.box(index)
        inner, outer = [], []
        whole = True
        for start, stop, size, n in zip(box.starts, box.stops, self.sizes, self.shape, strict=True):
            first = max(start, 0)
            end = max(min(stop, n), first)
            outer.append(slice(first, end))
            inner.append(slice(first - start, end - start))
            whole = whole and end - first == size
        found = (tuple(outer), None if whole else tuple(inner))
        if len(self.cut) < 4096:
            self.cut[index] = found
        return found

    def rows(self, index: tuple[Any, ...]) -> Iterator[tuple[Cut, Cut]]:
        """The boxes that make a block with named elements: what of the operand each is, and what of the block."""
        named = [isinstance(dim, Indirect) for dim in self.dims]
        choices = [enumerate(at) if found else ((0, at),) for at, found in zip(index, named, strict=True)]
        for chosen in product(*choices):
            outer, inner = self.parts(tuple(at for _, at in chosen))
            inside = list(inner or (slice(0, n) for n in self.sizes))
            for dim, (n, _) in enumerate(chosen):
                if named[dim]:
                    inside[dim] = slice(n, n + 1)
            yield outer, tuple(inside)

    def require_tiles(self, dtype: DType) -> None:
        """Refuse blocks whose last two dims are neither whole tiles nor all of the operand."""
        rows = 8 * max(4 // dtype.itemsize, 1)  # narrow numbers share the 32 bits of a lane
        for dim, tile in ((-1, 128), (-2, rows)):
            if -dim > len(self.sizes) or self.sizes[dim] % tile == 0 or self.sizes[dim] == self.shape[dim]:
                continue
            raise AlignmentError(
                f"A block of {self.label} has {self.sizes[dim]} elements along dim {len(self.sizes) + dim}.",
                where=self.where(),
                why=f"memory is made of tiles of {rows} x 128 for {dtype.name}, and the operand has {self.shape[dim]}",
                fix=f"a multiple of {tile}, or the whole dim: {self.shape[dim]}",
            )

    def _outside(self, index: tuple[Any, ...], dim: int, why: str) -> BoundsError:
        return BoundsError(
            f"Block {index} of {self.label} is outside it, along dim {dim}.",
            where=self.where(),
            why=f"{why}; the operand has shape {self.shape}, its blocks {self.sizes}",
            fix="a smaller grid, or another index map",
        )

    def where(self) -> str:
        """The line of the index map: blocks come and go while no line of the user's is run."""
        code = getattr(self.index_map, "__code__", None)
        return Source(code.co_filename, code.co_firstlineno).show() if code is not None else here()

    def _require_arity(self, index_map: IndexMap, given: int) -> None:
        """Refuse an index map that does not take as many indices as it is given."""
        try:
            inspect.signature(index_map).bind(*range(given))
        except (TypeError, ValueError):  # the latter, of a partial whose own arguments do not fit
            names = ", ".join("ijklmn"[:given] if given <= 6 else (f"i{n}" for n in range(given)))
            raise KernelError(
                f"The index map of {self.label} cannot take {given} {'index' if given == 1 else 'indices'}.",
                where=self.where(),
                why="it is given one index per grid axis, then the refs of scalars that were prefetched",
                fix=f"lambda {names}: (…)",
            ) from None


def _at(value: Any) -> Any:
    """What an index map says of a dim, in Python's numbers."""
    return (as_int(value.start), as_int(value.size)) if value.__class__ is Slice else as_int(value)


@lru_cache(maxsize=512)
def blocks_of(spec: BlockSpec, shape: tuple[int, ...], label: str) -> OperandBlocks:
    """The blocks of an operand; the same for all devices."""
    return OperandBlocks(spec, shape, label)


def _mode(dim: Any, size: int, indexing_mode: Any) -> BlockDim:
    if dim is None:
        return Squeezed()
    if isinstance(dim, Blocked | Squeezed | Element | BoundedSlice | Indirect):
        return dim
    if indexing_mode is not None and not isinstance(indexing_mode, Blocked | type):
        return Element(as_int(dim))
    return Blocked(as_int(dim))


@dataclass
class GridSpec:
    """The grid and the blocks of a call in one object."""

    grid: Any = ()
    in_specs: Any = None
    out_specs: Any = None
    scratch_shapes: Any = ()
    num_scalar_prefetch: int = field(default=0, kw_only=True)


class PrefetchScalarGridSpec(GridSpec):
    """A grid whose first operands are numbers in SMEM, there before the grid starts; index maps see them."""

    def __init__(
        self,
        num_scalar_prefetch: int,
        grid: Any = (),
        in_specs: Any = None,
        out_specs: Any = None,
        scratch_shapes: Any = (),
    ) -> None:
        super().__init__(grid, in_specs, out_specs, scratch_shapes, num_scalar_prefetch=num_scalar_prefetch)
