"""Types of device programs: tensors on a device, and tuples of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from numbers import Integral
from typing import Any, ClassVar

import numpy as np

from meshwright.core.dtypes import FLOAT32, short_name
from meshwright.core.types import TensorType
from meshwright.device.dims import Dim, Size, Sizes
from meshwright.errors import MeshwrightError, ShapeError


@dataclass(frozen=True, eq=False, repr=False)
class Device:
    """A device: a number, the variable of a pmap, a device near one (``d.1``, ``d+1``), or not yet known (``?``).

    ``d.k`` is the k-th device below d in the device map, ``d.k.n`` the n-th below that one, ``device_map.k`` the k-th
    key of the map itself; ``d+k`` is the device with the number k higher. A device with a number equals the number.

    >>> d = Device("d")
    >>> [str(x) for x in (Device(3), d, d.child(1), d.child(1).child(0), d + 1, 2 + d, d - 1, Device())]
    ['3', 'd', 'd.1', 'd.1.0', 'd+1', 'd+2', 'd-1', '?']
    >>> Device(3) == 3, Device(3) + 1
    (True, Device(4))
    """

    base: int | str | None = None
    sub: int | tuple[int, ...] | None = None
    offset: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.base, Integral) and not isinstance(self.base, bool):
            object.__setattr__(self, "base", int(self.base) + (self.offset if self.sub is None else 0))
            object.__setattr__(self, "offset", 0 if self.sub is None else self.offset)
        if isinstance(self.sub, tuple) and len(self.sub) == 1:
            object.__setattr__(self, "sub", self.sub[0])

    @property
    def is_concrete(self) -> bool:
        return isinstance(self.base, int)

    @property
    def steps(self) -> tuple[int, ...]:
        """The places on the way down the device map, from the device that is named first."""
        if self.sub is None:
            return ()
        return self.sub if isinstance(self.sub, tuple) else (self.sub,)

    @property
    def plain(self) -> Device | int | str | None:
        """The number or the name alone, where it is nothing else."""
        return self.base if self.sub is None and not self.offset else self

    def child(self, index: int) -> Device:
        """The device that stands at ``index`` below this one in the device map."""
        return Device(self.base, (*self.steps, index))

    def __add__(self, offset: int) -> Device:
        if not isinstance(offset, int):
            return NotImplemented
        return Device(self.base, self.sub, self.offset + offset)

    __radd__ = __add__

    def __sub__(self, offset: int) -> Device:
        return self + -offset if isinstance(offset, int) else NotImplemented

    def _key(self) -> tuple[object, ...]:
        return self.base, self.steps, self.offset

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int) and not isinstance(other, bool):
            return self.sub is None and self.base == other
        return isinstance(other, Device) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self.base) if self.sub is None and isinstance(self.base, int) else hash(self._key())

    def __str__(self) -> str:
        if self.base is None:
            return "?"
        sub = "".join(f".{step}" for step in self.steps)
        return f"{self.base}{sub}" + (f"{self.offset:+}" if self.offset else "")

    def __repr__(self) -> str:
        plain = self.sub is None and not self.offset
        return f"Device({self.base!r})" if plain and self.base is not None else f"Device({str(self)!r})"


UNKNOWN = Device()


class Tensor(TensorType):
    """A tensor on a device; its sizes may be symbols, also given by name. Equal types are the same object.

    >>> str(Tensor((Dim.symbol("B") / 2, 4), Device(1))), str(Tensor((8,), 0, "int32"))
    ('Tensor[(B/2, 4), 1]', 'Tensor[i32, (8,), 0]')
    """

    __slots__ = ("device",)

    shape: Sizes  # type: ignore[assignment]
    device: Device
    _tensors: ClassVar[dict[tuple[Any, ...], Tensor]] = {}

    def __new__(cls, shape: Iterable[Size | str], device: Any = UNKNOWN, dtype: Any = FLOAT32) -> Tensor:
        sizes = tuple([Dim.symbol(n) if n.__class__ is str else n for n in shape])
        key = (sizes, device if isinstance(device, Device) else Device(device), np.dtype(dtype))
        found = cls._tensors.get(key)
        if found is None:
            found = object.__new__(cls)
            plain = {"weak": False, "sharding": None, "varying": (), "unreduced": ()}
            own = {"shape": sizes, "ndim": len(sizes), "size": prod(sizes), "device": key[1], "dtype": key[2]}
            for name, value in {**plain, **own}.items():
                object.__setattr__(found, name, value)
            cls._tensors[key] = found
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return Tensor, (self.shape, self.device, self.dtype)

    def on(self, device: Device) -> Tensor:
        """The same tensor elsewhere."""
        return Tensor(self.shape, device, self.dtype)

    def shaped(self, shape: Sizes) -> Tensor:
        """This type with other sizes."""
        return Tensor(shape, self.device, self.dtype)

    def resized(self, dim: int, size: Size) -> Tensor:
        """This type with another size of one dim."""
        return self.shaped((*self.shape[:dim], size, *self.shape[dim + 1 :]))

    @property
    def nbytes(self) -> int:
        """Bytes of one value; its dims must be numbers."""
        return self.plain().nbytes

    def plain(self) -> TensorType:
        """The type without its device; its dims must be numbers."""
        return TensorType(tuple([_number(n, self) for n in self.shape]), self.dtype)

    def __str__(self) -> str:
        dims = ", ".join(map(str, self.shape)) + ("," if len(self.shape) == 1 else "")
        dtype = "" if self.dtype == FLOAT32 else f"{short_name(self.dtype)}, "
        return f"Tensor[{dtype}({dims}), {self.device}]"

    __repr__ = __str__


class OnEach(Sequence["Tensor"]):
    """A tensor on each of some devices, of which only those are made that are asked for."""

    def __init__(self, part: Tensor, devices: Sequence[int]) -> None:
        self.part, self.devices = part, devices

    def __len__(self) -> int:
        return len(self.devices)

    def __getitem__(self, at: Any) -> Any:
        return tuple(self)[at] if isinstance(at, slice) else self.part.on(Device(self.devices[at]))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, OnEach):
            return self.part.on(UNKNOWN) is other.part.on(UNKNOWN) and self.devices == other.devices
        return isinstance(other, tuple) and tuple(self) == other

    def __hash__(self) -> int:
        return hash(tuple(self))


@dataclass(frozen=True)
class Tuple:
    """Values side by side, one per device. ``more``: there are as many as there are devices (printed ``...``)."""

    items: Sequence[Type]
    more: bool = False

    def __str__(self) -> str:
        return f"Tuple[{', '.join([*map(str, self.items), *(['...'] if self.more else [])])}]"


Type = Tensor | Tuple


def _number(size: Size, type: Tensor) -> int:
    if isinstance(size, Dim):
        raise ShapeError(
            f"The size of a dim of {type} is not known.",
            why=f"{size} is a symbol without a number",
            fix=f"dist.resolve(fn, device_map, {size.powers[0][0] if size.powers else 'B'}=8)",
        )
    return size


def elements(type: Any) -> Tensor:
    """The tensor a (nested) tuple is made of; the first stands for all."""
    while isinstance(type, Tuple):
        if not type.items:
            raise MeshwrightError("A tuple has no elements.", why="a pmap over nothing has no types", fix="Tuple[…]")
        type = type.items[0]
    return type  # type: ignore[no-any-return]
