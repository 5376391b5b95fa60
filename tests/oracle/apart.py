"""Functions in processes of their own: Shardy now and then ends the process that it runs in.

A process that was started for this forks for each call. It has no threads, unlike the one that tests run in, whose
copy might wait for ever for a lock that one of them held. It has the ``context()`` of the function's module ready.
"""

from __future__ import annotations

import atexit
import faulthandler
import importlib
import os
import pickle
import resource
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

ROOT = Path(__file__).parents[2]


def apart(function: Callable[..., Iterable[Any]], *args: Any) -> list[Any]:
    """All that a generator function of a module yields before it ends, in whichever way it ends."""
    return _asked(function, args, several=True)


def one_apart(function: Callable[..., Any], *args: Any) -> Any:
    """What a function of a module returns; None if it does not."""
    found = _asked(function, args, several=False)
    return found[0] if found else None


def _asked(function: Callable[..., Any], args: Any, several: bool) -> list[Any]:
    server = _server()
    _send(server.stdin, pickle.dumps((function.__module__, function.__qualname__, args, several)))
    return list(_loaded(_receive(server.stdout)))


@cache
def _server() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.oracle.apart"]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    atexit.register(server.kill)
    return server


def _send(file: Any, data: bytes) -> None:
    file.write(struct.pack("q", len(data)) + data)
    file.flush()


def _receive(file: Any) -> bytes:
    head: bytes = file.read(8)
    data: bytes = file.read(struct.unpack("q", head)[0]) if len(head) == 8 else b""
    return data


def _loaded(data: bytes) -> Iterator[Any]:
    file = BytesIO(data)
    while file.tell() < len(data):
        try:
            yield pickle.load(file)
        except (EOFError, pickle.UnpicklingError):
            return  # it ended while it wrote this


# The other side


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    while data := _receive(requests):
        name, function, args, several = pickle.loads(data)
        module = importlib.import_module(name)
        module.context()
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _run(getattr(module, function), args, several, writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as file:
            found = file.read()
        os.waitpid(child, 0)
        _send(answers, found)


def _run(function: Callable[..., Any], args: Any, several: bool, writing: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with os.fdopen(writing, "wb") as file:
            for found in function(*args) if several else [function(*args)]:
                pickle.dump(found, file)
                file.flush()
    finally:
        os._exit(0)


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
