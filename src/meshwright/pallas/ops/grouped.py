"""Products of groups of rows, each with a matrix of its own, and rows that go to the devices of their groups.

The rows of a group follow each other; how many there are is known when the program runs. The grid has a step for every
tile of rows and group that meet: at most one for each tile and one for each group more. Which they are is prefetched.
"""

from __future__ import annotations

from typing import Any

import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.api.custom import custom_vjp
from meshwright.pallas import tpu as pltpu
from meshwright.pallas.ops.operands import require
from meshwright.pallas.ops.ring import DMA, WHOLE, collective, meet, ring, struct


def _steps(sizes: Any, rows: int, tile: int) -> tuple[Any, Any, Any, int]:
    """Of every step its group and its tile, and where groups start; the last group are the rows that belong to none."""
    ends = mnp.cumsum(mnp.concatenate([sizes, (rows - sizes.sum())[None]])).astype(mnp.int32)
    starts = mnp.concatenate([mnp.zeros(1, mnp.int32), ends])
    groups, tiles = ends.shape[0], pl.cdiv(rows, tile)
    first = starts[:-1] // tile
    visits = mnp.where(ends > starts[:-1], (ends + tile - 1) // tile - first, 0)
    after = mnp.cumsum(visits)
    count = tiles + groups - 1
    step = mnp.minimum(mnp.arange(count, dtype=mnp.int32), after[-1] - 1)  # a step too many is the last one again
    group = (after[None, :] <= step[:, None]).sum(1).astype(mnp.int32)
    place = first[group] + step - (after - visits)[group]
    return group, place.astype(mnp.int32), starts, count


def grouped_matmul(x: Any, w: Any, sizes: Any, *, tiles: tuple[int, int] = (128, 128), debug: Any = None) -> Any:
    """The first ``sizes[0]`` rows of ``x`` times ``w[0]``, the next ``sizes[1]`` times ``w[1]``, and so on.

    It is differentiable. Rows beyond all groups are zero. ``tiles`` are rows and columns of a block of the result.

    >>> from meshwright.pallas import ops
    >>> x, w = mnp.ones((5, 2)), mnp.stack([mnp.ones((2, 3)), 2 * mnp.ones((2, 3))])
    >>> ops.grouped_matmul(x, w, mnp.array([2, 2]))[:, 0]
    Array([2., 2., 4., 4., 0.], dtype=float32)
    """
    require(
        len(x.shape) == 2 and len(w.shape) == 3 and x.shape[1] == w.shape[1] and sizes.shape == w.shape[:1],
        f"grouped_matmul of {list(x.shape)} and {list(w.shape)} in groups of {list(sizes.shape)}.",
        "x is (rows, k), w (groups, k, columns), with a size for each group",
        "x @ w[g] for the rows of group g",
    )
    group, place, starts, count = _steps(mnp.asarray(sizes).astype(mnp.int32), x.shape[0], min(tiles[0], x.shape[0]))
    return _grouped(count, tiles, debug)(group, place, starts, x, w)


def _grouped(count: int, tiles: tuple[int, int], debug: Any) -> Any:
    """The product, with its derivative; its first operands are what its steps are."""

    @custom_vjp
    def product(group: Any, place: Any, starts: Any, x: Any, w: Any) -> Any:
        return _rows_times(x, w, (group, place, starts), count, tiles, debug)

    def forward(*args: Any) -> Any:
        return product(*args), args

    def backward(saved: Any, dz: Any) -> Any:
        *metadata, x, w = saved
        dx = _rows_times(dz, mnp.swapaxes(w, 1, 2), metadata, count, tiles, debug)
        return None, None, None, dx, _outer(x, dz, w, metadata, count, tiles, debug)

    product.defvjp(forward, backward)
    return product


def _mine(groups: Any, places: Any, starts: Any, step: Any, shape: tuple[int, int]) -> Any:
    """Which rows of a tile are of the step's group."""
    row = places[step] * shape[0] + lax.broadcasted_iota(mnp.int32, shape, 0)
    return mnp.logical_and(row >= starts[groups[step]], row < starts[groups[step] + 1])


def _rows_times(x: Any, w: Any, metadata: Any, count: int, tiles: tuple[int, int], debug: Any) -> Any:
    (rows, k), columns, groups = x.shape, w.shape[2], w.shape[0]
    bm, bn = min(tiles[0], rows), min(tiles[1], columns)

    def kernel(group: Any, place: Any, starts: Any, x_ref: Any, w_ref: Any, out_ref: Any) -> None:
        step = pl.program_id(1)
        product = mnp.matmul(x_ref[...], w_ref[...], preferred_element_type=mnp.float32).astype(out_ref.dtype)
        mine = mnp.logical_and(_mine(group, place, starts, step, (bm, bn)), group[step] < groups)
        first = mnp.logical_or(step == 0, place[mnp.maximum(step - 1, 0)] != place[step])

        @pl.when(first)
        def _() -> None:
            out_ref[...] = mnp.where(mine, product, mnp.zeros_like(product))

        @pl.when(mnp.logical_not(first))
        def _() -> None:
            out_ref[...] = mnp.where(mine, product, out_ref[...])

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=3,
        grid=(pl.cdiv(columns, bn), count),
        in_specs=[
            pl.BlockSpec((bm, k), lambda j, s, group, place, starts: (place[s], 0)),
            pl.BlockSpec((None, k, bn), lambda j, s, group, place, starts: (mnp.minimum(group[s], groups - 1), 0, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda j, s, group, place, starts: (place[s], j)),
    )
    return pl.pallas_call(kernel, struct((rows, columns), x.dtype), grid_spec=spec, debug=debug)(*metadata, x, w)


def _outer(x: Any, dz: Any, w: Any, metadata: Any, count: int, tiles: tuple[int, int], debug: Any) -> Any:
    """For each group its rows of ``x`` times those of ``dz``: the derivative of the matrices."""
    (rows, k), columns, groups = x.shape, dz.shape[1], w.shape[0]
    bm, bn = min(tiles[0], rows), min(tiles[1], columns)

    def kernel(
        group: Any, place: Any, starts: Any, x_ref: Any, dz_ref: Any, _zeros: Any, out_ref: Any, acc: Any
    ) -> None:
        step = pl.program_id(1)
        last = mnp.maximum(step - 1, 0)
        new = mnp.logical_or(step == 0, group[last] != group[step])

        @pl.when(new)
        def _() -> None:
            acc[...] = mnp.zeros_like(acc)

        again = mnp.logical_and(mnp.logical_not(new), place[last] == place[step])

        @pl.when(mnp.logical_not(again))
        def _() -> None:
            left, right = (
                mnp.where(_mine(group, place, starts, step, ref.shape), ref[...], mnp.zeros(ref.shape, ref.dtype))
                for ref in (x_ref, dz_ref)
            )
            acc[...] += mnp.matmul(left.T, right, preferred_element_type=mnp.float32)

        out_ref[...] = acc[...].astype(out_ref.dtype)

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=3,
        grid=(pl.cdiv(columns, bn), count),
        in_specs=[
            pl.BlockSpec((bm, k), lambda j, s, group, place, starts: (place[s], 0)),
            pl.BlockSpec((bm, bn), lambda j, s, group, place, starts: (place[s], j)),
            WHOLE,
        ],
        out_specs=pl.BlockSpec((None, k, bn), lambda j, s, group, place, starts: (group[s], 0, j)),
        scratch_shapes=[pltpu.VMEM((k, bn), mnp.float32)],
    )
    # A group without rows has no step: what is there before stays.
    zeros = mnp.zeros((groups + 1, k, columns), w.dtype)
    return pl.pallas_call(
        kernel, struct(zeros.shape, zeros.dtype), grid_spec=spec, input_output_aliases={5: 0}, debug=debug
    )(*metadata, x, dz, zeros)[:groups]


def ragged_all_to_all(
    x: Any, out: Any, input_offsets: Any, send_sizes: Any, output_offsets: Any, recv_sizes: Any, axis_name: str,
    *, debug: Any = None,
) -> Any:  # fmt: skip
    """Rows to every device, as many as each is sent: ``lax.ragged_all_to_all``, as experts of a mixture use it.

    Device ``i`` sends ``send_sizes[j]`` rows from ``input_offsets[j]`` on to device ``j``, to ``output_offsets[j]`` of
    its result; the rows of ``out`` that none is sent to stay as they are.

    >>> import meshwright as mw
    >>> from meshwright.pallas import ops
    >>> def swap(x):
    ...     one, none = mnp.ones(2, mnp.int32), mnp.zeros(2, mnp.int32)
    ...     where = none + lax.axis_index("x")
    ...     return ops.ragged_all_to_all(x, mnp.zeros_like(x), mnp.arange(2), one, where, one, "x")
    >>> mw.shard_map(swap, mesh=mw.make_mesh((2,), ("x",)), in_specs=mw.P("x"), out_specs=mw.P("x"))(mnp.arange(4.0))
    Array([0., 2., 1., 3.], dtype=float32)
    """
    devices = lax.axis_size(axis_name)
    require(
        all(one.shape == (devices,) for one in (input_offsets, send_sizes, output_offsets, recv_sizes))
        and x.shape[1:] == out.shape[1:],
        f"ragged_all_to_all of {list(x.shape)} to {list(out.shape)} over {devices} devices.",
        "offsets and sizes have a number for each device, rows one shape",
        f"mnp.array([…]), {devices} numbers",
    )

    @custom_vjp
    def exchange(x: Any, out: Any, *numbers: Any) -> Any:
        return _exchange(x, out, *numbers, axis_name=axis_name, debug=debug)

    def backward(saved: Any, ct: Any) -> tuple[Any, ...]:
        # Rows go back to where they came from: where they are here, and where they were there, the others know.
        starts, sizes, places, due = saved
        mine, theirs = (lax.all_to_all(n, axis_name, 0, 0, tiled=True) for n in (places, starts))
        dx = _exchange(
            ct,
            mnp.zeros((x.shape[0], *ct.shape[1:]), ct.dtype),
            mine,
            due,
            theirs,
            sizes,
            axis_name=axis_name,
            debug=debug,
        )
        row = mnp.arange(ct.shape[0])[:, None]
        came = mnp.any((row >= mine) & (row < mine + due), axis=1).reshape(-1, *[1] * (ct.ndim - 1))
        return dx, mnp.where(came, mnp.zeros_like(ct), ct), None, None, None, None

    exchange.defvjp(lambda x, out, *numbers: (exchange(x, out, *numbers), numbers), backward)
    numbers = (mnp.asarray(n).astype(mnp.int32) for n in (input_offsets, send_sizes, output_offsets, recv_sizes))
    return exchange(x, out, *numbers)


def _exchange(x: Any, out: Any, starts: Any, sizes: Any, places: Any, due: Any, *, axis_name: str, debug: Any) -> Any:
    devices = lax.axis_size(axis_name)

    def kernel(
        starts: Any, sizes: Any, places: Any, due: Any, x_ref: Any, _out_in: Any, out_ref: Any, send: Any, receive: Any
    ) -> None:
        at = ring(axis_name)
        others = [lax.rem(at.me + k, at.size) for k in range(1, at.size)]
        meet(axis_name, *others)

        def copy(to: Any, row: Any, k: int) -> Any:
            return pltpu.make_async_remote_copy(
                x_ref.at[starts[to] + row], out_ref.at[places[to] + row], send.at[k], receive.at[k],
                device_id={axis_name: to},
            )  # fmt: skip

        def start(to: Any, k: int) -> None:
            @pl.loop(0, sizes[to])
            def _(row: Any) -> None:
                copy(to, row, k).start()

        def finish(to: Any, source: Any, k: int) -> None:
            @pl.loop(0, sizes[to])
            def _(row: Any) -> None:
                copy(to, row, k).wait_send()

            @pl.loop(0, due[source])
            def _(row: Any) -> None:
                one = out_ref.at[0]
                came = pltpu.make_async_remote_copy(one, one, send.at[k], receive.at[k], {axis_name: at.me})
                came.wait_recv()

        for k, to in enumerate([at.me, *others]):
            start(to, k)
        for k, to in enumerate([at.me, *others]):
            finish(to, lax.rem(at.me + at.size - k, at.size), k)

    smem = pl.BlockSpec(memory_space=pltpu.SMEM)
    return pl.pallas_call(
        kernel, struct(out.shape, out.dtype), in_specs=[smem] * 4 + [WHOLE] * 2, out_specs=WHOLE,
        scratch_shapes=[DMA((devices,)), DMA((devices,))], input_output_aliases={5: 0},
        compiler_params=collective(8), debug=debug,
    )(starts, sizes, places, due, x, out)  # fmt: skip
