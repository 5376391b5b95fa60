"""Kernels with JAX's imports: by JAX's interpreter and by us, equal; no mistake over 64 schedules."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys
import tempfile
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from meshwright import pallas as pl
from meshwright import tree

PACKAGE = "tests.kernel.as_published"
MODULES = ("dense", "attention", "sparse", "guides", "devices")


def _import(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    """``import jax…`` as `meshwright run-jax` has it."""
    if name.split(".")[0] != "jax" or level:
        return builtins.__import__(name, globals, locals, fromlist, level)
    ours = "meshwright.jax" + name.removeprefix("jax")
    module = import_module(ours)
    for one in fromlist or ():
        if find_spec(f"{ours}.{one}") is not None:
            import_module(f"{ours}.{one}")
    return module if fromlist else import_module("meshwright.jax")


@cache
def ours(name: str) -> ModuleType:
    """A module of kernels whose ``jax`` is ours."""
    file = Path(__file__).parent / "as_published" / f"{name}.py"
    module = ModuleType(f"{PACKAGE}.{name}")
    module.__file__ = str(file)
    module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _import}
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), module.__dict__)
    return module


def theirs(name: str) -> Any:
    import jax.experimental.pallas.tpu as pltpu

    module = import_module(f"{PACKAGE}.{name}")
    module.OPTIONS.update(interpret=pltpu.InterpretParams())
    return module


@cache
def on_devices() -> dict[str, list[np.ndarray]]:
    """The results of the kernels for several devices by JAX's interpreter, in a process with enough threads."""
    code = """
import sys
import jax, numpy as np
import jax.experimental.pallas.tpu as pltpu
from tests.kernel.as_published import devices
devices.OPTIONS.update(interpret=pltpu.InterpretParams())
found = {name: jax.tree.leaves(kernel()) for name, kernel in devices.KERNELS.items()}
np.savez(sys.argv[1], **{f"{name}/{n}": x for name, leaves in found.items() for n, x in enumerate(leaves)})
"""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu", "NPROC": "16"}
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "found.npz")
        subprocess.run([sys.executable, "-c", code, file], check=True, env=os.environ | flags, timeout=120)
        found = np.load(file)
        return {
            name: [found[f"{name}/{n}"] for n in range(9) if f"{name}/{n}" in found] for name in ours("devices").KERNELS
        }


CASES = [(name, kernel) for name in MODULES for kernel in ours(name).KERNELS]
QUICK = [case for case in CASES if case[0] != "devices"][::6]


def run(name: str, kernel: str, **options: Any) -> list[np.ndarray]:
    module = ours(name)
    module.OPTIONS.clear()
    module.OPTIONS.update(options)
    with_devices = import_module("meshwright.jax.devices").available
    with_devices.count = 4
    return [np.asarray(leaf) for leaf in tree.leaves(module.KERNELS[kernel]())]


def check(name: str, kernel: str, debug: Any) -> None:
    import jax

    found = run(name, kernel, debug=debug)
    if name == "devices":
        expected = on_devices()[kernel]
    else:
        expected = [np.asarray(leaf) for leaf in jax.tree.leaves(theirs(name).KERNELS[kernel]())]
    assert [x.shape for x in found] == [x.shape for x in expected]
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("name", "kernel"), QUICK)
def test_a_kernel_gives_what_jax_gives(name, kernel):
    check(name, kernel, pl.Debug(schedules=4))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kernel"), CASES)
def test_every_kernel_does_and_no_schedule_finds_a_mistake(name, kernel):
    check(name, kernel, pl.Debug(schedules=64))


@pytest.mark.parametrize(("name", "kernel"), CASES)
def test_no_mistake_is_found_in_a_kernel_that_is_right(name, kernel):
    for result in run(name, kernel, debug=pl.Debug(schedules=2)):
        assert np.isfinite(np.asarray(result, np.float64)).all()


def test_there_are_fifty():
    assert len(CASES) >= 50


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_as_a_script_by_the_command(name, tmp_path):
    file = Path(__file__).parent / "as_published" / f"{name}.py"
    script = tmp_path / f"{name}_script.py"
    text = "\n\nfor name, function in KERNELS.items():\n    found = jax.tree.leaves(function())\n"
    script.write_text(file.read_text(encoding="utf-8") + text + "    print(name, [x.shape for x in found])\n")
    command = [sys.executable, "-m", "meshwright", "run-jax", "--devices", "4", str(script)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in found.stdout.splitlines()] == list(ours(name).KERNELS)
