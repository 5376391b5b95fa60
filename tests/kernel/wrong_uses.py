"""Wrong kernels: indices, shapes, dtypes, devices, scopes, capacity."""

from __future__ import annotations

import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.pallas import tpu as pltpu
from tests.kernel.collectives import ANY, DMA, REGULAR, barrier
from tests.kernel.corpus import F32, VMEM, wrong


@wrong(pltpu.BoundsError, debug=None)
def an_index_outside(x_ref, out_ref):
    out_ref[...] = mnp.zeros_like(out_ref) + x_ref[8, 0]  # here


@wrong(pltpu.BoundsError, debug=None)
def a_slice_outside(x_ref, out_ref):
    out_ref[0:4] = x_ref[pl.ds(6, 4)]  # here


ROW = pl.BlockSpec((1, 16), lambda i: (i, 0))


def keep(row_ref, block_ref):
    block_ref[...] = row_ref[...]


@wrong(pltpu.BoundsError, debug=None, in_specs=[ANY], out_specs=ANY)
def a_block_outside(x_ref, out_ref):
    spec = pl.BlockSpec((2, 16), lambda i: (i, 0))  # here
    pltpu.emit_pipeline(keep, grid=(5,), in_specs=[spec], out_specs=spec)(x_ref, out_ref)


@wrong(pltpu.BoundsError, debug=None, in_specs=[ANY], out_specs=ANY)
def elements_outside(x_ref, out_ref):
    rows = pl.BlockSpec((pl.Element(3), 16), lambda i: (2 * i, 0))  # here
    spec = pl.BlockSpec((2, 16), lambda i: (i, 0))
    body = lambda rows_ref, block_ref: keep(rows_ref.at[0:2], block_ref)
    pltpu.emit_pipeline(body, grid=(4,), in_specs=[rows], out_specs=spec)(x_ref, out_ref)


@wrong(pltpu.BoundsError, 1, [pltpu.SemaphoreType.REGULAR((2,))], None)
def a_semaphore_outside(x_ref, out_ref, sems):
    pltpu.semaphore_signal(sems.at[2])  # here


@wrong(pltpu.AlignmentError, debug=pl.Debug(tiles=True), in_specs=[ANY], out_specs=ANY)
def a_block_of_half_a_tile(x_ref, out_ref):
    spec = pl.BlockSpec((4, 16), lambda i: (i, 0))  # here
    pltpu.emit_pipeline(keep, grid=(2,), in_specs=[spec], out_specs=spec)(x_ref, out_ref)


@wrong(pltpu.KernelError, debug=None, in_specs=[ANY], out_specs=ANY)
def a_block_of_an_output_is_come_back_to(x_ref, out_ref):
    spec = pl.BlockSpec((2, 16), lambda i: (i, 0))
    pltpu.emit_pipeline(
        keep,
        grid=(4,),
        in_specs=[spec],
        out_specs=pl.BlockSpec((2, 16), lambda i: (lax.rem(i, 2), 0)),  # here
    )(x_ref, out_ref)


@wrong(pltpu.KernelError, debug=None)
def a_promise_that_is_not_kept(x_ref, out_ref):
    out_ref[...] = x_ref[pl.ds(pl.multiple_of(3, 8), 4)]  # here


@wrong(pltpu.CopyError, 1, [DMA], None)
def a_copy_of_another_shape(x_ref, out_ref, sem):
    pltpu.async_copy(x_ref.at[0:4], out_ref, sem).wait()  # here


@wrong(pltpu.CopyError, 1, [pltpu.VMEM((8, 16), mnp.float32)], None)
def a_copy_to_rows_that_it_reads(x_ref, out_ref, scratch):
    scratch[...] = x_ref[...]
    pltpu.sync_copy(scratch.at[0:4], scratch.at[2:6])  # here


@wrong(pltpu.CopyError, 1, [pltpu.VMEM((8, 16), mnp.bfloat16), DMA], None)
def a_copy_of_another_dtype(x_ref, out_ref, scratch, sem):
    pltpu.async_copy(x_ref, scratch, sem).wait()  # here


@wrong(pltpu.CopyError, debug=None)
def a_store_of_another_dtype(x_ref, out_ref):
    out_ref[...] = x_ref[...].astype(mnp.bfloat16)  # here


@wrong(pltpu.CopyError, debug=None)
def a_store_of_another_shape(x_ref, out_ref):
    out_ref[...] = x_ref[0]  # here


@wrong(pltpu.CopyError, 1, [DMA], None, in_specs=[ANY])
def a_copy_to_an_input(x_ref, out_ref, sem):
    out_ref[...] = mnp.zeros_like(out_ref)
    pltpu.async_copy(out_ref, x_ref, sem).wait()  # here


@wrong(pltpu.KernelError, debug=None, in_specs=[ANY])
def main_memory_is_loaded(x_ref, out_ref):
    out_ref[...] = x_ref[...]  # here


@wrong(pltpu.DeviceIdError, 4, [DMA, DMA], None)
def a_device_that_is_not_there(x_ref, out_ref, send, receive):
    right = lax.axis_index("x") + 1
    pltpu.async_remote_copy(x_ref, out_ref, send, receive, device_id={"x": right}).wait()  # here


@wrong(pltpu.SemaphoreError, 1, [REGULAR], None)
def a_regular_semaphore_for_a_copy(x_ref, out_ref, sem):
    pltpu.async_copy(x_ref, out_ref, sem).wait()  # here


@wrong(pltpu.SemaphoreError, 1, [DMA], None)
def a_signal_to_a_semaphore_of_copies(x_ref, out_ref, sem):
    pltpu.semaphore_signal(sem)  # here


@wrong(pltpu.ScopeError, debug=None)
def memory_used_after_its_scope(x_ref, out_ref):
    kept = []

    def scoped(scratch):
        scratch[...] = x_ref[...]
        kept.append(scratch)

    pl.run_scoped(scoped, VMEM)
    out_ref[...] = kept[0][...]  # here


@wrong(pltpu.CapacityError, debug=None, params={"vmem_limit_bytes": 1 << 20})
def more_memory_than_there_is(x_ref, out_ref):
    pl.run_scoped(lambda scratch: None, pltpu.VMEM((1024, 1024), F32))  # here


@wrong(pltpu.CapacityError, debug=None, in_specs=[ANY], out_specs=ANY, params={"vmem_limit_bytes": 1 << 10})
def blocks_that_do_not_fit(x_ref, out_ref):
    spec = pl.BlockSpec((8, 16), lambda i: (0, 0))
    pltpu.emit_pipeline(keep, grid=(1,), in_specs=[spec], out_specs=spec)(x_ref, out_ref)  # here


@wrong(pltpu.DeviceIdError, 4, [REGULAR], None)
def an_axis_that_is_not_there(x_ref, out_ref, sem):
    pltpu.semaphore_signal(sem, device_id={"y": 0})  # here


@wrong(pltpu.DeviceIdError, 4, [REGULAR], None)
def a_number_by_coordinates(x_ref, out_ref, sem):
    how = pltpu.DeviceIdType.LOGICAL
    pltpu.semaphore_signal(sem, device_id=(lax.axis_index("x"),), device_id_type=how)  # here


@wrong(pltpu.SemaphoreError, 2, [], None, params={"collective_id": None})
def a_barrier_without_a_collective_id(x_ref, out_ref):
    pltpu.get_barrier_semaphore()  # here


@wrong(pltpu.CopyError, 2, [], None)
def scopes_that_differ_between_devices(x_ref, out_ref):
    me = lax.axis_index("x")

    def scoped(scratch, send, receive):
        barrier(1 - me)
        rows = scratch.at[0:4]
        pltpu.async_remote_copy(x_ref.at[0:4], rows, send, receive, device_id={"x": 1 - me}).wait()  # here

    pl.run_scoped(scoped, pltpu.VMEM((4 + 4 * int(me), 16), F32), DMA, DMA)


@wrong(pltpu.ScopeError, 2, [], None)
def a_copy_into_a_scope_the_other_has_not_entered(x_ref, out_ref):
    me = lax.axis_index("x")

    def scoped(scratch, send, receive):
        pltpu.async_remote_copy(x_ref, scratch, send, receive, device_id={"x": 1 - me}).wait_send()  # here

    @pl.when(me == 0)
    def _():
        pl.run_scoped(scoped, VMEM, DMA, DMA)


@wrong(pltpu.CopyError, debug=None)
def a_ref_is_asked_whether_it_is_true(x_ref, out_ref):
    if x_ref:  # here
        out_ref[...] = x_ref[...]


@wrong(pltpu.CopyError, debug=None)
def a_ref_is_added_to_a_number(x_ref, out_ref):
    out_ref[...] = 1 + x_ref  # here


@wrong(pltpu.BoundsError, debug=None)
def a_new_dim_of_a_ref(x_ref, out_ref):
    out_ref[...] = x_ref[None]  # here


@wrong(pltpu.SemaphoreError, 1, [REGULAR], None)
def a_signal_of_less_than_nothing(x_ref, out_ref, sem):
    pltpu.semaphore_signal(sem, -1)  # here


@wrong(pltpu.KernelError, debug=None, in_specs=[ANY], out_specs=ANY)
def a_block_of_no_rows(x_ref, out_ref):
    spec = pl.BlockSpec((0, 16), lambda i: (i, 0))  # here
    pltpu.emit_pipeline(keep, grid=(2,), in_specs=[spec], out_specs=spec)(x_ref, out_ref)


@wrong(pltpu.KernelError, debug=None, in_specs=[ANY], out_specs=ANY)
def a_shape_where_a_spec_is_due(x_ref, out_ref):
    pltpu.emit_pipeline(keep, grid=(2,), in_specs=[(2, 16)], out_specs=None)(x_ref, out_ref)  # here


@wrong(pltpu.SemaphoreError, 1, [DMA((2,))])
def a_semaphore_is_loaded(x_ref, out_ref, sems):
    pltpu.async_copy(x_ref, out_ref, sems[0]).wait()  # here


@wrong(pltpu.KernelError, 1, [], in_specs=[ANY])
def an_array_where_a_ref_is_due(x_ref, out_ref):
    pltpu.emit_pipeline(keep, grid=(8,), in_specs=[ROW], out_specs=ROW)(mnp.ones((8, 16)), out_ref)  # here


@wrong(pltpu.KernelError, 1, [], in_specs=[ANY])
def the_body_of_a_pipeline_takes_too_few_refs(x_ref, out_ref):
    pltpu.emit_pipeline(lambda row_ref: None, grid=(8,), in_specs=[ROW], out_specs=ROW)(x_ref, out_ref)  # here


@wrong(pltpu.CopyError)
def a_mask_of_another_shape(x_ref, out_ref):
    pl.store(out_ref, (pl.ds(0, 4),), x_ref[0:4], mask=mnp.ones(3, bool))  # here


@wrong(pltpu.CopyError)
def a_mask_of_numbers(x_ref, out_ref):
    out_ref[...] = pl.load(x_ref, ..., mask=mnp.ones(16, mnp.int32), other=0.0)  # here
