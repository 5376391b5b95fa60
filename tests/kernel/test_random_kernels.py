"""Random kernels of several parts: right ones give what they mean, here and in JAX; mistakes in them are found.

A mistake that makes another right kernel, one with other numbers in every schedule, is none that can be found.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.pallas import tpu as pltpu
from tests.kernel.driver import on_devices
from tests.kernel.random_kernels import NEEDED, Mistake, Plan, Steps, build, expected, mistakes, operands, plan


def ours(debug: Any) -> Any:
    return SimpleNamespace(
        np=mnp, pl=pl, pltpu=pltpu, lax=lax, struct=mw.ShapeDtypeStruct, options={"debug": debug}
    )  # fmt: skip


def run(one: Plan, debug: Any, mistake: Mistake | None = None, seen: list[Steps] | None = None) -> np.ndarray:
    call = build(ours(debug), one, mistake, seen)
    inputs = [list(row) for row in zip(*operands(one), strict=True)]
    return np.stack([out for (out,) in on_devices(call, {"x": one.devices}, inputs)])


@cache
def mistakes_of(seed: int) -> list[Mistake]:
    seen: list[Steps] = []
    run(plan(seed), None, seen=seen)
    assert len({tuple(steps.kinds) for steps in seen}) == 1
    return mistakes(seen[0])


def check_right(seed: int, debug: Any) -> None:
    one = plan(seed)
    np.testing.assert_array_equal(run(one, debug), expected(one), err_msg=str(one))


def check_wrong(seed: int, mistake: Mistake) -> bool:
    """Whether the mistake is named; if it is not, all schedules must give the same numbers."""
    one = plan(seed)
    try:
        found = run(one, pl.Debug(schedules=8), mistake)
    except pltpu.KernelError:
        return True
    assert mistake.how != "drop" or mistake.kind not in NEEDED | {"result"}, f"{mistake} of {one} is not found"
    again = run(one, pl.Debug(schedules=24, seed=1, races=False), mistake)
    np.testing.assert_array_equal(found, again, err_msg=f"{mistake} of {one}")
    if mistake.how == "unmet" or (mistake.how == "late" and mistake.kind in NEEDED):
        np.testing.assert_array_equal(found, expected(one), err_msg=f"{mistake} of {one}")
    return False


@pytest.mark.parametrize("seed", range(12))
def test_a_right_kernel_gives_what_it_means(seed):
    check_right(seed, pl.Debug(schedules=4))


@pytest.mark.parametrize("seed", range(8))
def test_mistakes_are_found_or_change_nothing_between_schedules(seed):
    for mistake in np.random.default_rng(seed).permutation(len(mistakes_of(seed)))[:6]:
        check_wrong(seed, mistakes_of(seed)[mistake])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 220))
def test_many_right_kernels_over_many_schedules(seed):
    check_right(seed, pl.Debug(schedules=64, seed=seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 130))
def test_every_mistake_of_many_kernels(seed):
    found = [check_wrong(seed, mistake) for mistake in mistakes_of(seed)]
    assert sum(found) >= len(found) / 2


SEEDS = range(40)


@cache
def by_jax() -> dict[str, np.ndarray]:
    """The results of JAX's interpreter, in a process with enough threads."""
    code = """
import importlib, sys
from types import SimpleNamespace
import jax, jax.numpy as jnp, numpy as np
import jax.experimental.pallas as pl, jax.experimental.pallas.tpu as pltpu
from jax._src.pallas.mosaic import tpu_info
from tests.kernel.random_kernels import build, operands, plan
# Pipelines ask the chip how it lays out memory.
chips = tpu_info if hasattr(tpu_info, "_get_tpu_info_impl") else importlib.import_module("jax._src.tpu_info")
tpu_info.registry["cpu"] = lambda: chips._get_tpu_info_impl(chips.ChipVersion.TPU_V5E, 1)
k = SimpleNamespace(np=jnp, pl=pl, pltpu=pltpu, lax=jax.lax, struct=jax.ShapeDtypeStruct,
                    options={"interpret": pltpu.InterpretParams()})
found = {}
for seed in map(int, sys.argv[2:]):
    one = plan(seed)
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((one.devices,), ("x",), devices=jax.devices()[: one.devices], axis_types=auto)
    rows = jax.sharding.PartitionSpec("x")
    call = build(k, one)
    f = jax.shard_map(lambda x, w: call(x[0], w[0])[None], mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)
    found[str(seed)] = np.asarray(jax.jit(f)(*operands(one)))
np.savez(sys.argv[1], **found)
"""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu", "NPROC": "16"}
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "found.npz")
        command = [sys.executable, "-c", code, file, *map(str, SEEDS)]
        subprocess.run(command, check=True, env=os.environ | flags, timeout=900)
        return dict(np.load(file))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_jaxs_interpreter_says_the_same(seed):
    np.testing.assert_array_equal(by_jax()[str(seed)], expected(plan(seed)))
