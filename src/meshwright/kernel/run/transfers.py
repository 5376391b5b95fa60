"""Copies between memories, started by one task and over some time later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from meshwright.core.source import Source, here
from meshwright.errors import DifferentiationError
from meshwright.kernel.language.refs import Ref
from meshwright.kernel.language.semaphores import Semaphore, Signal
from meshwright.kernel.language.spaces import ACC, MemorySpace
from meshwright.kernel.run.faults import CopyError, ScopeError
from meshwright.kernel.run.memory import Buffer, Data, follow

if TYPE_CHECKING:
    from meshwright.kernel.run.tasks import KernelTask


class Transfer:
    """A copy under way: first it reads its source, then it writes its destination, each at any time after the start.

    ``send`` is told when the source is read, ``receive`` when the destination is written; a local copy has one of them.
    """

    __slots__ = (
        "add", "clock", "core", "device", "dst", "finish", "nbytes", "number", "payload", "pipelined", "poison",
        "read_over", "receive", "send", "source", "src", "starter", "undefined", "write_over",
    )  # fmt: skip

    def __init__(
        self, starter: KernelTask, src: Ref, dst: Ref, device: int, core: int, add: bool, source: Source | None
    ) -> None:
        self.starter = starter
        self.src = src
        self.dst = dst
        self.device = device
        self.core = core
        self.add = add
        self.nbytes = src.data.nbytes
        self.number = 0
        self.finish = 0.0
        self.source = source
        self.send: tuple[Semaphore, Signal] | None = None
        self.receive: tuple[Semaphore, Signal] | None = None
        self.payload: Data | None = None
        self.pipelined = False  # whether it is a pipeline's
        self.poison: Any = None  # the read of what nobody wrote that some of it depends on, and the line of its store
        self.undefined: Data | None = None
        self.clock: Any = None
        self.read_over: tuple[int, int] | None = None  # the task and its event that proved the read over
        self.write_over: tuple[int, int] | None = None

    @property
    def plain(self) -> bool:
        """Whether it only copies, from memory to memory of one device that is there, all of it."""
        src, dst = self.src.buffer, self.dst.buffer
        return (
            src.alive
            and dst.alive
            and src.unfilled is dst.unfilled is None
            and not self.add
            and not self.starter.machine.clock.dry
        )

    @property
    def link(self) -> tuple[int, int, int, int]:
        """From where it goes to where."""
        return (self.starter.device, self.starter.core, self.device, self.core)

    @property
    def name(self) -> str:
        """``the copy of device 0 to device 1``."""
        machine = self.starter.machine
        away = self.device != self.starter.device or self.core != self.starter.core
        to = f" to {machine.device_name(self.device, self.core)}" if away else ""
        return f"the copy of {self.starter.name}{to}"

    def read(self, keep: bool) -> None:
        """Read the source; ``keep`` what was read, unless the write follows at once."""
        buffer = self.src.buffer
        if not buffer.alive:
            raise self._gone(buffer)
        if buffer.unfilled is not None:
            buffer.before_read(self.src.box)
        if buffer.accesses is not None:
            self.undefined = buffer.accesses.read_by_copy(self, self.src)
        if keep:
            self.payload = self.src.data.copy()

    def write(self) -> None:
        """Write the destination: the memory at the same address of the device the copy goes to."""
        payload = self.src.data if self.payload is None else self.payload
        buffer = self.target()
        data = follow(buffer.data, self.dst.path) if buffer is not self.dst.buffer else self.dst.data
        if buffer.accesses is not None:
            buffer.accesses.write_by_copy(self, self.dst, self.undefined)
        if buffer.unfilled is not None:
            if self.add:
                buffer.fill_unwritten()
            else:
                buffer.before_write(self.dst.box)
        if is_dry(self.starter, data):
            pass
        elif self.add:
            with np.errstate(all="ignore"):
                data += payload
        else:
            data[...] = payload
        self.payload = None

    def let_go(self) -> None:
        """Once all its signals were waited for, of the memory it was between and of what it knew."""
        sent, received = self.send, self.receive
        if (sent is None or sent[1].copy is None) and (received is None or received[1].copy is None):
            self.src = self.dst = self.clock = None  # type: ignore[assignment]

    def uses(self, buffer: Buffer) -> bool:
        """Whether the copy has still to read or write a buffer."""
        return (self.payload is None and self.src.buffer is buffer) or self.lands_in(buffer)

    def lands_in(self, buffer: Buffer) -> bool:
        """Whether the copy writes to a buffer."""
        here = (self.device, self.core) if buffer.core >= 0 else (self.device, -1)
        return here == (buffer.device, buffer.core) and self.dst.buffer.key == buffer.key

    def target(self) -> Buffer:
        """The buffer the copy writes to, which must still be there."""
        own = self.dst.buffer
        machine = self.starter.machine
        if self.device == self.starter.device and (self.core == own.core or own.core < 0):
            buffer: Buffer | None = own
        else:
            buffer = machine.memory.get((self.device, self.core if own.core >= 0 else -1, own.key))
        if buffer is None or not buffer.alive:
            raise self._gone(own)
        if buffer.data.shape != own.data.shape or buffer.data.dtype != own.data.dtype:
            raise CopyError(
                f"{self.name[0].upper()}{self.name[1:]} lands in other memory than it names.",
                where=self.source.show() if self.source else "",
                why=f"where {own.label} is here, {own.type}, the other device has {buffer.label}, {buffer.type}",
                fix="allocate the same scratch memory, in the same order, on all devices",
            )
        return buffer

    def _gone(self, buffer: Buffer) -> ScopeError:
        name = self.starter.machine.device_name(self.device, self.core)
        return ScopeError(
            f"{self.name[0].upper()}{self.name[1:]} uses memory that is not there.",
            where=self.source.show() if self.source else "",
            why=f"{buffer.label} is memory of a scope that {name} has left or not entered",
            fix="wait for the copy inside the scope, and let all devices enter the scope before it starts",
        )

    def never_proved_over(self, part: str) -> str:
        """Why another access cannot know that this copy is over."""
        if self.send is None and self.receive is None:
            return "the copy is of the pipeline, and the access is not ordered after it"
        over = self.write_over if part == "writes" else self.read_over or self.write_over
        semaphore, signal = (self.receive if part == "writes" else self.send or self.receive) or (None, None)
        if over is not None:
            machine = self.starter.machine
            return f"{machine.tasks[over[0]].name} waited for the copy, but nothing orders that wait before the access"
        if semaphore is not None and signal is not None and semaphore.spent > 0:
            others = [s.source for s in semaphore.signals() if s is not signal and s.source is not None]
            if not others and self.nbytes > semaphore.spent:
                return f"of its {self.nbytes} bytes {semaphore.spent} have been waited for"
            text = others[0].show() if others else "another copy"
            return f"{semaphore.title} is shared: what was waited for may have been the signal of\n{text}"
        return "no wait for the copy comes before the access"


def is_dry(task: KernelTask, data: Data) -> bool:
    """Whether numbers like these are left out: only how long things take is asked for."""
    return task.machine.clock.dry and data.dtype.kind in "fcV"


def check_apart(task: KernelTask, src: Ref, dst: Ref) -> None:
    """Refuse a copy within one memory that writes some of what it reads; to where it reads from changes nothing."""
    a, b = src.data, dst.data
    if src.buffer is not dst.buffer or task.machine.clock.dry or not np.shares_memory(a, b):
        return
    if (a.ctypes.data, a.strides) != (b.ctypes.data, b.strides):
        raise CopyError(
            f"A copy within {src.buffer.label} of {task.name} writes to some of what it reads.",
            where=here(),
            why="it reads and writes in no known order, so what it reads there may be old or new",
            fix="copy to other memory first, or in parts that do not overlap, one after the other",
        )


def check_fits(src: Ref, dst: Ref) -> None:
    """Refuse a copy between memories of different shapes or dtypes, and one of a kernel that is differentiated."""
    if src.has_tangent or dst.has_tangent:
        ref = src if src.has_tangent else dst
        raise DifferentiationError(
            f"A copy of {ref.buffer.label} is differentiated.",
            where=here(),
            why="kernels are differentiated where they load, compute and store; "
            "copies and semaphores have no derivative",
            fix="give the call a derivative of its own: mw.custom_vjp, or mw.custom_jvp, around it",
        )
    if src.shape != dst.shape or src.dtype != dst.dtype:
        what = "shape" if src.shape != dst.shape else "dtype"
        raise CopyError(
            f"A copy goes from {src.dtype.name}{list(src.shape)} of {src.buffer.label} "
            f"to {dst.dtype.name}{list(dst.shape)} of {dst.buffer.label}.",
            where=here(),
            why=f"a copy moves bytes: source and destination have one {what}",
            fix="select the part to copy: src_ref.at[...], dst_ref.at[...]"
            if what == "shape"
            else f"load, convert and store: dst_ref[...] = src_ref[...].astype('{dst.dtype.name}')",
        )


def check_writable(src: Ref, dst: Ref) -> None:
    """Refuse a copy into memory that must not change, and one of semaphores."""
    if dst.buffer.readonly:
        raise CopyError(
            f"A copy writes to {dst.buffer.label}, an input of the kernel.",
            where=here(),
            why="inputs keep their contents: the caller still uses them",
            fix="copy to an output, or make the input one: pl.pallas_call(…, input_output_aliases={0: 0})",
        )
    if MemorySpace.SEMAPHORE in (src.buffer.space, dst.buffer.space):
        raise CopyError("A copy moves semaphores.", where=here(), why="they are counters, not data", fix="signal them")
    if isinstance(src.buffer.space, ACC) or isinstance(dst.buffer.space, ACC):
        raise CopyError(
            "A copy moves an accumulator of a matrix unit.",
            where=here(),
            why="products are added to it, and their sum is taken",
            fix="ref[...] = pltpu.matmul_pop(acc), and copy that",
        )
