"""From what users pass (arrays, tracers, Python and NumPy numbers) to what ops take: one dtype, one shape.

A Python number stays a number, which an op writes into the program as a literal, and a rank-0 operand stays rank 0:
elementwise ops spread it themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from meshwright.arrays import scalars
from meshwright.arrays.repeated import compiled_in_kernels
from meshwright.core import dtypes
from meshwright.core.dtypes import BOOL, DType
from meshwright.core.op import Op, Value
from meshwright.core.source import here
from meshwright.core.trace import Array, Tracer, apply, computed, concrete, out_of_range, ragged, to_array
from meshwright.core.trace import Value as ValueClass
from meshwright.core.types import Shape, TensorType
from meshwright.errors import ShapeError, TracerError
from meshwright.ops import basic, elementwise
from meshwright.ops import shape as shape_ops

ArrayLike = Any  # an array, a tracer, a NumPy array, a number, or nested lists of them
DTypeLike = Any  # mnp.float32, "float32", np.float32, float, …
Axis = int | tuple[int, ...] | None

VALUES: frozenset[Any] = frozenset((Array, Tracer))
_NUMBERS = frozenset((bool, int, float, complex))
# Which dtypes take a Python number of a class without being promoted by it, once it fits.
TAKES_FITTING: dict[type, frozenset[DType]] = {
    bool: frozenset(dtypes.ALL),
    int: frozenset(dtypes.NUMBERS),
    float: frozenset(dtypes.INEXACT),
    complex: frozenset(dtypes.COMPLEXES),
}
TAKES = {bool: frozenset(dtypes.ALL)}  # and which take it as it is
NO_DTYPES: frozenset[DType] = frozenset()
_INEXACT = frozenset(dtypes.INEXACT)


def is_number(x: object) -> bool:
    """Whether ``x`` is a Python number, which is weakly typed; NumPy's scalars are arrays."""
    return x.__class__ in _NUMBERS or (isinstance(x, bool | int | float | complex) and not isinstance(x, np.generic))


def is_operand(x: object) -> bool:
    """Whether an operator takes ``x`` beside an array; otherwise Python tries the other operand's method."""
    return (
        x.__class__ in VALUES
        or x.__class__ in _NUMBERS
        or isinstance(x, np.ndarray | np.generic | bool | int | float | complex)
        or ((hasattr(x, "__array__") or hasattr(x, "__jax_array__")) and not isinstance(x, type))
    )


def value(x: ArrayLike) -> Value:
    """``x`` as an array or tracer."""
    if x.__class__ in VALUES:
        return x
    if isinstance(x, np.generic):
        x = np.asarray(x)
    elif isinstance(x, list | tuple):
        return _stacked(x)
    elif isinstance(x, int):
        _check_range(x, x, dtypes.default_int())
    elif x.__class__ is not np.ndarray and hasattr(x, "__jax_array__"):  # what stands for an array, as JAX asks for it
        return value(x.__jax_array__())
    return to_array(x)


def numbers(x: ArrayLike, dtype: DType) -> Value:
    """``x`` as a strong array of ``dtype``. Python integers, also in lists, must be among the dtype's numbers."""
    if not is_number(x) and (not isinstance(x, list | tuple) or _holds_values(x)):
        return strong(convert(value(x), dtype))
    data = _gathered(x)
    if data.dtype.kind not in "biufcO":
        return to_array(data)  # which says that these are no numbers
    if data.dtype.kind == "c" and dtype == BOOL:
        data = data != 0
    if data.dtype.kind == "c" and dtype.kind != "c":
        raise ShapeError(
            f"Complex numbers are not numbers of {dtype.name}.",
            where=here(),
            why="their imaginary parts would be lost",
            fix="mnp.array(z).real, or dtype='complex64'",
        )
    if dtypes.holds_integers(dtype) and _integers(data):
        _check_range(data.min(), data.max(), dtype)
    if dtypes.holds_integers(dtype) and data.dtype.kind == "f" and not np.isfinite(data).all():
        raise ShapeError(
            f"Infinities and NaN are not numbers of {dtype.name}.",
            where=here(),
            why="integers have none",
            fix="mnp.nan_to_num(x) first, or dtype='float32'",
        )
    if not _integers(data) and (data.dtype.kind == "O" or dtypes.holds_integers(dtype) or data.dtype.kind == "c"):
        return strong(convert(to_array(data), dtype))
    if data.dtype.kind == "O" and dtypes.is_inexact(dtype):
        data = np.asarray([fitting(n, dtype) for n in data.flat], np.float64).reshape(data.shape)
    with np.errstate(all="ignore"):
        return Array(data.astype(dtype), TensorType(data.shape, dtype))


def _gathered(x: Any) -> np.ndarray[Any, Any]:
    """Numbers in nested lists as NumPy data; integers wider than 64 bits stay Python's."""
    try:
        return np.asarray(x)
    except ValueError:
        raise ragged() from None


def _integers(data: np.ndarray[Any, Any]) -> bool:
    """Whether there are integers, all of them."""
    if data.dtype.kind == "O":
        return data.size > 0 and all(isinstance(n, int) for n in data.flat)
    return data.size > 0 and data.dtype.kind in "iu"


def _check_range(low: Any, high: Any, dtype: DType) -> None:
    """Refuse integers that are not among those of a dtype."""
    limits = dtypes.integer_limits(dtype)
    if low < limits.min or high > limits.max:
        raise out_of_range(high if high > limits.max else low, dtype)


def fitting(x: Any, dtype: DType) -> Any:
    """A Python number as one that NumPy converts to ``dtype`` in silence: integers wrap, large floats are infinite.

    An integer outside both the dtype and the default one is an error.
    """
    if isinstance(x, bool):
        return x if dtype == BOOL else int(x)
    if isinstance(x, complex):
        return x
    if dtypes.holds_integers(dtype):
        if not isinstance(x, int):
            return x
        limits = dtypes.integer_limits(dtype)
        if limits.min <= x <= limits.max:
            return x
        _check_range(x, x, dtypes.default_int())
        span = 1 << limits.bits
        return (x - limits.min) % span + limits.min
    if -128 <= x <= 127 or dtype not in _INEXACT:
        return x
    try:
        near = float(x)
    except OverflowError:
        near = math.copysign(math.inf, 1 if x > 0 else -1)
    with np.errstate(all="ignore"):
        stored = float(np.asarray(near).astype(dtypes.real_part(dtype)))
    return near if math.isfinite(stored) else stored


def _stacked(x: Sequence[Any]) -> Value:
    """Nested lists as one array; those that hold arrays are promoted and stacked."""
    if not _holds_values(x):
        data = _gathered(x)
        if data.dtype.itemsize == 8 and _integers(data):
            wide = data.dtype.kind == "u"
            _check_range(data.min(), data.max(), dtypes.canonical(dtypes.UINT64) if wide else dtypes.default_int())
        with np.errstate(all="ignore"):
            return to_array(data)
    parts = promote_operands([value(item) for item in x])
    shapes = {part.shape for part in parts}
    if len(shapes) > 1:
        raise ShapeError(
            f"A list of arrays of shapes {', '.join(map(str, sorted(shapes)))} is not one array.",
            where=here(),
            why="the items of a list become the first dim, so they need one shape",
            fix="mnp.concatenate([…]) joins arrays along a dim they have",
        )
    return stack_values(parts, 0)


def _holds_values(x: Any) -> bool:
    return isinstance(x, ValueClass) or (isinstance(x, list | tuple) and any(_holds_values(item) for item in x))


def stack_values(parts: Sequence[Value], axis: int) -> Value:
    """Values of one type along a new dim."""
    shape = parts[0].shape
    longer = (*shape[:axis], 1, *shape[axis:])
    rows = [basic.reshape(part, shape=longer) for part in parts]
    if len(rows) == 1:
        return rows[0]
    return shape_ops.concatenate(*rows, dim=axis)


# One dtype


@lru_cache(maxsize=256)
def _inexact(dtype: DType, x64: bool) -> DType:
    if dtypes.is_inexact(dtype):
        return dtype
    return dtypes.canonical(dtypes.FLOAT64) if dtype.itemsize == 8 else dtypes.FLOAT32


def to_inexact(dtype: DType) -> DType:
    """The floating dtype that stands for ``dtype`` where only floating ones make sense."""
    return _inexact(dtype, dtypes.config._enable_x64)


def convert(x: Value, dtype: DType, weak: bool = False) -> Value:
    """``x`` in another dtype; nothing where it has it. A known scalar is converted on the spot."""
    have = x.type
    if have.dtype == dtype:
        return x
    if x.__class__ is Array and have.ndim == 0:
        return Array(np.asarray(computed(basic.convert, x.data, dtype=dtype, weak=weak)), TensorType((), dtype, weak))
    return apply(basic.convert, (x,), {"dtype": dtype, "weak": weak})


def strong(x: Value) -> Value:
    """``x`` with a dtype that no longer yields to others."""
    have = x.type
    return apply(basic.convert, (x,), {"dtype": have.dtype, "weak": False}) if have.weak else x


def promote_operands(operands: Sequence[ArrayLike], inexact: bool = False) -> list[Any]:
    """The operands in the dtype they promote to. Python numbers stay numbers beside an array."""
    xs = [x if is_number(x) else value(x) for x in operands]
    keys = tuple((x.type.dtype, x.type.weak) if x.__class__ in VALUES else dtypes.of_python_scalar(x) for x in xs)
    dtype, weak = promoted(*keys)
    if inexact:
        dtype = to_inexact(dtype)
    if not any(x.__class__ in VALUES for x in xs):
        return [Array(np.asarray(fitting(x, dtype), dtype), TensorType((), dtype, weak)) for x in xs]
    return [convert(x, dtype, weak) if x.__class__ in VALUES else fitting(x, dtype) for x in xs]


def promoted(*keys: tuple[DType, bool]) -> tuple[DType, bool]:
    """The (dtype, weak) that operands promote to."""
    try:
        return dtypes.promote(*keys)
    except TypeError as error:
        why, _, fix = str(error).partition("; convert one of them: ")
        shown = ", ".join(dtype.name for dtype, _ in keys)
        raise ShapeError(f"There is no dtype for {shown} together.", where=here(), why=why, fix=fix) from None


def promoted_values(*operands: ArrayLike, inexact: bool = False) -> list[Value]:
    """The operands as values in the dtype they promote to, Python numbers too: as weak as all of them together."""
    xs = promote_operands(operands, inexact)
    known = [x.type for x in xs if x.__class__ in VALUES]
    weak = all(t.weak for t in known)
    return [x if x.__class__ in VALUES else scalar(x, known[0].dtype, weak) for x in xs]


def scalar(x: Any, dtype: DType, weak: bool = True) -> Value:
    """A Python number as a scalar of a dtype."""
    return Array(
        np.asarray(computed(basic.convert, np.asarray(x), dtype=dtype, weak=weak)), TensorType((), dtype, weak)
    )


def result_key(x: ArrayLike) -> tuple[DType, bool]:
    """The (dtype, weak) with which an operand, or a dtype, enters promotion."""
    if is_number(x):
        return dtypes.of_python_scalar(x)
    if x.__class__ in VALUES:
        return x.type.dtype, x.type.weak
    if isinstance(x, np.ndarray | np.generic):
        return as_dtype(x.dtype), False
    if x is int or x is float or x is complex:
        return dtypes.of_python_scalar(x())
    if isinstance(x, list | tuple):
        return value(x).type.dtype, False
    return as_dtype(x), False


def as_dtype(spec: DTypeLike) -> DType:
    """The dtype meant by a name, a NumPy scalar type, a Python type or a dtype, at the width in force."""
    try:
        if isinstance(spec, ValueClass | np.ndarray):
            raise TypeError
        return dtypes.as_dtype(spec)
    except (TypeError, OverflowError):
        raise ShapeError(
            f"{spec!r} is not a dtype.",
            where=here(),
            why=f"the dtypes are {', '.join(d.name for d in dtypes.ALL)}",
            fix="dtype='float32'",
        ) from None


# One shape


@lru_cache(maxsize=4096)
def broadcast_shapes(*shapes: Shape) -> Shape | None:
    """The shape that ``shapes`` broadcast to, or None."""
    rank = max(map(len, shapes))
    out = []
    for dim in range(-rank, 0):
        sizes = {shape[dim] for shape in shapes if -dim <= len(shape)} - {1}
        if len(sizes) > 1:
            return None
        out.append(sizes.pop() if sizes else 1)
    return tuple(out)


@lru_cache(maxsize=1024)
def _trailing(rank: int, out_rank: int) -> tuple[int, ...]:
    return tuple(range(out_rank - rank, out_rank))


def broadcast(x: Value, shape: Shape) -> Value:
    """``x`` in a shape it broadcasts to."""
    have = x.type
    if have.shape == shape:
        return x
    return apply(basic.broadcast_in_dim, (x,), {"shape": shape, "dims": _trailing(have.ndim, len(shape))})


def broadcast_operands(operands: list[Any], name: str = "the operation") -> list[Any]:
    """Operands in one shape; numbers and rank-0 values stay as they are."""
    shapes = {x.type.shape for x in operands if x.__class__ in VALUES and x.type.ndim}
    if len(shapes) <= 1:
        return operands
    shape = broadcast_shapes(*shapes)
    if shape is None:
        raise _no_broadcast(name, [x.type for x in operands if x.__class__ in VALUES])
    return [broadcast(x, shape) if x.__class__ in VALUES and x.type.ndim else x for x in operands]


def common_shape(name: str, *values: Value) -> Shape:
    """The shape that values broadcast to, or the error of the function that needs one."""
    shape = broadcast_shapes(*(x.type.shape for x in values)) if values else ()
    if shape is None:
        raise _no_broadcast(name, [x.type for x in values])
    return shape


def _no_broadcast(name: str, types: Sequence[TensorType]) -> ShapeError:
    shown = " and ".join(t.short() for t in types)
    rank = max(t.ndim for t in types)
    for dim in range(-1, -rank - 1, -1):
        sizes = sorted({t.shape[dim] for t in types if -dim <= t.ndim} - {1})
        if len(sizes) > 1:
            break
    return ShapeError(
        f"{name} cannot broadcast {shown}.",
        where=here(),
        why=f"counted from the right, dim {dim} has sizes {' and '.join(map(str, sizes))}, and neither is 1",
        fix=_broadcast_fix(types),
    )


def _broadcast_fix(types: Sequence[TensorType]) -> str:
    """New dims of size 1 where they make two shapes fit, best in the array of lower rank."""
    if len(types) == 2:
        pairs = [("x", types[0], types[1]), ("y", types[1], types[0])]
        for name, t, other in sorted(pairs, key=lambda entry: entry[1].ndim):
            for dim in range(t.ndim, 0, -1):
                added = max(1, other.ndim - t.ndim)
                if broadcast_shapes((*t.shape[:dim], *(1,) * added, *t.shape[dim:]), other.shape) is not None:
                    index = ", ".join([":"] * dim + ["None"] * added + [":"] * (t.ndim - dim))
                    return f"add a dim to broadcast over: {name}[{index}]"
    return "give the arrays one shape: mnp.reshape, x[:, None], or a slice"


# Elementwise functions of one, two and more operands


def binary(op: Op, x: ArrayLike, y: ArrayLike) -> Value:
    """An elementwise op of two operands in the dtype and shape they promote and broadcast to."""
    if scalars.state.active:
        found = scalars.of_two(op.name, x, y)
        if found is not None:
            return found
    return of_two(op, x, y)


@compiled_in_kernels
def of_two(op: Op, x: ArrayLike, y: ArrayLike) -> Value:
    """As ``binary``, of operands that are not both integers of rank 0."""
    x_class, y_class = x.__class__, y.__class__
    if x_class in VALUES:
        if y_class in VALUES:
            if x.type is y.type:
                return apply(op, (x, y), {})
        elif x.type.dtype in TAKES_FITTING.get(y_class, NO_DTYPES):
            if y_class is not complex and not 0 <= y <= 127:
                y = fitting(y, x.type.dtype)
            return apply(op, (x, y), {})
    elif y_class in VALUES and y.type.dtype in TAKES_FITTING.get(x_class, NO_DTYPES):
        if x_class is not complex and not 0 <= x <= 127:
            x = fitting(x, y.type.dtype)
        return apply(op, (x, y), {})
    return _promoted(op, (x, y), False)


def nary(op: Op, *operands: ArrayLike, inexact: bool = False) -> Value:
    """An elementwise op of any operands."""
    if len(operands) == 2 and not inexact:
        return binary(op, *operands)
    return _promoted(op, operands, inexact)


def _promoted(op: Op, operands: Sequence[ArrayLike], inexact: bool) -> Value:
    return apply(op, broadcast_operands(promote_operands(operands, inexact), op.name), {})


@compiled_in_kernels
def inexact_binary(op: Op, x: ArrayLike, y: ArrayLike) -> Value:
    """As ``binary``, in a floating dtype: integers become floats first."""
    x_class, y_class = x.__class__, y.__class__
    if x_class in VALUES and x.type.dtype in _INEXACT:
        if y_class in VALUES:
            if x.type is y.type:
                return apply(op, (x, y), {})
        elif x.type.dtype in TAKES_FITTING.get(y_class, NO_DTYPES):
            if y_class is not complex and not 0 <= y <= 127:
                y = fitting(y, x.type.dtype)
            return apply(op, (x, y), {})
    return nary(op, x, y, inexact=True)


@compiled_in_kernels
def unary(op: Op, x: ArrayLike) -> Value:
    """An elementwise op of one operand."""
    return apply(op, (x if x.__class__ in VALUES else value(x),), {})


@compiled_in_kernels
def inexact_unary(op: Op, x: ArrayLike) -> Value:
    """An elementwise op of one operand in a floating dtype: integers become floats first."""
    return apply(op, (inexact(x),), {})


def inexact(x: ArrayLike) -> Value:
    """``x`` in a floating dtype: integers become floats."""
    if x.__class__ not in VALUES:
        x = value(x)
    have = x.type
    return x if have.dtype in _INEXACT else convert(x, to_inexact(have.dtype), have.weak)


def as_bool(x: ArrayLike) -> Value:
    """``x != 0``; a boolean as it is."""
    x = value(x)
    return x if x.type.dtype == BOOL else apply(elementwise.ne, (x, 0), {})


# Axes


def axis_of(axis: Any, rank: int, name: str) -> int:
    """A dim counted from the left, from one that may be counted from the right."""
    try:
        found = int(axis.__index__())
    except (AttributeError, TypeError):
        raise ShapeError(
            f"{name} cannot take axis={axis!r}.", where=here(), why="an axis is an integer", fix="axis=0"
        ) from None
    if not -rank <= found < rank:
        raise ShapeError(
            f"{name} cannot take axis={found} of an array of rank {rank}.",
            where=here(),
            why=f"its axes are {-rank} to {rank - 1}" if rank else "a rank-0 array has no axes",
            fix=f"axis={rank - 1 if found > 0 else -rank}" if rank else "x.reshape(1), or leave axis out",
        )
    return found + rank if found < 0 else found


def axes_of(axis: Any, rank: int, name: str) -> tuple[int, ...]:
    """Increasing dims from an axis, several, or None for all."""
    if axis is None:
        return tuple(range(rank))
    if not isinstance(axis, tuple | list | range):
        return (axis_of(axis, rank, name),)
    found = sorted(axis_of(a, rank, name) for a in axis)
    if len(set(found)) != len(found):
        raise ShapeError(
            f"{name} cannot take axis={axis!r}.",
            where=here(),
            why="it names a dim twice",
            fix=f"axis={tuple(sorted(set(found)))}",
        )
    return tuple(found)


# Values that Python, not the program, needs to know


def known(x: Any, what: str, fix: str) -> Any:
    """The contents of ``x`` as NumPy data, where ``what`` needs them now."""
    if x.__class__ is Array:
        return x.data
    if x.__class__ is Tracer:
        data = concrete(x)
        if data is None:
            raise not_known(x, what, fix)
        return data
    return np.asarray(x)


def not_known(x: Tracer, what: str, fix: str, kind: type[TracerError] = TracerError) -> TracerError:
    """The error for a traced value whose contents Python asks for."""
    made = next((eqn for eqn in reversed(x.builder.eqns) if x.variable in eqn.outputs), None)
    origin = f"\nthe value was made at {made.source.show()}" if made is not None and made.source else ""
    return kind(
        f"{sentence(what)} needs the contents of a traced value {x.type}.",
        where=here(),
        why="the function is being traced: the value stands for every run and has no contents yet" + origin,
        fix=fix,
    )


def sentence(what: str) -> str:
    """A phrase as the start of a sentence; a name in code stays as it is."""
    return what[0].upper() + what[1:] if what.split(" ")[0] in ("a", "an", "the") else what
