"""``meshwright run-jax`` runs a script as it is; its ``import jax`` is Meshwright's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
import jax
import jax.numpy as jnp
from jax.experimental.shard_map import shard_map
from jax.sharding import PartitionSpec as P

assert jax.__name__ == "meshwright.jax" and sys.modules["jax.numpy"] is jnp
mesh = jax.make_mesh((jax.device_count(),), ("i",))
f = shard_map(lambda x: jax.lax.all_gather(x, "i").sum(0), mesh, P("i"), P("i"))
print(jax.jit(f)(jnp.arange(8.0)).tolist(), sys.argv[1:])
"""


def run_jax(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "meshwright", "run-jax", *arguments], capture_output=True, text=True, timeout=120
    )


def test_a_script_runs_with_its_arguments_on_the_devices_asked_for(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = run_jax("--devices", "4", str(script), "--steps", "3")
    assert done.stderr == ""
    assert done.stdout == f"{[12.0, 16.0] * 4} ['--steps', '3']\n"
    assert done.returncode == 0


def test_an_error_of_the_script_shows_its_own_lines(tmp_path: Path):
    script = tmp_path / "wrong.py"
    script.write_text("import jax.numpy as jnp\n\njnp.ones((2, 3)) @ jnp.ones((2, 3))\n")
    done = run_jax(str(script))
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[:3] == [
        "Traceback (most recent call last):",
        f'  File "{script}", line 3, in <module>',
        "    jnp.ones((2, 3)) @ jnp.ones((2, 3))",
    ]
    assert "ShapeError: " in done.stderr and "  fix:  " in done.stderr
    assert "site-packages" not in done.stderr and "operators.py" not in done.stderr


def test_what_is_not_there_is_said():
    assert run_jax("nowhere.py").stderr == (
        "There is no file nowhere.py.\n  why:  a script is run\n  fix:  meshwright run-jax script.py\n"
    )
    assert run_jax("--devices", "0", "nowhere.py").returncode == 2
