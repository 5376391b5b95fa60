"""How large arrays can be, and the errors for larger ones: before NumPy is asked for them where that is known.

Types alone may be larger than any machine: programs are also traced to be planned, and cost what they would cost.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from math import prod
from pathlib import Path, PurePosixPath
from typing import NoReturn

from meshwright.core.program import Eqn
from meshwright.core.source import here
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError, ShapeError

try:
    import resource
except ImportError:  # elsewhere processes have no limits of their own
    resource = None  # type: ignore[assignment]

_OWN_GROUPS, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")  # where Linux says how much a container has
MOST_DIMS = 64  # NumPy's, and so is the other
MOST_BYTES = 2**63 - 1
MOST_VIEW_BYTES = 1 << 38  # of a value that repeats others and takes no memory; to read it once takes minutes
_FIX = "smaller arrays, or the same in parts: lax.map(f, rows)"


def impossible(types: Sequence[TensorType]) -> str:
    """Why there is no array of one of these types, or nothing."""
    for t in types:
        if t.ndim > MOST_DIMS or t.nbytes > MOST_BYTES or (not t.size and _without_empty_dims(t) > MOST_BYTES):
            return f"{t.short()} is more than an array can be: {MOST_DIMS} dims and 2**63 - 1 bytes"
    return ""


def refuse_impossible(op: str, types: Sequence[TensorType]) -> None:
    """An error if an op is to give what no array can be."""
    why = impossible(types)
    if why:
        raise ShapeError(f"{op} gives an array that cannot be.", where=here(), why=why, fix=_FIX)


def refuse_unheld(op: str, types: Sequence[TensorType]) -> None:
    """An error if what an op is to write down is more than an array can be, or than the memory holds."""
    refuse_impossible(op, types)
    most = memory_bytes() or MOST_VIEW_BYTES
    for t in types:
        if t.nbytes > most:
            raise _does_not_fit(op, t, most, here())


def _does_not_fit(op: str, t: TensorType, most: int, where: str) -> MeshwrightError:
    return MeshwrightError(
        f"A result of {op} does not fit into memory.",
        where=where,
        why=f"{t.short()} takes {t.nbytes / 1e9:,.1f} GB, and there are {most / 1e9:,.1f} GB",
        fix=_FIX,
    )


def _without_empty_dims(t: TensorType) -> int:
    return prod(n for n in t.shape if n) * t.dtype.itemsize


def memory_bytes() -> int | None:
    """The memory of the machine, or what this process may take of it, where the system says so."""
    known = []
    with suppress(AttributeError, ValueError, OSError):
        known.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    if resource is not None:
        known.append(resource.getrlimit(resource.RLIMIT_AS)[0])
    known += group_bytes(_OWN_GROUPS, _GROUPS)
    return min((n for n in known if n > 0), default=None)


@cache
def group_bytes(own: Path, root: Path) -> tuple[int, ...]:
    """What the control groups that this process is in may take, all those around them included: a container's limit.

    ``own`` lists the groups as lines ``4:memory:/path`` or ``0::/path``; ``root`` is the folder of all groups.
    """
    found = []
    lines = []
    with suppress(OSError, ValueError):
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    for _, kinds, path in (line for line in lines if len(line) == 3):
        if "memory" in kinds.split(","):
            folder, name = root / "memory", "memory.limit_in_bytes"
        elif not kinds:
            folder, name = root, "memory.max"
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        for around in (group, *group.parents):
            with suppress(OSError, ValueError):  # not to be seen from here, or "max"
                found.append(int((folder / around / name).read_text()))
    return tuple(found)


def refuse_large(eqns: Sequence[Eqn], may_be_views: Sequence[bool]) -> None:
    """An error for equations that give a value which the memory cannot hold; views of other values may be larger."""
    most = memory_bytes() or MOST_VIEW_BYTES
    for eqn, view in zip(eqns, may_be_views, strict=True):
        for var in eqn.outputs:
            if var.type.nbytes > most and (not view or var.type.nbytes > MOST_VIEW_BYTES):
                where = eqn.source.show() if eqn.source else here()
                raise _does_not_fit(eqn.op.name, var.type, most, where)


def out_of_memory(error: MemoryError) -> NoReturn:
    """Raise the error for memory that was asked for and is not there; one that is clear already is raised as it is."""
    if isinstance(error, MeshwrightError):
        raise error
    why = str(error) or "the system gave no more"
    raise MeshwrightError("This takes more memory than there is.", where=here(), why=why, fix=_FIX) from error
