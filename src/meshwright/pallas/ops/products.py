"""Products of matrices: tile by tile, and while their parts go round a ring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.core.source import here
from meshwright.pallas import tpu as pltpu
from meshwright.pallas.ops.ring import DMA, REGULAR, WHOLE, Way, collective, halves, meet, ring, struct, ways

Tiles = tuple[int, int, int]


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


def _body(k: int, tile: int) -> Callable[..., None]:
    """One tile of a product, summed over the last axis of the grid."""
    mask = _masked(k, tile)

    def body(x_ref: Any, y_ref: Any, z_ref: Any, acc_ref: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            acc_ref[...] = mnp.zeros_like(acc_ref)

        acc_ref[...] += mnp.matmul(mask(x_ref[...], 1), mask(y_ref[...], 0), preferred_element_type=mnp.float32)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _() -> None:
            z_ref[...] = acc_ref[...].astype(z_ref.dtype)

    return body


def _specs(tiles: Tiles) -> tuple[list[pl.BlockSpec], pl.BlockSpec]:
    tm, tk, tn = tiles
    ins = [pl.BlockSpec((tm, tk), lambda i, j, h: (i, h)), pl.BlockSpec((tk, tn), lambda i, j, h: (h, j))]
    return ins, pl.BlockSpec((tm, tn), lambda i, j, h: (i, j))


def _grid(m: int, k: int, n: int, tiles: Tiles) -> tuple[int, int, int]:
    return pl.cdiv(m, tiles[0]), pl.cdiv(n, tiles[2]), pl.cdiv(k, tiles[1])


def matmul(x: Any, y: Any, *, tiles: Tiles = (128, 128, 128), debug: Any = None) -> Any:
    """``x @ y`` of matrices, tile by tile (rows, inner, columns), summed in float32.

    >>> from meshwright.pallas import ops
    >>> ops.matmul(mnp.ones((100, 200)), mnp.ones((200, 60)))[0, :2]
    Array([200., 200.], dtype=float32)
    """
    (m, k), n = x.shape, y.shape[1]
    tiles = _fit(tiles, m, k, n)
    ins, out = _specs(tiles)
    return pl.pallas_call(
        _body(k, tiles[1]), struct((m, n), x.dtype), grid=_grid(m, k, n, tiles), in_specs=ins, out_specs=out,
        scratch_shapes=[pltpu.VMEM((tiles[0], tiles[2]), mnp.float32)], debug=debug,
    )(x, y)  # fmt: skip


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
    (m, k), n = x.shape, y.shape[1]
    bidirectional = bidirectional and k % 2 == 0
    cuts = halves(k, bidirectional)
    each = cuts[0][1]
    tile = _fit(tiles, m, each, n)
    ins, out = _specs(tile)
    pipeline, allocations = pltpu.emit_pipeline_with_allocations(
        _body(each, tile[1]), grid=_grid(m, each, n, tile), in_specs=ins, out_specs=out, should_accumulate_out=True
    )

    def kernel(
        x_ref: Any, y_ref: Any, z_ref: Any, lhs: Any, local: Any, send: Any, receive: Any, room: Any, acc: Any,
        windows: Any,
    ) -> None:  # fmt: skip
        at = ring(axis_name)
        both = ways(at, bidirectional)
        runs = [(step, way) for step in range(at.size) for way in both]
        first, last = runs[0], runs[-1]

        def hand_on(step: int, way: Way) -> Any:
            """The copy of what is multiplied in a step, to where the next device multiplies it."""
            slot = step % 2
            return pltpu.make_async_remote_copy(
                lhs.at[way.number, slot], lhs.at[way.number, 1 - slot], send.at[way.number],
                receive.at[way.number, slot], device_id={axis_name: way.target},
            )  # fmt: skip

        def operands(step: int, way: Way) -> tuple[Any, Any, Any]:
            rows = pl.ds(way.owner(at, step) * k + cuts[way.number][0], each)
            return lhs.at[way.number, step % 2], y_ref.at[rows], z_ref

        own = []
        for way, (start, size) in zip(both, cuts, strict=True):
            part = x_ref.at[:, pl.ds(start, size)]
            own.append(pltpu.make_async_copy(part, lhs.at[way.number, 0], local.at[way.number]))
            own[-1].start()
        meet(axis_name, at.left, at.right)
        for copy in own:
            copy.wait()

        for run, following in zip(runs, [*runs[1:], None], strict=True):
            step, way = run
            if step > 0:
                if not fused:
                    hand_on(step - 1, way).wait_recv()
                hand_on(step - 1, way).wait_send()
                if step < at.size - 1:
                    pltpu.semaphore_signal(room.at[way.number], device_id={axis_name: way.source})
                    pltpu.semaphore_wait(room.at[way.number])
            if step < at.size - 1:
                hand_on(step, way).start()

            def fetch_next(found: Any, following: Any = following) -> tuple[Any, Any]:
                """In the last step of a product: once what the next one needs has come, fetch it."""
                if not fused or following is None:
                    return found.pipeline_buffers.input, found.pipeline_buffers.in_out
                if following[0] > 0:
                    hand_on(following[0] - 1, following[1]).wait_recv()
                refs = found.make_pipeline_refs(*operands(*following))
                return found.start_pipeline_prefetch(  # type: ignore[no-any-return]
                    pltpu.PipelinePrefetchArgs(refs, found.pipeline_allocations, found.pipeline_buffers),
                    force_copy=([True, True], False),
                )

            fetched = fused and run != first
            pipeline(
                *operands(step, way),
                scratches=[acc],
                allocations=windows,
                init_allocations=run == first,
                prologue=lambda _, fetched=fetched: ((fetched, fetched), ([True, True], False)),
                epilogue=fetch_next,
                out_prologue=lambda _, run=run: run == first,
                out_epilogue=lambda _, run=run: fused and run != last,
            )

    memory = [pltpu.ANY((), x.dtype), pltpu.ANY((), y.dtype), pltpu.ANY((), x.dtype)]
    shapes = [struct((m, n), x.dtype), struct((len(cuts), 2, m, each), x.dtype)]
    return pl.pallas_call(
        kernel, shapes, in_specs=[WHOLE] * 2, out_specs=[WHOLE] * 2,
        scratch_shapes=[
            DMA((2,)), DMA((2,)), DMA((2, 2)), REGULAR((2,)), pltpu.VMEM((tile[0], tile[2]), mnp.float32),
            allocations(*memory),
        ],
        compiler_params=collective(5), debug=debug,
    )(x, y)[0]  # fmt: skip


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
    devices = lax.axis_size(axis_name)
    (m, k), n = x.shape, y.shape[1]
    if m % devices:
        raise pltpu.KernelError(
            f"{m} rows are scattered over {devices} devices.",
            where=here(),
            why="every device keeps as many",
            fix=f"a multiple of {devices} rows: pad x with zeros",
        )
    bidirectional = bidirectional and n > 1
    rows, cuts = m // devices, halves(n, bidirectional)
    fitted = [_fit(tiles, rows, k, columns) for _, columns in cuts]

    def kernel(
        x_ref: Any, y_ref: Any, z_ref: Any, sums: Any, part: Any, send: Any, receive: Any, room: Any, acc: Any
    ) -> None:
        at = ring(axis_name)
        both = ways(at, bidirectional)

        def multiply(n: int, block: Any, target: Any) -> None:
            start, columns = cuts[n]
            ins, out = _specs(fitted[n])
            pltpu.emit_pipeline(
                _body(k, fitted[n][1]), grid=_grid(rows, k, columns, fitted[n]), in_specs=ins, out_specs=out
            )(x_ref.at[pl.ds(block * rows, rows)], y_ref.at[:, pl.ds(start, columns)], target, scratches=[acc[n]])

        def add(n: int, source: Any, target: Any) -> None:
            tm, _, tn = fitted[n]
            spec = pl.BlockSpec((tm, tn), lambda i, j: (i, j))

            def body(part_ref: Any, sum_ref: Any) -> None:
                sum_ref[...] = part_ref[...]

            pltpu.emit_pipeline(
                body, grid=(pl.cdiv(rows, tm), pl.cdiv(cuts[n][1], tn)), in_specs=[spec], out_specs=spec,
                should_accumulate_out=True,
            )(source, target)  # fmt: skip

        meet(axis_name, at.left, at.right)
        columns = [pl.ds(start, size) for start, size in cuts]
        for way in both:
            multiply(way.number, way.owner(at, 1), sums.at[0, :, columns[way.number]])
        for step in range(at.size - 1):
            slot = step % 2
            copies = []
            for way in both:
                n = way.number
                if step > 0:
                    pltpu.semaphore_wait(room.at[n])
                copy = pltpu.make_async_remote_copy(
                    sums.at[slot, :, columns[n]], sums.at[1 - slot, :, columns[n]], send.at[n], receive.at[n, slot],
                    device_id={axis_name: way.target},
                )  # fmt: skip
                copy.start()
                copies.append(copy)
            for way in both:
                multiply(way.number, way.owner(at, step + 2), part.at[:, columns[way.number]])
            for way, copy in zip(both, copies, strict=True):
                n = way.number
                copy.wait()
                add(n, part.at[:, columns[n]], sums.at[1 - slot, :, columns[n]])
                if step < at.size - 2:
                    pltpu.semaphore_signal(room.at[n], device_id={axis_name: way.source})
        pltpu.sync_copy(sums.at[(at.size - 1) % 2], z_ref)

    outs = [struct((rows, n), x.dtype), struct((2, rows, n), x.dtype), struct((rows, n), x.dtype)]
    return pl.pallas_call(
        kernel, outs, in_specs=[WHOLE] * 2, out_specs=[WHOLE] * 3,
        scratch_shapes=[
            DMA((2,)), DMA((2, 2)), REGULAR((2,)), [pltpu.VMEM((tile[0], tile[2]), mnp.float32) for tile in fitted],
        ],
        compiler_params=collective(6), debug=debug,
    )(x, y)[0]  # fmt: skip
