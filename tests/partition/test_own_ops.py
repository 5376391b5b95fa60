"""Ops of users on a mesh: what they compute on parts of operands is what they compute, or they are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright.core.factors import FactorBuilder, Factors
from meshwright.core.facts import Across, Split
from meshwright.core.linearity import Linearity
from meshwright.core.op import REGISTRY, Cost, No, Op, define_op
from meshwright.core.types import TensorType
from meshwright.transform.regions.region import broadcast_batch

NONE = No("it has none")
MESHES = [mw.make_mesh((3,), ("x",)), mw.make_mesh((2, 2), ("x", "y"))]


@contextmanager
def own(type: Any, factors: Any, evaluate: Any, name: str = "own", **rules: Any) -> Iterator[Op]:
    """An op of a user, for as long as it is tested."""

    def batch(op: Op, size: int, args: Sequence[Any], batched: Sequence[bool], params: Any) -> Any:
        return [op(*[broadcast_batch(x, b, size) for x, b in zip(args, batched, strict=True)], **params)], [True]

    given: dict[str, Any] = {"linear": Linearity.NONE, "jvp": NONE, "transpose": NONE, "batch": batch, **rules}
    cost = lambda operands, results, params: Cost(float(sum(t.size for t in operands)), 0.0)
    op = define_op(name, type=type, factors=factors, evaluate=evaluate, cost=cost, samples=lambda: [], **given)
    try:
        yield op
    finally:
        del REGISTRY[name]


def same(x: TensorType) -> TensorType:
    return x


def row(x: TensorType) -> TensorType:
    return TensorType(x.shape[:-1], x.dtype)


def wide(x: TensorType, *, n: int) -> TensorType:
    return TensorType((*x.shape[:-1], n), x.dtype)


def of_rows(combine: str = "sum", **kinds: Any) -> Callable[[Any, Any, Any], Factors]:
    """The last dim of an array is reduced."""

    def rule(operands: Any, results: Any, params: Any) -> Factors:
        names = [f"d{n}" for n in range(operands[0].ndim)]
        sizes = dict(zip(names, operands[0].shape, strict=True))
        return Factors.parse(f"{' '.join(names)} -> {' '.join(names[:-1])}", sizes, combine=combine, **kinds)

    return rule


def layouts(mesh: mw.Mesh, rank: int) -> Iterator[mw.NamedSharding]:
    """Every way to put each axis of a mesh on one dim, or on none."""
    for places in product(range(rank + 1), repeat=len(mesh.axis_names)):
        dims: list[tuple[str, ...]] = [()] * rank
        for axis, dim in zip(mesh.axis_names, places, strict=True):
            if dim < rank:
                dims[dim] = (*dims[dim], axis)
        yield mw.NamedSharding(mesh, mw.P(*[dim or None for dim in dims]))


REDUCTIONS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "sum of exponentials": ("sum", lambda x: np.exp(x).sum(-1)),
    "largest square": ("max", lambda x: np.square(x).max(-1)),
    "smallest opposite": ("min", lambda x: (-x).min(-1)),
    "product of one more": ("prod", lambda x: (1 + np.square(x)).prod(-1)),
}


@pytest.mark.parametrize("what", REDUCTIONS)
@pytest.mark.parametrize("shape", [(6, 8), (5, 7), (4, 1)], ids=str)
def test_what_it_reduces_may_be_anything_of_the_elements(what: str, shape: tuple[int, ...]) -> None:
    """What stands beyond the end of a dim that devices do not divide is never seen."""
    combine, evaluate = REDUCTIONS[what]
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    with own(row, of_rows(combine), lambda xp, x: evaluate(x)) as op:
        for mesh in MESHES:
            for sharding in layouts(mesh, 2):
                found = mw.jit(lambda x: op(x * 0.5) + 1)(mw.device_put(x, sharding))
                np.testing.assert_allclose(found, evaluate(x * 0.5) + 1, rtol=1e-5, err_msg=str(sharding))


def received(op: Op, shape: tuple[int, ...], spec: mw.P) -> list[tuple[str, int]]:
    x = mw.device_put(np.ones(shape, np.float32), mw.NamedSharding(MESHES[0], spec))
    return [(c.kind, c.bytes_received_per_device) for c in mw.jit(op).lower(x).compile().collectives]


@pytest.mark.parametrize(
    ("rules", "kinds", "expected"),
    [
        ({}, {}, [("all_to_all", 48)]),
        ({}, {"fillable": True}, [("all_reduce", 32)]),
        ({"linear": Linearity.ADDS}, {}, [("all_reduce", 32)]),
    ],
    ids=["nothing is known", "fillable", "linear"],
)
def test_padding_may_be_filled_where_that_is_known(rules: Any, kinds: Any, expected: Any) -> None:
    """Eight columns on three devices: rows become whole unless zeros in the place of the ninth change nothing."""
    with own(row, of_rows(**kinds), lambda xp, x: x.sum(-1), **rules) as op:
        assert received(op, (6, 8), mw.P(None, "x")) == expected
        assert received(op, (6, 9), mw.P(None, "x"))[0][0] == "all_reduce"


def refused(op: Op, **params: Any) -> str:
    x = mw.device_put(np.ones((8, 4), np.float32), mw.NamedSharding(MESHES[1], mw.P("x")))
    wanted = mw.NamedSharding(MESHES[1], mw.P("x", *[None] * ("n" not in params), *["y"] * ("n" in params)))
    with pytest.raises(mw.MeshwrightError) as caught:
        mw.jit(lambda x: op(x, **params), out_shardings=wanted if params else None)(x)
    return "\n".join(line for line in str(caught.value).splitlines() if not line.startswith("  at:"))


FIT = (
    "  fix:  a factor of its size for each dim: Factors.parse('i k -> i k', {'i': x.shape[0], 'k': x.shape[1]})\n"
    "        or, of an op without operands: FactorBuilder(operands, results)"
)


@pytest.mark.parametrize(
    ("rule", "sizes", "why"),
    [
        ("i -> i", {"i": 8}, "dims of operand 0 in it: 1, but operand 0 is f32[8,4]"),
        ("i j -> i", {"i": 8, "j": 4}, "dims of result 0 in it: 1, but result 0 is f32[8,4]"),
        ("i j, i j -> i j", {"i": 8, "j": 4}, "operands in it: 2, operands of the op: 1"),
        ("i j -> i j, i j", {"i": 8, "j": 4}, "results in it: 2, results of the op: 1"),
        ("i j -> i j", {"i": 4, "j": 4}, "the size of dim 0 of operand 0 in it: 4, but operand 0 is f32[8,4]"),
    ],
)
def test_a_rule_that_does_not_fit_is_refused(rule: str, sizes: dict[str, int], why: str) -> None:
    with own(same, lambda operands, results, params: Factors.parse(rule, sizes), lambda xp, x: x) as op:
        found = refused(op)
    reduced = "  sum=j" if rule == "i j -> i" else ""
    assert found == f"The factor rule of own does not fit its types: {rule}{reduced}\n  why:  {why}\n{FIT}"


def test_a_combination_that_devices_do_not_know_is_refused() -> None:
    with own(row, of_rows("xor"), lambda xp, x: np.bitwise_xor.reduce(x, -1)) as op:
        assert refused(op) == (
            "The factor rule of own combines parts by 'xor': d0 d1 -> d0  xor=d1\n"
            "  why:  devices combine their results by one of sum, prod, max, min, and, or\n"
            '  fix:  combine="sum", or replicated=["k"] for a factor k that must be whole on every device'
        )


def test_a_size_among_the_params_is_localized() -> None:
    def rule(operands: Any, results: Any, params: Any) -> Factors:
        build = FactorBuilder(operands, results)
        last = operands[0].ndim - 1
        for dim in range(last):
            build.add(operands[0].shape[dim], (0, dim), (1, dim))
        build.add(operands[0].shape[last], (0, last), kind="replicated")
        build.add(params["n"], (1, last))
        return build.build()

    def evaluate(xp: Any, x: Any, n: int) -> Any:
        return np.repeat(x.sum(-1, keepdims=True), n, -1)

    with own(wide, rule, evaluate) as op:
        assert refused(op, n=6) == (
            "own on parts of its operands gives f32[4,6], and the part of its result is f32[4,3].\n"
            "  why:  by its factor rule it gives parts of results; a param that is a size must become that of a part\n"
            "  fix:  localize=lambda params, operands, results: {**params, 'n': results[0].shape[0]}, "
            "in define_op('own', …)\n"
            "        or name the factor among those that must be whole: replicated=['k']"
        )
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    local = lambda params, operands, results: {**params, "n": results[0].shape[-1]}
    with own(wide, rule, evaluate, localize=local) as op:
        for mesh in MESHES:
            for sharding, wanted in product(layouts(mesh, 2), layouts(mesh, 2)):
                found = mw.jit(lambda x: op(x, n=6) * 2, out_shardings=wanted)(mw.device_put(x, sharding))
                np.testing.assert_array_equal(found, 2 * evaluate(np, x, 6))
                assert found.sharding.is_equivalent_to(wanted, 2)


def test_a_split_that_its_params_do_not_tell_of_is_refused() -> None:
    rule = lambda operands, results, params: Factors.parse("i j -> i j", {"i": 8, "j": 4}, replicated=["i"])
    with own(same, rule, lambda xp, x: x.cumsum(0), split=Split(Across.RUNNING)) as op:
        assert refused(op) == (
            "own has no axis, reverse among its params, and split=Split(Across.RUNNING).\n"
            "  why:  by that, it reduces all that come before along ``axis``, or after if ``reverse``\n"
            "  fix:  params of these names in the type rule of define_op('own', …), or no split="
        )


def test_an_op_that_was_defined_anew_is_another() -> None:
    """Two ops had one name, and the same types and rules: what was compiled for the first is not what runs."""
    x = mw.device_put(np.arange(12, dtype=np.float32).reshape(4, 3), mw.NamedSharding(MESHES[1], mw.P("x")))
    programs = []
    for factor in (2, 3):
        with own(row, of_rows(), lambda xp, x, factor=factor: factor * x.sum(-1)) as op:
            np.testing.assert_array_equal(mw.jit(lambda x: op(x))(x), factor * np.asarray(x).sum(-1))
            programs.append(mw.make_program(lambda x: op(x))(np.asarray(x)))
    assert programs[0] != programs[1]


def test_devices_are_a_batch() -> None:
    with own(row, of_rows(), lambda xp, x: x.sum(-1), batch=No("it was never needed")) as op:
        assert refused(op) == (
            "own cannot be batched.\n"
            "  why:  it was never needed\n"
            "  fix:  the devices along 'x' run as a batch: define_op('own', batch=…) with a rule"
        )
