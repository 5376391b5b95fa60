"""Semaphores: counters that tasks wait on, with a record of who signalled."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import numpy as np

from meshwright.core.source import Source, here
from meshwright.kernel.faults import SemaphoreError
from meshwright.kernel.indexing import resolve
from meshwright.kernel.spaces import MemorySpace, SemaphoreType

if TYPE_CHECKING:
    from meshwright.kernel.tasks import Task
    from meshwright.kernel.transfers import Transfer


class Signal:
    """One signal to a semaphore, sent or on its way: how much, by whom, and what its sender knew.

    Signals of one ``chain`` are ordered: whoever has the later one knows what the sender of the earlier one knew.
    """

    __slots__ = ("amount", "chain", "clock", "copy", "part", "sender", "source")

    def __init__(
        self, amount: int, sender: Task, source: Source | None, chain: Any, copy: Transfer | None = None, part: str = ""
    ) -> None:
        self.amount = amount
        self.sender = sender
        self.source = source
        self.chain = chain
        self.copy = copy
        self.part = part  # "read" or "write": which part of the copy is over
        self.clock = None if sender.clock is None or copy is not None else sender.clock.copy()


class Semaphore:
    """One counter of one device."""

    __slots__ = ("array", "chains", "count", "index", "last", "longest", "signals", "spent", "times", "total", "waiter")

    def __init__(self, array: SemaphoreArray, index: tuple[int, ...]) -> None:
        self.array = array
        self.index = index
        self.count = 0
        self.times: list[tuple[float, int]] = []  # a heap: when it was signalled by how much, where time is kept
        self.waiter: Task | None = None
        self.last: Signal | None = None
        self.spent = 0  # how much was waited for of signals that no wait has proved to have come
        self.forget()

    def forget(self) -> None:
        """Start anew, with no signal that is still to be proved."""
        self.signals: list[Signal] = []
        self.total = 0  # of their amounts
        self.chains: dict[Any, int] = {}  # the same by chain
        self.longest = 0  # no chain has ever had more

    @property
    def label(self) -> str:
        return self.array.label + (str(list(self.index)) if self.index else "")

    def reached(self, value: int, take: bool) -> float:
        """When signals had added up to ``value``; what is taken does not count again."""
        times = self.times if take else sorted(self.times)
        left, at = value, 0.0
        while left > 0 and times:
            at, amount = heappop(times)
            if amount > left and take:
                heappush(times, (at, amount - left))
            left -= amount
        return at

    def add(self, signal: Signal) -> None:
        """A signal is on its way."""
        self.last = signal
        self.signals.append(signal)
        self.total += signal.amount
        chain = self.chains[signal.chain] = self.chains.get(signal.chain, 0) + signal.amount
        self.longest = max(self.longest, chain)

    def proved(self, value: int) -> list[Signal]:
        """The signals that must have come for a wait to have taken ``value``, in addition to what was taken before.

        All signals together are ``total``. Without a signal and the later ones of its chain, ``total - later`` could
        have come; if that is less than what was taken, the signal has come.
        """
        left = self.total - (self.spent + value)
        if left <= 0:
            return list(self.signals)
        if left >= self.longest:
            return []
        later: dict[Any, int] = {}
        found = []
        for signal in reversed(self.signals):
            later[signal.chain] = later.get(signal.chain, 0) + signal.amount
            if later[signal.chain] > left:
                found.append(signal)
        return found

    def take(self, value: int) -> list[Signal]:
        """Take ``value`` from the counter; the signals that are now proved to have come."""
        self.count -= value
        found = self.proved(value)
        self.spent += value - sum(s.amount for s in found)
        if len(found) == len(self.signals):
            self.forget()
        elif found:
            gone = set(map(id, found))
            self.signals = [s for s in self.signals if id(s) not in gone]
            for signal in found:
                self.total -= signal.amount
                self.chains[signal.chain] -= signal.amount
        return found


class SemaphoreArray:
    """An allocation of semaphores; ``key`` is its address, as of a buffer."""

    __slots__ = ("alive", "birth", "cells", "core", "device", "free_since", "key", "kind", "label", "scoped")

    def __init__(self, key: Any, label: str, kind: SemaphoreType, shape: tuple[int, ...], device: int, core: int):
        self.key = key
        self.label = label
        self.kind = kind
        self.device = device
        self.core = core
        self.alive = True
        self.birth = 0
        self.free_since = 1  # the event of its device since which nothing else is at its address
        self.scoped = False  # whether its scope has ended, before the kernel
        self.cells = np.empty(shape, object)
        for index in np.ndindex(shape):
            self.cells[index] = Semaphore(self, index)

    def restore(self, counts: Any) -> None:
        """Go on from the counts of an earlier kernel."""
        for semaphore, count in zip(self, counts.flat, strict=True):
            semaphore.count = int(count)
            semaphore.spent = -semaphore.count  # nothing more is to be learnt from waiting for it

    def hand_over(self) -> Any:
        """The counts, for a later kernel; nothing is left here."""
        counts = np.zeros(self.cells.shape, np.int32)
        for semaphore in self:
            counts[semaphore.index] = semaphore.count
            semaphore.count = 0
            semaphore.forget()
        return counts

    def __iter__(self) -> Any:
        return iter(self.cells.flat)


class SemaphoreRef:
    """A semaphore, or an array of them, as a kernel sees it."""

    __slots__ = ("array", "cells", "index")

    def __init__(self, array: SemaphoreArray, cells: Any = None, index: tuple[Any, ...] = ()) -> None:
        self.array = array
        self.cells = array.cells if cells is None else cells
        self.index = index  # the steps by which the cells were selected

    @property
    def shape(self) -> tuple[int, ...]:
        return () if self.cells.__class__ is Semaphore else self.cells.shape  # type: ignore[no-any-return]

    @property
    def memory_space(self) -> MemorySpace:
        return MemorySpace.SEMAPHORE

    @property
    def at(self) -> _At:
        return _At(self)

    def one(self) -> Semaphore:
        """The one semaphore this is."""
        cell = self.cells
        if cell.__class__ is not Semaphore:
            if cell.shape != ():
                raise SemaphoreError(
                    f"An array of semaphores of shape {cell.shape} is used as one semaphore.",
                    where=here(),
                    why="a signal or a wait goes to one of them",
                    fix=f"{self.array.label}.at[i]",
                )
            cell = cell[()]
        return cell  # type: ignore[return-value]

    def __repr__(self) -> str:
        return f"<semaphore {self.array.label} of shape {self.shape}>"


class _At:
    __slots__ = ("ref",)

    def __init__(self, ref: SemaphoreRef) -> None:
        self.ref = ref

    def __getitem__(self, key: Any) -> SemaphoreRef:
        index, _ = resolve(self.ref.shape, key)
        return SemaphoreRef(self.ref.array, self.ref.cells[index], (*self.ref.index, index))
