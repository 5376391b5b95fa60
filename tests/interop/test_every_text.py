"""Every op on every dtype, and on arrays with dims of size 0 and 1, as HLO and as StableHLO: XLA runs both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.core import dtypes
from meshwright.core.op import REGISTRY, No, Op
from meshwright.core.program import Program
from meshwright.core.trace import run as run_program
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError
from meshwright.interop import mlir
from meshwright.interop.hlo import hlo_text
from tests.interop import hlo_by_xla
from tests.interop.test_load_and_dump import CASES, LEFT_OUT, arrays, by_xla, program_of
from tests.ops.drawing import draw, rng


@contextmanager
def wide() -> Iterator[None]:
    before, dtypes.config.enable_x64 = dtypes.config.enable_x64, True
    try:
        with jax.enable_x64(True):
            yield
    finally:
        dtypes.config.enable_x64 = before


class Call(NamedTuple):
    """A call of an op, and what it is in words."""

    name: str
    program: Program
    values: list[Any]


def shrunk(op: Op, values: list[Any], params: Any) -> Iterator[tuple[list[Any], Any]]:
    """The call with one factor after the other of size 1, and of size 0, where there is such a call."""
    if isinstance(op.factors, No):
        return
    types = [TensorType(x.shape, x.dtype) for x in values]
    made = op.type(*types, **params)
    results = list(made) if isinstance(made, tuple) else [made]
    rule = op.factors(types, results, params)
    for factor in sorted(rule.sizes):
        for size in (1, 0):
            sizes = {**rule.sizes, factor: size}

            def smaller(t: TensorType, dims: Any, sizes: dict[str, int] = sizes) -> TensorType:
                filled = [prod(rule.sizes[f] for f in dim) == n for dim, n in zip(dims, t.shape, strict=True)]
                shape = [prod(sizes[f] for f in dim) for dim in dims]
                return t.with_(shape=tuple(new if f else n for new, f, n in zip(shape, filled, t.shape, strict=True)))

            ins = [smaller(t, dims) for t, dims in zip(types, rule.operands, strict=True)]
            outs = [smaller(t, dims) for t, dims in zip(results, rule.results, strict=True)]
            cut = [np.ascontiguousarray(x[tuple(map(slice, t.shape))]) for x, t in zip(values, ins, strict=True)]
            if rule.sizes[factor] <= size:
                continue
            for localized in (True, False)[: 1 if factor in rule.separable else 2]:
                try:
                    given = op.localize(params, ins, outs) if localized else params
                    op.type(*ins, **given)
                except (MeshwrightError, ValueError, IndexError, ZeroDivisionError):
                    continue  # no such call
                yield cut, given
                break


def calls_of(op: Op, index: int, dtype: Any) -> Iterator[Call]:
    sample = op.samples()[index]
    values = list(draw(sample, dtype, op.name, index, str(dtype)))
    for given, params in [(values, sample.params), *shrunk(op, values, sample.params)]:
        shapes = " ".join(str(list(x.shape)) for x in given)
        try:
            yield Call(f"{op.name}-{index} of {dtype} {shapes}", program_of(op, given, params), given)
        except MeshwrightError:
            continue  # which takes no arrays of these sizes


def tolerance(dtype: Any) -> float:
    return 0.0 if dtype.kind in "biu" else {1: 0.5, 2: 2e-2}.get(dtype.itemsize, 1e-4)


def check_call(call: Call) -> None:
    """XLA takes the module in both languages, and computes what the NumPy engine computes."""
    expected = [x.data for x in run_program(call.program, arrays(call.values))]
    text = hlo_text(call.program)
    for found in (
        [parts[0] for parts in hlo_by_xla.run(text, [[x] for x in call.values])],
        by_xla(mlir.dump(call.program), call.values),
    ):
        for one, other in zip(found, expected, strict=True):
            x, y = np.asarray(one), np.asarray(other)
            assert (x.shape, x.dtype) == (y.shape, y.dtype), call.name
            kind = np.complex128 if x.dtype.kind == "c" else np.float64
            near = tolerance(x.dtype)
            with np.errstate(invalid="ignore"):
                left, right = x.astype(kind), y.astype(kind)
            np.testing.assert_allclose(left, right, rtol=near, atol=near, err_msg=call.name)


def dtypes_of(op: Op, index: int) -> tuple[Any, ...]:
    """Those that operands may have, without f8, whose rounding differs from op to op."""
    free = any(operand.dtype is None for operand in op.samples()[index].operands)
    return tuple(d for d in op.dtypes if d.itemsize > 1 or d.kind in "biu") if free else op.dtypes[:1]


EVERY = [(op, index, dtype) for op, index in CASES for dtype in dtypes_of(op, index)]


def test_a_sample_of_all_calls() -> None:
    generator = rng("texts")
    with wide():
        for n in generator.choice(len(EVERY), 20, replace=False):
            calls = list(calls_of(*EVERY[n]))
            check_call(calls[generator.integers(len(calls))])


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({op.name for op, _ in CASES}))
def test_every_call(name: str) -> None:
    with wide():
        for op, index, dtype in EVERY:
            if op.name == name:
                for call in calls_of(op, index, dtype):
                    check_call(call)


def call(function: Any, *values: Any) -> Call:
    return Call("", mw.make_program(function)(*map(mnp.asarray, values)), [np.asarray(x) for x in values])


NUMBERS = np.array([3.0, -1.0, 2.0, -1.0], np.float32)
PAIRS = np.array([2 + 1j, 1 - 1j, 2 - 3j, complex(np.nan, 1), complex(1, np.nan), -0.0 + 5j, 0.0 - 5j], np.complex64)
TIED = np.array([[2, 3, 4, 2], [3, 2, 3, 1], [4, 4, 1, 3]], np.float32)


def running(x: Any) -> Any:
    return lax.scan(lambda c, row: (c + row, c * row), mnp.ones(2), x)


def nothing(x: Any) -> Any:
    return lax.scan(lambda c, _: (c * 2, c), x, None, length=0)


def pool_slopes(x: Any) -> Any:
    pool = lambda x: lax.reduce_window(x, -np.inf, lax.max, (2, 2), (1, 1), ((1, 0), (0, 1)))
    return mw.vjp(pool, x)[1](mnp.arange(12.0).reshape(3, 4))[0]


def pool_tangents(x: Any) -> Any:
    pool = lambda x: lax.reduce_window(x, -np.inf, lax.max, (2, 2), (1, 2), "VALID", window_dilation=(2, 1))
    return mw.jvp(pool, (x,), (mnp.arange(12.0).reshape(3, 4),))[1]


def dilated_slopes(x: Any) -> Any:
    pool = lambda x: lax.reduce_window(x, -np.inf, lax.max, (2, 2), (1, 1), ((1, 0), (0, 1)), (2, 1), (1, 2))
    return mw.vjp(pool, x)[1](mnp.arange(15.0).reshape(5, 3))[0]


def sums(x: Any) -> Any:
    return x.sum(1), mnp.cumsum(x, 1), mnp.prod(x[:, :9], 1)


def solve(a: Any, b: Any) -> Any:
    return lax.linalg.triangular_solve(a, b, left_side=True, lower=True, conjugate_a=True)


LOWER = np.array([[1 + 1j, 0], [2 - 1j, 1 - 2j]], np.complex64)
FOUND = {
    "a complex sort": (mnp.sort, PAIRS),
    "a sort by several keys": (lambda x: lax.sort((x.real > 1, x, mnp.arange(7)), num_keys=2), PAIRS),
    "a running sum of nothing": (lambda x: mnp.cumsum(x, 0), np.zeros((0, 3), np.float32)),
    "a loop over nothing": (running, np.zeros((0, 2), np.float32)),
    "a loop of no steps": (nothing, NUMBERS),
    "the sign of natural numbers": (mnp.sign, np.array([0, 3, 255], np.uint8)),
    "natural numbers joined by and": (lambda x: lax.reduce_and(x, (0,)), np.array([7, 13], np.uint8)),
    "a conjugate matrix": (solve, LOWER, np.array([[1 + 2j], [3j]], np.complex64)),
    "equal elements beside padding": (pool_slopes, TIED),
    "tangents of a pool": (pool_tangents, TIED),
    "windows with holes": (dilated_slopes, TIED),
    "narrow sums": (sums, np.full((3, 4096), 0.5, "bfloat16")),
    "a running logsumexp": (lambda x: lax.cumlogsumexp(x, reverse=True), NUMBERS * np.float32([1, 90, -np.inf, 90])),
    "a product with nothing": (mnp.matmul, np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32)),
}


@pytest.mark.parametrize("case", FOUND)
def test_what_xla_would_refuse_or_compute_otherwise(case: str) -> None:
    check_call(call(*FOUND[case]))


def test_sums_of_narrow_floats_are_as_exact_as_those_of_jax() -> None:
    """Added up one by one in bf16, they would not get beyond 4."""
    x = np.full((4096,), 0.01, "bfloat16")
    text = hlo_text(mw.make_program(mnp.sum)(mnp.asarray(x)))
    (found,) = hlo_by_xla.run(text, [[x]])[0]
    assert float(found) == float(jnp.sum(x)) == float(mnp.sum(mnp.asarray(x)))


def test_every_first_order_op_is_written() -> None:
    told = {op.name for op, _ in CASES}
    collectives = {op.name for op in REGISTRY.values() if op.stack is not None}
    assert {op.name for op in REGISTRY.values() if op.samples()} <= told | collectives | LEFT_OUT
