"""Bools, which have no sums, and dims of size 0, in all layouts of a mesh: the same as in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.sharding import enumerate_shardings

MESH = mw.make_mesh((2, 3), ("x", "y"))
SPECS = [s.spec for s in enumerate_shardings(MESH, 2, compound=True)]
BOOLS = np.random.default_rng(0).uniform(size=(6, 4)) > 0.5
AT = np.array([4, 0, 5])

# What is computed, and the same in NumPy where it is spelled differently.
OF_BOOLS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any] | None]] = {
    "one row": (lambda b: b[2:3], None),
    "a row": (lambda b: b[4], None),
    "rows": (lambda b: b[1:5, 1:3], None),
    "every second": (lambda b: b[::2, 1::2], None),
    "a slice that is found later": (lambda b: lax.dynamic_slice(b, (b.sum() % 3, 1), (2, 2)),
                                    lambda b: b[b.sum() % 3 :][:2, 1:3]),
    "a slice that is put": (lambda b: lax.dynamic_update_slice(b, ~b[:2, :2], (b.sum() % 3, 1)), None),
    "rows by number": (lambda b: b[AT], None),
    "elements by number": (lambda b: b[AT, AT % 4], None),
    "rows that are set": (lambda b: b.at[AT].set(True), None),
    "reversed": (lambda b: b[::-1, ::-1], None),
    "rolled": (lambda b: mnp.roll(b, 2, axis=0), lambda b: np.roll(b, 2, axis=0)),
    "joined": (lambda b: mnp.concatenate([b, ~b], axis=0), lambda b: np.concatenate([b, ~b], axis=0)),
    "padded": (lambda b: mnp.pad(b, ((1, 2), (0, 1))), lambda b: np.pad(b, ((1, 2), (0, 1)))),
    "any": (lambda b: b.any(0), None),
    "all": (lambda b: b.all(1), None),
    "xor": (lambda b: b ^ b[::-1], None),
    "sorted": (lambda b: mnp.sort(b, axis=0), lambda b: np.sort(b, axis=0)),
    "reshaped": (lambda b: b.reshape(4, 6)[1:3], None),
    "turned": (lambda b: b.T[1:2], None),
    "how many": (lambda b: b.sum(0), None),
    "chosen": (lambda b: mnp.where(b[:1], b[2:3], b[3:4]), lambda b: np.where(b[:1], b[2:3], b[3:4])),
    "taken along": (lambda b: mnp.take_along_axis(b, mnp.argsort(b, axis=0), axis=0), lambda b: np.sort(b, axis=0)),
}  # fmt: skip
PLAIN: dict[str, Callable[[Any], Any]] = {
    "a slice that is put": lambda b: np.array(
        [[not b[r - b.sum() % 3, c - 1] if 0 <= r - b.sum() % 3 < 2 and 1 <= c < 3 else b[r, c] for c in range(4)]
         for r in range(6)]),
    "rows that are set": lambda b: np.where(np.isin(np.arange(6), AT)[:, None], True, b),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_BOOLS)
def test_bools(name: str) -> None:
    f, plain = OF_BOOLS[name]
    expected = (plain or PLAIN.get(name) or f)(BOOLS)
    for spec in SPECS:
        found = np.asarray(mw.jit(f)(mw.device_put(BOOLS, mw.NamedSharding(MESH, spec))))
        np.testing.assert_array_equal(found, expected, err_msg=str(spec))


NOTHING: dict[str, Callable[[Any, Any], Any]] = {
    "cumsum": lambda np_, e: np_.cumsum(e, axis=1),
    "cumprod": lambda np_, e: np_.cumprod(e, axis=1),
    "sum": lambda np_, e: e.sum(1),
    "sum of all": lambda np_, e: e.sum(),
    "prod": lambda np_, e: e.prod(1),
    "max along the other": lambda np_, e: e.max(0),
    "argmax along the other": lambda np_, e: np_.argmax(e, axis=0).astype("int32"),
    "sort": lambda np_, e: np_.sort(e, axis=1),
    "argsort": lambda np_, e: np_.argsort(e, axis=1).astype("int32"),
    "reversed": lambda np_, e: e[:, ::-1],
    "slice": lambda np_, e: e[1:3, 0:0],
    "rows": lambda np_, e: e[np.array([2, 1])],
    "by number": lambda np_, e: e[:, np.zeros(0, int)],
    "take": lambda np_, e: np_.take(e, np.zeros((2, 0), int), axis=1),
    "take along": lambda np_, e: np_.take_along_axis(e, np.zeros((4, 0), int), axis=1),
    "joined": lambda np_, e: np_.concatenate([e, np.ones((4, 3), np.float32)], axis=1),
    "joined with itself": lambda np_, e: np_.concatenate([e, e], axis=1),
    "padded": lambda np_, e: np_.pad(e, ((0, 0), (1, 2))),
    "rolled": lambda np_, e: np_.roll(e, 1, axis=1),
    "product": lambda np_, e: e @ e.T,
    "outer product": lambda np_, e: e.T @ e,
    "reshaped": lambda np_, e: e.reshape(2, 0, 6),
    "turned": lambda np_, e: e.T,
    "repeated": lambda np_, e: np_.repeat(e, 2, axis=1),
    "mean along the other": lambda np_, e: e.mean(0),
    "where": lambda np_, e: np_.where(e > 0, e, -e),
}


@pytest.mark.parametrize("name", NOTHING)
def test_dims_of_size_0(name: str) -> None:
    f, e = NOTHING[name], np.zeros((4, 0), np.float32)
    expected = f(np, e)
    slopes = mw.grad(lambda e: f(mnp, e).astype("float32").sum())
    for spec in SPECS:
        there = mw.device_put(e, mw.NamedSharding(MESH, spec))
        found = np.asarray(mw.jit(lambda e: f(mnp, e))(there))
        assert found.shape == expected.shape, spec
        np.testing.assert_array_equal(found, expected.astype(found.dtype), err_msg=str(spec))
        assert mw.jit(slopes)(there).shape == e.shape, spec


def test_other_ops_on_dims_of_size_0() -> None:
    e = np.zeros((4, 0), np.float32)
    for f in (
        lambda e: lax.cummax(e, axis=1),
        lambda e: lax.cummin(e, axis=1),
        lambda e: lax.cumlogsumexp(e, axis=1),
        lambda e: lax.top_k(e, 0)[0],
        lambda e: lax.dynamic_slice(e, (1, 0), (4, 0)),
        lambda e: e.at[:, np.zeros(0, int)].add(1.0),
        lambda e: lax.scan(lambda c, r: (c, c + r), mnp.zeros(0), e)[1],
        lambda e: mw.nn.softmax(e, axis=1),
    ):
        for spec in SPECS:
            assert mw.jit(f)(mw.device_put(e, mw.NamedSharding(MESH, spec))).shape == (4, 0)
