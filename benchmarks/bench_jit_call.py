"""A call of a small jitted function: Meshwright on NumPy against jax.jit on the same CPU.

    python benchmarks/bench_jit_call.py [--json]

The bar is 1.0: a call must not take longer than JAX's, its wait for the result included. A row named "compiled" leaves
out the handling of arguments; it says what the work alone costs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from timing import Row, compare, report, row

import meshwright as mw
import meshwright.numpy as mnp

BAR = 1.0
SHAPES = ((8,), (32, 32))


def chain(xp: Any) -> Callable[[Any, Any], Any]:
    """Ten elementwise ops."""

    def ten_ops(x: Any, y: Any) -> Any:
        a = x * y + 1.0
        b = xp.tanh(a) - x
        c = xp.exp(-b * 0.5)
        return xp.sqrt(c * c + y)

    return ten_ops


def normalize(xp: Any) -> Callable[[Any, Any], Any]:
    """Reductions and broadcasts: a softmax, scaled."""

    def softmax(x: Any, y: Any) -> Any:
        shifted = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
        return y * shifted / xp.sum(shifted, axis=-1, keepdims=True)

    return softmax


def rows() -> Iterator[Row]:
    jax.config.update("jax_platforms", "cpu")
    rng = np.random.default_rng(0)
    for make in (chain, normalize):
        for shape in SHAPES:
            x, y = (rng.uniform(0.1, 1.0, shape).astype(np.float32) for _ in range(2))
            ours, theirs = mw.jit(make(mnp)), jax.jit(make(jnp))
            our_arguments, their_arguments = (mnp.asarray(x), mnp.asarray(y)), (jnp.asarray(x), jnp.asarray(y))
            np.testing.assert_allclose(np.asarray(ours(*our_arguments)), theirs(*their_arguments), rtol=1e-5)
            (compiled,) = ours._compiled.values()
            call, alone = partial(ours, *our_arguments), partial(compiled.call, x, y)
            peer = partial(_wait_for, theirs, their_arguments)
            name = f"{ours.__name__} {shape}"
            yield row(name, compare(call, peer, repeats=41), BAR)
            yield row(f"{name} compiled", compare(alone, peer, repeats=41), BAR)


def _wait_for(function: Any, arguments: tuple[Any, ...]) -> None:
    function(*arguments).block_until_ready()


if __name__ == "__main__":
    sys.exit(report(rows(), as_json="--json" in sys.argv[1:]))
