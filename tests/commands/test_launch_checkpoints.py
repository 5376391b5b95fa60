"""A transformer trained in several processes, with checkpoints: killed at any step, it goes on with any number."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import meshwright as mw

SAID = "does not hear of", "Terminating process because the JAX distributed service", "waits for process"
SCRIPT = Path(__file__).parent / "train_transformer.py"


def command(processes: int, name: str, steps: int) -> list[str]:
    launch = ["-m", "meshwright", "launch", "-n", str(processes), "--devices", str(4 // processes)]
    return [sys.executable, *(launch if processes > 1 else []), str(SCRIPT), name, str(steps)]


def run(tmp_path: Path, processes: int, name: str, steps: int) -> str:
    done = subprocess.run(
        command(processes, name, steps), cwd=tmp_path, capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(text: str) -> dict[int, float]:
    return {int(n): float(x) for n, x in re.findall(r"loss (\d+) ([\d.]+)", text)}


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_several_processes_train_as_one(tmp_path: Path, processes: int) -> None:
    expected = losses(run(tmp_path, 1, "-", 20))
    text = run(tmp_path, processes, "-", 20)
    assert len(expected) == 20
    for number in range(processes):
        said = "\n".join(line for line in text.splitlines() if line.startswith(f"[{number}] "))
        own = " ".join(map(str, range(number * 4 // processes, (number + 1) * 4 // processes)))
        assert re.search(rf"pid {number} \d+ devices {own}\n", said)  # it has its own shards alone
        assert losses(said) == pytest.approx(expected, abs=5e-5)


@pytest.mark.slow
def test_it_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    expected = losses(run(tmp_path, 1, "-", 12))
    found: dict[int, float] = {}
    for processes, steps in [(2, 3), (4, 6), (1, 9), (2, 12)]:
        made = losses(run(tmp_path, processes, "together", steps))
        assert not found.keys() & made.keys()
        found.update(made)
    assert found == pytest.approx(expected, abs=5e-5)


@pytest.mark.slow
def test_one_that_is_killed_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    """Twenty times, at a random moment of a random step: the others say so and end within a minute, what was saved last
    loads, and as many processes as may be go on from there."""
    steps, choices = 200, random.Random(0)
    expected = losses(run(tmp_path, 1, "-", steps))
    seconds, said = [], 0
    for _ in range(20):
        processes = choices.choice([2, 4])
        going = subprocess.Popen(
            command(processes, "together", steps),
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert going.stdout is not None
        killed, pids, wanted, text = 0.0, {}, choices.randint(1, 6), ""
        for line in going.stdout:
            text += line
            if match := re.search(r"pid (\d+) (\d+)", line):
                pids[int(match[1])] = int(match[2])
            if not killed and len(losses(text)) > wanted and len(pids) == processes:
                time.sleep(choices.random() * 0.1)
                os.kill(pids[choices.randrange(processes)], signal.SIGKILL)
                killed = time.monotonic()
        assert going.wait() == 1 and killed, text
        seconds.append(time.monotonic() - killed)
        seen = losses(text)
        assert seen == pytest.approx({n: expected[n] for n in seen}, abs=2e-4)
        assert re.search(r"Process \d was ended by signal 9; the others are stopped\.", text), text
        said += any(words in text for words in SAID)
        assert max(seen) <= mw.load(tmp_path / "together")["step"] <= max(seen) + 1
    assert max(seconds) < 60 and said > 10  # the rest were stopped while they waited for the one that was gone
    print(f"{said} of 20 times others said so themselves; ", end="")
    print(f"seconds until all had ended: {', '.join(f'{x:.1f}' for x in seconds)}")
    last = losses(run(tmp_path, 2, "together", max(seen) + 5))
    assert last and last == pytest.approx({n: expected[n] for n in last}, abs=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1])
def test_processes_that_nobody_launched_end_by_themselves(tmp_path: Path, first: int) -> None:
    """As on a cluster: each hears of the one that is gone, also if that was the one that the others found by."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    going = []
    for number in range(2):
        said = {"COORDINATOR": f"127.0.0.1:{port}", "PROCESSES": "2", "PROCESS": str(number), "DEVICES": "2"}
        with (tmp_path / str(number)).open("w") as out:
            going.append(
                subprocess.Popen(
                    [sys.executable, str(SCRIPT), str(tmp_path / "saved"), "1000"], stdout=out, stderr=out,
                    env={**os.environ, **{f"MESHWRIGHT_{name}": value for name, value in said.items()}},
                )
            )  # fmt: skip
    while len(losses((tmp_path / "0").read_text())) < 3:
        assert all(one.poll() is None for one in going), (tmp_path / "0").read_text()
        time.sleep(0.1)
    going[first].kill()
    assert going[1 - first].wait(60) != 0
    text = (tmp_path / str(1 - first)).read_text()
    assert any(words in text for words in SAID[:2])


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


APART = (0, "other", "one"), (1, "one", "other")


@pytest.mark.slow
def test_processes_at_different_calls(tmp_path: Path) -> None:
    done = waits(tmp_path, "apart")
    assert done.returncode == 1
    # By the one that notices first: if that is the coordinator, the other may only hear that it is gone.
    said = [f"Process {n} is at barrier '{own}', and process {1 - n} at barrier '{its}'." for n, own, its in APART]
    assert any(words in done.stdout for words in said), done.stdout
    assert "fix:  call it in every process, not under `if mw.distributed.process_index() == 0`" in done.stdout


@pytest.mark.slow
def test_where_nothing_can_be_saved_all_processes_say_so(tmp_path: Path) -> None:
    done = waits(tmp_path, "full")
    assert done.returncode == 1
    assert "Nothing can be saved to /proc/nowhere." in done.stdout
