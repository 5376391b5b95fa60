"""The devices that a JAX program finds: as many as it was started with, or as its settings say."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from meshwright.core.current import current_processes
from meshwright.core.source import here
from meshwright.errors import MeshError
from meshwright.sharding.device import Device

_FLAG = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


class _Available:
    count: int | None = None  # as --devices or jax_num_cpu_devices say
    kind: str = "cpu"


available = _Available()


def devices(backend: str | None = None) -> list[Device]:
    """All devices: as many as ``meshwright run-jax --devices``, ``jax_num_cpu_devices`` or ``XLA_FLAGS`` say, or one.

    >>> devices()[:1]
    [CpuDevice(id=0)]
    """
    if backend is not None and backend not in (available.kind, available.kind.split()[0]):
        raise MeshError(
            f"There are no devices of the kind {backend!r}.",
            where=here(),
            why=f"the devices of this program are of the kind {available.kind!r}",
            fix=f"jax.devices({available.kind!r})",
        )
    asked = _FLAG.findall(os.environ.get("XLA_FLAGS", ""))
    count = available.count if available.count is not None else int(asked[-1]) if asked else 1
    return [Device(n, available.kind) for n in range(count)]


def local_devices(process_index: int | None = None, backend: str | None = None, host_id: Any = None) -> list[Device]:
    """The devices of this process: all of them."""
    return devices(backend)


def device_count(backend: str | None = None) -> int:
    """How many devices there are."""
    return len(devices(backend))


def local_device_count(backend: str | None = None) -> int:
    """How many devices this process has."""
    return len(local_devices(backend=backend))


def process_count(backend: str | None = None) -> int:
    """How many processes run the program."""
    return current_processes.all.count


def process_index(backend: str | None = None) -> int:
    """Which of the processes this is."""
    return current_processes.all.index


def process_indices(backend: str | None = None) -> list[int]:
    """The numbers of all processes."""
    return list(range(process_count()))


def default_backend() -> str:
    """The kind of the devices."""
    return available.kind.split()[0]


def set_devices(count: int | None, kind: str = "cpu") -> None:
    """Say how many devices the program finds, and of which kind; None: as its environment says."""
    available.count, available.kind = count, kind


def first(count: int, among: Sequence[Device] | None = None) -> list[Device]:
    """As many devices as a mesh needs: of those given, or of all, or else virtual ones beyond them."""
    found = list(devices() if among is None else among)
    return found[:count] if len(found) >= count else [Device(n, available.kind) for n in range(count)]
