"""``t(t(f)) == f``: a function transposed twice is itself, and however often it is transposed, it does not grow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import ShapeDtypeStruct, lax, make_program
from meshwright.core.dtypes import FLOAT32
from meshwright.core.op import REGISTRY, Op, Sample
from meshwright.core.program import Program
from meshwright.ops import every  # noqa: F401  (all ops)

A = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
KERNEL = np.random.default_rng(1).normal(size=(2, 3, 3, 3)).astype(np.float32)
MASK = np.array([True, False, True, False])
Case = tuple[Callable[[Any], Any], tuple[int, ...]]

# Written as two transposes write it, so that it is the same program.
ITSELF: dict[str, Case] = {
    "a number times x": (lambda x: 2 * x, (4,)),
    "x times a number": (lambda x: x * 2, (4,)),
    "an array times x": (lambda x: A[0, :4] * x, (4,)),
    "divided": (lambda x: x / 2, (4,)),
    "negated": (lambda x: -x, (4,)),
    "x @ A": (lambda x: x @ A, (3, 4)),
    "A @ x": (lambda x: A.T @ x, (4, 3)),
    "A @ vector": (lambda x: A.T @ x, (4,)),
    "dot": (lambda x: mnp.dot(x, A[:, 0]), (4,)),
    "einsum": (lambda x: mnp.einsum("bi,ij->bj", x, A), (3, 4)),
    "einsum to a sum": (lambda x: mnp.einsum("bij,ij->b", x, A), (3, 4, 5)),
    "slice": (lambda x: x[1:3], (4,)),
    "slice with steps": (lambda x: x[1::2], (7,)),
    "reversed": (lambda x: x[::-1], (6,)),
    "row": (lambda x: x[1], (4, 3)),
    "rows": (lambda x: x[np.array([0, 0, 1])], (4, 3)),
    "sum": (lambda x: x.sum(0), (4, 5)),
    "mean": (lambda x: x.mean(), (4,)),
    "broadcast": (lambda x: mnp.broadcast_to(x, (3, 4)), (4,)),
    "transposed": (lambda x: x.T, (3, 4)),
    "reshaped": (lambda x: x.reshape(2, 6), (3, 4)),
    "fan-out": (lambda x: x + 2 * x, (4,)),
    "wider fan-out": (lambda x: x * 2 + x * A[0, :4], (4,)),
    "where": (lambda x: mnp.where(MASK, x, 0.0), (4,)),
    "cond": (lambda x: lax.cond(True, lambda x: 2 * x, lambda x: x, x), (4,)),
    "scan": (lambda x: lax.scan(lambda c, row: (c + row, None), mnp.zeros(()), x)[0], (4,)),
    "scan that stacks": (lambda x: lax.scan(lambda c, _: (c * 2, c), x, None, length=3)[1], (4,)),
    "cumsum": (mnp.cumsum, (4,)),
    "convolution": (lambda x: lax.conv(x, KERNEL, (1, 1), "SAME"), (1, 3, 8, 8)),
    "strided convolution": (lambda x: lax.conv(x, KERNEL, (2, 2), "VALID"), (1, 3, 9, 9)),
    "windows": (lambda x: lax.reduce_window(x, 0.0, lax.add, (2,), (2,), "VALID"), (4,)),
    "dynamic slice": (lambda x: lax.dynamic_slice(x, (1,), (2,)), (4,)),
    "lower triangle": (mnp.tril, (4, 4)),
}

# Other programs than two transposes write, which mean the same.
STEADY: dict[str, Case] = {
    "concatenated": (lambda x: mnp.concatenate([x, 2 * x]), (4,)),
    "rolled": (lambda x: mnp.roll(x, 1), (4,)),
    "stacked": (lambda x: mnp.stack([x, x * 2]), (4,)),
    "subtracted": (lambda x: 3 * x - x, (4,)),
    "padded": (lambda x: mnp.pad(x, 1), (4,)),
    "zero in a row": (lambda x: x.at[0].set(0.0), (4,)),
    "outer": (lambda x: mnp.outer(x, A[0]), (4,)),
}


def transposed(f: Callable[[Any], Any], x: Any) -> Callable[[Any], Any]:
    return lambda ct: mw.linear_transpose(f, x)(ct)[0]


def count(program: Program) -> int:
    return sum(1 + sum(count(region) for _, region in eqn.regions()) for eqn in program.eqns)


def transposes(f: Callable[[Any], Any], x: Any, times: int) -> Iterator[Program]:
    """The programs of f, its transpose, the transpose of that, …"""
    (t,) = make_program(f)(x).out_types
    y = ShapeDtypeStruct(t.shape, t.dtype)
    for _ in range(times + 1):
        yield make_program(f)(x)
        f, x, y = transposed(f, x), y, x


@pytest.mark.parametrize("name", ITSELF)
def test_transposed_twice_a_function_is_itself(name: str) -> None:
    function, shape = ITSELF[name]
    first, once, twice, thrice = transposes(function, ShapeDtypeStruct(shape, "float32"), 3)
    assert twice == first, f"{first}\n{twice}"
    assert thrice == once


@pytest.mark.parametrize("name", STEADY)
def test_transposed_three_times_it_is_its_transpose(name: str) -> None:
    function, shape = STEADY[name]
    _, once, twice, thrice, fourth = transposes(function, ShapeDtypeStruct(shape, "float32"), 4)
    assert thrice == once and fourth == twice


@pytest.mark.parametrize("name", {**ITSELF, **STEADY})
def test_two_transposes_have_the_numbers_of_the_function(name: str) -> None:
    function, shape = {**ITSELF, **STEADY}[name]
    x = mnp.asarray(np.random.default_rng(2).normal(size=shape).astype(np.float32))
    y = function(x)
    twice = transposed(transposed(function, x), y)(x)
    np.testing.assert_allclose(twice, y, rtol=1e-5, atol=1e-5)


def linear_operands(op: Op, sample: Sample) -> Iterator[int]:
    """The operands, by number, that an op takes floats in and is linear in, each by itself."""
    types = [mnp.zeros(o.shape, o.dtype or FLOAT32).type for o in sample.operands]
    try:
        found = op.type(*types, **sample.params)
    except mw.MeshwrightError:
        return
    if isinstance(found, tuple):
        return
    results = (found,)
    for group in op.groups(types, results, sample.params):
        if len(group.operands) == 1 and types[group.operands[0]].dtype == FLOAT32 == results[0].dtype:
            yield group.operands[0]


def linear_samples() -> Iterator[tuple[str, Op, Sample, int]]:
    for name, op in sorted(REGISTRY.items()):
        if op.stack is not None or name in ("shard_map", "finish_sum"):
            continue
        for n, sample in enumerate(op.samples()):
            if sample.prepare is None:
                yield from ((f"{name} {n} in {place}", op, sample, place) for place in linear_operands(op, sample))


SAMPLES = list(linear_samples())


@pytest.mark.parametrize(("name", "op", "sample", "place"), SAMPLES, ids=[row[0] for row in SAMPLES])
def test_no_linear_op_grows_when_it_is_transposed(name: str, op: Op, sample: Sample, place: int) -> None:
    rng = np.random.default_rng(0)
    values = []
    for operand in sample.operands:
        drawn = rng.uniform(operand.low, operand.high, operand.shape).astype(operand.dtype or FLOAT32)
        values.append(mnp.asarray(drawn))

    def function(x: Any) -> Any:
        return op(*(x if n == place else value for n, value in enumerate(values)), **sample.params)

    x = ShapeDtypeStruct(values[place].shape, "float32")
    _, once, twice, thrice, fourth = transposes(function, x, 4)
    assert count(thrice) <= count(once) and count(fourth) <= count(twice), f"{once}\n{thrice}"
    y = function(values[place])
    found = transposed(transposed(function, values[place]), y)(values[place])
    np.testing.assert_allclose(found, y, rtol=1e-4, atol=1e-4)
