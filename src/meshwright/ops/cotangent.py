"""The cotangent of a value that is used several times: the sum of what its uses send back."""

from __future__ import annotations

from typing import Any, NamedTuple

from meshwright.core.op import Value
from meshwright.core.program import Literal
from meshwright.core.trace import Tracer, make_varying
from meshwright.core.types import TensorType
from meshwright.ops.arithmetic import sub
from meshwright.ops.basic import add, neg, number_in
from meshwright.ops.collective import finish_sum
from meshwright.ops.layout import laid_out
from meshwright.ops.rules import Negative
from meshwright.ops.shape import concatenate, pad


class _Block(NamedTuple):
    """A value with zeros around it along one dim: what it is, and the places that it takes."""

    x: Value
    dim: int
    start: int
    stop: int
    size: int  # of the whole


class Cotangent:
    """A sum in the making. Blocks of a traced value with zeros around them wait for each other: if they make up the
    whole, it is their concatenation, as a concatenation sends back slices.

        b: f32[5] = pad a 0.0 high=(3,) interior=(0,) low=(0,)
        d: f32[5] = pad c 0.0 high=(0,) interior=(0,) low=(2,)     ==>    e: f32[5] = concatenate a c dim=0
        e: f32[5] = add b d
    """

    __slots__ = ("_sums", "blocks", "negative", "sum", "type")

    def __init__(self, type: TensorType) -> None:
        self.type = type  # of the value
        self._sums: frozenset[tuple[str, ...]] = frozenset()  # the axes that what was added is unreduced over
        self.sum: Value | None = None
        self.negative: Value | None = None  # to be taken from it
        self.blocks: list[tuple[Value, _Block]] = []

    def add(self, ct: Value | Negative) -> None:
        """Add what one use of the value sends back."""
        if isinstance(ct, Negative):
            x = self._fitted(ct.x)
            if self.sum is not None:
                self.sum = sub(self.sum, number_in(x, self.sum))
            else:
                self.negative = x if self.negative is None else add(self.negative, x)
            return
        x = self._fitted(ct)
        block = _block(x)
        if block is not None:
            self.blocks.append((x, block))
        else:
            self._count(x)

    def total(self) -> Value | Negative:
        """The sum of all that was added, or what it is the negative of."""
        joined = _joined([block for _, block in self.blocks]) if self.blocks else None
        for x in [x for x, _ in self.blocks] if joined is None else [joined]:
            self._count(x)
        self.blocks = []
        return Negative(self.negative) if self.sum is None else self.sum

    def _fitted(self, x: Value) -> Value:
        """``x`` in the type of the value; a partial sum is summed if it is added to what is none."""
        x = laid_out(make_varying(x, self.type.varying), self.type)
        self._sums = self._sums | {x.type.unreduced}
        if len(self._sums) > 1:
            x = summed(x)
            self.sum, self.negative = summed(self.sum), summed(self.negative)
        return x

    def _count(self, x: Value) -> None:
        if self.sum is not None:
            self.sum = _added(self.sum, x)
        else:
            self.sum = x if self.negative is None else sub(x, number_in(self.negative, x))
            self.negative = None


def summed(x: Value | None) -> Value | None:
    """The sum of a cotangent that is a partial sum; another as it is."""
    return finish_sum(x, axes=x.type.unreduced) if x is not None and x.type.unreduced else x


def as_value(x: Value | Negative | None) -> Value | None:
    """A cotangent as a value."""
    return neg(x.x) if isinstance(x, Negative) else x


def _added(x: Value, y: Value) -> Value:
    """A sum; of an array and one number at every place, with the number."""
    if (number := number_in(y, x)) is not y:
        return add(x, number)
    return add(number_in(x, y), y)


def _block(x: Value) -> _Block | None:
    """A traced value that is another one with zeros before or after it, along one dim."""
    made = x.builder.made_by(x.variable) if isinstance(x, Tracer) and x.type.sharding is None else None
    if made is None or made.op is not pad or any(made.params["interior"]):
        return None
    if x.type.unreduced:
        return None
    operand, filled = made.inputs
    low, high = made.params["low"], made.params["high"]
    dims = [dim for dim, sizes in enumerate(zip(low, high, strict=True)) if any(sizes)]
    if len(dims) != 1 or min(*low, *high) < 0 or not isinstance(filled, Literal) or filled.value != 0:
        return None
    if isinstance(operand, Literal):
        return None
    dim = dims[0]
    return _Block(Tracer(x.builder, operand), dim, low[dim], x.shape[dim] - high[dim], x.shape[dim])


def _joined(blocks: list[_Block]) -> Value | None:
    """The blocks side by side, if each place is in one of them."""
    found = sorted(blocks, key=lambda block: (block.start, block.stop))
    dim = found[0].dim
    ends: list[Any] = [0, *(block.stop for block in found)]
    beside = all(block.dim == dim and block.start == end for block, end in zip(found, ends, strict=False))
    same = len({block.x.type.varying for block in found}) == 1
    if not beside or not same or ends[-1] != found[0].size:
        return None
    return concatenate(*(block.x for block in found), dim=dim)
