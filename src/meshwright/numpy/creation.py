"""Functions of ``meshwright.numpy`` that make arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.arrays import scalars
from meshwright.arrays.operands import (
    ArrayLike,
    DTypeLike,
    as_dtype,
    axis_of,
    broadcast,
    common_shape,
    convert,
    fitting,
    is_number,
    known,
    numbers,
    promoted,
    promoted_values,
    result_key,
    scalar,
    stack_values,
    strong,
    to_inexact,
    value,
)
from meshwright.arrays.repeated import compiled_in_kernels
from meshwright.arrays.static import no_negative, one_of, placed, static_flag, static_int, static_shape, static_size
from meshwright.arrays.tracing import check_function
from meshwright.core import dtypes
from meshwright.core.current import current_mesh
from meshwright.core.dtypes import DType
from meshwright.core.limits import MOST_DIMS, out_of_memory, refuse_impossible, refuse_unheld
from meshwright.core.source import here
from meshwright.core.trace import Array, Tracer, Value, state, to_array
from meshwright.core.types import Shape, TensorType
from meshwright.errors import ShapeError
from meshwright.numpy.arithmetic import add, divide, multiply, power, subtract
from meshwright.numpy.logic import either, greater_equal, less, logical_and, not_equal, real
from meshwright.numpy.mathematics import floor, log10
from meshwright.ops import basic, elementwise
from meshwright.ops.layout import laid_out
from meshwright.ops.shape import iota, pad, slice_


def array(
    object: ArrayLike,
    dtype: DTypeLike = None,
    copy: bool = True,
    order: str | None = "K",
    ndmin: int = 0,
    *,
    device: Any = None,
    out_sharding: Any = None,
) -> Value:
    """An array of numbers, nested lists, NumPy arrays or other arrays.

    >>> import meshwright.numpy as mnp
    >>> mnp.array([[1, 2], [3, 4]])
    Array([[1, 2],
           [3, 4]], dtype=int32)
    """
    static_flag(copy, "copy of mnp.array")
    one_of(order, (None, "K", "C"), "order of mnp.array")
    if copy and isinstance(object, np.ndarray):
        object = object.copy()
    made = value(object) if dtype is None else numbers(object, as_dtype(dtype))
    if copy and made is object and made.__class__ is Array:
        made = Array(made.data, made.type, made._sharding)  # contents do not change; one of the two may be donated
    ndmin = static_size(ndmin, "ndmin of mnp.array")
    refuse_impossible("mnp.array", [TensorType((1,) * min(ndmin, MOST_DIMS + 1), made.type.dtype)])
    if made.ndim < ndmin:
        made = basic.reshape(made, shape=(1,) * (ndmin - made.ndim) + made.shape)
    if made.__class__ is Array and made._sharding is None and device is None and out_sharding is None:
        made = Array(made.data, made.type, _new_place(made)) if not isinstance(object, Value) else made
    return placed(made, device, out_sharding)


def _new_place(x: Value) -> Any:
    """Where a new array is: nowhere, or on the current mesh."""
    if current_mesh.get() is None:
        return None
    from meshwright.sharding.explicit import new_place  # no program without a mesh needs to load it

    return new_place(x.ndim)


def asarray(
    a: ArrayLike,
    dtype: DTypeLike = None,
    order: str | None = None,
    *,
    copy: bool | None = None,
    device: Any = None,
    out_sharding: Any = None,
) -> Value:
    """``a`` as an array, itself where it is one."""
    return array(a, dtype, static_flag(copy, "copy of mnp.asarray"), order, device=device, out_sharding=out_sharding)


def copy(a: ArrayLike, order: str | None = None) -> Value:
    """An array equal to ``a`` with contents of its own."""
    one_of(order, (None, "K"), "order of mnp.copy")
    a = value(a)
    if a.__class__ is Array:
        refuse_unheld("mnp.copy", [a.type])
    return Array(np.array(a.data), a.type, a._sharding) if a.__class__ is Array else a


@compiled_in_kernels
def _filled(shape: Any, fill: ArrayLike, dtype: DTypeLike, default: DType | None) -> Value:
    shape = static_shape(shape)
    if any(n < 0 for n in shape):
        raise ShapeError(f"A shape {shape} has a negative size.", where=here(), why="sizes are 0 or more", fix="abs(n)")
    kind = default if dtype is None else as_dtype(dtype)
    if kind is None:
        return broadcast(value(fill), shape)
    return broadcast(_number(fill, kind, False) if is_number(fill) else strong(convert(value(fill), kind)), shape)


def _number(x: Any, dtype: DType, weak: bool) -> Value:
    """A Python number as a scalar; an integer wraps around to one of the dtype's."""
    if isinstance(x, complex) and dtype == dtypes.BOOL:
        x = x != 0
    if isinstance(x, complex) and dtype.kind != "c":
        raise ShapeError(
            f"The complex number {x} is not a number of {dtype.name}.",
            where=here(),
            why="its imaginary part would be lost",
            fix=f"{x}.real, or dtype='complex64'",
        )
    return scalar(fitting(x, dtype), dtype, weak)


def zeros(shape: Any, dtype: DTypeLike = None, *, device: Any = None, out_sharding: Any = None) -> Value:
    """Zeros.

    >>> import meshwright.numpy as mnp
    >>> mnp.zeros((2, 2))
    Array([[0., 0.],
           [0., 0.]], dtype=float32)
    """
    return placed(_filled(shape, 0, dtype, dtypes.default_float()), device, out_sharding)


def ones(shape: Any, dtype: DTypeLike = None, *, device: Any = None, out_sharding: Any = None) -> Value:
    """Ones."""
    return placed(_filled(shape, 1, dtype, dtypes.default_float()), device, out_sharding)


def empty(shape: Any, dtype: DTypeLike = None, *, device: Any = None, out_sharding: Any = None) -> Value:
    """Zeros: an array without contents does not exist here."""
    return placed(_filled(shape, 0, dtype, dtypes.default_float()), device, out_sharding)


def full(
    shape: Any, fill_value: ArrayLike, dtype: DTypeLike = None, *, device: Any = None, out_sharding: Any = None
) -> Value:
    """An array with ``fill_value`` everywhere, broadcast where it is an array."""
    return placed(_filled(shape, fill_value, dtype, None), device, out_sharding)


def zeros_like(
    a: ArrayLike, dtype: DTypeLike = None, shape: Any = None, *, device: Any = None, out_sharding: Any = None
) -> Value:
    """Zeros of the shape and dtype of ``a``."""
    return full_like(a, 0, dtype, shape, device=device, out_sharding=out_sharding)


def ones_like(
    a: ArrayLike, dtype: DTypeLike = None, shape: Any = None, *, device: Any = None, out_sharding: Any = None
) -> Value:
    """Ones of the shape and dtype of ``a``."""
    return full_like(a, 1, dtype, shape, device=device, out_sharding=out_sharding)


def empty_like(
    prototype: ArrayLike, dtype: DTypeLike = None, shape: Any = None, *, device: Any = None, out_sharding: Any = None
) -> Value:
    """Zeros of the shape and dtype of ``prototype``."""
    return full_like(prototype, 0, dtype, shape, device=device, out_sharding=out_sharding)


def full_like(
    a: ArrayLike,
    fill_value: ArrayLike,
    dtype: DTypeLike = None,
    shape: Any = None,
    *,
    device: Any = None,
    out_sharding: Any = None,
) -> Value:
    """``fill_value`` everywhere, in the shape and dtype and on the devices of ``a``; also of a ShapeDtypeStruct."""
    if not (hasattr(a, "shape") and hasattr(a, "dtype")):
        a = value(a)
    have, weak = (dtypes.canonical(np.dtype(a.dtype)), getattr(a, "weak_type", False))
    as_it_lies = shape is None and device is None and out_sharding is None
    plain = as_it_lies and dtype is None and not weak and getattr(a, "_sharding", None) is None
    if plain and scalars.state.compiling and state.builder is None and is_number(fill_value):
        return _filled(tuple(a.shape), fill_value, have, None)  # kernels ask for it again and again
    like = getattr(a, "type", None) if as_it_lies else None
    if as_it_lies and state.builder is None:
        device = a._sharding if a.__class__ is Array else getattr(a, "sharding", None)
        device = device if getattr(device, "committed", True) else None
        spec = getattr(device, "spec", None)
        if device is not None and spec is not None and spec.unreduced:  # what is made is whole, and no partial sum
            device = device.__class__(device.mesh, spec.update(unreduced=()))
    shape = static_shape(a.shape if shape is None else shape)
    no_negative(shape, "a size of mnp.full_like")
    if dtype is not None:
        have, weak = as_dtype(dtype), False
    if is_number(fill_value):
        fill = _number(fill_value, have, weak)
    else:
        given = value(fill_value)
        fill = basic.convert(given, dtype=have, weak=weak and not given.ndim)
    filled = broadcast(fill, shape)
    if like is not None and like.sharding is not None and device is None:  # traced, over Explicit axes
        return laid_out(filled, like)
    return placed(filled, device, out_sharding)


# Ranges


def arange(
    start: ArrayLike,
    stop: ArrayLike | None = None,
    step: ArrayLike | None = None,
    dtype: DTypeLike = None,
    *,
    device: Any = None,
    out_sharding: Any = None,
) -> Value:
    """Numbers from ``start`` (or 0) up to but not including ``stop``, ``step`` apart.

    >>> import meshwright.numpy as mnp
    >>> mnp.arange(2, 8, 3)
    Array([2, 5], dtype=int32)
    """
    return placed(_counted(start, stop, step, dtype), device, out_sharding)


def _counted(start: ArrayLike, stop: ArrayLike | None, step: ArrayLike | None, dtype: DTypeLike) -> Value:
    fix = "pass the bounds as Python numbers; make arguments of a jitted function static: mw.jit(f, static_argnums=…)"
    bounds: list[Any] = [
        x if x is None or is_number(x) else known(value(x), "mnp.arange", fix)[()] for x in (start, stop, step)
    ]
    given = [x for x in bounds if x is not None]
    if start is None or any(np.ndim(x) or np.iscomplexobj(x) for x in given):
        raise ShapeError(
            f"mnp.arange cannot take {', '.join(map(str, given)) or None}.",
            where=here(),
            why="its bounds are real numbers",
            fix="mnp.arange(0, 3)",
        )
    target = promoted(*map(result_key, given))[0] if dtype is None else as_dtype(dtype)
    first, last, stride = bounds
    if last is None:
        first, last = 0, first
    stride = 1 if stride is None else stride
    if stride == 0:
        raise ShapeError("mnp.arange cannot take step=0.", where=here(), why="it never gets anywhere", fix="step=1")
    length = _quotient(last - first, stride)
    if not math.isfinite(length):
        raise ShapeError(
            f"mnp.arange cannot count from {first} to {last} by {stride}.",
            where=here(),
            why="the number of steps is not finite",
            fix="finite bounds; mnp.linspace(start, stop, num) takes the number of elements",
        )
    count = max(0, math.ceil(length))
    refuse_impossible("mnp.arange", [TensorType((count,), target)])
    if not count:
        return basic.zeros(TensorType((0,), target))
    if dtypes.is_integer(target):  # as in NumPy: it starts and steps in the dtype of the result
        first, stride = int(first), int(stride)
    if not all(isinstance(x, int | np.integer) for x in (first, stride)):
        # Rounding is NumPy's, element by element, not that of float32 arithmetic.
        return to_array(np.arange(first, last, stride, dtype=None).astype(target))
    if first == 0 and stride == 1:
        return iota(dtype=target, shape=(count,), dim=0)
    kind = target if dtypes.is_integer(target) else dtypes.default_int()
    counted: Value = iota(dtype=kind, shape=(count,), dim=0)
    if stride != 1:
        counted = multiply(counted, int(stride)) if stride else basic.zeros(counted.type)
    return convert(add(counted, int(first)) if first != 0 else counted, target)


def _quotient(x: Any, y: Any) -> float:
    """``x / y``, infinite where it is too large for a float."""
    try:
        return float(x / y)
    except OverflowError:
        return math.inf


def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: DTypeLike = None,
    axis: int = 0,
    *,
    device: Any = None,
    out_sharding: Any = None,
) -> Any:
    """``num`` numbers evenly spaced from ``start`` to ``stop``.

    >>> import meshwright.numpy as mnp
    >>> mnp.linspace(0, 1, 5)
    Array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    """
    endpoint = static_flag(endpoint, "endpoint of mnp.linspace")
    retstep = static_flag(retstep, "retstep of mnp.linspace")
    num = static_size(num, "num of mnp.linspace")
    first, last = promoted_values(start, stop, inexact=True)
    target = first.type.dtype if dtype is None else as_dtype(dtype)
    computed = to_inexact(target)
    first, last = (convert(x, computed) for x in (first, last))
    shape = common_shape("mnp.linspace", first, last)
    axis = axis_of(axis, len(shape) + 1, "mnp.linspace")
    first, last = broadcast(first, shape), broadcast(last, shape)
    spaces = num - 1 if endpoint else num
    step: Value = strong(divide(subtract(last, first), spaces) if spaces > 0 else scalar(math.nan, computed))
    if num <= 0:
        out = zeros((0, *shape), computed)
    elif num == 1:
        out = basic.reshape(first, shape=(1, *shape))
    else:
        places = basic.reshape(
            iota(dtype=dtypes.real_part(computed), shape=(num,), dim=0), shape=(num,) + (1,) * len(shape)
        )
        fraction = divide(places, spaces)
        # Both ends weighted, so that the last one is exact.
        out = add(multiply(first, subtract(1.0, fraction)), multiply(last, fraction))
        if endpoint:
            is_last = greater_equal(places, num - 1)
            out = either(is_last, last, out)
    out = basic.move_dim(out, 0, axis)
    if dtypes.is_integer(target) and not dtypes.is_integer(computed):
        out = floor(out)
    out = placed(strong(convert(out, target)), device, out_sharding)
    return (out, step) if retstep else out


def logspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    base: ArrayLike = 10.0,
    dtype: DTypeLike = None,
    axis: int = 0,
) -> Value:
    """``num`` numbers from ``base**start`` to ``base**stop``, their logarithms evenly spaced."""
    endpoint = static_flag(endpoint, "endpoint of mnp.logspace")
    computed = None if dtype is None else to_inexact(as_dtype(dtype))
    out = power(base, linspace(start, stop, num, endpoint, dtype=computed, axis=axis))
    return out if dtype is None else convert(out, as_dtype(dtype))


def geomspace(
    start: ArrayLike, stop: ArrayLike, num: int = 50, endpoint: bool = True, dtype: DTypeLike = None, axis: int = 0
) -> Value:
    """``num`` numbers from ``start`` to ``stop``, each a constant multiple of the one before; both are negative, or
    neither is."""
    endpoint = static_flag(endpoint, "endpoint of mnp.geomspace")
    first, last = promoted_values(start, stop, inexact=True)
    if dtype is not None:
        first, last = (convert(x, to_inexact(as_dtype(dtype))) for x in (first, last))
    turned = either(logical_and(less(real(first), 0), less(real(last), 0)), basic.scalar_like(first, -1), 1)
    low, high = (log10(multiply(turned, x)) for x in (first, last))
    out = multiply(turned, logspace(low, high, num, endpoint))
    dim = axis_of(axis, out.ndim, "mnp.geomspace")
    out = strong(basic.move_dim(out, 0, dim))
    if not dtypes.is_complex(first.type.dtype):
        apart = not_equal(less(first, 0), less(last, 0))  # no such sequence goes through zero
        lead = common_shape("mnp.geomspace", first, last)
        spread = basic.reshape(broadcast(apart, lead), shape=(*lead[:dim], 1, *lead[dim:]))
        out = either(broadcast(spread, out.shape), math.nan, out)
    return out if dtype is None else convert(out, as_dtype(dtype))


# Matrices


def eye(
    N: int, M: int | None = None, k: int = 0, dtype: DTypeLike = None, *, device: Any = None, out_sharding: Any = None
) -> Value:
    """Ones on the ``k``-th diagonal of ``N`` rows and ``M`` columns, zeros elsewhere."""
    shape = (static_size(N, "N of mnp.eye"), static_size(N if M is None else M, "M of mnp.eye"))
    made = convert(_compare_places(shape, _diagonal(k, "mnp.eye"), "eq"), _dtype_or_float(dtype))
    return placed(made, device, out_sharding)


def identity(n: int, dtype: DTypeLike = None) -> Value:
    """The identity matrix."""
    return eye(n, dtype=dtype)


def tri(N: int, M: int | None = None, k: int = 0, dtype: DTypeLike = None) -> Value:
    """Ones on and below the ``k``-th diagonal."""
    shape = (static_size(N, "N of mnp.tri"), static_size(N if M is None else M, "M of mnp.tri"))
    return convert(_compare_places(shape, _diagonal(k, "mnp.tri"), "ge"), _dtype_or_float(dtype))


def _dtype_or_float(dtype: DTypeLike) -> DType:
    return dtypes.default_float() if dtype is None else as_dtype(dtype)


def _diagonal(k: Any, name: str) -> Any:
    """Which diagonal is meant: a number, or an integer that is known when the program runs."""
    if k.__class__ is Tracer and not k.ndim and dtypes.is_integer(k.dtype):
        return convert(k, dtypes.INT32)
    return static_int(k, f"k of {name}")


def _compare_places(shape: Shape, k: Any, relation: str) -> Value:
    """Row + k against column, at every place of a matrix."""
    rows = iota(dtype=dtypes.INT32, shape=shape, dim=0)
    columns = iota(dtype=dtypes.INT32, shape=shape, dim=1)
    return getattr(elementwise, relation)(rows if k.__class__ is int and not k else add(rows, k), columns)


def _triangle(m: ArrayLike, k: Any, name: str, back: int = 0) -> tuple[Value, Value]:
    m = value(m)
    if m.ndim < 2:
        raise ShapeError(
            f"{name} cannot take {m.type.short()}.", where=here(), why="it needs two dims or more", fix="m[None, :]"
        )
    mask = _compare_places(m.shape[-2:], _diagonal(k, name) - back, "ge")
    return m, broadcast(mask, m.shape)


def tril(m: ArrayLike, k: int = 0) -> Value:
    """``m`` with zeros above the ``k``-th diagonal."""
    m, mask = _triangle(m, k, "mnp.tril")
    return either(mask, m, basic.scalar_like(m, 0))


def triu(m: ArrayLike, k: int = 0) -> Value:
    """``m`` with zeros below the ``k``-th diagonal."""
    m, mask = _triangle(m, k, "mnp.triu", 1)
    return either(mask, basic.scalar_like(m, 0), m)


def diag(v: ArrayLike, k: int = 0) -> Value:
    """The matrix with ``v`` on its diagonal, or the diagonal of the matrix ``v``."""
    v, k = value(v), static_int(k, "k of mnp.diag")
    if v.ndim == 1:
        size = v.shape[0] + abs(k)
        padded = _shifted(v, k, size)
        mask = _compare_places((size, size), k, "eq")
        return either(mask, broadcast(padded, (size, size)), basic.scalar_like(v, 0))
    if v.ndim == 2:
        return diagonal(v, k)
    raise ShapeError(
        f"mnp.diag cannot take {v.type.short()}.", where=here(), why="it needs one or two dims", fix="mnp.diagonal(v)"
    )


def _shifted(v: Value, k: int, size: int) -> Value:
    """``v`` at columns ``max(k, 0)`` and on of a row of ``size``."""
    before = max(k, 0)
    if not k:
        return v
    return pad(v, basic.scalar_like(v, 0), low=(before,), high=(size - before - v.shape[0],), interior=(0,))


def diagflat(v: ArrayLike, k: int = 0) -> Value:
    """The matrix with all elements of ``v`` on its diagonal."""
    v = strong(value(v))
    return diag(basic.reshape(v, shape=(v.size,)), k)


def diagonal(a: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Value:
    """The elements whose positions along two dims differ by ``offset``."""
    a, offset = value(a), static_int(offset, "offset of mnp.diagonal")
    first, second = (axis_of(x, a.ndim, "mnp.diagonal") for x in (axis1, axis2))
    if first == second:
        raise ShapeError(
            f"mnp.diagonal cannot take axis1={axis1} and axis2={axis2}.",
            where=here(),
            why="a diagonal runs along two dims",
            fix="axis1=0, axis2=1",
        )
    rest = tuple(d for d in range(a.ndim) if d not in (first, second))
    a = basic.transpose(a, permutation=(*rest, first, second))
    rows, columns = a.shape[-2:]
    start_row, start_column = max(-offset, 0), max(offset, 0)
    count = max(0, min(rows - start_row, columns - start_column))
    lead = a.shape[:-2]
    flat = basic.reshape(a, shape=(*lead, rows * columns))
    # Diagonal elements stand columns + 1 apart in the flattened matrix.
    start = start_row * columns + start_column
    limit = start + (count - 1) * (columns + 1) + 1 if count else start
    full = len(lead)
    return slice_(
        flat,
        starts=(0,) * full + (start if count else 0,),
        limits=(*lead, limit if count else 0),
        strides=(1,) * full + (columns + 1,),
    )


def meshgrid(*xi: ArrayLike, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> list[Value]:
    """The coordinates of a grid, one array per dim."""
    static_flag(copy, "copy of mnp.meshgrid")
    sparse = static_flag(sparse, "sparse of mnp.meshgrid")
    if indexing not in ("xy", "ij"):
        raise ShapeError(
            f"mnp.meshgrid cannot take indexing={indexing!r}.",
            where=here(),
            why="it is 'xy' or 'ij'",
            fix="indexing='ij'",
        )
    vectors = [basic.reshape(value(x), shape=(value(x).size,)) for x in xi]
    order = list(range(len(vectors)))
    if indexing == "xy" and len(order) > 1:
        order[0], order[1] = 1, 0
    shape = tuple(vectors[d].shape[0] for d in order)
    grids = []
    for vector, dim in zip(vectors, order, strict=True):
        kept = tuple(vector.shape[0] if d == dim else 1 for d in range(len(shape)))
        grids.append(basic.broadcast_in_dim(vector, shape=kept if sparse else shape, dims=(dim,)))
    return grids


def indices(dimensions: Sequence[int], dtype: DTypeLike = None, sparse: bool = False) -> Any:
    """The position of every place of an array, one array per dim."""
    sparse = static_flag(sparse, "sparse of mnp.indices")
    shape = static_shape(dimensions)
    target = dtypes.default_int() if dtype is None else as_dtype(dtype)
    if sparse:
        ranges = [iota(dtype=target, shape=(n,), dim=0) for n in shape]
        return tuple(meshgrid(*ranges, sparse=True, indexing="ij"))
    places = [iota(dtype=target, shape=shape, dim=d) for d in range(len(shape))]
    return stack_values(places, 0) if places else zeros((0,), target)


MOST_PLACES = 2**36  # bytes that NumPy needs to count the places of a triangle


def _triangle_places(n: Any, k: Any, m: Any, name: str) -> tuple[int, int, int | None]:
    rows = static_size(n, f"n of {name}")
    columns = rows if m is None else static_size(m, f"m of {name}")
    places = TensorType((rows, columns), dtypes.INT64)
    refuse_impossible(name, [places])
    if max(places.nbytes, rows, columns) > MOST_PLACES:
        out_of_memory(MemoryError(f"it counts the places of {places.short()}, {places.nbytes / 1e9:,.1f} GB"))
    beyond = rows + columns
    return rows, max(-beyond, min(static_int(k, f"k of {name}"), beyond)), columns


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Value, Value]:
    """The rows and columns of the elements on and below the ``k``-th diagonal."""
    rows, columns = np.tril_indices(*_triangle_places(n, k, m, "mnp.tril_indices"))
    return to_array(rows.astype(dtypes.default_int())), to_array(columns.astype(dtypes.default_int()))


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Value, Value]:
    """The rows and columns of the elements on and above the ``k``-th diagonal."""
    rows, columns = np.triu_indices(*_triangle_places(n, k, m, "mnp.triu_indices"))
    return to_array(rows.astype(dtypes.default_int())), to_array(columns.astype(dtypes.default_int()))


def diag_indices(n: int, ndim: int = 2) -> tuple[Value, ...]:
    """The places of the main diagonal."""
    rank = static_size(ndim, "ndim of mnp.diag_indices")
    refuse_impossible("mnp.diag_indices", [TensorType((1,) * min(rank, MOST_DIMS + 1), dtypes.INT32)])
    return (arange(static_size(n, "n of mnp.diag_indices")),) * rank


def fromfunction(function: Callable[..., Any], shape: Any, *, dtype: DTypeLike = float, **arguments: Any) -> Any:
    """``function`` of the positions of every place of ``shape``."""
    check_function(function, "fromfunction", "mnp.fromfunction(lambda i, j: i + j, (2, 3))")
    places = [iota(dtype=as_dtype(dtype), shape=static_shape(shape), dim=d) for d in range(len(static_shape(shape)))]
    return function(*places, **arguments)


def vander(x: ArrayLike, N: int | None = None, increasing: bool = False) -> Value:
    """The powers of ``x`` as columns."""
    increasing = static_flag(increasing, "increasing of mnp.vander")
    x = value(x)
    if x.ndim != 1:
        raise ShapeError(
            f"mnp.vander cannot take {x.type.short()}.", where=here(), why="it has one dim", fix="x.ravel()"
        )
    count = x.shape[0] if N is None else static_size(N, "N of mnp.vander")
    columns = convert(arange(count) if increasing else subtract(count - 1, arange(count)), x.type.dtype)
    return power(basic.reshape(x, shape=(x.shape[0], 1)), basic.reshape(columns, shape=(1, count)))
