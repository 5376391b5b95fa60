"""Programs 21 to 36 of the conformance suite: many devices and cores, over many legal orders, with no race."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.hardware.topology import Topology
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
from tests.kernel.test_conformance_pipelines import matmul_body
from tests.tour import test_seed_004_all_gather_matmul as seed_004

MANY = pl.Debug(schedules=16)
CORES = pltpu.create_tensorcore_mesh("core", num_cores=2)
BLOCK = pltpu.VMEM((4, 8), mnp.float32)
sizes = pytest.mark.parametrize("devices", [2, 3, 4, 8])


def by_rows(function: Any, x: np.ndarray) -> np.ndarray:
    """A function of one device on a row each."""
    rows = mw.P("x")
    mapped = mw.shard_map(
        lambda block: function(block[0])[None], mesh=mw.make_mesh((len(x),), ("x",)), in_specs=rows, out_specs=rows
    )
    return np.asarray(mw.jit(mapped)(x))


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-8, 8, size=shape).astype(np.float32)


def run(call: Any, x: np.ndarray) -> np.ndarray:
    """One array per device in, one out."""
    return np.stack([out for (out,) in on_devices(call, {"x": len(x)}, [[row] for row in x])])


@sizes
def test_21_right_permute(devices):
    x = numbers(devices, 8, 16)
    np.testing.assert_array_equal(run(right_permute((8, 16), MANY), x), np.roll(x, 1, 0))


def test_22_asymmetric_send():
    x = numbers(4, 8, 16)
    expected = np.stack([np.zeros_like(x[0]), x[0], x[3], x[2]])
    np.testing.assert_array_equal(run(asymmetric_send((8, 16), MANY), x), expected)


@sizes
def test_23_ring_all_gather(devices):
    x = numbers(devices, 4, 16)
    found = run(ring_all_gather(devices, (4, 16), MANY), x)
    np.testing.assert_array_equal(found, np.broadcast_to(x, (devices, *x.shape)))


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
def test_24_one_semaphore_for_all_steps_is_right_with_links_in_order_and_a_race_without(devices):
    x = numbers(devices, 2, 8)
    expected = np.broadcast_to(x, (devices, *x.shape))
    for debug in (None, pl.Debug(schedules=16, order="fifo")):
        np.testing.assert_array_equal(run(both_ways_all_gather(devices, (2, 8), debug), x), expected)
    with pytest.raises(pltpu.RaceError, match="is shared"):
        run(both_ways_all_gather(devices, (2, 8), pl.Debug(schedules=64)), x)


@sizes
def test_25_ring_all_reduce_with_two_buffers_room_and_two_barriers(devices):
    def again(left, right):
        """A neighbor that is already in the next call cannot signal this one."""

        def scoped(semaphore):
            for device in (left, right):
                pltpu.semaphore_signal(semaphore, device_id={"x": device})
            pltpu.semaphore_wait(semaphore, 2)

        pl.run_scoped(scoped, REGULAR)

    x = numbers(devices, 4, 16)
    found = run(ring_all_reduce(devices, (4, 16), MANY, second_barrier=again), x)
    np.testing.assert_array_equal(found, np.broadcast_to(x.sum(0), x.shape))


@sizes
def test_26_reduce_scatter_both_ways(devices):
    x = numbers(devices, devices, 4, 16)
    np.testing.assert_array_equal(run(reduce_scatter(devices, (4, 16), MANY), x), x.sum(0))


def test_27_reduce_scatter_whose_sums_a_nested_pipeline_adds():
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


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_28_the_all_gather_matmul_of_the_document(devices):
    shape = (16, 16, 16, 8, 8, 8)
    found, expected = seed_004.run(devices, shape)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    if devices > 2:
        with pytest.raises(pltpu.RaceError) as caught:
            seed_004.run(devices, shape, pl.Debug())
        assert len(caught.value.races) >= 2


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
def test_29_an_all_gather_matmul_without_the_hazards_of_the_document(devices):
    m, k, n, t = 8, 8, 8, 4
    x, y = numbers(m, k * devices), numbers(k * devices, n * devices)
    call = all_gather_matmul(devices, m, k, n, t, pl.Debug(schedules=16 if devices == 4 else 4))
    inputs = [list(pair) for pair in zip(np.split(x, devices, 1), np.split(y, devices, 1), strict=True)]
    outs = on_devices(call, {"x": devices}, inputs)
    np.testing.assert_array_equal(np.concatenate([out for out, _ in outs], 1), x @ y)


def matmul_reduce_scatter(devices, m, k, n, debug=None):
    """Sums go round both ways, half of the columns each: while one way is multiplied, what the other has made is sent.

    A run leaves its result to be written; the next one sends it when it is there (``postyeet``).
    """
    half = n // 2
    pipeline, allocate = pltpu.emit_pipeline_with_allocations(
        lambda x_ref, y_ref, z_ref: z_ref.__setitem__(..., x_ref[...] @ y_ref[...]),
        grid=(2,),
        in_specs=[pl.BlockSpec((m, k), lambda j: (0, 0)), pl.BlockSpec((k, half // 2), lambda j: (0, j))],
        out_specs=pl.BlockSpec((m, half // 2), lambda j: (0, j)),
        should_accumulate_out=True,
    )

    def kernel(lhs_ref, rhs_ref, out_ref, sums_ref, zeros, local, send, receive, room, allocations):
        me = lax.axis_index("x")
        left, right = lax.rem(me + devices - 1, devices), lax.rem(me + 1, devices)
        zeros[...] = mnp.zeros_like(zeros)
        for way in range(2):
            pltpu.async_copy(zeros, sums_ref.at[way, 0], local).wait()
        barrier(left, right)

        def send_on(phase):
            step, way = divmod(phase, 2)
            slot = step % 2
            return pltpu.make_async_remote_copy(
                sums_ref.at[way, slot], sums_ref.at[way, 1 - slot], send.at[way], receive.at[way, slot],
                device_id={"x": (right, left)[way]},
            )  # fmt: skip

        for phase in range(2 * devices):
            step, way = divmod(phase, 2)
            if step:
                send_on(phase - 2).wait()
                if step < devices - 1:
                    pltpu.semaphore_signal(room.at[way], device_id={"x": (left, right)[way]})

            def sends(_, phase=phase):
                step, way = divmod(phase - 1, 2)
                if phase and step < devices - 1:
                    if step:
                        pltpu.semaphore_wait(room.at[way])
                    send_on(phase - 1).start()

            sign = (-1, 1)[way]
            block = lax.rem(me + sign * (step + 1) + devices, devices)
            pipeline(
                lhs_ref.at[pl.ds(block * m, m)], rhs_ref.at[:, pl.ds(way * half, half)], sums_ref.at[way, step % 2],
                allocations=allocations, postyeet=sends,
                out_epilogue=lambda _, phase=phase: phase < 2 * devices - 1,
            )  # fmt: skip
        for way in range(2):
            part = out_ref.at[:, pl.ds(way * half, half)]
            pltpu.async_copy(sums_ref.at[way, (devices - 1) % 2], part, local).wait()

    return pl.pallas_call(
        kernel, [struct((m, n)), struct((2, 2, m, half))], in_specs=[ANY, ANY], out_specs=[ANY, ANY],
        scratch_shapes=[
            pltpu.VMEM((m, half), mnp.float32), DMA, DMA((2,)), DMA((2, 2)), REGULAR((2,)),
            allocate(*[pltpu.ANY((), mnp.float32)] * 3),
        ],
        compiler_params=COLLECTIVE, debug=debug,
    )  # fmt: skip


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_30_a_matmul_whose_sums_are_sent_while_the_next_is_multiplied(devices):
    m, k, n = 4, 8, 8
    call = matmul_reduce_scatter(devices, m, k, n, pl.Debug(schedules=16 if devices < 8 else 4))
    x, y = numbers(m * devices, k * devices), numbers(k * devices, n)
    inputs = [list(pair) for pair in zip(np.split(x, devices, 1), np.split(y, devices, 0), strict=True)]
    outs = on_devices(call, {"x": devices}, inputs)
    np.testing.assert_array_equal(np.concatenate([out for out, _ in outs]), x @ y)


def test_30_sending_is_hidden():
    devices = 4
    call = matmul_reduce_scatter(devices, 256, 16384, 1024)
    f = mw.shard_map(
        lambda x, y: call(x, y)[0], mesh=mw.make_mesh((devices,), ("x",)), in_specs=(mw.P(None, "x"), mw.P("x")),
        out_specs=mw.P("x"),
    )  # fmt: skip
    shapes = struct((256 * devices, 16384 * devices)), struct((16384 * devices, 1024))
    timeline = mw.simulate(mw.make_program(f)(*shapes), Topology("tpu v5p", devices, wrap=True))
    assert all(timeline.overlap(device) > 0.5 for device in range(devices))


@pytest.mark.parametrize("mesh", [{"x": 2, "y": 2}, {"x": 2, "y": 3}, {"y": 2, "x": 4}, {"x": 3, "y": 1}])
@pytest.mark.parametrize("kind", ["dict", "tuple", "joint", "logical"])
def test_31_devices_are_named_by_axes_coordinates_joint_axes_and_numbers(mesh, kind):
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


def test_32_two_cores_swap_their_blocks():
    def body(x_ref, out_ref, mine, other, send, receive, ready, local):
        core = lax.axis_index("core")
        pltpu.async_copy(x_ref.at[core], mine, local).wait()
        pltpu.semaphore_signal(ready, device_id={"core": 1 - core})
        pltpu.semaphore_wait(ready)
        pltpu.async_remote_copy(mine, other, send, receive, device_id={"core": 1 - core}).wait()
        pltpu.async_copy(other, out_ref.at[core], local).wait()

    call = pl.kernel(
        body, struct((2, 4, 8)), mesh=CORES, scratch_shapes=[BLOCK, BLOCK, DMA, DMA, REGULAR, DMA], debug=MANY
    )
    x = numbers(2, 4, 8)
    np.testing.assert_array_equal(call(x), x[::-1])


SPECS = {
    "in_specs": [pl.BlockSpec((4, 4), lambda i, j, k: (i, k)), pl.BlockSpec((4, 4), lambda i, j, k: (k, j))],
    "out_specs": pl.BlockSpec((4, 4), lambda i, j, k: (i, j)),
}


MATMUL = ("parallel", "parallel", "arbitrary")


@pytest.mark.parametrize("m", [8, 12, 20])
@pytest.mark.parametrize("cores", [2, 3])
def test_33_a_parallel_axis_is_divided_among_cores_evenly_or_not(m, cores):
    x, y = numbers(m, 8), numbers(8, 12, seed=1)
    grid = (m // 4, 3, 2)
    params = pltpu.CompilerParams(dimension_semantics=MATMUL, num_cores=cores)
    call = pl.pallas_call(matmul_body, struct((m, 12)), grid=grid, compiler_params=params, debug=MANY, **SPECS)
    np.testing.assert_array_equal(call(x, y), x @ y)

    def body(x_ref, y_ref, z_ref):
        pltpu.emit_pipeline(matmul_body, grid=grid, core_axis=0, dimension_semantics=MATMUL, **SPECS)(
            x_ref, y_ref, z_ref
        )

    mesh = pltpu.create_tensorcore_mesh("core", num_cores=cores)
    np.testing.assert_array_equal(pl.kernel(body, struct((m, 12)), mesh=mesh, debug=MANY)(x, y), x @ y)


def test_34_a_copy_is_started_in_one_kernel_and_waited_for_in_the_next():
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


def permute_start_and_done(towards: tuple[int, ...]) -> tuple[Any, Any]:
    """Two functions: one starts to send an array to devices so far away, the other returns what has come."""
    ways = len(towards)
    semaphore = pl.BlockSpec(memory_space=pltpu.SEMAPHORE)

    def copies(x_ref, came_refs, send, receive):
        me, n = lax.axis_index("x"), lax.axis_size("x")
        return [
            pltpu.make_async_remote_copy(
                x_ref, came, send.at[way], receive.at[way], device_id={"x": lax.rem(me + by + n, n)}
            )
            for way, (by, came) in enumerate(zip(towards, came_refs, strict=True))
        ]

    def start_kernel(x_ref, *refs):
        for copy in copies(x_ref, refs[:ways], *refs[ways:]):
            copy.start()

    def done_kernel(x_ref, *refs):
        for copy in copies(x_ref, refs[:ways], *refs[ways : ways + 2]):
            copy.wait()

    def start(x):
        shapes = [struct(x.shape)] * ways + [DMA((ways,))] * 2
        specs = [ANY] * ways + [semaphore] * 2
        return x, *pl.pallas_call(start_kernel, shapes, in_specs=[ANY], out_specs=specs, debug=MANY)(x)

    def done(x, *rest):
        call = pl.pallas_call(
            done_kernel, [struct(x.shape)] * ways, in_specs=[ANY] * (1 + ways) + [semaphore] * 2,
            out_specs=[ANY] * ways, input_output_aliases={1 + way: way for way in range(ways)}, debug=MANY,
        )  # fmt: skip
        return call(x, *rest)

    return start, done


@pytest.mark.parametrize("kind", ["in turn", "staggered", "both ways"])
def test_35_permutes_in_a_loop_are_started_and_waited_for_by_kernels_of_their_own(kind):
    def in_turn(x):
        start, done = permute_start_and_done((1,))
        return lax.fori_loop(0, 5, lambda _, x: done(*start(x))[0], x)

    def staggered(x):
        """The copy of an iteration is waited for in the next one, after another has been started."""
        start, done = permute_start_and_done((1,))

        def step(_, carry):
            under_way, x = carry
            other = start(x + 1)
            return other, done(*under_way)[0]

        under_way, x = lax.fori_loop(0, 4, step, (start(x), x * 10))
        return done(*under_way)[0] + x

    def both_ways(x):
        start, done = permute_start_and_done((1, -1))

        def step(_, x):
            from_left, from_right = done(*start(x))
            return from_left + 2 * from_right

        return lax.fori_loop(0, 3, step, x)

    x = numbers(4, 4, 8)
    if kind == "in turn":
        found, expected = by_rows(in_turn, x), np.roll(x, 5, 0)
    elif kind == "staggered":
        found = by_rows(staggered, x)
        sent, kept = x, 10 * x
        for _ in range(4):
            sent, kept = kept + 1, np.roll(sent, 1, 0)
        expected = np.roll(sent, 1, 0) + kept
    else:
        found, expected = by_rows(both_ways, x), x
        for _ in range(3):
            expected = np.roll(expected, 1, 0) + 2 * np.roll(expected, -1, 0)
    np.testing.assert_array_equal(found, expected)


@sizes
def test_36_all_to_all(devices):
    x = numbers(devices, devices, 2, 8)
    found = run(all_to_all(devices, (2, 8), MANY), x)
    np.testing.assert_array_equal(found, x.swapaxes(0, 1))
