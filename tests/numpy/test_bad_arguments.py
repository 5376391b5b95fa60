"""Every public function with an argument that makes no sense: an error of ours, and not less than JAX refuses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from meshwright.core.dtypes import config
from tests.numpy.bad_arguments import draw_bad_call, names, outcome, split_arguments


@pytest.fixture(scope="module", autouse=True)
def narrow() -> Iterator[None]:
    before, config.enable_x64 = config.enable_x64, False
    yield
    config.enable_x64 = before


def check(name: tuple[str, str], seeds: range, against_jax: bool) -> None:
    found = []
    for seed in seeds:
        call = draw_bad_call([seed, *map(ord, "".join(name))], *name)
        why = outcome(call, against_jax) if call is not None else ""
        if why:
            found.append(f"{call}\n    {why}")
    assert not found, "\n".join(found)


def test_bad_arguments_are_errors_of_ours() -> None:
    for name in names():
        check(name, range(2), against_jax=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", names(), ids="".join)
def test_many_bad_arguments_are_errors_of_ours(name: tuple[str, str]) -> None:
    check(name, range(100, 160), against_jax=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", names(), ids="".join)
def test_what_jax_refuses_is_refused(name: tuple[str, str]) -> None:
    check(name, range(1000, 1010), against_jax=True)


def test_arguments_are_cut_where_a_call_has_commas() -> None:
    assert split_arguments("a0, axis=(0, 1), lambda x, y: x, 'i,j', [1, 2]") == [
        "a0",
        "axis=(0, 1)",
        "lambda x, y: x",
        "'i,j'",
        "[1, 2]",
    ]
