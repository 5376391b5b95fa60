"""Matmul kernels: tile by tile, and while their parts go round a ring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.api.custom import custom_vjp
from meshwright.pallas import tpu as pltpu
from meshwright.pallas.ops.collectives import all_gather
from meshwright.pallas.ops.operands import require
from meshwright.pallas.ops.ring import (
    DMA,
    REGULAR,
    WHOLE,
    Ring,
    RingDirection,
    collective,
    directions,
    halves,
    meet,
    ring,
    struct,
)

Tiles = tuple[int, int, int]


def _require_matmul(x: Any, y: Any, tiles: Tiles, parts: int = 1) -> None:
    """Refuse operands that are no matrices to multiply; the left side has one of ``parts`` of the inner dim."""
    fits = len(x.shape) == len(y.shape) == 2 and x.shape[1] * parts == y.shape[0] and x.dtype == y.dtype
    require(
        fits and min(*x.shape, *y.shape) > 0,
        f"A product of {x.dtype}{list(x.shape)} and {y.dtype}{list(y.shape)}"
        + (f", the left side being shared by {parts} devices." if parts > 1 else "."),
        "they are matrices of one dtype with an inner dim of one size, and not empty",
        "x of (m, k) and y of (k, n)" if parts == 1 else f"x of (m, k / {parts}) and y of (k, n)",
    )
    require(min(tiles) > 0, f"The tiles of a product are {tiles}.", "they have elements", "tiles=(128, 128, 128)")


def _sums(x: Any) -> Any:
    """The dtype that products are summed in: float32 for floats that are no larger."""
    return mnp.float32 if mnp.issubdtype(x.dtype, mnp.floating) and x.dtype.itemsize <= 4 else x.dtype


def _fit(tiles: Tiles, m: int, k: int, n: int) -> Tiles:
    return min(tiles[0], m), min(tiles[1], k), min(tiles[2], n)


def _masked(k: int, tile: int) -> Callable[[Any, int], Any]:
    """What keeps the elements of a ragged last tile out of a product: beyond the edge nothing is known of them."""

    def mask(values: Any, dim: int) -> Any:
        if k % tile == 0:
            return values
        place = lax.broadcasted_iota(mnp.int32, values.shape, dim) + pl.program_id(2) * tile
        return mnp.where(place < k, values, mnp.zeros_like(values))

    return mask


def _body(k: int, tile: int, adds: bool = False) -> Callable[..., None]:
    """One tile of a product, summed over the last axis of the grid; it ``adds`` what comes after the two sides."""
    mask = _masked(k, tile)

    def body(x_ref: Any, y_ref: Any, *refs: Any) -> None:
        z_ref, acc_ref = refs[-2:]

        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            acc_ref[...] = mnp.zeros_like(acc_ref)

        acc_ref[...] += mnp.matmul(mask(x_ref[...], 1), mask(y_ref[...], 0), preferred_element_type=acc_ref.dtype)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _() -> None:
            product = acc_ref[...].astype(z_ref.dtype)
            z_ref[...] = refs[0][...] + product if adds else product

    return body


def _specs(tiles: Tiles) -> tuple[list[pl.BlockSpec], pl.BlockSpec]:
    tm, tk, tn = tiles
    ins = [pl.BlockSpec((tm, tk), lambda i, j, h: (i, h)), pl.BlockSpec((tk, tn), lambda i, j, h: (h, j))]
    return ins, pl.BlockSpec((tm, tn), lambda i, j, h: (i, j))


def _grid(m: int, k: int, n: int, tiles: Tiles) -> tuple[int, int, int]:
    return pl.cdiv(m, tiles[0]), pl.cdiv(n, tiles[2]), pl.cdiv(k, tiles[1])


def matmul(x: Any, y: Any, *, tiles: Tiles = (128, 128, 128), debug: Any = None) -> Any:
    """``x @ y`` of matrices, tile by tile (rows, inner, columns); floats of at most 32 bits are summed in float32.

    >>> from meshwright.pallas import ops
    >>> ops.matmul(mnp.ones((100, 200)), mnp.ones((200, 60)))[0, :2]
    Array([200., 200.], dtype=float32)
    """
    _require_matmul(x, y, tiles)

    def forward(x: Any, y: Any) -> Any:
        return _matmul(x, y, tiles, debug)

    product = custom_vjp(forward)
    product.defvjp(
        lambda x, y: (forward(x, y), (x, y)), lambda saved, dz: (forward(dz, saved[1].T), forward(saved[0].T, dz))
    )
    return product(x, y)


def _matmul(x: Any, y: Any, tiles: Tiles, debug: Any) -> Any:
    (m, k), n = x.shape, y.shape[1]
    tiles = _fit(tiles, m, k, n)
    ins, out = _specs(tiles)
    return pl.pallas_call(
        _body(k, tiles[1]), struct((m, n), x.dtype), grid=_grid(m, k, n, tiles), in_specs=ins, out_specs=out,
        scratch_shapes=[pltpu.VMEM((tiles[0], tiles[2]), _sums(x))], debug=debug,
    )(x, y)  # fmt: skip


class _GatherRefs(NamedTuple):
    """The memory of an all-gather next to a product."""

    x: Any
    y: Any
    z: Any
    lhs: Any  # by way and slot, what is multiplied
    local: Any
    send: Any
    receive: Any
    room: Any
    acc: Any
    windows: Any


@dataclass(frozen=True)
class _GatherMatmul:
    """The kernel of ``all_gather_matmul``: each step, what a device multiplies goes on to the next one."""

    axis_name: str
    bidirectional: bool
    cuts: list[tuple[int, int]]  # the columns that go each way
    tile: Tiles
    pipeline: Callable[..., None] | None  # fused, the one that goes on from product to product

    def __call__(
        self, x_ref: Any, y_ref: Any, z_ref: Any, lhs: Any, local: Any, send: Any, receive: Any, room: Any, acc: Any,
        windows: Any = None,
    ) -> None:  # fmt: skip
        refs = _GatherRefs(x_ref, y_ref, z_ref, lhs, local, send, receive, room, acc, windows)
        at = ring(self.axis_name)
        both = directions(at, self.bidirectional)
        self.begin(refs, at, both)
        runs = [(step, direction) for step in range(at.size) for direction in both]
        for n, (step, direction) in enumerate(runs):
            self.hand_on(refs, at, step, direction)
            if self.pipeline is None:
                self.multiply(*self.operands(refs, at, step, direction), refs.acc, adds=n > 0)
            else:
                self.go_on(self.pipeline, refs, at, runs, n)

    def begin(self, refs: _GatherRefs, at: Ring, both: list[RingDirection]) -> None:
        """Put the device's own columns where they are multiplied, and meet the neighbors."""
        own = []
        for direction, (start, size) in zip(both, self.cuts, strict=True):
            part = refs.x.at[:, pl.ds(start, size)]
            own.append(pltpu.make_async_copy(part, refs.lhs.at[direction.number, 0], refs.local.at[direction.number]))
            own[-1].start()
        meet(self.axis_name, at.left, at.right)
        for copy in own:
            copy.wait()

    def copy(self, refs: _GatherRefs, step: int, direction: RingDirection) -> Any:
        """The copy of what is multiplied in a step, to where the next device multiplies it."""
        n, slot = direction.number, step % 2
        return pltpu.make_async_remote_copy(
            refs.lhs.at[n, slot], refs.lhs.at[n, 1 - slot], refs.send.at[n], refs.receive.at[n, slot],
            device_id={self.axis_name: direction.target},
        )  # fmt: skip

    def hand_on(self, refs: _GatherRefs, at: Ring, step: int, direction: RingDirection) -> None:
        """Wait for what is multiplied in a step, and start to send it on once there is room for it."""
        if step > 0:
            if self.pipeline is None:
                self.copy(refs, step - 1, direction).wait_recv()
            self.copy(refs, step - 1, direction).wait_send()
            if step < at.size - 1:
                pltpu.semaphore_signal(refs.room.at[direction.number], device_id={self.axis_name: direction.source})
                pltpu.semaphore_wait(refs.room.at[direction.number])
        if step < at.size - 1:
            self.copy(refs, step, direction).start()

    def operands(self, refs: _GatherRefs, at: Ring, step: int, direction: RingDirection) -> tuple[Any, Any, Any]:
        """What a step multiplies, and where it adds the product."""
        start, size = self.cuts[direction.number]
        columns = sum(n for _, n in self.cuts)
        rows = pl.ds(direction.owner(at, step) * columns + start, size)
        return refs.lhs.at[direction.number, step % 2], refs.y.at[rows], refs.z

    def multiply(self, x_ref: Any, y_ref: Any, z_ref: Any, acc: Any, adds: bool) -> None:
        """Put one product where it belongs, or add it to what is there."""
        (m, k), n = x_ref.shape, y_ref.shape[1]
        ins, out = _specs(self.tile)
        body = _body(k, self.tile[1], adds)
        before = [z_ref] if adds else []
        pltpu.emit_pipeline(
            body, grid=_grid(m, k, n, self.tile), in_specs=[*ins, out] if adds else ins, out_specs=[out]
        )(x_ref, y_ref, *before, z_ref, scratches=[acc])  # fmt: skip

    def go_on(
        self, pipeline: Callable[..., None], refs: _GatherRefs, at: Ring, runs: list[tuple[int, RingDirection]], n: int
    ) -> None:
        """Add one product, whose first tiles are there already; its last step fetches those of the next."""
        first, last = n == 0, n == len(runs) - 1

        def fetch_next(found: Any) -> tuple[Any, Any]:
            if last:
                return found.pipeline_buffers.input, found.pipeline_buffers.in_out
            step, direction = runs[n + 1]
            if step > 0:
                self.copy(refs, step - 1, direction).wait_recv()
            following = found.make_pipeline_refs(*self.operands(refs, at, step, direction))
            return found.start_pipeline_prefetch(  # type: ignore[no-any-return]
                pltpu.PipelinePrefetchArgs(following, found.pipeline_allocations, found.pipeline_buffers),
                force_copy=([True, True], False),
            )

        fetched = not first
        pipeline(
            *self.operands(refs, at, *runs[n]),
            scratches=[refs.acc],
            allocations=refs.windows,
            init_allocations=first,
            prologue=lambda _: ((fetched, fetched), ([True, True], False)),
            epilogue=fetch_next,
            out_prologue=lambda _: first,
            out_epilogue=lambda _: not last,
        )


def all_gather_matmul(
    x: Any,
    y: Any,
    axis_name: str,
    *,
    tiles: Tiles = (128, 128, 128),
    bidirectional: bool = False,
    fused: bool = False,
    debug: Any = None,
) -> Any:
    """``all_gather(x) @ y``, where the devices have the columns of the left side, each the rows of ``y`` for all.

    While a device multiplies what it has, that goes on to the next one, into one of two buffers; who is done with a
    buffer says so before it is filled again. Both ways, half of the columns go right and half left (an odd number of
    them goes one way). ``fused`` keeps one pipeline going: the last step of a product fetches the first tiles of the
    next.

    >>> import meshwright as mw
    >>> from meshwright.pallas import ops
    >>> columns = mw.P(None, "x")
    >>> f = lambda x, y: ops.all_gather_matmul(x, y, "x", bidirectional=True, fused=True)
    >>> g = mw.shard_map(f, mesh=mw.make_mesh((4,), ("x",)), in_specs=(columns, columns), out_specs=columns)
    >>> g(mnp.ones((8, 32)), mnp.ones((32, 16)))[0, :3]
    Array([32., 32., 32.], dtype=float32)
    """
    _require_matmul(x, y, tiles, lax.axis_size(axis_name))
    options = {"tiles": tiles, "bidirectional": bidirectional, "debug": debug}

    def forward(x: Any, y: Any) -> Any:
        return _gather_matmul(x, y, axis_name, fused=fused, **options)

    def backward(saved: Any, dz: Any) -> tuple[Any, Any]:
        # The transpose of a gather is a scatter of sums: of the rows of y dzᵀ, which are the columns of dz yᵀ.
        x, y = saved
        gathered = all_gather(x.T, axis_name, bidirectional=bidirectional, debug=debug)
        dx = _matmul_scatter(y, dz.T, axis_name, **options).T
        return dx, matmul(gathered.reshape(y.shape[0], x.shape[0]), dz, tiles=tiles, debug=debug)

    product = custom_vjp(forward)
    product.defvjp(lambda x, y: (forward(x, y), (x, y)), backward)
    return product(x, y)


def _gather_matmul(
    x: Any, y: Any, axis_name: str, *, tiles: Tiles, bidirectional: bool, fused: bool, debug: Any
) -> Any:
    (m, k), n = x.shape, y.shape[1]
    bidirectional = bidirectional and k % 2 == 0
    cuts = halves(k, bidirectional)
    each = cuts[0][1]
    tile = _fit(tiles, m, each, n)
    ins, out = _specs(tile)
    pipeline, windows = None, []
    if fused:
        pipeline, allocations = pltpu.emit_pipeline_with_allocations(
            _body(each, tile[1]), grid=_grid(m, each, n, tile), in_specs=ins, out_specs=out, should_accumulate_out=True
        )
        windows = [allocations(pltpu.ANY((), x.dtype), pltpu.ANY((), y.dtype), pltpu.ANY((), x.dtype))]
    shapes = [struct((m, n), x.dtype), struct((len(cuts), min(2, lax.axis_size(axis_name)), m, each), x.dtype)]
    return pl.pallas_call(
        _GatherMatmul(axis_name, bidirectional, cuts, tile, pipeline),
        shapes, in_specs=[WHOLE] * 2, out_specs=[WHOLE] * 2,
        scratch_shapes=[
            DMA((2,)), DMA((2,)), DMA((2, 2)), REGULAR((2,)), pltpu.VMEM((tile[0], tile[2]), _sums(x)),
            *windows,
        ],
        compiler_params=collective(5), debug=debug,
    )(x, y)[0]  # fmt: skip


class _ScatterRefs(NamedTuple):
    """The memory of a product whose sums are scattered."""

    x: Any
    y: Any
    z: Any
    sums: Any  # by slot, what goes round
    part: Any  # what is added to it next
    send: Any
    receive: Any
    room: Any
    acc: Any


@dataclass(frozen=True)
class _MatmulScatter:
    """The kernel of ``matmul_reduce_scatter``: sums go round while what is added to them is multiplied."""

    axis_name: str
    bidirectional: bool
    rows: int
    inner: int
    cuts: list[tuple[int, int]]  # the columns that go each way
    tiles: list[Tiles]  # of their products

    def __call__(
        self, x_ref: Any, y_ref: Any, z_ref: Any, sums: Any, part: Any, send: Any, receive: Any, room: Any, acc: Any
    ) -> None:
        refs = _ScatterRefs(x_ref, y_ref, z_ref, sums, part, send, receive, room, acc)
        at = ring(self.axis_name)
        both = directions(at, self.bidirectional)
        meet(self.axis_name, at.left, at.right)
        for direction in both:
            self.multiply(refs, direction, direction.owner(at, 1), sums.at[0, :, self.columns(direction)])
        for step in range(at.size - 1):
            copies = [self.hand_on(refs, step, direction) for direction in both]
            for direction in both:
                self.multiply(refs, direction, direction.owner(at, step + 2), part.at[:, self.columns(direction)])
            for direction, copy in zip(both, copies, strict=True):
                copy.wait()
                self.add(
                    direction, part.at[:, self.columns(direction)], sums.at[1 - step % 2, :, self.columns(direction)]
                )
                if step < at.size - 2:
                    pltpu.semaphore_signal(room.at[direction.number], device_id={self.axis_name: direction.source})
        pltpu.sync_copy(sums.at[(at.size - 1) % 2], z_ref)

    def columns(self, direction: RingDirection) -> Any:
        """Those that go one way."""
        return pl.ds(*self.cuts[direction.number])

    def hand_on(self, refs: _ScatterRefs, step: int, direction: RingDirection) -> Any:
        """Start to send a sum to the next device once there is room for it."""
        n, slot, columns = direction.number, step % 2, self.columns(direction)
        if step > 0:
            pltpu.semaphore_wait(refs.room.at[n])
        copy = pltpu.make_async_remote_copy(
            refs.sums.at[slot, :, columns], refs.sums.at[1 - slot, :, columns], refs.send.at[n],
            refs.receive.at[n, slot], device_id={self.axis_name: direction.target},
        )  # fmt: skip
        copy.start()
        return copy

    def multiply(self, refs: _ScatterRefs, direction: RingDirection, block: Any, target: Any) -> None:
        """The device's product for one block of rows."""
        n, (_, columns) = direction.number, self.cuts[direction.number]
        ins, out = _specs(self.tiles[n])
        grid = _grid(self.rows, self.inner, columns, self.tiles[n])
        rows = refs.x.at[pl.ds(block * self.rows, self.rows)]
        pltpu.emit_pipeline(_body(self.inner, self.tiles[n][1]), grid=grid, in_specs=ins, out_specs=[out])(
            rows, refs.y.at[:, self.columns(direction)], target, scratches=[refs.acc[n]]
        )

    def add(self, direction: RingDirection, source: Any, target: Any) -> None:
        """``target += source``, tile by tile."""
        tm, _, tn = self.tiles[direction.number]
        spec = pl.BlockSpec((tm, tn), lambda i, j: (i, j))

        def body(part_ref: Any, before_ref: Any, sum_ref: Any) -> None:
            sum_ref[...] = before_ref[...] + part_ref[...]

        pltpu.emit_pipeline(
            body, grid=(pl.cdiv(self.rows, tm), pl.cdiv(self.cuts[direction.number][1], tn)), in_specs=[spec, spec],
            out_specs=[spec],
        )(source, target, target)  # fmt: skip


def matmul_reduce_scatter(
    x: Any,
    y: Any,
    axis_name: str,
    *,
    tiles: Tiles = (128, 128, 128),
    bidirectional: bool = False,
    debug: Any = None,
) -> Any:
    """``psum_scatter(x @ y)`` along rows: the devices share the inner dim, and each keeps its rows of the sum.

    While the sum for a device goes on to the next one, that one multiplies what it will add to it. Both ways, the left
    columns go right and the right ones left.

    >>> import meshwright as mw
    >>> from meshwright.pallas import ops
    >>> f = lambda x, y: ops.matmul_reduce_scatter(x, y, "x")
    >>> specs = (mw.P(None, "x"), mw.P("x"))
    >>> g = mw.shard_map(f, mesh=mw.make_mesh((4,), ("x",)), in_specs=specs, out_specs=mw.P("x"))
    >>> g(mnp.ones((16, 32)), mnp.ones((32, 8))).shape
    (16, 8)
    """
    devices, m = lax.axis_size(axis_name), x.shape[0] if x.shape else 0
    _require_matmul(x, y, tiles)
    require(
        m % devices == 0,
        f"{m} rows are scattered over {devices} devices.",
        "every device keeps as many",
        f"a multiple of {devices} rows: pad x with zeros",
    )
    options = {"tiles": tiles, "bidirectional": bidirectional, "debug": debug}

    def forward(x: Any, y: Any) -> Any:
        return _matmul_scatter(x, y, axis_name, **options)

    def backward(saved: Any, dz: Any) -> tuple[Any, Any]:
        # The transpose of a scatter of sums is a gather: of the rows of dz, which are the columns of dzᵀ.
        x, y = saved
        gathered = all_gather(dz, axis_name, bidirectional=bidirectional, debug=debug)
        dx = matmul(gathered.reshape(x.shape[0], y.shape[1]), y.T, tiles=tiles, debug=debug)
        return dx, _gather_matmul(dz.T, x, axis_name, fused=False, **options).T

    product = custom_vjp(forward)
    product.defvjp(lambda x, y: (forward(x, y), (x, y)), backward)
    return product(x, y)


def _matmul_scatter(x: Any, y: Any, axis_name: str, *, tiles: Tiles, bidirectional: bool, debug: Any) -> Any:
    devices = lax.axis_size(axis_name)
    (m, k), n = x.shape, y.shape[1]
    bidirectional = bidirectional and n > 1
    rows, cuts = m // devices, halves(n, bidirectional)
    fitted = [_fit(tiles, rows, k, columns) for _, columns in cuts]
    added = rows if devices > 1 else 0
    outs = [struct((rows, n), x.dtype), struct((2, rows, n), x.dtype), struct((added, n), x.dtype)]
    return pl.pallas_call(
        _MatmulScatter(axis_name, bidirectional, rows, k, cuts, fitted),
        outs, in_specs=[WHOLE] * 2, out_specs=[WHOLE] * 3,
        scratch_shapes=[
            DMA((2,)), DMA((2, 2)), REGULAR((2,)), [pltpu.VMEM((tile[0], tile[2]), _sums(x)) for tile in fitted],
        ],
        compiler_params=collective(6), debug=debug,
    )(x, y)[0]  # fmt: skip
