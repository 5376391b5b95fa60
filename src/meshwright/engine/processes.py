"""Many processes, each with devices of its own, as one machine: JAX's, for engine ``xla``.

Every process runs the same script. A mesh is over the devices of all of them, and a jitted function runs on each
process's own; what is put onto a mesh is given whole to every process, which makes only its own shards of it.
``meshwright launch -n 4 script.py`` starts local processes; on a cluster, call `initialize` first.
"""

from __future__ import annotations

import os
from typing import Any

from meshwright.core.current import current_engine
from meshwright.core.source import here
from meshwright.engine.xla import needed
from meshwright.errors import MeshwrightError

COORDINATOR, COUNT, NUMBER, DEVICES = (
    f"MESHWRIGHT_{name}" for name in ("COORDINATOR", "PROCESSES", "PROCESS", "DEVICES")
)
HEARTBEAT_SECONDS = 30  # after which the others know that a process is gone
_begun: list[bool] = []


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
    current_engine.name = "xla"


def process_count() -> int:
    """How many processes there are."""
    if not _begun:
        return 1
    import jax

    return int(jax.process_count())


def process_index() -> int:
    """Which of them this is, from 0."""
    if not _begun:
        return 0
    import jax

    return int(jax.process_index())
