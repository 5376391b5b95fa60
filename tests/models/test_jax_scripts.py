"""Models written for JAX, as they are: JAX's numbers on one device and on meshes, Auto and Explicit."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

SCRIPTS = Path(__file__).parents[2] / "examples" / "jax"


def load(name: str, ours: bool) -> dict[str, Any]:
    """The names of a script, in which ``import jax`` means Meshwright's or JAX itself."""

    def importing(module: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if ours and module.split(".")[0] == "jax":
            found = import_module(f"meshwright.{module}")
            for one in fromlist or ():
                if not hasattr(found, one):
                    import_module(f"meshwright.{module}.{one}")
            return found if fromlist else import_module("meshwright.jax")
        return builtins.__import__(module, globals, locals, fromlist, level)

    path = SCRIPTS / f"{name}.py"
    space = {"__name__": name, "__file__": str(path), "__builtins__": {**vars(builtins), "__import__": importing}}
    exec(compile(path.read_text(), str(path), "exec"), space)
    return space


MESHES = [((), False), ((2, 4), False), ((2, 4), True), ((2, 2, 2), False), ((2, 2, 2), True)]
QUICK = {("llama", (2, 4), True), ("mixture", (2, 4), False)}
CASES = [
    pytest.param(name, *mesh, marks=() if (name, *mesh) in QUICK else pytest.mark.slow)
    for name in ("llama", "mixture")
    for mesh in MESHES
]


@pytest.mark.parametrize(("name", "shape", "explicit"), CASES)
def test_a_script_gives_the_numbers_of_jax(name: str, shape: tuple[int, ...], explicit: bool):
    ours, theirs = (load(name, flag)["run"](shape, explicit) for flag in (True, False))
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for path, expected in jax.tree_util.tree_leaves_with_path(theirs):
        actual = ours
        for key in path:
            actual = actual[key.key]
        scale = max(1.0, float(np.abs(np.asarray(expected, np.float64)).max()))
        error = float(np.abs(np.asarray(actual, np.float64) - np.asarray(expected, np.float64)).max()) / scale
        assert error <= 1e-5, f"{jax.tree_util.keystr(path)} differs by {error}"


@pytest.mark.slow
@pytest.mark.skipif(not (find_spec("flax") and find_spec("optax")), reason="not installed: make flax")
@pytest.mark.parametrize(("shape", "explicit"), MESHES)
def test_a_script_of_flax_and_optax_gives_the_numbers_of_jax(shape: tuple[int, ...], explicit: bool, tmp_path: Path):
    """Both libraries import ``jax``, so that each run is a process of its own."""
    options = [*(["--mesh", *map(str, shape)] if shape else []), *["--explicit"] * explicit]
    found = []
    for name, before in (("ours", ["-m", "meshwright", "run-jax", "--devices", "8"]), ("theirs", [])):
        path = tmp_path / f"{name}.npz"
        command = [sys.executable, *before, str(SCRIPTS / "vit.py"), *options, "--save", str(path)]
        flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, env={**os.environ, **flags})
        assert done.returncode == 0, done.stderr
        found.append(np.load(path))
    ours, theirs = found
    assert set(ours) == set(theirs) and len(ours.files) > 70
    for name in theirs:
        scale = max(1.0, float(np.abs(theirs[name]).max()))
        error = float(np.abs(ours[name].astype(np.float64) - theirs[name]).max()) / scale
        assert error <= 1e-5, f"{name} differs by {error}"
