"""A script that uses JAX's names one by one gives, run by ``meshwright run-jax``, what it gives run by JAX."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

jax = pytest.importorskip("jax")

SCRIPT = Path(__file__).parent / "every_name.py"
QUICK = [
    "typeof_under_explicit",
    "types_in_shard_map",
    "auto_axes",
    "abstract_meshes",
    "concrete_meshes",
    "specs",
    "named_shardings",
    "counts",
    "arrays_on_meshes",
    "make_arrays",
    "out_ravel",
    "out_reshape",
    "out_flatten",
    "out_repeat_method",
    "out_at_set",
    "asked_add_both",
    "asked_index_split",
    "asked_matmul_ambiguous",
    "asked_concatenate_other",
    "missing_psum",
    "unbound",
    "stages",
    "disable_jit",
    "deleted",
    "static_and_donated",
    "trees",
    "array_types",
    "dunder_array",
    "host_views",
    "typed_keys",
    "fori_loops",
    "structs",
    "new_on_mesh",
    "references",
    "flattened",
]
# Over Explicit axes: what JAX refuses is also run here, with the result split as its operand (docs/explicit.md), …
LOOSER = [
    "asked_where_whole",
    "asked_select_whole",
    "asked_slice_split",
    "asked_slice_step",
    "asked_dynamic_update",
    "asked_repeat_split",
    "asked_at_set_slice",
    "asked_diagonal",
    "asked_vmap_whole",
    "asked_constraint_other",
    "asked_shard_map_other",
]
# … and what would move data without being told to is refused here.
STRICTER = ["asked_dynamic_slice", "asked_reshape_merge_both", "asked_fft_split"]
# Where the results differ in what nobody relies on: which weak type a derivative has, and where JAX puts what it was
# told where to put.
ELSEWHERE = ["explicit_axes", "out_asarray", "out_lax_reduce", "holomorphic", "scipy_special"]
# Dims that axes do not divide, and more devices than there are, are taken here; two errors are of other kinds: a
# boolean mask of a traced array, and a constraint without a mesh.
MEANT = ("shardings_of_jit[6]", "loops_refused[12]", "loops_refused[22]", "loops_refused[23]", "loops_refused[24]")
KINDS = {
    "ValueError", "TypeError", "IndexError", "RuntimeError", "NotImplementedError", "AttributeError", "KeyError",
    "NameError",
}  # fmt: skip


def run(command: list[str], names: list[str]) -> dict[str, Any]:
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, *command, str(SCRIPT), *names], capture_output=True, text=True, env={**os.environ, **flags}
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, done.stderr[-2000:]
    return {name: found for line in lines for name, found in json.loads(line).items()}


def differences(ours: Any, theirs: Any, loosely: bool, at: str = "") -> list[str]:
    """Where two results differ."""
    if isinstance(theirs, dict) and "refused" in theirs:
        kinds = set(theirs["refused"]) & KINDS  # the other errors are classes of JAX's own
        found = set(ours.get("refused", ())) if isinstance(ours, dict) else set()
        return [] if found & (kinds or found) else [f"{at}: {ours}, refused by JAX with {theirs['refused']}"]
    if isinstance(theirs, dict) and isinstance(ours, int | float):  # a number of Python's and an array of one
        return differences(ours, theirs.get("value", [None])[0], loosely, at)
    if isinstance(ours, dict) and isinstance(theirs, int | float):
        return differences(ours.get("value", [None])[0], theirs, loosely, at)
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = sorted(set(ours) | set(theirs))
        keys = [key for key in keys if not (loosely and key in ("weak", "spec"))]
        if set(keys) - set(ours) or set(keys) - set(theirs):
            return [f"{at}: {ours}, JAX {theirs}"]
        return [text for key in keys for text in differences(ours[key], theirs[key], loosely, f"{at}.{key}")]
    if isinstance(theirs, list) and isinstance(ours, list):
        if len(ours) != len(theirs):
            return [f"{at}: {ours}, JAX {theirs}"]
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [text for n, (one, other) in pairs for text in differences(one, other, loosely, f"{at}[{n}]")]
    if isinstance(theirs, float) and isinstance(ours, int | float):
        close = ours == theirs or abs(ours - theirs) <= 2e-5 + 2e-4 * abs(theirs)
        return [] if close or (math.isnan(ours) and math.isnan(theirs)) else [f"{at}: {ours}, JAX {theirs}"]
    return [] if ours == theirs else [f"{at}: {ours}, JAX {theirs}"]


def check(names: list[str]) -> None:
    theirs = run([], names)
    ours = run(["-m", "meshwright", "run-jax", "--devices", "8"], names)
    assert set(ours) == set(theirs)
    wrong: list[str] = []
    for name, expected in theirs.items():
        if isinstance(expected, dict) and "error" in expected:  # what another version of JAX does not have
            continue
        if name in LOOSER:
            assert "refused" in str(expected)
        elif name in STRICTER:
            assert "refused" in str(ours[name])
        else:
            wrong += differences(ours[name], expected, name in ELSEWHERE, name)
    wrong = [text for text in wrong if not text.startswith(MEANT)]
    assert not wrong, "\n".join(text[:400] for text in wrong)


def test_a_script_that_uses_some_names_gives_what_it_gives_by_jax() -> None:
    check(QUICK)


@pytest.mark.slow
def test_a_script_that_uses_every_name_gives_what_it_gives_by_jax() -> None:
    check([])
