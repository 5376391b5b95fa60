"""Random chains of calls over all public functions, against JAX: each call by itself, and the chain as one program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
import meshwright.numpy.fft
import meshwright.numpy.linalg
from meshwright import lax, nn
from tests.numpy.calls.array_calls import ARRAY
from tests.numpy.calls.lax_calls import LAX, LAX_LINALG, NN
from tests.numpy.calls.numpy_calls import FFT, LINALG, NUMPY
from tests.numpy.calls.package_calls import PACKAGE, RANDOM, TREE
from tests.numpy.chains import WHOLE, draw_chain, drawn_names, failures
from tests.numpy.closeness import Difference

PUBLIC: dict[str, tuple[Any, dict[str, Any]]] = {
    "meshwright": (mw.__all__, PACKAGE),
    "numpy": (mnp.__all__, NUMPY),
    "numpy.linalg": (meshwright.numpy.linalg.__all__, LINALG),
    "numpy.fft": (meshwright.numpy.fft.__all__, FFT),
    "lax": (lax.__all__, LAX),
    "lax.linalg": (lax.linalg.__all__, LAX_LINALG),
    "nn": (nn.__all__, NN),
    "random": (mw.random.__all__, RANDOM),
    "tree": (mw.tree.__all__, TREE),
}


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_has_an_entry(module: str) -> None:
    names, table = PUBLIC[module]
    assert set(names) == set(table), f"tests/numpy/calls has no entry for, or one too many: {set(names) ^ set(table)}"


def test_every_method_of_arrays_has_an_entry() -> None:
    assert {name for name in dir(mnp.ones(2)) if not name.startswith("_")} <= set(ARRAY)


@contextmanager
def width(wide: bool) -> Iterator[None]:
    """64-bit types, or not, in both libraries."""
    before = mw.config.enable_x64
    mw.config.enable_x64 = wide
    try:
        with jax.enable_x64(wide):
            yield
    finally:
        mw.config.enable_x64 = before


def check(seed: int, longest: int) -> Counter[str]:
    """Draw a chain; check its calls, the derivative of one of them, and one way to run the chain whole.

    The result counts how they agree.
    """
    random = np.random.default_rng([seed, 1])
    wide = seed % 5 == 4
    mode = list(WHOLE)[seed % len(WHOLE)]
    length = min(longest, 5 + int(random.geometric(0.4)) - 1)
    found: Counter[str] = Counter()
    with width(wide):
        chain = draw_chain(seed, length, wide, concrete=False)
        one = chain.lines[int(random.integers(len(chain.lines)))]
        for line, why in failures(chain, [one], found):
            raise AssertionError(f"chain {seed}\n{chain.source(line)}\n{why}")
        try:
            found[WHOLE[mode](chain, random)] += 1
        except Difference as difference:
            raise AssertionError(f"chain {seed}, {mode}\n{chain.source()}\n{difference}") from difference
    return found


def test_chains_are_what_jax_makes_of_them() -> None:
    for seed in range(10):
        check(seed, 6)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(100))
def test_many_chains_are_what_jax_makes_of_them(block: int) -> None:
    found = sum((check(seed, 15) for seed in range(1000 + 50 * block, 1050 + 50 * block)), Counter())
    print(dict(found))
    assert found.total() >= 300 and found["wild"] <= 0.05 * found.total(), f"too many that say nothing: {found}"


@pytest.mark.slow
@pytest.mark.parametrize("name", drawn_names(), ids="".join)
def test_calls_of_every_name_are_what_jax_makes_of_them(name: tuple[str, str]) -> None:
    with width(False):
        for seed in range(6):
            chain = draw_chain([seed, *map(ord, name[1])], 2, only=[name])
            for line, why in failures(chain, chain.lines):
                raise AssertionError(f"{chain.source(line)}\n{why}")
