"""What depends on what is seen through regions: a loop that carries a counter beside what is linear is transposed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax

Step = Callable[[Any, Any], Any]


def in_a_while(step: Step) -> Step:
    def wrapped(carry: Any, _: Any) -> Any:
        return lax.fori_loop(0, mnp.asarray(2), lambda i, c: step(c, None)[0], carry), None

    return wrapped


# Regions around the step of a loop, and whether the derivative can be run backward through them.
REGIONS: dict[str, tuple[Callable[[Step], Step], bool]] = {
    "nothing": (lambda step: step, True),
    "checkpoint": (mw.checkpoint, True),
    "checkpoint twice": (lambda step: mw.checkpoint(mw.checkpoint(step)), True),
    "cond": (lambda step: lambda c, _: lax.cond(c[1] > 5, lambda c: step(c, None), lambda c: (c, None), c), True),
    "scan": (lambda step: lambda c, _: lax.scan(step, c, None, length=2), True),
    "scan of no steps": (lambda step: lambda c, _: lax.scan(step, c, None, length=0), True),
    "checkpoint in a scan": (lambda step: lambda c, _: lax.scan(mw.checkpoint(step), c, None, length=2), True),
    "while": (in_a_while, False),
}


def looped(region: str) -> Callable[[Any], Any]:
    """A function that is linear in x, beside which its loop carries what is squared in every step."""
    wrap, _ = REGIONS[region]

    def step(carry: Any, _: Any) -> Any:
        x, counter = carry
        return (x * counter + x, counter * counter * 0.1 + 1.0), None

    return lambda x: lax.scan(wrap(step), (x, mnp.asarray(3.0, mnp.float32)), None, length=3)[0][0]


@pytest.mark.parametrize("region", [name for name, (_, backward) in REGIONS.items() if backward])
def test_a_linear_loop_is_transposed(region: str) -> None:
    f = looped(region)
    x = np.float32(0.7)
    (found,) = mw.linear_transpose(f, x)(mnp.ones((), mnp.float32))
    np.testing.assert_allclose(found, f(mnp.ones((), mnp.float32)), rtol=1e-6)


@pytest.mark.parametrize("region", REGIONS)
def test_only_what_depends_on_the_argument_has_a_tangent(region: str) -> None:
    """The tangent program carries one value: that of the counter is zero, and is not there."""
    f = looped(region)
    x = np.float32(0.7)
    value, tangent = mw.jvp(f, (x,), (np.float32(1.0),))
    np.testing.assert_allclose(value, f(x), rtol=1e-6)
    np.testing.assert_allclose(tangent, f(mnp.ones((), mnp.float32)), rtol=1e-6)
    (scan,) = [eqn for eqn in mw.make_program(lambda x: mw.jvp(f, (x,), (x,))[1])(x).eqns if eqn.op.name == "scan"]
    assert scan.params["carry"] == 3
