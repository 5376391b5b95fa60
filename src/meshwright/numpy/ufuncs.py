"""Functions of one or two numbers that can also reduce, accumulate and update arrays: ``ufunc`` and those there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.api.control import fori_loop, scan
from meshwright.arrays.operands import ArrayLike, DTypeLike, as_dtype, axis_of, broadcast, convert, value
from meshwright.arrays.static import mask_of, no_out, static_flag, static_int
from meshwright.core import dtypes
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import ShapeError
from meshwright.numpy import arithmetic, logic, mathematics, reductions
from meshwright.numpy.creation import arange
from meshwright.numpy.functions import vectorize
from meshwright.numpy.logic import either, less
from meshwright.numpy.positions import integers
from meshwright.numpy.shapes import concatenate, cut, moveaxis, ravel
from meshwright.numpy.taking import no_inplace, take
from meshwright.numpy.updates import At
from meshwright.ops import basic

Method = Callable[..., Any]


class ufunc:
    """A function of numbers that broadcasts over arrays, and its reductions.

    >>> import meshwright.numpy as mnp
    >>> mnp.add.reduce(mnp.array([[1, 2], [3, 4]]))
    Array([4, 6], dtype=int32)
    >>> mnp.frompyfunc(lambda x, y: x * 10 + y, 2, 1).accumulate(mnp.array([1, 2, 3]))
    Array([  1,  12, 123], dtype=int32)
    """

    def __init__(
        self, func: Callable[..., Any], /, nin: int, nout: int, *, name: str | None = None, nargs: int | None = None,
        identity: Any = None, call: Method | None = None, reduce: Method | None = None,
        accumulate: Method | None = None, at: Method | None = None, reduceat: Method | None = None,
    ) -> None:  # fmt: skip
        if not callable(func):
            raise ShapeError(f"{func!r} is not a function.", where=here(), why="a ufunc is made of one", fix="mnp.sin")
        self.__name__ = name or getattr(func, "__name__", "function")
        self.__doc__ = getattr(func, "__doc__", None)
        self.nin, self.nout = static_int(nin, "nin of a ufunc"), static_int(nout, "nout of a ufunc")
        self.nargs = self.nin if nargs is None else static_int(nargs, "nargs of a ufunc")
        self.identity = identity
        self.function = vectorize(func) if call is None else call
        self._methods = {"reduce": reduce, "accumulate": accumulate, "at": at, "reduceat": reduceat}

    def __repr__(self) -> str:
        return f"<mnp.ufunc '{self.__name__}'>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ufunc) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self.function, self.__name__, self.nin, self.nout, self.identity

    def __call__(self, *args: ArrayLike, out: None = None, where: None = None) -> Any:
        """The function of arrays, element by element."""
        no_out(out, f"mnp.{self.__name__}")
        if where is not None:
            raise ShapeError(
                f"mnp.{self.__name__} cannot take where=.", where=here(), why="elsewhere there would be no result",
                fix=f"mnp.where(mask, mnp.{self.__name__}({', '.join('xy'[: self.nin])}), 0)",
            )  # fmt: skip
        if len(args) != self.nin:
            raise ShapeError(
                f"mnp.{self.__name__} got {len(args)} operands.", where=here(), why=f"it takes {self.nin}",
                fix=f"mnp.{self.__name__}({', '.join('xy'[: self.nin])})",
            )  # fmt: skip
        return self.function(*args)

    def reduce(
        self, a: ArrayLike, axis: Any = 0, dtype: DTypeLike = None, out: None = None, keepdims: bool = False,
        initial: ArrayLike | None = None, where: ArrayLike | None = None,
    ) -> Any:  # fmt: skip
        """The elements along an axis (all of them with ``axis=None``) put together two at a time, from the left."""
        self._of_two("reduce")
        no_out(out, f"mnp.{self.__name__}.reduce")
        own = self._methods["reduce"]
        if own is not None:
            given = {"initial": initial, "where": where}
            return own(
                a, axis=axis, dtype=dtype, keepdims=keepdims, **{k: v for k, v in given.items() if v is not None}
            )
        keepdims = static_flag(keepdims, "keepdims of a reduction")
        x = value(a)
        rank = x.ndim
        if where is not None and initial is None and self.identity is None:
            raise ShapeError(
                f"mnp.{self.__name__}.reduce with where= needs initial=.", where=here(),
                why="the function has no identity to stand where no element counts", fix="initial=0",
            )  # fmt: skip
        mask = None if where is None else broadcast(mask_of(where), x.shape)
        if axis is None:
            x, mask, dim = ravel(x), None if mask is None else ravel(mask), 0
        else:
            dim = axis_of(axis, rank, f"mnp.{self.__name__}.reduce")
        rows = moveaxis(x if dtype is None else convert(x, as_dtype(dtype)), dim, 0)
        kept = None if mask is None else moveaxis(mask, dim, 0)
        start = self.identity if initial is None and (not rows.shape[0] or kept is not None) else initial
        found = self._folded(rows, kept, start)
        if keepdims:
            shape = (1,) * rank if axis is None else (*x.shape[:dim], 1, *x.shape[dim + 1 :])
            found = basic.reshape(found, shape=shape)
        return found

    def _folded(self, rows: Value, kept: Value | None, start: Any) -> Value:
        """The rows put together, those that count, from a start or the first of them."""
        if start is None and not rows.shape[0]:
            raise ShapeError(
                f"mnp.{self.__name__}.reduce of {rows.type.short()} is a reduction of nothing.", where=here(),
                why="the function has no identity", fix="initial=0",
            )  # fmt: skip
        if start is None:
            total, rows = rows[0], cut(rows, 0, 1, rows.shape[0])
        else:
            total = broadcast(convert(value(start), rows.type.dtype), rows.shape[1:])
        # The dtype of the function of two elements, which a loop keeps.
        total = convert(total, value(self.function(total, basic.zeros(total.type))).type.dtype)
        if not rows.shape[0]:
            return total

        def step(total: Value, given: Any) -> tuple[Value, None]:
            row, counts = given
            found = convert(self.function(total, row), total.type.dtype)
            return (found if kept is None else either(counts, found, total)), None

        end, _ = scan(step, total, (rows, rows if kept is None else kept))
        return end  # type: ignore[no-any-return]

    def accumulate(self, a: ArrayLike, axis: int = 0, dtype: DTypeLike = None, out: None = None) -> Any:
        """The elements up to each place put together."""
        self._of_two("accumulate")
        no_out(out, f"mnp.{self.__name__}.accumulate")
        own = self._methods["accumulate"]
        if own is not None:
            return own(a, axis=axis, dtype=dtype)
        x = value(a)
        dim = axis_of(axis, x.ndim, f"mnp.{self.__name__}.accumulate")
        rows = moveaxis(x if dtype is None else convert(x, as_dtype(dtype)), dim, 0)
        if rows.shape[0] < 2:
            return moveaxis(rows, 0, dim)
        first = rows[0]
        first = convert(first, value(self.function(first, first)).type.dtype)

        def step(total: Value, row: Value) -> tuple[Value, Value]:
            found = convert(self.function(total, row), total.type.dtype)
            return found, found

        _, rest = scan(step, first, cut(rows, 0, 1, rows.shape[0]))
        return moveaxis(concatenate([first[None], rest]), 0, dim)

    def at(self, a: ArrayLike, indices: Any, b: ArrayLike | None = None, /, *, inplace: bool = True) -> Any:
        """``a`` with the function of its elements (and of ``b``) at some places, one after the other. A new array."""
        no_inplace(inplace, f"mnp.{self.__name__}.at")
        own = self._methods["at"]
        if own is not None:
            return own(a, indices) if b is None else own(a, indices, b)
        x = value(a)
        if self.nin == 1:
            return At(x)[indices].apply(self.function)
        if b is None:
            raise ShapeError(
                f"mnp.{self.__name__}.at got no second operand.", where=here(), why="the function has two",
                fix=f"mnp.{self.__name__}.at(x, i, y, inplace=False)",
            )  # fmt: skip
        # Places may be the same: each sees what those before it left.
        places = At(basic.reshape(arange(x.size), shape=x.shape))[indices].get()
        operands = ravel(broadcast(value(b), places.shape))
        flat, targets = ravel(x), ravel(places)

        def step(n: Value, total: Value) -> Value:
            place = targets[n]
            new = convert(self.function(total[place], operands[n]), total.type.dtype)
            return At(total)[place].set(new)

        found = fori_loop(0, targets.shape[0], step, flat) if targets.shape[0] else flat
        return basic.reshape(found, shape=x.shape)

    def reduceat(self, a: ArrayLike, indices: Any, axis: int = 0, dtype: DTypeLike = None, out: None = None) -> Any:
        """The elements from each place up to before the next put together; one alone where that is not behind it."""
        self._of_two("reduceat")
        no_out(out, f"mnp.{self.__name__}.reduceat")
        own = self._methods["reduceat"]
        if own is not None:
            return own(a, indices, axis=axis, dtype=dtype)
        x = value(a)
        dim = axis_of(axis, x.ndim, f"mnp.{self.__name__}.reduceat")
        starts = integers(indices, f"mnp.{self.__name__}.reduceat")
        if starts.ndim != 1:
            raise ShapeError(
                f"mnp.{self.__name__}.reduceat cannot take places {starts.type.short()}.", where=here(),
                why="they have one dim", fix="indices.ravel()",
            )  # fmt: skip
        rows = moveaxis(x if dtype is None else convert(x, as_dtype(dtype)), dim, 0)
        size = rows.shape[0]
        starts = convert(starts, dtypes.default_int())
        if not starts.shape[0]:
            return moveaxis(cut(rows, 0, 0, 0), 0, dim)
        ends = concatenate([cut(starts, 0, 1, starts.shape[0]), convert(value([size]), starts.type.dtype)])
        first = take(rows, starts, 0, mode="clip")
        first = convert(first, value(self.function(first, first)).type.dtype)
        one = (starts.shape[0], *(1,) * (rows.ndim - 1))

        def step(n: Value, total: Value) -> Value:
            place = starts + n
            found = convert(self.function(total, take(rows, place, 0, mode="clip")), total.type.dtype)
            return either(basic.reshape(less(place, ends), shape=one), found, total)

        return moveaxis(fori_loop(1, size, step, first) if size > 1 else first, 0, dim)

    def outer(self, A: ArrayLike, B: ArrayLike, /) -> Any:
        """The function of every element of ``A`` and every one of ``B``."""
        self._of_two("outer")
        x, y = value(A), value(B)
        return self.function(basic.reshape(x, shape=(*x.shape, *(1,) * y.ndim)), y)

    def _of_two(self, name: str) -> None:
        if self.nin != 2 or self.nout != 1:
            raise ShapeError(
                f"mnp.{self.__name__}.{name} cannot be: the function has {self.nin} operands and {self.nout} results.",
                where=here(), why="two elements are put together to one", fix=f"mnp.add.{name}(x)",
            )  # fmt: skip


def frompyfunc(func: Callable[..., Any], /, nin: int, nout: int, *, identity: Any = None) -> ufunc:
    """A ufunc of a function of numbers.

    >>> import meshwright.numpy as mnp
    >>> mnp.frompyfunc(lambda x, y: x - 2 * y, 2, 1).outer(mnp.arange(2), mnp.arange(3))
    Array([[ 0, -2, -4],
           [ 1, -1, -3]], dtype=int32)
    """
    return ufunc(func, nin, nout, identity=identity)


def _accumulated(function: Method) -> Method:
    return lambda a, axis, dtype: function(a, axis=axis, dtype=dtype)


def _updated(method: str) -> Method:
    return lambda a, indices, b: getattr(At(value(a))[indices], method)(b)


def _extreme(reduction: Method) -> Method:
    def function(a: ArrayLike, axis: Any, dtype: DTypeLike, keepdims: bool, **options: Any) -> Value:
        x = value(a)
        return reduction(  # type: ignore[no-any-return]
            x if dtype is None else convert(x, as_dtype(dtype)), axis, keepdims=keepdims, **options
        )

    return function


def _own(function: Callable[..., Any], nin: int = 2, **given: Any) -> ufunc:
    return ufunc(function, nin, 1, call=function, **given)


add = _own(
    arithmetic.add, identity=0, reduce=reductions.sum, accumulate=_accumulated(reductions.cumsum), at=_updated("add")
)
subtract = _own(arithmetic.subtract, at=_updated("subtract"))
multiply = _own(
    arithmetic.multiply, identity=1, reduce=reductions.prod, accumulate=_accumulated(reductions.cumprod),
    at=_updated("multiply"),
)  # fmt: skip
negative = _own(arithmetic.negative, nin=1)
maximum = _own(arithmetic.maximum, reduce=_extreme(reductions.max), at=_updated("max"))
minimum = _own(arithmetic.minimum, reduce=_extreme(reductions.min), at=_updated("min"))
logaddexp = _own(mathematics.logaddexp, identity=float("-inf"))
logaddexp2 = _own(mathematics.logaddexp2, identity=float("-inf"))
logical_and = _own(logic.logical_and, identity=True)
logical_or = _own(logic.logical_or, identity=False)
logical_xor = _own(logic.logical_xor, identity=False)
bitwise_and = _own(logic.bitwise_and, identity=-1)
bitwise_or = _own(logic.bitwise_or, identity=0)
bitwise_xor = _own(logic.bitwise_xor, identity=0)
