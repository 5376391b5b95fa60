"""Every signal, wait, start and barrier of the collectives is needed: without any one of them a mistake is found.

Those of the library are found by reading its modules, and which cases come to each by running them; none is left out.
The tiled product and flash attention have none: their copies are those of the pipeline. Without any one of the stores
of the library either a mistake is found, or the numbers are wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from meshwright import pallas as pl
from meshwright.pallas import ops
from meshwright.pallas import tpu as pltpu
from tests.kernel import collectives
from tests.kernel import test_library as library
from tests.kernel.driver import on_devices
from tests.kernel.mutation import sites, stores, watched, without
from tests.kernel.test_library import CASES, check

SHAPE = (4, 8)
# The arguments that a collective is made with, and the shape of what each device has.
KERNELS: dict[str, tuple[tuple[Any, ...], tuple[int, ...]]] = {
    "right_permute": ((SHAPE,), SHAPE),
    "asymmetric_send": ((SHAPE,), SHAPE),
    "ring_all_gather": ((4, SHAPE), SHAPE),
    "ring_all_reduce": ((4, SHAPE), SHAPE),
    "reduce_scatter": ((4, SHAPE), (4, *SHAPE)),
    "all_to_all": ((4, SHAPE), (4, *SHAPE)),
}
MODULES: dict[str, ModuleType] = {
    name: import_module(f"meshwright.pallas.ops.{name}")
    for name in ("ring", "collectives", "matmuls", "attention", "grouped")
}
STORING = MODULES | {name: import_module(f"meshwright.pallas.ops.{name}") for name in ("flash", "online")}
STORES = [(name, n) for name, module in STORING.items() for n in range(len(sites(module, stores)))]
# What is asked of each module whose kernels store.
ASKED: dict[str, list[Callable[[], None]]] = {
    "collectives": [partial(check, case, 4, pl.Debug()) for case in ("all-reduce", "all-reduce both ways")],
    "matmuls": [
        *(partial(check, case, 2, pl.Debug()) for case in CASES if "matmul" in case),
        lambda: library.test_matmul_by_tiles_that_need_not_fit((33, 16, 65)),
    ],
    "attention": [partial(check, case, 2, pl.Debug()) for case in CASES if "attention" in case],
    "grouped": [lambda: library.test_a_grouped_product_and_its_derivatives([3, 0, 9, 4])],
    "flash": [
        lambda: library.test_flash_attention(((8, 8), (50, 8)), True),
        lambda: library.test_the_derivative_of_flash_attention((2, 20, 8), True),
    ],
    "online": [lambda: library.test_flash_attention(((8, 8), (50, 8)), False)],
}
PLACES = [(name, number) for name, module in MODULES.items() for number in range(len(sites(module)))]


def use(name: str, changed: ModuleType, patch: pytest.MonkeyPatch) -> None:
    """Let the cases of the library run with a changed module."""
    if name == "ring":
        for other in ("collectives", "matmuls", "attention", "grouped"):
            patch.setattr(MODULES[other], "meet", changed.meet)
        return
    if name == "online":
        for other in ("flash", "attention"):
            for helper in ("add_block", "start"):
                if hasattr(STORING[other], helper):
                    patch.setattr(STORING[other], helper, getattr(changed, helper))
        return
    for function in ops.__all__:
        if getattr(ops, function).__module__ == STORING[name].__name__:
            patch.setattr(ops, function, getattr(changed, function))


@cache
def cases_of(name: str) -> dict[int, list[str]]:
    """The cases that come to each synchronizing statement of a module."""
    found: dict[int, list[str]] = {}
    for case in CASES:
        reached: set[int] = set()
        with pytest.MonkeyPatch.context() as patch:
            use(name, watched(MODULES[name], reached), patch)
            check(case, 4, None)
        for number in reached:
            found.setdefault(number, []).append(case)
    return found


@pytest.mark.parametrize("name", MODULES)
def test_some_case_comes_to_every_synchronization_of_the_library(name):
    assert sorted(cases_of(name)) == list(range(len(sites(MODULES[name]))))


@pytest.mark.parametrize(
    ("name", "number"), PLACES, ids=[f"{name}.py:{sites(MODULES[name])[number]}" for name, number in PLACES]
)
def test_a_kernel_of_the_library_without_one_of_them_is_found_out(name, number, monkeypatch):
    cases = cases_of(name)[number]
    use(name, without(MODULES[name], number), monkeypatch)
    for case in cases:
        with pytest.raises(pltpu.KernelError):
            check(case, 4, pl.Debug(schedules=16))
            pytest.fail(f"{case} seems right", pytrace=False)


@pytest.mark.parametrize(
    ("name", "number"), STORES, ids=[f"{name}.py:{sites(STORING[name], stores)[number]}" for name, number in STORES]
)
def test_so_is_one_without_one_of_its_stores_or_its_numbers_are_wrong(name, number, monkeypatch):
    use(name, without(STORING[name], number, stores), monkeypatch)
    with pytest.raises((pltpu.KernelError, AssertionError)):
        for ask in ASKED[name]:
            ask()


def run(module: ModuleType, name: str, debug: pl.Debug) -> None:
    arguments, shape = KERNELS[name]
    x = np.random.default_rng(0).normal(size=(4, *shape)).astype(np.float32)
    on_devices(getattr(module, name)(*arguments, debug=debug), {"x": 4}, [[row] for row in x])


@cache
def kernels_of() -> dict[int, list[str]]:
    """The collectives of the tests that come to each of their synchronizing statements."""
    found: dict[int, list[str]] = {}
    for name in KERNELS:
        reached: set[int] = set()
        run(watched(collectives, reached), name, pl.Debug())
        for number in reached:
            found.setdefault(number, []).append(name)
    return found


@pytest.mark.parametrize("number", range(len(sites(collectives))), ids=sites(collectives))
def test_so_is_a_collective_written_otherwise(number):
    mutant = without(collectives, number)
    for name in kernels_of()[number]:
        with pytest.raises(pltpu.KernelError):
            run(mutant, name, pl.Debug(schedules=32))


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_the_kernels_themselves_are_clean_over_many_schedules(name):
    run(collectives, name, pl.Debug(schedules=128, seed=1))
