"""Groups, blocks and rows that numbers choose: prefetched metadata."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

OPTIONS = {}
KERNELS = {}
F32 = jnp.float32


def kernel(function):
    KERNELS[function.__name__] = function
    return function


def floats(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def struct(*shape, dtype=F32):
    return jax.ShapeDtypeStruct(shape, dtype)


SIZES = np.array([11, 0, 13, 8], np.int32)  # rows of each group
TILE = 8


def metadata(sizes, tile):
    """For each step of the grid its group and its tile of rows; a tile that groups share is visited by each of them."""
    ends = np.cumsum(sizes)
    groups, tiles = [], []
    for g, (start, end) in enumerate(zip(ends - sizes, ends, strict=True)):
        for t in range(start // tile, -(-end // tile) if end > start else start // tile):
            groups.append(g)
            tiles.append(t)
    offsets = np.concatenate([[0], ends])
    return np.array(groups, np.int32), np.array(tiles, np.int32), offsets.astype(np.int32)


@kernel
def grouped_matmul():
    groups, tiles, offsets = metadata(SIZES, TILE)
    x, w = floats(32, 64), floats(4, 64, 128, seed=1)

    def body(groups_ref, tiles_ref, offsets_ref, x_ref, w_ref, o_ref, acc_ref):
        step, k = pl.program_id(1), pl.program_id(2)

        @pl.when(k == 0)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += x_ref[...] @ w_ref[...]

        @pl.when(k == pl.num_programs(2) - 1)
        def _():
            group = groups_ref[step]
            row = tiles_ref[step] * TILE + jax.lax.broadcasted_iota(jnp.int32, (TILE, 128), 0)
            mine = (row >= offsets_ref[group]) & (row < offsets_ref[group + 1])
            o_ref[...] = jnp.where(mine, acc_ref[...], o_ref[...])

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=3,
        grid=(1, len(groups), 2),
        in_specs=[
            pl.BlockSpec((TILE, 32), lambda n, s, k, groups, tiles, offsets: (tiles[s], k)),
            pl.BlockSpec((None, 32, 128), lambda n, s, k, groups, tiles, offsets: (groups[s], k, n)),
        ],
        out_specs=pl.BlockSpec((TILE, 128), lambda n, s, k, groups, tiles, offsets: (tiles[s], n)),
        scratch_shapes=[pltpu.VMEM((TILE, 128), F32)],
    )
    return pl.pallas_call(body, struct(32, 128), grid_spec=spec, **OPTIONS)(groups, tiles, offsets, x, w)


@kernel
def transposed_grouped_matmul():
    sizes = np.array([11, 5, 8, 8], np.int32)
    groups, tiles, offsets = metadata(sizes, TILE)
    x, dy = floats(32, 64), floats(32, 128, seed=1)

    def body(groups_ref, tiles_ref, offsets_ref, x_ref, dy_ref, dw_ref):
        step = pl.program_id(0)
        group = groups_ref[step]
        before = groups_ref[jnp.maximum(step - 1, 0)]

        @pl.when((step == 0) | (before != group))
        def _():
            dw_ref[...] = jnp.zeros_like(dw_ref)

        row = tiles_ref[step] * TILE + jax.lax.broadcasted_iota(jnp.int32, (TILE, 64), 0)
        mine = (row >= offsets_ref[group]) & (row < offsets_ref[group + 1])
        dw_ref[...] += jnp.where(mine, x_ref[...], 0.0).T @ dy_ref[...]

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=3,
        grid=(len(groups),),
        in_specs=[
            pl.BlockSpec((TILE, 64), lambda s, groups, tiles, offsets: (tiles[s], 0)),
            pl.BlockSpec((TILE, 128), lambda s, groups, tiles, offsets: (tiles[s], 0)),
        ],
        out_specs=pl.BlockSpec((None, 64, 128), lambda s, groups, tiles, offsets: (groups[s], 0, 0)),
    )
    return pl.pallas_call(body, struct(4, 64, 128), grid_spec=spec, **OPTIONS)(groups, tiles, offsets, x, dy)


@kernel
def block_sparse_matmul():
    rows, cols = np.array([0, 0, 1, 2, 2, 2], np.int32), np.array([1, 3, 0, 0, 2, 3], np.int32)
    blocks, y = floats(6, 16, 16), floats(64, 128, seed=1)

    def body(rows_ref, cols_ref, x_ref, y_ref, o_ref):
        step = pl.program_id(0)

        @pl.when((step == 0) | (rows_ref[jnp.maximum(step - 1, 0)] != rows_ref[step]))
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += x_ref[...] @ y_ref[...]

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=2,
        grid=(6,),
        in_specs=[
            pl.BlockSpec((None, 16, 16), lambda s, rows, cols: (s, 0, 0)),
            pl.BlockSpec((16, 128), lambda s, rows, cols: (cols[s], 0)),
        ],
        out_specs=pl.BlockSpec((16, 128), lambda s, rows, cols: (rows[s], 0)),
    )
    return pl.pallas_call(body, struct(48, 128), grid_spec=spec, **OPTIONS)(rows, cols, blocks, y)


@kernel
def rows_of_a_table():
    table, ids = floats(20, 128), np.array([3, 17, 3, 0, 19, 8], np.int32)

    def body(ids_ref, table_hbm, o_ref, sem):
        def start(n, _):
            pltpu.make_async_copy(table_hbm.at[ids_ref[n]], o_ref.at[n], sem).start()
            return 0

        def finish(n, _):
            pltpu.make_async_copy(table_hbm.at[0], o_ref.at[n], sem).wait()
            return 0

        jax.lax.fori_loop(0, 6, start, 0)
        jax.lax.fori_loop(0, 6, finish, 0)

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(1,),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec((6, 128), lambda i, ids: (0, 0)),
        scratch_shapes=[pltpu.SemaphoreType.DMA],
    )
    return pl.pallas_call(body, struct(6, 128), grid_spec=spec, **OPTIONS)(ids, table)


@kernel
def rows_added_to_a_table():
    table, ids, x = jnp.asarray(floats(8, 128)), np.array([5, 1, 5, 7], np.int32), floats(4, 128, seed=1)

    def body(ids_ref, table_hbm, x_ref, o_hbm, row_ref):
        def step(n, _):
            pltpu.sync_copy(o_hbm.at[pl.ds(ids_ref[n], 1)], row_ref)
            row_ref[...] += x_ref[pl.ds(n, 1)]
            pltpu.sync_copy(row_ref, o_hbm.at[pl.ds(ids_ref[n], 1)])
            return 0

        jax.lax.fori_loop(0, 4, step, 0)

    any_ = pl.BlockSpec(memory_space=pl.ANY)
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(1,),
        in_specs=[any_, pl.BlockSpec((4, 128), lambda i, ids: (0, 0))],
        out_specs=any_,
        scratch_shapes=[pltpu.VMEM((1, 128), F32)],
    )
    return pl.pallas_call(body, struct(8, 128), grid_spec=spec, input_output_aliases={1: 0}, **OPTIONS)(ids, table, x)


@kernel
def a_histogram():
    ids = np.random.default_rng(0).integers(0, 16, (4, 128)).astype(np.int32)

    def body(ids_ref, o_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

        bins = jax.lax.broadcasted_iota(jnp.int32, (16, 128), 0)
        o_ref[...] += (ids_ref[...] == bins).astype(jnp.int32).sum(axis=1, keepdims=True)

    return pl.pallas_call(
        body,
        struct(16, 1, dtype=jnp.int32),
        grid=(4,),
        in_specs=[pl.BlockSpec((1, 128), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((16, 1), lambda i: (0, 0)),
        **OPTIONS,
    )(ids)
