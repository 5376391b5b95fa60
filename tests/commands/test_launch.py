"""`meshwright launch`: a script in several processes, of which one may end before the others."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshwright.cli import main

TRAIN = """
import sys
import meshwright as mw, meshwright.numpy as mnp

mesh = mw.make_mesh((2, 1), ("data", "model"))
put = lambda *spec: mw.NamedSharding(mesh, mw.P(*spec))
layout = [put(None, "model"), put("model")]

def step(w, x):
    loss, g = mw.value_and_grad(lambda w: mnp.mean((mnp.tanh(x @ w[0]) @ w[1] - 1) ** 2))(w)
    return loss, [a - 0.5 * b for a, b in zip(w, g)]

train = mw.jit(step, in_shardings=(layout, put("data")), out_shardings=(put(), layout), engine="xla")
key = mw.random.key(0)
w = [mw.random.normal(key, (8, 16)) * 0.3, mw.random.normal(key, (16, 8)) * 0.3]
x = mw.random.normal(key, (32, 8))
for n in range(20):
    loss, w = train(w, x)
    print(f"{float(loss):.5f}")
    if n == 5 and mw.distributed.process_index() == 1:
        import os, signal

        if sys.argv[1:] == ["dies"]:
            os.kill(os.getpid(), signal.SIGKILL)
        if sys.argv[1:] == ["fails"]:
            raise ValueError("no more")
        if sys.argv[1:] == ["leaves"]:
            sys.exit("no more")
if sys.argv[1:] == ["reads"]:
    rows = mw.device_put(x, put("data"))
    print(rows.is_fully_addressable, [(s.index[0].start, s.data.shape) for s in rows.addressable_shards])
    print(rows)
"""


def run(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "train.py").write_text(TRAIN)
    return subprocess.run(
        [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )


def test_one_that_dies_ends_the_others(tmp_path: Path) -> None:
    begun = time.monotonic()
    done = run(tmp_path, "-m", "meshwright", "launch", "-n", "2", "train.py", "dies")
    assert done.returncode == 1
    assert "Process 1 was ended by signal 9; the others are stopped." in done.stderr
    assert "LostProcessError: Process 0 does not hear of another process any more." in done.stdout
    assert "[0]   fix:  start all of them again from the last checkpoint: mw.load(path, like=...)" in done.stdout
    assert time.monotonic() - begun < 60


@pytest.mark.slow
@pytest.mark.parametrize(("word", "said"), [("fails", "ValueError: no more"), ("leaves", "no more")])
def test_one_that_fails_ends_the_others(tmp_path: Path, word: str, said: str) -> None:
    """They wait for what it should have sent, and it would wait for them to end."""
    begun = time.monotonic()
    done = run(tmp_path, "-m", "meshwright", "launch", "-n", "2", "train.py", word)
    assert done.returncode == 1
    assert f"[1] {said}" in done.stdout
    assert "Process 1 ended with exit code 1; the others are stopped." in done.stderr
    assert time.monotonic() - begun < 60


@pytest.mark.slow
def test_what_is_elsewhere_is_not_read(tmp_path: Path) -> None:
    done = run(tmp_path, "-m", "meshwright", "launch", "-n", "2", "train.py", "reads")
    assert done.returncode == 1
    assert "[0] False [(0, (16, 8))]" in done.stdout and "[1] False [(16, (16, 8))]" in done.stdout
    assert "This process has only some shards of an array float32[32,8]." in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-n", "0", "x.py"], "--processes is 0."),
        (["-n", "9999", "x.py"], "--processes is 9999."),
        (["--devices", "-1", "x.py"], "--devices is -1."),
        (["no such.py"], "There is no file no such.py."),
    ],
)
def test_errors(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", *words]) == 2
    assert message in capsys.readouterr().err
