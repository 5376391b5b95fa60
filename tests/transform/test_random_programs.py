"""Random programs: their value, derivatives, batches, text and simplified forms are what they should be.

In float32 they are compared with JAX, in float64 with finite differences and with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from tests.transform.random_programs import CUSTOM_VJP, EVERYTHING, NUMERIC, OUTSIDE, ROUNDED, WHILE, Drawn, programs

import meshwright as mw
from meshwright.arrays.tracing import trace_flat
from meshwright.core import tree
from meshwright.core.check import check
from meshwright.core.program import Program
from meshwright.engine.compile import compile_program
from meshwright.transform.simplify import cse, dce

FORWARD = EVERYTHING - {CUSTOM_VJP}
REVERSE = EVERYTHING - {WHILE}
REVERSE_IN_JAX = REVERSE - {OUTSIDE}
BOTH = FORWARD & REVERSE
BATCH = 3


def sampled(count: int) -> Callable[[Any], Any]:
    """The same ``count`` programs in every run."""
    return settings(
        max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )


@pytest.fixture(scope="module", autouse=True)
def compile_quickly() -> Iterator[None]:
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@contextmanager
def wide() -> Iterator[None]:
    """64-bit types, in both libraries."""
    mw.config.enable_x64 = True
    try:
        with jax.enable_x64(True):
            yield
    finally:
        mw.config.enable_x64 = False


# The functions that derivatives are taken of


def of_floats(drawn: Drawn, package: Any, arrays: Sequence[Any]) -> Callable[..., tuple[Any, ...]]:
    """The float results as a function of the float arguments."""
    program = drawn.on(package, arrays[drawn.floats[0]].dtype.type)

    def function(*floats: Any) -> tuple[Any, ...]:
        full = [package.numpy.asarray(x) for x in arrays]
        for n, x in zip(drawn.floats, floats, strict=True):
            full[n] = x
        outs = program(*full)
        return tuple(out for out, slot in zip(outs, drawn.results, strict=True) if slot.kind in NUMERIC)

    return function


def weighted(function: Callable[..., Any], package: Any) -> Callable[..., Any]:
    """One number made of all results, each element with a weight of its own."""

    def loss(*args: Any) -> Any:
        total = 0.0
        for out in function(*args):
            weights = np.cos(np.arange(out.size) + 1.0).reshape(out.shape).astype(out.dtype)
            total = total + package.numpy.sum(out * weights).astype(args[0].dtype)
        return total

    return loss


def like(package: Any, arrays: Sequence[Any], seed: int) -> tuple[Any, ...]:
    """Random directions of the types of ``arrays``."""
    random = np.random.default_rng(seed)
    return tuple(package.numpy.asarray(random.uniform(-1, 1, x.shape), x.dtype) for x in arrays)


# Comparing


def leaves(x: Any) -> list[Any]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(x, is_leaf=lambda v: isinstance(v, mw.Array))]


def difference(actual: Any, expected: Any) -> float:
    """The largest difference, relative to the largest element of an array where that is above 1."""
    mine, theirs = leaves(actual), leaves(expected)
    assert len(mine) == len(theirs)
    worst = 0.0
    for a, e in zip(mine, theirs, strict=True):
        assert a.shape == e.shape and a.dtype == e.dtype, f"{a.dtype}{a.shape}, expected {e.dtype}{e.shape}"
        if a.dtype.kind in "iub":
            worst = max(worst, float(np.any(a != e)))
        elif a.size:
            a, e = a.astype(np.float64), e.astype(np.float64)
            assert np.isfinite(e).all(), f"expected {e}"
            found = float(np.max(np.abs(a - e))) / max(1.0, float(np.max(np.abs(e))))
            worst = max(worst, found if np.isfinite(found) else np.inf)
    return worst


def close(actual: Any, expected: Any, tolerance: float) -> None:
    assert difference(actual, expected) <= tolerance, f"{leaves(actual)}\nexpected {leaves(expected)}"


def near_a_jump(narrow: Any, compute_wide: Callable[[], Any], tolerance: float) -> bool:
    """Whether JAX itself, in float64, says something else than in float32: then so may anyone."""
    with wide():
        exact = leaves(compute_wide())
    rough = leaves(narrow)
    return difference(rough, [e.astype(r.dtype) for e, r in zip(exact, rough, strict=True)]) > tolerance / 10


def same_as_jax(drawn: Drawn, compute: Callable[[Any, Any], Any], tolerance: float) -> None:
    """``compute(package, dtype)`` on both libraries."""
    actual, expected = compute(mw, np.float32), compute(jax, np.float32)
    if drawn.rounded:
        tolerance = 0.1
    if difference(actual, expected) > tolerance:
        assume(drawn.rounded or not near_a_jump(expected, lambda: compute(jax, np.float64), tolerance))
    close(actual, expected, tolerance)


# The value


def check_value(drawn: Drawn) -> None:
    def value(package: Any, dtype: Any) -> Any:
        function = drawn.on(package, dtype)
        arrays = [package.numpy.asarray(x) for x in drawn.arrays(dtype)]
        return package.jit(function)(*arrays)

    same_as_jax(drawn, value, 1e-4)
    arrays = [mw.numpy.asarray(x) for x in drawn.arrays()]
    close(drawn.on(mw)(*arrays), value(mw, np.float32), 1e-2 if drawn.rounded else 1e-5)


@sampled(10)
@given(programs(EVERYTHING, 4, 10))
def test_the_value_is_that_of_jax_computed_at_once_and_compiled(drawn: Drawn) -> None:
    check_value(drawn)


# Derivatives


def forward_derivatives(drawn: Drawn, package: Any, dtype: Any) -> Any:
    arrays = drawn.arrays(dtype)
    floats = [package.numpy.asarray(arrays[n]) for n in drawn.floats]
    function = of_floats(drawn, package, arrays)

    def push(*xs: Any) -> Any:
        return package.jvp(function, xs, like(package, floats, 1))

    return package.jit(push)(*floats)


def reverse_derivatives(drawn: Drawn, package: Any, dtype: Any) -> Any:
    """vjp of random cotangents, the gradient, and the Hessian times a vector."""
    arrays = drawn.arrays(dtype)
    floats = [package.numpy.asarray(arrays[n]) for n in drawn.floats]
    function = of_floats(drawn, package, arrays)

    def pull(*xs: Any) -> Any:
        out, back = package.vjp(function, *xs)
        gradient = package.grad(weighted(function, package), argnums=tuple(range(len(floats))))
        return back(like(package, out, 2)), package.jvp(gradient, xs, like(package, floats, 1))

    return package.jit(pull)(*floats)


def check_forward(drawn: Drawn) -> None:
    same_as_jax(drawn, lambda package, dtype: forward_derivatives(drawn, package, dtype), 1e-3)


def check_reverse(drawn: Drawn) -> None:
    same_as_jax(drawn, lambda package, dtype: reverse_derivatives(drawn, package, dtype), 1e-3)


@sampled(10)
@given(programs(FORWARD, 4, 10))
def test_forward_derivatives_are_those_of_jax(drawn: Drawn) -> None:
    check_forward(drawn)


@sampled(20)
@given(programs(REVERSE_IN_JAX, 4, 10))
def test_reverse_and_second_derivatives_are_those_of_jax(drawn: Drawn) -> None:
    check_reverse(drawn)


def check_finite_differences(drawn: Drawn) -> None:
    with wide():
        arrays = drawn.arrays(np.float64)
        floats = tuple(arrays[n] for n in drawn.floats)
        loss = mw.jit(weighted(of_floats(drawn, mw, arrays), mw))
        direction = like(mw, floats, 1)

        def quotient(step: float) -> float:
            ends = [[x + sign * step * t for x, t in zip(floats, direction, strict=True)] for sign in (1, -1)]
            return (float(loss(*ends[0])) - float(loss(*ends[1]))) / (2 * step)

        coarse, fine = quotient(2e-5), quotient(1e-5)
        assume(abs(coarse - fine) <= 1e-6 * max(1.0, abs(fine)))  # else a kink or a jump lies between
        slope = float(mw.jvp(loss, floats, direction)[1])
        gradient = mw.grad(loss, argnums=tuple(range(len(floats))))(*floats)
    assert abs(slope - fine) <= 1e-5 * max(1.0, abs(fine)), (slope, fine)
    assert abs(inner(gradient, direction) - fine) <= 1e-5 * max(1.0, abs(fine)), (gradient, direction, fine)


def inner(xs: Sequence[Any], ys: Sequence[Any]) -> float:
    return sum(float(np.vdot(x, y)) for x, y in zip(leaves(xs), leaves(ys), strict=True))


@sampled(50)
@given(programs(frozenset()))
def test_derivatives_are_those_of_finite_differences(drawn: Drawn) -> None:
    check_finite_differences(drawn)


def check_adjoint(drawn: Drawn) -> None:
    """⟨ct, jvp(t)⟩ = ⟨vjp(ct), t⟩, ⟨u, H v⟩ = ⟨v, H u⟩; linearize pushes as jvp does; transposing twice is nothing."""
    with wide():
        arrays = drawn.arrays(np.float64)
        floats = tuple(mw.numpy.asarray(arrays[n]) for n in drawn.floats)
        function = of_floats(drawn, mw, arrays)
        t, u = like(mw, floats, 1), like(mw, floats, 2)
        out, tangent = mw.jvp(function, floats, t)
        value, back = mw.vjp(function, *floats)
        close(value, out, 1e-9)
        ct = like(mw, out, 3)
        pulled = back(ct)
        same_number(inner(ct, tangent), inner(pulled, t))
        linearized, push = mw.linearize(function, *floats)
        close(linearized, out, 1e-9)
        close(push(*t), tangent, 1e-9)
        close(mw.jit(push)(*t), tangent, 1e-9)
        transposed = mw.linear_transpose(lambda ts: push(*ts), floats)
        close(transposed(ct), pulled, 1e-9)
        close(mw.linear_transpose(transposed, out)((t,))[0], tangent, 1e-9)
        gradient = mw.grad(weighted(function, mw), argnums=tuple(range(len(floats))))
        if drawn.symmetric:
            bent = [mw.jvp(gradient, floats, v)[1] for v in (t, u)]
            same_number(inner(u, bent[0]), inner(t, bent[1]))


def same_number(a: float, b: float) -> None:
    assert abs(a - b) <= 1e-8 * max(1.0, abs(a), abs(b)), (a, b)


@sampled(50)
@given(programs(BOTH - {ROUNDED}))
def test_forward_and_reverse_mode_are_each_others_transpose(drawn: Drawn) -> None:
    check_adjoint(drawn)


# Batches


def check_batch(drawn: Drawn) -> None:
    """vmap over some arguments is a loop; vmap of grad is a loop; grad of vmap is the sum of a loop."""
    random = np.random.default_rng(drawn.seed)
    flags = [bool(f) for f in random.integers(0, 2, len(drawn.arguments))]
    flags[int(random.integers(len(flags)))] = True
    with wide():
        arrays = [mw.numpy.asarray(x) for x in drawn.arrays(np.float64, batch=[BATCH if f else None for f in flags])]
        in_axes = tuple(0 if f else None for f in flags)
        function = drawn.on(mw, np.float64)

        def one(n: int) -> list[Any]:
            return [x[n] if f else x for x, f in zip(arrays, flags, strict=True)]

        def stacked(outs: Sequence[Any]) -> list[Any]:
            return [np.stack(parts) for parts in zip(*map(leaves, outs), strict=True)]

        expected = stacked([function(*one(n)) for n in range(BATCH)])
        batched = mw.vmap(function, in_axes)
        close(batched(*arrays), expected, 1e-9)
        close(mw.jit(batched)(*arrays), expected, 1e-9)

        def loss(*args: Any) -> Any:
            return weighted(of_floats(drawn, mw, args), mw)(*[args[n] for n in drawn.floats])

        numbers = tuple(drawn.floats)
        gradient = mw.grad(loss, argnums=numbers)
        expected = stacked([gradient(*one(n)) for n in range(BATCH)])
        close(mw.jit(mw.vmap(gradient, in_axes))(*arrays), expected, 1e-8)
        total = mw.grad(lambda *args: mw.numpy.sum(mw.vmap(loss, in_axes)(*args)), argnums=numbers)(*arrays)
        summed = [e if flags[n] else e.sum(0) for e, n in zip(expected, numbers, strict=True)]
        close(total, summed, 1e-8)


@sampled(40)
@given(programs(REVERSE - {ROUNDED}))
def test_a_batch_is_a_loop(drawn: Drawn) -> None:
    check_batch(drawn)


def check_forward_batch(drawn: Drawn) -> None:
    with wide():
        arrays = [mw.numpy.asarray(x) for x in drawn.arrays(np.float64, batch=[BATCH] * len(drawn.arguments))]
        function = drawn.on(mw, np.float64)

        def push(*args: Any) -> Any:
            floats = tuple(args[n] for n in drawn.floats)
            return mw.jvp(of_floats(drawn, mw, args), floats, floats)

        rows = [[x[n] for x in arrays] for n in range(BATCH)]
        for f in (function, push):
            expected = [np.stack(parts) for parts in zip(*[leaves(f(*row)) for row in rows], strict=True)]
            close(mw.vmap(f)(*arrays), expected, 1e-8)
            close(mw.jit(mw.vmap(f))(*arrays), expected, 1e-8)


@sampled(30)
@given(programs(FORWARD - {ROUNDED}))
def test_a_batch_with_loops_of_unknown_length_is_a_loop(drawn: Drawn) -> None:
    check_forward_batch(drawn)


# Programs


def program_of(function: Callable[..., Any], arrays: Sequence[Any]) -> Program:
    """As traced, with all that is dead or done twice."""
    values, in_tree = tree.flatten((tuple(mw.numpy.asarray(x) for x in arrays), {}))
    return trace_flat(function, in_tree, [x.type for x in values]).closed


def forms(drawn: Drawn) -> Iterator[tuple[Program, list[Any]]]:
    """The program, its gradient and its batch, with arguments for each."""
    arrays = drawn.arrays()

    def loss(*args: Any) -> Any:
        return weighted(of_floats(drawn, mw, args), mw)(*[args[n] for n in drawn.floats])

    function = drawn.on(mw)
    yield program_of(function, arrays), arrays
    yield program_of(mw.grad(loss, argnums=tuple(drawn.floats)), arrays), arrays
    batch = drawn.arrays(batch=[BATCH] * len(arrays))
    yield program_of(mw.vmap(function), batch), batch


def check_text(drawn: Drawn) -> None:
    for program, arrays in forms(drawn):
        check(program)
        assert mw.parse_program(str(program)) == program
        read = mw.parse_program(program.to_text(constants=True, sources=False))
        assert read == program and hash(read) == hash(program)
        check(read)
        assert str(mw.parse_program(str(read))) == str(read)
        close(compile_program(read)(*arrays), compile_program(program)(*arrays), 0.0)


@sampled(30)
@given(programs(REVERSE))
def test_a_program_survives_its_text(drawn: Drawn) -> None:
    check_text(drawn)


def size(program: Program) -> int:
    """The number of equations, those of regions included."""
    return sum(1 + sum(size(region) for _, region in eqn.regions()) for eqn in program.eqns)


def check_simplification(drawn: Drawn) -> None:
    for program, arrays in forms(drawn):
        expected = compile_program(program)(*arrays)
        for simplify in (dce, cse, lambda p: cse(dce(p)), lambda p: dce(cse(p))):
            simpler = check(simplify(program))
            assert size(simpler) <= size(program) and len(simpler.constants) <= len(program.constants)
            assert simplify(simpler) == simpler
            close(compile_program(simpler)(*arrays), expected, 1e-5)


@sampled(30)
@given(programs(REVERSE))
def test_simplifying_keeps_the_meaning_and_never_adds(drawn: Drawn) -> None:
    check_simplification(drawn)


# Long sweeps


@pytest.mark.slow
@sampled(700)
@given(programs(EVERYTHING, 3, 12))
def test_many_values_are_those_of_jax(drawn: Drawn) -> None:
    check_value(drawn)


@pytest.mark.slow
@sampled(400)
@given(programs(FORWARD, 3, 12))
def test_many_forward_derivatives_are_those_of_jax(drawn: Drawn) -> None:
    check_forward(drawn)


@pytest.mark.slow
@sampled(900)
@given(programs(REVERSE_IN_JAX, 3, 12))
def test_many_reverse_derivatives_are_those_of_jax(drawn: Drawn) -> None:
    check_reverse(drawn)


@pytest.mark.slow
@sampled(2000)
@given(programs(BOTH - {ROUNDED}, 3, 12))
def test_many_programs_agree_with_themselves(drawn: Drawn) -> None:
    check_adjoint(drawn)
    check_batch(drawn)
    check_text(drawn)
    check_simplification(drawn)


@pytest.mark.slow
@sampled(2000)
@given(programs(frozenset(), 3, 12))
def test_many_derivatives_are_those_of_finite_differences(drawn: Drawn) -> None:
    check_finite_differences(drawn)
