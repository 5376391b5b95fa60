"""A process that is killed while it saves leaves the old checkpoint, the new one, or none: never a wrong one.

Nor does one that loads meanwhile see a wrong one.
"""

from __future__ import annotations

import subprocess
import sys

# All run in a process of their own, which forks its children, so that the package is imported once.
COMMON = """
import os, random, signal, sys, time
import numpy as np
import meshwright as mw
import meshwright.numpy as mnp
from meshwright.arrays.checkpoint import saving
from meshwright.core.trace import Array

saving.SMALL_SHARD_BYTES = 0
path, fresh = sys.argv[1] + "/a", sys.argv[1] + "/b"
mesh = mw.make_mesh((2, 4), ("x", "y"))
sharding = mw.NamedSharding(mesh, mw.P("x", "y"))

def tree(version):
    w = np.full((64, 60), version, np.float32)
    return {"version": version, "layers": [mw.device_put(w, sharding), np.full(100 + version % 7, version)]}

def check(path):
    '''The version of the checkpoint at path, all parts of which must belong together.'''
    found = mw.load(path)
    version = found["version"]
    w, b = map(np.asarray, found["layers"])
    assert w.shape == (64, 60) and (w == version).all() and b.shape == (100 + version % 7,) and (b == version).all()
    return version

def save_all(path, first):
    for version in range(first, first + 1000):
        mw.save(path, tree(version), file_bytes=3000)
"""

AT_RANDOM_TIMES = (
    COMMON
    + """
rng = random.Random(0)
start = time.perf_counter()
mw.save(path, tree(0), file_bytes=3000)
check(path)
taken = time.perf_counter() - start
last, seen, nothing = 0, set(), 0
for crash in range(50):
    # Half of the crashes are in a first save, half in one that replaces another.
    where = path if crash % 2 else f"{fresh}{crash}"
    pid = os.fork()
    if pid == 0:
        save_all(where, last + 1)
        os._exit(1)
    time.sleep(rng.uniform(0.0, min(3 * taken, 0.5)))
    os.kill(pid, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    try:
        version = check(where)
    except mw.MeshwrightError as error:
        assert where != path and str(error).startswith("There is no checkpoint at"), error
        nothing += 1
        continue
    assert version >= (last if where == path else 0)
    if where == path:
        last = version
    seen.add(version)
mw.save(path, tree(-1))
assert check(path) == -1
print(len(seen), nothing)
"""
)

AT_EVERY_STEP = (
    COMMON
    + """
def dying(function, count):
    def stand_in(*args, **kwargs):
        count[0] -= 1
        if count[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return stand_in

def crash_at(step, where, version):
    '''Whether a save got to its end in a child that dies at its step-th call to the file system.'''
    pid = os.fork()
    if pid == 0:
        count = [step]
        for name in ("fsync", "replace", "unlink", "mkdir", "open"):
            setattr(os, name, dying(getattr(os, name), count))
        saving._file_parts = dying(saving._file_parts, count)
        mw.save(where, tree(version), file_bytes=3000)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0

outcomes = []
for step in range(1000):
    mw.save(path, tree(1), file_bytes=3000)
    ended = crash_at(step, path, 2)
    outcomes.append(check(path))
    assert not ended or outcomes[-1] == 2
    new_ended = crash_at(step, f"{fresh}{step}", 2)
    try:
        assert check(f"{fresh}{step}") == 2
    except mw.MeshwrightError as error:
        assert not new_ended and str(error).startswith("There is no checkpoint at"), error
    if ended and new_ended:
        break
assert outcomes == sorted(outcomes) and set(outcomes) == {1, 2}
print(len(outcomes), outcomes.count(1))
"""
)

WHILE_SAVING = (
    COMMON
    + """
mw.save(path, tree(0), file_bytes=3000)
pids = []
for saver in range(2):
    pids.append(os.fork())
    if pids[-1] == 0:
        save_all(path, 1000 * saver)
        os._exit(1)
try:
    end, seen = time.monotonic() + 2, set()
    while time.monotonic() < end:
        seen.add(check(path))
finally:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
print(len(seen))
"""
)


TOGETHER = (
    COMMON
    + """
pids = []
for saver in range(4):
    pids.append(os.fork())
    if pids[-1] == 0:
        status = 1
        try:
            for version in range(12):
                mw.save(fresh + "/deep", tree(100 * saver + version), file_bytes=3000)
            status = 0
        finally:
            os._exit(status)
print(sum(os.waitpid(pid, 0)[1] != 0 for pid in pids), check(fresh + "/deep") % 100)
"""
)


def run(script, tmp_path):
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


def test_killed_at_fifty_random_times(tmp_path):
    seen, _ = run(AT_RANDOM_TIMES, tmp_path)
    assert seen > 5


def test_killed_at_every_step(tmp_path):
    steps, old = run(AT_EVERY_STEP, tmp_path)
    assert steps > 15
    assert 5 < old < steps


def test_two_processes_save_while_a_third_loads(tmp_path):
    (seen,) = run(WHILE_SAVING, tmp_path)
    assert seen > 3


def test_processes_that_save_to_one_path_all_succeed(tmp_path):
    assert run(TOGETHER, tmp_path) == [0, 11]
