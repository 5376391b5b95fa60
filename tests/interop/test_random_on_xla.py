"""Random programs for many devices on XLA: through ``to_jax`` and as HLO text, beside the NumPy engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import meshwright as mw
from meshwright.compile.compiled import Compiled
from meshwright.interop.jax import to_jax
from meshwright.sharding import enumerate_shardings
from tests.interop import hlo_by_xla
from tests.interop.test_hlo_models import blocks
from tests.ops.drawing import rng
from tests.partition.test_random_programs import FORWARD, REVERSE, backward, drawn
from tests.shard_map.random_programs import Manual, manual_programs

QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}
SIZES = [(2, 4), (1, 4), (2, 1), (1, 1), (3, 2)]


@contextmanager
def wide() -> Iterator[None]:
    before, mw.config.enable_x64 = mw.config.enable_x64, True
    try:
        with jax.enable_x64(True):
            yield
    finally:
        mw.config.enable_x64 = before


def close(found: Any, expected: Any, tolerance: float) -> None:
    x, y = np.asarray(found), np.asarray(expected)
    assert (x.shape, x.dtype) == (y.shape, y.dtype)
    kind = np.complex128 if x.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(x.astype(kind), y.astype(kind), rtol=tolerance, atol=tolerance)


def check_on_xla(compiled: Compiled, args: list[Any], tolerance: float, as_text: bool = True) -> None:
    """XLA computes what the NumPy engine computes, on every device."""
    expected = mw.tree.leaves(compiled(*args))
    found = mw.tree.leaves(to_jax(compiled)(*[jnp.asarray(np.asarray(x)) for x in args]))
    for x, y in zip(found, expected, strict=True):
        close(x, y, tolerance)
    even = all(x.sharding is not None and len({b.shape for b in blocks(x)}) == 1 for x in [*args, *expected])
    if as_text and even:
        parts = hlo_by_xla.run(compiled.as_text(), [blocks(x) for x in args])
        for mine, y in zip(parts, expected, strict=True):
            for part, block in zip(mine, blocks(y), strict=True):
                close(part, block, tolerance)


def check_manual(program: Manual) -> None:
    """A shard_map by itself, and of arguments that are on its mesh."""
    random = np.random.default_rng(0)
    mesh = mw.make_mesh(tuple(program.mesh.values()), tuple(program.mesh))
    with wide():
        args = [mw.numpy.asarray(random.uniform(-1.5, 1.5, size=shape)) for shape in program.shapes]
        specs = [mw.P(*(d or None for d in spec)) for spec in program.in_specs]
        placed = [mw.device_put(x, mw.NamedSharding(mesh, spec)) for x, spec in zip(args, specs, strict=True)]
        function = mw.jit(program.mapped(mesh))
        check_on_xla(function.lower(*args).compile(), args, 1e-8, as_text=False)
        check_on_xla(function.lower(*placed).compile(), placed, 1e-8)


@settings(max_examples=12, derandomize=True, **QUIET)
@given(manual_programs())
def test_shard_maps(program: Manual) -> None:
    check_manual(program)


@pytest.mark.slow
@settings(max_examples=400, **QUIET)
@given(manual_programs(most=10, depth=3))
def test_many_shard_maps(program: Manual) -> None:
    check_manual(program)


def check_partitioned(seed: int, gradients: bool) -> None:
    """A function that nobody wrote for devices, its arguments laid out at random."""
    generator = rng("on xla", seed)
    one = drawn(seed, REVERSE if gradients else FORWARD)
    if gradients and not one.floats:
        return
    arrays = one.arrays()
    mesh = mw.make_mesh(SIZES[seed % len(SIZES)], ("x", "y"))
    args = []
    for x in arrays:
        found = list(enumerate_shardings(mesh, x.ndim, compound=True))
        args.append(mw.device_put(x, found[generator.integers(len(found))]))
    function = backward(one, arrays) if gradients else one.on(mw)
    try:
        check_on_xla(mw.jit(function).lower(*args).compile(), args, 2e-3)
    except jax.errors.JaxRuntimeError as error:  # XLA on CPUs gives an fft an array in another order than it takes
        assert "fft_thunk.cc" in str(error)


@pytest.mark.parametrize("seed", range(10))
def test_functions_in_random_layouts(seed: int) -> None:
    check_partitioned(seed, gradients=False)


@pytest.mark.parametrize("seed", range(5))
def test_gradients_in_random_layouts(seed: int) -> None:
    check_partitioned(seed, gradients=True)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(4))
def test_many_functions_and_gradients_in_random_layouts(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        check_partitioned(seed, gradients=seed % 3 == 0)
