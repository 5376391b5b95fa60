"""Deadlocks told: who waits for what, where, and who has signalled it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.core.source import Source, is_users
from meshwright.kernel.run.faults import DeadlockError
from meshwright.kernel.run.tasks import KernelTask


def deadlock(
    tasks: Sequence[KernelTask], signallers: Mapping[Any, set[tuple[int, Source | None]]], home: Source | None
) -> DeadlockError:
    """The error for tasks that wait for one another: where each waits, for what, and who could have signalled it."""
    stuck = [task for task in tasks if not task.done]
    shown = stuck[:8]
    lines, reasons = [], []
    for task in shown:
        source = _suspended_at(task) or home
        semaphore = task.waiting
        assert semaphore is not None
        lines.append(f"{source.show() if source else 'the pipeline'}   ({task.name} {task.why})")
        held = f"{task.name} needs {task.need} of {semaphore.label}, which is at {semaphore.count}; "
        senders = sorted(signallers.get(semaphore.array.key, ()), key=lambda found: (found[0], found[1] or ("", 0)))
        if senders:
            at = dict.fromkeys(str(source) for _, source in senders if source)
            names = list(dict.fromkeys(tasks[entity].name for entity, _ in senders))
            held += f"it has been signalled at {', '.join(at)} by {_some(names)}"
        else:
            held += "no device has signalled it"
        reasons.append(held)
    if len(stuck) > len(shown):
        lines.append(f"and {len(stuck) - len(shown)} more devices")
    over = [task.name for task in tasks if task.done]
    if over:
        reasons.append(f"{_some(over)} {'has' if len(over) == 1 else 'have'} returned")
    what = "waits for a signal" if len(stuck) == 1 else "wait for signals"
    return DeadlockError(
        f"The kernel cannot go on: {len(stuck)} of {len(tasks)} devices {what} that nobody will send.",
        where="\n".join(lines),
        why="\n".join(reasons),
        fix="send as many signals to each device as it waits for, and start every copy that is waited for",
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _suspended_at(task: KernelTask) -> Source | None:
    """The user's line at which a task has stopped."""
    frame = task.greenlet.gr_frame if task.greenlet is not None else None
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return Source(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None
