"""Users' files with arrays in them pass mypy and pyright, strict: operators, methods and functions say what they
return."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

USER = """
import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax


def layer(x: mw.Array, w: mw.Array) -> mw.Array:
    y = x @ w + 1.0
    y = -y * 2 - x[0, 0] / 3
    z = y.T.reshape(-1)[::2].sum()
    return z + y.at[0].set(1.0).mean(axis=0, keepdims=True).max()


def loss(params: dict[str, mw.Array], x: mw.Array) -> mw.Array:
    h = mnp.tanh(x @ params["w"])
    return mnp.sum(h**2) + lax.exp(h).sum() + mw.nn.relu(h).max()


def shapes(x: mw.Array) -> tuple[int, ...]:
    return (*x.shape, x.ndim, x.size)


x: mw.Array = mnp.ones((2, 3))
print(x > 1, x.astype("int32"), float(x.sum()), x.sharding, len(x), [row for row in x])
"""

IN_JAX = """
import functools
from typing import NamedTuple

import meshwright.jax as jax
import meshwright.jax.numpy as jnp
from meshwright.jax import lax
from meshwright.jax.sharding import NamedSharding, PartitionSpec as P


def layer(x: jax.Array, w: jax.Array) -> jax.Array:
    y = x @ w + 1.0
    return y.T[0] + y.at[0].set(1.0).sum() + x[0] + lax.exp(y).max()


def loss(x: jax.Array) -> jax.Array:
    return jnp.sum(jax.nn.relu(x) ** 2)


class Params(NamedTuple):
    w: jax.Array
    b: jax.Array


@functools.partial(jax.jit, static_argnums=2)
def forward(params: dict[str, Params], x: jax.Array, heads: int) -> jax.Array:
    for p in params.values():
        x = jax.nn.gelu(x @ p.w + p.b[None, :]).astype(jnp.bfloat16).astype(jnp.float32)
    q, k = jnp.split(x, heads, axis=-1)
    scores = jnp.einsum("bd,cd->bc", q, k) / jnp.sqrt(q.shape[-1])
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape, dtype=bool)), scores, -jnp.inf)
    return jax.nn.softmax(scores, axis=-1) @ x


def scanned(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    def step(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        carry = 0.9 * carry + row
        return carry, carry.sum()

    return lax.scan(step, jnp.zeros(x.shape[1:]), x)


def summed(block: jax.Array) -> jax.Array:
    return lax.psum(block.sum(0), "x") + lax.pmean(lax.ppermute(block, "x", [(0, 1)]), "x")[0]


def combined(mesh: jax.sharding.Mesh, x: jax.Array) -> tuple[str, float, int]:
    total = jax.shard_map(summed, mesh=mesh, in_specs=P("x"), out_specs=P())(x)
    carry, sums = scanned(x)
    found = lax.cond(sums[0] > 0, lambda v: v + 1, lambda v: v - 1, carry)
    mask = (x > found) & ~(x == -x) | (abs(x) // 2 % 3 >= 1)
    compiled = jax.jit(scanned).lower(x).compile()
    i, j = divmod(int(jnp.argmax(x)), x.shape[0])
    return compiled.as_text(), float(total[0]), i + j + int(mask.sum())


x: jax.Array = jnp.ones((2, 3))
mesh = jax.make_mesh((2,), ("x",))
placed = jax.device_put(x, NamedSharding(mesh, P("x")))
print(jax.jit(layer)(x, x.T), jax.grad(loss)(placed), jax.random.normal(jax.random.key(0), (3,)))
"""

WRONG = USER + "\nn: int = x.shape\nx.nothing()\n"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    texts = {"user.py": USER, "in_jax.py": IN_JAX, "wrong.py": WRONG}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return [str(tmp_path / name) for name in texts]


def test_files_of_users_pass_mypy(files: list[str]):
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", *files]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={"MYPYPATH": str(ROOT / "src")})
    lines = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert all("wrong.py:" in line for line in lines), done.stdout
    assert [line.rsplit(" ", 1)[-1] for line in lines] == ["[assignment]", "[attr-defined]"], done.stdout


@pytest.mark.skipif(shutil.which("pyright") is None, reason="pyright is not installed")
def test_files_of_users_pass_pyright(files: list[str]):
    folder = Path(files[0]).parent
    settings = {"extraPaths": [str(ROOT / "src")], "typeCheckingMode": "strict"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = ["pyright", "--outputjson", "--pythonpath", sys.executable]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, cwd=folder).stdout)
    errors = [one for one in found["generalDiagnostics"] if one["severity"] == "error"]
    assert all(one["file"].endswith("wrong.py") for one in errors), errors
    assert {one["rule"] for one in errors} >= {"reportAssignmentType", "reportAttributeAccessIssue"}
