"""Element types: their names, the default widths, and how they promote."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from meshwright.core.current import current_device, current_width, set_for_all

DType = np.dtype[Any]

BOOL = np.dtype(np.bool_)
INT8, INT16, INT32, INT64 = (np.dtype(t) for t in (np.int8, np.int16, np.int32, np.int64))
UINT8, UINT16, UINT32, UINT64 = (np.dtype(t) for t in (np.uint8, np.uint16, np.uint32, np.uint64))
FLOAT16, FLOAT32, FLOAT64 = (np.dtype(t) for t in (np.float16, np.float32, np.float64))
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT8_E4M3FN, FLOAT8_E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
FLOAT8_E3M4, FLOAT8_E4M3 = np.dtype(ml_dtypes.float8_e3m4), np.dtype(ml_dtypes.float8_e4m3)
FLOAT8_E4M3B11FNUZ = np.dtype(ml_dtypes.float8_e4m3b11fnuz)
FLOAT8_E4M3FNUZ, FLOAT8_E5M2FNUZ = np.dtype(ml_dtypes.float8_e4m3fnuz), np.dtype(ml_dtypes.float8_e5m2fnuz)
FLOAT8_E8M0FNU = np.dtype(ml_dtypes.float8_e8m0fnu)
INT2, UINT2 = np.dtype(ml_dtypes.int2), np.dtype(ml_dtypes.uint2)
INT4, UINT4 = np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4)
COMPLEX64, COMPLEX128 = np.dtype(np.complex64), np.dtype(np.complex128)
KEY: DType = np.dtype([("threefry2x32", np.uint32, (2,))])  # a random key: moved by any op, computed with by none
FLOAT0: DType = np.dtype([("float0", np.void, 0)])  # of the derivative of an integer, which has one value

# The name a program is printed with -> the dtype.
SHORT_NAMES: dict[str, DType] = {
    "bool": BOOL,
    "i8": INT8, "i16": INT16, "i32": INT32, "i64": INT64,
    "u8": UINT8, "u16": UINT16, "u32": UINT32, "u64": UINT64,
    "f8e4m3fn": FLOAT8_E4M3FN, "f8e5m2": FLOAT8_E5M2,
    "f16": FLOAT16, "bf16": BFLOAT16, "f32": FLOAT32, "f64": FLOAT64,
    "c64": COMPLEX64, "c128": COMPLEX128,
    "i2": INT2, "u2": UINT2, "i4": INT4, "u4": UINT4,
    "f8e3m4": FLOAT8_E3M4, "f8e4m3": FLOAT8_E4M3, "f8e4m3b11fnuz": FLOAT8_E4M3B11FNUZ,
    "f8e4m3fnuz": FLOAT8_E4M3FNUZ, "f8e5m2fnuz": FLOAT8_E5M2FNUZ, "f8e8m0fnu": FLOAT8_E8M0FNU,
    "key": KEY,
}  # fmt: skip
_SHORT: dict[DType, str] = {dtype: name for name, dtype in SHORT_NAMES.items()}

SIGNED = (INT8, INT16, INT32, INT64)
UNSIGNED = (UINT8, UINT16, UINT32, UINT64)
INTEGERS = SIGNED + UNSIGNED
FLOATS = (FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT16, BFLOAT16, FLOAT32, FLOAT64)
COMPLEXES = (COMPLEX64, COMPLEX128)
NUMBERS = INTEGERS + FLOATS + COMPLEXES
INEXACT = FLOATS + COMPLEXES
ALL = (BOOL, *NUMBERS)
# Several to a byte, with the bits of each; stored, moved and converted, and computed with by no op.
PACKED: dict[DType, int] = {INT2: 2, UINT2: 2, INT4: 4, UINT4: 4}

# Floats of eight bits that, like these, no op computes with.
STORED_FLOATS = (FLOAT8_E3M4, FLOAT8_E4M3, FLOAT8_E4M3B11FNUZ, FLOAT8_E4M3FNUZ, FLOAT8_E5M2FNUZ, FLOAT8_E8M0FNU)

_WIDE_TO_NARROW = {INT64: INT32, UINT64: UINT32, FLOAT64: FLOAT32, COMPLEX128: COMPLEX64}


class Config:
    """Settings of the whole process.

    >>> import meshwright as mw
    >>> mw.config.enable_x64
    False
    """

    __slots__ = ("_enable_x64",)

    def __init__(self) -> None:
        self._enable_x64 = False

    def __setattr__(self, name: str, value: object) -> None:
        if name == "_enable_x64":
            object.__setattr__(self, name, value)
            current_width.wide = bool(value)
        elif name in _SETTINGS:
            self.update(name, value)
        else:
            raise _no_setting(name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("jax_") and name.removeprefix("jax_") in _SETTINGS:
            return getattr(self, name.removeprefix("jax_"))
        raise _no_setting(name)

    @property
    def enable_x64(self) -> bool:
        """Whether 64-bit types are kept; otherwise they become 32-bit ones on the way in."""
        return self._enable_x64

    @property
    def default_device(self) -> Any:
        """The device of arrays that are put nowhere; None: the first one."""
        place = current_device.place
        return None if place is None else place.device

    def update(self, name: str, value: object) -> None:
        """Set ``name`` (also in its ``jax_`` spelling) to ``value``."""
        setting = name.removeprefix("jax_")
        if setting not in _SETTINGS:
            raise _no_setting(name)
        if setting == "default_device":
            from meshwright.sharding.single_device import as_default  # no program without devices needs to load it

            set_for_all(as_default(value))
            return
        if not isinstance(value, bool | np.bool_):
            raise TypeError(f"enable_x64 is True or False, not {value!r}")
        self._enable_x64 = bool(value)


_SETTINGS = ("enable_x64", "default_device")


def _no_setting(name: str) -> AttributeError:
    return AttributeError(f"no setting {name!r}; there are: {', '.join(_SETTINGS)}")


config = Config()


def short_name(dtype: DType) -> str:
    """``f32`` for float32."""
    return _SHORT[dtype]


def is_supported(dtype: DType) -> bool:
    return dtype in _SHORT


def as_dtype(spec: Any) -> DType:
    """The dtype meant by a name, a NumPy scalar type, a Python type or a dtype, at the width in force.

    >>> as_dtype(float), as_dtype("bfloat16")
    (dtype('float32'), dtype(bfloat16))
    """
    if spec is float:
        return default_float()
    if spec is int:
        return default_int()
    if spec is complex:
        return default_complex()
    if isinstance(spec, str) and spec in SHORT_NAMES:
        return canonical(SHORT_NAMES[spec])
    try:
        dtype = canonical(np.dtype(spec))
    except (ValueError, SyntaxError):  # NumPy reads some texts as lists of dtypes
        raise TypeError(f"data type {spec!r} not understood") from None
    if dtype not in _SHORT:
        raise TypeError(f"dtype {dtype} is not one of {', '.join(SHORT_NAMES)}")
    return dtype


def canonical(dtype: DType) -> DType:
    """The dtype kept for ``dtype``: 64-bit types narrow unless x64 is on."""
    return dtype if config._enable_x64 else _WIDE_TO_NARROW.get(dtype, dtype)


def default_float() -> DType:
    return FLOAT64 if config._enable_x64 else FLOAT32


def default_int() -> DType:
    return INT64 if config._enable_x64 else INT32


def default_complex() -> DType:
    return COMPLEX128 if config._enable_x64 else COMPLEX64


def is_float(dtype: DType) -> bool:
    return dtype in FLOATS


def is_complex(dtype: DType) -> bool:
    return dtype.kind == "c"


def is_inexact(dtype: DType) -> bool:
    """Whether a value of this dtype has a derivative."""
    return dtype in INEXACT


def is_integer(dtype: DType) -> bool:
    return dtype.kind in "iu"


def holds_integers(dtype: DType) -> bool:
    """Whether its values are integers, be it one that no op computes with."""
    return dtype.kind in "iu" or dtype in PACKED


def integer_limits(dtype: DType) -> Any:
    """The least and the greatest integer of a dtype, as ``min`` and ``max``."""
    return ml_dtypes.iinfo(dtype) if dtype in PACKED else np.iinfo(dtype)  # type: ignore[no-untyped-call]


def array_bytes(dtype: DType, size: int) -> int:
    """Bytes of an array of so many elements on a device; in NumPy's memory, one of a few bits has a byte of its own.

    >>> array_bytes(FLOAT32, 3), array_bytes(INT4, 3)
    (12, 2)
    """
    return -(-size * PACKED[dtype] // 8) if dtype in PACKED else size * dtype.itemsize


def real_part(dtype: DType) -> DType:
    """The dtype of the real part: f32 for c64, itself for a real dtype."""
    return {COMPLEX64: FLOAT32, COMPLEX128: FLOAT64}.get(dtype, dtype)


# The promotion lattice. An arrow goes from a type to those just above it; "i*", "f*", "c*" are the weak types of
# Python numbers, which take the width of whatever strong type they meet.
_Node = DType | str
_ABOVE: dict[_Node, tuple[_Node, ...]] = {
    BOOL: ("i*",),
    "i*": (UINT8, INT8, *PACKED),
    **dict.fromkeys(PACKED, ()),
    UINT8: (INT16, UINT16),
    INT8: (INT16,),
    UINT16: (INT32, UINT32),
    INT16: (INT32,),
    UINT32: (INT64, UINT64),
    INT32: (INT64,),
    INT64: ("f*",),
    UINT64: ("f*",),
    "f*": ("c*", FLOAT8_E4M3FN, FLOAT8_E5M2, *STORED_FLOATS, BFLOAT16, FLOAT16),
    FLOAT8_E4M3FN: (),
    FLOAT8_E5M2: (),
    **dict.fromkeys(STORED_FLOATS, ()),
    BFLOAT16: (FLOAT32,),
    FLOAT16: (FLOAT32,),
    FLOAT32: (FLOAT64, COMPLEX64),
    FLOAT64: (COMPLEX128,),
    "c*": (COMPLEX64,),
    COMPLEX64: (COMPLEX128,),
    COMPLEX128: (),
}

# How an error calls a weak node, and the dtype to convert to instead.
_PYTHON_NUMBERS: dict[_Node, tuple[str, str]] = {
    "i*": ("a Python int", "int32"),
    "f*": ("a Python float", "float32"),
    "c*": ("a Python complex", "complex64"),
}


@cache
def _upper_bounds(node: _Node) -> frozenset[_Node]:
    return frozenset({node}).union(*(_upper_bounds(above) for above in _ABOVE[node]))


@cache
def _join(a: _Node, b: _Node) -> _Node:
    if KEY in (a, b):
        raise TypeError("random keys are no numbers; convert one of them: random.key_data(keys), their words")
    common = _upper_bounds(a) & _upper_bounds(b)
    for node in common:
        if common == _upper_bounds(node):
            return node
    (first, _), (second, name) = (_PYTHON_NUMBERS.get(node, (str(node), str(node))) for node in (a, b))
    raise TypeError(f"{first} and {second} have no implicit promotion; convert one of them: x.astype('{name}')")


def _node(dtype: DType, weak: bool) -> _Node:
    if not weak or dtype == BOOL:
        return dtype
    return "c*" if dtype.kind == "c" else "f*" if is_float(dtype) else "i*"


def promote(*operands: tuple[DType, bool]) -> tuple[DType, bool]:
    """The (dtype, weak) that operands given as (dtype, weak) promote to, by JAX's lattice.

    >>> promote((BFLOAT16, False), (FLOAT32, True))
    (dtype(bfloat16), False)
    """
    return _promote(operands, config._enable_x64)


@lru_cache(maxsize=4096)
def _promote(operands: tuple[tuple[DType, bool], ...], x64: bool) -> tuple[DType, bool]:
    all_weak = all(weak for _, weak in operands)
    first = operands[0][0]
    if all(dtype == first for dtype, _ in operands):
        return first, all_weak and first != BOOL
    node: _Node = _node(first, operands[0][1] and not all_weak)
    for dtype, weak in operands[1:]:
        node = _join(node, _node(dtype, weak and not all_weak))
    if isinstance(node, str):
        strong = {"i*": default_int, "f*": default_float, "c*": default_complex}[node]()
        return strong, True
    return canonical(node), all_weak and node != BOOL


def of_python_scalar(value: Any) -> tuple[DType, bool]:
    """The (dtype, weak) of a Python number; ``bool`` is not weak."""
    if isinstance(value, bool):
        return BOOL, False
    if isinstance(value, int):
        return default_int(), True
    if isinstance(value, float):
        return default_float(), True
    return default_complex(), True
