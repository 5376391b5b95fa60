"""Semaphores: counters that tasks wait on, with a record of who signalled."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from meshwright.core.source import Source, here
from meshwright.kernel.faults import SemaphoreError
from meshwright.kernel.indexing import resolve
from meshwright.kernel.spaces import MemorySpace, SemaphoreType

if TYPE_CHECKING:
    from meshwright.kernel.tasks import Task
    from meshwright.kernel.transfers import Transfer


_serial = count()


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
    """One counter of one device.

    Where races are looked for, ``chains`` are the signals that no wait has proved to have come, by chain, and beside
    them how much they add up to; ``longest`` is a heap of these sums, with some that are no longer true.
    """

    __slots__ = ("array", "chains", "count", "index", "last", "longest", "sent", "spent", "times", "total", "waiter")

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
        self.sent: deque[Signal] = deque()  # where races are not looked for
        self.total = 0  # of signals in chains
        self.chains: dict[Any, tuple[deque[Signal], int]] = {}
        self.longest: list[tuple[int, int, Any]] = []

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

    def signals(self) -> list[Signal]:
        """The signals sent or on their way of which nobody knows that they were waited for."""
        return [*self.sent, *(signal for chain, _ in self.chains.values() for signal in chain)]

    def take_in_turn(self, value: int) -> None:
        """Take ``value`` from the counter, of the first signals first."""
        self.count -= value
        self.spent += value
        while self.sent and self.spent >= self.sent[0].amount:
            signal = self.sent.popleft()
            signal.copy = None  # lets go of the memory it was between
            self.spent -= signal.amount

    def add(self, signal: Signal) -> None:
        """A signal is on its way, to be proved."""
        self.last = signal
        self.total += signal.amount
        chain, length = self.chains.get(signal.chain) or (deque(), 0)
        chain.append(signal)
        self._set(signal.chain, chain, length + signal.amount)

    def _set(self, name: Any, chain: deque[Signal], length: int) -> None:
        self.chains[name] = (chain, length)
        heappush(self.longest, (-length, next(_serial), name))

    def take(self, value: int, keep: bool = False) -> list[Signal]:
        """Take ``value`` from the counter (or ``keep`` it there); the signals that are now proved to have come.

        All signals together are ``total``. Without a signal and the later ones of its chain, ``total - later`` could
        have come; if that is less than what was taken, the signal has come.
        """
        left = self.total - (self.spent + value)
        found: list[Signal] = []
        while self.longest and -self.longest[0][0] > left:
            length, _, name = heappop(self.longest)
            chain, now = self.chains.get(name, (None, 0))
            if chain is None or now != -length:
                continue  # the chain has changed since
            while chain and now > left:
                found.append(chain.popleft())
                now -= found[-1].amount
            if chain:
                self._set(name, chain, now)
            else:
                del self.chains[name]
        if not self.chains:
            self.longest.clear()
        proved = sum(signal.amount for signal in found)
        self.total -= proved
        self.spent -= proved
        if not keep:
            self.count -= value
            self.spent += value
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
        for semaphore, number in zip(self, counts.flat, strict=True):
            semaphore.count = int(number)
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
