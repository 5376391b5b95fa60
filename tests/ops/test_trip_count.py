"""How often while loops run that count, beside the same loops run in NumPy, and beside what XLA finds."""

from __future__ import annotations

import random
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.core.program import Eqn
from meshwright.interop.mlir import load
from meshwright.transform.regions.trip_count import trip_count

TESTS: dict[str, Any] = {
    "lt": lambda i, n: i < n,
    "le": lambda i, n: i <= n,
    "gt": lambda i, n: i > n,
    "ge": lambda i, n: i >= n,
    "ne": lambda i, n: i != n,
}

TURNED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "ne": "ne"}


def loop_of(function: Any, *args: Any) -> Eqn:
    (found,) = [eqn for eqn in mw.make_program(function)(*args).eqns if eqn.op.name == "while"]
    return found


def counted(dtype: str, first: int, bound: int, step: int, how: str, most: int) -> int | None:
    """Steps of the loop as NumPy runs it, with its counter wrapping round; None if there are more than ``most``."""
    kind = np.dtype(dtype).type
    i, n, size = kind(first), kind(bound), kind(abs(step))
    with np.errstate(over="ignore"):
        for steps in range(most + 1):
            if not TESTS[how](i, n):
                return steps
            i = i + size if step >= 0 else i - size
    return None


def test_random_loops_run_as_often_as_is_said() -> None:
    rng = random.Random(0)
    known = 0
    for _ in range(400):
        dtype = rng.choice(["int8", "uint8", "int32"])
        low = 0 if dtype == "uint8" else -100
        first, bound, step = (rng.randrange(low, 100) for _ in range(3))
        step = rng.choice([step, 1, 1, 2, 3]) * rng.choice([1, -1])
        how, turned, last = rng.choice(list(TESTS)), rng.random() < 0.3, rng.random() < 0.3

        kind = mnp.dtype(dtype).type
        size, limit = kind(abs(step)), kind(bound)

        def test(carry: Any, limit: Any = limit, how: str = how, turned: bool = turned) -> Any:
            return TESTS[TURNED[how]](limit, carry[0]) if turned else TESTS[how](carry[0], limit)

        def body(carry: Any, size: Any = size, down: bool = step < 0, last: bool = last) -> Any:
            i, x = carry
            return i - size if down else size + i if last else i + size, x * 2

        start = kind(first)
        function = lambda x, test=test, body=body, start=start: lax.while_loop(test, body, (start, x))[1]
        found = trip_count(loop_of(function, 1.0))
        expected = counted(dtype, first, bound, step, how, 1000)
        assert found is None or found == expected, (dtype, first, bound, step, how)
        known += found is not None
    assert known > 100


def test_what_ends_a_loop_must_be_known() -> None:
    def until(limit: Any, start: Any = 0, step: Any = 1) -> Any:
        return lambda x: lax.while_loop(lambda c: c[0] < limit(c, x), lambda c: (c[0] + step, c[1] * x), (start, x))[1]

    assert trip_count(loop_of(until(lambda c, x: 7), 2.0)) == 7
    assert trip_count(loop_of(until(lambda c, x: x.astype("int32")), 2.0)) is None
    assert trip_count(loop_of(until(lambda c, x: c[1].astype("int32")), 2.0)) is None
    assert trip_count(loop_of(until(lambda c, x: 7, step=0), 2.0)) is None  # which never ends
    halving = mw.make_program(lambda x: lax.while_loop(lambda i: i > 1, lambda i: i // 2, x))(8)
    assert trip_count(halving.eqns[-1]) is None
    step = lambda c: (c[0] + c[2], c[1], c[2], c[3] * 2)
    carried = lambda x: lax.while_loop(lambda c: c[0] < c[1], step, (0, 9, 2, x))  # bound and step do not change
    assert trip_count(loop_of(carried, 1.0)) == 5


@pytest.mark.parametrize("bounds", [(0, 5), (-4, 12), (3, 5)])
def test_loops_of_jax_run_as_often_as_xla_finds(bounds: tuple[int, int]) -> None:
    def function(x: Any) -> Any:
        return jax.lax.fori_loop(*bounds, lambda i, x: jnp.sin(x) @ x, x)

    x = np.ones((4, 4), np.float32)
    (loop,) = [eqn for eqn in load(jax.jit(function).lower(x).as_text()).eqns if eqn.op.name == "while"]
    found = trip_count(loop)
    text = jax.jit(function).lower(x).compile().as_text()
    assert re.findall(r'"known_trip_count":\{"n":"(\d+)"\}', text) == [str(found)]
