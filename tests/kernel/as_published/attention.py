"""Attention: flash forward and backward, decoding, pages, ragged sequences."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

OPTIONS = {}
KERNELS = {}
F32 = jnp.float32
NEVER = -1e30


def kernel(function):
    KERNELS[function.__name__] = function
    return function


def floats(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def struct(*shape, dtype=F32):
    return jax.ShapeDtypeStruct(shape, dtype)


def iota(shape, dim):
    return jax.lax.broadcasted_iota(jnp.int32, shape, dim)


def _start(m_ref, l_ref, acc_ref):
    m_ref[...] = jnp.full_like(m_ref, NEVER)
    l_ref[...] = jnp.zeros_like(l_ref)
    acc_ref[...] = jnp.zeros_like(acc_ref)


def _add(scores, v, m_ref, l_ref, acc_ref):
    """One more block of keys in a softmax that goes on."""
    m = jnp.maximum(m_ref[...], scores.max(axis=1, keepdims=True))
    p = jnp.exp(scores - m)
    scale = jnp.exp(m_ref[...] - m)
    l_ref[...] = l_ref[...] * scale + p.sum(axis=1, keepdims=True)
    acc_ref[...] = acc_ref[...] * scale + p @ v
    m_ref[...] = m


def _running(rows, depth):
    return [pltpu.VMEM((rows, 1), F32), pltpu.VMEM((rows, 1), F32), pltpu.VMEM((rows, depth), F32)]


def _forward(q, k, v, causal, rows=16, keys=16):
    heads, length, depth = q.shape

    def body(q_ref, k_ref, v_ref, o_ref, lse_ref, m_ref, l_ref, acc_ref):
        i, j = pl.program_id(1), pl.program_id(2)

        @pl.when(j == 0)
        def _():
            _start(m_ref, l_ref, acc_ref)

        @pl.when((not causal) | (j * keys < (i + 1) * rows))
        def _():
            scores = q_ref[...] @ k_ref[...].T / np.sqrt(depth)
            if causal:
                seen = i * rows + iota((rows, keys), 0) >= j * keys + iota((rows, keys), 1)
                scores = jnp.where(seen, scores, NEVER)
            _add(scores, v_ref[...], m_ref, l_ref, acc_ref)

        @pl.when(j == pl.num_programs(2) - 1)
        def _():
            o_ref[...] = acc_ref[...] / l_ref[...]
            lse_ref[...] = m_ref[...] + jnp.log(l_ref[...])

    at_q = pl.BlockSpec((None, rows, depth), lambda h, i, j: (h, i, 0))
    at_k = pl.BlockSpec((None, keys, depth), lambda h, i, j: (h, j, 0))
    return pl.pallas_call(
        body,
        (struct(*q.shape), struct(heads, length, 1)),
        grid=(heads, length // rows, k.shape[1] // keys),
        in_specs=[at_q, at_k, at_k],
        out_specs=(at_q, pl.BlockSpec((None, rows, 1), lambda h, i, j: (h, i, 0))),
        scratch_shapes=_running(rows, depth),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        **OPTIONS,
    )(q, k, v)


def qkv(heads=2, length=48, depth=32):
    return tuple(floats(heads, length, depth, seed=n) for n in range(3))


@kernel
def flash_attention():
    return _forward(*qkv(), causal=False)


@kernel
def causal_flash_attention():
    return _forward(*qkv(), causal=True)


def _probabilities(q_ref, k_ref, lse_ref, i, j, rows, keys, depth):
    scores = q_ref[...] @ k_ref[...].T / np.sqrt(depth)
    seen = i * rows + iota((rows, keys), 0) >= j * keys + iota((rows, keys), 1)
    return jnp.where(seen, jnp.exp(scores - lse_ref[...]), 0.0)


def _saved():
    q, k, v = qkv()
    scores = np.einsum("hqd,hkd->hqk", q, k) / np.sqrt(q.shape[-1])
    scores = np.where(np.tril(np.ones(scores.shape[1:], bool)), scores, NEVER)
    lse = np.log(np.exp(scores - scores.max(-1, keepdims=True)).sum(-1, keepdims=True)) + scores.max(-1, keepdims=True)
    out = np.einsum("hqk,hkd->hqd", np.exp(scores - lse), v)
    do = floats(*q.shape, seed=7)
    delta = (out * do).sum(-1, keepdims=True)
    return [np.asarray(x, np.float32) for x in (q, k, v, do, lse, delta)]


@kernel
def flash_attention_backward_of_the_queries():
    rows = keys = 16
    args = _saved()
    heads, length, depth = args[0].shape

    def body(q_ref, k_ref, v_ref, do_ref, lse_ref, delta_ref, dq_ref, acc_ref):
        i, j = pl.program_id(1), pl.program_id(2)

        @pl.when(j == 0)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        @pl.when(j <= i)
        def _():
            p = _probabilities(q_ref, k_ref, lse_ref, i, j, rows, keys, depth)
            ds = p * (do_ref[...] @ v_ref[...].T - delta_ref[...])
            acc_ref[...] += ds @ k_ref[...] / np.sqrt(depth)

        @pl.when(j == pl.num_programs(2) - 1)
        def _():
            dq_ref[...] = acc_ref[...]

    def at(width, axis):
        return pl.BlockSpec((None, 16, width), lambda h, i, j: (h, (i, j)[axis], 0))

    return pl.pallas_call(
        body,
        struct(heads, length, depth),
        grid=(heads, length // rows, length // keys),
        in_specs=[at(depth, 0), at(depth, 1), at(depth, 1), at(depth, 0), at(1, 0), at(1, 0)],
        out_specs=at(depth, 0),
        scratch_shapes=[pltpu.VMEM((rows, depth), F32)],
        **OPTIONS,
    )(*args)


@kernel
def flash_attention_backward_of_the_keys_and_values():
    rows = keys = 16
    args = _saved()
    heads, length, depth = args[0].shape

    def body(q_ref, k_ref, v_ref, do_ref, lse_ref, delta_ref, dk_ref, dv_ref, dk_acc, dv_acc):
        j, i = pl.program_id(1), pl.program_id(2)

        @pl.when(i == 0)
        def _():
            dk_acc[...] = jnp.zeros_like(dk_acc)
            dv_acc[...] = jnp.zeros_like(dv_acc)

        @pl.when(j <= i)
        def _():
            p = _probabilities(q_ref, k_ref, lse_ref, i, j, rows, keys, depth)
            dv_acc[...] += p.T @ do_ref[...]
            ds = p * (do_ref[...] @ v_ref[...].T - delta_ref[...])
            dk_acc[...] += ds.T @ q_ref[...] / np.sqrt(depth)

        @pl.when(i == pl.num_programs(2) - 1)
        def _():
            dk_ref[...], dv_ref[...] = dk_acc[...], dv_acc[...]

    def at(width, axis):
        return pl.BlockSpec((None, 16, width), lambda h, j, i: (h, (j, i)[axis], 0))

    return pl.pallas_call(
        body,
        (struct(heads, length, depth),) * 2,
        grid=(heads, length // keys, length // rows),
        in_specs=[at(depth, 1), at(depth, 0), at(depth, 0), at(depth, 1), at(1, 1), at(1, 1)],
        out_specs=(at(depth, 0),) * 2,
        scratch_shapes=[pltpu.VMEM((keys, depth), F32)] * 2,
        **OPTIONS,
    )(*args)


@kernel
def grouped_query_decoding():
    groups, shared, depth, length = 2, 8, 32, 64
    q, k, v = (
        floats(groups, shared, depth),
        floats(groups, length, depth, seed=1),
        floats(groups, length, depth, seed=2),
    )
    lengths = np.array([40, 64], np.int32)

    def body(lengths_ref, q_ref, k_ref, v_ref, o_ref, m_ref, l_ref, acc_ref):
        g, j = pl.program_id(0), pl.program_id(1)

        @pl.when(j == 0)
        def _():
            _start(m_ref, l_ref, acc_ref)

        @pl.when(j * 16 < lengths_ref[g])
        def _():
            scores = q_ref[...] @ k_ref[...].T / np.sqrt(depth)
            scores = jnp.where(j * 16 + iota((shared, 16), 1) < lengths_ref[g], scores, NEVER)
            _add(scores, v_ref[...], m_ref, l_ref, acc_ref)

        @pl.when(j == pl.num_programs(1) - 1)
        def _():
            o_ref[...] = acc_ref[...] / l_ref[...]

    at_k = pl.BlockSpec((None, 16, depth), lambda g, j, lengths: (g, j, 0))
    at_q = pl.BlockSpec((None, shared, depth), lambda g, j, lengths: (g, 0, 0))
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1, grid=(groups, length // 16), in_specs=[at_q, at_k, at_k], out_specs=at_q,
        scratch_shapes=_running(shared, depth),
    )  # fmt: skip
    return pl.pallas_call(body, struct(*q.shape), grid_spec=spec, **OPTIONS)(lengths, q, k, v)


def pages(count=9, size=8, depth=32):
    return floats(count, size, depth, seed=3), floats(count, size, depth, seed=4)


TABLE = np.array([[3, 1, 7, 0], [2, 8, 4, 5]], np.int32)
LENGTHS = np.array([19, 32], np.int32)


@kernel
def paged_attention_by_index_maps():
    q = floats(2, 8, 32)
    keys, values = pages()

    def body(table_ref, lengths_ref, q_ref, k_ref, v_ref, o_ref, m_ref, l_ref, acc_ref):
        b, j = pl.program_id(0), pl.program_id(1)

        @pl.when(j == 0)
        def _():
            _start(m_ref, l_ref, acc_ref)

        scores = q_ref[...] @ k_ref[...].T
        scores = jnp.where(j * 8 + iota((8, 8), 1) < lengths_ref[b], scores, NEVER)
        _add(scores, v_ref[...], m_ref, l_ref, acc_ref)

        @pl.when(j == pl.num_programs(1) - 1)
        def _():
            o_ref[...] = acc_ref[...] / l_ref[...]

    at_page = pl.BlockSpec((None, 8, 32), lambda b, j, table, lengths: (table[b, j], 0, 0))
    at_q = pl.BlockSpec((None, 8, 32), lambda b, j, table, lengths: (b, 0, 0))
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=2, grid=(2, 4), in_specs=[at_q, at_page, at_page], out_specs=at_q,
        scratch_shapes=_running(8, 32),
    )  # fmt: skip
    return pl.pallas_call(body, struct(2, 8, 32), grid_spec=spec, **OPTIONS)(TABLE, LENGTHS, q, keys, values)


@kernel
def paged_attention_with_pages_copied_by_hand():
    q = floats(2, 8, 32)
    keys, values = pages()

    def body(table_ref, lengths_ref, q_ref, k_hbm, v_hbm, o_ref, k_buf, v_buf, sems, m_ref, l_ref, acc_ref):
        b = pl.program_id(0)
        count = (lengths_ref[b] + 7) // 8

        def copies(j):
            slot, page = j % 2, table_ref[b, j]
            return (
                pltpu.make_async_copy(k_hbm.at[page], k_buf.at[slot], sems.at[0, slot]),
                pltpu.make_async_copy(v_hbm.at[page], v_buf.at[slot], sems.at[1, slot]),
            )

        _start(m_ref, l_ref, acc_ref)
        for copy in copies(0):
            copy.start()

        def step(j, _):
            @pl.when(j + 1 < count)
            def _():
                for copy in copies(j + 1):
                    copy.start()

            for copy in copies(j):
                copy.wait()
            slot = j % 2
            scores = q_ref[...] @ k_buf[slot].T
            scores = jnp.where(j * 8 + iota((8, 8), 1) < lengths_ref[b], scores, NEVER)
            _add(scores, v_buf[slot], m_ref, l_ref, acc_ref)
            return 0

        jax.lax.fori_loop(0, count, step, 0)
        o_ref[...] = acc_ref[...] / l_ref[...]

    at_q = pl.BlockSpec((None, 8, 32), lambda b, table, lengths: (b, 0, 0))
    any_ = pl.BlockSpec(memory_space=pl.ANY)
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=2, grid=(2,), in_specs=[at_q, any_, any_], out_specs=at_q,
        scratch_shapes=[
            pltpu.VMEM((2, 8, 32), F32), pltpu.VMEM((2, 8, 32), F32), pltpu.SemaphoreType.DMA((2, 2)), *_running(8, 32),
        ],
    )  # fmt: skip
    return pl.pallas_call(body, struct(2, 8, 32), grid_spec=spec, **OPTIONS)(TABLE, LENGTHS, q, keys, values)


@kernel
def ragged_paged_attention():
    """Queries of several sequences in one array, each with its own pages; blocks of queries cross sequences."""
    starts = np.array([0, 5, 16], np.int32)  # where the queries of each sequence start
    q = floats(16, 32)
    keys, values = pages()

    def body(starts_ref, table_ref, lengths_ref, q_ref, k_ref, v_ref, o_ref, m_ref, l_ref, acc_ref):
        i, s, j = (pl.program_id(n) for n in range(3))

        @pl.when((s == 0) & (j == 0))
        def _():
            _start(m_ref, l_ref, acc_ref)

        row = i * 8 + iota((8, 8), 0)
        mine = (row >= starts_ref[s]) & (row < starts_ref[s + 1])
        last = lengths_ref[s] - (starts_ref[s + 1] - 1 - row)  # a query sees the keys before it
        seen = mine & (j * 8 + iota((8, 8), 1) < last)

        @pl.when((starts_ref[s] < (i + 1) * 8) & (starts_ref[s + 1] > i * 8))
        def _():
            scores = jnp.where(seen, q_ref[...] @ k_ref[...].T, NEVER)
            m = jnp.maximum(m_ref[...], scores.max(axis=1, keepdims=True))
            p = jnp.where(seen, jnp.exp(scores - m), 0.0)
            scale = jnp.exp(m_ref[...] - m)
            l_ref[...] = l_ref[...] * scale + p.sum(axis=1, keepdims=True)
            acc_ref[...] = acc_ref[...] * scale + p @ v_ref[...]
            m_ref[...] = m

        @pl.when((s == 1) & (j == 3))
        def _():
            o_ref[...] = acc_ref[...] / l_ref[...]

    at_page = pl.BlockSpec((None, 8, 32), lambda i, s, j, starts, table, lengths: (table[s, j], 0, 0))
    at_q = pl.BlockSpec((8, 32), lambda i, s, j, *_: (i, 0))
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=3, grid=(2, 2, 4), in_specs=[at_q, at_page, at_page], out_specs=at_q,
        scratch_shapes=_running(8, 32),
    )  # fmt: skip
    return pl.pallas_call(body, struct(16, 32), grid_spec=spec, **OPTIONS)(starts, TABLE, LENGTHS, q, keys, values)
