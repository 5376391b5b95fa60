"""Kernels of many devices in programs: shard_map, jit, vmap, loops, derivatives."""

from __future__ import annotations

import re
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
    COLLECTIVE,
    DMA,
    REGULAR,
    barrier,
    right_permute,
    struct,
)
from tests.kernel.driver import on_devices

MANY = pl.Debug(schedules=16)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-8, 8, size=shape).astype(np.float32)


def run(call: Any, x: np.ndarray) -> np.ndarray:
    """One array per device in, one out."""
    return np.stack([out for (out,) in on_devices(call, {"x": len(x)}, [[row] for row in x])])


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


def over_x_and_y(f: Any, out_specs: Any) -> Any:
    mesh = mw.make_mesh((2, 2), ("x", "y"))
    return mw.jit(mw.shard_map(f, mesh=mesh, in_specs=(mw.P("x"), mw.P()), out_specs=out_specs))


def test_refs_and_results_know_over_which_axes_they_vary():
    seen = []

    def kernel(x_ref, y_ref, out_ref, scratch_ref):
        seen.append([sorted(ref.vma) for ref in (x_ref, x_ref.at[0:1], y_ref, out_ref, scratch_ref)])
        out_ref[...] = x_ref[...] + y_ref[...]

    def f(x, y):
        shape = mw.ShapeDtypeStruct(x.shape, x.dtype, vma={"x"})
        found = pl.pallas_call(kernel, shape, scratch_shapes=[pltpu.VMEM((2,), mnp.float32)])(x, y)
        assert found.type.varying == ("x",)
        return found

    np.testing.assert_array_equal(over_x_and_y(f, mw.P("x"))(mnp.arange(4.0), mnp.ones(2)), np.arange(4.0) + 1)
    assert seen == [[["x"], ["x"], [], ["x"], ["x", "y"]]] * 4
    program = mw.make_program(over_x_and_y(f, mw.P("x")))(mnp.arange(4.0), mnp.ones(2))
    assert mw.parse_program(str(program)) == program


def test_a_result_that_varies_over_more_axes_than_it_says():
    def f(x, y):
        def kernel(x_ref, y_ref, out_ref):
            out_ref[...] = x_ref[...] + lax.axis_index("y")

        return pl.pallas_call(kernel, mw.ShapeDtypeStruct(x.shape, x.dtype, vma={"x"}))(x, y)

    with pytest.raises(pltpu.KernelError) as caught:
        over_x_and_y(f, mw.P("x"))(mnp.arange(4.0), mnp.ones(2))
    assert re.sub(r"\.py:\d+", ":N", str(caught.value)) == (
        "Result 0 of the kernel 'kernel' differs between devices along 'y'.\n"
        '  at:   test_many_devices:N   over_x_and_y(f, mw.P("x"))(mnp.arange(4.0), mnp.ones(2))\n'
        "  why:  its out_shape says that it varies over ['x'] only\n"
        "  fix:  vma=['x', 'y'] in its out_shape"
    )

    def g(x, y):
        return pl.pallas_call(lambda *_: None, mw.ShapeDtypeStruct(x.shape, x.dtype, vma={"z"}))(x, y)

    with pytest.raises(pltpu.KernelError, match="Result 0 of <lambda> is said to vary over 'z'"):
        over_x_and_y(g, mw.P("x"))(mnp.arange(4.0), mnp.ones(2))


def test_a_kernel_between_devices_may_have_a_derivative_under_jit():
    ring = [(i, (i + 1) % 4) for i in range(4)]

    @mw.custom_vjp
    def permute(x):
        return right_permute(x.shape)(x)

    permute.defvjp(lambda x: (permute(x), None), lambda _, ct: (lax.ppermute(ct, "x", [(b, a) for a, b in ring]),))
    weights = mnp.arange(8.0)

    def loss(by):
        mesh = mw.make_mesh((4,), ("x",))
        mapped = mw.shard_map(by, mesh=mesh, in_specs=mw.P("x"), out_specs=mw.P("x"))
        return lambda x: (weights * mapped(x * x)).sum()

    x = mnp.arange(8.0) + 1
    found = mw.jit(mw.value_and_grad(loss(permute)))(x)
    expected = mw.value_and_grad(loss(lambda x: lax.ppermute(x, "x", ring)))(x)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
