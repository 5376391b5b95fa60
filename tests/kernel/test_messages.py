"""What errors say, word for word, and that a schedule is run again as it was."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import hardware, lax
from meshwright import pallas as pl
from meshwright.kernel.call import LARGEST_VMEM
from meshwright.pallas import tpu as pltpu
from tests.kernel import wrong_races, wrong_uses, wrong_waits  # noqa: F401
from tests.kernel.collectives import struct
from tests.kernel.corpus import WRONG
from tests.kernel.test_conformance_devices import both_ways_all_gather, numbers
from tests.kernel.test_conformance_devices import run as run_kernel

MESSAGES = {
    "load_before_the_copy_is_waited_for": """\
Two accesses to scratch of device 0 race.
  at:   FILE:N   copy = pltpu.async_copy(x_ref, scratch, sem)  # here   (the copy of device 0 writes)
        FILE:N   out_ref[...] = scratch[...]  # here   (device 0 reads)
  why:  no wait for the copy comes before the access
  fix:  wait for the copy, on a semaphore of its own, before the other access""",
    "a_shared_semaphore_tells_of_the_other_copy": """\
Two accesses to a of device 0 race.
  at:   FILE:N   first = pltpu.async_copy(x_ref, a, sem)  # here   (the copy of device 0 writes)
        FILE:N   out_ref[...] = a[...]  # here   (device 0 reads)
  why:  the semaphore sem is shared: what was waited for may have been the signal of
        FILE:N   second = pltpu.async_copy(x_ref, b, sem)
  fix:  wait for the copy, on a semaphore of its own, before the other access""",
    "cyclic_wait": """\
The kernel cannot go on: 2 of 2 devices wait for signals that nobody will send.
  at:   FILE:N   pltpu.semaphore_wait(sem)  # here   (device 0 waits)
        FILE:N   pltpu.semaphore_wait(sem)  # here   (device 1 waits)
  why:  device 0 needs 1 of sem, which is at 0; no device has signalled it
        device 1 needs 1 of sem, which is at 0; no device has signalled it
  fix:  send as many signals to each device as it waits for, and start every copy that is waited for""",
    "one_device_does_not_send": """\
The kernel cannot go on: 1 of 4 devices waits for a signal that nobody will send.
  at:   FILE:N   copy.wait_recv()  # here   (device 2 waits for a copy to come)
  why:  device 2 needs 512 of receive, which is at 0; it has been signalled at FILE:N by device 0, device 2, device 3
        device 0, device 1, device 3 have returned
  fix:  send as many signals to each device as it waits for, and start every copy that is waited for""",
    "a_copy_nobody_waits_for": """\
The copy of device 0 to the window of out_ref is not waited for in its grid step.
  at:   FILE:N   pltpu.async_copy(x_ref, out_ref, sem)  # here
  why:  the block is written to main memory when its steps are over, with or without what is copied
  fix:  copy.wait() in the body; for a copy that a later kernel waits for, the whole output in its own memory:
        out_specs=pl.BlockSpec(memory_space=pltpu.VMEM)""",
    "a_signal_nobody_waits_for": """\
The semaphore sem of device 0 is left at 1.
  at:   FILE:N   pltpu.semaphore_signal(sem, 3)  # here
  why:  every signal must be waited for: the next kernel starts from zero; device 0 sent the last one
  fix:  pltpu.semaphore_wait(sem, 1)""",
    "half_of_scratch_is_written": """\
Device 0 reads memory that nothing was written to.
  at:   FILE:N   out_ref[...] = scratch[...]  # here
  why:  64 of the 128 elements of scratch it reads have no value yet
        and 64 of the 128 elements of out_ref, a result, depend on them:
        FILE:N   out_ref[...] = scratch[...]  # here
  fix:  store to it first, or wait for the copy that fills it;
        mnp.where(mask, value, 0) leaves out what is not to count""",
    "a_slice_outside": """\
A slice of 4 elements from 6 leaves a dim of 8.
  at:   FILE:N   out_ref[0:4] = x_ref[pl.ds(6, 4)]  # here
  why:  the ref has shape (8, 16)
  fix:  pl.ds(start, 4) with 0 <= start <= 4""",
    "a_copy_of_another_dtype": """\
A copy goes from float32[8, 16] of the window of x_ref to bfloat16[8, 16] of scratch.
  at:   FILE:N   pltpu.async_copy(x_ref, scratch, sem).wait()  # here
  why:  a copy moves bytes: source and destination have one dtype
  fix:  load, convert and store: dst_ref[...] = src_ref[...].astype('bfloat16')""",
    "a_device_that_is_not_there": """\
Device 3 names device {'x': 4}.
  at:   FILE:N   pltpu.async_remote_copy(x_ref, out_ref, send, receive, device_id={"x": right}).wait()  # here
  why:  4 is not from 0 to 3
  fix:  lax.rem(my_id + 1, num_devices)""",
    "main_memory_is_loaded": """\
x_ref is read directly, but it is in ANY.
  at:   FILE:N   out_ref[...] = x_ref[...]  # here
  why:  compute reaches VMEM and SMEM; main memory is reached by copies
  fix:  pltpu.sync_copy(ref, vmem_ref), or give the operand a BlockSpec without memory_space""",
}


def message(name: str) -> str:
    with pytest.raises(pltpu.KernelError) as caught:
        WRONG[name].run()
    return re.sub(r"wrong_\w+\.py:\d+", "FILE:N", str(caught.value))


@pytest.mark.parametrize("name", MESSAGES)
def test_the_whole_message(name):
    assert message(name) == MESSAGES[name]


def races(debug: pl.Debug) -> pltpu.RaceError:
    with pytest.raises(pltpu.RaceError) as caught:
        run_kernel(both_ways_all_gather(4, (2, 8), debug), numbers(4, 2, 8))
    return caught.value


def test_an_exploration_is_the_same_each_time_and_its_schedules_can_be_run_again():
    first, again = (races(pl.Debug(schedules=64, seed=3)) for _ in range(2))
    assert str(first) == str(again)
    number = int(re.search(r"in schedule (\d+)", str(first))[1])  # type: ignore[index]
    assert str(races(pl.Debug(seed=3, replay=number))) == str(first)


def test_orders_can_be_chosen_for_one_run():
    def outcome(debug: pl.Debug) -> str:
        try:
            run_kernel(both_ways_all_gather(4, (2, 8), debug), numbers(4, 2, 8))
        except pltpu.RaceError as error:
            return str(error)
        return "clean"

    assert outcome(pl.Debug(order="adversarial")) != "clean" == outcome(pl.Debug(order="fifo"))
    seeded = [pl.Debug(order="seeded", seed=seed) for seed in range(12)]
    outcomes = [outcome(debug) for debug in seeded]
    assert outcomes == [outcome(debug) for debug in seeded] and len(set(outcomes)) > 1


def test_an_error_of_python_says_on_which_device():
    def kernel(x_ref, out_ref):
        if pltpu.device_id() == 2:
            raise ZeroDivisionError("by zero")
        out_ref[...] = x_ref[...]

    call = pl.pallas_call(kernel, struct((2, 4)))
    with pytest.raises(ZeroDivisionError) as caught:
        run_kernel(call, np.zeros((4, 2, 4), np.float32))
    assert caught.value.__notes__ == ["in the kernel on device 2"]


def test_a_ref_is_not_used_in_a_traced_function():
    def kernel(x_ref, out_ref):
        out_ref[...] = mw.jit(lambda: x_ref[...] * 2)()

    with pytest.raises(mw.MeshwrightError, match="A ref is read in a function being traced"):
        pl.pallas_call(kernel, struct((2,)))(mnp.ones(2))


def failing(call: Any, *args: Any) -> str:
    with pytest.raises(pltpu.KernelError) as caught:
        call(*args)
    return re.sub(r"test_messages\.py:\d+", "FILE:N", str(caught.value))


def test_an_output_block_is_left_once():
    call = pl.pallas_call(
        lambda x_ref, out_ref: None,
        struct((2, 8)),
        grid=(4,),
        in_specs=[pl.BlockSpec((1, 8), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((1, 8), lambda i: (i % 2, 0)),
    )
    assert failing(call, mnp.ones((4, 8))) == (
        "Block (0, 0) of output 0 of the pipeline is written again after another one.\n"
        "  at:   FILE:N   out_specs=pl.BlockSpec((1, 8), lambda i: (i % 2, 0)),\n"
        "  why:  grid step (2,) comes back to it, and the copy that wrote it the first time may still be under way\n"
        "  fix:  let all steps of a block follow each other: put the axes that the index map does not use last"
    )


def test_index_maps_and_kernels_take_what_they_are_given():
    call = pl.pallas_call(
        lambda x_ref, out_ref: None,
        struct((2, 8)),
        grid=(2,),
        in_specs=[pl.BlockSpec((1, 8), lambda i, j: (i, j))],
    )
    assert failing(call, mnp.ones((2, 8))) == (
        "The index map of input 0 of the pipeline cannot take 1 index.\n"
        "  at:   FILE:N   in_specs=[pl.BlockSpec((1, 8), lambda i, j: (i, j))],\n"
        "  why:  it is given one index per grid axis, then the refs of scalars that were prefetched\n"
        "  fix:  lambda i: (…)"
    )

    def kernel(x_ref, out_ref, total_ref):
        pass

    call = pl.pallas_call(kernel, struct((2, 8)))
    assert failing(call, mnp.ones((2, 8))) == (
        "The kernel kernel cannot take the 2 refs it is given.\n"
        "  at:   FILE:N   call = pl.pallas_call(kernel, struct((2, 8)))\n"
        "  why:  missing a required argument: 'total_ref'; it is given 1 operands, 1 results and 0 of scratch memory, "
        "in this order\n"
        "  fix:  one parameter for each: def kernel(x_ref, …, out_ref, …, scratch_ref, …)"
    )


def test_axes_of_a_grid_are_parallel_or_not():
    for names in (("paralel", pltpu.ARBITRARY), ("parallel",)):
        params = pltpu.CompilerParams(dimension_semantics=names)
        call = pl.pallas_call(lambda x_ref, out_ref: None, struct((2,)), grid=(2, 2), compiler_params=params)
        assert failing(call, mnp.ones(2)).split("\n", 2)[::2] == [
            f"dimension_semantics is {tuple(getattr(n, 'value', n) for n in names)} for a grid of 2 axes.",
            "  why:  each axis is one of 'parallel', 'core_parallel', 'subcore_parallel', 'arbitrary'\n"
            "  fix:  dimension_semantics=('arbitrary', 'arbitrary')",
        ]


def test_a_new_block_of_an_output_has_no_value_though_its_buffer_held_another():
    def kernel(x_ref, out_ref):
        @pl.when(pl.program_id(0) < 2)
        def _():
            out_ref[...] = mnp.zeros_like(out_ref)

        out_ref[...] += x_ref[...]

    spec = pl.BlockSpec((1, 8), lambda i: (i, 0))
    call = pl.pallas_call(kernel, struct((4, 8)), grid=(4,), in_specs=[spec], out_specs=spec, debug=pl.Debug())
    assert failing(call, mnp.ones((4, 8))).startswith(
        "Device 0 reads memory that nothing was written to.\n  at:   FILE:N"
    )


def along_a_parallel_axis(kernel: Any, debug: Any) -> Any:
    spec = pl.BlockSpec((1, 8), lambda i: (i, 0))
    return pl.pallas_call(
        kernel,
        struct((4, 8)),
        grid=(4,),
        in_specs=[spec],
        out_specs=spec,
        scratch_shapes=[pltpu.VMEM((1, 8), mnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=(pltpu.PARALLEL,)),
        debug=debug,
    )


def test_steps_along_a_parallel_axis_may_be_run_in_any_order():
    def alone(x_ref, out_ref, total_ref):
        total_ref[...] = x_ref[...] * pl.program_id(0)
        out_ref[...] = total_ref[...] + 1

    x = mnp.arange(32.0).reshape(4, 8)
    expected = np.asarray(x) * np.arange(4)[:, None] + 1
    np.testing.assert_array_equal(along_a_parallel_axis(alone, pl.Debug(schedules=16))(x), expected)

    def counting(x_ref, out_ref, total_ref):
        steps.append(pl.program_id(0))
        out_ref[...] = mnp.full(out_ref.shape, float(len(steps) % 4))

    steps: list[Any] = []
    text = failing(along_a_parallel_axis(counting, pl.Debug(schedules=4)), x)
    assert text.startswith(
        "The results of counting depend on the order of its grid steps.\n  at:   FILE:N   return pl.pallas_call(\n"
        "  why:  axis 0 of its grid is said to be parallel, but 32 of 32 elements of result 0 of device 0 are others\n"
        "        when it is run in another order: schedule 1 (adversarial)\n"
    )

    def summing(x_ref, out_ref, total_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            total_ref[...] = mnp.zeros_like(total_ref)

        total_ref[...] += x_ref[...]
        out_ref[...] = total_ref[...]

    along_a_parallel_axis(summing, None)(x)
    text = failing(along_a_parallel_axis(summing, pl.Debug(schedules=4)), x)
    assert text.startswith(
        "total_ref carries a value along axis 0 of the grid, which is said to be parallel.\n"
        "  at:   FILE:N   total_ref[...] += x_ref[...]\n"
        "  why:  step 1 along it reads what step 0 has written at"
    )


def test_what_another_step_along_a_parallel_axis_has_left_may_be_read_if_nothing_comes_of_it():
    def discarding(x_ref, out_ref, total_ref):
        total_ref[...] = mnp.where(pl.program_id(0) >= 0, x_ref[...], total_ref[...] + x_ref[...])
        out_ref[...] = total_ref[...] + 1

    x = mnp.arange(32.0).reshape(4, 8)
    np.testing.assert_array_equal(
        along_a_parallel_axis(discarding, pl.Debug(schedules=16))(x), np.arange(32.0).reshape(4, 8) + 1
    )

    def partly(x_ref, out_ref, total_ref):
        first = lax.broadcasted_iota(mnp.int32, (1, 8), 1) < 3
        out_ref[...] = mnp.where(first, total_ref[...], x_ref[...])
        total_ref[...] = x_ref[...]

    def first_set(x_ref, out_ref, total_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            total_ref[...] = x_ref[...]

        partly(x_ref, out_ref, total_ref)

    assert failing(along_a_parallel_axis(first_set, pl.Debug()), x) == (
        "total_ref carries a value along axis 0 of the grid, which is said to be parallel.\n"
        "  at:   FILE:N   out_ref[...] = mnp.where(first, total_ref[...], x_ref[...])\n"
        "  why:  step 2 along it reads what step 1 has written at FILE:N   total_ref[...] = x_ref[...];\n"
        "        steps along a parallel axis are run in any order, or on several cores\n"
        "        and 9 of the 32 elements of out_ref, a result, depend on them:\n"
        "        FILE:N   out_ref[...] = mnp.where(first, total_ref[...], x_ref[...])\n"
        '  fix:  "arbitrary" in the place of "parallel" for axis 0 in dimension_semantics'
    )


def test_specs_are_block_specs():
    for specs in (["x"], [(pl.BlockSpec(), pl.BlockSpec())]):
        text = failing(pl.pallas_call(lambda *_: None, struct((2,)), in_specs=specs), mnp.ones(2))
        assert text.startswith(f"in_specs has {specs[0]!r} for an operand of 1 array.\n")
    with pytest.raises(pltpu.KernelError, match="A block is to be fetched into 0 buffers"):
        pl.Buffered(0)


def test_index_maps_return_integers():
    spec = pl.BlockSpec((1, 8), lambda i: (i / 2, 0))
    call = pl.pallas_call(lambda x_ref, out_ref: None, struct((2, 8)), grid=(2,), in_specs=[spec])
    assert failing(call, mnp.ones((2, 8))) == (
        "The index map of input 0 of the pipeline returns (0.0, 0).\n"
        "  at:   FILE:N   spec = pl.BlockSpec((1, 8), lambda i: (i / 2, 0))\n"
        "  why:  indices of blocks are integers\n"
        "  fix:  integers, or pl.ds(start, size) for a dim that is a pl.BoundedSlice; i // 2 divides integers"
    )


def test_a_kernel_returns_nothing():
    call = pl.pallas_call(lambda x_ref, out_ref: x_ref[...], struct((2, 8)))
    assert failing(call, mnp.ones((2, 8))) == (
        "The body of a kernel returns Array.\n"
        "  at:   FILE:N   call = pl.pallas_call(lambda x_ref, out_ref: x_ref[...], struct((2, 8)))\n"
        "  why:  results are what it stores to its output refs\n"
        "  fix:  out_ref[...] = value"
    )


def test_collectives_are_not_for_kernels():
    def kernel(x_ref, out_ref):
        out_ref[...] = lax.psum(x_ref[...], "x")

    with pytest.raises(mw.MeshwrightError) as caught:
        run_kernel(pl.pallas_call(kernel, struct((2, 4))), np.zeros((4, 2, 4), np.float32))
    assert re.sub(r"\.py:\d+", ":N", str(caught.value)) == (
        "psum over 'x' is used in a kernel.\n"
        '  at:   test_messages:N   out_ref[...] = lax.psum(x_ref[...], "x")\n'
        "  why:  the body of a kernel is run by each device on its own; devices exchange data by copies and signals\n"
        "  fix:  lax.psum on what pl.pallas_call returns, or pltpu.async_remote_copy in the kernel"
    )


def test_with_debug_there_is_as_much_memory_as_the_largest_chip_has():
    assert max(hardware.get(name).known("vmem_bytes", 0.0) for name in hardware.names()) == LARGEST_VMEM
    scratch = [pltpu.VMEM((LARGEST_VMEM // 4,), mnp.float32)]
    call = pl.pallas_call(
        lambda x_ref, out_ref, scratch: None, struct((1, 8)), scratch_shapes=scratch, debug=pl.Debug()
    )
    assert failing(call, mnp.ones((1, 8))).startswith("The kernel needs 134217760 bytes of VMEM, a core has 134217728.")


def test_two_inputs_are_not_one_output():
    call = pl.pallas_call(lambda *_: None, struct((2, 8)), input_output_aliases={0: 0, 1: 0})
    assert failing(call, mnp.ones((2, 8)), mnp.ones((2, 8))) == (
        "input_output_aliases names output 0 twice.\n"
        "  at:   FILE:N   call(*args)\n"
        "  why:  two inputs cannot be the same memory\n"
        "  fix:  one input for each output: input_output_aliases={0: 0, 1: 1}"
    )


def test_blocks_that_depend_on_numbers_take_an_unknown_time():
    block = pl.BlockSpec((1, 8), lambda i, rows: (rows[i], 0))
    grid = pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, grid=(2,), in_specs=[block], out_specs=block)
    call = pl.pallas_call(lambda rows, x_ref, out_ref: None, struct((2, 8)), grid_spec=grid)
    program = mw.make_program(call)(mnp.zeros(2, mnp.int32), mnp.ones((2, 8)))
    assert failing(mw.simulate, program, "tpu v5e") == (
        "How long <lambda> takes is not known before it runs.\n"
        "  at:   FILE:N   call = pl.pallas_call(lambda rows, x_ref, out_ref: None, struct((2, 8)), grid_spec=grid)\n"
        "  why:  which blocks it fetches may depend on the numbers that are prefetched\n"
        "  fix:  make them constants of the program: mw.make_program(lambda x: f(x, numbers))(…), not arguments of it"
    )
    rows = mnp.array([1, 1], mnp.int32)
    known = mw.simulate(mw.make_program(lambda x: call(rows, x))(mnp.ones((2, 8))), "tpu v5e")
    two = mw.simulate(mw.make_program(lambda x: call(mnp.array([0, 1], mnp.int32), x))(mnp.ones((2, 8))), "tpu v5e")
    # A block that stays is fetched and written once.
    assert (known.nbytes, two.nbytes) == (2 * 32, 4 * 32)
