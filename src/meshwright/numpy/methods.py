"""The methods of arrays and tracers; each is the function of the same name in ``meshwright.numpy``."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.arrays.operands import (
    ArrayLike,
    Axis,
    DTypeLike,
    as_bool,
    as_dtype,
    convert,
    known,
    stack_values,
    strong,
)
from meshwright.arrays.repeated import compiled_in_kernels
from meshwright.arrays.static import placed, static_flag
from meshwright.core import dtypes
from meshwright.core.dtypes import BOOL, UINT8, DType
from meshwright.core.limits import refuse_unheld
from meshwright.core.op import Value
from meshwright.core.source import here
from meshwright.core.trace import Value as ValueClass
from meshwright.errors import ShapeError
from meshwright.numpy import arithmetic, creation, logic, mathematics, order, products, reductions, shapes, taking
from meshwright.ops import basic, elementwise


def one_element(x: Value, what: str) -> None:
    """Refuse what only one element can give."""
    if x.type.size != 1:
        raise ShapeError(
            f"{what} of an array {x.type}.",
            where=here(),
            why=f"it has {x.type.size} elements, and {what} needs one",
            fix="x.any() or x.all() for a truth value, x[0] or x.sum() for a number",
        )


NUMBER_FIX = (
    "keep the value an array: use mnp functions instead of Python's; a size or a count must be known while\n"
    "tracing: make the argument static with mw.jit(f, static_argnums=…)"
)


class Methods:
    """What ``Array`` and ``Tracer`` share: contents, rearrangements, reductions."""

    type: Any

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
    def T(self) -> ValueClass:
        """With the dims in reverse order."""
        return shapes.transpose(self)

    @property
    def mT(self) -> ValueClass:
        """With the last two dims exchanged."""
        return shapes.matrix_transpose(self)

    @property
    def real(self) -> ValueClass:
        """The real part."""
        return logic.real(self)

    @property
    def imag(self) -> ValueClass:
        """The imaginary part."""
        return logic.imag(self)

    @property
    def flat(self) -> Any:
        """The elements one by one."""
        return iter(shapes.ravel(self))

    def item(self, *args: int) -> bool | int | float | complex:
        """One element as a Python number."""
        data = np.asarray(known(self, ".item()", NUMBER_FIX))
        if not args:
            one_element(self, ".item()")
        found = data.item(*args)
        return found if isinstance(found, bool | int | float | complex) else float(found)

    def tolist(self) -> Any:
        """The contents as nested lists of Python numbers."""
        data = np.asarray(known(self, ".tolist()", NUMBER_FIX))
        refuse_unheld(".tolist()", [self.type])
        return data.tolist()

    def tobytes(self, order: Any = "C") -> bytes:
        """The contents as bytes, in row-major order."""
        data = np.asarray(known(self, ".tobytes()", NUMBER_FIX))
        refuse_unheld(".tobytes()", [self.type])
        return data.tobytes(order)

    def is_deleted(self) -> bool:
        """Whether the contents are gone: deleted, or given to a jitted function that may overwrite them."""
        return getattr(self, "_data", self) is None

    def delete(self) -> None:
        """Let the contents go, whoever else refers to the array."""
        array: Any = self
        if hasattr(array, "_data"):
            array._data = None

    def copy(self) -> ValueClass:
        """An equal array with contents of its own."""
        return creation.copy(self)

    def block_until_ready(self) -> ValueClass:
        """The array itself; what has been computed is ready."""
        return self  # type: ignore[return-value]

    def to_device(self, device: Any, *, stream: Any = None) -> ValueClass:
        """The array on another device, or as a sharding says: ``device_put`` by the name of the array API."""
        return placed(self, device)  # type: ignore[arg-type]

    def astype(self, dtype: DTypeLike, copy: bool = False) -> ValueClass:
        """In another dtype."""
        return astype(self, dtype, copy=copy)

    def view(self, dtype: DTypeLike) -> ValueClass:
        """The same bits as another dtype; along the last dim, several narrower numbers for one or one for several."""
        return viewed(self, as_dtype(dtype))

    # Rearranging

    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None, out_sharding: Any = None) -> ValueClass:
        """The elements in another shape; one size may be -1."""
        wanted = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return shapes.reshape(self, wanted, order, copy=copy, out_sharding=out_sharding)

    def ravel(self, order: str = "C", *, out_sharding: Any = None) -> ValueClass:
        """The elements in one dim."""
        return shapes.ravel(self, order, out_sharding=out_sharding)

    def flatten(self, order: str = "C", *, out_sharding: Any = None) -> ValueClass:
        """The elements in one dim."""
        return shapes.ravel(self, order, out_sharding=out_sharding)

    def transpose(self, *axes: Any) -> ValueClass:
        """With the dims in another order, by default reversed."""
        given = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        return shapes.transpose(self, given or None)

    def swapaxes(self, axis1: int, axis2: int) -> ValueClass:
        """With two dims exchanged."""
        return shapes.swapaxes(self, axis1, axis2)

    def squeeze(self, axis: Any = None) -> ValueClass:
        """Without dims of size 1."""
        return shapes.squeeze(self, axis)

    def repeat(
        self, repeats: Any, axis: int | None = None, *, total_repeat_length: int | None = None, out_sharding: Any = None
    ) -> ValueClass:
        """With each element repeated."""
        return taking.repeat(self, repeats, axis, total_repeat_length=total_repeat_length, out_sharding=out_sharding)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> ValueClass:
        """A diagonal."""
        return creation.diagonal(self, offset, axis1, axis2)

    def take(self, indices: ArrayLike, axis: int | None = None, mode: str | None = None, **options: Any) -> ValueClass:
        """The elements at ``indices``."""
        return taking.take(self, indices, axis, mode=mode, **options)

    # Reductions

    def sum(
        self, axis: Axis = None, dtype: DTypeLike = None, out: None = None, keepdims: bool = False, **options: Any
    ) -> ValueClass:
        """The sum."""
        return reductions.sum(self, axis, dtype, out, keepdims, **options)

    def prod(
        self, axis: Axis = None, dtype: DTypeLike = None, out: None = None, keepdims: bool = False, **options: Any
    ) -> ValueClass:
        """The product."""
        return reductions.prod(self, axis, dtype, out, keepdims, **options)

    def mean(
        self, axis: Axis = None, dtype: DTypeLike = None, out: None = None, keepdims: bool = False, **options: Any
    ) -> ValueClass:
        """The mean."""
        return reductions.mean(self, axis, dtype, out, keepdims, **options)

    def var(
        self,
        axis: Axis = None,
        dtype: DTypeLike = None,
        out: None = None,
        ddof: float = 0,
        keepdims: bool = False,
        **options: Any,
    ) -> ValueClass:
        """The variance."""
        return reductions.var(self, axis, dtype, out, ddof, keepdims, **options)

    def std(
        self,
        axis: Axis = None,
        dtype: DTypeLike = None,
        out: None = None,
        ddof: float = 0,
        keepdims: bool = False,
        **options: Any,
    ) -> ValueClass:
        """The standard deviation."""
        return reductions.std(self, axis, dtype, out, ddof, keepdims, **options)

    def max(self, axis: Axis = None, out: None = None, keepdims: bool = False, **options: Any) -> ValueClass:
        """The largest element."""
        return reductions.max(self, axis, out, keepdims, **options)

    def min(self, axis: Axis = None, out: None = None, keepdims: bool = False, **options: Any) -> ValueClass:
        """The smallest element."""
        return reductions.min(self, axis, out, keepdims, **options)

    def ptp(self, axis: Axis = None, out: None = None, keepdims: bool = False) -> ValueClass:
        """The largest element minus the smallest."""
        return reductions.ptp(self, axis, out, keepdims)

    def any(self, axis: Axis = None, out: None = None, keepdims: bool = False, **options: Any) -> ValueClass:
        """Whether some element is nonzero."""
        return reductions.any(self, axis, out, keepdims, **options)

    def all(self, axis: Axis = None, out: None = None, keepdims: bool = False, **options: Any) -> ValueClass:
        """Whether every element is nonzero."""
        return reductions.all(self, axis, out, keepdims, **options)

    def argmax(self, axis: int | None = None, out: None = None, keepdims: bool = False) -> ValueClass:
        """The place of the largest element."""
        return reductions.argmax(self, axis, out, keepdims)

    def argmin(self, axis: int | None = None, out: None = None, keepdims: bool = False) -> ValueClass:
        """The place of the smallest element."""
        return reductions.argmin(self, axis, out, keepdims)

    def cumsum(self, axis: int | None = None, dtype: DTypeLike = None, out: None = None) -> ValueClass:
        """The sums up to each place."""
        return reductions.cumsum(self, axis, dtype, out)

    def cumprod(self, axis: int | None = None, dtype: DTypeLike = None, out: None = None) -> ValueClass:
        """The products up to each place."""
        return reductions.cumprod(self, axis, dtype, out)

    def trace(
        self, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: DTypeLike = None, out: None = None
    ) -> ValueClass:
        """The sum of a diagonal."""
        return products.trace(self, offset, axis1, axis2, dtype, out)

    # The rest

    def dot(self, b: ArrayLike, **options: Any) -> ValueClass:
        """The dot product."""
        return products.dot(self, b, **options)

    def clip(self, min: ArrayLike | None = None, max: ArrayLike | None = None) -> ValueClass:
        """Limited to lie between ``min`` and ``max``."""
        return arithmetic.clip(self, min, max)

    def round(self, decimals: int = 0, out: None = None) -> ValueClass:
        """Rounded, halves to even."""
        return mathematics.round(self, decimals, out)

    def conj(self) -> ValueClass:
        """The complex conjugate."""
        return logic.conjugate(self)

    def conjugate(self) -> ValueClass:
        """The complex conjugate."""
        return logic.conjugate(self)

    def sort(self, axis: int | None = -1, *, stable: bool = True, descending: bool = False) -> ValueClass:
        """The elements in increasing order."""
        return order.sort(self, axis, stable=stable, descending=descending)

    def argsort(self, axis: int | None = -1, *, stable: bool = True, descending: bool = False) -> ValueClass:
        """The places of the elements in increasing order."""
        return order.argsort(self, axis, stable=stable, descending=descending)

    def searchsorted(self, v: ArrayLike, side: str = "left", sorter: ArrayLike | None = None) -> ValueClass:
        """Where to insert ``v`` to keep the array sorted."""
        return order.searchsorted(self, v, side, sorter)

    def nonzero(self, *, size: int | None = None, fill_value: Any = None) -> Any:
        """The places of the nonzero elements."""
        return order.nonzero(self, size=size, fill_value=fill_value)


@compiled_in_kernels
def astype(x: ArrayLike, dtype: DTypeLike, /, *, copy: bool = False, device: Any = None) -> Value:
    """``x`` in another dtype, on a device or as a sharding says if one is given."""
    static_flag(copy, "copy of astype")
    x = creation.asarray(x)
    target = dtypes.default_float() if dtype is None else as_dtype(dtype)
    found = as_bool(x) if target == dtypes.BOOL else strong(convert(x, target))
    return found if device is None else placed(found, device)


def viewed(x: Value, dtype: DType) -> Value:
    """The bits of ``x`` as numbers of another dtype, whose width changes the size of the last dim.

    A boolean is a byte of 0 or 1, and a complex number two floats.
    """
    if x.type.dtype == dtype:
        return strong(x)  # which has a derivative
    if x.type.dtype == BOOL != dtype:
        return viewed(convert(x, UINT8), dtype)
    if dtype == BOOL != x.type.dtype:
        return elementwise.ne(viewed(x, UINT8), 0)
    have, width = x.type.dtype.itemsize, dtype.itemsize
    if have == width and not (dtypes.is_complex(x.type.dtype) or dtypes.is_complex(dtype)):
        return elementwise.bitcast(x, dtype=dtype)
    if not x.ndim or (have < width and x.shape[-1] * have % width):
        raise ShapeError(
            f"{x.type.short()} cannot be viewed as {dtype.name}.",
            where=here(),
            why="an array of rank 0 has no dim whose size could change"
            if not x.ndim
            else f"its last dim has {x.shape[-1] * have} bytes, which is no multiple of {width}",
            fix=f"x.astype('{dtype.name}') converts the numbers",
        )
    lead, size = x.shape[:-1], x.shape[-1]
    if dtypes.is_complex(x.type.dtype):
        parts = stack_values([elementwise.real(x), elementwise.imag(x)], x.ndim)
        return viewed(basic.reshape(parts, shape=(*lead, 2 * size)), dtype)
    if dtypes.is_complex(dtype):
        floats = viewed(x, dtypes.real_part(dtype))
        return elementwise.complex(floats[..., ::2], floats[..., 1::2])
    if have > width:
        return basic.reshape(elementwise.bitcast(x, dtype=dtype), shape=(*lead, size * (have // width)))
    ratio = width // have
    return elementwise.bitcast(basic.reshape(x, shape=(*lead, size // ratio, ratio)), dtype=dtype)
