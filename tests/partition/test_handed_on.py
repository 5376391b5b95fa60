"""Programs with sums over split dims: what is not linear takes the sum itself, the rest is handed summands; and what is
read of a split dim is what was there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax
from meshwright.partition.layouts import READ
from tests.partition.partial_sums import assert_same_bits
from tests.partition.partitioning import take_ways

AUTO = mw.make_mesh((4,), ("x",))
EXPLICIT = mw.make_mesh((4,), ("x",), axis_types=(mw.AxisType.Explicit,))


def on_devices(x: Any, explicit: bool = False) -> Any:
    return mw.device_put(x, mw.NamedSharding(EXPLICIT if explicit else AUTO, P("x")))


def rows(*values: Any, dtype: str = "float32") -> Any:
    """Eight rows of three numbers, so that four devices hold two each; the rows that are not given are zeros."""
    found = np.zeros((8, 3), dtype)
    for row, value in enumerate(values):
        found[2 * row] = value
    return found


COUNTED = np.arange(24, dtype=np.float32).reshape(8, 3)
CANCELLING = rows(1e10, 0, -1e10)  # partial sums whose sum is zero
WRAPPING = rows(2**31 - 1, 2**30, -5, 17, dtype="int32")
BYTES = rows(100, 100, 100, -1, dtype="int8")
PLACES = rows([1, 0, 2], 1, [0, 2, 0], dtype="int32")
LARGE = np.array([1e30, 1.0, 1e30], np.float32)

PROGRAMS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "what is written times a number": (lambda x: x.sum(0).at[mnp.array([0, 2])].multiply(3.0), COUNTED),
    "its gradient": (mw.grad(lambda x: (x.sum(0).at[mnp.array([0, 2])].multiply(3.0) ** 2).sum()), COUNTED),
    "a mean made an integer": (lambda x: x.mean(0).astype("int32"), COUNTED),
    "a mean made a wide integer": (lambda x: x.mean(0).astype("uint64"), COUNTED),
    "a mean made a narrow integer": (lambda x: x.mean(0).astype("int8"), COUNTED),
    "a sum made a bool": (lambda x: x.sum(0).astype(bool), CANCELLING),
    "a quotient of integers": (lambda x: lax.div(x.sum(0), np.int32(5)), WRAPPING),
    "a quotient rounded down": (lambda x: x.sum(0) // 5, WRAPPING),
    "a remainder": (lambda x: x.sum(0) % 7, WRAPPING),
    "an integer made a float": (lambda x: lax.reduce_sum(x, (0,)).astype("float32"), WRAPPING),
    "an integer made wider": (lambda x: lax.reduce_sum(x, (0,)).astype("int32"), BYTES),
    "an integer made narrower": (lambda x: lax.reduce_sum(x, (0,)).astype("int8"), WRAPPING),
    "a product that is wider": (
        lambda x: lax.dot(lax.reduce_sum(x, (0,)), mnp.ones((3, 2), "int8"), preferred_element_type="int32"),
        BYTES,
    ),
    "a sum that is wider": (lambda x: lax.reduce_sum(x, (0,)).sum(dtype="int32"), BYTES),
    "integers filled in": (lambda x: mnp.take(x.sum(0), mnp.array([0, 7]), mode="fill"), WRAPPING),
    "places that are read": (lambda at: mnp.arange(8.0)[at.sum(0)], PLACES),
    "places that are written": (lambda at: mnp.zeros(8).at[at.sum(0)].set(1.0), PLACES),
    "places that are added to": (lambda at: mnp.zeros(8).at[at.sum(0)].add(1.0), PLACES),
    "where a slice begins": (lambda at: lax.dynamic_slice(mnp.arange(8.0), (at.sum(0)[0],), (2,)), PLACES),
    "where a slice is written": (
        lambda at: lax.dynamic_update_slice(mnp.zeros(8), mnp.ones(2), (at.sum(0)[0],)),
        PLACES,
    ),
    "a large factor": (lambda x: x.sum(0) * 1e30, CANCELLING),
    "large factors": (lambda x: x.sum(0) * LARGE, CANCELLING),
    "a large factor everywhere": (lambda x: x.sum(0) * mnp.full(3, 1e30), CANCELLING),
    "large factors that are computed": (lambda x: x.sum(0) * (mnp.arange(3) * 1e30), CANCELLING),
    "a large matrix": (lambda x: x.sum(0) @ (mnp.eye(3) * 1e30), CANCELLING),
    "a large matrix of complex numbers": (lambda x: (x.sum(0) * (1 + 1j)) * 1e30, CANCELLING),
    "a small divisor": (lambda x: x.sum(0) / 1e-30, CANCELLING),
    "a divisor of zero": (lambda x: x.sum(0) / 0.0, COUNTED),
    "divisors of zero": (lambda x: x.sum(0) / mnp.zeros(3), COUNTED),
    "a factor of infinity": (lambda x: x.sum(0) * mnp.inf, rows(1.0)),
    "a large factor in a branch": (lambda x: lax.cond(True, lambda y: y * 1e30, lambda y: y, x.sum(0)), CANCELLING),
    "a large factor in a loop": (lambda x: lax.fori_loop(0, 2, lambda _, y: y * 1e30, x.sum(0)), CANCELLING),
}


@pytest.mark.parametrize("explicit", [False, True], ids=["auto", "explicit"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_takes_the_sum_itself(name: str, explicit: bool) -> None:
    function, x = PROGRAMS[name]
    found = mw.jit(function)(on_devices(x, explicit))
    assert_same_bits(np.asarray(found), np.asarray(mw.jit(function)(x)), name)


HANDED_ON: dict[str, Callable[[Any, Any], Any]] = {
    "a factor that is not known": lambda x, y: x.sum(0) * y + x[:, ::-1].sum(0),
    "a factor of at most one": lambda x, y: x.sum(0) * 0.5 + (x * x).sum(0),
    "factors of at most one": lambda x, y: x.sum(0) * mnp.array([1.0, -0.5, 0.0]) + (x * x).sum(0),
    "a mean": lambda x, y: x.mean(0) - (x * x).mean(0),
    "a product": lambda x, y: mnp.outer(x.sum(0), y) + mnp.outer((x * x).sum(0), y),
    "a read that is contracted": lambda x, y: mnp.einsum("kd,k->d", x[mnp.array([1, 6, 3])], y) + x.sum(0),
    "a choice": lambda x, y: mnp.where(y > 0, x.sum(0), (x * x).sum(0)),
    "one that is written into another": lambda x, y: x.sum(0).at[1:].set((x * x).sum(0)[1:]),
    "a narrower integer": lambda x, y: (
        x.astype("int32").sum(0).astype("int8") + (x * x).astype("int32").sum(0).astype("int8")
    ),
}


@pytest.mark.parametrize("name", HANDED_ON)
def test_what_is_handed_on_as_summands(name: str) -> None:
    """Two sums that meet are taken by one collective of what they have become."""
    function = HANDED_ON[name]
    x = on_devices(COUNTED)
    y = mnp.array([1.5, -2.0, 3.0])
    compiled = mw.jit(function).lower(x, y).compile()
    assert [one.kind for one in compiled.collectives] == ["all_reduce"]
    np.testing.assert_allclose(np.asarray(compiled(x, y)), np.asarray(mw.jit(function)(COUNTED, y)), rtol=1e-5)


READ_BACK: dict[str, Callable[[Any, Any], Any]] = {
    "an element": lambda x, at: x[6],
    "an element at an index": lambda x, at: x[at],
    "elements": lambda x, at: x[mnp.array([0, 2, 6])],
    "a slice": lambda x, at: x[2:3],
    "a slice at an index": lambda x, at: lax.dynamic_slice(x, (at,), (2,)),
    "elements and what is outside": lambda x, at: mnp.take(x, mnp.array([2, 99]), mode="fill", fill_value=-0.0),
    "an element of the other sign": lambda x, at: -x[7],
    "an element times infinity": lambda x, at: x[at + 1] * mnp.exp(x[at + 1] * 1e3),
    "elements added up": lambda x, at: x[0] + x[at],
}


@pytest.fixture
def reads_as_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read from a split dim is read by the device that holds it, whatever that costs."""
    take_ways(monkeypatch, lambda ways: [way for way in ways if way.factors.combine == READ])


NUMBERS_ALONE = ("an element of the other sign", "an element times infinity")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "int32", "bool"])
@pytest.mark.parametrize("name", READ_BACK)
def test_what_is_read_of_a_split_dim_is_what_was_there(reads_as_sums: None, name: str, dtype: str) -> None:
    values = np.array([-0.0, 1.0, -0.0, 2.0, -0.0, np.inf, -0.0, 0.0])
    if dtype in ("int32", "bool"):
        values = np.where(np.isinf(values), 2**31 - 1, values)
    if dtype == "bool" and name in NUMBERS_ALONE:
        pytest.skip("bools have no sign")
    x, at = np.asarray(mnp.array(values).astype(dtype)), np.int32(2)
    found = mw.jit(READ_BACK[name])(on_devices(x), at)
    assert_same_bits(np.asarray(found), np.asarray(mw.jit(READ_BACK[name])(x, at)), name)
