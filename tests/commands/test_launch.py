"""`meshwright launch`: a script in several processes trains as in one."""

import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.cli import main

TRAIN = """
import sys
import meshwright as mw, meshwright.numpy as mnp

mesh = mw.make_mesh((2, 2), ("data", "model"))
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
    if sys.argv[1:] == ["dies"] and n == 5 and mw.distributed.process_index() == 1:
        import os, signal

        os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1:] == ["reads"]:
    print(w[0])
"""


def run(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "train.py").write_text(TRAIN)
    return subprocess.run(
        [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_several_processes_train_as_one(tmp_path: Path, count: int) -> None:
    one = run(tmp_path, "train.py")
    several = run(tmp_path, "-m", "meshwright", "launch", "-n", str(count), "--devices", str(4 // count), "train.py")
    assert one.returncode == several.returncode == 0, one.stderr + several.stderr
    for number in range(count):
        found = [line.split()[1] for line in several.stdout.splitlines() if line.startswith(f"[{number}] ")]
        assert [float(x) for x in found] == pytest.approx([float(x) for x in one.stdout.split()], abs=2e-5)


@pytest.mark.slow
def test_one_that_dies_ends_the_others(tmp_path: Path) -> None:
    done = run(tmp_path, "-m", "meshwright", "launch", "-n", "2", "--devices", "2", "train.py", "dies")
    assert done.returncode == 1
    assert "Process 1 was ended by signal 9; the others are stopped." in done.stderr


@pytest.mark.slow
def test_what_is_elsewhere_is_not_read(tmp_path: Path) -> None:
    done = run(tmp_path, "-m", "meshwright", "launch", "-n", "2", "--devices", "2", "train.py", "reads")
    assert done.returncode == 1
    assert "This process has only some shards of an array float32[8,16]." in done.stdout


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
