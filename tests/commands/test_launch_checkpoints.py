"""Training in several processes with checkpoints: killed at any step, it goes on with any number of processes."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TRAIN = """
import os, sys, time
import numpy as np
import meshwright as mw, meshwright.numpy as mnp

path, steps = sys.argv[1], int(sys.argv[2])
mesh = mw.make_mesh((2, 2), ("data", "model"))
put = lambda *spec: mw.NamedSharding(mesh, mw.P(*spec))
like = {"w": [put(None, "model"), put("model")], "bias": put(), "step": 0}

def step(w, bias, x):
    loss, (g, h) = mw.value_and_grad(
        lambda w, b: mnp.mean((mnp.tanh(x @ w[0]) @ w[1] + b - 1) ** 2), argnums=(0, 1)
    )(w, bias)
    return loss, [a - 0.5 * b for a, b in zip(w, g)], bias - 0.5 * h

train = mw.jit(
    step, in_shardings=(like["w"], put(), put("data")), out_shardings=(put(), like["w"], put()), engine="xla"
)
key = mw.random.key(0)
state = {
    "w": [mw.random.normal(key, (8, 16)) * 0.3, mw.random.normal(key, (16, 8)) * 0.3], "bias": mnp.zeros(8), "step": 0
}
if os.path.isdir(path):
    state = mw.load(path, like=like)
w, bias, first = state["w"], state["bias"], state["step"]
x = mw.random.normal(mw.random.key(1), (32, 8))
print("pid", mw.distributed.process_index(), os.getpid(), flush=True)
for n in range(first, steps):
    loss, w, bias = train(w, bias, x)
    print(f"loss {n} {float(loss):.5f}", flush=True)
    mw.save(path, {"w": w, "bias": bias, "step": n + 1})
"""


def command(tmp_path: Path, processes: int, name: str, steps: int) -> list[str]:
    (tmp_path / "train.py").write_text(TRAIN)
    launch = ["-m", "meshwright", "launch", "-n", str(processes), "--devices", str(4 // processes)]
    return [sys.executable, *(launch if processes > 1 else []), "train.py", name, str(steps)]


def run(tmp_path: Path, processes: int, name: str, steps: int) -> str:
    done = subprocess.run(
        command(tmp_path, processes, name, steps),
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(text: str) -> dict[int, float]:
    return {int(n): float(x) for n, x in re.findall(r"loss (\d+) ([\d.]+)", text)}


@pytest.mark.slow
def test_it_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    expected = losses(run(tmp_path, 1, "alone", 12))
    found: dict[int, float] = {}
    for processes, steps in [(2, 3), (4, 6), (1, 9), (2, 12)]:
        made = losses(run(tmp_path, processes, "together", steps))
        assert not found.keys() & made.keys()
        found.update(made)
    assert found == pytest.approx(expected, abs=3e-5)


@pytest.mark.slow
def test_one_that_is_killed_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    """Twenty times: the others end within a minute, and what was saved loads."""
    steps, choices = 200, random.Random(0)
    expected = losses(run(tmp_path, 1, "alone", steps))
    found: dict[int, float] = {}
    for _ in range(20):
        processes = choices.choice([2, 4])
        going = subprocess.Popen(
            command(tmp_path, processes, "together", steps),
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert going.stdout is not None
        killed, pids, wanted = 0.0, {}, choices.randint(0, 8)
        seen: dict[int, float] = {}
        for line in going.stdout:
            if match := re.search(r"pid (\d+) (\d+)", line):
                pids[int(match[1])] = int(match[2])
            seen.update(losses(line))
            if not killed and len(seen) > wanted and len(pids) == processes:
                time.sleep(choices.random() * 0.1)
                os.kill(pids[choices.randrange(processes)], signal.SIGKILL)
                killed = time.monotonic()
        assert going.wait() == 1 and killed
        assert time.monotonic() - killed < 60
        found.update(seen)
        assert seen == pytest.approx({n: expected[n] for n in seen}, abs=2e-4)
    last = losses(run(tmp_path, 2, "together", max(found) + 3))
    assert last and last == pytest.approx({n: expected[n] for n in last}, abs=2e-4)


WAITS = """
import sys, time
import meshwright as mw
from meshwright.engine import processes

processes.SAY_SECONDS = 1.0
if mw.distributed.process_index() == 1:
    time.sleep(4)
mw.distributed.barrier("start")
if sys.argv[1:] == ["apart"]:
    mw.distributed.barrier("one" if mw.distributed.process_index() else "other")
if sys.argv[1:] == ["full"]:
    mw.save("/proc/nowhere", {"x": 1})
"""


def waits(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "waits.py").write_text(WAITS)
    launch = [sys.executable, "-m", "meshwright", "launch", "-n", "2", "waits.py", *words]
    return subprocess.run(launch, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.slow
def test_one_that_waits_says_for_whom(tmp_path: Path) -> None:
    done = waits(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "[0] Process 0 waits for process 1 at barrier 'start': 1 s." in done.stdout


@pytest.mark.slow
def test_processes_at_different_calls(tmp_path: Path) -> None:
    done = waits(tmp_path, "apart")
    assert done.returncode == 1
    assert "is at barrier 'one', and process 0 at barrier 'other'." in done.stdout
    assert "fix:  call it in every process, not under `if mw.distributed.process_index() == 0`" in done.stdout


@pytest.mark.slow
def test_where_nothing_can_be_saved_all_processes_say_so(tmp_path: Path) -> None:
    done = waits(tmp_path, "full")
    assert done.returncode == 1
    assert "Nothing can be saved to /proc/nowhere." in done.stdout
