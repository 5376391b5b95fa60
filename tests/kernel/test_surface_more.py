"""Names of Pallas that few kernels use: accumulators, blocks that are there already, barriers by tag, convolutions."""

from __future__ import annotations

import jax.experimental.pallas
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.errors import MeshwrightError
from meshwright.pallas import tpu as pltpu

ANY = pl.BlockSpec(memory_space=pl.ANY)
F32 = mnp.float32


def out(*shape, dtype=F32):
    return mw.ShapeDtypeStruct(shape, dtype)


def prefetched(buffers, full, lookahead, index_map, debug=None, bind=True):
    """A pipeline over 4 steps that finds its first blocks in a buffer: 7 in the first of them, 8 in the second …"""

    def body(x_ref, out_ref):
        out_ref[...] = x_ref[...] + 1

    def kernel(x_ref, out_ref, slots):
        for n in range(full):
            slots[n] = mnp.full((4, 8), 7.0 + n, F32)
        mode = pl.Buffered(buffers, lookahead, prefetched_count=full)
        spec = pl.BlockSpec((4, 8), index_map, pipeline_mode=mode)
        pipeline, allocations = pltpu.emit_pipeline_with_allocations(
            body, grid=(4,), in_specs=[spec], out_specs=[pl.BlockSpec((4, 8), lambda i: (i, 0))]
        )

        def run(made):
            window = made[0].with_window_ref(slots) if bind else made[0]
            pipeline(x_ref, out_ref, allocations=(window, *made[1:]))

        pl.run_scoped(run, allocations(x_ref, out_ref))

    scratch = [pltpu.VMEM((buffers, 4, 8), F32)]
    call = pl.pallas_call(kernel, out(16, 8), in_specs=[ANY], out_specs=ANY, scratch_shapes=scratch, debug=debug)
    return call(mnp.repeat(mnp.arange(4.0), 4)[:, None] * mnp.ones((16, 8)))[::4, 0].tolist()


# What JAX's interpreter gives, by jax 0.12: the first ``full`` steps take what is there, with lookahead so many blocks.
FOUND = {
    (2, 1, False): ([8, 2, 3, 4], [8, 8, 2, 2]),
    (2, 1, True): ([8, 2, 3, 4], [8, 8, 2, 2]),
    (2, 2, False): ([8, 9, 3, 4], [8, 8, 2, 2]),
    (2, 2, True): ([8, 9, 3, 4], [8, 8, 9, 9]),
    (3, 2, False): ([8, 9, 3, 4], [8, 8, 2, 2]),
    (3, 1, True): ([8, 2, 3, 4], [8, 8, 2, 2]),
    (4, 3, False): ([8, 9, 10, 4], [8, 8, 9, 9]),
    (4, 3, True): ([8, 9, 10, 4], [8, 8, 9, 9]),
}


@pytest.mark.parametrize("case", FOUND)
def test_blocks_that_are_there_before_a_pipeline_starts(case):
    one_by_one, in_pairs = FOUND[case]
    assert prefetched(*case, lambda i: (i, 0), pl.Debug(schedules=4)) == one_by_one
    assert prefetched(*case, lambda i: (i // 2, 0)) == in_pairs


def test_blocks_that_are_said_to_be_there_have_memory():
    with pytest.raises(pltpu.KernelError) as caught:
        prefetched(2, 1, False, lambda i: (i, 0), bind=False)
    error = caught.value
    assert error.what == "The window of BlockSpec((4, 8)) has no memory."
    assert error.why == "prefetched_count=1: as many blocks are in it before the pipeline starts"
    assert error.fix == (
        "allocations=(allocation.with_window_ref(ref), …), where the ref holds them, in slots of a block each"
    )
    with pytest.raises(pltpu.KernelError) as caught:
        pl.Buffered(2, prefetched_count=3)
    error = caught.value
    assert error.what == "Of 2 buffers 3 are said to be full before a pipeline starts."
    assert (error.why, error.fix) == ("each of them holds a block", "pl.Buffered(3, prefetched_count=3)")


def test_slots_of_one_dim_lie_one_after_the_other():
    def kernel(x_ref, out_ref, slots):
        slots[0:8] = mnp.full((8,), 5.0, F32)
        plain = pl.BlockSpec((8,), lambda i: (i,))
        spec = plain.replace(pipeline_mode=pl.Buffered(2, prefetched_count=1))
        pipeline, allocations = pltpu.emit_pipeline_with_allocations(
            lambda x, o: pltpu.store(o, x[...]), grid=(2,), in_specs=[spec], out_specs=[plain]
        )
        pl.run_scoped(
            lambda made: pipeline(x_ref, out_ref, allocations=(made[0].with_window_ref(slots), made[1])),
            allocations(x_ref, out_ref),
        )

    scratch = [pltpu.VMEM((16,), F32)]
    found = pl.pallas_call(kernel, out(16), in_specs=[ANY], out_specs=ANY, scratch_shapes=scratch)(mnp.arange(16.0))
    assert found.tolist() == [5.0] * 8 + list(range(8, 16))


def test_a_pipeline_with_async_prefetch():
    spec = pl.BlockSpec((4,), lambda i: (i,), pipeline_mode=pl.Buffered(2, prefetched_count=2))
    mesh = pltpu.create_tensorcore_mesh("core")

    def body(step, x_ref, out_ref):
        out_ref[...] = x_ref[...] + step.index[0] * 10 + step.local_index * 100

    outs = [spec.replace(pipeline_mode=None)]
    pipeline, prefetch = pltpu.emit_pipeline_with_async_prefetch(
        body, grid=(2,), in_specs=[spec], out_specs=outs, mesh=mesh, _explicit_indices=True
    )
    x = mnp.arange(8.0)
    made = prefetch(x)

    def kernel(x_ref, out_ref):
        pipeline(x_ref, out_ref, allocations=made)

    found = pl.pallas_call(kernel, out(8), in_specs=[ANY], out_specs=ANY, debug=pl.Debug())(x)
    assert found.tolist() == [0, 1, 2, 3, 114, 115, 116, 117]
    with pytest.raises(pltpu.KernelError) as caught:
        prefetch(x, x)
    error = caught.value
    assert error.what == "2 arrays are prefetched for a pipeline of 1 inputs."
    assert (error.why, error.fix) == ("there is one for each of in_specs", "async_prefetch(x, y)")
    with pytest.raises(pltpu.KernelError) as caught:
        pl.pallas_call(lambda a, b: pipeline(a, b), out(8), in_specs=[ANY], out_specs=ANY)(x)
    error = caught.value
    assert error.what == "A pipeline of 1 inputs is given () as what was prefetched for it."
    assert error.why == "it is what its second function returned for the same inputs"
    assert error.fix == "pipeline(x_ref, out_ref, allocations=async_prefetch(x))"


def test_accumulators_of_a_matrix_unit():
    def kernel(x_ref, y_ref, out_ref, acc):
        pltpu.matmul_push_rhs(y_ref[...], 0, 1)
        pltpu.matmul_acc_lhs(acc, x_ref[...], 0)
        pltpu.matmul_acc_lhs(acc.at[0:4], x_ref[0:4])
        out_ref[0] = pltpu.matmul_pop(acc)
        out_ref[1] = pltpu.matmul_pop(acc)

    x, y = np.arange(64.0, dtype=np.float32).reshape(8, 8), np.eye(8, dtype=np.float32)[::-1].copy()
    scratch = [pltpu.ACC(mxu_id=1)((8, 8), F32)]
    found = pl.pallas_call(kernel, out(2, 8, 8), scratch_shapes=scratch, debug=pl.Debug())(x, y)
    np.testing.assert_array_equal(found[0], (x @ y) * np.where(np.arange(8) < 4, 2, 1)[:, None])
    np.testing.assert_array_equal(found[1], np.zeros((8, 8)))

    def loaded(out_ref, acc):
        out_ref[...] = acc[...]

    def copied(out_ref, acc):
        pltpu.sync_copy(acc, out_ref)

    for wrong, what, fix in (
        (loaded, "acc is read directly, but it is an accumulator of a matrix unit.",
         "pltpu.matmul_acc_lhs(acc, lhs), pltpu.matmul_pop(acc)"),
        (copied, "A copy moves an accumulator of a matrix unit.", "ref[...] = pltpu.matmul_pop(acc), and copy that"),
    ):  # fmt: skip
        with pytest.raises(MeshwrightError) as caught:
            pl.pallas_call(wrong, out(8, 8), scratch_shapes=scratch)()
        assert (caught.value.what, caught.value.fix) == (what, fix)
        assert caught.value.why == "products are added to it, and their sum is taken"


def test_loops_that_carry():
    def kernel(out_ref):
        @pl.loop(0, 5, init_carry=(0, 1))
        def last(i, carry):
            return carry[1], carry[0] + carry[1]

        out_ref[0] = last[0]

        @pl.loop(2, 2, init_carry=mnp.int32(7))
        def none(i, carry):
            return carry + 1

        out_ref[1] = none

    assert pl.pallas_call(kernel, out(2, dtype=mnp.int32))().tolist() == [5, 7]


def test_barriers_by_tag():
    def kernel(x_ref, out_ref, send, receive):
        other = 1 - lax.axis_index("x")
        for tag in ("first", ("second", 2)):
            barrier = pltpu.get_barrier_semaphore(tag)
            pl.semaphore_signal(barrier, device_id={"x": other})
            pl.semaphore_wait(barrier)
        pltpu.async_remote_copy(x_ref, out_ref, send, receive, device_id={"x": other}).wait()

    call = pl.pallas_call(
        kernel,
        out(1),
        in_specs=[ANY],
        out_specs=ANY,
        scratch_shapes=[pltpu.SemaphoreType.DMA] * 2,
        compiler_params=pltpu.CompilerParams(collective_id=0),
        debug=pl.Debug(schedules=8),
    )
    mesh = mw.make_mesh((2,), ("x",))
    found = mw.shard_map(call, mesh=mesh, in_specs=mw.P("x"), out_specs=mw.P("x"))(mnp.arange(2.0))
    assert found.tolist() == [1, 0]


def test_a_local_copy_says_when_its_source_is_read():
    def kernel(x_ref, out_ref, block, read, done):
        block[...] = mnp.ones((8,))
        copy = pltpu.async_copy(block, out_ref, done, src_sem=read)
        copy.wait_read()
        block[...] = mnp.zeros((8,))
        copy.wait_write()

    dma = pltpu.SemaphoreType.DMA
    scratch = [pltpu.VMEM((8,), F32), dma, dma]
    call = pl.pallas_call(
        kernel, out(8), in_specs=[ANY], out_specs=ANY, scratch_shapes=scratch, debug=pl.Debug(schedules=16)
    )
    assert call(mnp.zeros(8)).tolist() == [1] * 8

    def without(x_ref, out_ref, read):
        pltpu.make_async_copy(x_ref, out_ref, src_sem=read)

    with pytest.raises(pltpu.KernelError) as caught:
        pl.pallas_call(without, out(8), in_specs=[ANY], out_specs=ANY, scratch_shapes=[dma])(mnp.zeros(8))
    assert caught.value.what == "A copy has no semaphore that is told when it is over."
    assert caught.value.why == "src_sem says that the source has been read, and not that the destination is written"
    assert caught.value.fix == "pltpu.make_async_copy(src_ref, dst_ref, sem, src_sem=src_sem)"


def test_a_local_copy_whose_source_is_written_too_early_is_a_race():
    def kernel(out_ref, block, read, done):
        block[...] = mnp.ones((8,))
        copy = pltpu.async_copy(block, out_ref, done, src_sem=read)
        block[...] = mnp.zeros((8,))
        copy.wait()

    dma = pltpu.SemaphoreType.DMA
    call = pl.pallas_call(
        kernel, out(8), out_specs=ANY, scratch_shapes=[pltpu.VMEM((8,), F32), dma, dma], debug=pl.Debug()
    )
    with pytest.raises(pltpu.RaceError):
        call()


def test_what_semaphores_hold():
    def kernel(out_ref, one, two):
        kinds = (one.dtype, pl.semaphore), (two.dtype, pltpu.dma_semaphore), (one.dtype, pltpu.dma_semaphore)
        for n, (dtype, kind) in enumerate(kinds):
            out_ref[n] = int(mnp.issubdtype(dtype, kind))

    scratch = [pltpu.SemaphoreType.REGULAR, pltpu.SemaphoreType.DMA((2,))]
    assert pl.pallas_call(kernel, out(3, dtype=mnp.int32), scratch_shapes=scratch)().tolist() == [1, 1, 0]


def test_convolutions_in_kernels():
    draw = np.random.default_rng(0)
    x, w = draw.normal(size=(1, 6, 6, 2)).astype(np.float32), draw.normal(size=(3, 3, 2, 4)).astype(np.float32)
    numbers = ("NHWC", "HWIO", "NHWC")

    def kernel(x_ref, w_ref, out_ref):
        first = pltpu.conv(x_ref[...], w_ref[...], dimension_numbers=numbers, padding="SAME")
        out_ref[...] = pltpu.conv(
            x_ref[...], w_ref[...], first, dimension_numbers=numbers, padding="SAME", window_reversal=(True, False)
        )

    plain = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers)
    turned = lax.conv_general_dilated(x, w[::-1], (1, 1), "SAME", dimension_numbers=numbers)
    found = pl.pallas_call(kernel, out(1, 6, 6, 4))(x, w)
    np.testing.assert_allclose(found, plain + turned, rtol=1e-5, atol=1e-5)


def test_memory_types_and_dims_by_their_fields():
    assert pl.MemoryRef(mw.ShapeDtypeStruct((2, 3), F32), memory_space=pltpu.VMEM).shape == (2, 3)
    assert (pl.Blocked(block_size=4), pl.Element(block_size=4, padding=(1, 0)).padding) == (pl.Blocked(4), (1, 0))
    assert pl.BoundedSlice(block_size=3).block_size == 3
    info = pltpu.get_tpu_info_for_chip(pltpu.ChipVersion.TPU_7X)
    assert (info.num_accumulators, info.smem_capacity_bytes, info.sparse_core) == (128, 1 << 20, None)


def test_kernels_are_written_out_with_their_sizes():
    with pytest.raises(MeshwrightError) as caught, pl.pallas_export_experimental(True):
        pass
    assert caught.value.what == "A kernel is to be written out without its sizes."
    assert caught.value.why == "blocks and grids are counted when the kernel is written out"
    assert caught.value.fix == "pl.pallas_export_experimental(dynamic_shapes=False), once for each size"
    with pytest.raises(MeshwrightError) as caught:
        pl.lower_as_mlir(lambda x: x, mnp.zeros(3), platforms=["rocm"])
    assert caught.value.what == "A kernel is to be lowered for rocm."
    assert caught.value.fix == f"platforms=['{caught.value.why.split()[-1]}'], or without platforms="
    scaled = pl.lower_as_mlir(lambda x, *, by: x * by, mnp.zeros(3), static_argnames="by", by=2)
    assert scaled.count("%arg") == 2


def test_a_slice_that_starts_nowhere_is_all_of_a_dim():
    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[pl.ds(None), pl.ds(0, 4, None)]

    x = mnp.arange(16.0).reshape(2, 8)
    np.testing.assert_array_equal(pl.pallas_call(kernel, out(2, 4))(x), np.asarray(x)[:, :4])
    assert pl.ds(None) == jax.experimental.pallas.ds(None)


def named_rows(rows, size=8, scatter=False, debug=None, index_map=None):
    """Twice the rows that are named, eight in each step; or twice all rows, put to where they are named."""
    named = pl.BlockSpec((pl.Indirect(8), 128), index_map or (lambda i, rows: (rows[pl.ds(i * 8, size)], 0)))
    box = pl.BlockSpec((8, 128), lambda i, rows: (i, 0))
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(len(rows) // 8,),
        in_specs=[box if scatter else named],
        out_specs=named if scatter else box,
    )

    def kernel(rows, x_ref, out_ref):
        out_ref[...] = x_ref[...] * 2

    call = pl.pallas_call(kernel, out(len(rows), 128), grid_spec=spec, debug=debug)
    return call(np.asarray(rows, np.int32), numbers(16, 128))


def numbers(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("debug", [None, pl.Debug(schedules=16)])
def test_blocks_of_rows_that_an_array_names(debug):
    rows = [3, 3, 15, 0, 7, 1, 1, 2, 9, 10, 3, 4, 4, 4, 4, 14]
    np.testing.assert_array_equal(named_rows(rows, debug=debug), 2 * numbers(16, 128)[rows])
    places = np.random.default_rng(1).permutation(16)
    expected = np.zeros((16, 128), np.float32)
    expected[places] = 2 * numbers(16, 128)
    np.testing.assert_array_equal(named_rows(places, scatter=True, debug=debug), expected)
    by_ref = lambda i, rows: (rows.at[pl.ds(i * 8, 8)], 0)
    np.testing.assert_array_equal(named_rows(rows, debug=debug, index_map=by_ref), 2 * numbers(16, 128)[rows])


def test_mistakes_in_the_names_of_rows():
    with pytest.raises(pltpu.KernelError, match="element 16 is not one of 16; the operand has shape"):
        named_rows([0] * 15 + [16])
    with pytest.raises(pltpu.RaceError):
        named_rows([*range(15), 0], scatter=True, debug=pl.Debug())
    with pytest.raises(pltpu.KernelError) as error:
        named_rows(range(16), size=4)
    assert str(error.value).startswith(
        "The index map of input 0 of the pipeline returns int32[4] for a dim that is Indirect(block_size=8).\n"
    )
    assert str(error.value).endswith(
        "  why:  each element of the block is named by an integer\n"
        "  fix:  an array of 8 integers: rows[pl.ds(i * 8, 8)]"
    )
