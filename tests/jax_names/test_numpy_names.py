"""Functions and parameters of ``jax.numpy``, ``jax.nn`` and ``jax.numpy.fft`` that few programs use, against JAX.

Each line is evaluated on both; what JAX refuses is refused with an error of ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import meshwright as mw
import meshwright.jax as ours
from tests.numpy.against_jax import same

LINES = [line for line in (Path(__file__).parent / "numpy_calls.txt").read_text().splitlines() if line.strip()]


def evaluated(j: Any, text: str) -> Any:
    return eval(text, {"j": j, "np": np, "np_": j.numpy, "nn": j.nn, "lax": j.lax})


def check(text: str) -> None:
    try:
        expected = evaluated(jax, text)
    except Exception as error:
        with pytest.raises(mw.MeshwrightError):
            pytest.fail(f"{text} is accepted: {evaluated(ours, text)}; JAX: {error}")
        return
    try:
        same(evaluated(ours, text), expected)
    except AssertionError as difference:
        raise AssertionError(f"{text}\n{difference}") from difference


@pytest.fixture(autouse=True)
def narrow() -> Iterator[None]:
    before, mw.config.enable_x64 = mw.config.enable_x64, False
    yield
    mw.config.enable_x64 = before


def test_some_calls_give_what_jax_gives() -> None:
    for text in LINES[::4]:
        check(text)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_calls_give_what_jax_gives(part: int) -> None:
    for text in LINES[part::8]:
        check(text)


# Functions of x: f32[8, 4], which lies on a mesh of 2 x 4 devices.
OF_ONE = """
np_.unwrap(x * 4, axis=0)
np_.gradient(x, np_.arange(8.0) ** 1.5, axis=0)
np_.interp(x, np_.array([0.0, 0.5, 1.5]), np_.array([1.0, 3.0, 2.0]), period=2.0)
np_.quantile(x, 0.3, axis=0, method='inverted_cdf')
np_.quantile(x, 0.3, axis=1, weights=np_.abs(x), method='inverted_cdf')
np_.nanmax(x, axis=0, initial=0.1, where=x > 0)
np_.nanvar(x, axis=1, mean=np_.ones((8, 1)), where=x > 0)
np_.frexp(x)[0]
np_.cov(x, aweights=np_.arange(4.0) + 1, fweights=np_.arange(4))
np_.add.reduceat(x, np_.array([0, 3, 2]))
np_.maximum.reduce(x, axis=1)
np_.logaddexp.accumulate(x, axis=0)
np_.subtract.outer(x, x[0])
np_.place(x, x > 0, x[0], inplace=False)
np_.put(x, np_.array([1, 9]), x[0, :2], inplace=False)
np_.insert(x, np_.array([1, 5]), x[0], axis=0)
np_.delete(x, np_.array([1, 5]), axis=0, assume_unique_indices=True)
np_.compress(x[:, 0] > 0, x, axis=0, size=5, fill_value=2)
np_.piecewise(x, [x > 0.5, x < -0.5], [1.0, lambda x: x * x, lambda x: -x])
np_.diff(x, axis=0, prepend=x[:1], append=1.0)
np_.apply_over_axes(np_.sum, x, (0, 1))
np_.polydiv(x[:, 0], x[:3, 1] + 4)
np_.histogramdd(x[:, :2], bins=3)[0]
np_.union1d(np_.round(x), np_.round(2 * x), size=6)
np_.packbits(x > 0, axis=0)
np_.sort_complex(x)
np_.fft.hfft(x, axis=0)
np_.fft.ihfft(x, axis=0)
np_.c_[x, x[:, 0]]
nn.logmeanexp(x, axis=0)
nn.log1mexp(np_.abs(x) + 0.1)
nn.sparse_plus(x)
nn.dot_product_attention(x[:, :, None, None], x[:, :, None, None], x[:, :, None, None], local_window_size=(1, 1), query_seq_lengths=np_.arange(8) % 5)
"""  # noqa: E501


def sharded(j: Any, x: Any, *names: str | None) -> Any:
    kind = j.sharding.AxisType.Auto
    mesh = j.make_mesh((2, 4), ("i", "j"), axis_types=(kind, kind))
    return j.device_put(x, j.NamedSharding(mesh, j.P(*names)))


def with_slope(j: Any, text: str) -> Any:
    """A function of x, and the gradient of a sum of its results where there is one."""
    function = eval(f"lambda x: {text}", {"np_": j.numpy, "nn": j.nn, "lax": j.lax})
    floats = lambda out: [y for y in j.tree.leaves(out) if j.numpy.issubdtype(y.dtype, j.numpy.inexact)]
    loss = lambda x: sum((j.numpy.sin(y).real.sum() for y in floats(function(x))), j.numpy.float32(0))
    return lambda x: (function(x), j.grad(loss)(x))


@pytest.mark.parametrize("text", OF_ONE.strip().splitlines()[::6])
def test_some_functions_of_a_sharded_array_give_what_jax_gives(text: str) -> None:
    check_sharded(text)


@pytest.mark.slow
@pytest.mark.parametrize("text", OF_ONE.strip().splitlines())
def test_functions_of_a_sharded_array_give_what_jax_gives(text: str) -> None:
    check_sharded(text)


def check_sharded(text: str) -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (8, 4)).astype(np.float32)
    expected = with_slope(jax, text)(jax.numpy.asarray(x))
    for names in (("i", "j"), ("j",), (None, "j")):
        found = ours.jit(with_slope(ours, text))(sharded(ours, x, *names))
        same(found, expected, weak=False)
