"""The same kernels, text for text, in JAX's Pallas (interpreted on the CPU) and here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.experimental.pallas as jax_pl
import jax.experimental.pallas.tpu as jax_pltpu
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax as mw_lax
from meshwright import pallas as mw_pl
from meshwright.pallas import tpu as mw_pltpu

JAX = SimpleNamespace(
    pl=jax_pl, pltpu=jax_pltpu, np=jnp, lax=jax.lax, struct=jax.ShapeDtypeStruct, options={"interpret": True}
)
OURS = SimpleNamespace(
    pl=mw_pl, pltpu=mw_pltpu, np=mnp, lax=mw_lax, struct=mw.ShapeDtypeStruct, options={"debug": mw_pl.Debug()}
)


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(0).integers(-8, 8, size=shape).astype(dtype)


def blocked_matmul(k):
    def kernel(x_ref, y_ref, z_ref):
        @k.pl.when(k.pl.program_id(2) == 0)
        def _():
            z_ref[...] = k.np.zeros_like(z_ref)

        z_ref[...] += x_ref[...] @ y_ref[...]

    call = k.pl.pallas_call(
        kernel,
        out_shape=k.struct((16, 24), k.np.float32),
        grid=(2, 3, 4),
        in_specs=[
            k.pl.BlockSpec((8, 8), lambda i, j, n: (i, n)),
            k.pl.BlockSpec((8, 8), lambda i, j, n: (n, j)),
        ],
        out_specs=k.pl.BlockSpec((8, 8), lambda i, j, n: (i, j)),
        **k.options,
    )
    return call(numbers(16, 32), numbers(32, 24))


def program_ids(k):
    def kernel(out_ref):
        out_ref[...] = k.np.full(out_ref.shape, 10 * k.pl.program_id(0) + k.pl.program_id(1) + k.pl.num_programs(1))

    return k.pl.pallas_call(
        kernel,
        out_shape=k.struct((7, 5), k.np.int32),
        grid=(4, 2),
        out_specs=k.pl.BlockSpec((2, 3), lambda i, j: (i, j)),
        **k.options,
    )()


def ragged_sum_of_rows(k):
    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...] * 2 + 1

    spec = k.pl.BlockSpec((3, 4), lambda i, j: (i, j))
    return k.pl.pallas_call(
        kernel, out_shape=k.struct((7, 10), k.np.float32), grid=(3, 3), in_specs=[spec], out_specs=spec, **k.options
    )(numbers(7, 10))


def squeezed(k):
    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...].sum(axis=0)

    return k.pl.pallas_call(
        kernel,
        out_shape=k.struct((3, 5), k.np.float32),
        grid=(3,),
        in_specs=[k.pl.BlockSpec((None, 4, 5), lambda i: (i, 0, 0))],
        out_specs=k.pl.BlockSpec((None, 5), lambda i: (i, 0)),
        **k.options,
    )(numbers(3, 4, 5))


def gathered_rows(k):
    def kernel(which_ref, x_ref, out_ref):
        out_ref[...] = x_ref[...] + which_ref[k.pl.program_id(0)].astype(k.np.float32)

    return k.pl.pallas_call(
        kernel,
        out_shape=k.struct((4, 1, 8), k.np.float32),
        grid_spec=k.pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(4,),
            in_specs=[k.pl.BlockSpec((1, 1, 8), lambda i, which: (which[i], 0, 0))],
            out_specs=k.pl.BlockSpec((1, 1, 8), lambda i, which: (i, 0, 0)),
        ),
        **k.options,
    )(np.array([5, 0, 3, 3], np.int32), numbers(6, 1, 8))


def elements(k):
    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...]

    return k.pl.pallas_call(
        kernel,
        out_shape=k.struct((3, 4), k.np.float32),
        grid=(3,),
        in_specs=[k.pl.BlockSpec((k.pl.Element(1), k.pl.Element(4)), lambda i: (i, 2 * i))],
        out_specs=k.pl.BlockSpec((1, 4), lambda i: (i, 0)),
        **k.options,
    )(numbers(3, 8))


def aliased(k):
    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...] - 1

    spec = k.pl.BlockSpec((1, 4), lambda i: (i, 0))
    return k.pl.pallas_call(
        kernel,
        out_shape=k.struct((5, 4), k.np.float32),
        grid=(3,),
        in_specs=[spec],
        out_specs=spec,
        input_output_aliases={0: 0},
        **k.options,
    )(k.np.asarray(numbers(5, 4)))


def loops_and_scratch(k):
    def kernel(x_ref, out_ref, acc_ref):
        acc_ref[...] = k.np.zeros_like(acc_ref)

        def add(i, count):
            acc_ref[...] += x_ref[i]
            return count + 1

        count = k.lax.fori_loop(0, 3, add, 0)
        out_ref[...] = k.lax.cond(count > 2, lambda: acc_ref[...] * count, lambda: acc_ref[...])

    return k.pl.pallas_call(
        kernel,
        out_shape=k.struct((8, 128), k.np.float32),
        scratch_shapes=[k.pltpu.VMEM((8, 128), k.np.float32)],
        **k.options,
    )(numbers(3, 8, 128))


def dynamic_slices(k):
    def kernel(x_ref, out_ref):
        for i in range(3):
            row = x_ref[pl_ds(k, i * 2, 2), :]
            out_ref[i, :] = row.sum(axis=0)

    return k.pl.pallas_call(kernel, out_shape=k.struct((3, 4), k.np.float32), **k.options)(numbers(6, 4))


def pl_ds(k, start, size):
    return k.pl.ds(start, size)


def dtypes(k):
    def kernel(x_ref, y_ref, out_ref):
        product = k.np.dot(x_ref[...], x_ref[...], preferred_element_type=k.np.float32)
        out_ref[...] = (product + y_ref[...] * 2.5).astype(k.np.float32)

    return k.pl.pallas_call(kernel, out_shape=k.struct((4, 4), k.np.float32), **k.options)(
        k.np.asarray(numbers(4, 4)).astype(k.np.bfloat16), numbers(4, 4, dtype=np.int8)
    )


def two_outputs(k):
    def kernel(x_ref, low_ref, high_ref):
        low_ref[...] = k.np.minimum(x_ref[...], 0)
        high_ref[...] = k.np.maximum(x_ref[...], 0)

    return k.pl.pallas_call(
        kernel, out_shape=[k.struct((4, 4), k.np.float32), k.struct((4, 4), k.np.float32)], **k.options
    )(numbers(4, 4))


KERNELS = (
    blocked_matmul, program_ids, ragged_sum_of_rows, squeezed, gathered_rows, elements, aliased, loops_and_scratch,
    dynamic_slices, dtypes, two_outputs,
)  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_the_same_kernel_gives_the_same_numbers(kernel):
    ours, theirs = (jax.tree.leaves(kernel(k)) if k is JAX else mw.tree.leaves(kernel(k)) for k in (OURS, JAX))
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
