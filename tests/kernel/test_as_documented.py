"""What Pallas documents of calls, semaphores and copies, held against JAX's interpreter where that has it."""

from __future__ import annotations

from typing import Any

import jax
import jax.experimental.pallas as jax_pl
import jax.experimental.pallas.tpu as jax_pltpu
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.pallas import tpu as pltpu
from tests.kernel.driver import ANY, F32, debugs, on_devices, out

X = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)
SEMAPHORE, VMEM, SMEM = (pl.BlockSpec(memory_space=space) for space in (pltpu.SEMAPHORE, pltpu.VMEM, pltpu.SMEM))


@debugs
def test_a_copy_into_an_output_in_vmem_may_be_waited_for_in_the_next_call(debug):
    def start(x_ref, out_ref, sem):
        pltpu.make_async_copy(x_ref, out_ref, sem).start()

    def finish(x_ref, sem, out_ref):
        pltpu.make_async_copy(x_ref, x_ref, sem).wait()
        out_ref[...] = x_ref[...] + 1

    dma = pltpu.SemaphoreType.DMA(())
    for kind in (out(8, 128), pltpu.VMEM((8, 128), F32)):
        y, sem = pl.pallas_call(start, (kind, dma), in_specs=[ANY], out_specs=(VMEM, SEMAPHORE), debug=debug)(X)
        found = pl.pallas_call(finish, out(8, 128), in_specs=[VMEM, SEMAPHORE], debug=debug)(y, sem)
        np.testing.assert_array_equal(found, X + 1)


@pytest.mark.parametrize("races", [False, True])
def test_a_copy_into_a_block_must_be_waited_for_in_its_grid_step(races):
    def start(x_ref, out_ref, sem):
        pltpu.make_async_copy(x_ref.at[pl.ds(pl.program_id(0) * 4, 4)], out_ref, sem).start()

    call = pl.pallas_call(
        start,
        (out(8, 128), pltpu.SemaphoreType.DMA(())),
        grid=(2,),
        in_specs=[ANY],
        out_specs=(pl.BlockSpec((4, 128), lambda i: (i, 0)), SEMAPHORE),
        debug=pl.Debug(races=races),
    )
    with pytest.raises(pltpu.RaceError if races else pltpu.UnfinishedCopyError):
        call(X)


@debugs
def test_regular_semaphores_stay_regular_from_call_to_call_and_through_jit(debug):
    def give(sem, other):
        pltpu.semaphore_signal(sem, 2)
        pltpu.semaphore_signal(other.at[1], 3)

    def take(sem, other, out_ref):
        pltpu.semaphore_wait(sem, 2)
        out_ref[0] = pltpu.semaphore_read(other.at[1])
        pltpu.semaphore_wait(other.at[1], 3)

    kinds = (pltpu.SemaphoreType.REGULAR(()), pltpu.SemaphoreType.REGULAR((2,)))

    def both() -> Any:
        sems = pl.pallas_call(give, kinds, out_specs=(SEMAPHORE, SEMAPHORE), debug=debug)()
        return pl.pallas_call(take, out(1, dtype=mnp.int32), in_specs=[SEMAPHORE, SEMAPHORE], debug=debug)(*sems)

    assert both()[0] == mw.jit(both)()[0] == 3


def test_a_semaphore_of_an_earlier_call_keeps_its_kind():
    def give(sem):
        pltpu.semaphore_signal(sem, 2)

    def copy(sem, x_ref, out_ref):
        pltpu.async_copy(x_ref, out_ref, sem).wait()

    sem = pl.pallas_call(give, pltpu.SemaphoreType.REGULAR, out_specs=SEMAPHORE)()
    with pytest.raises(pltpu.SemaphoreError, match=r"A copy uses sem, a regular semaphore\."):
        pl.pallas_call(copy, out(8, 128), in_specs=[SEMAPHORE, ANY], out_specs=ANY)(sem, X)


@debugs
@pytest.mark.parametrize("devices", [2, 4])
def test_after_a_barrier_copies_may_use_semaphores_of_a_scope(devices, debug):
    def kernel(x_ref, out_ref):
        me, n = lax.axis_index("x"), lax.axis_size("x")
        right, left = lax.rem(me + 1, n), lax.rem(me + n - 1, n)
        barrier = pltpu.get_barrier_semaphore()
        for neighbor in (left, right):
            pltpu.semaphore_signal(barrier, device_id=(neighbor,))
        pltpu.semaphore_wait(barrier, 2)

        def scoped(send, receive):
            pltpu.async_remote_copy(x_ref, out_ref, send, receive, device_id=(right,)).wait()

        pl.run_scoped(scoped, pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.DMA)

    params = pltpu.CompilerParams(collective_id=0)
    call = pl.pallas_call(kernel, out(8), in_specs=[ANY], out_specs=ANY, compiler_params=params, debug=debug)
    rows = np.arange(devices * 8, dtype=np.float32).reshape(devices, 8)
    found = on_devices(call, {"x": devices}, [[row] for row in rows])
    np.testing.assert_array_equal([row for (row,) in found], np.roll(rows, 1, axis=0))


@debugs
def test_what_is_waited_for_may_be_longer_than_any_ref(debug):
    def kernel(x_ref, out_ref, buffer, sem):
        for n in range(4):
            pltpu.make_async_copy(x_ref.at[pl.ds(n * 2, 2)], buffer.at[n], sem).start()
        row = out_ref.at[0]
        pltpu.make_async_copy(row.at[pl.ds(0, 8 * 128)], row.at[pl.ds(0, 8 * 128)], sem).wait()
        for n in range(4):
            out_ref[n * 2 : n * 2 + 2] = buffer[n]

    scratch = [pltpu.VMEM((4, 2, 128), F32), pltpu.SemaphoreType.DMA]
    found = pl.pallas_call(kernel, out(8, 128), in_specs=[ANY], scratch_shapes=scratch, debug=debug)(X)
    np.testing.assert_array_equal(found, X)


def test_but_memory_outside_is_not_copied_nor_loaded():
    def start(x_ref, out_ref, sem):
        pltpu.make_async_copy(x_ref.at[pl.ds(4, 8)], out_ref.at[pl.ds(0, 8)], sem).start()

    def load(x_ref, out_ref, sem):
        out_ref[...] = x_ref.at[pl.ds(4, 8)][...]

    for kernel, where in ((start, ANY), (load, VMEM)):
        call = pl.pallas_call(
            kernel, out(8, 128), in_specs=[where], out_specs=where, scratch_shapes=[pltpu.SemaphoreType.DMA]
        )
        with pytest.raises(pltpu.BoundsError) as caught:
            call(X)
        text = "x_ref.at[pl.ds(4, 8)], out_ref.at[pl.ds(0, 8)], sem).start()"
        line = f"pltpu.make_async_copy({text}" if where is ANY else "out_ref[...] = x_ref.at[pl.ds(4, 8)][...]"
        assert caught.value.where.endswith(line)
        assert caught.value.what == "A slice of 8 elements from 4 leaves a dim of 8."


def both(build: Any) -> tuple[Any, Any]:
    """What a function of JAX's names, or ours, makes of them."""
    theirs = build(jax, jnp, jax_pl, jax_pltpu, {"interpret": jax_pltpu.InterpretParams()})
    return theirs, build(mw, mnp, pl, pltpu, {"debug": pl.Debug()})


def test_a_list_of_results_is_returned_as_a_tuple():
    def build(api, np, pl, pltpu, options):
        def kernel(x_ref, a_ref, b_ref):
            a_ref[...] = b_ref[...] = x_ref[...]

        return pl.pallas_call(kernel, [api.ShapeDtypeStruct((8, 128), np.float32)] * 2, **options)(np.asarray(X))

    theirs, ours = both(build)
    assert type(ours) is type(theirs) is tuple
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("jit", [False, True])
def test_a_size_of_the_grid_may_be_an_array_of_one_number(jit):
    def kernel(out_ref):
        out_ref[0] = pl.program_id(0)

    def f(n: Any) -> Any:
        return pl.pallas_call(
            kernel, out(1, dtype=mnp.int32), grid=(n,), out_specs=pl.BlockSpec((1,), lambda i: (0,))
        )()

    for n in (mnp.array([3], mnp.int32), mnp.array(3, mnp.int32)):
        assert (mw.jit(f) if jit else f)(n)[0] == 2


@pytest.mark.parametrize("space", [None, "VMEM", "SMEM"])
def test_operands_results_and_scratch_memory_of_rank_0(space):
    def build(api, np, pl, pltpu, options):
        def kernel(x_ref, out_ref, a, b):
            a[()] = x_ref[...] + pl.program_id(0)
            b[...] = a[...] * 2
            out_ref[...] = b[()]

        where = {} if space is None else {"memory_space": getattr(pltpu, space)}
        spec = pl.BlockSpec((), lambda i: (), **where)
        return pl.pallas_call(
            kernel,
            api.ShapeDtypeStruct((), np.int32),
            grid=(3,),
            in_specs=[spec],
            out_specs=spec,
            scratch_shapes=[pltpu.SMEM((), np.int32), pltpu.SMEM((), np.int32)],
            **options,
        )(np.int32(5))

    theirs, ours = both(build)
    assert ours.shape == theirs.shape == ()
    assert ours == theirs == 14


def test_debug_true_says_what_is_run_and_looks_for_no_mistakes(capsys):
    def kernel(x_ref, out_ref):
        out_ref[0] = x_ref[0]

    assert pl.pallas_call(kernel, out(2), debug=True)(mnp.ones(2))[0] == 1
    assert capsys.readouterr().out == "kernel over the grid (): (float32[2]) -> (float32[2])\n"


def test_debug_check_is_off_unless_it_is_asked_for():
    def build(api, np, pl, pltpu, options):
        def kernel(x_ref, out_ref):
            pl.debug_check(x_ref[0, 0] > 0, "not positive")
            out_ref[...] = x_ref[...]

        return pl.pallas_call(kernel, api.ShapeDtypeStruct((8, 128), np.float32), **options)

    theirs = build(jax, jnp, jax_pl, jax_pltpu, {"interpret": jax_pltpu.InterpretParams()})
    ours = build(mw, mnp, pl, pltpu, {})
    np.testing.assert_array_equal(ours(X), theirs(X))
    for checked in (ours, build(mw, mnp, pl, pltpu, {"debug": pl.Debug()})):
        with (
            pl.enable_debug_checks(checked is ours),
            pytest.raises(pltpu.KernelError, match="A check fails on device 0"),
        ):
            checked(X)
    ours(X)
