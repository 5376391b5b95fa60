"""``meshwright launch``: run a script in several local processes, as on several machines."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO, Any

from meshwright.engine.device_arrays import needed
from meshwright.engine.processes import COORDINATOR, COUNT, DEVICES, LOST, NUMBER
from meshwright.errors import TextError

MOST = 64  # processes
GRACE_SECONDS = 5.0  # in which the others say that they miss the one that failed, and then to end when they are told to
_BEGIN = "import sys; from meshwright.engine.processes import run_script; run_script(sys.argv[1:])"


def describe(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = (
        "Run a Python script in several processes of this machine, each with devices of its own, as on several:"
        " meshes are over all devices, and jitted functions run on engine xla. What a process prints has its number in"
        " front. If one fails, the others are stopped."
    )
    parser.epilog = "Exit code 1: a process failed."
    parser.add_argument("-n", "--processes", type=int, default=2, metavar="N", help="how many processes (default: 2)")
    parser.add_argument("--devices", type=int, default=1, metavar="N", help="CPU devices of each (default: 1)")
    parser.add_argument("--json", action="store_true", help="print the exit code of each process as JSON at the end")
    parser.add_argument("script", metavar="SCRIPT.py", help="what each runs")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")


def run(args: argparse.Namespace) -> int:
    """Start the processes, pass on what they print, and stop all when one fails."""
    for name, most in (("processes", MOST), ("devices", MOST)):
        if not 1 <= getattr(args, name) <= most:
            raise TextError(
                f"--{name} is {getattr(args, name)}.", why=f"it is a whole number from 1 to {most}", fix=f"--{name} 4"
            )
    if not os.path.isfile(args.script):
        raise TextError(f"There is no file {args.script}.", why="a script is run", fix="meshwright launch script.py")
    needed()
    started, readers = _start(args.script, args.arguments, args.processes, args.devices)
    codes = _wait(started)
    for one in readers:  # what was printed last; a process that somebody left behind may hold the pipe for ever
        one.join(GRACE_SECONDS)
    if args.json:
        print(json.dumps({"processes": codes}))
    return 0 if not any(codes) else 1


def _start(
    script: str, arguments: Sequence[str], count: int, devices: int
) -> tuple[list[subprocess.Popen[str]], list[threading.Thread]]:
    """The processes, and the threads that pass on what they print."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    begun, readers = [], []
    for number in range(count):
        said = {COORDINATOR: f"127.0.0.1:{port}", COUNT: str(count), NUMBER: str(number), DEVICES: str(devices)}
        one = subprocess.Popen(
            [sys.executable, "-c", _BEGIN, script, *arguments],
            env={**os.environ, **said, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="backslashreplace",
        )
        assert one.stdout is not None
        reader = threading.Thread(target=_pass_on, args=(one.stdout, number), daemon=True)
        reader.start()
        begun.append(one)
        readers.append(reader)
    return begun, readers


def _pass_on(lines: IO[str], number: int) -> None:
    for line in lines:
        if line.startswith("[Gloo]"):  # which says of every connection that there is one
            continue
        print(f"[{number}] {line}", end="", flush=True)


def _wait(started: Sequence[subprocess.Popen[Any]]) -> list[int]:
    """The exit codes of all; once one fails, the others are told to end, and ended if they do not."""
    try:
        while not _failed(started) and any(one.poll() is None for one in started):
            time.sleep(0.05)
        if _failed(started):
            _all_ended(started, GRACE_SECONDS)
            number = min(_failed(started), key=lambda n: (_blame(started[n].poll()), n))
            code = started[number].poll()
            said = f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
            print(f"Process {number} {said}; the others are stopped.", file=sys.stderr, flush=True)
    finally:
        _stop(started)
    return [one.wait() for one in started]


def _blame(code: int | None) -> int:
    """Which of several exit codes is of the process that failed first: least for one that was ended from outside, most
    for those that only say, or let JAX's coordinator say (by an abort), that another one is gone."""
    if code in (LOST, -signal.SIGABRT):
        return 2
    return 0 if code is not None and code < 0 else 1


def _failed(started: Sequence[subprocess.Popen[Any]]) -> list[int]:
    return [n for n, one in enumerate(started) if one.poll() not in (None, 0)]


def _stop(started: Sequence[subprocess.Popen[Any]]) -> None:
    for one in started:
        if one.poll() is None:
            one.terminate()
    if not _all_ended(started, GRACE_SECONDS):
        for one in started:
            one.kill()


def _all_ended(started: Sequence[subprocess.Popen[Any]], seconds: float) -> bool:
    """Whether all end within some seconds."""
    end = time.monotonic() + seconds
    while any(one.poll() is None for one in started):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
