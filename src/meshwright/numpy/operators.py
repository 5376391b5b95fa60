"""The operators and methods of arrays and tracers, written as one class and given to ``core.trace.Value``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from meshwright.arrays import placement as _placement  # noqa: F401  (gives Array what it says of devices)
from meshwright.arrays import scalars
from meshwright.arrays.operands import NO_DTYPES, TAKES, VALUES, inexact_binary, is_operand, known, nary, of_two
from meshwright.arrays.repeated import of_pair
from meshwright.core import dtypes
from meshwright.core.op import Op, Value
from meshwright.core.source import here
from meshwright.core.trace import Array, Tracer, apply
from meshwright.core.trace import Value as ValueClass
from meshwright.core.types import TensorType
from meshwright.errors import ShapeError
from meshwright.numpy import arithmetic, creation, logic, mathematics, products, reductions, shapes
from meshwright.numpy.indexing import index
from meshwright.numpy.methods import NUMBER_FIX, Methods, astype, one_element
from meshwright.numpy.updates import At
from meshwright.ops import basic, elementwise

_OF_TWO = of_two.__wrapped__  # type: ignore[attr-defined]


def _operator(op: Op, self: Value, other: Any) -> Any:
    """An operator on operands that need no promotion, else with it."""
    if scalars.state.active:
        if self.type is scalars.INDEX:
            found = scalars.of_two(op.name, self, other)
            if found is not None:
                return found
        if self.__class__ is other.__class__ is Array:
            found = of_pair(_OF_TWO, op, self, other)
            return of_two(op, self, other) if found is None else found
    other_class = other.__class__
    if other_class in VALUES:
        if self.type is other.type:
            return apply(op, (self, other), {})
    elif self.type.dtype in TAKES.get(other_class, NO_DTYPES):
        return apply(op, (self, other), {})
    elif not is_operand(other):
        return NotImplemented
    return nary(op, self, other)


def _reflected(op: Op, self: Value, other: Any) -> Any:
    if scalars.state.active:
        found = scalars.of_two(op.name, other, self)
        if found is not None:
            return found
    if self.type.dtype in TAKES.get(other.__class__, NO_DTYPES):
        return apply(op, (other, self), {})
    return nary(op, other, self) if is_operand(other) else NotImplemented


def _ordered(op: Op, self: Value, other: Any) -> Any:
    """A comparison by order, which complex numbers have in NumPy only."""
    if scalars.state.active and self.type is scalars.INDEX:
        return _operator(op, self, other)
    other_kind = "c" if isinstance(other, complex) else getattr(getattr(other, "dtype", None), "kind", "")
    if "c" in (self.type.dtype.kind, other_kind) and is_operand(other):
        return logic.ordered(op, self, other)
    return _operator(op, self, other)


_BRANCH_FIX = (
    "choose between values with mnp.where(condition, x, y), or between computations with\n"
    "mw.lax.cond(condition, f, g, *operands); an argument that Python branches on can be made static:\n"
    "mw.jit(f, static_argnums=…)"
)


def _rows(x: Any) -> Any:
    """The slices along the first dim; those of an array are put nowhere, wherever it is."""
    if x.__class__ is not Array:
        return shapes.unstack(x)
    t = TensorType(x.type.shape[1:], x.type.dtype, x.type.weak)
    return [Array(np.array(row), t) for row in x.data]


class Operators:
    """What ``Array`` and ``Tracer`` share: what Python itself calls."""

    __array_priority__ = 100
    type: Any
    shape: tuple[int, ...]
    ndim: int
    size: int
    dtype: dtypes.DType

    # Arithmetic

    def __add__(self, other: Any) -> ValueClass:
        return _operator(basic.add, self, other)

    def __radd__(self, other: Any) -> ValueClass:
        return _reflected(basic.add, self, other)

    def __sub__(self, other: Any) -> ValueClass:
        return _operator(elementwise.sub, self, other)

    def __rsub__(self, other: Any) -> ValueClass:
        return _reflected(elementwise.sub, self, other)

    def __mul__(self, other: Any) -> ValueClass:
        return _operator(basic.mul, self, other)

    def __rmul__(self, other: Any) -> ValueClass:
        return _reflected(basic.mul, self, other)

    def __truediv__(self, other: Any) -> ValueClass:
        return inexact_binary(elementwise.div, self, other) if is_operand(other) else NotImplemented

    def __rtruediv__(self, other: Any) -> ValueClass:
        return inexact_binary(elementwise.div, other, self) if is_operand(other) else NotImplemented

    def __floordiv__(self, other: Any) -> ValueClass:
        return arithmetic.floor_divide(self, other) if is_operand(other) else NotImplemented

    def __rfloordiv__(self, other: Any) -> ValueClass:
        return arithmetic.floor_divide(other, self) if is_operand(other) else NotImplemented

    def __mod__(self, other: Any) -> ValueClass:
        return arithmetic.remainder(self, other) if is_operand(other) else NotImplemented

    def __rmod__(self, other: Any) -> ValueClass:
        return arithmetic.remainder(other, self) if is_operand(other) else NotImplemented

    def __divmod__(self, other: Any) -> Any:
        return arithmetic.divmod(self, other) if is_operand(other) else NotImplemented

    def __rdivmod__(self, other: Any) -> Any:
        return arithmetic.divmod(other, self) if is_operand(other) else NotImplemented

    def __pow__(self, other: Any) -> ValueClass:
        return arithmetic.power(self, other) if is_operand(other) else NotImplemented

    def __rpow__(self, other: Any) -> ValueClass:
        return arithmetic.power(other, self) if is_operand(other) else NotImplemented

    def __matmul__(self, other: Any) -> ValueClass:
        return products.matmul(self, other) if is_operand(other) else NotImplemented

    def __rmatmul__(self, other: Any) -> ValueClass:
        return products.matmul(other, self) if is_operand(other) else NotImplemented

    def __neg__(self) -> ValueClass:
        return apply(basic.neg, (self,), {})

    def __pos__(self) -> ValueClass:
        return self  # type: ignore[return-value]

    def __abs__(self) -> ValueClass:
        return logic.absolute(self)

    def __round__(self, digits: int | None = None) -> ValueClass:
        rounded = mathematics.round(self, digits or 0)
        return astype(rounded, int) if digits is None and dtypes.is_float(self.type.dtype) else rounded

    # Bits

    def __and__(self, other: Any) -> ValueClass:
        return _operator(elementwise.and_, self, other)

    def __rand__(self, other: Any) -> ValueClass:
        return _reflected(elementwise.and_, self, other)

    def __or__(self, other: Any) -> ValueClass:
        return _operator(elementwise.or_, self, other)

    def __ror__(self, other: Any) -> ValueClass:
        return _reflected(elementwise.or_, self, other)

    def __xor__(self, other: Any) -> ValueClass:
        return _operator(elementwise.xor, self, other)

    def __rxor__(self, other: Any) -> ValueClass:
        return _reflected(elementwise.xor, self, other)

    def __invert__(self) -> ValueClass:
        return apply(elementwise.not_, (self,), {})

    def __lshift__(self, other: Any) -> ValueClass:
        return logic.left_shift(self, other) if is_operand(other) else NotImplemented

    def __rlshift__(self, other: Any) -> ValueClass:
        return logic.left_shift(other, self) if is_operand(other) else NotImplemented

    def __rshift__(self, other: Any) -> ValueClass:
        return logic.right_shift(self, other) if is_operand(other) else NotImplemented

    def __rrshift__(self, other: Any) -> ValueClass:
        return logic.right_shift(other, self) if is_operand(other) else NotImplemented

    # Comparisons

    def __eq__(self, other: Any) -> ValueClass:  # type: ignore[override]
        return logic.equal(self, other) if self.type.dtype.kind == "V" else _operator(elementwise.eq, self, other)

    def __ne__(self, other: Any) -> ValueClass:  # type: ignore[override]
        return logic.not_equal(self, other) if self.type.dtype.kind == "V" else _operator(elementwise.ne, self, other)

    def __lt__(self, other: Any) -> ValueClass:
        return _ordered(elementwise.lt, self, other)

    def __le__(self, other: Any) -> ValueClass:
        return _ordered(elementwise.le, self, other)

    def __gt__(self, other: Any) -> ValueClass:
        return _ordered(elementwise.gt, self, other)

    def __ge__(self, other: Any) -> ValueClass:
        return _ordered(elementwise.ge, self, other)

    __hash__ = None  # type: ignore[assignment]

    # What Python asks for

    def __bool__(self) -> bool:
        one_element(self, "bool()")
        return bool(known(self, "`if`, `while`, `and`, `or`, `not` or bool()", _BRANCH_FIX).reshape(()))

    def __int__(self) -> int:
        one_element(self, "int()")
        return int(known(self, "int()", NUMBER_FIX).reshape(()))

    def __float__(self) -> float:
        one_element(self, "float()")
        return float(known(self, "float()", NUMBER_FIX).reshape(()))

    def __complex__(self) -> complex:
        one_element(self, "complex()")
        return complex(known(self, "complex()", NUMBER_FIX).reshape(()))

    def __index__(self) -> int:
        if not dtypes.is_integer(self.type.dtype) or self.type.ndim:
            raise ShapeError(
                f"{self.type.short()} is not a Python index.",
                where=here(),
                why="an index is an integer array of rank 0; a list or a text times an array asks for one, too",
                fix="int(x) of one number, or mnp.array([…]) * x",
            )
        return int(known(self, "a Python index, range() or size", NUMBER_FIX))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        data = np.asarray(known(self, "NumPy", "call the function of the same name in meshwright.numpy"))
        if dtype is not None and data.dtype != dtype:
            return data.astype(dtype)
        if copy:
            return data.copy()
        # A view that cannot be written to: arrays do not change.
        seen = data.view()
        seen.flags.writeable = False
        return seen

    def __dlpack__(self, **options: Any) -> Any:
        fix = "hand it on after the traced function has returned"
        data = np.ascontiguousarray(known(self, "DLPack", fix)).view()
        data.flags.writeable = False
        try:
            return data.__dlpack__(**options)
        except BufferError:  # a consumer that does not know of memory it may only read
            return data.copy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return np.zeros(0).__dlpack_device__()  # type: ignore[return-value]

    def __len__(self) -> int:
        if not self.type.ndim:
            raise TypeError("len() of an array of rank 0")
        return self.type.shape[0]  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[ValueClass]:
        if not self.type.ndim:
            raise TypeError("an array of rank 0 cannot be iterated over")
        return iter(_rows(self))

    def __reversed__(self) -> Iterator[Any]:
        return iter(_rows(self)[::-1])

    def __contains__(self, item: Any) -> bool:
        return bool(reductions.any(logic.equal(self, item)))

    def __getitem__(self, key: Any) -> ValueClass:
        return index(self, key)  # type: ignore[arg-type]

    def __setitem__(self, key: Any, new: Any) -> None:
        raise ShapeError(
            "An array cannot be changed in place.",
            where=here(),
            why="programs compute new arrays from old ones",
            fix="x = x.at[…].set(y), or .add, .multiply, .min, .max",
        )

    @property
    def at(self) -> At:
        """``x.at[index].set(y)``: a new array with ``y`` at ``index``; also add, multiply, divide, min, max, get.

        >>> import meshwright.numpy as mnp
        >>> mnp.zeros(3).at[1].set(5.0)
        Array([0., 5., 0.], dtype=float32)
        """
        return At(self)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return _show(self)

    def __str__(self) -> str:
        return str(np.asarray(self.data)) if isinstance(self, Array) else _show(self)

    def __format__(self, spec: str) -> str:
        if spec and self.type.ndim == 0:
            return format(known(self, "a format", NUMBER_FIX)[()], spec)
        return format(str(self), spec)

    def __copy__(self) -> ValueClass:
        return creation.copy(self)

    def __deepcopy__(self, memo: Any) -> ValueClass:
        return creation.copy(self)


def _show(x: Any) -> str:
    """``Array([1., 2.], dtype=float32)``, or ``Traced<float32[3]>``."""
    if x.__class__ is Tracer:
        return f"Traced<{x.type}>"
    weak = ", weak_type=True" if x.type.weak else ""
    if x._data is None:
        return f"Array(donated, {x.type})"
    if x.type.dtype == dtypes.KEY:
        return f"Array({x.type.shape}, dtype=key<fry>) overlaying:\n{np.asarray(x.data)['threefry2x32']}"
    body = np.array2string(
        np.asarray(x.data), separator=", ", prefix="Array(", suffix=f", dtype={x.type.dtype.name}{weak})"
    )
    if x.type.size == 0:
        body = f"[], shape={x.type.shape}" if x.type.shape != (0,) else "[]"
    return f"Array({body}, dtype={x.type.dtype.name}{weak})"


def _install() -> None:
    skipped = {"__module__", "__dict__", "__weakref__", "__doc__", "__annotations__", "__qualname__"}
    for name, member in (*vars(Operators).items(), *vars(Methods).items()):
        if name not in skipped:
            setattr(ValueClass, name, member)


_install()
