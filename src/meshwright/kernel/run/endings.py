"""Bodies that do not come to an end, or come to one of a kind that is not theirs, told."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from meshwright.core.source import Source, is_users
from meshwright.kernel.run.faults import EndlessError, KernelError

if TYPE_CHECKING:
    from meshwright.kernel.run.machine import KernelMachine
    from meshwright.kernel.run.tasks import KernelTask


def _users_line(traceback: TracebackType | None) -> Source | None:
    """The innermost line of the user's in a traceback."""
    found = None
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if is_users(file):
            found = Source(file, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


def endless(task: KernelTask | None, source: Source | None, why: str) -> EndlessError:
    """The error for a body that does not come to an end."""
    on = f" on {task.name}" if task is not None and len(task.machine.tasks) > 1 else ""
    return EndlessError(
        f"The body of the kernel{on} does not come to an end.",
        where=source.show() if source else "",
        why=why,
        fix="a loop that ends; for a long one, debug=pl.Debug(races=False, most_seconds=3600, most_actions=10**9)",
    )


def stopped(machine: KernelMachine, error: BaseException) -> EndlessError:
    """The error for a body that was stopped, at the line it had come to."""
    why = f"nothing has been seen of it for {machine.most_seconds:g} seconds: no signal, no wait, no copy"
    return endless(machine.stopped, _users_line(error.__traceback__) or machine.home, why)


def left_by_exit(task: KernelTask, error: BaseException) -> KernelError:
    """The error for a body that raises what ends greenlets."""
    source = _users_line(error.__traceback__) or task.machine.home
    return KernelError(
        "The body of a kernel raises GreenletExit.",
        where=source.show() if source else "",
        why="tasks of kernels are greenlets, which end by it without a word: results would be missing",
        fix="return, or raise another exception",
    )
