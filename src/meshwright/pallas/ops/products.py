"""Products of matrices: tile by tile, and while their parts go round a ring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.core.source import here
from meshwright.pallas import tpu as pltpu
from meshwright.pallas.ops.ring import DMA, REGULAR, WHOLE, collective, halves, meet, ring, struct, ways

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
    buffer says so before it is filled again. Both ways, the upper rows go right and the lower ones left. ``fused``
    keeps one pipeline going: the last step of a product fetches the first tiles of the next.

    >>> import meshwright as mw
    >>> from meshwright.pallas import ops
    >>> columns = mw.P(None, "x")
    >>> f = lambda x, y: ops.all_gather_matmul(x, y, "x", bidirectional=True, fused=True)
    >>> g = mw.shard_map(f, mesh=mw.make_mesh((4,), ("x",)), in_specs=(columns, columns), out_specs=columns)
    >>> g(mnp.ones((8, 32)), mnp.ones((32, 16)))[0, :3]
    Array([32., 32., 32.], dtype=float32)
    """
    devices = lax.axis_size(axis_name)
    (m, k), n = x.shape, y.shape[1]
    bidirectional = bidirectional and m > 1
    cuts = halves(m, bidirectional)
    fitted = [_fit(tiles, rows, k, n) for _, rows in cuts]
    pipelines = []
    for (_, rows), tile in zip(cuts, fitted, strict=True):
        ins, out = _specs(tile)
        pipelines.append(
            pltpu.emit_pipeline_with_allocations(
                _body(k, tile[1]), grid=_grid(rows, k, n, tile), in_specs=ins, out_specs=out, should_accumulate_out=True
            )
        )

    def kernel(
        x_ref: Any, y_ref: Any, z_ref: Any, lhs: Any, local: Any, send: Any, receive: Any, room: Any, sums: Any,
        windows: Any,
    ) -> None:  # fmt: skip
        at = ring(axis_name)
        both = ways(at, bidirectional)
        own = []
        for way, (start, rows) in zip(both, cuts, strict=True):
            own.append(
                pltpu.make_async_copy(x_ref.at[pl.ds(start, rows)], lhs.at[0, pl.ds(start, rows)], local.at[way.number])
            )
            own[-1].start()
        meet(axis_name, at.left, at.right)
        for copy in own:
            copy.wait()

        for step in range(at.size):
            slot, last = step % 2, step == at.size - 1
            copies = []
            for way, (start, rows) in zip(both, cuts, strict=True):
                number = way.number
                copy = pltpu.make_async_remote_copy(
                    lhs.at[slot, pl.ds(start, rows)], lhs.at[1 - slot, pl.ds(start, rows)], send.at[number],
                    receive.at[number, slot], device_id={axis_name: way.target},
                )  # fmt: skip
                copies.append(copy)
                if not last:
                    if step > 0:
                        pltpu.semaphore_wait(room.at[number])
                    copy.start()
            for way, (start, rows), copy in zip(both, cuts, copies, strict=True):
                number = way.number
                operands = [
                    (
                        lhs.at[s % 2, pl.ds(start, rows)],
                        y_ref.at[pl.ds(way.owner(at, s) * k, k)],
                        z_ref.at[pl.ds(start, rows)],
                    )
                    for s in (step, step + 1)
                ]
                ahead = fused and not last

                def fetch_next(
                    found: Any, operands: Any = operands, copy: Any = copy, ahead: bool = ahead
                ) -> tuple[Any, Any]:
                    """The last step of a product: what the next one needs has come, so fetch it."""
                    if not ahead:
                        return found.pipeline_buffers.input, found.pipeline_buffers.in_out
                    copy.wait_recv()
                    refs = found.make_pipeline_refs(*operands[1])
                    return found.start_pipeline_prefetch(  # type: ignore[no-any-return]
                        pltpu.PipelinePrefetchArgs(refs, found.pipeline_allocations, found.pipeline_buffers),
                        force_copy=([True, True], False),
                    )

                fetched = fused and step > 0
                pipelines[number][0](
                    *operands[0],
                    scratches=[sums[number]],
                    allocations=windows[number],
                    init_allocations=step == 0,
                    prologue=lambda _, fetched=fetched: ((fetched, fetched), ([True, True], False)),
                    epilogue=fetch_next,
                    out_prologue=lambda _, step=step: step == 0,
                    out_epilogue=lambda _, ahead=ahead: ahead,
                )
                if not last:
                    copy.wait_send()
                    if not fused:
                        copy.wait_recv()
                    if step < at.size - 2:
                        pltpu.semaphore_signal(room.at[number], device_id={axis_name: way.source})

    memory = [pltpu.ANY((), x.dtype), pltpu.ANY((), y.dtype), pltpu.ANY((), x.dtype)]
    return pl.pallas_call(
        kernel, [struct((m, n), x.dtype), struct((2, m, k), x.dtype)], in_specs=[WHOLE] * 2, out_specs=[WHOLE] * 2,
        scratch_shapes=[
            DMA((2,)), DMA((2,)), DMA((2, 2)), REGULAR((2,)),
            [pltpu.VMEM((tile[0], tile[2]), mnp.float32) for tile in fitted],
            [allocations(*memory) for _, allocations in pipelines],
        ],
        compiler_params=collective(5), debug=debug,
    )(x, y)[0] if devices > 1 else matmul(x, y, tiles=tiles, debug=debug)  # fmt: skip


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
