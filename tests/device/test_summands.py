"""Data parallelism of sums: what is linear is handed summands, what is not, their sum, at every dtype."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import dist, lax

COUNTED = np.arange(24, dtype=np.float32).reshape(8, 3)
CANCELLING = np.zeros((8, 3), np.float32)
CANCELLING[0], CANCELLING[7] = 1e10, -1e10
INTEGERS = np.random.default_rng(0).integers(-(2**31), 2**31, (8, 3)).astype(np.int32)
BYTES = INTEGERS.astype(np.int8)
LARGE = np.array([1e30, 1.0, 1e30], np.float32)

# The last is whether all of it happens before the sum over devices is taken.
PROGRAMS: dict[str, tuple[Callable[[Any], Any], Any, bool]] = {
    "a mean": (lambda x: x.mean(0), COUNTED, True),
    "a small factor": (lambda x: x.sum(0) * 0.5, COUNTED, True),
    "small factors": (lambda x: x.sum(0) * np.array([1.0, -1.0, 0.5], np.float32), COUNTED, True),
    "a large factor": (lambda x: x.sum(0) * 1e30, CANCELLING, False),
    "large factors": (lambda x: x.sum(0) * LARGE, CANCELLING, False),
    "a large factor everywhere": (lambda x: x.sum(0) * mnp.full(3, 1e30), CANCELLING, False),
    "a divisor of zero": (lambda x: x.sum(0) / 0.0, COUNTED, False),
    "a small divisor": (lambda x: x.sum(0) / 1e-30, CANCELLING, False),
    "a factor of integers": (lambda x: x.sum(0) * 1000, INTEGERS, True),
    "a quotient of integers": (lambda x: lax.div(x.sum(0), np.int32(5)), INTEGERS, False),
    "a mean made an integer": (lambda x: x.mean(0).astype("int32"), COUNTED, False),
    "an integer made a float": (lambda x: x.sum(0).astype("float32"), INTEGERS, False),
    "an integer made wider": (lambda x: lax.reduce_sum(x, (0,)).astype("int32"), BYTES, False),
    "an integer made narrower": (lambda x: x.sum(0).astype("int8"), INTEGERS, True),
    "integers filled in": (lambda x: mnp.take(x.sum(0), mnp.array([0, 7]), mode="fill"), INTEGERS, False),
    "what is written times a number": (lambda x: x.sum(0).at[mnp.array([0, 2])].multiply(3.0), COUNTED, False),
    "places that are written": (
        lambda x: mnp.zeros(8).at[mnp.abs(lax.rem(x.sum(0), np.int32(8)))].set(1.0),
        INTEGERS,
        False,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_sums_over_devices(name: str) -> None:
    function, x, handed_on = PROGRAMS[name]
    fn = dist.from_program(mw.make_program(function)(x), ["x"])
    spread = dist.data_parallel(fn.with_(device_map=dist.DeviceMap([1, 2, 3, 4])), batch={"x": 0})
    found = dist.execute(spread, [x])
    expected = np.asarray(mw.jit(function)(x))
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    ops = [eqn.op for eqn in spread.eqns]
    assert ("pmap" not in ops[ops.index("allreduce") :]) == handed_on
