"""In which operands an op is linear: which of them may be partial (unreduced) sums, so that the result is one.

An op is linear in a group of operands if it distributes over sums of all of them at once while the others are held:
``f(x + x', y + y', z) = f(x, y, z) + f(x', y', z)`` for the group (x, y). If devices hold summands of all operands of a
group, and the others whole, then what each computes is a summand of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from meshwright.core.dtypes import COMPLEXES, FLOATS, INTEGERS, DType, is_complex, is_inexact, real_part
from meshwright.core.types import TensorType

Types = Sequence[TensorType]


class Does(Enum):
    """What happens to the elements of a group of operands on the way to the result."""

    MOVES = "moves"  # each element of the result is one of them, as in reshape, concatenate, select
    ADDS = "adds"  # or a sum of them, as in add, reduce_sum
    SCALES = "scales"  # or one of another sign or size, or a sum of such, as in neg, mul, dot_general


class LinearGroup(NamedTuple):
    """Operands, by number, in which an op is linear jointly; ``factors`` multiply them, ``divisors`` divide them."""

    operands: tuple[int, ...]
    does: Does = Does.SCALES
    factors: tuple[int, ...] = ()
    divisors: tuple[int, ...] = ()


LinearRule = Callable[[Types, Types, Mapping[str, Any]], tuple[LinearGroup, ...]]


class Linearity(Enum):
    """The groups of most ops, whatever their types and params are."""

    NONE = "none"
    MOVES = "moves"  # all operands jointly, as in concatenate
    ADDS = "adds"  # all operands jointly, as in add
    JOINTLY = "jointly"  # all operands jointly, as in sub
    EACH = "each"  # each operand multiplied by the others, as in mul, dot_general

    def groups(self, count: int) -> tuple[LinearGroup, ...]:
        """The groups of an op with so many operands."""
        everything = tuple(range(count))
        if self is Linearity.NONE or not count:
            return ()
        if self is Linearity.EACH:
            return tuple(LinearGroup((n,), factors=everything[:n] + everything[n + 1 :]) for n in everything)
        return (LinearGroup(everything, Does.SCALES if self is Linearity.JOINTLY else Does[self.name]),)


def linear_in(*operands: int, does: Does = Does.SCALES, factors: tuple[int, ...] = ()) -> LinearRule:
    """The rule of an op with one group, whatever its types and params are."""
    group = LinearGroup(operands, does, factors)
    return lambda types, results, params: (group,)


def declared_groups(
    linear: Linearity | LinearRule, operands: Types, results: Types, params: Mapping[str, Any]
) -> tuple[LinearGroup, ...]:
    """The groups of operands in which an op is linear but for the rounding of results to other dtypes."""
    return linear.groups(len(operands)) if isinstance(linear, Linearity) else linear(operands, results, params)


def groups_of(
    linear: Linearity | LinearRule, operands: Types, results: Types, params: Mapping[str, Any]
) -> tuple[LinearGroup, ...]:
    """The groups of operands in which an op is linear on these types.

    Between dtypes an op is linear only in sums that it converts as it converts their summands.
    """
    return tuple(
        group
        for group in declared_groups(linear, operands, results, params)
        if all(keeps_sums(operands[n].dtype, result.dtype) for n in group.operands for result in results)
    )


@lru_cache(maxsize=1024)
def keeps_sums(source: DType, target: DType) -> bool:
    """Whether the conversion of a sum is the sum of the conversions.

    Integers wrap around, so that a narrower one follows from the wider, and nothing else does. Floats, and the parts of
    complex numbers, must not be rounded: each summand would be.
    """
    if source == target:
        return True
    if source in INTEGERS and target in INTEGERS:
        return target.itemsize <= source.itemsize
    if source not in FLOATS + COMPLEXES or target not in FLOATS + COMPLEXES:
        return False
    narrow, wide = (ml_dtypes.finfo(real_part(dtype)) for dtype in (source, target))  # type: ignore[no-untyped-call]
    return bool(narrow.nmant <= wide.nmant and narrow.maxexp <= wide.maxexp and narrow.minexp >= wide.minexp)


class Magnitude(NamedTuple):
    """Bounds on the absolute values of the elements of a value that is known before the program runs."""

    least: float
    most: float

    @classmethod
    def of(cls, value: Any) -> Magnitude:
        """The bounds of an array; NaN is beyond all bounds."""
        array = np.asarray(value)
        sizes = np.abs(array.astype(np.complex128 if array.dtype.kind == "c" else np.float64))
        if not sizes.size:
            return cls(1.0, 1.0)
        return UNBOUNDED if np.isnan(sizes).any() else cls(float(sizes.min()), float(sizes.max()))


UNBOUNDED = Magnitude(0.0, float("inf"))


def magnitude_of_moved(
    groups: Sequence[LinearGroup], operands: Types, result: TensorType, sizes: Sequence[Magnitude | None]
) -> Magnitude | None:
    """The bounds of the result of an op that only moves operands of these bounds; None if it does more, such as to take
    the real parts of complex numbers."""
    known = [size for size in sizes if size is not None]
    if not known or len(known) < len(sizes) or LinearGroup(tuple(range(len(sizes))), Does.MOVES) not in groups:
        return None
    if any(is_complex(t.dtype) != is_complex(result.dtype) for t in operands):
        return None
    return Magnitude(min(size.least for size in known), max(size.most for size in known))


def stays_finite(group: LinearGroup, types: Types, known: Callable[[int], Magnitude | None]) -> bool:
    """Whether scaling summands gives no inf or NaN that scaling their sum does not give.

    ``known`` are bounds of operands whose values are known before the program runs, None for all others. Summands may
    be larger than their sum, and zero where it is not: a number above 1 may be too much for them, and so may inf, NaN
    and the division by zero.
    """
    if not any(is_inexact(types[n].dtype) for n in group.operands):
        return True
    factors, divisors = ([known(n) for n in numbers] for numbers in (group.factors, group.divisors))
    return all(size is None or size.most <= 1 for size in factors) and all(
        size is None or (size.least >= 1 and size.most < float("inf")) for size in divisors
    )
