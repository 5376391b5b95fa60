"""Kernels of many devices against what they compute, over many legal orders of what happens, with no race."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.engine.compile import compile_program
from meshwright.pallas import tpu as pltpu
from tests.kernel.collectives import (
    ANY,
    COLLECTIVE,
    DMA,
    REGULAR,
    all_to_all,
    asymmetric_send,
    barrier,
    reduce_scatter,
    right_permute,
    ring_all_gather,
    ring_all_reduce,
    struct,
)
from tests.kernel.driver import on_devices

MANY = pl.Debug(schedules=16)
sizes = pytest.mark.parametrize("devices", [2, 3, 4, 8])


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-8, 8, size=shape).astype(np.float32)


def run(call: Any, x: np.ndarray) -> np.ndarray:
    """One array per device in, one out."""
    return np.stack([out for (out,) in on_devices(call, {"x": len(x)}, [[row] for row in x])])


@sizes
def test_right_permute(devices):
    x = numbers(devices, 8, 16)
    np.testing.assert_array_equal(run(right_permute((8, 16), MANY), x), np.roll(x, 1, 0))


def test_asymmetric_send():
    x = numbers(4, 8, 16)
    expected = np.stack([np.zeros_like(x[0]), x[0], x[3], x[2]])
    np.testing.assert_array_equal(run(asymmetric_send((8, 16), MANY), x), expected)


@sizes
def test_ring_all_gather(devices):
    x = numbers(devices, 4, 16)
    found = run(ring_all_gather(devices, (4, 16), MANY), x)
    np.testing.assert_array_equal(found, np.broadcast_to(x, (devices, *x.shape)))


@sizes
def test_ring_all_reduce_with_two_buffers_and_room(devices):
    x = numbers(devices, 4, 16)
    found = run(ring_all_reduce(devices, (4, 16), MANY), x)
    np.testing.assert_array_equal(found, np.broadcast_to(x.sum(0), x.shape))


@sizes
def test_reduce_scatter_both_ways(devices):
    x = numbers(devices, devices, 4, 16)
    np.testing.assert_array_equal(run(reduce_scatter(devices, (4, 16), MANY), x), x.sum(0))


@sizes
def test_all_to_all(devices):
    x = numbers(devices, devices, 2, 8)
    found = run(all_to_all(devices, (2, 8), MANY), x)
    np.testing.assert_array_equal(found, x.swapaxes(0, 1))


def both_ways_all_gather(devices, shape, debug=None):
    """Copies of one direction share a receive semaphore: right where links keep order."""

    def kernel(x_ref, out_ref, local, send, receive):
        n = lax.axis_size("x")
        me = lax.axis_index("x")
        left, right = lax.rem(me + n - 1, n), lax.rem(me + 1, n)
        pltpu.async_copy(x_ref, out_ref.at[me], local).wait()
        barrier(left, right)
        steps = n // 2

        @pl.loop(0, steps)
        def _(step):
            copies = []
            for way, to, sign in ((0, right, -1), (1, left, 1)):
                if way == 0 or step < (n - 1) // 2:
                    block = out_ref.at[lax.rem(me + sign * step + n, n)]
                    copies.append(
                        pltpu.async_remote_copy(block, block, send.at[way], receive.at[way], device_id={"x": to})
                    )
            for copy in copies:
                copy.wait()

    return pl.pallas_call(
        kernel, struct((devices, *shape)), in_specs=[ANY], out_specs=ANY,
        scratch_shapes=[DMA, DMA((2,)), DMA((2,))], compiler_params=COLLECTIVE, debug=debug,
    )  # fmt: skip


@pytest.mark.parametrize("devices", [4, 8])
def test_one_semaphore_for_all_steps_is_right_with_links_in_order_and_a_race_without(devices):
    x = numbers(devices, 2, 8)
    expected = np.broadcast_to(x, (devices, *x.shape))
    for debug in (None, pl.Debug(schedules=16, order="fifo")):
        np.testing.assert_array_equal(run(both_ways_all_gather(devices, (2, 8), debug), x), expected)
    with pytest.raises(pltpu.RaceError, match="is shared"):
        run(both_ways_all_gather(devices, (2, 8), pl.Debug(schedules=64)), x)


@pytest.mark.parametrize("mesh", [{"x": 2, "y": 2}, {"x": 2, "y": 3}, {"y": 2, "x": 4}, {"x": 3, "y": 1}])
@pytest.mark.parametrize("kind", ["dict", "tuple", "joint", "logical"])
def test_devices_are_named_by_axes_coordinates_joint_axes_and_numbers(mesh, kind):
    names, shape = tuple(mesh), tuple(mesh.values())
    total = int(np.prod(shape))

    def kernel(x_ref, out_ref, send, receive):
        n = mesh["x"]
        right = {name: lax.axis_index(name) for name in names}
        right["x"] = lax.rem(right["x"] + 1, n)
        flat = 0
        for name in names:
            flat = flat * mesh[name] + right[name]
        ids = {
            "dict": {"x": right["x"]},
            "tuple": tuple(right[name] for name in names),
            "joint": {names: flat},
            "logical": flat,
        }
        how = pltpu.DeviceIdType.LOGICAL if kind == "logical" else pltpu.DeviceIdType.MESH
        pltpu.async_remote_copy(x_ref, out_ref, send, receive, ids[kind], how).wait()

    call = pl.pallas_call(kernel, struct((4, 8)), scratch_shapes=[DMA, DMA], debug=MANY)
    x = numbers(total, 4, 8)
    found = np.stack([out for (out,) in on_devices(call, mesh, [[row] for row in x])])
    expected = np.roll(x.reshape(*shape, 4, 8), 1, names.index("x")).reshape(x.shape)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("staggered", [False, True])
def test_permutes_in_a_loop_with_two_buffers(staggered):
    steps, devices = 5, 4

    def kernel(x_ref, out_ref, buffers, send, receive, room):
        n = lax.axis_size("x")
        me = lax.axis_index("x")
        left, right = lax.rem(me + n - 1, n), lax.rem(me + 1, n)
        barrier(left, right)
        buffers[0] = x_ref[...]

        def copy(step):
            a, b = lax.rem(step, 2), lax.rem(step + 1, 2)
            return pltpu.make_async_remote_copy(buffers.at[a], buffers.at[b], send.at[a], receive.at[b], {"x": right})

        for step in range(steps):
            if step:
                pltpu.semaphore_wait(room)
            copy(step).start()
            if staggered:
                copy(step).wait_recv()
                copy(step).wait_send()
            else:
                copy(step).wait()
            if step < steps - 1:
                pltpu.semaphore_signal(room, device_id={"x": left})
        out_ref[...] = buffers[steps % 2]

    call = pl.pallas_call(
        kernel, struct((4, 8)), compiler_params=COLLECTIVE, debug=MANY,
        scratch_shapes=[pltpu.VMEM((2, 4, 8), mnp.float32), DMA((2,)), DMA((2,)), REGULAR],
    )  # fmt: skip
    x = numbers(devices, 4, 8)
    np.testing.assert_array_equal(run(call, x), np.roll(x, steps, 0))


def test_a_nested_pipeline_adds_to_what_has_come():
    """Reduce-scatter in main memory, the sum done by an inner pipeline that accumulates."""
    devices, rows = 4, 8

    def kernel(x_ref, out_ref, sums_ref, local, send, receive, room):
        n = lax.axis_size("x")
        me = lax.axis_index("x")
        left, right = lax.rem(me + n - 1, n), lax.rem(me + 1, n)
        barrier(left, right)
        pltpu.async_copy(x_ref.at[lax.rem(me + n - 1, n)], sums_ref.at[0], local).wait()

        def add(block_ref, total_ref):
            total_ref[...] = block_ref[...]

        spec = pl.BlockSpec((4, 8), lambda i: (i, 0))
        pipeline = pltpu.emit_pipeline(
            add, grid=(rows // 4,), in_specs=[spec], out_specs=spec, should_accumulate_out=True
        )
        for step in range(n - 1):
            slot = step % 2
            if step:
                pltpu.semaphore_wait(room)
            copy = pltpu.make_async_remote_copy(
                sums_ref.at[slot], sums_ref.at[1 - slot], send, receive.at[slot], device_id={"x": right}
            )
            copy.start()
            copy.wait()
            pipeline(x_ref.at[lax.rem(me - step - 2 + 2 * n, n)], sums_ref.at[1 - slot])
            if step < n - 2:
                pltpu.semaphore_signal(room, device_id={"x": left})
        pltpu.async_copy(sums_ref.at[(n - 1) % 2], out_ref, local).wait()

    call = pl.pallas_call(
        kernel, [struct((rows, 8)), struct((2, rows, 8))], in_specs=[ANY], out_specs=[ANY, ANY],
        scratch_shapes=[DMA, DMA, DMA((2,)), REGULAR], compiler_params=COLLECTIVE, debug=MANY,
    )  # fmt: skip
    x = numbers(devices, devices, rows, 8)
    outs = on_devices(call, {"x": devices}, [[row] for row in x])
    np.testing.assert_array_equal(np.stack([out for out, _ in outs]), x.sum(0))


def test_kernels_in_shard_map_agree_with_lax_and_batch():
    mesh = mw.make_mesh((2, 4), ("y", "x"))
    spec = mw.P(("y", "x"))

    def by_kernel(x):
        return right_permute(x.shape, pl.Debug())(x)

    def by_lax(x):
        return lax.ppermute(x, "x", [(i, (i + 1) % 4) for i in range(4)])

    kernel, expected = (mw.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec) for f in (by_kernel, by_lax))
    x = mnp.asarray(numbers(3, 16, 4))
    np.testing.assert_array_equal(kernel(x[0]), expected(x[0]))
    np.testing.assert_array_equal(mw.jit(kernel)(x[0]), expected(x[0]))
    np.testing.assert_array_equal(mw.vmap(kernel)(x), mw.vmap(expected)(x))


def test_a_kernel_may_have_a_derivative():
    @mw.custom_vjp
    def double(x):
        def kernel(x_ref, out_ref):
            out_ref[...] = x_ref[...] * 2

        return pl.pallas_call(kernel, struct(x.shape))(x)

    double.defvjp(lambda x: (double(x), None), lambda _, ct: (2 * ct,))
    assert mw.grad(lambda x: double(x).sum())(mnp.ones(3)).tolist() == [2.0, 2.0, 2.0]


def test_a_copy_is_started_in_one_kernel_and_waited_for_in_the_next():
    """The semaphores are results of the first kernel and operands of the second."""

    def start(x_ref, out_ref, send, receive):
        n = lax.axis_size("x")
        right = lax.rem(lax.axis_index("x") + 1, n)
        pltpu.make_async_remote_copy(x_ref, out_ref, send, receive, device_id={"x": right}).start()

    def done(x_ref, came_ref, send, receive, out_ref):
        pltpu.make_async_remote_copy(x_ref, came_ref, send, receive, device_id={"x": 0}).wait()

    semaphore = pl.BlockSpec(memory_space=pltpu.SEMAPHORE)

    def permute(x):
        came, send, receive = pl.pallas_call(
            start, [struct((4, 8)), DMA, DMA], in_specs=[ANY], out_specs=[ANY, semaphore, semaphore], debug=MANY
        )(x)
        return pl.pallas_call(
            done, struct((4, 8)), in_specs=[ANY, ANY, semaphore, semaphore], out_specs=ANY,
            input_output_aliases={1: 0}, debug=MANY,
        )(x, came, send, receive)  # fmt: skip

    x = numbers(4, 4, 8)
    np.testing.assert_array_equal(run(permute, x), np.roll(x, 1, 0))


def all_gather_matmul(devices, m, k, n, t, debug=None):
    """The left side goes round while the blocks that are here are multiplied; each slot has semaphores of its own."""

    def body(x_ref, y_ref, z_ref, acc_ref):
        step = pl.program_id(2)

        @pl.when(step == 0)
        def _():
            acc_ref[...] = mnp.zeros_like(acc_ref)

        acc_ref[...] += x_ref[...] @ y_ref[...]

        @pl.when(step == pl.num_programs(2) - 1)
        def _():
            z_ref[...] = acc_ref[...]

    def kernel(lhs_ref, rhs_ref, out_ref, slots_ref, acc_ref, local, send, receive, room):
        me = lax.axis_index("x")
        left, right = lax.rem(me + devices - 1, devices), lax.rem(me + 1, devices)
        first = pltpu.async_copy(lhs_ref, slots_ref.at[0], local)
        barrier(left, right)
        first.wait()
        for step in range(devices):
            slot = step % 2
            copy = pltpu.make_async_remote_copy(
                slots_ref.at[slot], slots_ref.at[1 - slot], send, receive.at[slot], device_id={"x": right}
            )
            if step < devices - 1:
                if step:
                    pltpu.semaphore_wait(room)
                copy.start()
            rows = pl.ds(lax.rem(me - step + devices, devices) * k, k)
            pltpu.emit_pipeline(
                body,
                grid=(m // t, n // t, k // t),
                in_specs=[
                    pl.BlockSpec((t, t), lambda i, j, k: (i, k)),
                    pl.BlockSpec((t, t), lambda i, j, k: (k, j)),
                ],
                out_specs=pl.BlockSpec((t, t), lambda i, j, k: (i, j)),
                should_accumulate_out=step > 0,
            )(slots_ref.at[slot], rhs_ref.at[rows], out_ref, scratches=[acc_ref])
            if step < devices - 1:
                copy.wait()
            if step < devices - 2:
                pltpu.semaphore_signal(room, device_id={"x": left})

    return pl.pallas_call(
        kernel, [struct((m, n)), struct((2, m, k))], in_specs=[ANY, ANY], out_specs=[ANY, ANY],
        scratch_shapes=[pltpu.VMEM((t, t), mnp.float32), DMA, DMA, DMA((2,)), REGULAR],
        compiler_params=COLLECTIVE, debug=debug,
    )  # fmt: skip


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_an_all_gather_matmul_without_the_hazards_of_the_document(devices):
    m, k, n, t = 8, 8, 8, 4
    x, y = numbers(m, k * devices), numbers(k * devices, n * devices)
    call = all_gather_matmul(devices, m, k, n, t, pl.Debug(schedules=16 if devices == 4 else 4))
    inputs = [list(pair) for pair in zip(np.split(x, devices, 1), np.split(y, devices, 1), strict=True)]
    outs = on_devices(call, {"x": devices}, inputs)
    np.testing.assert_array_equal(np.concatenate([out for out, _ in outs], 1), x @ y)


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_a_matmul_whose_partial_sums_go_round(devices):
    """Each device multiplies its columns by its rows; block by block the sums are handed on and added to."""
    m, k, n = 4, 8, 8

    def body(x_ref, y_ref, z_ref):
        z_ref[...] = x_ref[...] @ y_ref[...]

    def kernel(lhs_ref, rhs_ref, out_ref, sums_ref, local, send, receive, room):
        me = lax.axis_index("x")
        left, right = lax.rem(me + devices - 1, devices), lax.rem(me + 1, devices)
        barrier(left, right)
        for step in range(devices):
            slot = step % 2
            block = lax.rem(me - step - 1 + 2 * devices, devices)
            pltpu.emit_pipeline(
                body,
                grid=(n // 4,),
                in_specs=[pl.BlockSpec((m, k), lambda j: (0, 0)), pl.BlockSpec((k, 4), lambda j: (0, j))],
                out_specs=pl.BlockSpec((m, 4), lambda j: (0, j)),
                should_accumulate_out=step > 0,
            )(lhs_ref.at[pl.ds(block * m, m)], rhs_ref, sums_ref.at[slot])
            if step == devices - 1:
                pltpu.async_copy(sums_ref.at[slot], out_ref, local).wait()
                break
            if step:
                pltpu.semaphore_wait(room)
            copy = pltpu.make_async_remote_copy(
                sums_ref.at[slot], sums_ref.at[1 - slot], send, receive.at[slot], device_id={"x": right}
            )
            copy.start()
            copy.wait()
            if step < devices - 2:
                pltpu.semaphore_signal(room, device_id={"x": left})

    call = pl.pallas_call(
        kernel, [struct((m, n)), struct((2, m, n))], in_specs=[ANY, ANY], out_specs=[ANY, ANY],
        scratch_shapes=[DMA, DMA, DMA((2,)), REGULAR], compiler_params=COLLECTIVE, debug=MANY,
    )  # fmt: skip
    x, y = numbers(m * devices, k * devices), numbers(k * devices, n)
    inputs = [list(pair) for pair in zip(np.split(x, devices, 1), np.split(y, devices, 0), strict=True)]
    outs = on_devices(call, {"x": devices}, inputs)
    np.testing.assert_array_equal(np.concatenate([out for out, _ in outs]), x @ y)


def test_a_kernel_is_not_run_by_some_devices_only():
    def f(x):
        return lax.cond(lax.axis_index("x") == 0, lambda x: right_permute(x.shape)(x), lambda x: x, x)

    mesh = mw.make_mesh((4,), ("x",))
    with pytest.raises(mw.MeshwrightError, match="inside of a cond that devices along x decide differently"):
        mw.shard_map(f, mesh=mesh, in_specs=mw.P("x"), out_specs=mw.P("x"))(mnp.arange(8.0))


def test_a_program_read_from_text_says_that_its_kernel_is_not_there():
    def f(x):
        return pl.pallas_call(lambda x_ref, out_ref: None, struct((2,)), name="double")(x)

    program = mw.parse_program(str(mw.make_program(f)(mnp.ones(2))))
    with pytest.raises(pltpu.KernelError, match=r"The kernel 'double#\d+' is not part of this program"):
        compile_program(program)(np.ones(2, np.float32))


def test_a_kernel_in_a_loop_of_the_program():
    def f(x):
        return lax.scan(lambda c, _: (right_permute(c.shape)(c), None), x, None, length=3)[0]

    mesh = mw.make_mesh((4,), ("x",))
    g = mw.jit(mw.shard_map(f, mesh=mesh, in_specs=mw.P("x"), out_specs=mw.P("x")))
    np.testing.assert_array_equal(g(mnp.arange(8.0)), np.roll(np.arange(8.0), 6))
    whole = mw.jit(mw.shard_map(lambda: f(mnp.ones((1, 2))), mesh=mesh, in_specs=(), out_specs=mw.P("x")))
    np.testing.assert_array_equal(whole(), np.ones((4, 2)))
