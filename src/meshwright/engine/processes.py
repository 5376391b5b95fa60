"""Many processes, each with devices of its own, as one machine: JAX's, for engine ``xla``.

Every process runs the same script. A mesh is over the devices of all of them, and a jitted function runs on each
process's own; what is put onto a mesh is given whole to every process, which makes only its own shards of it.
``meshwright launch -n 4 script.py`` starts local processes; on a cluster, call `initialize` first.

What processes tell each other beside their programs (where a checkpoint goes, that all have come to a barrier) goes
through the key-value store of JAX's coordinator. That is not public in JAX; what is (``multihost_utils``) waits without
an end, and without saying for whom.
"""

from __future__ import annotations

import atexit
import base64
import os
import runpy
import sys
from time import monotonic
from typing import Any

from meshwright.core.current import Processes, current_engine, current_processes
from meshwright.core.source import here
from meshwright.engine.device_arrays import needed
from meshwright.errors import MeshwrightError

COORDINATOR, COUNT, NUMBER, DEVICES = (
    f"MESHWRIGHT_{name}" for name in ("COORDINATOR", "PROCESSES", "PROCESS", "DEVICES")
)
HEARTBEAT_SECONDS = 30  # after which the others know that a process is gone
AGAIN = "start all of them again from the last checkpoint: mw.load(path, like=...)"
OF_LOST_PROCESSES = "Gloo", "NCCL", "Connection", "UNAVAILABLE", "DEADLINE_EXCEEDED"  # what XLA says of them
SAY_SECONDS = 10.0  # after which one that waits says for whom
LOST = 3  # the exit code of a process that fails because another one is gone
_begun: list[bool] = []


class LostProcessError(MeshwrightError):
    """Another process is gone."""


class JaxProcesses(Processes):
    """Processes that JAX's coordinator knows."""

    def __init__(self, count: int, index: int) -> None:
        self.count, self.index = count, index
        self._exchanges = 0

    def exchange(self, what: str, data: bytes) -> list[bytes]:
        """What every process gives, in their order; waits until all have, and says for whom."""
        store = _store()
        self._exchanges += 1
        key = f"meshwright/{self._exchanges}"
        store.key_value_set(f"{key}/{self.index}", f"{what}\n{base64.b64encode(data).decode()}")
        found = [self._wait(store, f"{key}/{other}", what, other) for other in range(self.count)]
        for other, (said, _) in enumerate(found):
            if said != what:
                raise MeshwrightError(
                    f"Process {self.index} is at {what}, and process {other} at {said}.",
                    where=here(),
                    why="processes come to the same calls in the same order",
                    fix="call it in every process, not under `if mw.distributed.process_index() == 0`",
                )
        return [data for _, data in found]

    def lost(self, error: BaseException) -> BaseException:
        """The error to raise where a program fails: another one if that is because another process is gone."""
        if not any(word in str(error) for word in OF_LOST_PROCESSES):
            return error
        return LostProcessError(
            f"Process {self.index} does not hear of another process any more.",
            where=here(),
            why=str(error).splitlines()[0],
            fix=AGAIN,
        )

    def _wait(self, store: Any, key: str, what: str, other: int) -> tuple[str, bytes]:
        begun = monotonic()
        while True:
            try:
                said, text = store.blocking_key_value_get(key, int(1000 * SAY_SECONDS)).split("\n")
                return said, base64.b64decode(text)
            except Exception as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise LostProcessError(
                        f"Process {self.index} does not hear of process {other} any more.",
                        where=here(),
                        why=str(error).splitlines()[0],
                        fix=AGAIN,
                    ) from None
            waited = monotonic() - begun
            print(
                f"Process {self.index} waits for process {other} at {what}: {waited:.0f} s.",
                file=sys.stderr,
                flush=True,
            )


def _store() -> Any:
    """The key-value store of JAX's coordinator."""
    from jax._src import distributed

    return distributed.global_state.client


def barrier(name: str = "barrier") -> None:
    """Wait until every process has come here; one that waits says for whom.

    >>> import meshwright as mw
    >>> mw.distributed.barrier("after loading")
    """
    current_processes.all.exchange(f"barrier {name!r}", b"")


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    **options: Any,
) -> None:
    """Make this process one of several, and ``xla`` the engine. Arguments are those of ``jax.distributed.initialize``:
    on a cluster that JAX knows (SLURM, clouds) none are needed, nor under ``meshwright launch``. Once is enough.

    >>> import meshwright as mw
    >>> mw.distributed.process_count(), mw.distributed.process_index()
    (1, 0)
    """
    if _begun:
        return
    needed()
    import jax

    launched = coordinator_address is None and COORDINATOR in os.environ
    if launched:
        coordinator_address = os.environ[COORDINATOR]
        num_processes, process_id = int(os.environ[COUNT]), int(os.environ[NUMBER])
        jax.config.update("jax_num_cpu_devices", int(os.environ[DEVICES]))  # type: ignore[no-untyped-call]
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # type: ignore[no-untyped-call]
    options.setdefault("heartbeat_timeout_seconds", HEARTBEAT_SECONDS)
    try:
        jax.distributed.initialize(coordinator_address, num_processes, process_id, **options)
    except (RuntimeError, ValueError) as error:
        raise MeshwrightError(
            "The processes did not find each other.",
            where=here(),
            why=str(error).splitlines()[0],
            fix="call it before JAX is used, with this process's coordinator_address, num_processes and process_id;"
            " meshwright launch -n 4 script.py for local ones",
        ) from error
    _begun.append(True)
    _end_at_once_if_it_fails()
    current_engine.name = "xla"
    current_processes.all = JaxProcesses(int(jax.process_count()), int(jax.process_index()))


def _end_at_once_if_it_fails() -> None:
    """Let a process that fails end, instead of waiting for all others to end, too: they wait for what it should have
    sent, and hear of it when it is gone."""
    before = sys.excepthook
    codes: list[int] = []

    def note(kind: type[BaseException], *error: Any) -> None:
        before(kind, *error)
        codes.append(LOST if issubclass(kind, LostProcessError) else 1)

    def leave() -> None:
        if codes:
            end(codes[0])

    sys.excepthook = note
    atexit.register(leave)  # which comes before what JAX registered


def end(code: int) -> None:
    """End this process now; what it wrote is written."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_script(words: list[str]) -> None:
    """Run a script with its arguments as one of several processes."""
    initialize()
    sys.argv = words
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as stop:
        if stop.code is not None and stop.code != 0:
            if not isinstance(stop.code, int):
                print(stop.code, file=sys.stderr)
            end(stop.code if isinstance(stop.code, int) else 1)


def process_count() -> int:
    """How many processes there are."""
    return current_processes.all.count


def process_index() -> int:
    """Which of them this is, from 0."""
    return current_processes.all.index
