"""shard_maps with loops and branches, jitted on arguments that are placed in every other way than their specs say.

Where they come from decides how the axes of the mesh are cut, and what types say that values vary over; none of it may
change what a device sees: its position, its blocks, the order of those it meets. The answers are those of a loop over
devices in NumPy, of the same shard_map without a jit, and of JAX's shard_map.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.interop.jax import to_jax
from tests.ops.drawing import rng
from tests.partition.placing import placed
from tests.shard_map.counterparts import JAX
from tests.shard_map.random_programs import Manual, manual_programs
from tests.time_limit import within

QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}
MESHES = [(4,), (4, 2), (2, 4), (6,), (2, 3), (1, 4), (6, 2), (12,), (3, 4), (2, 1, 3), (2, 2, 2), (8,), (5,), (9,)]
ON_JAX = [sizes for sizes in MESHES if np.prod(sizes) <= 8]
SECONDS = 20


def arguments(program: Manual) -> list[Any]:
    generator = rng("arguments", str(program))
    return [generator.uniform(-1.5, 1.5, shape) for shape in program.shapes]


def assert_close(found: Any, expected: Any, what: str) -> None:
    for x, y in zip(mw.tree.leaves(found), mw.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-8, atol=1e-9, err_msg=what)


def variants(program: Manual, generator: np.random.Generator) -> tuple[Any, Any]:
    """The program as one shard_map, one inside of another, or one over some axes of a larger mesh; and the mesh."""
    sizes, names = tuple(program.mesh.values()), tuple(program.mesh)
    outer = names[: generator.integers(1, len(names) + 1)]
    ordered = all(sorted(d, key=lambda a: a not in outer) == list(d) for s in program.in_specs + program.out_specs
                  for d in s)  # fmt: skip
    how = generator.integers(3)
    if how == 0 and ordered and len(outer) < len(names):
        mesh = mw.make_mesh(sizes, names)
        return program.nested(mesh, outer), mesh
    if how == 1:
        mesh = mw.make_mesh((*sizes, 2), (*names, "other"))
        return program.mapped(mesh=mesh, axis_names=set(names)), mesh
    mesh = mw.make_mesh(sizes, names)
    return program.mapped(mesh=mesh), mesh


def check(program: Manual, seed: int, gradient: bool) -> None:
    generator = rng("placements", seed, str(program))
    args = arguments(program)
    f, mesh = variants(program, generator)
    there = [placed(mesh, x, generator) for x in args]
    what = f"{program} on {[x.sharding for x in there]}"

    def both(*args: Any) -> Any:
        total = lambda *xs: sum((mnp.sin(y)).sum() for y in f(*xs))
        return f(*args), mw.grad(total, argnums=tuple(range(len(args))))(*args)

    with within(SECONDS):
        assert_close(mw.jit(f)(*there), program.reference(*args), what)
        if gradient:
            assert_close(mw.jit(both)(*there), both(*args), f"gradient of {what}")


@settings(max_examples=30, derandomize=True, **QUIET)
@given(manual_programs(most=6, depth=2, meshes=MESHES, forward=True), st.integers(0, 1000))
def test_values(x64: None, program: Manual, seed: int) -> None:
    check(program, seed, gradient=False)


@settings(max_examples=30, derandomize=True, **QUIET)
@given(manual_programs(most=5, depth=1, meshes=MESHES), st.integers(0, 1000))
def test_gradients(x64: None, program: Manual, seed: int) -> None:
    check(program, seed, gradient=True)


@pytest.mark.slow
@settings(max_examples=3000, **QUIET)
@given(manual_programs(most=8, depth=2, meshes=MESHES, forward=True), st.integers(0, 1000))
def test_many_values(x64: None, program: Manual, seed: int) -> None:
    check(program, seed, gradient=False)


@pytest.mark.slow
@settings(max_examples=1500, **QUIET)
@given(manual_programs(most=6, depth=2, meshes=MESHES), st.integers(0, 1000))
def test_many_gradients(x64: None, program: Manual, seed: int) -> None:
    check(program, seed, gradient=True)


# Against JAX, whose devices on one CPU wait for all others in a collective


def check_with_jax(program: Manual, seed: int) -> None:
    args = arguments(program)
    mesh = mw.make_mesh(tuple(program.mesh.values()), tuple(program.mesh))
    generator = rng("placements", seed, str(program))
    found = mw.jit(program.mapped(mesh=mesh))(*(placed(mesh, x, generator) for x in args))
    assert_close(found, jax.jit(program.on_jax(JAX))(*args), str(program))


@settings(max_examples=6, derandomize=True, **QUIET)
@given(manual_programs(most=5, depth=1, meshes=ON_JAX, forward=True, apart=False), st.integers(0, 1000))
def test_as_jax(x64: None, program: Manual, seed: int) -> None:
    check_with_jax(program, seed)


@pytest.mark.slow
@settings(max_examples=300, **QUIET)
@given(manual_programs(most=6, depth=2, meshes=ON_JAX, forward=True, apart=False), st.integers(0, 1000))
def test_many_as_jax(x64: None, program: Manual, seed: int) -> None:
    check_with_jax(program, seed)


# On XLA, by the program of one device with its collectives


def check_on_xla(program: Manual, seed: int) -> None:
    args = arguments(program)
    mesh = mw.make_mesh(tuple(program.mesh.values()), tuple(program.mesh))
    generator = rng("placements", seed, str(program))
    there = [placed(mesh, x, generator) for x in args]
    found = to_jax(mw.jit(program.mapped(mesh=mesh)).lower(*there).compile())(*args)
    assert_close(jax.tree.map(np.asarray, found), program.reference(*args), str(program))


@settings(max_examples=6, derandomize=True, **QUIET)
@given(manual_programs(most=5, depth=1, meshes=ON_JAX, forward=True, apart=False), st.integers(0, 1000))
def test_on_xla(x64: None, program: Manual, seed: int) -> None:
    check_on_xla(program, seed)


@pytest.mark.slow
@settings(max_examples=200, **QUIET)
@given(manual_programs(most=6, depth=2, meshes=ON_JAX, forward=True, apart=False), st.integers(0, 1000))
def test_many_on_xla(x64: None, program: Manual, seed: int) -> None:
    check_on_xla(program, seed)
