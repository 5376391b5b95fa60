"""Kernels written here give the same when JAX's Pallas runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.errors import MeshwrightError
from meshwright.interop.pallas import to_jax
from meshwright.numpy import float32, zeros_like
from meshwright.pallas import ops, when
from meshwright.pallas import tpu as pltpu

ANY = pl.BlockSpec(memory_space=pl.ANY)
SCALE = 3


def out(*shape: int, dtype: Any = mnp.float32) -> mw.ShapeDtypeStruct:
    return mw.ShapeDtypeStruct(shape, dtype)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-8, 8, size=shape).astype(np.float32)


def add() -> Any:
    def kernel(x_ref, y_ref, out_ref):
        out_ref[...] = x_ref[...] + SCALE * y_ref[...]

    return pl.pallas_call(kernel, out(4, 8)), numbers(4, 8), numbers(4, 8, seed=1)


def blocked_matmul() -> Any:
    """Names imported one by one, a helper, and the order of arguments of the document."""

    def start(z_ref):
        z_ref[...] = zeros_like(z_ref)

    def kernel(x_ref, y_ref, z_ref):
        @when(pl.program_id(2) == 0)
        def _():
            start(z_ref)

        z_ref[...] += mnp.dot(x_ref[...], y_ref[...], preferred_element_type=float32)

    call = pl.pallas_call(
        kernel,
        out(16, 24),
        grid=(2, 3, 4),
        in_specs=[pl.BlockSpec(lambda i, j, k: (i, k), (8, 8)), pl.BlockSpec((8, 8), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((8, 8), lambda i, j, k: (i, j)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", pltpu.PARALLEL, "arbitrary")),
    )
    return call, numbers(16, 32), numbers(32, 24, seed=1)


def program_ids() -> Any:
    def kernel(out_ref):
        out_ref[...] = mnp.full(out_ref.shape, 10 * pl.program_id(0) + pl.program_id(1) + pl.num_programs(1))

    spec = pl.BlockSpec((2, 3), lambda i, j: (i, j))
    return (pl.pallas_call(kernel, out(7, 5, dtype=mnp.int32), grid=(4, 2), out_specs=spec),)


def masked() -> Any:
    def kernel(x_ref, out_ref):
        out_ref[...] = mnp.zeros_like(out_ref)
        row = pl.load(x_ref, (1, pl.ds(2, 4)), mask=mnp.arange(4) < 3, other=-1.0)
        pl.store(out_ref, (0, pl.ds(0, 4)), row, mask=mnp.arange(4) != 1)

    return pl.pallas_call(kernel, out(1, 4)), numbers(2, 8)


def squeezed() -> Any:
    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...].sum(axis=0)

    call = pl.pallas_call(
        kernel,
        out(3, 4),
        grid=(3,),
        in_specs=[pl.BlockSpec((None, 2, 4), lambda i: (i, 0, 0))],
        out_specs=pl.BlockSpec((pl.Squeezed(), 4), lambda i: (i, 0)),
    )
    return call, numbers(3, 2, 4)


def element() -> Any:
    def kernel(x_ref, out_ref):
        out_ref[...] = (x_ref[0] + x_ref[1]).reshape(1, 4)

    call = pl.pallas_call(
        kernel,
        out(5, 4),
        grid=(5,),
        in_specs=[pl.BlockSpec((pl.Element(2), pl.Element(4)), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((1, 4), lambda i: (i, 0)),
    )
    return call, numbers(6, 4)


def prefetched_scalars() -> Any:
    def kernel(which_ref, x_ref, out_ref):
        out_ref[...] = x_ref[...] * which_ref[pl.program_id(0)]

    call = pl.pallas_call(
        kernel,
        out(3, 4),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(3,),
            in_specs=[pl.BlockSpec((1, 4), lambda i, which_ref: (which_ref[i], 0))],
            out_specs=pl.BlockSpec((1, 4), lambda i, which_ref: (i, 0)),
        ),
    )
    return call, np.array([3, 0, 5], np.int32), numbers(6, 4)


def loops_and_branches() -> Any:
    def kernel(x_ref, out_ref, total_ref):
        total_ref[...] = mnp.zeros_like(total_ref)

        def step(i, count):
            total_ref[...] += x_ref[pl.ds(i, 1)]
            return count + 1

        count = lax.fori_loop(0, 6, step, 0)

        @pl.loop(0, 2)
        def _(i):
            total_ref[...] *= 2

        value = lax.cond(count == 6, lambda t: t + 1, lambda t: t - 1, total_ref[...])
        out_ref[...] = lax.select(value > 0, value, mw.numpy.zeros_like(value))

    return pl.pallas_call(kernel, out(1, 8), scratch_shapes=[pltpu.VMEM((1, 8), mnp.float32)]), numbers(6, 8)


def local_copies() -> Any:
    def kernel(x_ref, out_ref, scratch, semaphore):
        copy = pltpu.make_async_copy(x_ref.at[pl.ds(2, 4)], scratch, semaphore)
        copy.start()
        copy.wait()
        with pltpu.trace("double"):
            scratch[...] *= 2
        pltpu.sync_copy(scratch, out_ref)

    call = pl.pallas_call(
        kernel,
        out(4, 8),
        in_specs=[pl.BlockSpec(memory_space=pltpu.TPUMemorySpace.ANY)],
        out_specs=ANY,
        scratch_shapes=[pltpu.VMEM((4, 8), mnp.float32), pltpu.SemaphoreType.DMA],
    )
    return call, numbers(8, 8)


def scoped() -> Any:
    def kernel(x_ref, out_ref):
        def twice(block, semaphores):
            pltpu.async_copy(x_ref, block, semaphores.at[1]).wait()
            out_ref[...] = block[...] * 2

        pl.run_scoped(twice, pltpu.VMEM((4, 8), mnp.float32), pltpu.SemaphoreType.DMA((2,)))

    return pl.pallas_call(kernel, out(4, 8), in_specs=[ANY]), numbers(4, 8)


def aliased() -> Any:
    def kernel(x_ref, y_ref, out_ref):
        out_ref[...] = x_ref[...] + y_ref[...]

    spec = pl.BlockSpec((1, 8), lambda i: (i, 0))
    call = pl.pallas_call(
        kernel, out(4, 8), grid=(2,), in_specs=[spec, spec], out_specs=spec, input_output_aliases={1: 0}
    )
    return call, numbers(4, 8), numbers(4, 8, seed=1)


def partial_of_trees() -> Any:
    def kernel(scale, refs, sum_ref, difference_ref):
        sum_ref[...] = (refs["a"][...] + refs["b"][...]) * scale
        difference_ref[...] = (refs["a"][...] - refs["b"][...]).astype(mnp.bfloat16)

    call = pl.pallas_call(partial(kernel, 0.5), [out(4), out(4, dtype=mnp.bfloat16)])
    return call, {"a": numbers(4), "b": numbers(4, seed=1)}


class Scaled:
    """A kernel that is an object, with scratch memory by name."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, x_ref, out_ref, *, block, copied):
        pltpu.async_copy(x_ref, block, copied).wait()
        out_ref[...] = mnp.maximum(block[...], 0) * self.scale


def named_scratch() -> Any:
    scratch = {"block": pltpu.VMEM((4, 8), mnp.float32), "copied": pltpu.SemaphoreType.DMA}
    return pl.pallas_call(Scaled(2.0), out(4, 8), in_specs=[ANY], scratch_shapes=scratch), numbers(4, 8)


def of_library(function: Any, *args: Any) -> Any:
    """A kernel of the library, through its function: what it calls is found by running it here."""
    seen = []
    given = pl.pallas_call

    def watching(*args: Any, **options: Any) -> Any:
        seen.append(given(*args, **options))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("meshwright.pallas.pallas_call", watching)
        function(*args)
    return seen[0], *args


def library_matmul() -> Any:
    return of_library(lambda x, y: ops.matmul(x, y, tiles=(8, 8, 8)), numbers(16, 16), numbers(16, 16, seed=1))


def library_attention() -> Any:
    """Its sizes are in an object, whose methods use names of ours, too."""
    rows = [numbers(2, 16, 8, seed=n) for n in range(3)]
    call, *args = of_library(lambda q, k, v: ops.flash_attention(q, k, v, causal=True, blocks=(8, 8)), *rows)
    return call, *args


CASES = [
    add, blocked_matmul, program_ids, masked, squeezed, element, prefetched_scalars, loops_and_branches, local_copies,
    scoped, aliased, partial_of_trees, named_scratch, library_matmul, library_attention,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_jax_runs_the_same_kernel(case):
    call, *args = case()
    ours, theirs = call(*args), to_jax(call)(*args)
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(theirs))
    found = [np.asarray(x) for x in jax.tree.leaves(theirs)]
    expected = [np.asarray(x) for x in mw.tree.leaves(ours)]
    assert [x.dtype for x in found] == [x.dtype for x in expected]
    for x, y in zip(found, expected, strict=True):
        if case is library_attention:  # XLA's exponential is another
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(x, y)


def test_arrays_of_either_side_and_jit():
    call, x, y = blocked_matmul()
    function = to_jax(call)
    for convert in (mnp.asarray, jnp.asarray):
        np.testing.assert_array_equal(function(convert(x), convert(y)), x @ y)
    np.testing.assert_array_equal(jax.jit(function)(x, y), x @ y)


def message(call: Any, *args: Any) -> str:
    with pytest.raises(MeshwrightError) as caught:
        to_jax(call)(*args)
    return str(caught.value)


def test_a_kernel_that_uses_what_jax_has_not():
    def numbered(out_ref):
        out_ref[0] = pltpu.device_id()

    line = numbered.__code__.co_firstlineno + 1
    assert message(pl.pallas_call(numbered, out(1, dtype=mnp.int32))) == (
        "JAX has no pltpu.device_id.\n"
        f"  at:   test_pallas.py:{line}   out_ref[0] = pltpu.device_id()\n"
        "  why:  the kernel runs on our machine alone\n"
        "  fix:  call what pl.pallas_call returned, without to_jax"
    )

    def accumulating(x_ref, out_ref):
        spec = pl.BlockSpec((1,), lambda i: (i,))
        pltpu.emit_pipeline(lambda x, o: None, grid=(2,), in_specs=[spec], out_specs=spec, should_accumulate_out=True)(
            x_ref, out_ref
        )

    text = message(pl.pallas_call(accumulating, out(2), in_specs=[ANY], out_specs=ANY), numbers(2))
    assert text.startswith("JAX has no emit_pipeline(…, should_accumulate_out=True).\n  at:   test_pallas.py:")

    def fused(x_ref, out_ref):
        pltpu.emit_pipeline_with_allocations(lambda x, o: None, grid=(1,))

    assert message(pl.pallas_call(fused, out(2)), numbers(2)).startswith("JAX has no emit_pipeline_with_allocations")


def test_pipelines_need_a_tpu():
    def kernel(x_ref, out_ref):
        spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
        pltpu.emit_pipeline(lambda x, o: None, grid=(2,), in_specs=[spec], out_specs=[spec])(x_ref, out_ref)

    text = message(pl.pallas_call(kernel, out(16, 128), in_specs=[ANY], out_specs=ANY), numbers(16, 128))
    assert text.startswith("JAX has no emit_pipeline here.\n  at:   test_pallas.py:")
    assert "why:  it needs to know the TPU it runs on: " in text


def test_a_kernel_that_decides_in_python():
    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...] if pl.program_id(0) == 0 else -x_ref[...]

    call = pl.pallas_call(kernel, out(2), grid=(2,))
    call(numbers(2))
    text = message(call, numbers(2))
    assert text.startswith("The kernel asks for a number that JAX does not have while it reads the kernel.\n")
    assert text.endswith(
        "fix:  pl.when(condition), lax.cond, lax.fori_loop or pl.loop in the place of if, for and int()"
    )


def test_only_kernels_are_taken():
    with pytest.raises(MeshwrightError) as caught:
        to_jax(jnp.sin)
    assert caught.value.why == "it takes a kernel as pl.pallas_call returns it, or a function that calls kernels"


REMOTE = """
import numpy as np, jax, jax.experimental.pallas.tpu as jax_pltpu
import meshwright as mw
from meshwright.interop.pallas import to_jax
from tests.kernel.collectives import right_permute

call = right_permute((8, 128))
x = np.arange(4 * 8 * 128, dtype=np.float32).reshape(32, 128)
mesh, spec = jax.sharding.Mesh(jax.devices(), ("x",)), jax.sharding.PartitionSpec("x")
theirs = to_jax(call, interpret=jax_pltpu.InterpretParams())
mapped = jax.shard_map(theirs, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
found = jax.jit(mapped)(x)
ours = mw.shard_map(call, mesh=mw.make_mesh((4,), ("x",)), in_specs=mw.P("x"), out_specs=mw.P("x"))(x)
np.testing.assert_array_equal(found, ours)
np.testing.assert_array_equal(found, np.roll(x, 8, 0))
"""


def test_devices_by_jaxs_interpreter_of_tpus():
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", REMOTE], env=environment, check=True, timeout=120)


LIBRARY = """
import numpy as np, jax, jax.experimental.pallas.tpu as jax_pltpu
from importlib import import_module
from jax._src.pallas.mosaic import tpu_info
import meshwright as mw
from meshwright.interop.pallas import to_jax
from meshwright.pallas import ops

chips = tpu_info if hasattr(tpu_info, "_get_tpu_info_impl") else import_module("jax._src.tpu_info")
tpu_info.registry["cpu"] = lambda: chips._get_tpu_info_impl(chips.ChipVersion.TPU_V5E, 1)  # what its pipelines ask for
draw = np.random.default_rng(0)
numbers = lambda *shape: draw.integers(-4, 4, size=shape).astype(np.float32)
rows, columns, tiles = ("x",), (None, "x"), (8, 128, 128)
along = lambda f, **options: lambda *arrays: f(*arrays, "x", **options)

cases = {
    "right permute": (along(ops.right_permute), [numbers(4, 128)], [rows], rows),
    "all-gather": (along(ops.all_gather, bidirectional=True), [numbers(8, 128)], [rows], rows),
    "reduce-scatter": (along(ops.reduce_scatter), [numbers(4, 8, 128)], [rows], rows),
    "all-reduce": (along(ops.all_reduce, bidirectional=True), [numbers(8, 128)], [rows], rows),
    "all-to-all": (along(ops.all_to_all), [numbers(4, 8, 128)], [rows], rows),
    "matmul": (lambda x, y: ops.matmul(x, y, tiles=tiles), [numbers(8, 256), numbers(256, 128)], [(), ()], ()),
    "grouped matmul": (lambda x, w: ops.grouped_matmul(x, w, np.array([3, 5], np.int32)),
                       [numbers(8, 128), numbers(2, 128, 128)], [(), ()], ()),
    "all-gather matmul": (along(ops.all_gather_matmul, tiles=tiles), [numbers(8, 256), numbers(256, 256)],
                          [columns, columns], columns),
    "all-gather matmul, both ways": (along(ops.all_gather_matmul, tiles=tiles, bidirectional=True),
                                     [numbers(8, 512), numbers(512, 256)], [columns, columns], columns),
    "matmul reduce-scatter": (along(ops.matmul_reduce_scatter, tiles=tiles), [numbers(16, 256), numbers(256, 128)],
                              [columns, rows], rows),
    "flash attention": (lambda q, k, v: ops.flash_attention(q, k, v, causal=True, blocks=(8, 8)),
                        [numbers(2, 16, 128) / 4 for _ in range(3)], [()] * 3, ()),
    "ring attention": (along(ops.ring_attention, causal=True), [numbers(8, 128) / 4 for _ in range(3)], [rows] * 3,
                       rows),
}
mesh, theirs = mw.make_mesh((2,), ("x",)), jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",))
spec = jax.sharding.PartitionSpec
for name, (f, arrays, ins, out) in cases.items():
    mapped = mw.shard_map(f, mesh=mesh, in_specs=tuple(mw.P(*s) for s in ins), out_specs=mw.P(*out), check_vma=False)
    converted = jax.shard_map(to_jax(f, interpret=jax_pltpu.InterpretParams()), mesh=theirs,
                              in_specs=tuple(spec(*s) for s in ins), out_specs=spec(*out), check_vma=False)
    np.testing.assert_allclose(jax.jit(converted)(*arrays), mapped(*arrays), rtol=1e-5, atol=1e-5, err_msg=name)
    if name in ("matmul", "all-to-all"):
        ours = mw.grad(lambda *a: (mapped(*a) ** 2).sum())(*arrays)
        found = jax.jit(jax.grad(lambda *a: (converted(*a) ** 2).sum()))(*arrays)
        np.testing.assert_allclose(found, ours, rtol=1e-5, err_msg=name)
try:
    jax.shard_map(to_jax(along(ops.all_gather_matmul, fused=True)), mesh=theirs, in_specs=(spec(*columns),) * 2,
                  out_specs=spec(*columns), check_vma=False)(numbers(8, 16), numbers(16, 8))
except mw.MeshwrightError as error:
    assert (error.what, error.why, error.fix) == (
        "JAX has no emit_pipeline_with_allocations with callbacks.",
        "there, a run of a pipeline knows of no other run",
        "pltpu.emit_pipeline(…), whose runs start and end on their own; of ops.all_gather_matmul, fused=False",
    ), error
else:
    raise AssertionError("fused")
"""


def test_functions_of_the_library_by_jaxs_interpreter_of_tpus():
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
        "NPROC": "16",
    }
    subprocess.run([sys.executable, "-c", LIBRARY], env=environment, check=True, timeout=300)
