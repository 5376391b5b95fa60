"""Values computed from memory that nothing was written to, or that a step may not know, followed until they are used.

Such a value is kept several times, with other contents in the place of what nobody wrote; an op is computed on each.
The elements that come out the same do not depend on it: a mask, a ``where`` or a slice has discarded it. No op needs a
rule of its own for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np

from meshwright.core import trace
from meshwright.core.source import Source, here
from meshwright.core.trace import Array
from meshwright.core.types import TensorType
from meshwright.kernel.run.faults import KernelError, UninitializedError
from meshwright.kernel.run.memory import Data, poison

_FIX = (
    "store to it first, or wait for the copy that fills it;\nmnp.where(mask, value, 0) leaves out what is not to count"
)


class PoisonOrigin(NamedTuple):
    """A read of memory that nothing was written to: by whom, how much, of what, at which line."""

    reader: str
    missing: int
    total: int
    label: str
    line: Source | None

    def error(self, use: str) -> UninitializedError:
        """The error for a use of what was read."""
        of = f"{self.missing} of the {self.total} elements of {self.label} it reads have no value yet"
        return UninitializedError(
            f"{self.reader} reads memory that nothing was written to.",
            where=self.line.show() if self.line else "",
            why=f"{of}{use}",
            fix=_FIX,
        )


@dataclass(frozen=True)
class CarriedValue:
    """A read of what another step along a parallel axis of the grid has written."""

    label: str
    axis: int
    there: int  # the steps along the axis: of the write, and of the read
    now: int
    written: Source | None
    line: Source | None

    def error(self, use: str) -> KernelError:
        """The error for a use of what was read."""
        return KernelError(
            f"{self.label} carries a value along axis {self.axis} of the grid, which is said to be parallel.",
            where=self.line.show() if self.line else "",
            why=f"step {self.now} along it reads what step {self.there} has written"
            + (f" at {self.written.show()}" if self.written else "")
            + f";\nsteps along a parallel axis are run in any order, or on several cores{use}",
            fix=f'"arbitrary" in the place of "parallel" for axis {self.axis} in dimension_semantics',
        )


class Poisoned:
    """The contents of an array, several times: they differ where it depends on memory that nothing was written to."""

    __slots__ = ("contents", "origin")

    is_fully_addressable = True

    def __init__(self, contents: tuple[Data, ...], origin: PoisonOrigin | CarriedValue) -> None:
        self.contents = contents  # first, what memory holds: NaN, or the least number of an integer dtype
        self.origin = origin

    @property
    def shape(self) -> tuple[int, ...]:
        return self.contents[0].shape  # type: ignore[no-any-return]

    @property
    def ndim(self) -> int:
        return self.contents[0].ndim

    @property
    def dtype(self) -> Any:
        return self.contents[0].dtype

    @property
    def undefined(self) -> Data:
        """Which elements depend on it."""
        first, *others = self.contents
        found = np.zeros(first.shape, np.bool_)
        for other in others:
            found |= ~_same(first, other)
        return found

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        at = here()
        raise self.origin.error(f"\nand decide what the kernel does{f' at {at}' if at else ''}")


def _same(a: Data, b: Data) -> Data:
    found: Data = (a == b) | ((a != a) & (b != b))
    return found


def poisoned(data: Data, undefined: Any, origin: PoisonOrigin | CarriedValue) -> Array:
    """What was loaded, of which some elements, or all (True), have no value."""
    mask = np.broadcast_to(undefined, data.shape)
    contents = [np.where(mask, poison(data.shape, data.dtype), data) if data.dtype.kind != "V" else data.copy()]
    if data.dtype.kind == "V":
        contents[0][mask] = poison((), data.dtype)
    for n in (1, 2):
        other = contents[0].copy()
        other[mask] = _others(data.dtype, n, int(mask.sum()))
        contents.append(other)
    return Array(Poisoned(tuple(contents), origin), TensorType(data.shape, data.dtype))


def _others(dtype: Any, n: int, count: int) -> Any:
    """Contents that differ from one element to the next, and from those with another ``n``."""
    if dtype.kind == "b":
        return np.full(count, n == 1)
    steps = (np.arange(count) % 97 + 1) * (3 if n == 1 else 5) % 101 + 1
    if n == 2 and not dtype.name.startswith("uint"):
        steps = -steps
    return steps.astype(np.float32).astype(dtype)


def watch(op: Any, operands: Any, types: Any, params: Any) -> Any:
    """The results of an op of which an operand is poisoned; None for others."""
    found = [x._data for x in operands if x._data.__class__ is Poisoned]
    if not found:
        return None
    outs = []
    for n in range(len(found[0].contents)):
        data = [x._data.contents[n] if x._data.__class__ is Poisoned else x.data for x in operands]
        with np.errstate(all="ignore"):
            computed = trace.computed(op, *data, **params)
        outs.append(computed if types.__class__ is tuple else (computed,))
    results = tuple(
        _result(tuple(np.asarray(out[k]) for out in outs), t, found[0].origin)
        for k, t in enumerate(types if types.__class__ is tuple else (types,))
    )
    return results if types.__class__ is tuple else results[0]


def _result(contents: tuple[Data, ...], type: TensorType, origin: PoisonOrigin | CarriedValue) -> Array:
    if all(_same(contents[0], other).all() for other in contents[1:]):
        return Array(contents[0], type)
    return Array(Poisoned(contents, origin), type)


def unwrapped(value: Any) -> tuple[Any, Poisoned | None]:
    """A value to store: as memory will hold it, and, of a poisoned one, what it is."""
    if value.__class__ is Array and value._data.__class__ is Poisoned:
        found: Poisoned = value._data
        return Array(found.contents[0], value.type), found
    return value, None
