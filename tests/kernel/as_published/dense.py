"""Products, norms, reductions, stencils: blocks of dense operands."""

import functools

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


def _matmul_body(x_ref, y_ref, z_ref, acc_ref, *, steps, finish):
    @pl.when(pl.program_id(2) == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=F32)

    @pl.when(pl.program_id(2) == steps - 1)
    def _():
        z_ref[...] = finish(acc_ref[...]).astype(z_ref.dtype)


def _matmul(x, y, *, tile=(16, 128, 64), finish=lambda acc: acc, dtype=None):
    (m, k), n = x.shape, y.shape[1]
    bm, bn, bk = tile
    return pl.pallas_call(
        functools.partial(_matmul_body, steps=k // bk, finish=finish),
        out_shape=struct(m, n, dtype=dtype or x.dtype),
        grid=(m // bm, n // bn, k // bk),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)),
            pl.BlockSpec((bk, bn), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        scratch_shapes=[pltpu.VMEM((bm, bn), F32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        **OPTIONS,
    )(x, y)


@kernel
def matmul_with_a_scratch_accumulator():
    x, y = (jnp.asarray(floats(*s)).astype(jnp.bfloat16) for s in ((32, 128), (128, 256)))
    return _matmul(x, y, dtype=F32)


@kernel
def matmul_with_a_fused_activation():
    return _matmul(floats(32, 128), floats(128, 128, seed=1), finish=lambda acc: jnp.maximum(acc, 0.0) ** 2)


@kernel
def matmul_of_a_ragged_contraction():
    x, y = floats(16, 100), floats(100, 128, seed=1)

    def body(x_ref, y_ref, z_ref, acc_ref):
        k = pl.program_id(0)

        @pl.when(k == 0)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        left = 100 - k * 32
        xs = jnp.where(jax.lax.broadcasted_iota(jnp.int32, (16, 32), 1) < left, x_ref[...], 0.0)
        ys = jnp.where(jax.lax.broadcasted_iota(jnp.int32, (32, 128), 0) < left, y_ref[...], 0.0)
        acc_ref[...] += xs @ ys

        @pl.when(k == pl.num_programs(0) - 1)
        def _():
            z_ref[...] = acc_ref[...]

    return pl.pallas_call(
        body,
        struct(16, 128),
        grid=(4,),
        in_specs=[pl.BlockSpec((16, 32), lambda k: (0, k)), pl.BlockSpec((32, 128), lambda k: (k, 0))],
        out_specs=pl.BlockSpec((16, 128), lambda k: (0, 0)),
        scratch_shapes=[pltpu.VMEM((16, 128), F32)],
        **OPTIONS,
    )(x, y)


@kernel
def quantized_matmul_with_scales():
    rng = np.random.default_rng(0)
    x, y = rng.integers(-100, 100, (16, 128)).astype(np.int8), rng.integers(-100, 100, (128, 128)).astype(np.int8)
    sx, sy = np.abs(floats(16, 1)), np.abs(floats(1, 128, seed=2))

    def body(x_ref, sx_ref, y_ref, sy_ref, z_ref):
        acc = jnp.dot(x_ref[...].astype(jnp.int32), y_ref[...].astype(jnp.int32))
        z_ref[...] = acc.astype(F32) * sx_ref[...] * sy_ref[...]

    rows, cols = pl.BlockSpec((8, 128), lambda i: (i, 0)), pl.BlockSpec((128, 128), lambda i: (0, 0))
    return pl.pallas_call(
        body,
        struct(16, 128),
        grid=(2,),
        in_specs=[rows, pl.BlockSpec((8, 1), lambda i: (i, 0)), cols, pl.BlockSpec((1, 128), lambda i: (0, 0))],
        out_specs=rows,
        **OPTIONS,
    )(x, sx, y, sy)


@kernel
def softmax_of_rows():
    def body(x_ref, o_ref):
        x = x_ref[...]
        e = jnp.exp(x - x.max(axis=-1, keepdims=True))
        o_ref[...] = e / e.sum(axis=-1, keepdims=True)

    spec = pl.BlockSpec((8, 256), lambda i: (i, 0))
    return pl.pallas_call(body, struct(32, 256), grid=(4,), in_specs=[spec], out_specs=spec, **OPTIONS)(floats(32, 256))


@kernel
def layer_norm_with_its_moments():
    def body(x_ref, g_ref, b_ref, y_ref, mean_ref, rstd_ref):
        x = x_ref[...]
        mean = x.mean(axis=1, keepdims=True)
        rstd = jax.lax.rsqrt(jnp.mean((x - mean) ** 2, axis=1, keepdims=True) + 1e-5)
        y_ref[...] = (x - mean) * rstd * g_ref[...] + b_ref[...]
        mean_ref[...], rstd_ref[...] = mean, rstd

    rows, moment = pl.BlockSpec((8, 128), lambda i: (i, 0)), pl.BlockSpec((8, 1), lambda i: (i, 0))
    whole = pl.BlockSpec((1, 128), lambda i: (0, 0))
    return pl.pallas_call(
        body,
        [struct(16, 128), struct(16, 1), struct(16, 1)],
        grid=(2,),
        in_specs=[rows, whole, whole],
        out_specs=[rows, moment, moment],
        **OPTIONS,
    )(floats(16, 128), floats(1, 128, seed=1), floats(1, 128, seed=2))


@kernel
def layer_norm_backward_with_sums_over_the_grid():
    def body(x_ref, g_ref, dy_ref, dx_ref, dg_ref):
        x, dy = x_ref[...], dy_ref[...]
        mean = x.mean(axis=1, keepdims=True)
        rstd = jax.lax.rsqrt(jnp.mean((x - mean) ** 2, axis=1, keepdims=True) + 1e-5)
        hat, scaled = (x - mean) * rstd, dy * g_ref[...]
        dx_ref[...] = rstd * (
            scaled - scaled.mean(axis=1, keepdims=True) - hat * (scaled * hat).mean(axis=1, keepdims=True)
        )

        @pl.when(pl.program_id(0) == 0)
        def _():
            dg_ref[...] = jnp.zeros_like(dg_ref)

        dg_ref[...] += (dy * hat).sum(axis=0, keepdims=True)

    rows, whole = pl.BlockSpec((8, 128), lambda i: (i, 0)), pl.BlockSpec((1, 128), lambda i: (0, 0))
    return pl.pallas_call(
        body,
        (struct(32, 128), struct(1, 128)),
        grid=(4,),
        in_specs=[rows, whole, rows],
        out_specs=(rows, whole),
        **OPTIONS,
    )(floats(32, 128), floats(1, 128, seed=1), floats(32, 128, seed=2))


@kernel
def a_sum_into_a_scalar():
    def body(x_ref, o_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            o_ref[0, 0] = 0.0

        o_ref[0, 0] += jnp.sum(x_ref[...])

    return pl.pallas_call(
        body,
        struct(1, 1),
        grid=(4,),
        in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
        out_specs=pl.BlockSpec(memory_space=pltpu.SMEM),
        **OPTIONS,
    )(floats(32, 128))


@kernel
def a_cumulative_sum_carried_over_the_grid():
    def body(x_ref, o_ref, carry_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            carry_ref[...] = jnp.zeros_like(carry_ref)

        sums = jnp.cumsum(x_ref[...], axis=0) + carry_ref[...]
        o_ref[...] = sums
        carry_ref[...] = sums[-1:]

    spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
    return pl.pallas_call(
        body,
        struct(32, 128),
        grid=(4,),
        in_specs=[spec],
        out_specs=spec,
        scratch_shapes=[pltpu.VMEM((1, 128), F32)],
        **OPTIONS,
    )(floats(32, 128))


@kernel
def a_transpose_tile_by_tile():
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...].T

    return pl.pallas_call(
        body,
        struct(256, 128),
        grid=(1, 2),
        in_specs=[pl.BlockSpec((128, 128), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((128, 128), lambda i, j: (j, i)),
        **OPTIONS,
    )(floats(128, 256))


@kernel
def a_stencil_over_blocks_and_their_neighbors():
    def body(before_ref, x_ref, after_ref, o_ref):
        i = pl.program_id(0)
        above = jnp.where(i == 0, x_ref[0:1], before_ref[7:8])
        below = jnp.where(i == pl.num_programs(0) - 1, x_ref[7:8], after_ref[0:1])
        x = jnp.concatenate([above, x_ref[...], below])
        o_ref[...] = (x[:-2] + 2 * x[1:-1] + x[2:]) / 4

    def at(move):
        return pl.BlockSpec((8, 128), lambda i: (jnp.clip(i + move, 0, 3), 0))

    x = floats(32, 128)
    return pl.pallas_call(
        body, struct(32, 128), grid=(4,), in_specs=[at(-1), at(0), at(1)], out_specs=at(0), **OPTIONS
    )(x, x, x)


@kernel
def rotary_embeddings_by_rolls():
    def body(x_ref, cos_ref, sin_ref, o_ref):
        x = x_ref[...]
        sign = jnp.where(jax.lax.broadcasted_iota(jnp.int32, x.shape, 1) < 64, -1.0, 1.0)
        o_ref[...] = x * cos_ref[...] + sign * pltpu.roll(x, 64, 1) * sin_ref[...]

    spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
    angles = floats(16, 128, seed=1)
    return pl.pallas_call(body, struct(16, 128), grid=(2,), in_specs=[spec] * 3, out_specs=spec, **OPTIONS)(
        floats(16, 128), np.cos(angles), np.sin(angles)
    )


@kernel
def an_operand_updated_in_place():
    def body(x_ref, g_ref, o_ref):
        o_ref[...] = x_ref[...] - 0.1 * g_ref[...]

    spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
    return pl.pallas_call(
        body,
        struct(16, 128),
        grid=(2,),
        in_specs=[spec] * 2,
        out_specs=spec,
        input_output_aliases={0: 0},
        **OPTIONS,
    )(jnp.asarray(floats(16, 128)), floats(16, 128, seed=1))


@kernel
def matmul_with_copies_by_hand():
    x, y = floats(32, 128), floats(128, 128, seed=1)

    def body(x_hbm, y_hbm, z_hbm, x_ref, y_ref, z_ref, sems, out_sem):
        pltpu.sync_copy(y_hbm, y_ref)

        def fetch(i):
            return pltpu.make_async_copy(x_hbm.at[pl.ds(i * 8, 8)], x_ref.at[i % 2], sems.at[i % 2])

        def write(i):
            return pltpu.make_async_copy(z_ref.at[i % 2], z_hbm.at[pl.ds(i * 8, 8)], out_sem.at[i % 2])

        fetch(0).start()

        def step(i, _):
            @pl.when(i + 1 < 4)
            def _():
                fetch(i + 1).start()

            fetch(i).wait()

            @pl.when(i >= 2)
            def _():
                write(i - 2).wait()

            z_ref[i % 2] = x_ref[i % 2] @ y_ref[...]
            write(i).start()
            return 0

        jax.lax.fori_loop(0, 4, step, 0)
        write(2).wait()
        write(3).wait()

    any_ = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        body,
        struct(32, 128),
        in_specs=[any_, any_],
        out_specs=any_,
        scratch_shapes=[
            pltpu.VMEM((2, 8, 128), F32),
            pltpu.VMEM((128, 128), F32),
            pltpu.VMEM((2, 8, 128), F32),
            pltpu.SemaphoreType.DMA((2,)),
            pltpu.SemaphoreType.DMA((2,)),
        ],
        **OPTIONS,
    )(x, y)
