"""The operators and methods of arrays and tracers, written as one class and given to ``core.trace.Value``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.op import Op, Value
from meshwright.core.source import here
from meshwright.core.trace import Array, Tracer, apply, concrete
from meshwright.core.trace import Value as ValueClass
from meshwright.errors import ShapeError
from meshwright.frontend import (
    numpy_arithmetic,
    numpy_creation,
    numpy_linalg,
    numpy_logic,
    numpy_math,
    numpy_order,
    numpy_reduction,
    numpy_shape,
    numpy_take,
)
from meshwright.frontend.indexing import At, index
from meshwright.frontend.operands import (
    _NO_DTYPES,
    _TAKES,
    VALUES,
    ArrayLike,
    Axis,
    DTypeLike,
    as_bool,
    convert,
    inexact_binary,
    is_operand,
    nary,
    not_known,
    strong,
)
from meshwright.ops import basic, elementwise


def _operator(op: Op, self: Value, other: Any) -> Any:
    """An operator on operands that need no promotion, else with it."""
    other_class = other.__class__
    if other_class in VALUES:
        if self.type is other.type:
            return apply(op, (self, other), {})
    elif self.type.dtype in _TAKES.get(other_class, _NO_DTYPES):
        return apply(op, (self, other), {})
    elif not is_operand(other):
        return NotImplemented
    return nary(op, self, other)


def _reflected(op: Op, self: Value, other: Any) -> Any:
    if self.type.dtype in _TAKES.get(other.__class__, _NO_DTYPES):
        return apply(op, (other, self), {})
    return nary(op, other, self) if is_operand(other) else NotImplemented


def _ordered(op: Op, self: Value, other: Any) -> Any:
    """A comparison by order, which complex numbers have in NumPy only."""
    if self.type.dtype.kind == "c" and is_operand(other):
        return numpy_logic.ordered(op, self, other)
    return _operator(op, self, other)


def _contents(x: Any, what: str, fix: str) -> Any:
    """What Python asks of an array by ``what``; a tracer has it only where its inputs are known."""
    if x.__class__ is Array:
        return x.data
    data = concrete(x)
    if data is None:
        raise not_known(x, what, fix)
    return data


def _one_element(x: Value, what: str) -> None:
    if x.type.size != 1:
        raise ShapeError(
            f"{what} of an array {x.type}.",
            where=here(),
            why=f"it has {x.type.size} elements, and {what} needs one",
            fix="x.any() or x.all() for a truth value, x[0] or x.sum() for a number",
        )


_BRANCH_FIX = (
    "choose between values with mnp.where(condition, x, y), or between computations with\n"
    "mw.lax.cond(condition, f, g, *operands); an argument that Python branches on can be made static:\n"
    "mw.jit(f, static_argnums=…)"
)
_NUMBER_FIX = (
    "keep the value an array: use mnp functions instead of Python's; a size or a count must be known while\n"
    "tracing: make the argument static with mw.jit(f, static_argnums=…)"
)


class Methods:
    """What ``Array`` and ``Tracer`` share."""

    __array_priority__ = 100
    type: Any
    shape: tuple[int, ...]
    ndim: int
    size: int
    dtype: dtypes.DType

    # Arithmetic

    def __add__(self, other: Any) -> Any:
        return _operator(basic.add, self, other)

    def __radd__(self, other: Any) -> Any:
        return _reflected(basic.add, self, other)

    def __sub__(self, other: Any) -> Any:
        return _operator(elementwise.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        return _reflected(elementwise.sub, self, other)

    def __mul__(self, other: Any) -> Any:
        return _operator(basic.mul, self, other)

    def __rmul__(self, other: Any) -> Any:
        return _reflected(basic.mul, self, other)

    def __truediv__(self, other: Any) -> Any:
        return inexact_binary(elementwise.div, self, other) if is_operand(other) else NotImplemented

    def __rtruediv__(self, other: Any) -> Any:
        return inexact_binary(elementwise.div, other, self) if is_operand(other) else NotImplemented

    def __floordiv__(self, other: Any) -> Any:
        return numpy_arithmetic.floor_divide(self, other) if is_operand(other) else NotImplemented

    def __rfloordiv__(self, other: Any) -> Any:
        return numpy_arithmetic.floor_divide(other, self) if is_operand(other) else NotImplemented

    def __mod__(self, other: Any) -> Any:
        return numpy_arithmetic.remainder(self, other) if is_operand(other) else NotImplemented

    def __rmod__(self, other: Any) -> Any:
        return numpy_arithmetic.remainder(other, self) if is_operand(other) else NotImplemented

    def __divmod__(self, other: Any) -> Any:
        return numpy_arithmetic.divmod(self, other) if is_operand(other) else NotImplemented

    def __rdivmod__(self, other: Any) -> Any:
        return numpy_arithmetic.divmod(other, self) if is_operand(other) else NotImplemented

    def __pow__(self, other: Any) -> Any:
        return numpy_arithmetic.power(self, other) if is_operand(other) else NotImplemented

    def __rpow__(self, other: Any) -> Any:
        return numpy_arithmetic.power(other, self) if is_operand(other) else NotImplemented

    def __matmul__(self, other: Any) -> Any:
        return numpy_linalg.matmul(self, other) if is_operand(other) else NotImplemented

    def __rmatmul__(self, other: Any) -> Any:
        return numpy_linalg.matmul(other, self) if is_operand(other) else NotImplemented

    def __neg__(self) -> Any:
        return apply(basic.neg, (self,), {})

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return numpy_logic.absolute(self)

    def __round__(self, digits: int | None = None) -> Any:
        rounded = numpy_math.round(self, digits or 0)
        return astype(rounded, int) if digits is None and dtypes.is_float(self.type.dtype) else rounded

    # Bits

    def __and__(self, other: Any) -> Any:
        return _operator(elementwise.and_, self, other)

    def __rand__(self, other: Any) -> Any:
        return _reflected(elementwise.and_, self, other)

    def __or__(self, other: Any) -> Any:
        return _operator(elementwise.or_, self, other)

    def __ror__(self, other: Any) -> Any:
        return _reflected(elementwise.or_, self, other)

    def __xor__(self, other: Any) -> Any:
        return _operator(elementwise.xor, self, other)

    def __rxor__(self, other: Any) -> Any:
        return _reflected(elementwise.xor, self, other)

    def __invert__(self) -> Any:
        return apply(elementwise.not_, (self,), {})

    def __lshift__(self, other: Any) -> Any:
        return numpy_logic.left_shift(self, other) if is_operand(other) else NotImplemented

    def __rlshift__(self, other: Any) -> Any:
        return numpy_logic.left_shift(other, self) if is_operand(other) else NotImplemented

    def __rshift__(self, other: Any) -> Any:
        return numpy_logic.right_shift(self, other) if is_operand(other) else NotImplemented

    def __rrshift__(self, other: Any) -> Any:
        return numpy_logic.right_shift(other, self) if is_operand(other) else NotImplemented

    # Comparisons

    def __eq__(self, other: Any) -> Any:
        return _operator(elementwise.eq, self, other)

    def __ne__(self, other: Any) -> Any:
        return _operator(elementwise.ne, self, other)

    def __lt__(self, other: Any) -> Any:
        return _ordered(elementwise.lt, self, other)

    def __le__(self, other: Any) -> Any:
        return _ordered(elementwise.le, self, other)

    def __gt__(self, other: Any) -> Any:
        return _ordered(elementwise.gt, self, other)

    def __ge__(self, other: Any) -> Any:
        return _ordered(elementwise.ge, self, other)

    __hash__ = None  # type: ignore[assignment]

    # What Python asks for

    def __bool__(self) -> bool:
        _one_element(self, "bool()")
        return bool(_contents(self, "`if`, `while`, `and`, `or`, `not` or bool()", _BRANCH_FIX).reshape(()))

    def __int__(self) -> int:
        _one_element(self, "int()")
        return int(_contents(self, "int()", _NUMBER_FIX).reshape(()))

    def __float__(self) -> float:
        _one_element(self, "float()")
        return float(_contents(self, "float()", _NUMBER_FIX).reshape(()))

    def __complex__(self) -> complex:
        _one_element(self, "complex()")
        return complex(_contents(self, "complex()", _NUMBER_FIX).reshape(()))

    def __index__(self) -> int:
        if not dtypes.is_integer(self.type.dtype) or self.type.ndim:
            raise TypeError(f"only an integer array of rank 0 is an index, not {self.type}")
        return int(_contents(self, "a Python index, range() or size", _NUMBER_FIX))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        data = np.asarray(_contents(self, "NumPy", "call the function of the same name in meshwright.numpy"))
        if dtype is not None:
            data = data.astype(dtype)
        return data.copy() if copy else data

    def __dlpack__(self, **options: Any) -> Any:
        fix = "hand it on after the traced function has returned"
        return np.ascontiguousarray(_contents(self, "DLPack", fix)).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return np.zeros(0).__dlpack_device__()  # type: ignore[return-value]

    def __len__(self) -> int:
        if not self.type.ndim:
            raise TypeError("len() of an array of rank 0")
        return self.type.shape[0]  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Any]:
        if not self.type.ndim:
            raise TypeError("an array of rank 0 cannot be iterated over")
        return iter(numpy_shape.unstack(self))

    def __reversed__(self) -> Iterator[Any]:
        return iter(numpy_shape.unstack(self)[::-1])

    def __contains__(self, item: Any) -> bool:
        return bool(numpy_reduction.any(numpy_logic.equal(self, item)))

    def __getitem__(self, key: Any) -> Any:
        return index(self, key)

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
        return At(self)

    def __repr__(self) -> str:
        return _show(self)

    def __str__(self) -> str:
        return str(np.asarray(self.data)) if isinstance(self, Array) else _show(self)

    def __format__(self, spec: str) -> str:
        if spec and self.type.ndim == 0:
            return format(_contents(self, "a format", _NUMBER_FIX)[()], spec)
        return format(str(self), spec)

    def __copy__(self) -> Any:
        return numpy_creation.copy(self)

    def __deepcopy__(self, memo: Any) -> Any:
        return numpy_creation.copy(self)

    # Contents and layout

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return self.type.nbytes  # type: ignore[no-any-return]

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.type.dtype.itemsize  # type: ignore[no-any-return]

    @property
    def T(self) -> Any:
        """With the dims in reverse order."""
        return numpy_shape.transpose(self)

    @property
    def mT(self) -> Any:
        """With the last two dims exchanged."""
        return numpy_shape.matrix_transpose(self)

    @property
    def real(self) -> Any:
        """The real part."""
        return numpy_logic.real(self)

    @property
    def imag(self) -> Any:
        """The imaginary part."""
        return numpy_logic.imag(self)

    @property
    def flat(self) -> Any:
        """The elements one by one."""
        return iter(numpy_shape.ravel(self))

    def item(self, *args: int) -> bool | int | float | complex:
        """One element as a Python number."""
        data = np.asarray(_contents(self, ".item()", _NUMBER_FIX))
        if not args:
            _one_element(self, ".item()")
        found = data.item(*args)
        return found if isinstance(found, bool | int | float | complex) else float(found)

    def tolist(self) -> Any:
        """The contents as nested lists of Python numbers."""
        return np.asarray(_contents(self, ".tolist()", _NUMBER_FIX)).tolist()

    def copy(self) -> Any:
        """An equal array with contents of its own."""
        return numpy_creation.copy(self)

    def block_until_ready(self) -> Any:
        """The array itself; what has been computed is ready."""
        return self

    def astype(self, dtype: DTypeLike, copy: bool = False) -> Any:
        """In another dtype."""
        return astype(self, dtype)

    def view(self, dtype: DTypeLike) -> Any:
        """The same bits as another dtype."""
        return elementwise.bitcast(self, dtype=dtypes.as_dtype(dtype))

    # Rearranging

    def reshape(self, *shape: Any, order: str = "C") -> Any:
        """The elements in another shape; one size may be -1."""
        wanted = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return numpy_shape.reshape(self, wanted, order)

    def ravel(self, order: str = "C") -> Any:
        """The elements in one dim."""
        return numpy_shape.ravel(self, order)

    def flatten(self, order: str = "C") -> Any:
        """The elements in one dim."""
        return numpy_shape.ravel(self, order)

    def transpose(self, *axes: Any) -> Any:
        """With the dims in another order, by default reversed."""
        given = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        return numpy_shape.transpose(self, given or None)

    def swapaxes(self, axis1: int, axis2: int) -> Any:
        """With two dims exchanged."""
        return numpy_shape.swapaxes(self, axis1, axis2)

    def squeeze(self, axis: Any = None) -> Any:
        """Without dims of size 1."""
        return numpy_shape.squeeze(self, axis)

    def repeat(self, repeats: Any, axis: int | None = None, *, total_repeat_length: int | None = None) -> Any:
        """With each element repeated."""
        return numpy_take.repeat(self, repeats, axis, total_repeat_length=total_repeat_length)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
        """A diagonal."""
        return numpy_creation.diagonal(self, offset, axis1, axis2)

    def take(self, indices: ArrayLike, axis: int | None = None, mode: str | None = None, **options: Any) -> Any:
        """The elements at ``indices``."""
        return numpy_take.take(self, indices, axis, mode=mode, **options)

    # Reductions

    def sum(
        self, axis: Axis = None, dtype: DTypeLike = None, out: None = None, keepdims: bool = False, **options: Any
    ) -> Any:
        """The sum."""
        return numpy_reduction.sum(self, axis, dtype, None, keepdims, **options)

    def prod(
        self, axis: Axis = None, dtype: DTypeLike = None, out: None = None, keepdims: bool = False, **options: Any
    ) -> Any:
        """The product."""
        return numpy_reduction.prod(self, axis, dtype, None, keepdims, **options)

    def mean(
        self, axis: Axis = None, dtype: DTypeLike = None, out: None = None, keepdims: bool = False, **options: Any
    ) -> Any:
        """The mean."""
        return numpy_reduction.mean(self, axis, dtype, None, keepdims, **options)

    def var(
        self,
        axis: Axis = None,
        dtype: DTypeLike = None,
        out: None = None,
        ddof: float = 0,
        keepdims: bool = False,
        **options: Any,
    ) -> Any:
        """The variance."""
        return numpy_reduction.var(self, axis, dtype, None, ddof, keepdims, **options)

    def std(
        self,
        axis: Axis = None,
        dtype: DTypeLike = None,
        out: None = None,
        ddof: float = 0,
        keepdims: bool = False,
        **options: Any,
    ) -> Any:
        """The standard deviation."""
        return numpy_reduction.std(self, axis, dtype, None, ddof, keepdims, **options)

    def max(self, axis: Axis = None, out: None = None, keepdims: bool = False, **options: Any) -> Any:
        """The largest element."""
        return numpy_reduction.max(self, axis, None, keepdims, **options)

    def min(self, axis: Axis = None, out: None = None, keepdims: bool = False, **options: Any) -> Any:
        """The smallest element."""
        return numpy_reduction.min(self, axis, None, keepdims, **options)

    def ptp(self, axis: Axis = None, out: None = None, keepdims: bool = False) -> Any:
        """The largest element minus the smallest."""
        return numpy_reduction.ptp(self, axis, None, keepdims)

    def any(self, axis: Axis = None, out: None = None, keepdims: bool = False, **options: Any) -> Any:
        """Whether some element is nonzero."""
        return numpy_reduction.any(self, axis, None, keepdims, **options)

    def all(self, axis: Axis = None, out: None = None, keepdims: bool = False, **options: Any) -> Any:
        """Whether every element is nonzero."""
        return numpy_reduction.all(self, axis, None, keepdims, **options)

    def argmax(self, axis: int | None = None, out: None = None, keepdims: bool = False) -> Any:
        """The place of the largest element."""
        return numpy_reduction.argmax(self, axis, None, keepdims)

    def argmin(self, axis: int | None = None, out: None = None, keepdims: bool = False) -> Any:
        """The place of the smallest element."""
        return numpy_reduction.argmin(self, axis, None, keepdims)

    def cumsum(self, axis: int | None = None, dtype: DTypeLike = None, out: None = None) -> Any:
        """The sums up to each place."""
        return numpy_reduction.cumsum(self, axis, dtype)

    def cumprod(self, axis: int | None = None, dtype: DTypeLike = None, out: None = None) -> Any:
        """The products up to each place."""
        return numpy_reduction.cumprod(self, axis, dtype)

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: DTypeLike = None, out: None = None) -> Any:
        """The sum of a diagonal."""
        return numpy_linalg.trace(self, offset, axis1, axis2, dtype)

    # The rest

    def dot(self, b: ArrayLike, **options: Any) -> Any:
        """The dot product."""
        return numpy_linalg.dot(self, b, **options)

    def clip(self, min: ArrayLike | None = None, max: ArrayLike | None = None) -> Any:
        """Limited to lie between ``min`` and ``max``."""
        return numpy_arithmetic.clip(self, min, max)

    def round(self, decimals: int = 0, out: None = None) -> Any:
        """Rounded, halves to even."""
        return numpy_math.round(self, decimals)

    def conj(self) -> Any:
        """The complex conjugate."""
        return numpy_logic.conjugate(self)

    def conjugate(self) -> Any:
        """The complex conjugate."""
        return numpy_logic.conjugate(self)

    def sort(self, axis: int | None = -1, *, stable: bool = True, descending: bool = False) -> Any:
        """The elements in increasing order."""
        return numpy_order.sort(self, axis, stable=stable, descending=descending)

    def argsort(self, axis: int | None = -1, *, stable: bool = True, descending: bool = False) -> Any:
        """The places of the elements in increasing order."""
        return numpy_order.argsort(self, axis, stable=stable, descending=descending)

    def searchsorted(self, v: ArrayLike, side: str = "left", sorter: ArrayLike | None = None) -> Any:
        """Where to insert ``v`` to keep the array sorted."""
        return numpy_order.searchsorted(self, v, side, sorter)

    def nonzero(self, *, size: int | None = None, fill_value: Any = None) -> Any:
        """The places of the nonzero elements."""
        return numpy_order.nonzero(self, size=size, fill_value=fill_value)


def astype(x: ArrayLike, dtype: DTypeLike, /, *, copy: bool = False) -> Value:
    """``x`` in another dtype."""
    x = numpy_creation.asarray(x)
    target = dtypes.default_float() if dtype is None else dtypes.as_dtype(dtype)
    if target == dtypes.BOOL:
        return as_bool(x)
    return strong(convert(x, target))


def _show(x: Any) -> str:
    """``Array([1., 2.], dtype=float32)``, or ``Traced<float32[3]>``."""
    if x.__class__ is Tracer:
        return f"Traced<{x.type}>"
    weak = ", weak_type=True" if x.type.weak else ""
    if x._data is None:
        return f"Array(donated, {x.type})"
    body = np.array2string(
        np.asarray(x._data), separator=", ", prefix="Array(", suffix=f", dtype={x.type.dtype.name}{weak})"
    )
    if x.type.size == 0:
        body = f"[], shape={x.type.shape}" if x.type.shape != (0,) else "[]"
    return f"Array({body}, dtype={x.type.dtype.name}{weak})"


def _install() -> None:
    skipped = {"__module__", "__dict__", "__weakref__", "__doc__", "__annotations__", "__qualname__"}
    for name, member in vars(Methods).items():
        if name not in skipped:
            setattr(ValueClass, name, member)


_install()
