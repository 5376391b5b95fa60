"""``meshwright.testing``: what a test can say about a compiled program.

>>> import meshwright as mw
>>> assert_comms(mw.jit(lambda x: x * 2).lower(1.0).compile(), exact=True)
"""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from meshwright.api.check_partitioned import check_partitioned
from meshwright.compile.compiled import Compiled
from meshwright.compile.diff import CommsDiff
from meshwright.compile.saved import SNAPSHOTS, read_snapshots
from meshwright.core.files import read_text, write_whole
from meshwright.core.source import here
from meshwright.errors import CommunicationError, MeshwrightError
from meshwright.partition.combine import dearest

KINDS = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "permute")
UPDATE = "MESHWRIGHT_UPDATE_COMMS"  # set in the environment: snapshots are written


def assert_comms(
    compiled: Compiled,
    *,
    max_bytes: int | None = None,
    exact: bool = False,
    snapshot: str | os.PathLike[str] | None = None,
    name: str | None = None,
    update: bool | None = None,
    **counts: int,
) -> None:
    """Raise unless a compiled program has the given number of collectives of each kind that is named.

    With ``exact``, kinds that are not named must not occur. ``max_bytes`` bounds what a device receives in all. A
    collective in a loop counts as often as it runs, in a while loop of unknown length once; of the branches of a cond
    those collectives count that receive the most.

    ``snapshot`` is a file to commit (``comms.json``) that says what the program ``name`` sent when written. Where
    collectives or their bytes are others now, the error has the difference. It is written with ``update=True``, by
    ``pytest --update-comms`` (with ``pytest_plugins = ["meshwright.pytest_plugin"]`` in ``conftest.py``), or if
    ``MESHWRIGHT_UPDATE_COMMS`` is set. By default the name is that of the test that pytest runs.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mesh = mw.make_mesh((4,), ("x",))
    >>> x = mw.device_put(mnp.ones((8, 16)), mw.NamedSharding(mesh, mw.P("x")))
    >>> assert_comms(mw.jit(lambda x: x.sum(0)).lower(x).compile(), all_reduce=1, all_gather=0, max_bytes=96)
    """
    if not isinstance(compiled, Compiled):
        raise MeshwrightError(
            f"assert_comms is given a {type(compiled).__name__}.",
            where=here(),
            why="what is sent is known of a program that is compiled for given arguments",
            fix="assert_comms(mw.jit(f).lower(*args).compile(), all_gather=1)",
        )
    for kind in counts:
        if kind not in KINDS:
            raise MeshwrightError(
                f"assert_comms knows no collective {kind!r}.",
                where=here(),
                why=f"the kinds are {', '.join(KINDS)}",
                fix="assert_comms(compiled, all_gather=1)",
            )
    found: Counter[str] = Counter()
    received = 0
    for collective in dearest(compiled.collectives):
        found[collective.kind] += collective.times
        received += collective.bytes_received_per_device * collective.times
    wanted = {**dict.fromkeys(KINDS, 0), **counts} if exact else counts
    wrong = [f"{kind} {found[kind]}, not {n}" for kind, n in wanted.items() if found[kind] != n]
    if max_bytes is not None and received > max_bytes:
        wrong.append(f"{received} bytes received per device, not at most {max_bytes}")
    diff = _since(compiled, snapshot, name, update) if snapshot is not None else None
    if diff:
        wrong.append(f"it sends something else than {os.fspath(snapshot or '')} says")
    if wrong:
        raise CommunicationError(
            "The program communicates in another way than it should.",
            where=here(),
            why="; ".join(wrong) + "\n" + (str(diff) if diff else compiled.explain()),
            fix="change the shardings, or the numbers given to assert_comms"
            if not diff
            else f"change the shardings, or accept it: {UPDATE}=1 pytest",
        )


def _since(compiled: Compiled, snapshot: str | os.PathLike[str], name: str | None, update: bool | None) -> CommsDiff:
    """What changed since a snapshot was written; if it is to be written now, nothing did."""
    file = os.fspath(snapshot)
    fix = f"{UPDATE}=1 pytest"
    called = name or os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0] or "program"
    found = compiled.explanation(tries=False).to_json()
    writes = bool(os.environ.get(UPDATE)) if update is None else update
    if writes:
        with _alone(os.path.dirname(os.path.abspath(file))):
            programs = {**_known(file, fix), called: found}
            whole = {"schema": SNAPSHOTS, "programs": dict(sorted(programs.items()))}
            write_whole(file, json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
        return CommsDiff(found, found)
    known = _known(file, fix)
    if called not in known:
        listed = f"it has {', '.join(known) or 'nothing'}"
        raise MeshwrightError(
            f"{file} says nothing of {called!r}.",
            where=here(),
            why=listed if os.path.exists(file) else "there is no such file",
            fix=fix,
        )
    return CommsDiff(known[called], found)


@contextmanager
def _alone(folder: str) -> Iterator[None]:
    """Let one process at a time write snapshots into a folder, as the workers of pytest-xdist do all at once."""
    if fcntl is None or not os.path.isdir(folder):
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _known(file: str, fix: str) -> dict[str, Any]:
    """The snapshots of a file by name; none if it is not there."""
    if not os.path.exists(file):
        return {}
    anew = f"rm {shlex.quote(file)} && {fix}"
    return read_snapshots(_text(file, anew), file, anew)


def _text(file: str, fix: str) -> str:
    if os.path.isdir(file):
        fix = 'assert_comms(compiled, snapshot="comms.json")'
    try:
        return read_text(file)
    except UnicodeDecodeError as error:
        why = "it is not text in UTF-8"
        raise MeshwrightError(f"{file} cannot be read.", where=here(), why=why, fix=fix) from error
    except OSError as error:
        why = error.strerror or str(error)
        raise MeshwrightError(f"{file} cannot be read.", where=here(), why=why, fix=fix) from error


__all__: list[Any] = ["KINDS", "assert_comms", "check_partitioned"]
