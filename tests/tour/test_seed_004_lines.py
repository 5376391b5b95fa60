"""Seed 004, "Pallas Collectives", line by line: what its listings say besides what they compute.

The kernels are those of ``test_seed_004`` and ``test_seed_004_all_gather_matmul``; each test quotes the line it is for.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as jnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.pallas import tpu as pltpu
from tests.kernel.driver import on_devices
from tests.tour.test_seed_004 import COLLECTIVE, dst_data, existing_matmul_kernel, move_data, semaphore, src_data
from tests.tour.test_seed_004_all_gather_matmul import existing_matmul_kernel as accumulating_matmul_kernel
from tests.tour.test_seed_004_all_gather_matmul import run as all_gather_matmul

ANY = pl.BlockSpec(memory_space=pltpu.TPUMemorySpace.ANY)
SPACES = [pltpu.TPUMemorySpace.ANY, pltpu.TPUMemorySpace.VMEM, pltpu.TPUMemorySpace.HBM]
DEBUGS = [None, pl.Debug(schedules=4)]
LEFT, RIGHT = pl.BlockSpec(lambda i, j, k: (i, k), (8, 8)), pl.BlockSpec(lambda i, j, k: (k, j), (8, 8))
OUT = pl.BlockSpec(lambda i, j, k: (i, j), (8, 8))


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def whole(
    kernel: Any, *, debug: Any = None, space: Any = pltpu.TPUMemorySpace.ANY, scratch: Any = (), **more: Any
) -> Any:
    """A call of a kernel on two matrices of 16 x 16 and a result in a memory space."""
    out = pl.BlockSpec(memory_space=space)
    return pl.pallas_call(
        kernel, out_shape=mw.ShapeDtypeStruct((16, 16), jnp.float32), in_specs=[ANY, ANY], out_specs=out,
        scratch_shapes=scratch, debug=debug, **more,
    )  # fmt: skip


# "Or alternatively to use data that is live across iterations: pl.pallas_call(move_data, grid_spec=…)()"


def live_across_iterations(params: Any = COLLECTIVE) -> Any:
    """The document's call, which has no results; what it moved is seen by ``seen``."""

    def kernel(src_ref: Any, dst_ref: Any, *sems: Any) -> None:
        src_ref[...] = jnp.full(src_ref.shape, 1.0) + pltpu.device_id()
        move_data(src_ref, dst_ref, *sems)
        seen.append(float(dst_ref[0, 0]))

    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=0,
            scratch_shapes=[src_data, dst_data, *((semaphore,) * 3)],
        ),
        compiler_params=params,
    )


seen: list[float] = []


@pytest.mark.parametrize("side_effects", [False, True])
@pytest.mark.parametrize("jitted", [False, True])
def test_a_call_without_results_runs(jitted, side_effects):
    params = pltpu.CompilerParams(collective_id=0, has_side_effects=side_effects)

    def f(x: Any) -> Any:
        assert live_across_iterations(params)() is None
        return x

    mapped = mw.shard_map(f, mesh=mw.make_mesh((2,), ("x",)), in_specs=mw.P("x"), out_specs=mw.P("x"))
    seen.clear()
    (mw.jit(mapped) if jitted else mapped)(jnp.ones(2))
    assert sorted(seen) == [1.0, 2.0]


# "Modifying inputs is also generally not supported as there is no mechanism for the writes to make it to the source
# buffer from the current ref of the current block."


def test_modifying_an_input_is_found():
    def kernel(x_ref, out_ref):
        x_ref[...] += 1.0
        out_ref[...] = x_ref[...]

    call = partial(pl.pallas_call, kernel, mw.ShapeDtypeStruct((8, 128), jnp.float32))
    with pytest.raises(pltpu.CopyError, match="A value is stored to the window of x_ref, an input") as caught:
        call(debug=pl.Debug())(jnp.ones((8, 128)))
    assert "x_ref[...] += 1.0" in caught.value.where


def test_a_copy_into_an_input_is_found():
    def kernel(x_ref, out_ref, sem):
        pltpu.async_copy(x_ref, out_ref, sem).wait()
        pltpu.async_copy(out_ref, x_ref, sem).wait()

    call = pl.pallas_call(
        kernel, mw.ShapeDtypeStruct((8, 128), jnp.float32), scratch_shapes=[semaphore], debug=pl.Debug()
    )
    with pytest.raises(pltpu.CopyError, match="A copy writes to the window of x_ref, an input of the kernel"):
        call(jnp.ones((8, 128)))


# "should_accumulate_out=should_accumulate_out  # Prefix-pytree of out_specs."


@pytest.mark.parametrize("prefix", [True, [True], (True,), jnp.array(True)], ids=str)
@pytest.mark.parametrize("debug", DEBUGS, ids=["plain", "debug"])
@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.name)
def test_outputs_are_accumulated_wherever_they_are(space, debug, prefix):
    def matmul_kernel(x_ref, y_ref, z_ref):
        for should_accumulate_out in (False, prefix):
            pltpu.emit_pipeline(
                existing_matmul_kernel,
                grid=(2, 2, 2),
                in_specs=[LEFT, RIGHT],
                out_specs=OUT,
                should_accumulate_out=should_accumulate_out,
            )(x_ref, y_ref, z_ref)

    x, y = numbers(16, 16), numbers(16, 16, seed=1)
    found = whole(matmul_kernel, space=space, debug=debug)(x, y)
    np.testing.assert_allclose(found, 2 * (x @ y), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.name)
def test_some_outputs_of_a_tree_are_accumulated(space):
    def body(x, z):
        z["once"][...] = x["a"][...] + x["b"][...]
        z["twice"][...] = x["a"][...] - x["b"][...]

    rows = pl.BlockSpec(lambda i: (i, 0), (8, 16))

    def kernel(x, z):
        for again in (False, [{"once": False, "twice": True}]):
            pltpu.emit_pipeline(
                body, grid=(2,), in_specs=[rows], out_specs=[{"once": rows, "twice": rows}], should_accumulate_out=again
            )(x, z)

    out = mw.ShapeDtypeStruct((16, 16), jnp.float32)
    a, b = numbers(16, 16), numbers(16, 16, seed=1)
    call = pl.pallas_call(
        kernel, {"once": out, "twice": out}, in_specs=[ANY], out_specs=pl.BlockSpec(memory_space=space)
    )
    z = call({"a": a, "b": b})
    np.testing.assert_allclose(z["once"], a + b, rtol=1e-5)
    np.testing.assert_allclose(z["twice"], 2 * (a - b), rtol=1e-5, atol=1e-6)


# "pipeline, make_pipeline_allocations = pltpu.emit_pipeline_with_allocations(
#      partial(existing_matmul_kernel, acc_steps=grid_k), …"


TYPES = (pltpu.TPUMemorySpace.ANY((), jnp.float32),) * 3


def fused(
    *,
    prologue: Any = lambda first: lambda _: ((jnp.logical_not(first), jnp.logical_not(first)), ([True, True], False)),
    out_prologue: Any = lambda first: lambda _: first,
    out_epilogue: Any = lambda last: lambda _: jnp.logical_not(last),
    force_copy: Any = ([True, True], False),
    scratchs: Any = lambda ref: [ref],
    types: Any = TYPES,
    debug: Any = None,
    tiles: tuple[int, int, int] = (1, 1, 1),
    runs: int = 3,
) -> tuple[Any, Any]:
    """The sum of products of some runs of one pipeline that fuse, and what NumPy says it is."""
    n, m, k = tiles
    pipeline, make_pipeline_allocations = pltpu.emit_pipeline_with_allocations(
        partial(accumulating_matmul_kernel, acc_steps=k),
        grid=tiles,
        in_specs=[pl.BlockSpec(lambda n, m, k: (m, k), (8, 8)), pl.BlockSpec(lambda n, m, k: (k, n), (8, 8))],
        out_specs=pl.BlockSpec(lambda n, m, k: (m, n), (8, 8)),
        should_accumulate_out=True,
    )

    def kernel(x_ref, y_ref, z_ref, acc_ref, allocations):
        step = pl.program_id(0)
        first, last = step == 0, step == runs - 1

        def epilogue(args):
            grids.append(int(pl.program_id(0)))

            def prefetch():
                refs = args.make_pipeline_refs(x_ref.at[step + 1], y_ref.at[step + 1], z_ref)
                given = pltpu.PipelinePrefetchArgs(refs, args.pipeline_allocations, args.pipeline_buffers)
                return args.start_pipeline_prefetch(given, force_copy=force_copy)

            return lax.cond(last, lambda: (args.pipeline_buffers.input, args.pipeline_buffers.in_out), prefetch)

        pipeline(
            x_ref.at[step], y_ref.at[step], z_ref, scratchs=scratchs(acc_ref), allocations=allocations,
            init_allocations=first, prologue=prologue(first), epilogue=epilogue,
            out_prologue=out_prologue(first), out_epilogue=out_epilogue(last),
        )  # fmt: skip

    grids: list[int] = []
    x, y = numbers(runs, 8 * m, 8 * k), numbers(runs, 8 * k, 8 * n, seed=1)
    found = pl.pallas_call(
        kernel, mw.ShapeDtypeStruct((8 * m, 8 * n), jnp.float32), grid=(runs,), in_specs=[ANY, ANY], out_specs=ANY,
        scratch_shapes=[pltpu.VMEM((8, 8), jnp.float32), make_pipeline_allocations(*types)], debug=debug,
    )(x, y)  # fmt: skip
    assert grids[:runs] == list(range(runs))  # "program_id" of the epilogue is the parent's
    return found, (x @ y).sum(0)


def check(**options: Any) -> None:
    found, expected = fused(**options)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_allocations_are_made_from_bare_dtypes():
    check(types=(jnp.float32, "float32", np.dtype("float32")))


def test_scratchs_may_be_one_ref():
    check(scratchs=lambda ref: ref)


@pytest.mark.parametrize("tiles", [(1, 1, 1), (1, 1, 2), (1, 2, 1), (2, 1, 1), (2, 2, 2)])
@pytest.mark.parametrize("debug", DEBUGS, ids=["plain", "debug"])
def test_an_accumulator_is_prefetched_by_force(tiles, debug):
    forced = ([True, True], True)
    check(
        tiles=tiles, debug=debug, force_copy=forced,
        prologue=lambda first: lambda _: (jnp.logical_not(first), forced),
    )  # fmt: skip


# "force_copy=([True, False], False)": "Prefix-pytree support means this broadcasts up to both inputs."


@pytest.mark.parametrize("force_copy", [True, (True, True), ([True, True], [True]), ((True, True), True)], ids=str)
def test_force_copy_is_a_prefix(force_copy):
    check(force_copy=force_copy, prologue=lambda first: lambda _: (jnp.logical_not(first), True))


def test_a_prologue_returns_a_pair_of_flags():
    check(force_copy=True, prologue=lambda first: lambda _: (not first, True))


@pytest.mark.parametrize("wrap", [list, tuple], ids=["list", "tuple"])
def test_what_out_callbacks_return_is_a_prefix_of_the_outputs(wrap):
    check(
        tiles=(1, 2, 1),
        out_prologue=lambda first: lambda _: wrap([first]),
        out_epilogue=lambda last: lambda _: wrap([jnp.logical_not(last)]),
    )


def test_an_output_that_is_not_left_to_the_next_run_is_waited_for():
    check(out_epilogue=lambda last: lambda _: [False])
    with pytest.raises(pltpu.UnfinishedCopyError):
        fused(out_epilogue=lambda last: lambda _: [True])


# "Force copy lhs because we just permuted it.  force_copy=([True, False], False)"

ONE_K_BLOCK = (16, 16, 16, 8, 16, 16)  # m, sharded_k, sharded_n, tm, tk, tn: the right side has one block


@pytest.mark.parametrize("debug", DEBUGS, ids=["plain", "debug"])
def test_the_documents_force_copy_leaves_the_right_side_of_the_step_before(debug):
    with pytest.raises(pltpu.StaleError) as caught:
        all_gather_matmul(2, ONE_K_BLOCK, debug)
    text = str(caught.value)
    assert text.startswith("The window of input 1 of the pipeline holds rhs_ref[")
    assert sorted(re.findall(r"rhs_ref\[(\d+:\d+), :\]", text)) == ["0:16", "16:32"]
    assert "and is not fetched again: the block index stays (0, 0)" in text


def test_a_left_side_that_was_permuted_and_not_copied_by_force_is_found():
    spec = pl.BlockSpec(lambda i: (0, 0), (8, 8))

    def body(x_ref, z_ref):
        z_ref[...] = x_ref[...]

    pipeline, allocate = pltpu.emit_pipeline_with_allocations(
        body, grid=(1,), in_specs=[spec], out_specs=spec, should_accumulate_out=True
    )

    def kernel(x_ref, z_ref, moved_ref, allocations):
        first = pl.program_id(0) == 0
        pltpu.sync_copy(x_ref.at[pl.program_id(0)], moved_ref)
        skip = jnp.logical_not(first)
        pipeline(moved_ref, z_ref, allocations=allocations, init_allocations=first, prologue=lambda _: (skip, False))

    call = pl.pallas_call(
        kernel, [mw.ShapeDtypeStruct((8, 8), jnp.float32)] * 2, grid=(2,), in_specs=[ANY], out_specs=[ANY, ANY],
        scratch_shapes=[allocate(jnp.float32, jnp.float32)], debug=pl.Debug(),
    )  # fmt: skip
    with pytest.raises(pltpu.StaleError, match="holds what moved_ref was before it was written again"):
        call(numbers(2, 8, 8))


# "DMAs": what links in order order


def to_the_other(kernel: Any, debug: Any, scratch: Any = ()) -> list[Any]:
    call = pl.pallas_call(
        kernel, mw.ShapeDtypeStruct((8, 128), jnp.float32), scratch_shapes=[*scratch, *[semaphore] * 4],
        compiler_params=COLLECTIVE, debug=debug,
    )  # fmt: skip
    return [out for (out,) in on_devices(call, {"x": 2}, [[numbers(8, 128, seed=n)] for n in range(2)])]


def meet() -> Any:
    """A barrier with the other device, which is returned."""
    other = 1 - pltpu.device_id()
    barrier = pltpu.get_barrier_semaphore()
    pltpu.semaphore_signal(barrier, device_id=other)
    pltpu.semaphore_wait(barrier)
    return other


def data_then_flag(x_ref, out_ref, data_ref, flag_ref, sent, sent_flag, came, came_flag):
    other = meet()
    data = pltpu.async_remote_copy(x_ref, data_ref, sent, came, other)
    flag = pltpu.async_remote_copy(x_ref.at[0:1], flag_ref, sent_flag, came_flag, other)
    flag.wait_recv()  # which the data cannot have come after
    out_ref[...] = data_ref[...]
    data.wait()
    flag.wait_send()


def two_copies_to_one_place(x_ref, out_ref, sent, sent_too, came, came_too):
    other = meet()
    first = pltpu.async_remote_copy(x_ref, out_ref, sent, came, other)
    second = pltpu.async_remote_copy(x_ref, out_ref, sent_too, came_too, other)
    first.wait()
    second.wait()


ORDERED = [
    (data_then_flag, [pltpu.VMEM((8, 128), jnp.float32), pltpu.VMEM((1, 128), jnp.float32)]),
    (two_copies_to_one_place, []),
]


@pytest.mark.parametrize(("kernel", "scratch"), ORDERED, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("schedules", [1, 16])
def test_copies_on_one_link_are_ordered_with_fifo_and_race_without(kernel, scratch, schedules):
    found = to_the_other(kernel, pl.Debug(order="fifo", schedules=schedules), scratch)
    np.testing.assert_array_equal(found, [numbers(8, 128, seed=n) for n in (1, 0)])
    with pytest.raises(pltpu.RaceError):
        to_the_other(kernel, pl.Debug(schedules=schedules), scratch)


def last_one_wins(x_ref, out_ref, sent, sent_too, came, came_too):
    other = meet()
    first = pltpu.async_remote_copy(x_ref.at[0:4], out_ref.at[0:4], sent, came, other)
    second = pltpu.async_remote_copy(x_ref.at[4:8], out_ref.at[0:4], sent_too, came_too, other)
    first.wait()
    second.wait()
    pltpu.sync_copy(x_ref.at[4:8], out_ref.at[4:8])


@pytest.mark.parametrize("debug", [pl.Debug(races=False, schedules=8), pl.Debug(races=False, replay=1)], ids=str)
def test_results_that_differ_between_schedules_are_an_error_that_shows_both(debug):
    with pytest.raises(pltpu.KernelError) as caught:
        to_the_other(last_one_wins, debug)
    a, b = (numbers(8, 128, seed=1)[row, 0] for row in (4, 0))
    where = caught.value.where
    assert str(caught.value) == (
        "The results of last_one_wins depend on the order in which devices run and copies arrive.\n"
        f"  at:   {where}\n"
        "  why:  512 of 1024 elements of result 0 of device 0 are others\n"
        f"        result 0[0, 0] is {a} in schedule 0 (fifo) and {b} in schedule 1 (adversarial)\n"
        "        to repeat it: pl.Debug(races=False, seed=0, replay=1)\n"
        "  fix:  find the race: pl.Debug(races=True, seed=0, replay=1)"
    )


# "step = pl.program_id(0)": a pipeline is a grid inside the parent's; what the parent says of it is the parent's


def test_program_id_in_an_index_map_is_of_the_parents_grid():
    def copy(x_ref, z_ref):
        z_ref[...] = x_ref[...] + pl.program_id(0)  # of the pipeline's grid

    def parent(x_ref, z_ref):
        block = pl.BlockSpec(lambda k: (2 * pl.program_id(0) + k, 0), (8, 8))
        pltpu.emit_pipeline(copy, grid=(2,), in_specs=[block], out_specs=block)(x_ref, z_ref)

    x = numbers(48, 8)
    call = pl.pallas_call(parent, mw.ShapeDtypeStruct((48, 8), jnp.float32), grid=(3,), in_specs=[ANY], out_specs=ANY)
    np.testing.assert_array_equal(call(x), x + np.repeat([0, 1] * 3, 8)[:, None].astype(np.float32))


# "lhs: A 2d, jnp.ndarray with shape [m, k // lax.psum(1, collective_axes.axes)]."


@pytest.mark.parametrize("axes", ["x", "y", ("x", "y"), ("y", "x"), ["x"], ()], ids=str)
def test_collective_axes_are_counted_and_indexed_together_in_a_kernel(axes):
    def kernel(out_ref):
        out_ref[0], out_ref[1], out_ref[2] = lax.psum(1, axes), lax.axis_size(axes), lax.axis_index(axes)

    def call(inside: bool) -> Any:
        if inside:
            return pl.pallas_call(kernel, mw.ShapeDtypeStruct((3,), jnp.int32))()[None]
        return jnp.stack([jnp.int32(lax.psum(1, axes)), jnp.int32(lax.axis_size(axes)), lax.axis_index(axes)])[None]

    mesh = mw.make_mesh((2, 3), ("x", "y"))
    inside, outside = (
        mw.shard_map(partial(call, one), mesh=mesh, in_specs=(), out_specs=mw.P(("x", "y"), replicated=()))
        for one in (True, False)
    )
    sizes = {"x": 2, "y": 3}
    names = [axes] if isinstance(axes, str) else axes
    expected = []
    for x in range(2):
        for y in range(3):
            at = 0
            for name in names:
                at = at * sizes[name] + {"x": x, "y": y}[name]
            count = int(np.prod([sizes[name] for name in names]))
            expected.append([count, count, at])
    np.testing.assert_array_equal(inside(), expected)
    if set(names) == {"x", "y"}:  # what else would not vary over both
        np.testing.assert_array_equal(outside(), expected)
