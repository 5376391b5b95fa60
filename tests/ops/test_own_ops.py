"""Ops of users: one with the factor rule and the cost of another is fused, costed, partitioned and written like it.

Facts that do not follow from a factor rule, such as how it looks across the blocks of a dim, are said once, in its
definition, and every stage knows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.core.factors import Factors
from meshwright.core.op import REGISTRY, No, Op, define_op
from meshwright.core.text.parse import parse_program
from meshwright.interop import mlir
from meshwright.interop.hlo import hlo_text
from meshwright.ops.basic import add, neg, reduce_sum, transpose
from meshwright.ops.contraction import dot_general
from meshwright.ops.cumulative import cumprod, cumsum
from meshwright.ops.elementwise import div, exp, sub, tanh
from meshwright.ops.reduction import argmax
from meshwright.ops.shape import concatenate, pad, reverse, slice_
from meshwright.ops.sorting import top_k
from meshwright.simulate.fusion import fuse
from meshwright.transform.stack import inline_calls
from tests.interop import hlo_by_xla
from tests.interop.test_load_and_dump import by_xla

PRODUCT = {"contract": ((1,), (0,)), "batch": ((), ()), "dtype": None}
CHIPS = ("v5e", "h100")
X, Y = (np.random.default_rng(n).standard_normal((8, 8)).astype(np.float32) for n in range(2))

# An op, and a program around it that has something before and after.
CALLS: dict[str, tuple[Op, Callable[[Any, Any, Any], Any]]] = {
    "product": (dot_general, lambda op, x, y: mnp.tanh(op(x * 2.0, transpose(y, permutation=(1, 0)), **PRODUCT))),
    "elementwise": (tanh, lambda op, x, y: op(x + y) * x),
    "reduction": (reduce_sum, lambda op, x, y: (x - op(x * y, axes=(1,))[:, None]) * y),
}


# The same factor rules written by hand.
BY_HAND = {
    "product": lambda operands, results, params: Factors.parse(
        "r k, k c -> r c", {"r": operands[0].shape[0], "k": operands[0].shape[1], "c": operands[1].shape[1]}
    ),
    "elementwise": lambda operands, results, params: Factors.parse(
        "r c -> r c", {"r": operands[0].shape[0], "c": operands[0].shape[1]}
    ),
    "reduction": lambda operands, results, params: Factors.parse(
        "r c -> r", {"r": operands[0].shape[0], "c": operands[0].shape[1]}
    ),
}


@pytest.fixture(params=[(name, by_hand) for name in CALLS for by_hand in (False, True)], ids=str)
def case(request: pytest.FixtureRequest) -> Iterator[tuple[Op, Op, Callable[[Any, Any, Any], Any]]]:
    """An op, one of a user's with its rules, and a program."""
    name, by_hand = request.param
    known, call = CALLS[name]
    with own_op(known, f"own_{name}", **({"factors": BY_HAND[name]} if by_hand else {})) as own:
        yield known, own, call


@contextmanager
def own_op(known: Op, name: str, **facts: Any) -> Iterator[Op]:
    """An op of a user with the rules of another, for as long as it is tested; of its facts it has those given."""
    rules = {"jvp": No("it has none"), "transpose": No("it has none"), "evaluate": known.evaluate}
    rules = {**rules, "factors": known.factors, **facts}
    op = define_op(
        name,
        type=known.type.__wrapped__,  # type: ignore[attr-defined]
        linear=known.linear,
        batch=known.batch,
        cost=known.cost,
        localize=known.localize,
        samples=lambda: [],
        **rules,
    )
    try:
        yield op
    finally:
        del REGISTRY[name]


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
    for specs in LAYOUTS:
        placed = [mw.device_put(z, mw.NamedSharding(mesh, spec)) for z, spec in zip((X, Y), specs, strict=True)]
        found, expected = (np.asarray(mw.jit(lambda x, y, op=op: call(op, x, y))(*placed)) for op in (own, known))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_it_is_written_as_a_custom_call(case: Any) -> None:
    _, own, call = case
    compiled = jitted(own, call, 8, mw.P("a", None), mw.P("a", None))
    assert f'custom_call_target="meshwright.{own.name}"' in compiled.as_text()
    lowered = mw.jit(lambda x, y: call(own, x, y)).lower(*[mw.ShapeDtypeStruct((8, 8), mnp.float32)] * 2)
    assert f"stablehlo.custom_call @meshwright.{own.name}(" in lowered.as_text()


@pytest.mark.parametrize("fused", [True, False])
def test_it_is_fused_like_its_counterpart(case: Any, fused: bool) -> None:
    known, own, call = case
    programs = [mw.make_program(lambda x, y, op=op: call(op, x, y))(X, Y) for op in (known, own)]
    there, here = (fuse(inline_calls(program), fused).kernels for program in programs)
    names = [[eqn.op.name.replace(own.name, known.name) for eqn in kernel.eqns] for kernel in here]
    assert names == [[eqn.op.name for eqn in kernel.eqns] for kernel in there]
    assert [sorted(k.reads.values()) for k in here] == [sorted(k.reads.values()) for k in there]


def test_its_programs_have_a_text(case: Any) -> None:
    _, own, call = case
    program = mw.make_program(lambda x, y: call(own, x, y))(X, Y)
    assert own.name in program.to_text()
    assert parse_program(program.to_text()) == program


def test_its_results_are_sharded_on_explicit_axes_like_those_of_its_counterpart(case: Any) -> None:
    known, own, call = case
    mesh = mw.make_mesh((2, 4), ("a", "b"), axis_types=(mw.AxisType.Explicit,) * 2)
    for specs in LAYOUTS[:3]:
        placed = [mw.device_put(z, mw.NamedSharding(mesh, s)) for z, s in zip((X, Y), specs, strict=True)]
        types = [_type_or_error(lambda x, y, op=op: call(op, x, y), placed) for op in (known, own)]
        assert types[0] == types[1].replace(own.name, known.name)


def _type_or_error(function: Any, args: Sequence[Any]) -> str:
    try:
        return str(mw.make_program(function)(*args).out_types)
    except mw.MeshwrightError as error:
        return str(error)


# Facts that an op says

ACROSS: dict[str, tuple[Op, Callable[[Any, Any], Any]]] = {
    "running": (cumsum, lambda op, x: op(x, axis=0, reverse=False)),
    "running product, backward": (cumprod, lambda op, x: op(x, axis=1, reverse=True)),
    "position": (argmax, lambda op, x: op(x, axis=0, dtype=np.dtype(np.int32))),
    "reversed": (reverse, lambda op, x: op(x, dims=(0, 1))),
    "cut": (slice_, lambda op, x: op(x, starts=(1, 0), limits=(7, 8), strides=(1, 2))),
    "padded": (pad, lambda op, x: op(x, np.float32(1), low=(1, 0), high=(2, 3), interior=(0, 1))),
    "joined": (concatenate, lambda op, x: op(x, x * 2.0, dim=0)),
    "largest": (top_k, lambda op, x: op(x, k=3)[1]),
}


@pytest.mark.parametrize("what", ACROSS)
def test_how_it_looks_across_blocks_is_said_in_its_definition(what: str) -> None:
    known, call = ACROSS[what]
    mesh = mw.make_mesh((2, 4), ("a", "b"))
    with own_op(known, "own_across", split=known.split, fusion=known.fusion, memory=known.memory) as own:
        for spec in (mw.P("a", "b"), mw.P("b", None), mw.P(None, ("a", "b"))):
            x = mw.device_put(X, mw.NamedSharding(mesh, spec))
            compiled = [mw.jit(lambda x, op=op: call(op, x)).lower(x).compile() for op in (known, own)]
            lists = [[(c.kind, c.axes, c.total_bytes) for c in one.collectives] for one in compiled]
            assert lists[0] == lists[1]
            seconds = [one.simulate("v5e").seconds for one in compiled]
            assert seconds[1] == pytest.approx(seconds[0], rel=0.01)
            np.testing.assert_allclose(mw.jit(lambda x: call(own, x))(x), call(known, X), rtol=1e-5)


def test_it_is_written_in_parts_that_others_have() -> None:
    def parts(x: Any) -> Any:
        return div(sub(exp(x), exp(neg(x))), add(exp(x), exp(neg(x))))

    with own_op(tanh, "own_tanh", in_parts=parts) as own:
        program = mw.make_program(lambda x: own(x) * 2.0)(X)
        for text in (mlir.dump(program), hlo_text(program)):
            assert "exponential" in text and "custom" not in text
        np.testing.assert_allclose(by_xla(mlir.dump(program), [X])[0], 2 * np.tanh(X), rtol=1e-5)
        np.testing.assert_allclose(hlo_by_xla.run(hlo_text(program), [[X]])[0][0], 2 * np.tanh(X), rtol=1e-5)


def test_it_is_written_and_read_by_the_name_that_others_have() -> None:
    with own_op(tanh, "own_bessel", stablehlo="chlo.bessel_i1e") as own:
        program = mw.make_program(own)(X)
        text = mlir.dump(program)
        assert "chlo.bessel_i1e" in text
        assert mlir.load(text) == program


def test_what_it_returns_is_never_written_over() -> None:
    """Its result may be a view of its operand, whatever its factor rule is like."""
    with own_op(reduce_sum, "own_first", evaluate=lambda xp, x, axes, **params: x[:, 0]) as first:
        x = mnp.asarray(np.arange(64.0, dtype=np.float32).reshape(8, 8))
        found = mw.jit(lambda x: mnp.tanh(first(x, axes=(1,)) * 2.0 + 1.0))(x)
        np.testing.assert_array_equal(np.asarray(x), np.arange(64.0).reshape(8, 8))
        np.testing.assert_allclose(np.asarray(found), np.tanh(np.arange(0, 64, 8) * 2.0 + 1.0), rtol=1e-6)
