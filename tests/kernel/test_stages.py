"""Every kernel of the corpus, called in every way and with its result in every memory, against NumPy.

A kernel that stores to its output needs it where stores reach; for others it is given such memory, which is copied to
the output at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.pallas import tpu as pltpu
from tests.kernel import right_devices, right_memory  # noqa: F401
from tests.kernel.corpus import RIGHT, Case
from tests.kernel.driver import F32, numbers, on_devices, out

SPACES = [pltpu.VMEM, pltpu.ANY, pltpu.HBM]
MESH = mw.make_mesh((2,), ("x",))
ROWS = mw.P("x")


def in_space(case: Case, space: Any, copied: bool) -> Case:
    """The case with its result in a memory space; ``copied`` there from memory that its kernel can store to."""
    options = {**case.options, "out_specs": pl.BlockSpec(memory_space=space)}
    if not copied:
        return replace(case, options=options)
    assert not isinstance(case.scratch, dict)

    def kernel(x_ref: Any, out_ref: Any, reached: Any, *scratch: Any) -> None:
        case.kernel(x_ref, reached, *scratch)
        pltpu.sync_copy(reached, out_ref)

    return replace(case, kernel=kernel, scratch=[pltpu.VMEM((8, 16), F32), *case.scratch], options=options)


def whole(case: Case) -> bool:
    """Whether its output is not cut into blocks: then it may be anywhere."""
    given = case.options.get("out_specs")
    return (given is None or given.block_shape is None) and "input_output_aliases" not in case.options


CASES = [name for name, case in RIGHT.items() if whole(case) and not isinstance(case.scratch, dict)]


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.name)
@pytest.mark.parametrize("name", CASES)
def test_a_kernel_gives_the_same_with_its_result_in_any_memory(name, space):
    case = replace(RIGHT[name], debug=None)
    assert case.expected is not None
    try:
        found = in_space(case, space, copied=False).run()
    except pltpu.KernelError as error:
        assert "directly, but it is in" in str(error), error
        found = in_space(case, space, copied=True).run()
    np.testing.assert_array_equal(found, case.expected(case.operands()))


def test_many_kernels_may_have_their_results_anywhere():
    assert len(CASES) >= 35


# Every way to call a kernel

WAYS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda f: f,
    "jit": mw.jit,
    "jit twice": lambda f: mw.jit(lambda *xs: mw.jit(f)(*xs)),
    "vmap": lambda f: lambda *xs: mw.vmap(f)(*(x[None] for x in xs))[0],
    "loop": lambda f: mw.jit(lambda *xs: lax.fori_loop(0, 2, lambda _, carry: f(*xs), f(*xs))),
    "branch": lambda f: mw.jit(lambda *xs: lax.cond(xs[0].sum() > -1e9, f, lambda *xs: 0 * f(*xs), *xs)),
    "shard_map": lambda f: mw.shard_map(f, mesh=mw.make_mesh((1,), ("x",)), in_specs=ROWS, out_specs=ROWS),
    "jit of shard_map": lambda f: mw.jit(WAYS["shard_map"](f)),
}


def product(space: Any, accumulate: bool) -> Callable[[Any, Any], Any]:
    """The document's matmul in a nested pipeline, once or twice."""
    left, right = pl.BlockSpec((8, 8), lambda i, j, k: (i, k)), pl.BlockSpec((8, 8), lambda i, j, k: (k, j))

    def body(x_ref: Any, y_ref: Any, z_ref: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            z_ref[...] = mnp.zeros(z_ref.shape, F32)

        z_ref[...] += x_ref[...] @ y_ref[...]

    def kernel(x_ref: Any, y_ref: Any, z_ref: Any) -> None:
        for again in (False, True) if accumulate else (False,):
            pltpu.emit_pipeline(
                body,
                grid=(2, 3, 4),
                in_specs=[left, right],
                out_specs=pl.BlockSpec((8, 8), lambda i, j, k: (i, j)),
                should_accumulate_out=again,
            )(x_ref, y_ref, z_ref)

    where = pl.BlockSpec(memory_space=space)
    return pl.pallas_call(kernel, out(16, 24), in_specs=[where, where], out_specs=where)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.name)
@pytest.mark.parametrize("way", WAYS)
def test_a_pipeline_gives_the_same_however_it_is_called_and_wherever_its_result_is(way, space, accumulate):
    x, y = numbers(16, 32), numbers(32, 24, seed=1)
    expected = (2 if accumulate else 1) * (x @ y)
    np.testing.assert_allclose(WAYS[way](product(space, accumulate))(x, y), expected, rtol=1e-4, atol=1e-4)


# Kernels whose results nobody reads

runs: list[int] = []


def counted(results: bool) -> Callable[[Any], Any]:
    """A kernel that is seen to run, with a result or without."""

    def kernel(x_ref: Any, *out_refs: Any) -> None:
        runs.append(int(pltpu.device_id()))
        for out_ref in out_refs:
            out_ref[...] = x_ref[...]

    return lambda x: pl.pallas_call(kernel, mw.ShapeDtypeStruct(x.shape, x.dtype) if results else None)(x)


def unread(call: Callable[[Any], Any]) -> dict[str, tuple[Callable[[Any], Any], int]]:
    """Functions of an array of 2 rows that call a kernel without reading its result, and how often it runs."""

    def f(x: Any) -> Any:
        call(x)
        return x * 2

    def dead(g: Any) -> Any:
        def unused(x: Any) -> Any:
            g(x)
            return x

        return unused

    mapped = mw.shard_map(f, mesh=MESH, in_specs=ROWS, out_specs=ROWS)
    own = mw.custom_vjp(f)
    own.defvjp(lambda x: (f(x), None), lambda _, g: (g * 2,))
    split = mw.NamedSharding(MESH, ROWS)
    scanned = lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=3)[0]
    taken = lambda x: lax.cond(x[0, 0] > -1e9, f, lambda x: x, x)
    return {
        "eager": (f, 1),
        "jit": (mw.jit(f), 1),
        "jit of itself": (mw.jit(call), 1),
        "called twice": (mw.jit(lambda x: (mw.jit(f)(x), mw.jit(f)(x))), 2),
        "shard_map": (mapped, 2),
        "jit of shard_map": (mw.jit(mapped), 2),
        "a shard_map that nobody reads": (mw.jit(dead(mapped)), 2),
        "on a split array": (lambda x: mw.jit(dead(mapped))(mw.device_put(x, split)), 2),
        "partitioned": (mw.jit(dead(mapped), in_shardings=split), 2),
        "scan": (mw.jit(scanned), 3),
        "a scan that nobody reads": (mw.jit(dead(scanned)), 3),
        "while_loop": (mw.jit(lambda x: lax.while_loop(lambda v: v[0] < 3, lambda v: (v[0] + 1, f(v[1])), (0, x))), 3),
        "cond": (mw.jit(taken), 1),
        "a cond that nobody reads": (mw.jit(dead(taken)), 1),
        "vmap": (mw.jit(mw.vmap(f)), 2),
        "checkpoint": (mw.jit(mw.checkpoint(f)), 1),
        "grad": (mw.jit(mw.grad(lambda x: own(x).sum())), 1),
        "grad of a checkpoint": (mw.jit(mw.grad(lambda x: mw.checkpoint(own)(x).sum())), 1),
        "grad of a scan": (mw.jit(mw.grad(lambda x: lax.scan(lambda c, _: (own(c), None), x, None, 3)[0].sum())), 3),
    }


@pytest.mark.parametrize("way", unread(counted(True)))
@pytest.mark.parametrize("results", [False, True], ids=["without results", "with one"])
def test_a_kernel_runs_though_nobody_reads_its_results(way, results):
    function, expected = unread(counted(results))[way]
    runs.clear()
    function(mnp.ones((2, 16)))
    assert len(runs) == expected


def test_mistakes_of_a_kernel_without_results_are_found_under_jit():
    def kernel(sem: Any) -> None:
        pltpu.semaphore_signal(sem)

    call = pl.pallas_call(kernel, scratch_shapes=[pltpu.SemaphoreType.REGULAR])
    with pytest.raises(pltpu.SemaphoreError, match="is left at 1"):
        mw.jit(lambda x: (call(), x)[1])(1.0)


def test_a_program_with_such_a_kernel_is_read_back_from_its_text():
    call = counted(False)
    program = mw.make_program(lambda x: (call(x), x * 2)[1])(mnp.ones((2, 16)))
    assert "\n  = pallas_call a " in str(program)
    assert mw.parse_program(str(program)) == program


def test_such_a_kernel_takes_time():
    def kernel(x_ref: Any, block: Any, sem: Any) -> None:
        pltpu.async_copy(x_ref, block, sem).wait()

    scratch = [pltpu.VMEM((1024, 1024), F32), pltpu.SemaphoreType.DMA]
    call = pl.pallas_call(kernel, in_specs=[pl.BlockSpec(memory_space=pl.ANY)], scratch_shapes=scratch)
    x = mw.ShapeDtypeStruct((1024, 1024), F32)
    alone, beside = (
        mw.simulate(mw.make_program(f)(x), "tpu v5e") for f in (lambda x: x * 2, lambda x: (call(x), x * 2)[1])
    )
    assert beside.seconds > 1.3 * alone.seconds


def test_devices_run_a_kernel_without_results_together():
    def swap(x_ref: Any, got: Any, send: Any, receive: Any) -> None:
        copy = pltpu.async_remote_copy(x_ref, got, send, receive, device_id={"x": 1 - lax.axis_index("x")})
        copy.wait()
        runs.append(int(got[0, 0]))

    def call(x: Any) -> Any:
        scratch = [pltpu.VMEM((1, 16), F32), pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.DMA]
        pl.pallas_call(swap, scratch_shapes=scratch)(x)
        return x

    runs.clear()
    on_devices(call, {"x": 2}, [[np.full((1, 16), 3, np.float32)], [np.full((1, 16), 5, np.float32)]])
    assert sorted(runs) == [3, 5]
