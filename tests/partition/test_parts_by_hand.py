"""Parts that are written for some axes of a mesh: along the others they are partitioned as the program around is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax
from meshwright.sharding import enumerate_shardings
from tests.ops.drawing import rng
from tests.shard_map.random_programs import Manual, manual_programs

MESH = mw.make_mesh((2, 4), ("data", "model"))
QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}


def on(*spec: Any) -> mw.NamedSharding:
    return mw.NamedSharding(MESH, P(*spec))


def numbers(*shape: int) -> Any:
    return rng("parts", *map(str, shape)).standard_normal(shape).astype(np.float32)


def kinds(compiled: Any) -> list[tuple[str, tuple[str, ...]]]:
    return [(record.kind, record.axes) for record in compiled.collectives]


def layers(x: Any, w: Any, v: Any) -> Any:
    """Two layers on a part of the batch, and their sum over all parts."""
    y = mnp.tanh(x @ w) @ v
    return lax.psum(y.sum(0), "data"), y


BY_HAND = mw.shard_map(
    layers, mesh=MESH, in_specs=(P("data"), P(), P()), out_specs=(P(), P("data")), axis_names={"data"}
)
ARGUMENTS = [numbers(8, 16), numbers(16, 32), numbers(32, 16)]
PLACES = [on("data"), on(None, "model"), on("model")]


def test_layers_are_split_over_the_axis_that_is_left() -> None:
    placed = [mw.device_put(x, s) for x, s in zip(ARGUMENTS, PLACES, strict=True)]
    step = mw.jit(BY_HAND)
    compiled = step.lower(*placed).compile()
    assert kinds(compiled) == [("all_reduce", ("model",)), ("all_reduce", ("data",))]
    for found, expected in zip(step(*placed), BY_HAND(*ARGUMENTS), strict=True):
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-5, atol=1e-5)


def test_gradients_are_split_as_the_parameters_are() -> None:
    def loss(*args: Any) -> Any:
        total, each = BY_HAND(*args)
        return (total**2).sum() + (each**2).sum()

    placed = [mw.device_put(x, s) for x, s in zip(ARGUMENTS, PLACES, strict=True)]
    gradient = mw.jit(mw.grad(loss, argnums=(0, 1, 2)), out_shardings=tuple(PLACES))
    compiled = gradient.lower(*placed).compile()
    assert {kind for kind, _ in kinds(compiled)} == {"all_reduce"}
    for found, expected in zip(gradient(*placed), mw.grad(loss, argnums=(0, 1, 2))(*ARGUMENTS), strict=True):
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-4, atol=1e-4)


def test_a_constraint_inside_is_kept() -> None:
    def body(x: Any) -> Any:
        return lax.with_sharding_constraint(mnp.sin(x), P(None, "model")) * 2

    f = mw.shard_map(body, mesh=MESH, in_specs=P("data"), out_specs=P("data"), axis_names={"data"})
    x = mw.device_put(numbers(8, 16), on(("data", "model")))
    step = mw.jit(f, out_shardings=on("data", "model"))
    assert kinds(step.lower(x).compile()) == [("all_to_all", ("model",))]
    np.testing.assert_allclose(np.asarray(step(x)), 2 * np.sin(numbers(8, 16)), rtol=1e-5)


def test_a_dim_that_is_gathered_by_hand_is_whole_along_the_others() -> None:
    f = mw.shard_map(
        lambda x: lax.all_gather(x, "data", axis=0), mesh=MESH, in_specs=P("data"), out_specs=P("data"),
        axis_names={"data"},
    )  # fmt: skip
    for spec in (("data",), (("data", "model"),), ("data", "model"), (None, "model")):
        x = mw.device_put(numbers(8, 16), on(*spec))
        found = mw.jit(lambda x: f(x)[:8])(x)
        np.testing.assert_array_equal(np.asarray(found), numbers(8, 16))


def test_what_is_scattered_by_hand_may_come_in_any_layout() -> None:
    mesh = mw.make_mesh((3, 1, 2), ("x", "y", "other"))
    f = mw.shard_map(
        lambda a: lax.psum_scatter(a, ("x", "y"), scatter_dimension=0, tiled=True), mesh=mesh, in_specs=P(),
        out_specs=P(None, ("x", "y")), axis_names={"x", "y"},
    )  # fmt: skip
    for sharding in enumerate_shardings(mesh, 2):
        x = mw.device_put(numbers(3, 1), mw.NamedSharding(mesh, sharding.spec))
        np.testing.assert_allclose(np.asarray(mw.jit(f)(x)), 3 * numbers(3, 1).T, rtol=1e-6)


def check(program: Manual, size: int) -> None:
    """A random part written for its axes on a mesh with one more, on arguments in random layouts."""
    mesh = mw.make_mesh((*program.mesh.values(), size), (*program.mesh, "other"))
    generator = rng("layouts", str(program))
    f = program.mapped(mesh=mesh, axis_names=set(program.mesh))
    args = [generator.uniform(-1.5, 1.5, shape) for shape in program.shapes]
    choices = [s.spec for s in enumerate_shardings(mesh, 2, compound=True)]
    placed = [mw.device_put(x, mw.NamedSharding(mesh, choices[generator.integers(len(choices))])) for x in args]

    def both(*args: Any) -> Any:
        total = lambda *xs: sum(mnp.sin(y).sum() for y in f(*xs))
        return f(*args), mw.grad(total, argnums=tuple(range(len(args))))(*args)

    for found, expected in zip(mw.tree.leaves(mw.jit(both)(*placed)), mw.tree.leaves(both(*args)), strict=True):
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-8, atol=1e-9)


def with_x64(program: Manual, size: int) -> None:
    before, mw.config.enable_x64 = mw.config.enable_x64, True
    try:
        check(program, size)
    finally:
        mw.config.enable_x64 = before


@pytest.mark.parametrize("size", [2, 3])
@settings(max_examples=15, derandomize=True, **QUIET)
@given(manual_programs(most=5, depth=1))
def test_random_parts(size: int, program: Manual) -> None:
    with_x64(program, size)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
@settings(max_examples=400, **QUIET)
@given(manual_programs(most=8, depth=2))
def test_many_random_parts(size: int, program: Manual) -> None:
    with_x64(program, size)
