"""Semaphores: counters that tasks wait on, with a record of who signalled."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from meshwright.core.source import Source, here
from meshwright.kernel.language.indexing import resolve
from meshwright.kernel.language.spaces import MemorySpace, SemaphoreType, semaphore_dtype
from meshwright.kernel.run.faults import SemaphoreError

if TYPE_CHECKING:
    from meshwright.kernel.run.tasks import KernelTask
    from meshwright.kernel.run.transfers import Transfer


_serial = count()


class Signal:
    """One signal to a semaphore, sent or on its way: how much, by whom, and what its sender knew.

    Signals of one ``chain`` are ordered: whoever has the later one knows what the sender of the earlier one knew.
    """

    __slots__ = ("amount", "chain", "clock", "copy", "part", "sender", "source")

    def __init__(
        self,
        amount: int,
        sender: KernelTask,
        source: Source | None,
        chain: Any,
        copy: Transfer | None = None,
        part: str = "",
    ) -> None:
        self.amount = amount
        self.sender = sender
        self.source = source
        self.chain = chain
        self.copy = copy
        self.part = part  # "read" or "write": which part of the copy is over
        self.clock = None if sender.clock is None or copy is not None else sender.clock.copy()


class InTurn:
    """Signals sent to a semaphore; each is taken to have come before the next."""

    __slots__ = ("sent",)

    def __init__(self) -> None:
        self.sent: deque[Signal] = deque()

    def add(self, signal: Signal) -> None:
        self.sent.append(signal)

    def signals(self) -> list[Signal]:
        return list(self.sent)

    def pop(self, taken: int) -> list[Signal]:
        """Take out those that add up to what was taken."""
        found = []
        while self.sent and taken >= self.sent[0].amount:
            found.append(self.sent.popleft())
            taken -= found[-1].amount
        return found


class Unproved:
    """Signals sent to a semaphore that no wait has proved to have come: by chain, and beside each chain its sum.

    ``weightiest`` is a heap of how much each chain's first signal weighs, with some that are no longer true: what
    cannot have come unless all of it has. The bytes of a copy come one by one, a signal comes as a whole.
    """

    __slots__ = ("chains", "fresh", "total", "weightiest")

    def __init__(self) -> None:
        self.total = 0
        self.fresh: list[Signal] = []  # those that are in no chain yet: most waits are for all there are
        self.chains: dict[Any, tuple[deque[Signal], int]] = {}
        self.weightiest: list[tuple[int, int, Any]] = []

    def add(self, signal: Signal) -> None:
        self.total += signal.amount
        self.fresh.append(signal)

    def _link(self) -> None:
        """Put signals into chains."""
        for signal in self.fresh:
            chain, length = self.chains.get(signal.chain) or (deque(), 0)
            chain.append(signal)
            self._set(signal.chain, chain, length + signal.amount)
        self.fresh = []

    def _set(self, name: Any, chain: deque[Signal], length: int) -> None:
        self.chains[name] = (chain, length)
        heappush(self.weightiest, (-_weight(chain, length), next(_serial), name))

    def signals(self) -> list[Signal]:
        linked = [signal for chain, _ in self.chains.values() for signal in chain] if self.chains else []
        return linked + self.fresh

    def pop(self, taken: int) -> list[Signal]:
        """Take out those that must have come for that much to have been taken.

        Without the last of a signal and the later ones of its chain, ``total - weight`` could have come; if that is
        less than what was taken, all of the signal has come.
        """
        left = self.total - taken
        if left <= 0:  # all have come
            every = self.signals()
            self.total = 0
            self.fresh = []
            if self.chains:
                self.chains.clear()
                self.weightiest.clear()
            return every
        self._link()
        found: list[Signal] = []
        while self.weightiest and -self.weightiest[0][0] > left:
            weight, _, name = heappop(self.weightiest)
            chain, length = self.chains.get(name, (None, 0))
            if chain is None or _weight(chain, length) != -weight:
                continue  # the chain has changed since
            while chain and _weight(chain, length) > left:
                found.append(chain.popleft())
                length -= found[-1].amount
            if chain:
                self._set(name, chain, length)
            else:
                del self.chains[name]
        if not self.chains:
            self.weightiest.clear()
        self.total -= sum(signal.amount for signal in found)
        return found


def _weight(chain: deque[Signal], length: int) -> int:
    """How much of a chain cannot have come unless all of its first signal has."""
    first = chain[0]
    return length if first.copy is None else length - first.amount + 1


class Semaphore:
    """One counter of one device. There may be many that nobody ever signals."""

    __slots__ = ("array", "count", "index", "last", "passed", "record", "spent", "times", "waiter")

    def __init__(self, array: SemaphoreArray, index: tuple[int, ...]) -> None:
        self.array = array
        self.index = index
        self.count = 0
        self.times: list[tuple[float, int]] | None = None  # a heap: when it was signalled by how much
        self.waiter: KernelTask | None = None
        self.last: Signal | None = None
        self.record: InTurn | Unproved | None = None
        # The last wait for signals of several devices: whose, its event, and who had signalled.
        self.passed: tuple[int, int, frozenset[int]] | None = None
        self.spent = 0  # how much was waited for of signals that are still in the record

    @property
    def label(self) -> str:
        return self.array.label + (str(list(self.index)) if self.index else "")

    @property
    def title(self) -> str:
        """``the semaphore send[1]``, ``the barrier semaphore``."""
        return self.label if self.label.startswith("the ") else f"the semaphore {self.label}"

    def arrive(self, time: float, amount: int) -> None:
        """Keep the time at which a signal comes."""
        if self.times is None:
            self.times = []
        heappush(self.times, (time, amount))

    def reached(self, value: int, take: bool) -> float:
        """When signals had added up to ``value``; what is taken does not count again."""
        times = (self.times or []) if take else sorted(self.times or [])
        left, at = value, 0.0
        while left > 0 and times:
            at, amount = heappop(times)
            if amount > left and take:
                heappush(times, (at, amount - left))
            left -= amount
        return at

    def signals(self) -> list[Signal]:
        """The signals sent or on their way of which nobody knows that they were waited for."""
        return [] if self.record is None else self.record.signals()

    def add(self, signal: Signal, prove: bool) -> None:
        """A signal is on its way, to be waited for, or to be proved to have come."""
        self.last = signal
        if self.record is None:
            self.record = Unproved() if prove else InTurn()
        self.record.add(signal)

    def take(self, value: int, keep: bool = False) -> list[Signal]:
        """Take ``value`` from the counter (or ``keep`` it there); the signals that are now known to have come."""
        found = [] if self.record is None else self.record.pop(self.spent + value)
        for signal in found:
            self.spent -= signal.amount
        if not keep:
            self.count -= value
            self.spent += value
        return found


class SemaphoreArray:
    """An allocation of semaphores; ``key`` is its address, as of a buffer."""

    __slots__ = (
        "alive", "birth", "core", "device", "free_since", "key", "kind", "label", "scoped", "shape", "used",
    )  # fmt: skip

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
        self.shape = shape
        self.used: dict[int, Semaphore] = {}  # by number, the last dim running fastest: those that somebody has used

    def number(self, number: int) -> Semaphore:
        """The semaphore with a number."""
        found = self.used.get(number)
        if found is None:
            index, rest = [], number
            for size in reversed(self.shape):
                index.append(rest % size)
                rest //= size
            found = self.used[number] = Semaphore(self, tuple(reversed(index)))
        return found

    def at(self, index: tuple[int, ...]) -> Semaphore:
        """The semaphore at a place."""
        number = 0
        for at, size in zip(index, self.shape, strict=True):
            number = number * size + at
        return self.number(number)

    def restore(self, counts: Any) -> None:
        """Go on from the counts of an earlier kernel."""
        for number in np.flatnonzero(counts).tolist():
            semaphore = self.number(number)
            semaphore.count = int(counts.flat[number])
            semaphore.spent = -semaphore.count  # nothing more is to be learnt from waiting for it

    def hand_over(self) -> Any:
        """The counts, for a later kernel; nothing is left here."""
        counts = np.zeros(self.shape, self.kind.count_dtype)
        for semaphore in self:
            counts[semaphore.index] = semaphore.count
            semaphore.count = 0
            semaphore.record = None
        return counts

    def __iter__(self) -> Iterator[Semaphore]:
        """Those that somebody has used: all others are zero."""
        return iter(list(self.used.values()))


class SemaphoreRef:
    """A semaphore, or an array of them, as a kernel sees it."""

    __slots__ = ("array", "index", "places", "single")

    def __init__(self, array: SemaphoreArray, places: Any = None, index: tuple[Any, ...] = ()) -> None:
        self.array = array
        if places is None:
            places = np.arange(prod(array.shape)).reshape(array.shape) if array.shape else 0
        self.places = places  # the numbers of the semaphores, as an array; a number if it is one
        self.index = index  # the steps by which they were selected
        self.single: Semaphore | None = None  # the one it is, once it was asked for

    @property
    def shape(self) -> tuple[int, ...]:
        return () if self.places.__class__ is int else self.places.shape  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Semaphore]:
        return iter([self.array.number(place) for place in np.ravel(self.places).tolist()])

    @property
    def memory_space(self) -> MemorySpace:
        return MemorySpace.SEMAPHORE

    @property
    def dtype(self) -> type[semaphore_dtype]:
        """What it holds, by its kind."""
        return self.array.kind.dtype

    @property
    def at(self) -> _SemaphoreAt:
        return _SemaphoreAt(self)

    def one(self) -> Semaphore:
        """The one semaphore this is."""
        if self.single is not None:
            return self.single
        place = self.places
        if place.__class__ is not int:
            raise SemaphoreError(
                f"An array of semaphores of shape {self.shape} is used as one semaphore.",
                where=here(),
                why="a signal or a wait goes to one of them",
                fix=f"{self.array.label}.at[i]",
            )
        self.single = self.array.number(place)
        return self.single

    def __getitem__(self, key: Any) -> Any:
        raise SemaphoreError(
            f"{self.array.label} is indexed as memory.",
            where=here(),
            why="a semaphore holds no values to load or store",
            fix=f"{self.array.label}.at[i] is one of an array; pltpu.semaphore_read(…) is its count",
        )

    def __setitem__(self, key: Any, value: Any) -> None:
        self[key]

    def __repr__(self) -> str:
        return f"<semaphore {self.array.label} of shape {self.shape}>"


class _SemaphoreAt:
    __slots__ = ("ref",)

    def __init__(self, ref: SemaphoreRef) -> None:
        self.ref = ref

    def __getitem__(self, key: Any) -> SemaphoreRef:
        ref = self.ref
        index, _ = resolve(ref.shape, key)
        places = np.asarray(ref.places)[index]
        return SemaphoreRef(ref.array, places if places.shape else int(places), (*ref.index, index))
