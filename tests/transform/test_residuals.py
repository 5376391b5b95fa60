"""What loops keep for their derivatives: as little as can be made again cheaply, beside what JAX keeps."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from tests.transform.random_programs import EVERYTHING, Drawn, programs
from tests.transform.test_random_programs import sampled

import meshwright as mw
from meshwright.core.program import Program
from meshwright.core.trace import run
from meshwright.transform.recompute import split_by_size
from meshwright.transform.simplify import cse, dce

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples"))

STEPS, ROWS, WIDTH = 5, 6, 8


def scans(program: Program) -> Iterator[Any]:
    for eqn in program.eqns:
        if eqn.op == "scan":
            yield eqn
        for region in eqn.regions():
            yield from scans(region)


def stacked(function: Callable[..., Any], *args: Any) -> list[tuple[int, ...]]:
    """The shapes of what the first loop of a derivative stacks, a step each."""
    first = next(scans(dce(cse(mw.make_program(mw.grad(function))(*args)))))
    return sorted(v.type.shape[1:] for v in first.outputs[first.params["carry"] :])


def stacked_bytes(program: Program) -> int:
    first = next(scans(program))
    return sum(v.type.nbytes for v in first.outputs[first.params["carry"] :])


def stacked_bytes_of_jax(jaxpr: Any) -> int | None:
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "scan":
            return sum(v.aval.size * v.aval.dtype.itemsize for v in eqn.outvars[eqn.params["num_carry"] :])
        for value in eqn.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns") and (found := stacked_bytes_of_jax(inner)) is not None:
                return found
    return None


def looped(step: Callable[..., Any], package: Any) -> Callable[..., Any]:
    """The sum of what a loop over the rows of ``ws`` carries in the end."""

    def loss(ws: Any, table: Any, x: Any) -> Any:
        return package.lax.scan(lambda x, w: (step(package, x, w, table), None), x, ws)[0].sum()

    return loss


def arrays() -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    shapes = (STEPS, WIDTH, WIDTH), (ROWS, WIDTH), (ROWS, WIDTH)
    return tuple(rng.normal(size=shape).astype(np.float32) * 0.2 for shape in shapes)


BODIES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    # The carry is kept; weights are read where they lie.
    "product": (lambda p, x, w, t: x @ w, [(ROWS, WIDTH)]),
    # Of tanh its result, and the carry before the product.
    "tanh": (lambda p, x, w, t: p.numpy.tanh(x @ w), [(ROWS, WIDTH)] * 2),
    # The mask is made again from the carry, which is kept anyway.
    "mask": (lambda p, x, w, t: p.numpy.where(x > 0, x @ w, 0.0), [(ROWS, WIDTH)]),
    # What the table gives is the same in every step.
    "table": (lambda p, x, w, t: (x @ w) * p.numpy.sin(t), [(ROWS, WIDTH)]),
    # The quotient is made again of its parts; the sum is small.
    "softmax": (lambda p, x, w, t: p.nn.softmax(x @ w) @ w, [(ROWS,), (ROWS, WIDTH), (ROWS, WIDTH)]),
    # Two functions of one value: the value is kept.
    "twice": (lambda p, x, w, t: ((x * 2.0) @ w) * (x + t), [(ROWS, WIDTH)] * 2),
    # A derivative that nobody asks for needs nothing.
    "stopped": (
        lambda p, x, w, t: x @ w - p.lax.stop_gradient(p.numpy.max(x, axis=-1, keepdims=True)),
        [(ROWS, WIDTH)],
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_what_is_stacked(name: str) -> None:
    step, expected = BODIES[name]
    assert stacked(looped(step, mw), *arrays()) == expected


@pytest.mark.parametrize("name", BODIES)
def test_gradients_are_those_of_jax(name: str) -> None:
    step = BODIES[name][0]
    found = mw.grad(looped(step, mw), argnums=(0, 1, 2))(*arrays())
    expected = jax.grad(looped(step, jax), argnums=(0, 1, 2))(*arrays())
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("config", [{}, {"checkpoint": True}])
def test_a_scanned_transformer_stacks_no_more_than_jax(config: dict[str, Any]) -> None:
    from twins import load

    sizes = {"vocab": 64, "dim": 32, "layers": 3, "heads": 4, "kv_heads": 2, "hidden": 96, "scan": True, **config}
    found = {}
    for package in (mw, jax):
        model = load("transformer") if package is mw else load("transformer", "jax")
        settings = model.Config(**sizes)
        params = model.init(package.random.key(0), settings)
        batch = model.make_batch(package.random.key(1), settings, batch=4, length=17)
        step = lambda p, b, model=model, settings=settings: model.train_step(p, b, settings)
        if package is mw:
            found["ours"] = stacked_bytes(dce(cse(mw.make_program(step)(params, batch))))
        else:
            found["theirs"] = stacked_bytes_of_jax(jax.make_jaxpr(step)(params, batch).jaxpr)
    assert found["ours"] <= found["theirs"]


@sampled(40)
@given(programs(EVERYTHING))
def test_what_is_made_again_is_what_it_was(drawn: Drawn) -> None:
    values = [mw.numpy.asarray(x) for x in drawn.arrays()]
    program = cse(mw.make_program(drawn.on(mw))(*values))
    wanted = [n % 2 == 0 for n in range(len(program.outputs))]
    given = [n % 3 == 0 for n in range(len(program.inputs))]
    found = split_by_size(program, wanted, given)
    outs = run(found.first, values)
    kept = outs[len(program.outputs) :]
    again = run(found.again, [*kept, *values])
    for one, other in zip(again, [x for x, flag in zip(outs, wanted, strict=False) if flag], strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
