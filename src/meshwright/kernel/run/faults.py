"""What can be wrong with a kernel, one class per kind of mistake."""

from __future__ import annotations

from typing import Any

from meshwright.errors import MeshwrightError


class KernelError(MeshwrightError, RuntimeError):
    """A kernel that is wrong, or a use of the kernel language that cannot be."""

    def __init__(self, what: str, *, where: str = "", why: str = "", fix: str = "") -> None:
        if what.startswith(("device ", "the ", "a ")):
            what = what[0].upper() + what[1:]
        super().__init__(what, where=where, why=why, fix=fix)


class RaceError(KernelError):
    """Two accesses to the same memory, at least one a write, that nothing orders; ``races`` are all that were found."""

    races: tuple[Any, ...] = ()


class DeadlockError(KernelError):
    """Devices that wait for signals nobody can send."""


class EndlessError(KernelError):
    """A body, or a loop in it, that does not come to an end."""


class SemaphoreError(KernelError):
    """A semaphore left non-zero, or used in a way its kind does not allow."""


class UnfinishedCopyError(KernelError):
    """A copy that was started and never waited for."""


class UninitializedError(KernelError):
    """Memory read before anything was written to it."""


class StaleError(KernelError):
    """A window of a pipeline that holds another block than the one its step works on."""


class BoundsError(KernelError, IndexError):
    """An index, a slice or a block outside the memory it is taken from."""


class AlignmentError(KernelError, ValueError):
    """A block that is not made of whole tiles of memory."""


class CopyError(KernelError, TypeError):
    """A copy or a store between memories of different shapes or dtypes."""


class BarrierError(KernelError):
    """Memory of a device used before that device is known to be ready for it."""


class DeviceIdError(KernelError, ValueError):
    """A device id that names no device."""


class CapacityError(KernelError, MemoryError):
    """More memory of a space than a core has."""


class ScopeError(KernelError):
    """Memory used outside the scope it was made for."""
