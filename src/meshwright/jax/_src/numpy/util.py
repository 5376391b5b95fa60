"""``jax._src.numpy.util``: operands as arrays of one dtype."""

from __future__ import annotations

from typing import Any

from meshwright.arrays.operands import promoted_values, value
from meshwright.core.trace import Value
from meshwright.jax.absent import absent

__getattr__ = absent("jax._src.numpy.util")


def check_arraylike(fun_name: str, *args: Any, **options: Any) -> None:
    """Refuse what is no array."""
    ensure_arraylike(fun_name, *args)


def ensure_arraylike(fun_name: str, *args: Any) -> Any:
    """Operands as arrays, one alone or several as a tuple.

    >>> ensure_arraylike("f", 1).shape
    ()
    """
    found = tuple(map(value, args))
    return found[0] if len(found) == 1 else found


def promote_dtypes(*args: Any) -> list[Value]:
    """Operands as arrays of one dtype."""
    return promoted_values(*args)


def promote_dtypes_inexact(*args: Any) -> list[Value]:
    """Operands as arrays of one floating dtype.

    >>> [str(x.dtype) for x in promote_dtypes_inexact(1, 2)]
    ['float32', 'float32']
    """
    return promoted_values(*args, inexact=True)


def promote_args(fun_name: str, *args: Any) -> list[Value]:
    """Operands of a function as arrays of one dtype."""
    return promoted_values(*args)


def promote_args_inexact(fun_name: str, *args: Any) -> list[Value]:
    """Operands of a function as arrays of one floating dtype."""
    return promoted_values(*args, inexact=True)


def promote_dtypes_complex(*args: Any) -> list[Value]:
    """Operands as arrays of one complex dtype.

    >>> [str(x.dtype) for x in promote_dtypes_complex(1, 2.0)]
    ['complex64', 'complex64']
    """
    xs = promoted_values(*args, inexact=True)
    dtype = (xs[0].dtype.type(0) * 1j).dtype if xs[0].dtype.itemsize >= 4 else "complex64"
    return [x.astype(dtype) for x in xs]


promote_args_numeric, promote_dtypes_numeric = promote_args, promote_dtypes
