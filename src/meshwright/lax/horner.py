"""Elementwise functions that JAX has as operations of their own since 0.12, because what they are written as is less
exact near their zeros, or longer to differentiate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.api.custom import custom_jvp
from meshwright.arrays.operands import ArrayLike, broadcast, broadcast_shapes, value
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import ShapeError
from meshwright.lax.elementwise import fitting_operands


@custom_jvp
def _one_minus_square(x: Any) -> Any:
    return (1 + x) * (1 - x)


_one_minus_square.defjvps(lambda t, out, x: t * (-2 * x))


def one_minus_square(x: ArrayLike) -> Value:
    """``1 - x**2``, exact where ``x`` is near 1, with the derivative ``-2 x``.

    >>> from meshwright.lax.horner import one_minus_square
    >>> float(one_minus_square(0.5))
    0.75
    """
    return _one_minus_square(value(x))  # type: ignore[no-any-return]


def polynomial(x: ArrayLike, coeffs: Sequence[ArrayLike], *, unroll: int | None = None) -> Value:
    """The sum of ``coeffs[k] * x**k``, by Horner's rule; ``unroll`` is for compilers and changes nothing here.

    >>> from meshwright.lax.horner import polynomial
    >>> float(polynomial(3.0, [1.0, 5.0, 2.0]))
    34.0
    """
    operands: list[Any] = [value(one) for one in fitting_operands("polynomial", x, *coeffs)]
    shape = broadcast_shapes(*(one.shape for one in operands))
    if len(operands) < 2 or shape is None or len({one.ndim for one in operands if one.ndim}) > 1:
        raise ShapeError(
            f"lax.polynomial cannot take {', '.join(one.type.short() for one in operands)}.",
            where=here(),
            why="it takes one coefficient or more, each a number or of the dims of x or 1",
            fix="lax.polynomial(x, [1.0, 5.0, 2.0])  # 1 + 5 x + 2 x**2",
        )
    base, *rest = (broadcast(one, shape) for one in operands)
    found: Any = rest.pop()
    while rest:
        found = found * base + rest.pop()
    return found  # type: ignore[no-any-return]
