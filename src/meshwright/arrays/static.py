"""Arguments that Python, not the program, needs to know: sizes, flags, masks, shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from meshwright.arrays.operands import VALUES, ArrayLike, known, sentence, value
from meshwright.core import dtypes
from meshwright.core.dtypes import BOOL
from meshwright.core.op import Value
from meshwright.core.program import Params
from meshwright.core.source import here
from meshwright.core.trace import Value as ValueClass
from meshwright.core.types import Shape, TensorType
from meshwright.errors import ShapeError


def static_int(x: Any, what: str) -> int:
    """A size or position that must be known while tracing: an integer of 64 bits."""
    if x.__class__ is int and -(2**63) <= x < 2**63:
        return x  # type: ignore[no-any-return]
    if isinstance(x, ValueClass):
        fix = f"pass {what} as a Python int; make an argument of a jitted function static:\nmw.jit(f, static_argnums=…)"
        x = known(x, what, fix)
    try:
        found = int(x.__index__())
    except (AttributeError, TypeError):
        raise ShapeError(
            f"{sentence(what)} is {x!r}.", where=here(), why="it must be an integer", fix="int(…)"
        ) from None
    if not -(2**63) <= found < 2**63:
        why = f"it has {found.bit_length()} bits, and a size or position has 64"
        raise ShapeError(f"{sentence(what)} is too large.", where=here(), why=why, fix="a smaller number")
    return found


def whole_numbers(x: Any, what: str) -> Any:
    """``x``, refused unless it is of an integer dtype."""
    dtype = x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype
    if not dtypes.is_integer(dtype):
        raise ShapeError(f"{sentence(what)} is of {dtype}.", where=here(), why="it must be an integer", fix="int(…)")
    return np.asarray(x) if not isinstance(x, ValueClass) else x


def static_flag(x: Any, what: str) -> bool:
    """A flag that must be known while tracing; None counts as False."""
    if x.__class__ is bool:
        return x  # type: ignore[no-any-return]
    if isinstance(x, ValueClass):
        x = known(x, what, f"pass {what} as True or False; make an argument static: mw.jit(f, static_argnums=…)")
    number = isinstance(x, int | np.integer | np.bool_) or (isinstance(x, np.ndarray) and not x.ndim)
    if x is None or (number and x in (0, 1)):
        return bool(x)
    raise ShapeError(f"{sentence(what)} is {x!r}.", where=here(), why="it is True or False", fix="True")


def mask_of(where: ArrayLike) -> Value:
    """What ``where=`` of a reduction gives: truth values."""
    found = value(where)
    if found.type.dtype != BOOL:
        raise ShapeError(
            f"where= is {found.type.short()}.",
            where=here(),
            why="it says which elements count, by truth values",
            fix="x != 0",
        )
    return found


_PRECISIONS = ("default", "high", "highest", "fastest", "bfloat16", "bfloat16_3x", "tensorfloat32", "float32")


def check_precision(precision: Any) -> None:
    """Refuse what does not say how exactly to multiply; what does is without effect here."""
    for one in precision if isinstance(precision, tuple) and len(precision) == 2 else (precision,):
        name = one.lower() if isinstance(one, str) else getattr(one, "name", "").lower()
        if one is not None and name not in _PRECISIONS:
            raise ShapeError(
                f"precision is {precision!r}.",
                where=here(),
                why=f"it is None, a lax.Precision, one of {', '.join(_PRECISIONS)}, or two of them",
                fix="precision='highest'",
            )


def one_of(x: Any, options: Sequence[Any], what: str) -> Any:
    """``x``, which is one of a few values."""
    if not any(x.__class__ is option.__class__ and x == option for option in options):
        known_ones = ", ".join(repr(option) for option in options)
        raise ShapeError(
            f"{sentence(what)} is {x!r}.", where=here(), why=f"it is one of {known_ones}", fix=repr(options[0])
        )
    return x


def static_size(x: Any, what: str) -> int:
    """A size that must be known while tracing: an integer, 0 or more."""
    found = static_int(x, what)
    no_negative((found,), what)
    return found


def no_negative(sizes: Iterable[int], what: str) -> None:
    """Refuse sizes below 0."""
    for size in sizes:
        if size < 0:
            raise ShapeError(f"{sentence(what)} is {size}.", where=here(), why="a size is 0 or more", fix="max(n, 0)")


def no_out(out: Any, name: str) -> None:
    """Refuse an array to write results to: arrays do not change."""
    if out is not None:
        raise ShapeError(
            f"{name} cannot write to out=.", where=here(), why="arrays do not change", fix=f"y = {name}(x) without out="
        )


def items_of(x: Any, name: str) -> list[Any]:
    """The items of what must be a sequence of arrays."""
    if isinstance(x, list | tuple) or (hasattr(x, "ndim") and x.ndim):
        return list(x)
    if hasattr(x, "__iter__") and not hasattr(x, "ndim"):
        return list(x)
    raise ShapeError(
        f"{name} cannot take {x.type if x.__class__ in VALUES else repr(x)}.",
        where=here(),
        why="it takes a sequence of arrays",
        fix=f"{name}([x, y])",
    )


def static_shape(shape: Any, what: str = "a shape") -> Shape:
    """A shape from an integer or a sequence of integers."""
    if shape.__class__ is tuple and all(n.__class__ is int and -1 <= n < 2**63 for n in shape):
        found: Shape = shape
    elif isinstance(shape, list | tuple | range) or (isinstance(shape, np.ndarray | ValueClass) and shape.ndim):
        found = tuple(static_int(n, what) for n in shape)  # type: ignore[union-attr]
    else:
        found = (static_int(shape, what),)
    return found


OPEN = object()  # an ``out_sharding`` that leaves a product as its operands have it, sums taken


def laid_out_as(types: Sequence[TensorType], out_sharding: Any, ndim: int, order: Any = None) -> Params:
    """The params of a product that is to be laid out as ``out_sharding`` says, its dims then in another ``order``."""
    if out_sharding is None or all(t.sharding is None for t in types):
        return {}
    from meshwright.arrays.explicit import product_params

    return product_params(types, None if out_sharding is OPEN else out_sharding, ndim, order)


def placed(x: Value, device: Any, out_sharding: Any = None) -> Value:
    """A new array where its maker's ``device=`` or ``out_sharding=`` says."""
    if device is None and out_sharding is None:
        return x
    from meshwright.arrays.device_put import put_created

    return put_created(x, device, out_sharding)
