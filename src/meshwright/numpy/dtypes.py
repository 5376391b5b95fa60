"""The dtypes of ``meshwright.numpy``, and questions about them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from meshwright.arrays.operands import VALUES, ArrayLike, DTypeLike, as_dtype, numbers, promoted, result_key, value
from meshwright.arrays.refusals import named_dtype
from meshwright.arrays.repeated import LASTING
from meshwright.arrays.static import one_of
from meshwright.core import dtypes
from meshwright.core.dtypes import DType
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import ShapeError


class ScalarType:
    """A dtype that can be called: ``mnp.float32(3)`` is an array, ``mnp.zeros(3, mnp.float32)`` has it as dtype.

    >>> import meshwright.numpy as mnp
    >>> mnp.float32(3)
    Array(3., dtype=float32)
    >>> mnp.zeros(2, mnp.int8).dtype == mnp.int8
    True
    """

    __slots__ = ("dtype",)

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype

    def __call__(self, x: ArrayLike = 0) -> Value:
        return numbers(x, dtypes.canonical(self.dtype))

    @property
    def __name__(self) -> str:
        return self.dtype.name

    def __eq__(self, other: object) -> bool:
        try:
            return self.dtype == np.dtype(other)  # type: ignore[call-overload,no-any-return]
        except TypeError:
            return NotImplemented

    def __hash__(self) -> int:
        return hash(self.dtype)

    def __repr__(self) -> str:
        return f"meshwright.numpy.{self.dtype.name}"


LASTING.add(ScalarType)
bool_ = ScalarType(dtypes.BOOL)
int8, int16, int32, int64 = map(ScalarType, dtypes.SIGNED)
uint8, uint16, uint32, uint64 = map(ScalarType, dtypes.UNSIGNED)
float16, bfloat16 = ScalarType(dtypes.FLOAT16), ScalarType(dtypes.BFLOAT16)
float32, float64 = ScalarType(dtypes.FLOAT32), ScalarType(dtypes.FLOAT64)
int2, uint2, int4, uint4 = map(ScalarType, dtypes.PACKED)
float8_e4m3fn, float8_e5m2 = ScalarType(dtypes.FLOAT8_E4M3FN), ScalarType(dtypes.FLOAT8_E5M2)
(
    float8_e3m4, float8_e4m3, float8_e4m3b11fnuz, float8_e4m3fnuz, float8_e5m2fnuz, float8_e8m0fnu,
) = map(ScalarType, dtypes.STORED_FLOATS)  # fmt: skip
complex64, complex128 = ScalarType(dtypes.COMPLEX64), ScalarType(dtypes.COMPLEX128)
int_, uint, float_, complex_ = int64, uint64, float64, complex128  # of the default width
single, double, csingle, cdouble = float32, float64, complex64, complex128

# The kinds of dtypes that ``issubdtype`` knows.
generic, number, integer, inexact = np.generic, np.number, np.integer, np.inexact
signedinteger, unsignedinteger = np.signedinteger, np.unsignedinteger
floating, complexfloating = np.floating, np.complexfloating


def _plain(dtype: DTypeLike) -> DType:
    return dtype.type.dtype if dtype.__class__ in VALUES else as_dtype(dtype)  # type: ignore[no-any-return]


def finfo(dtype: DTypeLike) -> Any:
    """The limits of a floating dtype.

    >>> import meshwright.numpy as mnp
    >>> float(mnp.finfo(mnp.bfloat16).eps)
    0.0078125
    """
    kind = dtypes.real_part(_plain(dtype))
    if not dtypes.is_float(kind) and kind not in dtypes.STORED_FLOATS:
        raise _no_limits("mnp.finfo", kind, "floats and complex numbers", "mnp.iinfo(dtype)")
    return ml_dtypes.finfo(kind)  # type: ignore[no-untyped-call]


def iinfo(int_type: DTypeLike) -> Any:
    """The limits of an integer dtype."""
    kind = _plain(int_type)
    if not dtypes.holds_integers(kind):
        raise _no_limits("mnp.iinfo", kind, "integers", "mnp.finfo(dtype)")
    return dtypes.integer_limits(kind)


def _no_limits(name: str, dtype: DType, taken: str, fix: str) -> ShapeError:
    return ShapeError(f"{name} cannot take {dtype.name}.", where=here(), why=f"it has the limits of {taken}", fix=fix)


def promote_types(a: DTypeLike, b: DTypeLike) -> DType:
    """The dtype that two dtypes promote to.

    >>> import meshwright.numpy as mnp
    >>> mnp.promote_types("bfloat16", "float16")
    dtype('float32')
    """
    weak = (int, float, complex)
    return promoted(*(result_key(x if any(x is one for one in weak) else as_dtype(x)) for x in (a, b)))[0]


def result_type(*operands: Any) -> DType:
    """The dtype of a result of arrays, numbers and dtypes together."""
    return promoted(*(result_key(x) for x in operands))[0]


def _any_dtype(spec: Any) -> DType:
    """The dtype meant, at its own width; also one that arrays do not have."""
    try:
        found: DType = np.dtype(spec.type.dtype if spec.__class__ in VALUES else spec)
        return found
    except (TypeError, ValueError, SyntaxError):
        return as_dtype(spec)


class extended(np.generic):
    """The kind of dtypes whose elements are no numbers."""


class prng_key(extended):
    """The kind of dtypes whose elements are random keys."""


def issubdtype(arg1: DTypeLike, arg2: Any) -> bool:
    """Whether a dtype ``arg1`` is of a kind such as ``mnp.floating``, or equal to another.

    >>> import meshwright.numpy as mnp
    >>> mnp.issubdtype(mnp.bfloat16, mnp.floating)
    True
    """
    if isinstance(arg1, type) and issubclass(arg1, extended):
        return isinstance(arg2, type) and issubclass(arg1, arg2)
    given, kind = _any_dtype(arg1), arg2
    if given == dtypes.KEY or (isinstance(kind, type) and issubclass(kind, extended)):
        return given == dtypes.KEY and kind in (prng_key, extended, np.generic, dtypes.KEY)
    if not (isinstance(kind, type) and issubclass(kind, np.generic)):
        kind = _any_dtype(kind).type
    # The floats that NumPy lacks have no place in its hierarchy.
    extra = dtypes.is_float(given) and kind in (np.floating, np.inexact, np.number, np.generic)
    return extra or bool(np.issubdtype(given, kind))


def can_cast(from_: DTypeLike, to: DTypeLike, casting: str = "safe") -> bool:
    """Whether NumPy would convert a dtype into another under a rule."""
    one_of(casting, ("safe", "no", "equiv", "same_kind", "unsafe"), "casting of mnp.can_cast")
    source, target = (given if given is None else _plain(given) for given in (from_, to))
    for given in (source, target):
        named_dtype(given, "a dtype of mnp.can_cast")
    return bool(np.can_cast(source, target, casting=casting))  # type: ignore[arg-type]


def isdtype(dtype: DTypeLike, kind: Any) -> bool:
    """Whether a dtype is of a kind of the array API: ``"real floating"``, ``"integral"``, …"""
    given = _plain(dtype)
    if isinstance(kind, tuple):
        return any(isdtype(given, k) for k in kind)
    kinds = {
        "bool": (dtypes.BOOL,),
        "signed integer": dtypes.SIGNED,
        "unsigned integer": dtypes.UNSIGNED,
        "integral": dtypes.INTEGERS,
        "real floating": dtypes.FLOATS,
        "complex floating": dtypes.COMPLEXES,
        "numeric": dtypes.NUMBERS,
    }
    return given in kinds[kind] if isinstance(kind, str) and kind in kinds else given == _any_dtype(kind)


def isscalar(element: Any) -> bool:
    """Whether ``element`` is a number or an array of rank 0."""
    return np.isscalar(element) or (element.__class__ in VALUES and element.ndim == 0)


def iterable(y: Any) -> bool:
    """Whether ``y`` can be iterated over."""
    return bool(np.iterable(y)) and getattr(y, "ndim", 1) != 0


def iscomplexobj(x: ArrayLike) -> bool:
    """Whether ``x`` has a complex dtype."""
    return dtypes.is_complex(value(x).type.dtype)


def isrealobj(x: ArrayLike) -> bool:
    """Whether ``x`` has a dtype that is not complex."""
    return not iscomplexobj(x)
