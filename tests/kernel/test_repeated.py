"""Functions that a kernel calls again and again are compiled: what they give stays what it was the first time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.arrays import repeated

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)

CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (lambda x, n: x + x, lambda x, n: x + x),
    "a column": (lambda x, n: x - x[:, :1], lambda x, n: x - x[:, :1]),
    "a number": (lambda x, n: x * n, lambda x, n: x * np.float32(n)),
    "divide": (lambda x, n: x / (n + 1), lambda x, n: x / np.float32(n + 1)),
    "signs of zero": (lambda x, n: x * (0.0 if n % 2 else -0.0), lambda x, n: x * np.float32(0.0 if n % 2 else -0.0)),
    "truth is no number": (
        lambda x, n: mnp.full((3, 4), True if n % 2 else 1).astype("float32"),
        lambda x, n: np.ones((3, 4), np.float32),
    ),
    "where": (lambda x, n: mnp.where(x > n - 4, x, -1.0), lambda x, n: np.where(x > n - 4, x, np.float32(-1.0))),
    "dot": (lambda x, n: mnp.dot(x, x.T) + n, lambda x, n: x @ x.T + np.float32(n)),
    "sum": (lambda x, n: x.sum(axis=n % 2), lambda x, n: x.sum(axis=n % 2)),
    "max": (lambda x, n: x.max(axis=1, keepdims=True), lambda x, n: x.max(axis=1, keepdims=True)),
    "all of it": (lambda x, n: x.sum(), lambda x, n: x.sum()),
    "reshape": (
        lambda x, n: mnp.reshape(x, (4, 3) if n % 2 else (2, 6)),
        lambda x, n: x.reshape((4, 3) if n % 2 else (2, 6)),
    ),
    "iota": (
        lambda x, n: lax.broadcasted_iota(mnp.int32, (3, 4), n % 2),
        lambda x, n: np.indices((3, 4), np.int32)[n % 2],
    ),
    "lax": (lambda x, n: lax.exp(lax.min(x, x)), lambda x, n: np.exp(x)),
    "bits": (lambda x, n: x.astype(mnp.bfloat16).astype(mnp.float32), None),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("name", CALLS)
def test_the_tenth_call_gives_what_the_first_does(name):
    ours, theirs = CALLS[name]
    found: list[Any] = []

    def kernel(x_ref: Any, out_ref: Any) -> None:
        for n in range(10):
            found.append(np.asarray(ours(x_ref[...], n)))
        out_ref[...] = x_ref[...]

    repeated._kept.clear()
    repeated._pairs.clear()
    pl.pallas_call(kernel, mw.ShapeDtypeStruct(X.shape, mnp.float32))(mnp.asarray(X))
    assert repeated._kept
    for n, value in enumerate(found):
        expected = theirs(X, n) if theirs is not None else np.asarray(ours(mnp.asarray(X), n))
        np.testing.assert_allclose(value, expected, rtol=1e-6)
        assert value.dtype == expected.dtype
        np.testing.assert_array_equal(np.signbit(value), np.signbit(expected))


def test_a_condition_that_holds_everywhere_still_promotes_and_broadcasts():
    found: list[Any] = []

    def kernel(x_ref: Any, out_ref: Any) -> None:
        whole = mnp.ones((4,), mnp.bool_)
        counts = mnp.arange(4)
        for _ in range(5):
            found.append(mnp.where(whole, counts, 0.5))
            found.append(mnp.where(whole, counts, mnp.zeros((2, 4), mnp.int32)))
        out_ref[...] = x_ref[...]

    pl.pallas_call(kernel, mw.ShapeDtypeStruct(X.shape, mnp.float32))(mnp.asarray(X))
    assert {(str(x.dtype), x.shape) for x in found} == {("float32", (4,)), ("int32", (2, 4))}


def test_a_function_that_asks_for_a_number_is_not_compiled():
    seen: list[float] = []

    @repeated.compiled_in_kernels
    def largest(x: Any) -> Any:
        return x if float(x.max()) > 1 else -x

    def kernel(x_ref: Any, out_ref: Any) -> None:
        for n in range(6):
            seen.append(float(largest(x_ref[...] * n)[0, 0]))
        out_ref[...] = x_ref[...]

    pl.pallas_call(kernel, mw.ShapeDtypeStruct(X.shape, mnp.float32))(mnp.asarray(X))
    assert seen == [-2.0 * n if 2.0 * n > 1 else 2.0 * n for n in range(6)]
