"""Copies and semaphores as a kernel writes them."""

from __future__ import annotations

from typing import Any

from meshwright.api.direct import integer
from meshwright.core.source import here
from meshwright.core.trace import Array
from meshwright.kernel.language.addresses import device_of
from meshwright.kernel.language.indexing import as_int
from meshwright.kernel.language.refs import Ref
from meshwright.kernel.language.semaphores import Semaphore, SemaphoreArray, SemaphoreRef
from meshwright.kernel.language.spaces import DeviceIdType, SemaphoreType
from meshwright.kernel.run.faults import KernelError, ScopeError, SemaphoreError
from meshwright.kernel.run.tasks import KernelTask, current
from meshwright.kernel.run.transfers import Transfer, check_apart, check_fits, check_writable


class Copy:
    """A copy to be started or waited for. It may be made anew for the wait: memory and semaphore say which is meant."""

    __slots__ = ("device", "dst", "receive", "send", "src")

    def __init__(
        self, src: Ref, dst: Ref, send: SemaphoreRef | None, receive: SemaphoreRef, device: tuple[int, int] | None
    ) -> None:
        for ref, name in ((src, "source"), (dst, "destination")):
            if not isinstance(ref, Ref):
                raise KernelError(
                    f"The {name} of a copy is a {type(ref).__name__}.",
                    where=here(),
                    why="a copy goes from memory to memory",
                    fix="pass the ref or a part of it, ref.at[...], not what a load returned",
                )
        for semaphore in (send, receive):
            if semaphore is not None:
                _require(semaphore, SemaphoreType.DMA, "A copy")
        check_fits(src, dst)
        self.src = src
        self.dst = dst
        self.send = send
        self.receive = receive
        self.device = device  # of a remote copy, where it goes

    def start(self, priority: int = 0, add: bool = False) -> None:
        """Begin; the copy reads and writes at any time from now on."""
        task = current("A copy")
        check_writable(self.src, self.dst)
        device, core = self.device or (task.device, task.core)
        if (device, core) == (task.device, task.core):
            check_apart(task, self.src, self.dst)
        copy = Transfer(task, self.src, self.dst, device, core, add, task.source())
        receive = self.receive.one() if self.device is None else instance(task, self.receive, device, core, early=True)
        task.machine.start(copy, self.send.one() if self.send is not None else None, receive)
        if self.device is None and self.dst.buffer.landing is not None:
            self.dst.buffer.landing.append(copy)

    def wait(self) -> None:
        """Wait until the copy is over; of a remote one, until what is sent is sent and what is due has come."""
        if self.send is not None:
            self.wait_send()
        self.wait_recv()

    def wait_send(self) -> None:
        """Wait until the source has been read."""
        if self.send is None:
            raise KernelError(
                "A local copy is waited for with wait_send.",
                where=here(),
                why="it has one semaphore, told when all is done",
                fix="copy.wait()",
            )
        _wait(self.send, self.src.nbytes, "waits for a copy to be sent")

    def wait_read(self) -> None:
        """Wait until the source has been read: of a local copy, on its ``src_sem``."""
        self.wait_send()

    def wait_recv(self) -> None:
        """Wait until something of the destination's size has come here."""
        what = "waits for a copy" if self.send is None else "waits for a copy to come"
        _wait(self.receive, self.dst.nbytes, what)

    def wait_write(self) -> None:
        """Wait until the destination has been written: ``wait_recv``."""
        self.wait_recv()


def _wait(semaphore: SemaphoreRef, value: int, why: str) -> None:
    task = current("A wait")
    task.machine.wait(task, semaphore.one(), value, why)


def instance(task: KernelTask, semaphore: SemaphoreRef, device: int, core: int, early: bool = False) -> Semaphore:
    """The semaphore of another device at the same address; ``early``, also before that device has made it."""
    own = semaphore.one()
    if (device, core) == (own.array.device, own.array.core):
        return own
    if own.array.kind is SemaphoreType.BARRIER:
        array: SemaphoreArray | None = task.machine.barrier(device, core, own.array.key[2])
    elif early:
        array = task.machine.semaphores_of(own.array, device, core)
    else:
        array = task.machine.memory.get((device, core, own.array.key))
    if array is None or not isinstance(array, SemaphoreArray) or array.shape != own.array.shape:
        raise ScopeError(
            f"{task.name} signals a semaphore of {task.machine.device_name(device, core)} that is not there.",
            where=here(),
            why=f"{own.array.label} is a semaphore of a scope that the other device has left or not entered",
            fix="let all devices enter the scope first, with a barrier",
        )
    return array.at(own.index)


def _require(semaphore: Any, kind: SemaphoreType, what: str) -> None:
    if not isinstance(semaphore, SemaphoreRef):
        raise SemaphoreError(
            f"{what} is given a {type(semaphore).__name__} as a semaphore.",
            where=here(),
            why="it counts on a semaphore",
            fix="scratch_shapes=[pltpu.SemaphoreType.DMA]",
        )
    is_copy = semaphore.array.kind is SemaphoreType.DMA
    if is_copy != (kind is SemaphoreType.DMA):
        raise SemaphoreError(
            f"{what} uses {semaphore.array.label}, a {semaphore.array.kind.value} semaphore.",
            where=here(),
            why="DMA semaphores count bytes of copies, regular and barrier ones count signals",
            fix=f"pltpu.SemaphoreType.{'REGULAR' if is_copy else 'DMA'}",
        )


def make_async_copy(
    src_ref: Ref, dst_ref: Ref, sem: SemaphoreRef | None = None, *, src_sem: SemaphoreRef | None = None
) -> Copy:
    """A copy between memories of one device, not yet started; ``src_sem`` is told when the source has been read."""
    if sem is None:
        raise KernelError(
            "A copy has no semaphore that is told when it is over.",
            where=here(),
            why="src_sem says that the source has been read, and not that the destination is written",
            fix="pltpu.make_async_copy(src_ref, dst_ref, sem, src_sem=src_sem)",
        )
    return Copy(src_ref, dst_ref, src_sem, sem, None)


def async_copy(
    src_ref: Ref,
    dst_ref: Ref,
    sem: SemaphoreRef | None = None,
    *,
    src_sem: SemaphoreRef | None = None,
    priority: int = 0,
    add: bool = False,
) -> Copy:
    """Start a copy between memories of one device.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> from meshwright import pallas as pl
    >>> from meshwright.pallas import tpu as pltpu
    >>> def kernel(x_ref, out_ref, sem):
    ...     copy = pltpu.async_copy(x_ref, out_ref, sem)
    ...     copy.wait()
    >>> call = pl.pallas_call(kernel, mw.ShapeDtypeStruct((2,), mnp.float32), scratch_shapes=[pltpu.SemaphoreType.DMA])
    >>> call(mnp.array([1.0, 2.0]))
    Array([1., 2.], dtype=float32)
    """
    copy = make_async_copy(src_ref, dst_ref, sem, src_sem=src_sem)
    copy.start(priority, add)
    return copy


def make_async_remote_copy(
    src_ref: Ref,
    dst_ref: Ref,
    send_sem: SemaphoreRef,
    recv_sem: SemaphoreRef,
    device_id: Any,
    device_id_type: DeviceIdType | None = None,
) -> Copy:
    """A copy to another device, not yet started: ``dst_ref`` and ``recv_sem`` are the other device's."""
    return Copy(
        src_ref,
        dst_ref,
        send_sem,
        recv_sem,
        device_of(current("A remote copy"), device_id, device_id_type or DeviceIdType.MESH),
    )


def async_remote_copy(
    src_ref: Ref,
    dst_ref: Ref,
    send_sem: SemaphoreRef,
    recv_sem: SemaphoreRef,
    device_id: Any,
    device_id_type: DeviceIdType | None = None,
) -> Copy:
    """Start a copy to another device.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> from meshwright import lax, pallas as pl
    >>> from meshwright.pallas import tpu as pltpu
    >>> def swap(x_ref, out_ref, send, receive):
    ...     other = 1 - lax.axis_index("x")
    ...     pltpu.async_remote_copy(x_ref, out_ref, send, receive, device_id={"x": other}).wait()
    >>> semaphores = [pltpu.SemaphoreType.DMA] * 2
    >>> call = pl.pallas_call(swap, mw.ShapeDtypeStruct((1,), mnp.float32), scratch_shapes=semaphores)
    >>> mesh = mw.make_mesh((2,), ("x",))
    >>> mw.shard_map(call, mesh=mesh, in_specs=mw.P("x"), out_specs=mw.P("x"))(mnp.array([1.0, 2.0]))
    Array([2., 1.], dtype=float32)
    """
    copy = make_async_remote_copy(src_ref, dst_ref, send_sem, recv_sem, device_id, device_id_type)
    copy.start()
    return copy


def sync_copy(src_ref: Ref, dst_ref: Ref, *, add: bool = False) -> None:
    """Copy between memories of one device, and wait until it is done."""
    task = current("A copy")
    check_fits(src_ref, dst_ref)
    check_writable(src_ref, dst_ref)
    check_apart(task, src_ref, dst_ref)
    semaphore = private_semaphore(task, "the semaphore of a copy")
    copy = Transfer(task, src_ref, dst_ref, task.device, task.core, add, task.source())
    task.machine.start(copy, None, semaphore)
    task.machine.wait(task, semaphore, src_ref.data.nbytes, "waits for a copy")
    semaphore.array.used.clear()  # they know each other


def private_semaphore(task: KernelTask, label: str) -> Semaphore:
    """A semaphore nobody else can name."""
    array = SemaphoreArray(object(), label, SemaphoreType.DMA, (), task.device, task.core)
    return array.number(0)


def semaphore_signal(
    sem_or_view: SemaphoreRef,
    inc: Any = 1,
    *,
    device_id: Any = None,
    device_id_type: DeviceIdType | None = None,
    core_index: Any = None,
) -> None:
    """Add to a semaphore, of this device or another.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> from meshwright import pallas as pl
    >>> from meshwright.pallas import tpu as pltpu
    >>> def kernel(out_ref, sem):
    ...     pltpu.semaphore_signal(sem, 3)
    ...     pltpu.semaphore_wait(sem, 2)
    ...     out_ref[0] = pltpu.semaphore_read(sem)
    ...     pltpu.semaphore_wait(sem)
    >>> semaphores = [pltpu.SemaphoreType.REGULAR]
    >>> pl.pallas_call(kernel, mw.ShapeDtypeStruct((1,), mnp.int32), scratch_shapes=semaphores)()
    Array([1], dtype=int32)
    """
    task = current("semaphore_signal")
    sem = sem_or_view
    _require(sem, SemaphoreType.REGULAR, "A signal")
    device, core = device_of(task, device_id, device_id_type or DeviceIdType.MESH)
    core = core if core_index is None else as_int(core_index)
    cell = instance(task, sem, device, core, early=True)
    history = task.machine.history
    if history is not None and cell.array.kind is not SemaphoreType.BARRIER and device != task.device:
        owner = task.machine.tasks[device * task.machine.cores + core]
        history.require_birth(
            task.clock, owner, cell.array.free_since, "A semaphore of another device is signalled", task.source()
        )
    task.machine.signal(task, cell, _amount(inc, "A signal adds"))


def semaphore_wait(sem_or_view: SemaphoreRef, value: Any = 1, *, decrement: bool = True) -> None:
    """Wait until a semaphore is at least ``value``, then subtract it."""
    task = current("semaphore_wait")
    _require(sem_or_view, SemaphoreType.REGULAR, "A wait")
    task.machine.wait(task, sem_or_view.one(), _amount(value, "A wait takes"), "waits", decrement)


def _amount(given: Any, what: str) -> int:
    amount = as_int(given)
    if amount < 0:
        raise SemaphoreError(
            f"{what} {amount}.", where=here(), why="semaphores count up by signals and down by waits", fix="1 or more"
        )
    return amount


def semaphore_read(sem_or_view: SemaphoreRef) -> Array:
    """The value of a semaphore now; it orders nothing."""
    task = current("semaphore_read")
    return integer(task.machine.look(task, sem_or_view.one()))


def get_barrier_semaphore(tag: Any = None) -> SemaphoreRef:
    """The semaphore that is there on all devices before the kernel starts; one for each ``tag``."""
    task = current("get_barrier_semaphore")
    if tag is None and task.machine.collective_id is None:
        raise SemaphoreError(
            "The barrier semaphore is used by a kernel without a collective_id.",
            where=here(),
            why="kernels that may run at the same time are told apart by it",
            fix="pl.pallas_call(…, compiler_params=pltpu.CompilerParams(collective_id=0))",
        )
    return SemaphoreRef(task.machine.barrier(task.device, task.core, tag))


def device_id() -> Array:
    """The number of this device: its place in the mesh, the last axis running fastest."""
    return integer(current("device_id").device)
