"""Calls that are nearly right, of every public function, method and operator: refused where JAX refuses them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from meshwright.core.dtypes import config
from tests.numpy.near_misses import draw_near_miss, names, outcome


@pytest.fixture(scope="module", autouse=True)
def narrow() -> Iterator[None]:
    before, config.enable_x64 = config.enable_x64, False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of JAX, about numbers that it narrows
        yield
    config.enable_x64 = before


def check(name: tuple[str, str], seeds: range, traced: bool) -> None:
    found = []
    for seed in seeds:
        call = draw_near_miss([seed, *map(ord, "".join(name))], *name)
        why = outcome(call, traced, against_jax=traced) if call is not None else ""
        if why:
            found.append(f"{call}\n    {why}")
    assert not found, "\n".join(found)


def test_what_jax_refuses_to_trace_is_refused() -> None:
    for name in names():
        check(name, range(1), traced=True)


def test_what_is_nearly_right_is_an_error_of_ours_or_runs() -> None:
    for name in names():
        check(name, range(1, 3), traced=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", names(), ids="".join)
def test_all_that_jax_refuses_to_trace_is_refused(name: tuple[str, str]) -> None:
    check(name, range(100, 160), traced=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", names(), ids="".join)
def test_all_that_is_nearly_right_is_an_error_of_ours_or_runs(name: tuple[str, str]) -> None:
    check(name, range(100, 130), traced=False)
