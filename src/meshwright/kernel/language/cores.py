"""The cores of a device, along an axis of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meshwright.core.source import here
from meshwright.kernel.language.copies import semaphore_signal, semaphore_wait
from meshwright.kernel.language.position import TaskPosition
from meshwright.kernel.run.faults import KernelError


@dataclass(frozen=True)
class TensorCoreMesh:
    """The cores of a device, along an axis of their own: ``lax.axis_index("core")`` says which one it is."""

    axis_name: str = "core"
    num_cores: int = 1


def create_tensorcore_mesh(axis_name: str, devices: Any = None, num_cores: int | None = None) -> TensorCoreMesh:
    """Name the cores of a device; ``devices`` would say of which kind it is, and here it has as many as are asked for.

    >>> create_tensorcore_mesh("core", num_cores=2)
    TensorCoreMesh(axis_name='core', num_cores=2)
    """
    return TensorCoreMesh(axis_name, num_cores or 1)


def core_mesh(mesh: Any) -> tuple[str, int]:
    """The axis of a mesh of cores, and its size."""
    if not isinstance(mesh, TensorCoreMesh):
        raise KernelError(
            f"A kernel is to run on the cores {mesh!r}.",
            where=here(),
            why="here it runs on tensor cores, the same body on each",
            fix='mesh=pltpu.TensorCoreMesh(axis_name="core", num_cores=2)',
        )
    return mesh.axis_name, mesh.num_cores


def run_on_first_core(core_axis_name: str) -> Callable[[Callable[[], Any]], None]:
    """Run the decorated function now, on the first core along an axis alone."""

    def run(function: Callable[[], Any]) -> None:
        if int(TaskPosition().axis_index(core_axis_name)) == 0:
            function()

    return run


def core_barrier(sem: Any, *, core_axis_name: str) -> None:
    """Let no core go on before all along an axis have come here; ``sem`` is a regular semaphore of each."""
    here_is, count = TaskPosition().axis_index(core_axis_name), TaskPosition().axis_size(core_axis_name)
    for other in range(1, count):
        semaphore_signal(sem, device_id={core_axis_name: (int(here_is) + other) % count})
    semaphore_wait(sem, count - 1)
