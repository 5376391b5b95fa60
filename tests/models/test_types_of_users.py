"""A user's file with arrays in it passes ``mypy --strict``: operators, methods and functions say what they return."""

from __future__ import annotations

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

WRONG = USER + "\nn: int = x.shape\nx.nothing()\n"


@pytest.mark.slow
@pytest.mark.parametrize(("text", "errors"), [(USER, []), (WRONG, ["[assignment]", "[attr-defined]"])])
def test_a_file_of_a_user(text: str, errors: list[str], tmp_path: Path):
    pytest.importorskip("mypy")
    file = tmp_path / "user.py"
    file.write_text(text)
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, env={"MYPYPATH": str(root / "src")})
    found = [line.rsplit(" ", 1)[-1] for line in done.stdout.splitlines() if ": error:" in line]
    assert found == errors, done.stdout
