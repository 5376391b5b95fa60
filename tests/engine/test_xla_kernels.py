"""Kernels in programs on XLA's devices, as JAX's Pallas lowers them, against the kernel machine of engine ``numpy``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax
from meshwright import pallas as pl
from meshwright.errors import MeshwrightError
from meshwright.pallas import ops
from tests.interop.test_pallas import CASES, library_attention
from tests.kernel.collectives import right_permute

ON_XLA = ("xla", "xla-stacked")


def out(*shape: int, dtype: Any = mnp.float32) -> Any:
    return mw.ShapeDtypeStruct(shape, dtype)


def same(function: Callable[..., Any], *args: Any, engine: str, tolerance: float = 0.0) -> Any:
    found = mw.jit(function, engine=engine)(*args)
    expected = mw.jit(function, engine="numpy")(*args)
    for x, y in zip(mw.tree.leaves(found), mw.tree.leaves(expected), strict=True):
        assert x.type == y.type and isinstance(x._data, jax.Array)
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=tolerance, atol=tolerance)
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_kernel_alone(case: Any) -> None:
    call, *args = case()
    tolerance = 1e-5 if case is library_attention else 0.0  # XLA's exponential is another
    same(lambda *args: call(*args), *args, engine="xla", tolerance=tolerance)


def scaled_by_place(x_ref: Any, out_ref: Any) -> None:
    out_ref[...] = x_ref[...] * (1 + lax.axis_index("i")) + pl.program_id(0)


def in_blocks(x: Any) -> Any:
    rows = pl.BlockSpec((1, x.shape[1]), lambda n: (n, 0))
    return pl.pallas_call(scaled_by_place, out(*x.shape), grid=(x.shape[0],), in_specs=[rows], out_specs=rows)(x)


@pytest.mark.parametrize(
    ("spec", "names"), [(P("i", "j"), None), (P("i"), {"i"})], ids=["on all axes", "on one of them"]
)
def test_a_kernel_on_every_device(spec: Any, names: Any) -> None:
    mesh = mw.make_mesh((4, 2), ("i", "j"))
    mapped = mw.shard_map(in_blocks, mesh=mesh, in_specs=spec, out_specs=spec, axis_names=names)
    for own in (P("i", "j"), P("i:(1)2", "i:(2)2")):  # by which the program has the axis in parts
        x = mw.device_put(mnp.arange(64.0).reshape(8, 8), mw.NamedSharding(mesh, own))
        same(lambda x: mapped(mnp.tanh(x)) + 1, x, engine="xla", tolerance=1e-6)


def double(x_ref: Any, out_ref: Any) -> None:
    out_ref[...] = x_ref[...] * 2


@mw.custom_vjp
def doubled(x: Any) -> Any:
    return pl.pallas_call(double, out(*x.shape))(x)


doubled.defvjp(lambda x: (doubled(x), None), lambda _, g: (doubled(g),))

PROGRAMS: dict[str, Any] = {
    "batched": lambda x: mw.vmap(doubled)(mnp.stack([x, x + 1])),
    "in a loop": lambda x: lax.scan(lambda c, _: (doubled(c) * 0.5 + 1, c.sum()), x, None, length=3),
    "in a branch": lambda x: lax.cond(x.sum() > 0, doubled, lambda x: x, x),
    "twice, and differentiated": mw.grad(lambda x: mnp.sum(doubled(mnp.sin(doubled(x))))),
    "of the library": lambda x: ops.matmul(x, x, tiles=(4, 4, 4)),
    "steps that are counted": lambda x: pl.pallas_call(double, out(8, 8), grid=(mnp.argmax(x) * 0 + 2,))(x),
    "on blocks": lambda x: mw.shard_map(
        doubled, mesh=mw.make_mesh((4, 2), ("i", "j")), in_specs=P("i", "j"), out_specs=P("i", "j")
    )(x),
}


@pytest.mark.parametrize("engine", ON_XLA)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_with_kernels(name: str, engine: str) -> None:
    same(PROGRAMS[name], mnp.arange(64.0).reshape(8, 8) / 8, engine=engine, tolerance=1e-6)


def test_kernels_that_jax_does_not_lower() -> None:
    mesh = mw.make_mesh((4,), ("x",))
    call = right_permute((8, 128))
    mapped = mw.shard_map(call, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    with pytest.raises(MeshwrightError) as caught:
        mw.jit(mapped, engine="xla")(np.ones((32, 128), np.float32))
    assert caught.value.what == "The kernel 'kernel' does not run through XLA on a CPU."
    assert caught.value.why.startswith("JAX's Pallas does not lower it: ")
    assert caught.value.fix == 'engine="numpy", whose machine runs every kernel, with its copies between devices'
    assert "collectives.py" in caught.value.where


def test_a_kernel_that_was_read_from_text() -> None:
    program = mw.parse_program(str(mw.make_program(lambda x: doubled(x))(mnp.ones((8, 8)))))
    with pytest.raises(MeshwrightError, match="is not part of this program") as caught:
        mw.interop.mlir.dump(program)
    assert caught.value.fix == "trace the function again with mw.make_program(f)(…)"
