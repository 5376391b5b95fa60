"""What tasks allocate: memory and semaphores of every device, by address; what holds when they are given back."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from meshwright.core.source import Source
from meshwright.kernel.language.semaphores import SemaphoreArray
from meshwright.kernel.language.spaces import ACC, MemorySpace, MemoryType, Semaphores, SemaphoreType
from meshwright.kernel.races.checker import AccessChecker
from meshwright.kernel.races.history import History
from meshwright.kernel.run.faults import CapacityError, SemaphoreError, UnfinishedCopyError
from meshwright.kernel.run.memory import Buffer, Data, Unfilled, fill_poison
from meshwright.kernel.run.pool import pool

if TYPE_CHECKING:
    from meshwright.kernel.run.tasks import KernelTask
    from meshwright.kernel.run.transfers import Transfer

MOST_SEMAPHORES = 1 << 16  # in one array


class Memories:
    """The memories of all devices; ``limits`` are the bytes that a core has of each space."""

    def __init__(self, limits: dict[MemorySpace, float], home: Source | None) -> None:
        self.limits = limits
        self.home = home
        self.memory: dict[tuple[int, int, Any], Any] = {}
        self.early: dict[tuple[int, int, Any], SemaphoreArray] = {}  # signalled before their device has made them
        self.entered: dict[tuple[int, int, Any], int] = {}  # how often semaphores were made at an address
        self.left: dict[tuple[int, int, Any], int] = {}  # the event at which an address was last given back
        self.pending: dict[int, Transfer] = {}  # the copies under way, by number: in the order they were started
        self.history: History | None = None
        self.collective_id: int | None = None

    def device_name(self, device: int, core: int = 0) -> str:
        """What messages call a core of a device."""
        raise NotImplementedError

    def allocate(
        self,
        task: KernelTask,
        key: Any,
        label: str,
        wanted: MemoryType | Semaphores,
        data: Data | None = None,
        place: Data | None = None,
    ) -> Any:
        """Memory or semaphores for a task, at the address ``key``; with ``data``, holding it, or at a given place."""
        made: Buffer | SemaphoreArray
        if isinstance(wanted, Semaphores):
            made = self._semaphores(task, key, label, wanted)
        else:
            core = task.core if wanted.memory_space.of_core else -1
            self._count(task, wanted, label)
            # Filling large memory costs as much as writing it, and most of it is written by copies before it is read.
            late = data is None and wanted.nbytes > 1 << 16
            memory = data if data is not None else place
            if memory is None:
                memory = pool.empty(wanted.shape, wanted.dtype, label)
            if isinstance(wanted.memory_space, ACC):
                memory[...], late = 0, False
            elif data is None and not late:
                fill_poison(memory)
            made = Buffer(key, label, wanted.memory_space, memory, task.device, core)
            made.unfilled = Unfilled() if late else None
            if self.history is not None and not isinstance(wanted.memory_space, ACC):
                made.accesses = AccessChecker(self.history, made, data is not None)
        if self.history is not None:
            made.birth = int(task.clock[task.entity])
        self.memory[(task.device, made.core, key)] = made
        return made

    def _semaphores(self, task: KernelTask, key: Any, label: str, wanted: Semaphores) -> SemaphoreArray:
        """Semaphores at an address, with what others have signalled there before this task came to them."""
        if prod(wanted.shape) > MOST_SEMAPHORES:
            raise CapacityError(
                f"The kernel needs {prod(wanted.shape)} semaphores for {label}.",
                where=self.home.show() if self.home else "",
                why=f"an array of semaphores has up to {MOST_SEMAPHORES}",
                fix=f"pltpu.SemaphoreType.{wanted.kind.name}((2,))",
            )
        place = (task.device, task.core, key)
        self.entered[place] = self.entered.get(place, 0) + 1
        made = self.early.get(place)
        if made is not None and (made.kind, made.shape) == (wanted.kind, wanted.shape):
            del self.early[place]
            made.label = label
            return made
        made = SemaphoreArray(key, label, wanted.kind, wanted.shape, task.device, task.core)
        made.free_since = self.left.get(place, 1)
        return made

    def semaphores_of(self, own: SemaphoreArray, device: int, core: int) -> SemaphoreArray | None:
        """The semaphores of another device at the same address, also before that device has come to make them.

        None if it has left them again.
        """
        place = (device, core, own.key)
        found = self.memory.get(place) or self.early.get(place)
        if found is None and self.entered.get(place, 0) < self.entered.get((own.device, own.core, own.key), 0):
            found = self.early[place] = SemaphoreArray(own.key, own.label, own.kind, own.shape, device, core)
            found.free_since = self.left.get(place, 1)
        return found if isinstance(found, SemaphoreArray) and found.shape == own.shape else None

    def _count(self, task: KernelTask, wanted: MemoryType, label: str) -> None:
        used = task.used.get(wanted.memory_space, 0) + wanted.nbytes
        limit = self.limits.get(wanted.memory_space)
        if limit is not None and used > limit:
            source = task.source()
            raise CapacityError(
                f"The kernel needs {used} bytes of {wanted.memory_space.name}, a core has {limit:.0f}.",
                where=source.show() if source else "",
                why=f"{label} is {wanted}, {wanted.nbytes} bytes, beside {used - wanted.nbytes} in use",
                fix="smaller blocks, or fewer buffers per block",
            )
        task.used[wanted.memory_space] = used

    def free(self, task: KernelTask, made: Buffer | SemaphoreArray) -> None:
        """Give memory back; nothing may be under way to it."""
        made.alive = False
        del self.memory[(made.device, made.core, made.key)]
        if self.history is not None:
            self.left[(made.device, made.core, made.key)] = int(task.clock[task.entity])
        if isinstance(made, SemaphoreArray):
            made.scoped = True
            self.check_spent(made)
            for semaphore in made:
                semaphore.record = semaphore.last = None
            made.used.clear()
            return
        task.used[made.space] -= made.data.nbytes
        for copy in self.pending.values():
            if copy.uses(made):
                raise self._unfinished(copy, f"the scope of {made.label} ends")
        made.accesses = None  # it refers to the memory

    def check_spent(self, array: SemaphoreArray) -> None:
        """Require that every semaphore is zero, with nothing under way to it."""
        for semaphore in array:
            copies = [s.copy for s in semaphore.signals() if s.copy is not None]
            if copies:
                when = f"the scope of {array.label} ends" if array.scoped else "the kernel ends"
                raise self._unfinished(copies[0], when)
            if semaphore.count:
                signal = semaphore.last
                raise SemaphoreError(
                    f"{semaphore.title} of {self.device_name(array.device, array.core)} is left at {semaphore.count}.",
                    where=signal.source.show() if signal and signal.source else "",
                    why="every signal must be waited for: the next kernel starts from zero"
                    + (f"; {signal.sender.name} sent the last one" if signal else ""),
                    fix="copy.wait() for copies of as many bytes as were started"
                    if array.kind is SemaphoreType.DMA
                    else f"pltpu.semaphore_wait({semaphore.label.removeprefix('the ').split()[0]}, {semaphore.count})",
                )

    def _unfinished(self, copy: Transfer, when: str) -> UnfinishedCopyError:
        return UnfinishedCopyError(
            f"{copy.name[0].upper()}{copy.name[1:]} is not waited for when {when}.",
            where=copy.source.show() if copy.source else "",
            why="it may still be under way, and its semaphore keeps its bytes",
            fix="copy.wait(), or for a remote copy copy.wait_send() on the sender and copy.wait_recv() on the receiver",
        )

    def barrier(self, device: int, core: int, tag: Any = None) -> SemaphoreArray:
        """The barrier semaphore of a device, there before the kernel starts."""
        key = ("barrier", self.collective_id, tag)
        found = self.memory.get((device, core, key))
        if found is None:
            label = "the barrier semaphore" + ("" if tag is None else f" {tag!r}")
            found = SemaphoreArray(key, label, SemaphoreType.BARRIER, (), device, core)
            self.memory[(device, core, key)] = found
        return found  # type: ignore[no-any-return]
