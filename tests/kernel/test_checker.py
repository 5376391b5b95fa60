"""What the checker lets pass of memory that nobody wrote, and mistakes that lie between kernels."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.pallas import tpu as pltpu
from tests.kernel.collectives import ANY, DMA, barrier, neighbors
from tests.kernel.driver import F32, numbers, on_devices, out

EVERY = pl.Debug(schedules=4)
X = numbers(8, 16)


def rows_masked(x_ref, out_ref, scratch):
    scratch[0:4] = x_ref[0:4]
    row = lax.broadcasted_iota(mnp.int32, (8, 16), 0)
    out_ref[...] = mnp.where(row < 4, scratch[...] * 2, 1.0)


def masked_before_a_product(x_ref, out_ref, scratch):
    scratch[0:4] = x_ref[0:4]
    row = lax.broadcasted_iota(mnp.int32, (8, 16), 0)
    kept = mnp.where(row < 4, scratch[...], 0.0)
    out_ref[...] = x_ref[...] @ (kept.T @ kept)


def masked_scores_of_a_softmax(x_ref, out_ref, scratch):
    scratch[0:5] = x_ref[0:5]
    scores = x_ref[...] @ scratch[...].T
    scores = mnp.where(lax.broadcasted_iota(mnp.int32, (8, 8), 1) < 5, scores, -1e30)
    weights = mnp.exp(scores - scores.max(1, keepdims=True))
    values = mnp.where(lax.broadcasted_iota(mnp.int32, (8, 16), 0) < 5, scratch[...], 0.0)
    out_ref[...] = (weights / weights.sum(1, keepdims=True)) @ values


def garbage_that_is_overwritten(x_ref, out_ref, scratch):
    out_ref[...] = scratch[...] + 1
    out_ref[...] = x_ref[...]


def garbage_that_nobody_asks_for(x_ref, out_ref, scratch):
    _ = scratch[...].sum()
    out_ref[...] = x_ref[...]


def a_part_of_what_was_loaded(x_ref, out_ref, scratch):
    scratch[0:4] = x_ref[0:4]
    loaded = scratch[...]
    out_ref[...] = mnp.concatenate([loaded[0:4], loaded[0:4]])


RIGHT = [
    (rows_masked, lambda x: np.concatenate([x[:4] * 2, np.ones((4, 16))])),
    (masked_before_a_product, lambda x: x @ (x[:4].T @ x[:4])),
    (garbage_that_is_overwritten, lambda x: x),
    (garbage_that_nobody_asks_for, lambda x: x),
    (a_part_of_what_was_loaded, lambda x: np.concatenate([x[:4], x[:4]])),
]


@pytest.mark.parametrize(("kernel", "expected"), RIGHT)
def test_what_a_mask_or_a_slice_discards_is_no_mistake(kernel, expected):
    call = pl.pallas_call(kernel, out(8, 16), scratch_shapes=[pltpu.VMEM((8, 16), F32)], debug=EVERY)
    np.testing.assert_allclose(call(X), expected(X), rtol=1e-5)


def test_nor_are_masked_scores():
    call = pl.pallas_call(
        masked_scores_of_a_softmax, out(8, 16), scratch_shapes=[pltpu.VMEM((8, 16), F32)], debug=EVERY
    )
    scores = X @ X[:5].T
    weights = np.exp(scores - scores.max(1, keepdims=True))
    np.testing.assert_allclose(call(X), weights / weights.sum(1, keepdims=True) @ X[:5], rtol=1e-4, atol=1e-5)


def test_rows_beyond_a_result_may_hold_anything():
    def kernel(x_ref, out_ref):
        out_ref[...] = mnp.exp(x_ref[...])

    spec = pl.BlockSpec((3, 16), lambda i: (i, 0))
    call = pl.pallas_call(kernel, out(8, 16), grid=(3,), in_specs=[spec], out_specs=spec, debug=EVERY)
    np.testing.assert_allclose(call(X), np.exp(X), rtol=1e-6)


def test_columns_beyond_the_operands_of_a_product_are_masked():
    def kernel(x_ref, y_ref, out_ref):
        k = pl.program_id(0)

        @pl.when(k == 0)
        def _():
            out_ref[...] = mnp.zeros_like(out_ref)

        inside = lax.broadcasted_iota(mnp.int32, (8, 5), 1) < 16 - k * 5
        out_ref[...] += mnp.where(inside, x_ref[...], 0.0) @ mnp.where(inside.T, y_ref[...], 0.0)

    call = pl.pallas_call(
        kernel,
        out(8, 8),
        grid=(4,),
        in_specs=[pl.BlockSpec((8, 5), lambda k: (0, k)), pl.BlockSpec((5, 8), lambda k: (k, 0))],
        out_specs=pl.BlockSpec((8, 8), lambda k: (0, 0)),
        debug=EVERY,
    )
    np.testing.assert_allclose(call(X, X.T), X @ X.T, rtol=1e-4, atol=1e-5)


def starts(collective_id):
    def start(x_ref, out_ref, send, receive):
        _, left, right, _ = neighbors()
        barrier(left, right)
        pltpu.make_async_remote_copy(x_ref, out_ref, send, receive, device_id={"x": right}).start()

    semaphore = pl.BlockSpec(memory_space=pltpu.SEMAPHORE)
    return pl.pallas_call(
        start,
        (out(8, 16), DMA(()), DMA(())),
        in_specs=[ANY],
        out_specs=(ANY, semaphore, semaphore),
        compiler_params=pltpu.CompilerParams(collective_id=collective_id),
        debug=pl.Debug(),
        name=f"start{collective_id}",
    )


def finish(x, send, receive):
    def kernel(x_ref, send, receive, out_ref):
        pltpu.make_async_copy(x_ref, x_ref, send).wait()
        pltpu.make_async_copy(x_ref, x_ref, receive).wait()
        out_ref[...] = x_ref[...]

    semaphore = pl.BlockSpec(memory_space=pltpu.SEMAPHORE)
    return pl.pallas_call(kernel, out(8, 16), in_specs=[None, semaphore, semaphore], debug=pl.Debug())(x, send, receive)


def test_two_kernels_in_flight_have_ids_of_their_own():
    x = numbers(4, 8, 16)

    def both(first, second):
        def run(x):
            one, two = starts(first)(x), starts(second)(x)
            return finish(*one) + finish(*two)

        return [row for (row,) in on_devices(run, {"x": 4}, [[row] for row in x])]

    np.testing.assert_array_equal(both(0, 1), 2 * np.roll(x, 1, 0))
    with pytest.raises(pltpu.BarrierError) as caught:
        both(2, 2)
    assert caught.value.what == "start2 has collective_id=2, as start2 has, which is still in flight."

    def after(x):
        first = finish(*starts(3)(x))
        return finish(*starts(3)(first))

    found = on_devices(after, {"x": 4}, [[row] for row in x])
    np.testing.assert_array_equal([row for (row,) in found], np.roll(x, 2, 0))


def test_a_barrier_that_is_left_over_is_named_once():
    def kernel(x_ref, out_ref):
        _, _, right, _ = neighbors()
        pltpu.semaphore_signal(pltpu.get_barrier_semaphore(), device_id={"x": right})
        out_ref[...] = x_ref[...]

    call = pl.pallas_call(kernel, out(8, 16), compiler_params=pltpu.CompilerParams(collective_id=0))
    with pytest.raises(pltpu.SemaphoreError) as caught:
        on_devices(call, {"x": 2}, [[X], [X]])
    assert caught.value.what == "The barrier semaphore of device 0 is left at 1."
    assert caught.value.fix == "pltpu.semaphore_wait(barrier, 1)"
