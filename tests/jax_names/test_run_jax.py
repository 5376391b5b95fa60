"""``meshwright run-jax`` runs a script as it is; its ``import jax`` is Meshwright's."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

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

LIBRARIES = """
import json
from typing import NamedTuple
import jax
import jax.numpy as jnp
import jax.scipy.ndimage
import jax.scipy.optimize
import jax.scipy.signal
import jax.scipy.sparse.linalg
from jax import random
from jax.custom_derivatives import closure_convert
from jax.example_libraries import optimizers, stax
from jax.experimental.ode import odeint
from jax.experimental.pjit import pjit
from jax.scipy.stats import gamma, norm


class Pair(NamedTuple):
    first: float
    second: float


found = {}
init, predict = stax.serial(stax.Dense(8), stax.Relu, stax.Dense(2), stax.LogSoftmax)
start, update, params_of = optimizers.adam(1e-2)
state = start(init(random.PRNGKey(0), (-1, 3))[1])
x = random.normal(random.PRNGKey(1), (4, 3))
loss = lambda params: -jnp.mean(predict(params, x)[:, 0])
step = pjit(lambda n, state: update(n, jax.grad(loss)(params_of(state)), state))
for n in range(3):
    state = step(n, state)
found["params"] = [p.tolist() for p in jax.tree.leaves(params_of(state))]
decay = lambda k: odeint(lambda y, t, k: -k * y, jnp.array([1.0, 2.0]), jnp.linspace(0, 1.0, 3), k)
found["ode"] = [decay(1.3).tolist(), jax.grad(lambda k: decay(k).sum())(1.3).tolist()]
bowl = lambda p: ((p - 1) ** 2).sum() + p[0] * p[1]
found["fit"] = jax.scipy.optimize.minimize(bowl, jnp.zeros(2), method="BFGS").x.tolist()
found["convolved"] = jax.scipy.signal.convolve2d(x, jnp.ones((2, 2))).tolist()
found["moved"] = jax.scipy.ndimage.map_coordinates(x, jnp.array([[0.5, 1.5], [0.2, 1.0]]), order=1).tolist()
found["solved"] = jax.scipy.sparse.linalg.cg(lambda v: x.T @ (x @ v) + v, jnp.ones(3))[0].tolist()
found["likely"] = [p.tolist() for p in (norm.logcdf(x), gamma.logpdf(x**2, 2.0), jax.scipy.stats.poisson.pmf(2, 1.5))]
found["closed"] = float(closure_convert(lambda v: v * 2, 1.0)[0](3.0))
with jax.profiler.TraceAnnotation("paths"):
    tree = {"pair": Pair(1.0, 2.0)}
    found["paths"] = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
print(json.dumps(found))
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


def numbers(found: object) -> list[float]:
    if isinstance(found, dict | list):
        return [x for one in (found.values() if isinstance(found, dict) else found) for x in numbers(one)]
    return [] if isinstance(found, str) else [float(found)]  # type: ignore[arg-type]


@pytest.mark.skipif(find_spec("jax") is None, reason="the libraries are an installed JAX's")
def test_libraries_that_come_with_jax_run_from_its_own_files(tmp_path: Path):
    script = tmp_path / "libraries.py"
    script.write_text(LIBRARIES)
    done = run_jax(str(script))
    assert (done.returncode, done.stderr) == (0, "")
    theirs = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    ours, expected = json.loads(done.stdout), json.loads(theirs.stdout)
    assert ours["paths"] == expected["paths"] == ["['pair'].first", "['pair'].second"]
    assert len(numbers(expected)) > 60
    np.testing.assert_allclose(numbers(ours), numbers(expected), rtol=2e-5, atol=2e-5)


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


SCANNED = """\
import jax, jax.numpy as jnp

mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
with jax.set_mesh(mesh):
    v, carry = jax.device_put(jnp.ones(4), jax.P("data")), jnp.ones(4)
    print(jax.typeof(jax.lax.scan(lambda carry, _: (RETURNED, None), START, None, length=2)[0]))
"""


def test_what_an_error_says_to_write_has_the_names_of_jax(tmp_path: Path):
    def run(start: str, returned: str) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "script.py"
        script.write_text(SCANNED.replace("START", start).replace("RETURNED", returned))
        return run_jax("--devices", "2", str(script))

    wrong = run("carry", "carry * v")
    start, returned = "jax.reshard(carry, jax.P('data',))", "jax.reshard(carry, jax.P(None,))"
    assert wrong.stderr.splitlines()[-1] == f"  fix:  start from {start}, or return {returned}"
    assert run(start, "carry * v").stdout == "float32[4@data]\n"
    assert run("carry", returned.replace("carry", "carry * v")).stdout == "float32[4]\n"


def test_what_is_not_there_is_said():
    assert run_jax("nowhere.py").stderr == (
        "There is no file nowhere.py.\n  why:  a script is run\n  fix:  meshwright run-jax script.py\n"
    )
    assert run_jax("--devices", "0", "nowhere.py").returncode == 2
