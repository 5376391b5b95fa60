"""Ctrl-C in ``mw.save``, at any moment: the path holds the whole old checkpoint or the whole new one, and nothing else.

Nor does a save that was interrupted keep later ones waiting.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import meshwright as mw

COMMON = """
import os, random, signal, sys, time
import numpy as np
import meshwright as mw
from meshwright.core import files
from meshwright.arrays.checkpoint import saving
from meshwright.arrays.checkpoint.layout import read_layout

root = sys.argv[1]
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with it ignored

def tree(version):
    return {"version": version, "layers": [np.full((40, 10), version, np.float32), np.full(100 + version % 7, version)]}

def check(path):
    '''The version of the checkpoint at path, all of which belongs together, and beside which there is nothing.'''
    found = mw.load(path)
    version = found["version"]
    w, b = map(np.asarray, found["layers"])
    assert w.shape == (40, 10) and (w == version).all() and b.shape == (100 + version % 7,) and (b == version).all()
    named = {entry["name"] for entry in read_layout(saving.Path(path))["files"]}
    assert set(os.listdir(path)) == {"layout.json", *named}, (os.listdir(path), named)
    return version
"""

# The n-th step is the n-th line, or bytecode, of `save` and of what writes its files.
AT_EVERY_STEP = (
    COMMON
    + """
os.fsync = lambda handle: None  # which takes most of the time, and has no step of its own
by_opcode = sys.argv[2] == "opcode"
watched = {saving.__file__, files.__file__}
wanted = ("line", "return", "opcode") if by_opcode else ("line", "return")

def interrupted(step, path, version):
    '''Save, with an interrupt at a step; whether the save got to its end without one.'''
    left = [step]

    def trace(frame, event, arg):
        if frame.f_code.co_filename not in watched:
            return None
        frame.f_trace_opcodes = by_opcode
        if event in wanted:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        mw.save(path, tree(version), file_bytes=1000)
        return True
    except KeyboardInterrupt:
        return False
    finally:
        sys.settrace(before)

signal.alarm(500)  # a lock that was left behind would keep the next save waiting
outcomes = []
old, fresh = root + "/old", root + "/new/deep/path"
for step in range(100_000):
    mw.save(old, tree(1), file_bytes=1000)
    ended = interrupted(step, old, 2)
    outcomes.append(check(old))
    assert not ended or outcomes[-1] == 2
    new_ended = interrupted(step, fresh, 2)
    if os.path.exists(root + "/new"):
        assert check(fresh) == 2
        for name in ("layout.json", *[n for n in os.listdir(fresh) if n != "layout.json"]):
            os.unlink(fresh + "/" + name)
        os.removedirs(fresh)
        os.makedirs(root, exist_ok=True)
    else:
        assert not new_ended
    if ended and new_ended:
        break
assert outcomes == sorted(outcomes) and set(outcomes) == {1, 2}
print(len(outcomes), outcomes.count(1))
"""
)

AT_RANDOM_TIMES = (
    COMMON
    + """
rng = random.Random(int(sys.argv[2]))
count = int(sys.argv[3])
start = time.perf_counter()
for version in range(5):
    mw.save(root + "/a", tree(version), file_bytes=1000)
taken = (time.perf_counter() - start) / 5
last, seen, inside, lost = 4, set(), 0, 0
for number in range(count):
    # Half of the interrupts are in a first save, half in one that replaces another.
    where = root + "/a" if number % 2 else f"{root}/b{number}"
    ready, begun = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 3
        try:
            os.write(begun, b".")
            for version in range(last + 1, last + 4000):
                mw.save(where, tree(version), file_bytes=1000)
        except KeyboardInterrupt:
            status = 0
        finally:
            os._exit(status)
    os.read(ready, 1)
    os.close(ready), os.close(begun)
    time.sleep(rng.uniform(0.0, 2 * taken))
    os.kill(pid, signal.SIGINT)
    ended = os.waitpid(pid, 0)[1]
    assert ended == 0, ended
    if not os.path.lexists(where) and where != root + "/a":
        continue
    try:
        version = check(where)
    except Exception as error:
        print(f"lost at interrupt {number}: {error!r}", file=sys.stderr)
        lost += 1
        continue
    assert version >= (last if where == root + "/a" else 0)
    if where == root + "/a":
        last = version
    seen.add(version)
print(len(seen), lost)
"""
)


# One process has the directory for itself; another waits to save there and is interrupted.
WHILE_WAITING = (
    COMMON
    + """
import fcntl
signal.alarm(100)
path = root + "/a"
mw.save(path, tree(1), file_bytes=1000)
for empty in (False, True):
    where = root + "/b" if empty else path
    os.makedirs(where, exist_ok=True)
    held = os.open(where, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    pid = os.fork()
    if pid == 0:
        try:
            mw.save(where, tree(2), file_bytes=1000)
        except KeyboardInterrupt:
            os._exit(7)
        os._exit(1)
    time.sleep(0.5)
    os.kill(pid, signal.SIGINT)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert os.path.isdir(where) and (os.listdir(where) == [] if empty else check(where) == 1)
    os.close(held)
    mw.save(where, tree(3), file_bytes=1000)
    assert check(where) == 3
"""
)


def run(script: str, *arguments: object) -> list[int]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


def test_interrupted_at_every_line(tmp_path):
    steps, old = run(AT_EVERY_STEP, tmp_path, "line")
    assert steps > 150
    assert 50 < old < steps


@pytest.mark.slow
def test_interrupted_at_every_bytecode(tmp_path):
    steps, old = run(AT_EVERY_STEP, tmp_path, "opcode")
    assert steps > 1000
    assert 500 < old < steps


def test_interrupted_by_forty_signals_at_random_times(tmp_path):
    seen, lost = run(AT_RANDOM_TIMES, tmp_path, 0, 40)
    assert seen > 5
    assert lost == 0


@pytest.mark.slow
def test_interrupted_by_500_signals_at_random_times(tmp_path):
    seen, lost = run(AT_RANDOM_TIMES, tmp_path, 1, 500)
    assert seen > 50
    assert lost == 0


def test_interrupted_while_another_process_saves(tmp_path):
    assert run(WHILE_WAITING, tmp_path) == []


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(mw.MeshwrightError) as error:
        mw.save(tmp_path / "pipe", {"x": 1})
    assert "  why:  it is a file, or in one; a checkpoint is a directory\n" in str(error.value)
