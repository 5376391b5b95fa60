"""Dims that axes do not divide: what ops make of the padding (infinities, NaN) never reaches a result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax
from meshwright.arrays.tracing import trace_flat
from meshwright.core import tree
from meshwright.core.trace import close, to_array
from meshwright.partition.layouts import closed
from tests.partition.partitioning import assert_same

MESH = mw.make_mesh((2, 4), ("x", "y"))
ARRAY = np.random.default_rng(0).uniform(0.5, 1.5, (9, 11)).astype(np.float32)
SPECS = [
    P("x", "y"),
    P(("x", "y")),
    *(pytest.param(s, marks=pytest.mark.slow) for s in (P("y", "x"), P(None, ("y", "x")), P("y"), P(None, "x"))),
]
KERNEL = np.ones((3, 3, 1, 2), np.float32)
ROWS = np.array([8, 0, 20, -1])

# 1 / x and log x of the padding are infinite.
CASES: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: mnp.log(x).sum(0),
    "product of matrices": lambda x: (1 / x) @ (1 / x).T,
    "max": lambda x: (1 / x).max(1),
    "min": lambda x: (-1 / x).min(0),
    "prod": lambda x: (1 / x).prod(0),
    "std": lambda x: (1 / x).std(0),
    "softmax": lambda x: mw.nn.softmax(1 / x, axis=1),
    "cumsum": lambda x: mnp.cumsum((1 / x)[:, ::-1], axis=1),
    "cumprod": lambda x: mnp.cumprod(mnp.log(x), axis=0),
    "top_k": lambda x: lax.top_k(1 / x, 5)[0],
    "sort": lambda x: mnp.sort(1 / x, axis=1),
    "pad": lambda x: mnp.pad(1 / x, ((1, 2), (0, 3))).sum(),
    "concatenate": lambda x: mnp.concatenate([1 / x, mnp.log(x)], axis=0).sum(0),
    "slice": lambda x: (1 / x)[2:8, 1:].sum(1),
    "reverse": lambda x: (1 / x)[::-1].sum(1),
    "gather": lambda x: (1 / x)[ROWS].sum(0),
    "scatter": lambda x: mnp.zeros((9, 11)).at[np.arange(9) % 4].add(1 / x),
    "dynamic_slice": lambda x: lax.dynamic_slice(1 / x, (np.int32(5), np.int32(3)), (4, 8)),
    "window sums": lambda x: lax.reduce_window(1 / x, 0.0, lax.add, (3, 2), (2, 1), "SAME"),
    "window maxima": lambda x: lax.reduce_window(1 / x, -np.inf, lax.max, (3, 2), (2, 1), "SAME"),
    "convolution": lambda x: lax.conv_general_dilated(
        (1 / x)[None, :, :, None], KERNEL, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    ),
    "reshape": lambda x: (1 / x).reshape(3, 3, 11).sum(1),
    "cholesky": lambda x: mnp.linalg.cholesky(x[:, :3, None] * x[:, None, :3] + mnp.eye(3)),
}
DECISIONS: dict[str, Callable[[Any], Any]] = {
    "argmax": lambda x: mnp.argmax(1 / x, axis=1),
    "argmin": lambda x: mnp.argmin(-1 / x, axis=0),
    "all": lambda x: (1 / x < 3).all(0),
    "any": lambda x: (1 / x > 3).any(1),
}


def compare(function: Callable[[Any], Any], spec: P, what: str) -> None:
    _, in_tree = tree.flatten(((ARRAY,), {}))
    traced = trace_flat(function, in_tree, [to_array(ARRAY).type])
    program = close(traced.program, traced.captured)
    layout = closed(mw.NamedSharding(MESH, spec).to_tensor_sharding(2))
    assert_same(program, [ARRAY], MESH, [layout], [None] * len(program.out_types), what, tolerance=2e-4)


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("name", [*CASES, *DECISIONS])
def test_values(name: str, spec: P) -> None:
    compare((CASES | DECISIONS)[name], spec, name)


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str, spec: P) -> None:
    compare(mw.grad(lambda x: CASES[name](x).sum()), spec, f"gradient of {name}")


@pytest.mark.parametrize("engine", ["numpy", "xla", "xla-stacked"])
@pytest.mark.parametrize("spec", [P("x"), P("y", "x"), P(None, ("x", "y"))])
def test_weak_numbers_are_arguments_again(spec: P, engine: str) -> None:
    """What comes from Python's numbers alone is weakly typed, and so is its padding."""
    chosen = np.random.default_rng(0).random((9, 11)) < 0.5
    place = mw.NamedSharding(MESH, spec)
    f = mw.jit(lambda chosen: mnp.where(chosen, 1.5, -0.5), in_shardings=place, out_shardings=place, engine=engine)
    weak = f(mw.device_put(chosen, place))
    again = mw.jit(lambda x: lax.fori_loop(0, 3, lambda n, x: x * 2, x), engine=engine)(weak)
    expected = np.where(chosen, 12.0, -4.0).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(again), expected)
    half = mw.jit(lambda x, y: x + y, engine=engine)(weak, mnp.zeros((9, 11), "bfloat16"))
    assert half.dtype == "bfloat16"  # a weak float yields
