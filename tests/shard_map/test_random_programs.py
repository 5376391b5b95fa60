"""Random programs for many devices against the same computed without devices: values, derivatives, programs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import meshwright as mw
from meshwright.core.check import check
from tests.shard_map.random_programs import Manual, manual_programs

QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}


def _arrays(shapes: list[tuple[int, ...]], seed: int) -> list[Any]:
    random = np.random.default_rng(seed)
    return [random.uniform(-1.5, 1.5, size=shape) for shape in shapes]


def _close(found: Any, expected: Any, label: str) -> None:
    for x, e in zip(mw.tree.leaves(found), mw.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(e), rtol=1e-8, atol=1e-9, err_msg=label)


def check_manual(program: Manual) -> None:
    f, args = program.mapped(), _arrays(program.shapes, 0)
    expected = program.reference(*[mw.numpy.asarray(x) for x in args])
    values = f(*args)
    _close(values, expected, "values")
    weights = _arrays([x.shape for x in expected], 1)
    tangents = _arrays(program.shapes, 2)
    numbers = tuple(range(len(args)))

    def loss(g: Any, *args: Any) -> Any:
        return sum((x * w).sum() for x, w in zip(g(*args), weights, strict=True))

    def both(*args: Any) -> Any:
        value, gradient = mw.value_and_grad(lambda *xs: loss(f, *xs), argnums=numbers)(*args)
        return f(*args), value, gradient, mw.jvp(f, args, tuple(tangents))[1]

    gradient = mw.grad(lambda *xs: loss(program.reference, *xs), argnums=numbers)(*map(mw.numpy.asarray, args))
    eager = both(*args)
    _close(eager[2], gradient, "gradient")
    pushed = sum((np.asarray(t) * w).sum() for t, w in zip(eager[3], weights, strict=True))
    pulled = sum((np.asarray(g) * t).sum() for g, t in zip(gradient, tangents, strict=True))
    np.testing.assert_allclose(pushed, pulled, rtol=1e-8, atol=1e-9, err_msg="jvp")
    _close(mw.jit(both)(*args), eager, "jit")
    traced = check(mw.make_program(both)(*args))
    assert mw.parse_program(str(traced)) == traced
    batch = [np.stack([x, 0.5 * x]) for x in args]
    batched = mw.vmap(f)(*batch)
    each = [f(*[x[n] for x in batch]) for n in range(2)]
    _close(batched, [np.stack([np.asarray(e[k]) for e in each]) for k in range(len(values))], "vmap")


@settings(max_examples=30, derandomize=True, **QUIET)
@given(manual_programs())
def test_equal_to_the_same_without_devices(program: Manual) -> None:
    _with_x64(check_manual, program)


@pytest.mark.slow
@settings(max_examples=2000, **QUIET)
@given(manual_programs(most=10, depth=3))
def test_equal_to_the_same_without_devices_longer(program: Manual) -> None:
    _with_x64(check_manual, program)


def _with_x64(function: Any, program: Manual) -> None:
    before, mw.config.enable_x64 = mw.config.enable_x64, True
    try:
        function(program)
    finally:
        mw.config.enable_x64 = before


def check_parts_of_an_axis(program: Manual) -> None:
    """Axes that are parts of one axis work as axes of their own do."""
    if 1 in program.mesh.values():
        return
    f, g, args = program.mapped(), mw.jit(program.on_one_axis()), _arrays(program.shapes, 0)
    _close(g(*args), f(*args), "values")

    def gradient(h: Any) -> Any:
        numbers = tuple(range(len(args)))
        return mw.grad(lambda *xs: sum((mw.numpy.sin(y)).sum() for y in h(*xs)), argnums=numbers)(*args)

    _close(gradient(g), gradient(f), "gradient")


@settings(max_examples=30, derandomize=True, **QUIET)
@given(manual_programs(most=5, depth=1))
def test_parts_of_an_axis_work_as_axes(program: Manual) -> None:
    _with_x64(check_parts_of_an_axis, program)


def check_linear(program: Manual) -> None:
    f = program.mapped()
    (x,) = _arrays(program.shapes, 0)
    ct = _arrays([f(x)[0].shape], 1)[0]

    def transposed(g: Any, like: Any) -> Any:
        return lambda y: mw.linear_transpose(g, like)((y,) if g is f else y)[0]

    t = transposed(f, x)
    tt = transposed(t, ct)
    _close(tt(x), f(x)[0], "t(t(f))")
    np.testing.assert_allclose((np.asarray(t(ct)) * x).sum(), (np.asarray(f(x)[0]) * ct).sum(), rtol=1e-8, atol=1e-9)
    functions = [t, tt]
    for _ in range(2):
        functions.append(transposed(functions[-1], ct if len(functions) % 2 else x))
    programs = [mw.make_program(f)(x), *(mw.make_program(g)(y) for g, y in zip(functions, (ct, x, ct, x), strict=True))]
    for p in programs:
        assert mw.parse_program(str(check(p))) == p
    sent = [_count(p, SENDING) for p in programs]
    assert sent[2] <= sent[0] and sent[3] <= sent[1], sent
    assert _count(programs[4]) <= _count(programs[2]), "it grows"


SENDING = {"psum", "all_gather", "psum_scatter", "all_gather_invariant", "all_to_all", "ppermute"}


def _count(program: mw.Program, names: Collection[str] | None = None) -> int:
    """The number of equations, or of those with some ops."""
    return sum(
        (names is None or eqn.op.name in names) + sum(_count(region, names) for _, region in eqn.regions())
        for eqn in program.eqns
    )


@settings(max_examples=30, derandomize=True, **QUIET)
@given(manual_programs(linear=True, most=6))
def test_transposing_twice_gives_the_function_back(program: Manual) -> None:
    _with_x64(check_linear, program)


@pytest.mark.slow
@settings(max_examples=2000, **QUIET)
@given(manual_programs(linear=True, most=10))
def test_transposing_twice_gives_the_function_back_longer(program: Manual) -> None:
    _with_x64(check_linear, program)
