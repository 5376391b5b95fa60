"""What guides show step by step: scans, norms, sorts, experts, caches, convolutions, buffers filled by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

OPTIONS = {}
KERNELS = {}
F32 = jnp.float32
ANY = pl.BlockSpec(memory_space=pl.ANY)
SMEM = pl.BlockSpec(memory_space=pltpu.SMEM)


def kernel(function):
    KERNELS[function.__name__] = function
    return function


def floats(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def struct(*shape, dtype=F32):
    return jax.ShapeDtypeStruct(shape, dtype)


def iota(shape, dim):
    return lax.broadcasted_iota(jnp.int32, shape, dim)


@kernel
def a_scan_within_a_block_by_rolls():
    """Sums of all lanes up to each, in log steps, and a carry from block to block."""

    def body(x_ref, out_ref, carry):
        @pl.when(pl.program_id(1) == 0)
        def _():
            carry[...] = jnp.zeros_like(carry)

        x = x_ref[...]
        lane = iota(x.shape, 1)
        shift = 1
        while shift < x.shape[1]:
            x = x + jnp.where(lane >= shift, pltpu.roll(x, shift, 1), 0.0)
            shift *= 2
        x = x + carry[...]
        out_ref[...] = x
        carry[...] = x[:, -1:]

    spec = pl.BlockSpec((8, 128), lambda i, j: (i, j))
    return pl.pallas_call(
        body,
        out_shape=struct(16, 384),
        grid=(2, 3),
        in_specs=[spec],
        out_specs=spec,
        scratch_shapes=[pltpu.VMEM((8, 1), F32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        **OPTIONS,
    )(floats(16, 384))


@kernel
def a_state_space_scan():
    """h = a h + b x along the sequence, a step at a time inside of a chunk; the state goes from chunk to chunk."""

    def body(a_ref, b_ref, x_ref, out_ref, last_ref, state):
        chunk = pl.program_id(1)

        @pl.when(chunk == 0)
        def _():
            state[...] = jnp.zeros_like(state)

        def step(t, h):
            h = a_ref[pl.ds(t, 1)] * h + b_ref[pl.ds(t, 1)] * x_ref[pl.ds(t, 1)]
            out_ref[pl.ds(t, 1)] = h
            return h

        state[...] = lax.fori_loop(0, x_ref.shape[0], step, state[...], unroll=2)

        @pl.when(chunk == pl.num_programs(1) - 1)
        def _():
            last_ref[...] = state[...]

    rows = pl.BlockSpec((8, 128), lambda d, c: (c, d))
    return pl.pallas_call(
        body,
        out_shape=[struct(32, 256), struct(1, 256)],
        grid=(2, 4),
        in_specs=[rows] * 3,
        out_specs=[rows, pl.BlockSpec((1, 128), lambda d, c: (0, d))],
        scratch_shapes=[pltpu.VMEM((1, 128), F32)],
        **OPTIONS,
    )(jax.nn.sigmoid(floats(32, 256)), floats(32, 256, seed=1), floats(32, 256, seed=2))


@kernel
def rms_norm_of_a_residual_sum():
    """Two results: the sum goes on as it is, and normed."""

    def body(x_ref, y_ref, scale_ref, sum_ref, out_ref):
        total = x_ref[...].astype(F32) + y_ref[...].astype(F32)
        sum_ref[...] = total.astype(sum_ref.dtype)
        mean = jnp.mean(jnp.square(total), axis=-1, keepdims=True)
        out_ref[...] = (total * lax.rsqrt(mean + 1e-6) * scale_ref[...]).astype(out_ref.dtype)

    rows = pl.BlockSpec((16, 128), lambda i: (i, 0))
    bf16 = functools.partial(jnp.asarray, dtype=jnp.bfloat16)
    return pl.pallas_call(
        body,
        out_shape=(struct(64, 128, dtype=jnp.bfloat16), struct(64, 128, dtype=jnp.bfloat16)),
        grid=(4,),
        in_specs=[rows, rows, pl.BlockSpec((1, 128), lambda i: (0, 0))],
        out_specs=(rows, rows),
        **OPTIONS,
    )(bf16(floats(64, 128)), bf16(floats(64, 128, seed=1)), floats(1, 128, seed=2))


@kernel
def a_cross_entropy_over_blocks_of_the_vocabulary():
    """The logarithm of the sum of exponentials and the label's own logit, a block of columns at a time."""

    def body(labels_ref, logits_ref, out_ref, top, total, picked):
        block = pl.program_id(1)

        @pl.when(block == 0)
        def _():
            top[...] = jnp.full_like(top, -jnp.inf)
            total[...] = jnp.zeros_like(total)
            picked[...] = jnp.zeros_like(picked)

        logits = logits_ref[...]
        column = block * logits.shape[1] + iota(logits.shape, 1)
        logits = jnp.where(column < 300, logits, -jnp.inf)  # the vocabulary ends inside the last block
        largest = jnp.maximum(top[...], logits.max(axis=1, keepdims=True))
        total[...] = total[...] * jnp.exp(top[...] - largest) + jnp.exp(logits - largest).sum(axis=1, keepdims=True)
        top[...] = largest
        picked[...] += jnp.where(column == labels_ref[...], logits, 0.0).sum(axis=1, keepdims=True)

        @pl.when(block == pl.num_programs(1) - 1)
        def _():
            out_ref[...] = top[...] + jnp.log(total[...]) - picked[...]

    one = pl.BlockSpec((8, 1), lambda i, j: (i, 0))
    labels = np.random.default_rng(3).integers(0, 300, size=(16, 1)).astype(np.int32)
    return pl.pallas_call(
        body,
        out_shape=struct(16, 1),
        grid=(2, pl.cdiv(300, 128)),
        in_specs=[one, pl.BlockSpec((8, 128), lambda i, j: (i, j))],
        out_specs=one,
        scratch_shapes=[pltpu.VMEM((8, 1), F32)] * 3,
        **OPTIONS,
    )(labels, 3 * floats(16, 300))


@kernel
def the_largest_few_of_each_row():
    """One after the other is taken out."""

    def body(x_ref, values_ref, places_ref):
        x = x_ref[...]
        lane = iota(x.shape, 1)
        values, places = jnp.zeros((8, 128), F32), jnp.zeros((8, 128), jnp.int32)

        def step(k, carry):
            x, values, places = carry
            top = x.max(axis=1, keepdims=True)
            at = jnp.where(x == top, lane, x.shape[1]).min(axis=1, keepdims=True)
            here = iota(values.shape, 1) == k
            return (
                jnp.where(lane == at, -jnp.inf, x),
                jnp.where(here, top, values),
                jnp.where(here, at, places),
            )

        _, values, places = lax.fori_loop(0, 5, step, (x, values, places))
        values_ref[...] = values[:, :5]
        places_ref[...] = places[:, :5]

    rows = [pl.BlockSpec((8, n), lambda i: (i, 0)) for n in (200, 5, 5)]
    return pl.pallas_call(
        body,
        out_shape=[struct(24, 5), struct(24, 5, dtype=jnp.int32)],
        grid=(3,),
        in_specs=rows[:1],
        out_specs=rows[1:],
        **OPTIONS,
    )(floats(24, 200))


@kernel
def a_bitonic_sort_of_lanes():
    """Compare and exchange with the lane whose number differs in one bit."""

    def body(x_ref, out_ref):
        x = x_ref[...]
        n = x.shape[1]
        lane = iota(x.shape, 1)
        size = 2
        while size <= n:
            stride = size // 2
            while stride:
                low = (lane & stride) == 0
                other = jnp.where(low, pltpu.roll(x, n - stride, 1), pltpu.roll(x, stride, 1))
                ascending = (lane & size) == 0
                x = jnp.where(low == ascending, jnp.minimum(x, other), jnp.maximum(x, other))
                stride //= 2
            size *= 2
        out_ref[...] = x

    return pl.pallas_call(body, out_shape=struct(8, 128), **OPTIONS)(floats(8, 128))


@kernel
def tokens_gathered_for_experts():
    """Rows come by copies of their own, several under way at once, as scalars in SMEM say; masked by a count."""
    sizes, at_once = np.array([3, 0, 8, 5], np.int32), 3
    rows = np.random.default_rng(0).permutation(32)[:32].reshape(4, 8).astype(np.int32)

    def body(count_ref, rows_ref, x_ref, w_ref, out_ref, block, sems):
        expert = pl.program_id(0)
        count = count_ref[expert]

        def copy(n):
            return pltpu.make_async_copy(
                x_ref.at[pl.ds(rows_ref[expert, n], 1)], block.at[pl.ds(n, 1)], sems.at[lax.rem(n, at_once)]
            )

        def start(n, _):
            @pl.when(n < count)
            def _():
                copy(n).start()

        lax.fori_loop(0, at_once, start, None)

        def step(n, _):
            copy(n).wait()
            start(n + at_once, None)

        lax.fori_loop(0, count, step, None)
        there = iota(block.shape, 0) < count
        out_ref[...] = jnp.dot(jnp.where(there, block[...], 0.0), w_ref[...], preferred_element_type=F32)

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=2,
        grid=(4,),
        in_specs=[ANY, pl.BlockSpec((None, 64, 128), lambda e, *_: (e, 0, 0))],
        out_specs=pl.BlockSpec((None, 8, 128), lambda e, *_: (e, 0, 0)),
        scratch_shapes=[pltpu.VMEM((8, 64), F32), pltpu.SemaphoreType.DMA((at_once,))],
    )
    return pl.pallas_call(body, out_shape=struct(4, 8, 128), grid_spec=spec, **OPTIONS)(
        sizes, rows, floats(32, 64), floats(4, 64, 128, seed=1)
    )


@kernel
def tokens_combined_from_experts():
    """Each token is the weighted sum of the rows of two experts, which index maps find."""

    def body(places_ref, first_ref, second_ref, weight_ref, out_ref):
        weight = weight_ref[...]
        out_ref[...] = first_ref[...] * weight[:, :1] + second_ref[...] * weight[:, 1:]

    places = np.random.default_rng(1).integers(0, 16, size=(12, 2)).astype(np.int32)
    row = [pl.BlockSpec((pl.squeezed, 1, 128), lambda t, p, k=k: (p[t, k], 0, 0)) for k in (0, 1)]
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(12,),
        in_specs=[*row, pl.BlockSpec((pl.squeezed, 1, 2), lambda t, p: (t, 0, 0))],
        out_specs=pl.BlockSpec((pl.squeezed, 1, 128), lambda t, p: (t, 0, 0)),
    )
    x = floats(16, 1, 128)
    return pl.pallas_call(body, out_shape=struct(12, 1, 128), grid_spec=spec, **OPTIONS)(
        places, x, x, jax.nn.softmax(floats(12, 1, 2, seed=2), axis=-1)
    )


@kernel
def blocks_fetched_by_hand_into_two_buffers():
    """While a block is worked on the next one comes; results leave through two buffers, too."""
    blocks, size = 6, 16

    def body(x_ref, out_ref, ins, outs, came, gone):
        def fetch(n):
            slot = lax.rem(n, 2)
            return pltpu.make_async_copy(x_ref.at[pl.ds(n * size, size)], ins.at[slot], came.at[slot])

        def leave(n):
            slot = lax.rem(n, 2)
            return pltpu.make_async_copy(outs.at[slot], out_ref.at[pl.ds(n * size, size)], gone.at[slot])

        fetch(0).start()

        @pl.loop(0, blocks)
        def _(n):
            @pl.when(n + 1 < blocks)
            def _():
                fetch(n + 1).start()

            fetch(n).wait()

            @pl.when(n >= 2)
            def _():
                leave(n - 2).wait()

            outs[lax.rem(n, 2)] = jnp.tanh(ins[lax.rem(n, 2)]) + n
            leave(n).start()

        leave(blocks - 2).wait()
        leave(blocks - 1).wait()

    buffers = pltpu.VMEM((2, size, 128), F32)
    sems = pltpu.SemaphoreType.DMA((2,))
    return pl.pallas_call(
        body,
        out_shape=struct(blocks * size, 128),
        in_specs=[ANY],
        out_specs=ANY,
        scratch_shapes=[buffers, buffers, sems, sems],
        **OPTIONS,
    )(floats(blocks * size, 128))


@kernel
def decoding_with_keys_in_parts():
    """Each part of the keys gives a result, a largest score and a sum; a second kernel puts them together."""
    heads, length, depth, parts = 8, 64, 128, 4

    def partial_(length_ref, q_ref, k_ref, v_ref, out_ref, top_ref, total_ref):
        part, size = pl.program_id(0), length // parts
        scores = lax.dot_general(q_ref[...], k_ref[...], (((1,), (1,)), ((), ())), preferred_element_type=F32)
        scores = jnp.where(part * size + iota(scores.shape, 1) < length_ref[0], scores, -1e30)
        top = scores.max(axis=1, keepdims=True)
        weights = jnp.exp(scores - top)
        weights = jnp.where(top > -1e29, weights, 0.0)
        top_ref[...], total_ref[...] = top, weights.sum(axis=1, keepdims=True)
        out_ref[...] = jnp.dot(weights, v_ref[...], preferred_element_type=F32)

    def combine(outs_ref, tops_ref, totals_ref, out_ref):
        tops = tops_ref[...]
        scale = jnp.exp(tops - tops.max(axis=0, keepdims=True))
        total = (totals_ref[...] * scale).sum(axis=0)
        out_ref[...] = (outs_ref[...] * scale).sum(axis=0) / total

    keys = pl.BlockSpec((length // parts, depth), lambda p, n: (p, 0))
    of_part = [pl.BlockSpec((None, heads, n), lambda p, n: (p, 0, 0)) for n in (depth, 1, 1)]
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(parts,),
        in_specs=[pl.BlockSpec((heads, depth), lambda p, n: (0, 0)), keys, keys],
        out_specs=of_part,
    )
    found = pl.pallas_call(
        partial_, out_shape=[struct(parts, heads, n) for n in (depth, 1, 1)], grid_spec=spec, **OPTIONS
    )(np.array([37], np.int32), floats(heads, depth) / 8, floats(length, depth, seed=1), floats(length, depth, seed=2))
    return pl.pallas_call(combine, out_shape=struct(heads, depth), **OPTIONS)(*found)


@kernel
def a_convolution_as_products():
    """Rows of the image overlap; a product for each place of the filter."""
    height, width, channels, features = 10, 12, 16, 32

    def body(x_ref, w_ref, out_ref, acc):
        acc[...] = jnp.zeros_like(acc)
        for i in range(3):
            for j in range(3):
                patch = x_ref[i : i + 2, j : j + width - 2].reshape(2 * (width - 2), channels)
                acc[...] += jnp.dot(patch, w_ref[i, j], preferred_element_type=F32)
        out_ref[...] = jnp.maximum(acc[...], 0.0).reshape(out_ref.shape)

    shape = (pl.Squeezed(), pl.Element(4), pl.Element(width), pl.Element(channels))
    image = pl.BlockSpec(shape, lambda n, r: (n, 2 * r, 0, 0))
    return pl.pallas_call(
        body,
        out_shape=struct(2, height - 2, width - 2, features),
        grid=(2, (height - 2) // 2),
        in_specs=[image, pl.BlockSpec((3, 3, channels, features), lambda n, r: (0, 0, 0, 0))],
        out_specs=pl.BlockSpec((None, 2, width - 2, features), lambda n, r: (n, r, 0, 0)),
        scratch_shapes=[pltpu.VMEM((2 * (width - 2), features), F32)],
        **OPTIONS,
    )(floats(2, height, width, channels), floats(3, 3, channels, features, seed=1))


@kernel
def an_optimizer_in_place():
    """Parameters and both moments are updated where they are; the step's number is a scalar."""

    def body(step_ref, grad_ref, p_ref, m_ref, v_ref, p_out, m_out, v_out):
        t = step_ref[0].astype(F32)
        g = grad_ref[...]
        m = 0.9 * m_ref[...] + 0.1 * g
        v = 0.99 * v_ref[...] + 0.01 * g * g
        m_out[...], v_out[...] = m, v
        m, v = m / (1 - jnp.power(0.9, t)), v / (1 - jnp.power(0.99, t))
        p_out[...] = p_ref[...] - 0.1 * m / (jnp.sqrt(v) + 1e-8)

    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    return pl.pallas_call(
        body,
        out_shape=[struct(32, 128)] * 3,
        grid=(4,),
        in_specs=[SMEM, *[block] * 4],
        out_specs=[block] * 3,
        input_output_aliases={2: 0, 3: 1, 4: 2},
        **OPTIONS,
    )(np.array([3], np.int32), *(floats(32, 128, seed=n) for n in range(3)), np.abs(floats(32, 128, seed=4)))


@kernel
def weights_of_four_bits():
    """Two numbers of four bits in each byte, and a scale for each block of rows."""

    def body(x_ref, packed_ref, scale_ref, out_ref, acc):
        k = pl.program_id(1)

        @pl.when(k == 0)
        def _():
            acc[...] = jnp.zeros_like(acc)

        packed = packed_ref[...].astype(jnp.int32)
        low = ((packed & 15) ^ 8) - 8
        high = lax.shift_right_arithmetic(packed, jnp.full_like(packed, 4))
        weights = jnp.concatenate([low, high], axis=0).astype(F32)
        acc[...] += jnp.dot(x_ref[...], weights, preferred_element_type=F32) * scale_ref[...]

        @pl.when(k == pl.num_programs(1) - 1)
        def _():
            out_ref[...] = acc[...].astype(out_ref.dtype)

    packed = np.random.default_rng(0).integers(-128, 128, size=(64, 256)).astype(np.int8)
    return pl.pallas_call(
        body,
        out_shape=struct(8, 256),
        grid=(2, 4),
        in_specs=[
            pl.BlockSpec((8, 32), lambda j, k: (0, k)),
            pl.BlockSpec((16, 128), lambda j, k: (k, j)),
            pl.BlockSpec((None, 1, 128), lambda j, k: (k, 0, j)),
        ],
        out_specs=pl.BlockSpec((8, 128), lambda j, k: (0, j)),
        scratch_shapes=[pltpu.VMEM((8, 128), F32)],
        **OPTIONS,
    )(floats(8, 128), packed, np.abs(floats(4, 1, 256, seed=1)))


@kernel
def rows_put_into_a_cache():
    """New keys are copied into pages of a cache that stays where it is, a page and a place for each."""

    def body(page_ref, place_ref, new_ref, cache_in, cache_ref, sem):
        del cache_in

        @pl.loop(0, 6)
        def _(n):
            there = cache_ref.at[page_ref[n], pl.ds(place_ref[n], 1)]
            copy = pltpu.make_async_copy(new_ref.at[pl.ds(n, 1)], there, sem)
            copy.start()
            copy.wait()

    return pl.pallas_call(
        body,
        out_shape=struct(4, 8, 128),
        in_specs=[SMEM, SMEM, pl.BlockSpec(memory_space=pltpu.VMEM), ANY],
        out_specs=ANY,
        scratch_shapes=[pltpu.SemaphoreType.DMA],
        input_output_aliases={3: 0},
        **OPTIONS,
    )(
        np.array([0, 3, 3, 1, 2, 0], np.int32),
        np.array([7, 0, 5, 2, 2, 1], np.int32),
        floats(6, 128),
        floats(4, 8, 128, seed=1),
    )


@kernel
def linear_attention_by_chunks():
    """Within a chunk by a masked product, before it by a state of keys times values."""
    length, depth, chunk = 64, 32, 16

    def body(q_ref, k_ref, v_ref, out_ref, state):
        @pl.when(pl.program_id(1) == 0)
        def _():
            state[...] = jnp.zeros_like(state)

        q, k, v = q_ref[...], k_ref[...], v_ref[...]
        scores = jnp.einsum("td,sd->ts", q, k, preferred_element_type=F32)
        scores = jnp.where(iota(scores.shape, 0) >= iota(scores.shape, 1), scores, 0.0)
        out_ref[...] = scores @ v + q @ state[...]
        state[...] += jnp.einsum("td,te->de", k, v, preferred_element_type=F32)

    spec = pl.BlockSpec((None, chunk, depth), lambda h, c: (h, c, 0))
    return pl.pallas_call(
        body,
        out_shape=struct(2, length, depth),
        grid=(2, length // chunk),
        in_specs=[spec] * 3,
        out_specs=spec,
        scratch_shapes=[pltpu.VMEM((depth, depth), F32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=(pltpu.PARALLEL, pltpu.ARBITRARY)),
        **OPTIONS,
    )(*(floats(2, length, depth, seed=n) / 4 for n in range(3)))


@kernel
def sums_of_segments():
    """Rows of one segment lie next to each other; each block of rows adds to the segments that it meets."""
    ids = np.sort(np.random.default_rng(0).integers(0, 6, size=48)).astype(np.int32)

    def body(ids_ref, x_ref, out_ref):
        step = pl.program_id(0)

        @pl.when(step == 0)
        def _():
            out_ref[...] = jnp.zeros_like(out_ref)

        first, last = ids_ref[step * 8], ids_ref[step * 8 + 7]

        def add(segment, _):
            rows = jnp.stack([ids_ref[step * 8 + r] for r in range(8)]) == segment
            total = jnp.where(rows[:, None], x_ref[...], 0.0).sum(axis=0, keepdims=True)
            out_ref[pl.ds(segment, 1)] += total

        lax.fori_loop(first, last + 1, add, None)

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(6,),
        in_specs=[pl.BlockSpec((8, 128), lambda i, ids: (i, 0))],
        out_specs=pl.BlockSpec((6, 128), lambda i, ids: (0, 0)),
    )
    return pl.pallas_call(body, out_shape=struct(6, 128), grid_spec=spec, **OPTIONS)(ids, floats(48, 128))


@kernel
def newton_steps_until_they_are_small():
    """A loop whose length the numbers say, and a branch beside it."""

    def body(x_ref, out_ref, steps_ref):
        x = x_ref[...]

        def more(state):
            _, change, n = state
            return (change > 1e-4) & (n < 20)

        def step(state):
            y, _, n = state
            new = 0.5 * (y + x / y)
            return new, jnp.max(jnp.abs(new - y)), n + 1

        y, _, n = lax.while_loop(more, step, (x, jnp.float32(1.0), jnp.int32(0)))
        out_ref[...] = lax.cond(n > 10, lambda: y, lambda: -y)
        steps_ref[0] = n

    return pl.pallas_call(
        body,
        out_shape=[struct(8, 128), struct(1, dtype=jnp.int32)],
        out_specs=[pl.BlockSpec(memory_space=pltpu.VMEM), SMEM],
        **OPTIONS,
    )(np.abs(floats(8, 128)) + 0.1)


@kernel
def scratch_memory_of_scopes():
    """Memory that lives as long as a function, and a copy that is over when it ends."""

    def body(x_ref, out_ref):
        def first(block, sem):
            pltpu.async_copy(x_ref.at[pl.ds(0, 8)], block, sem).wait()
            return block[...].sum(axis=0, keepdims=True)

        def second(total, block, sem):
            pltpu.async_copy(x_ref.at[pl.ds(8, 8)], block, sem).wait()
            out_ref[...] = block[...] - total

        dma = pltpu.SemaphoreType.DMA
        total = pl.run_scoped(first, pltpu.VMEM((8, 128), F32), dma)
        pl.run_scoped(functools.partial(second, total), block=pltpu.VMEM((8, 128), F32), sem=dma)

    return pl.pallas_call(body, out_shape=struct(8, 128), in_specs=[ANY], **OPTIONS)(floats(16, 128))


@kernel
def a_batch_by_vmap():
    """A kernel for one matrix, over several."""

    def body(x_ref, scale_ref, out_ref):
        x = x_ref[...]
        out_ref[...] = (x - x.mean(axis=1, keepdims=True)) * scale_ref[...]

    spec = pl.BlockSpec((8, 128), lambda i: (i, 0))

    def one(x, scale):
        return pl.pallas_call(
            body,
            out_shape=struct(16, 128),
            grid=(2,),
            in_specs=[spec, pl.BlockSpec((1, 128), lambda i: (0, 0))],
            out_specs=spec,
            **OPTIONS,
        )(x, scale)

    return jax.vmap(one, in_axes=(0, None))(floats(3, 16, 128), floats(1, 128, seed=1))


@kernel
def a_function_with_a_derivative_by_hand():
    """Forward and backward are kernels; JAX's grad puts them together."""

    def forward_body(x_ref, out_ref):
        out_ref[...] = x_ref[...] * jax.nn.sigmoid(x_ref[...])

    def backward_body(x_ref, d_ref, out_ref):
        s = jax.nn.sigmoid(x_ref[...])
        out_ref[...] = d_ref[...] * s * (1 + x_ref[...] * (1 - s))

    spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
    call = functools.partial(pl.pallas_call, out_shape=struct(16, 128), grid=(2,), out_specs=spec, **OPTIONS)

    @jax.custom_vjp
    def silu(x):
        return call(forward_body, in_specs=[spec])(x)

    silu.defvjp(lambda x: (silu(x), x), lambda x, d: (call(backward_body, in_specs=[spec] * 2)(x, d),))
    value, gradient = jax.value_and_grad(lambda x: (silu(x) ** 2).sum())(floats(16, 128))
    return value, gradient
