"""Every signal, wait, start and barrier of the collectives is needed: without any one of them a mistake is found.

Those of the library are found by reading its modules, and which cases come to each by running them; none is left out.
The tiled product and flash attention have none: their copies are those of the pipeline.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from meshwright import pallas as pl
from meshwright.pallas import ops
from meshwright.pallas import tpu as pltpu
from tests.kernel import collectives
from tests.kernel.driver import on_devices
from tests.kernel.mutation import sites, watched, without
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
PLACES = [(name, number) for name, module in MODULES.items() for number in range(len(sites(module)))]


def use(name: str, changed: ModuleType, patch: pytest.MonkeyPatch) -> None:
    """Let the cases of the library run with a changed module."""
    if name == "ring":
        for other in ("collectives", "matmuls", "attention", "grouped"):
            patch.setattr(MODULES[other], "meet", changed.meet)
        return
    for function in ops.__all__:
        if getattr(ops, function).__module__ == MODULES[name].__name__:
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
