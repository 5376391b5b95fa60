"""How long things take. This clock stands still: everything happens in order, at no cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from meshwright.core.trace import Array
from meshwright.kernel.run.transfers import Transfer

if TYPE_CHECKING:
    from meshwright.kernel.run.tasks import KernelTask


class Clock:
    """The times of copies and of computing; the machine moves on by them."""

    runs = False  # whether anything takes time
    dry = False  # whether numbers are left out: floats are neither computed nor copied
    vmem_bytes = 0.0  # what a core has; 0: not known
    chip: str | None = None  # whose times they are

    def finish(self, copy: Transfer, now: float) -> float:
        """When a copy started now is over."""
        return now

    def signal(self, task: KernelTask, device: int) -> float:
        """When a signal that a task sends now comes to a device."""
        return task.time

    def charge_compute(self, task: KernelTask) -> None:
        """A task signals, waits or copies: what it computed until then has taken its time."""

    def waited(self, task: KernelTask, since: float, why: str) -> None:
        """A task has waited, from ``since`` until its time now."""

    def watch(self, op: Any, operands: Any, types: Any, params: Any) -> Any:
        """An op is computed by the running task; its results, if they are not to be computed."""
        return None

    def left_out(self, types: Any) -> Any:
        """Results of these types that are not computed, in a dry run: zeros that take no memory; None for others."""
        results = types if types.__class__ is tuple else (types,)
        if not self.dry or any(t.dtype.kind not in "fcV" for t in results):
            return None
        made = tuple(Array(np.broadcast_to(np.zeros((), t.dtype), t.shape), t) for t in results)
        return made if types.__class__ is tuple else made[0]


def counts_nothing(operands: Any, results: Any) -> bool:
    """Whether an op is on single numbers alone, as indices are: it takes no time."""
    return not any(t.size > 1 for t in results) and all(x.type.size <= 1 for x in operands)
