"""What functions refuse of their operands: numbers without an order, arrays where one number is meant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from meshwright.arrays.operands import ArrayLike, DTypeLike, as_dtype, sentence, value
from meshwright.core import dtypes
from meshwright.core.op import Value
from meshwright.core.source import here
from meshwright.core.types import TensorType
from meshwright.errors import ShapeError


def ordered(name: str, *operands: ArrayLike) -> None:
    """Refuse complex numbers where numbers are compared."""
    for x in map(value, operands):
        if dtypes.is_complex(x.type.dtype):
            raise ShapeError(
                f"{name} cannot take {x.type.short()}.",
                where=here(),
                why="complex numbers have no order",
                fix="x.real, x.imag or mnp.abs(x)",
            )


def one_number(x: ArrayLike, what: str, real: bool = True) -> Value:
    """One number, traced or not; an array of several is refused, and a complex number where it must be ``real``."""
    found = value(x)
    if found.ndim or (real and dtypes.is_complex(found.type.dtype)):
        why = f"it is one {'real ' * real}number"
        raise ShapeError(f"{sentence(what)} is {found.type.short()}.", where=here(), why=why, fix="1.0, or x[0]")
    return found


def refuse(name: str, types: Sequence[TensorType], why: str, fix: str) -> NoReturn:
    """Raise the error for operands that do not go together."""
    shown = " and ".join(t.short() for t in types)
    raise ShapeError(f"{name} cannot take {shown}.", where=here(), why=why, fix=fix)


def named_dtype(dtype: DTypeLike, what: str) -> Any:
    """A dtype that must be given: None does not stand for one."""
    if dtype is None:
        raise ShapeError(f"{sentence(what)} is None.", where=here(), why="it must be a dtype", fix="'float32'")
    return as_dtype(dtype)
