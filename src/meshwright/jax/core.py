"""``jax.core``: the public part of it, traced values and their types."""

from __future__ import annotations

from typing import Any, NamedTuple

from meshwright.core.dtypes import DType, as_dtype
from meshwright.core.trace import Array, Tracer, Value
from meshwright.core.types import TensorType
from meshwright.sharding.explicit import spec_of
from meshwright.sharding.mesh import AbstractMesh, get_mesh
from meshwright.sharding.named import NamedSharding
from meshwright.sharding.spec import PartitionSpec


class ManualAxisType(NamedTuple):
    """What a value is over the axes of a ``shard_map``."""

    varying: frozenset[str] = frozenset()
    unreduced: frozenset[str] = frozenset()
    reduced: frozenset[str] = frozenset()


class ShapedArray:
    """The type of a value as JAX shows it: ``shape``, ``dtype``, ``weak_type``, ``sharding``, ``vma``.

    >>> ShapedArray((2, 3), "float32")
    ShapedArray(float32[2,3])
    """

    def __init__(self, shape: Any, dtype: Any, weak_type: bool = False, *, sharding: Any = None, vma: Any = ()) -> None:
        self.type = TensorType(tuple(shape), as_dtype(dtype), weak_type)
        self._sharding = sharding
        self.vma = frozenset(vma)

    @classmethod
    def of(cls, x: Any, type: TensorType) -> ShapedArray:
        """The type of a value."""
        made = cls.__new__(cls)
        made.type, made.vma = type, frozenset(type.varying) | frozenset(getattr(x, "vma", None) or ())
        made._sharding = x._sharding if x.__class__ is Array and isinstance(x._sharding, NamedSharding) else None
        return made

    @property
    def manual_axis_type(self) -> ManualAxisType:
        """What the value is over the axes of a ``shard_map``."""
        return ManualAxisType(self.vma, frozenset(self.type.unreduced))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def ndim(self) -> int:
        return self.type.ndim

    @property
    def size(self) -> int:
        return self.type.size

    @property
    def weak_type(self) -> bool:
        return self.type.weak

    @property
    def sharding(self) -> NamedSharding:
        """How a value is split: over Explicit axes as its type says; all of it everywhere where nothing is said."""
        if self._sharding is not None:
            spec = self._sharding.spec
            return NamedSharding(
                self._sharding.mesh, spec.update([*spec.partitions, *[None] * (self.ndim - len(spec.partitions))])
            )
        entries = [None] * self.ndim
        if self.type.sharding is None:
            mesh = get_mesh()
            return NamedSharding(AbstractMesh((), ()) if mesh is None else mesh.abstract_mesh, PartitionSpec(*entries))
        spec = spec_of(self.type)
        current = get_mesh()
        same = current is not None and current.explicit_mesh == self.type.sharding.mesh
        mesh = current.abstract_mesh if current is not None and same else self.type.sharding.mesh
        return NamedSharding(mesh, spec)

    def update(self, **changes: Any) -> ShapedArray:
        """This type with some of its parts replaced."""
        fields = {"shape": self.shape, "dtype": self.dtype, "weak_type": self.weak_type, "sharding": self._sharding,
                  "vma": self.vma}  # fmt: skip
        return ShapedArray(**{**fields, **changes})

    def str_short(self, short_dtypes: bool = False) -> str:
        """The type as text."""
        return self.type.short() if short_dtypes else str(self.type)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShapedArray) and self.type is other.type and self.vma == other.vma

    def __hash__(self) -> int:
        return hash((self.type, self.vma))

    def __str__(self) -> str:
        return str(self.type)

    def __repr__(self) -> str:
        return f"ShapedArray({self.type})"


AbstractValue = ShapedArray


def _aval(x: Value) -> ShapedArray:
    """The type of an array or a tracer, as JAX shows it."""
    return ShapedArray.of(x, x.type)


Value.aval = property(_aval)  # type: ignore[attr-defined]

__all__ = ["AbstractValue", "ShapedArray", "Tracer"]
