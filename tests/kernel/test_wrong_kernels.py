"""Kernels with one mistake each: every one is an error of the right class that names the right lines.

A line that an error must name ends in ``# here``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.pallas import tpu as pltpu
from tests.kernel.collectives import ANY, COLLECTIVE, DMA, REGULAR, barrier, neighbors, struct
from tests.kernel.driver import on_devices

F32 = mnp.float32
VMEM = pltpu.VMEM((8, 16), F32)
SEVERAL = pl.Debug(schedules=12)


def around() -> tuple[Any, Any]:
    _, left, right, _ = neighbors()
    return left, right


# Each case: the kernel, the class of its error, how many devices, its scratch memory, and how it is called.
CASES: dict[str, tuple[Any, ...]] = {}


def wrong(
    error: type, devices: int = 1, scratch: Any = (), debug: Any = SEVERAL, **options: Any
) -> Callable[[Any], Any]:
    def keep(kernel: Any) -> Any:
        CASES[kernel.__name__] = (kernel, error, devices, scratch, debug, options)
        return kernel

    return keep


# Races


@wrong(pltpu.RaceError, 1, [VMEM, DMA])
def load_before_the_copy_is_waited_for(x_ref, out_ref, scratch, sem):
    copy = pltpu.async_copy(x_ref, scratch, sem)  # here
    out_ref[...] = scratch[...]  # here
    copy.wait()


@wrong(pltpu.RaceError, 1, [VMEM, DMA])
def store_to_the_source_of_a_copy_under_way(x_ref, out_ref, scratch, sem):
    scratch[...] = x_ref[...]
    copy = pltpu.async_copy(scratch, out_ref, sem)  # here
    scratch[...] = mnp.zeros_like(scratch)  # here
    copy.wait()


@wrong(pltpu.RaceError, 1, [DMA((2,))])
def two_copies_to_one_place(x_ref, out_ref, sems):
    copies = [pltpu.async_copy(x_ref, out_ref, sems.at[i]) for i in range(2)]  # here
    for copy in copies:
        copy.wait()


@wrong(pltpu.RaceError, 1, [VMEM, VMEM, DMA])
def a_shared_semaphore_tells_of_the_other_copy(x_ref, out_ref, a, b, sem):
    first = pltpu.async_copy(x_ref, a, sem)  # here
    second = pltpu.async_copy(x_ref, b, sem)
    first.wait()
    out_ref[...] = a[...]  # here
    second.wait()


@wrong(pltpu.RaceError, 4, [DMA, DMA, VMEM])
def the_buffer_is_reused_before_the_send_is_over(x_ref, out_ref, send, receive, scratch):
    left, right = around()
    barrier(left, right)
    scratch[...] = x_ref[...]
    copy = pltpu.async_remote_copy(scratch, out_ref, send, receive, device_id={"x": right})  # here
    scratch[...] = mnp.zeros_like(scratch)  # here
    copy.wait()


@wrong(pltpu.RaceError, 4, [DMA, DMA, VMEM])
def what_comes_is_used_without_waiting_for_it(x_ref, out_ref, send, receive, scratch):
    left, right = around()
    scratch[...] = x_ref[...]
    barrier(left, right)
    copy = pltpu.async_remote_copy(x_ref, scratch, send, receive, device_id={"x": right})  # here
    copy.wait_send()
    out_ref[...] = scratch[...]  # here
    copy.wait_recv()


@wrong(pltpu.RaceError, 4, [DMA, DMA((2,)), pltpu.VMEM((2, 8, 16), F32)])
def two_buffers_and_nothing_that_says_when_there_is_room(x_ref, out_ref, send, receive, buffers):
    left, right = around()
    barrier(left, right)
    buffers[0] = x_ref[...]
    out_ref[...] = x_ref[...]
    for step in range(3):
        a, b = step % 2, 1 - step % 2
        copy = pltpu.make_async_remote_copy(buffers.at[a], buffers.at[b], send, receive.at[b], device_id={"x": right})
        copy.start()  # here
        copy.wait()
        out_ref[...] += buffers[b]


@wrong(pltpu.RaceError, 2, [DMA, DMA, VMEM, REGULAR])
def the_signal_is_sent_before_the_store_it_is_for(x_ref, out_ref, send, receive, scratch, ready):
    left, right = around()
    barrier(left)
    pltpu.semaphore_signal(ready, device_id={"x": right})
    scratch[...] = x_ref[...]  # here
    pltpu.semaphore_wait(ready)
    copy = pltpu.make_async_remote_copy(x_ref, scratch, send, receive, device_id={"x": right})
    copy.start()  # here
    copy.wait()
    out_ref[...] = scratch[...]


@wrong(pltpu.RaceError, 1, [DMA], grid=(4,), in_specs=[pl.BlockSpec((2, 16), lambda i: (i, 0))], out_specs=ANY)
def a_copy_from_a_window_that_moves_on(x_ref, out_ref, sem):
    i = pl.program_id(0)

    def copy(step):
        return pltpu.make_async_copy(x_ref, out_ref.at[pl.ds(step * 2, 2)], sem)

    @pl.when(i > 1)
    def _():
        copy(i - 2).wait()

    copy(i).start()  # here

    @pl.when(i == 3)
    def _():
        copy(i).wait()
        copy(i).wait()


@wrong(pltpu.RaceError, 1, [DMA], grid=(4,), in_specs=[ANY], out_specs=pl.BlockSpec((2, 16), lambda i: (i, 0)))
def a_copy_to_an_output_window_that_is_written_back(x_ref, out_ref, sem):
    i = pl.program_id(0)
    out_ref[...] = mnp.zeros_like(out_ref)
    copy = pltpu.make_async_copy(x_ref.at[pl.ds(i * 2, 2)], out_ref, sem)

    @pl.when(i > 0)
    def _():
        copy.wait()

    copy.start()  # here

    @pl.when(i == 3)
    def _():
        copy.wait()


# Uninitialized memory


@wrong(pltpu.UninitializedError, 1, [VMEM])
def scratch_is_read_before_it_is_written(x_ref, out_ref, scratch):
    out_ref[...] = x_ref[...] + scratch[...]  # here


@wrong(pltpu.UninitializedError)
def an_output_is_added_to_before_it_is_set(x_ref, out_ref):
    out_ref[...] += x_ref[...]  # here


@wrong(pltpu.UninitializedError, 1, [VMEM])
def half_of_scratch_is_written(x_ref, out_ref, scratch):
    scratch[0:4] = x_ref[0:4]
    out_ref[...] = scratch[...]  # here


# Waits that never end


@wrong(pltpu.DeadlockError, 1, [REGULAR], None)
def no_sender(x_ref, out_ref, sem):
    pltpu.semaphore_wait(sem)  # here


@wrong(pltpu.DeadlockError, 1, [DMA], None)
def double_wait(x_ref, out_ref, sem):
    copy = pltpu.async_copy(x_ref, out_ref, sem)
    copy.wait()
    copy.wait()  # here


@wrong(pltpu.DeadlockError, 1, [DMA], None)
def never_started(x_ref, out_ref, sem):
    pltpu.make_async_copy(x_ref, out_ref, sem).wait()  # here


@wrong(pltpu.DeadlockError, 2, [REGULAR], None)
def cyclic_wait(x_ref, out_ref, sem):
    other = 1 - lax.axis_index("x")
    pltpu.semaphore_wait(sem)  # here
    pltpu.semaphore_signal(sem, device_id={"x": other})


@wrong(pltpu.DeadlockError, 4, [], None)
def short_signal(x_ref, out_ref):
    _, right = around()
    semaphore = pltpu.get_barrier_semaphore()
    pltpu.semaphore_signal(semaphore, device_id={"x": right})
    pltpu.semaphore_wait(semaphore, 2)  # here


@wrong(pltpu.DeadlockError, 4, [], None)
def one_device_leaves_early(x_ref, out_ref):
    left, right = around()
    if lax.axis_index("x") == 2:
        return
    barrier(left, right)


@wrong(pltpu.DeadlockError, 4, [DMA, DMA], None)
def one_device_does_not_send(x_ref, out_ref, send, receive):
    me, _, right, _ = neighbors()
    copy = pltpu.make_async_remote_copy(x_ref, out_ref, send, receive, device_id={"x": right})

    @pl.when(me != 1)
    def _():
        copy.start()
        copy.wait_send()

    copy.wait_recv()  # here


@wrong(pltpu.DeadlockError, 2, [DMA, DMA], None)
def a_copy_to_oneself_where_the_other_was_meant(x_ref, out_ref, send, receive):
    me = lax.axis_index("x")
    copy = pltpu.make_async_remote_copy(x_ref, out_ref, send, receive, device_id={"x": mnp.minimum(me, 0)})
    copy.start()
    copy.wait()  # here


# What is left over


@wrong(pltpu.UnfinishedCopyError, 1, [DMA], None)
def a_copy_nobody_waits_for(x_ref, out_ref, sem):
    pltpu.async_copy(x_ref, out_ref, sem)  # here


@wrong(pltpu.UnfinishedCopyError, 4, [DMA, DMA], None)
def a_send_nobody_waits_for(x_ref, out_ref, send, receive):
    _, right = around()
    pltpu.async_remote_copy(x_ref, out_ref, send, receive, device_id={"x": right}).wait_recv()  # here


@wrong(pltpu.SemaphoreError, 1, [REGULAR], None)
def a_signal_nobody_waits_for(x_ref, out_ref, sem):
    pltpu.semaphore_signal(sem, 3)  # here
    pltpu.semaphore_wait(sem, 2)


@wrong(pltpu.SemaphoreError, 4, [], None)
def a_barrier_signalled_twice(x_ref, out_ref):
    left, right = around()
    barrier(left, right)
    pltpu.semaphore_signal(pltpu.get_barrier_semaphore(), device_id={"x": right})  # here


@wrong(pltpu.UnfinishedCopyError, 1, [], None)
def a_scope_ends_before_its_copy(x_ref, out_ref):
    def scoped(scratch, sem):
        pltpu.async_copy(x_ref, scratch, sem)  # here

    pl.run_scoped(scoped, VMEM, DMA)


# Entering


@wrong(pltpu.BarrierError, 2, [DMA, DMA])
def no_barrier_before_the_first_copy(x_ref, out_ref, send, receive):
    other = 1 - lax.axis_index("x")
    copy = pltpu.make_async_remote_copy(x_ref, out_ref, send, receive, device_id={"x": other})
    copy.start()  # here
    copy.wait()


@wrong(pltpu.BarrierError, 4, [DMA, DMA])
def a_barrier_with_the_wrong_neighbor(x_ref, out_ref, send, receive):
    _, right = around()
    semaphore = pltpu.get_barrier_semaphore()
    pltpu.semaphore_signal(semaphore, device_id={"x": right})
    pltpu.semaphore_wait(semaphore)
    copy = pltpu.make_async_remote_copy(x_ref, out_ref, send, receive, device_id={"x": right})
    copy.start()  # here
    copy.wait()


@wrong(pltpu.BarrierError, 2, [REGULAR])
def a_semaphore_of_a_device_that_may_not_be_there_yet(x_ref, out_ref, sem):
    pltpu.semaphore_signal(sem, device_id={"x": 1 - lax.axis_index("x")})  # here
    pltpu.semaphore_wait(sem)


# Indices, shapes, dtypes


@wrong(pltpu.BoundsError, debug=None)
def an_index_outside(x_ref, out_ref):
    out_ref[...] = mnp.zeros_like(out_ref) + x_ref[8, 0]  # here


@wrong(pltpu.BoundsError, debug=None)
def a_slice_outside(x_ref, out_ref):
    out_ref[0:4] = x_ref[pl.ds(6, 4)]  # here


@wrong(pltpu.BoundsError, debug=None, grid=(5,), in_specs=[pl.BlockSpec((2, 16), lambda i: (i, 0))])
def a_block_outside(x_ref, out_ref):
    out_ref[0:2] = x_ref[...]


TILES = pl.Debug(tiles=True)


@wrong(pltpu.AlignmentError, debug=TILES, grid=(2,), in_specs=[pl.BlockSpec((4, 16), lambda i: (i, 0))])
def a_block_of_half_a_tile(x_ref, out_ref):
    out_ref[...] = mnp.zeros_like(out_ref)


@wrong(pltpu.CopyError, 1, [DMA], None)
def a_copy_of_another_shape(x_ref, out_ref, sem):
    pltpu.async_copy(x_ref.at[0:4], out_ref, sem).wait()  # here


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


@wrong(pltpu.CapacityError, 1, [pltpu.VMEM((1024, 1024), F32)], None, limit=1 << 20)
def more_memory_than_there_is(x_ref, out_ref, scratch):
    out_ref[...] = x_ref[...]


@wrong(pltpu.ScopeError, 2, [], None)
def a_copy_into_a_scope_the_other_has_not_entered(x_ref, out_ref):
    me = lax.axis_index("x")

    def scoped(scratch, send, receive):
        pltpu.async_remote_copy(x_ref, scratch, send, receive, device_id={"x": 1 - me}).wait_send()  # here

    @pl.when(me == 0)
    def _():
        pl.run_scoped(scoped, VMEM, DMA, DMA)


def run(name: str) -> None:
    kernel, _, devices, scratch, debug, options = CASES[name]
    options = dict(options)
    limit = options.pop("limit", None)
    params = COLLECTIVE if limit is None else pltpu.CompilerParams(collective_id=0, vmem_limit_bytes=limit)
    call = pl.pallas_call(
        kernel, struct((8, 16)), scratch_shapes=list(scratch), compiler_params=params, debug=debug, **options
    )
    x = np.arange(devices * 8 * 16, dtype=np.float32).reshape(devices, 8, 16)
    on_devices(call, {"x": devices}, [[row] for row in x])


@pytest.mark.parametrize("name", CASES)
def test_37_the_mistake_is_found_and_its_lines_are_named(name):
    kernel, error, *_ = CASES[name]
    with pytest.raises(error) as caught:
        run(name)
    assert type(caught.value) is error
    text, first = inspect.getsourcelines(kernel)
    wanted = {first + n for n, line in enumerate(text) if line.rstrip().endswith("# here")}
    named = {int(n) for n in re.findall(r"test_wrong_kernels\.py:(\d+)", str(caught.value))}
    assert wanted <= named, f"lines {sorted(wanted)} in\n{caught.value}"
    assert caught.value.why and caught.value.fix


def test_there_are_many():
    assert len(CASES) >= 40
