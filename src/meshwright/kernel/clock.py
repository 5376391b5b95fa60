"""How long things take. This clock stands still: everything happens in order, at no cost.

One that runs overrides ``copy_seconds`` and moves ``Task.time`` on where a task computes. The machine does the rest:
copies of one link come one after another, the first to be over happens first, and who waits for a semaphore goes on
at the time of the signal.
"""

from __future__ import annotations

from typing import Any

from meshwright.kernel.transfers import Transfer


class Clock:
    """Times of copies, by the link they take."""

    def __init__(self) -> None:
        self.free: dict[Any, float] = {}  # when each link has done all it was given

    def copy_seconds(self, copy: Transfer) -> float:
        """How long a copy takes on a free link."""
        return 0.0

    def finish(self, copy: Transfer, now: float) -> float:
        """When a copy started now is over."""
        end = max(now, self.free.get(copy.link, 0.0)) + self.copy_seconds(copy)
        self.free[copy.link] = end
        return end
