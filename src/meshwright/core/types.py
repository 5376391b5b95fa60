"""The one type: dtype and shape, and per mesh axis how a value is split, varying or unreduced."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from math import prod
from typing import Any, ClassVar

import numpy as np

from meshwright.core.axis_names import axis_text
from meshwright.core.dtypes import KEY, DType, array_bytes, short_name

Shape = tuple[int, ...]


class Variance(Enum):
    """Who says over which mesh axes the results of an op differ between devices."""

    EQUAL = "equal"  # operands agree (or are made varying until they do), and results vary as they do
    OWN = "own"  # the op's type rule: collectives, and ops with regions


class Spec:
    """What partition specs are: their own class is not one that every program needs to load."""

    __slots__ = ()


OutSharding = tuple[Spec, tuple[tuple[str, int], ...]]  # a layout asked for: a spec, and the mesh axes it is about


class TensorType:
    """The type of a value. Equal types are the same object, so comparing them is free.

    ``weak`` marks a value that came from a Python number and yields to the dtype it meets. ``sharding``, ``varying``
    and ``unreduced`` say, per mesh axis, how the value is laid out: split over a dim, different on each device, or a
    summand on each device.

    >>> str(TensorType((8, 4), np.dtype("float32")))
    'float32[8,4]'
    >>> TensorType((8, 4), np.dtype("float32"), varying=("i",)).short()
    'f32[8,4]{i}'
    """

    __slots__ = ("__weakref__", "dtype", "ndim", "shape", "sharding", "size", "unreduced", "varying", "weak")

    shape: Shape
    dtype: DType
    weak: bool
    sharding: Any
    varying: tuple[str, ...]
    unreduced: tuple[str, ...]
    ndim: int
    size: int

    _interned: ClassVar[dict[tuple[Any, ...], TensorType]] = {}

    def __new__(
        cls,
        shape: Shape,
        dtype: DType,
        weak: bool = False,
        sharding: Any = None,
        varying: tuple[str, ...] = (),
        unreduced: tuple[str, ...] = (),
    ) -> TensorType:
        key = (shape, dtype, weak, sharding, varying, unreduced)
        found = cls._interned.get(key)
        if found is not None:
            return found
        self = super().__new__(cls)
        fields = (*key, len(shape), prod(shape))
        names = ("shape", "dtype", "weak", "sharding", "varying", "unreduced", "ndim", "size")
        for name, value in zip(names, fields, strict=True):
            object.__setattr__(self, name, value)
        cls._interned[key] = self
        return self

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a TensorType is immutable; use .with_(…)")

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorType, (self.shape, self.dtype, self.weak, self.sharding, self.varying, self.unreduced)

    def with_(self, **changes: Any) -> TensorType:
        """This type with some fields replaced. A sharding does not outlive a change of rank."""
        fields = {name: getattr(self, name) for name in ("shape", "dtype", "weak", "sharding", "varying", "unreduced")}
        if self.sharding is not None and len(changes.get("shape", self.shape)) != self.ndim:
            fields["sharding"] = None
        return TensorType(**{**fields, **changes})

    def row(self) -> TensorType:
        """The type of a row: dim 0 is dropped."""
        return self.with_(shape=self.shape[1:], sharding=self.sharding and self.sharding.row())

    def stack(self, count: int) -> TensorType:
        """The type of ``count`` values as the rows of one array, whose dim 0 is whole."""
        return self.with_(shape=(count, *self.shape), sharding=self.sharding and self.sharding.stack())

    @property
    def nbytes(self) -> int:
        """Bytes of one whole value of this type on a device."""
        return array_bytes(self.dtype, self.size)

    def short(self) -> str:
        """As a program prints it: ``f32[8,4]``, weak ``~f32[]``."""
        return ("~" if self.weak else "") + short_name(self.dtype) + self._layout()

    def _layout(self) -> str:
        dims = self.sharding.type_dims(self.shape) if self.sharding is not None else [str(n) for n in self.shape]
        marks = [*map(axis_text, self.varying), *(f"U:{axis_text(axis)}" for axis in self.unreduced)]
        return f"[{','.join(dims)}]" + ("{" + ",".join(marks) + "}" if marks else "")

    def __str__(self) -> str:
        return ("key<fry>" if self.dtype == KEY else self.dtype.name) + self._layout()

    def __repr__(self) -> str:
        return f"ShapedArray({self}{', weak_type=True' * self.weak})"


def union(sets: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """The mesh axes in any of the sets, in the order types have them."""
    found = {axis for axes in sets for axis in axes}
    return tuple(sorted(found))


def tensor(shape: Shape, dtype: Any, weak: bool = False) -> TensorType:
    """A plain type from a shape and anything NumPy takes for a dtype."""
    return TensorType(tuple(shape), np.dtype(dtype), weak)
