"""Ops of users: one with the factor rule and the cost of another is fused, costed, partitioned and written like it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.core.op import REGISTRY, No, Op, define_op
from meshwright.ops.basic import reduce_sum, transpose
from meshwright.ops.contraction import dot_general
from meshwright.ops.elementwise import tanh

PRODUCT = {"contract": ((1,), (0,)), "batch": ((), ()), "dtype": None}
CHIPS = ("v5e", "h100")

# An op, and a program around it that has something before and after.
CALLS: dict[str, tuple[Op, Callable[[Any, Any, Any], Any]]] = {
    "product": (dot_general, lambda op, x, y: mnp.tanh(op(x * 2.0, transpose(y, permutation=(1, 0)), **PRODUCT))),
    "elementwise": (tanh, lambda op, x, y: op(x + y) * x),
    "reduction": (reduce_sum, lambda op, x, y: (x - op(x * y, axes=(1,))[:, None]) * y),
}


@pytest.fixture(params=CALLS)
def case(request: pytest.FixtureRequest) -> Iterator[tuple[Op, Op, Callable[[Any, Any, Any], Any]]]:
    """An op, one of a user's with its rules, and a program."""
    known, call = CALLS[request.param]
    own = define_op(
        f"own_{request.param}",
        type=known.type.__wrapped__,  # type: ignore[attr-defined]
        factors=known.factors,
        linear=known.linear,
        jvp=No("it has none"),
        transpose=No("it has none"),
        batch=known.batch,
        evaluate=known.evaluate,
        cost=known.cost,
        samples=lambda: [],
    )
    yield known, own, call
    del REGISTRY[own.name]


def jitted(op: Op, call: Callable[[Any, Any, Any], Any], size: int, *specs: mw.P) -> Any:
    mesh = mw.make_mesh((2, 4), ("a", "b"))
    shapes = [mw.ShapeDtypeStruct((size, size), mnp.float32, sharding=mw.NamedSharding(mesh, spec)) for spec in specs]
    return mw.jit(lambda x, y: call(op, x, y)).lower(*shapes).compile()


LAYOUTS = [
    (mw.P(None, None), mw.P(None, None)),
    (mw.P("a", None), mw.P(None, "b")),
    (mw.P("a", "b"), mw.P("a", "b")),
    (mw.P(None, "b"), mw.P(None, "b")),
]


@pytest.mark.parametrize("specs", LAYOUTS, ids=str)
def test_it_is_partitioned_and_costed_like_its_counterpart(case: Any, specs: tuple[mw.P, mw.P]) -> None:
    known, own, call = case
    there, here = jitted(known, call, 4096, *specs), jitted(own, call, 4096, *specs)
    assert [(c.kind, c.axes, c.total_bytes) for c in here.collectives] == [
        (c.kind, c.axes, c.total_bytes) for c in there.collectives
    ]
    assert here.memory().peak_bytes == there.memory().peak_bytes
    for chip in CHIPS:
        assert here.simulate(chip).seconds == pytest.approx(there.simulate(chip).seconds, rel=0.01)


def test_it_computes_the_same(case: Any) -> None:
    known, own, call = case
    mesh = mw.make_mesh((2, 4), ("a", "b"))
    x, y = (np.random.default_rng(n).standard_normal((8, 8)).astype(np.float32) for n in range(2))
    for specs in LAYOUTS:
        placed = [mw.device_put(z, mw.NamedSharding(mesh, spec)) for z, spec in zip((x, y), specs, strict=True)]
        found, expected = (np.asarray(mw.jit(lambda x, y, op=op: call(op, x, y))(*placed)) for op in (own, known))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_it_is_written_as_a_custom_call(case: Any) -> None:
    _, own, call = case
    compiled = jitted(own, call, 8, mw.P("a", None), mw.P("a", None))
    assert f'custom_call_target="meshwright.{own.name}"' in compiled.as_text()
    lowered = mw.jit(lambda x, y: call(own, x, y)).lower(*[mw.ShapeDtypeStruct((8, 8), mnp.float32)] * 2)
    assert f"stablehlo.custom_call @meshwright.{own.name}(" in lowered.as_text()


def test_what_it_returns_is_never_written_over() -> None:
    """Its result may be a view of its operand, whatever its factor rule is like."""
    first = define_op(
        "own_first",
        type=reduce_sum.type.__wrapped__,  # type: ignore[attr-defined]
        factors=reduce_sum.factors,
        linear=reduce_sum.linear,
        jvp=No("it has none"),
        transpose=No("it has none"),
        batch=reduce_sum.batch,
        evaluate=lambda xp, x, axes, **params: x[:, 0],
        cost=reduce_sum.cost,
        samples=lambda: [],
    )
    try:
        x = mnp.asarray(np.arange(64.0, dtype=np.float32).reshape(8, 8))
        found = mw.jit(lambda x: mnp.tanh(first(x, axes=(1,)) * 2.0 + 1.0))(x)
        np.testing.assert_array_equal(np.asarray(x), np.arange(64.0).reshape(8, 8))
        np.testing.assert_allclose(np.asarray(found), np.tanh(np.arange(0, 64, 8) * 2.0 + 1.0), rtol=1e-6)
    finally:
        del REGISTRY["own_first"]
