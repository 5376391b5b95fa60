"""``t(t(f)) == f``: a function transposed twice is itself, and however often it is transposed, it does not grow."""

from __future__ import annotations

from collections import Counter
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
from meshwright.transform import every_op as every  # noqa: F401  (all ops)

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
    "concatenated": (lambda x: mnp.concatenate([x, 2 * x]), (4,)),
    "concatenated, of three": (lambda x: mnp.concatenate([x, 2 * x, x[:1]]), (4,)),
    "rolled": (lambda x: mnp.roll(x, 1), (4,)),
    "rolled along a dim": (lambda x: mnp.roll(x, 2, 1), (3, 4)),
    "stacked": (lambda x: mnp.stack([x, x * 2]), (4,)),
    "subtracted": (lambda x: 3 * x - x, (4,)),
    "without its mean": (lambda x: x - x.mean(), (4,)),
    "without the sums of rows": (lambda x: x - x.sum(1, keepdims=True), (3, 4)),
    "without itself reversed": (lambda x: x - x[::-1], (4,)),
    "differences": (mnp.diff, (4,)),
    "with its negative": (lambda x: 3 * x + (-x), (4,)),
    "padded": (lambda x: mnp.pad(x, 1), (4,)),
    "tiled": (lambda x: mnp.tile(x, 3), (4,)),
    "repeated": (lambda x: mnp.repeat(x, 2, 0), (3, 4)),
    "zero in a row": (lambda x: x.at[0].set(0.0), (4, 3)),
    "a new dim": (lambda x: x[:, None] * A, (4,)),
    "a scalar in an array": (lambda x: x * A, ()),
}

# As above, with equations that do not need each other in another order.
REORDERED: dict[str, Case] = {
    "split": (lambda x: mnp.stack(mnp.split(x, 3)), (6,)),
    "outer": (lambda x: mnp.outer(x, A[0]), (4,)),
    "sum of three": (lambda x: x + 2 * x + 3 * x, (4,)),
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


@pytest.mark.parametrize("name", REORDERED)
def test_transposed_twice_it_is_itself_in_another_order(name: str) -> None:
    function, shape = REORDERED[name]
    first, once, twice, thrice = transposes(function, ShapeDtypeStruct(shape, "float32"), 3)
    assert meaning(twice) == meaning(first), f"{first}\n{twice}"
    assert meaning(thrice) == meaning(once)


@pytest.mark.parametrize("name", {**ITSELF, **REORDERED})
def test_two_transposes_have_the_numbers_of_the_function(name: str) -> None:
    function, shape = {**ITSELF, **REORDERED}[name]
    x = mnp.asarray(np.random.default_rng(2).normal(size=shape).astype(np.float32))
    y = function(x)
    twice = transposed(transposed(function, x), y)(x)
    np.testing.assert_allclose(twice, y, rtol=1e-5, atol=1e-5)


def meaning(program: Program) -> Any:
    """A program without the order of its equations and of the summands of an ``add``: what each output is, and how
    often anything is computed."""
    known: dict[Any, Any] = {var: ("input", n) for n, var in enumerate(program.inputs)}
    known.update((var, ("constant", np.asarray(data).tobytes())) for var, data in program.constants)
    counts: Counter[Any] = Counter()

    def of(atom: Any) -> Any:
        return known[atom] if atom in known else ("number", repr(atom))

    def param(value: Any) -> Any:
        if isinstance(value, Program):
            return meaning(value)
        return tuple(map(param, value)) if isinstance(value, tuple) else repr(value)

    for eqn in program.eqns:
        inputs = [of(a) for a in eqn.inputs]
        inputs = sorted(inputs, key=repr) if eqn.op.name == "add" else inputs
        params = tuple((name, param(value)) for name, value in sorted(eqn.params.items()))
        key = hash((eqn.op.name, tuple(inputs), params))
        counts[key] += 1
        known.update((out, (key, n)) for n, out in enumerate(eqn.outputs))
    return tuple(of(a) for a in program.outputs), frozenset(counts.items())


# Steps to draw programs from: each takes any array of one dim or more whose first dim is longer than 1


def weights(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


STEPS: dict[str, Callable[[Any], Any]] = {
    "double": lambda x: 2 * x,
    "halve": lambda x: x / 2,
    "negate": lambda x: -x,
    "weigh": lambda x: x * weights(*x.shape),
    "rows": lambda x: x[: max(2, x.shape[0] // 2)],
    "steps": lambda x: mnp.concatenate([x, x])[::2],
    "roll": lambda x: mnp.roll(x, 1, 0),
    "roll last": lambda x: mnp.roll(x, 1, -1),
    "pad": lambda x: mnp.pad(x, 1),
    "concatenate": lambda x: mnp.concatenate([x, 2 * x]),
    "stack": lambda x: mnp.stack([x, x * 2]) if x.ndim < 3 else x * 5,
    "with itself": lambda x: x + 2 * x,
    "with two": lambda x: x + 2 * x + 3 * x,
    "without itself": lambda x: 3 * x - x,
    "without mean": lambda x: x - x.mean(),
    "without reversed": lambda x: x - x[::-1],
    "without sums": lambda x: x - x.sum(-1, keepdims=True) if x.shape[-1] > 1 else x * 2,
    "halves": lambda x: (lambda one, two: two - 2 * one)(*mnp.split(mnp.concatenate([x, x]), 2)),
    "differences": lambda x: mnp.diff(mnp.concatenate([x, x]), axis=0),
    "turn": lambda x: x.T if x.shape[-1] > 1 else x * 3,
    "column": lambda x: x.reshape(-1, 1),
    "repeat": lambda x: mnp.repeat(x, 2, 0),
    "tile": lambda x: mnp.tile(x, 2),
    "broadcast": lambda x: mnp.broadcast_to(x, (2, *x.shape)) if x.ndim < 3 else x / 4,
    "matmul": lambda x: x @ weights(x.shape[-1], 3),
    "matmul from the left": lambda x: weights(3, x.shape[0]) @ x if x.ndim == 2 else x * 2,
    "einsum": lambda x: mnp.einsum("...i,ij->j...", x, weights(x.shape[-1], 2)),
    "outer": lambda x: mnp.outer(x[..., 0].reshape(-1), weights(3)),
    "new dim": lambda x: x[..., None] * weights(x.shape[-1], 2) if x.ndim < 3 else x * 7,
    "mask": lambda x: mnp.where(weights(*x.shape) > 0, x, 0.0),
    "reverse": lambda x: x[::-1],
    "cumsum": lambda x: mnp.cumsum(x, 0),
    "take": lambda x: x[np.array([0, 0, x.shape[0] - 1])],
    "cond": lambda x: lax.cond(True, lambda x: 2 * x, lambda x: x, x),
    "scan": lambda x: lax.scan(lambda c, row: (c + row, c * 2), mnp.zeros(x.shape[1:]), x)[1],
    "jit": mw.jit(lambda x: x * 2),
    "vmap": lambda x: mw.vmap(lambda row: row * 3)(x),
    "checkpoint": mw.checkpoint(lambda x: x * 3),
}


def check_composition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = [list(STEPS)[n] for n in rng.integers(len(STEPS), size=rng.integers(2, 5))]

    def function(x: Any) -> Any:
        for name in names:
            x = STEPS[name](x)
        return x

    first, once, twice, thrice = transposes(function, ShapeDtypeStruct((4, 6), "float32"), 3)
    assert meaning(twice) == meaning(first), f"seed {seed}: {names}\n{first}\n{twice}"
    assert meaning(thrice) == meaning(once), f"seed {seed}: {names}"


@pytest.mark.parametrize("start", range(0, 60, 10))
def test_a_composition_transposed_twice_is_itself(start: int) -> None:
    for seed in range(start, start + 10):
        check_composition(seed)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(100, 1100, 100))
def test_many_compositions_transposed_twice_are_themselves(start: int) -> None:
    for seed in range(start, start + 100):
        check_composition(seed)


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


# What two transposes write in another way: t(t(t(f))) is t(f) for them, too.
OTHERWISE = {
    "concatenate 3 in 0": "of one operand it does nothing",
    "reduce_sum 3 in 0": "over no dims it does nothing",
    "checkpoint_name 0 in 0": "it does nothing",
    "offload 0 in 0": "cotangents stay on the device",
    "reload 0 in 0": "cotangents stay on the device",
    "stop_gradient 0 in 0": "it does nothing",
    "conv_general_dilated 1 in 0": "padding that no window reaches is left out",
    "conv_general_dilated 1 in 1": "padding that no window reaches is left out",
    "conv_general_dilated 7 in 0": "groups of the batch become groups of features",
    "conv_general_dilated 7 in 1": "padding that no window reaches is left out",
    "conv_general_dilated 11 in 0": "what no window reaches is cut off",
    "conv_general_dilated 11 in 1": "what no window reaches is cut off",
    "conv_general_dilated 12 in 0": "a result without elements sends back zeros",
    "conv_general_dilated 12 in 1": "a result without elements sends back zeros",
    "dot_general 6 in 0": "a transpose that brings dims into its order stands by itself",
    "dot_general 6 in 1": "a transpose that brings dims into its order stands by itself",
    "dot_general 7 in 0": "a transpose that brings dims into its order stands by itself",
    "dot_general 7 in 1": "a transpose that brings dims into its order stands by itself",
    "dot_general 8 in 0": "a transpose that brings dims into its order stands by itself",
    "dot_general 8 in 1": "a transpose that brings dims into its order stands by itself",
    "dot_general 9 in 0": "a transpose that brings dims into its order stands by itself",
    "dot_general 9 in 1": "a transpose that brings dims into its order stands by itself",
    "gather 1 in 0": "what is read outside is NaN, of a linear function zero",
    "slice 1 in 0": "the limit is after the last element, and not between two",
}


@pytest.mark.parametrize(("name", "op", "sample", "place"), SAMPLES, ids=[row[0] for row in SAMPLES])
def test_every_linear_op_transposed_twice_is_itself(name: str, op: Op, sample: Sample, place: int) -> None:
    rng = np.random.default_rng(0)
    values = []
    for operand in sample.operands:
        drawn = rng.uniform(operand.low, operand.high, operand.shape).astype(operand.dtype or FLOAT32)
        values.append(mnp.asarray(drawn))

    def function(x: Any) -> Any:
        return op(*(x if n == place else value for n, value in enumerate(values)), **sample.params)

    x = ShapeDtypeStruct(values[place].shape, "float32")
    first, once, twice, thrice, fourth = transposes(function, x, 4)
    assert (meaning(twice) == meaning(first)) == (name not in OTHERWISE), f"{first}\n{twice}"
    assert count(thrice) <= count(once) and count(fourth) <= count(twice), f"{once}\n{thrice}"
    y = function(values[place])
    found = transposed(transposed(function, values[place]), y)(values[place])
    np.testing.assert_allclose(found, y, rtol=1e-4, atol=1e-4)


def test_a_rule_that_users_write_sees_the_negative() -> None:
    """It need not be linear: what is subtracted sends back a negative, which goes through such a rule as it is."""

    @mw.custom_vjp
    def clipped(x: Any) -> Any:
        return 2 * x

    @mw.custom_jvp
    def difference(x: Any, y: Any) -> Any:
        return x - y

    clipped.defvjp(lambda x: (2 * x, None), lambda _, ct: (mnp.clip(ct, 0, 1),))
    difference.defjvp(lambda xs, ts: (xs[0] - xs[1], lax.sub(*ts)))
    for function in (lambda x: 3 * x - clipped(x), lambda x: difference(3 * x, mw.jit(clipped)(x))):
        assert mw.grad(function)(1.0) == mw.jit(mw.grad(function))(1.0) == 3.0
