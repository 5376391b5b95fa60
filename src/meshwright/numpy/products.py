"""Products of vectors and matrices of ``meshwright.numpy``."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from meshwright.arrays.operands import (
    VALUES,
    ArrayLike,
    DTypeLike,
    as_dtype,
    axis_of,
    broadcast,
    broadcast_shapes,
    common_shape,
    convert,
    promote_operands,
    strong,
    value,
)
from meshwright.arrays.repeated import compiled_in_kernels
from meshwright.arrays.static import check_precision, laid_out_as, no_out, placed, static_int
from meshwright.core import dtypes
from meshwright.core.source import here
from meshwright.core.trace import Value, apply
from meshwright.core.types import Shape, TensorType
from meshwright.errors import ShapeError
from meshwright.numpy.arithmetic import multiply, subtract
from meshwright.numpy.creation import diagonal, eye
from meshwright.numpy.logic import conjugate
from meshwright.numpy.reductions import sum
from meshwright.numpy.shapes import cut, moveaxis, ravel, stack
from meshwright.ops import basic
from meshwright.ops.contraction import dot_general

Dims = tuple[int, ...]
Contraction = dict[str, Any]  # the params of dot_general


def _two(x: ArrayLike, y: ArrayLike) -> list[Value]:
    """Two operands in one dtype."""
    if x.__class__ in VALUES and y.__class__ in VALUES and x.type.dtype == y.type.dtype:
        return [x, y]
    return promote_operands((value(x), value(y)))


def _result_dtype(preferred: DTypeLike) -> dtypes.DType | None:
    return None if preferred is None else as_dtype(preferred)


def _mismatch(name: str, x: TensorType, y: TensorType, n: int, m: int, d: int, e: int) -> ShapeError:
    fix = f"give dim {d} of the left and dim {e} of the right one size"
    if name == "mnp.dot" or (name == "matmul" and broadcast_shapes(x.shape[:-2], y.shape[:-2]) is not None):
        fix = f"a right operand of shape {_resized(y, e, n)}, or a left one of shape {_resized(x, d, m)}"
        if x.ndim == 2 and x.shape[0] == m:
            fix = "transpose the left operand: x.T if it is x, x if it is x.T"
        elif y.ndim == 2 and y.shape[1] == n:
            fix = "transpose the right operand: y.T if it is y, y if it is y.T"
    return ShapeError(
        f"{name} cannot take {x.short()} and {y.short()}.",
        where=here(),
        why=f"dim {d} of the left has size {n}, dim {e} of the right has size {m}, and they are summed over together",
        fix=fix,
    )


def _resized(x: TensorType, dim: int, size: int) -> Shape:
    return (*x.shape[:dim], size, *x.shape[dim + 1 :])


@lru_cache(maxsize=4096)
def _matmul_plan(x: Shape, y: Shape) -> tuple[Shape, Shape, Contraction, Dims | None] | None:
    """How to multiply stacks of matrices: the shapes without broadcast dims, the contraction, the order of the result.

    Stack dims that both have are batch dims; one that only one operand has (or has with size above 1) stays a free
    dim of that operand, so nothing is repeated.
    """
    rows, columns = len(x) > 1, len(y) > 1
    x_stack, y_stack = x[:-2], y[:-2]
    stack = broadcast_shapes(x_stack, y_stack)
    if stack is None or x[-1] != y[-2 if columns else -1]:
        return None
    kept_x: list[int] = []
    kept_y: list[int] = []
    batch: list[int] = []
    free_x: list[int] = []
    free_y: list[int] = []
    for d in range(-len(stack), 0):
        in_x = -d <= len(x_stack) and (x_stack[d] != 1 or stack[d] == 1)
        in_y = -d <= len(y_stack) and (y_stack[d] != 1 or stack[d] == 1)
        if in_x:
            kept_x.append(d)
        if in_y:
            kept_y.append(d)
        (batch if in_x and in_y else free_x if in_x else free_y).append(d)
    short_x = (*(x_stack[d] for d in kept_x), *x[-2:])
    short_y = (*(y_stack[d] for d in kept_y), *y[-2:])
    params = {
        "contract": ((len(short_x) - 1,), (len(short_y) - (2 if columns else 1),)),
        "batch": (tuple(map(kept_x.index, batch)), tuple(map(kept_y.index, batch))),
        "dtype": None,
    }
    # What dot_general gives, and what is asked for.
    given = [*batch, *free_x, *(["row"] if rows else []), *free_y, *(["column"] if columns else [])]
    asked = [*range(-len(stack), 0), *(["row"] if rows else []), *(["column"] if columns else [])]
    order = None if given == asked else tuple(map(given.index, asked))
    return short_x, short_y, params, order


@compiled_in_kernels
def matmul(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: Any = None,
    preferred_element_type: DTypeLike = None,
    out_sharding: Any = None,
) -> Value:
    """The matrix product ``a @ b``, over stacks of matrices where there are more than two dims.

    >>> import meshwright.numpy as mnp
    >>> (mnp.ones((4, 2, 3)) @ mnp.ones((3, 5))).shape
    (4, 2, 5)
    """
    check_precision(precision)
    x, y = _two(a, b)
    tx, ty = x.type, y.type
    if not tx.ndim or not ty.ndim:
        raise ShapeError(
            f"matmul cannot take {tx.short()} and {ty.short()}.",
            where=here(),
            why="both need one dim or more",
            fix="x * y multiplies by a scalar",
        )
    plan = _matmul_plan(tx.shape, ty.shape)
    if plan is None:
        e = -2 if ty.ndim > 1 else -1
        if tx.shape[-1] != ty.shape[e]:
            raise _mismatch("matmul", tx, ty, tx.shape[-1], ty.shape[e], tx.ndim - 1, ty.ndim + e)
        raise ShapeError(
            f"matmul cannot take {tx.short()} and {ty.short()}.",
            where=here(),
            why=f"the stacks of matrices {tx.shape[:-2]} and {ty.shape[:-2]} do not broadcast",
            fix="mnp.einsum names the dims: mnp.einsum('aij,bjk->abik', x, y)",
        )
    short_x, short_y, params, order = plan
    if short_x != tx.shape:
        x = apply(basic.reshape, (x,), {"shape": short_x})
    if short_y != ty.shape:
        y = apply(basic.reshape, (y,), {"shape": short_y})
    if preferred_element_type is not None:
        params = {**params, "dtype": _result_dtype(preferred_element_type)}
    if out_sharding is not None:
        rank = len(order) if order is not None else x.ndim + y.ndim - 2 - len(params["batch"][0])
        params = {**params, **laid_out_as((x.type, y.type), out_sharding, rank, order)}
    out = apply(dot_general, (x, y), params)
    if order is not None:
        out = apply(basic.transpose, (out,), {"permutation": order})
    return out if out_sharding is None else placed(out, None, out_sharding)


@compiled_in_kernels
def dot(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: Any = None,
    preferred_element_type: DTypeLike = None,
    out_sharding: Any = None,
) -> Value:
    """The sum of products over the last dim of ``a`` and the second to last (or only) dim of ``b``."""
    check_precision(precision)
    x, y = _two(a, b)
    dtype = _result_dtype(preferred_element_type)
    if not x.ndim or not y.ndim:
        found = multiply(x, y)
        return found if dtype is None else convert(found, dtype)
    d, e = x.ndim - 1, max(y.ndim - 2, 0)
    if x.shape[d] != y.shape[e]:
        raise _mismatch("mnp.dot", x.type, y.type, x.shape[d], y.shape[e], d, e)
    asked = laid_out_as((x.type, y.type), out_sharding, x.ndim + y.ndim - 2)
    out = dot_general(x, y, contract=((d,), (e,)), batch=((), ()), dtype=dtype, **asked)
    return placed(out, None, out_sharding)


def tensordot(
    a: ArrayLike,
    b: ArrayLike,
    axes: Any = 2,
    *,
    precision: Any = None,
    preferred_element_type: DTypeLike = None,
    out_sharding: Any = None,
) -> Value:
    """The sum of products over the pairs of dims in ``axes``, or over the last and first ``axes`` dims."""
    check_precision(precision)
    x, y = _two(a, b)
    if isinstance(axes, int | np.integer):
        count = int(axes)
        if not 0 <= count <= min(x.ndim, y.ndim):
            raise ShapeError(
                f"mnp.tensordot cannot sum {count} dims of {x.type.short()} and {y.type.short()}.",
                where=here(),
                why="an operand has fewer dims" if count > 0 else "a number of dims is 0 or more",
                fix=f"axes={min(x.ndim, y.ndim)}",
            )
        left: Dims = tuple(range(x.ndim - count, x.ndim))
        right: Dims = tuple(range(count))
    else:
        first, second = axes if isinstance(axes, list | tuple) and len(axes) == 2 else (axes, None)
        left, right = (
            tuple(axis_of(d, v.ndim, "mnp.tensordot") for d in (given if isinstance(given, list | tuple) else [given]))
            for v, given in ((x, first), (y, second))
        )
        if len(left) != len(right):
            raise ShapeError(
                f"mnp.tensordot cannot pair {len(left)} dims with {len(right)}.",
                where=here(),
                why="each dim of the left is summed together with one of the right",
                fix="axes=((1,), (0,))",
            )
    for d, e in zip(left, right, strict=True):
        if x.shape[d] != y.shape[e]:
            raise _mismatch("mnp.tensordot", x.type, y.type, x.shape[d], y.shape[e], d, e)
    asked = laid_out_as((x.type, y.type), out_sharding, x.ndim + y.ndim - 2 * len(left))
    dtype = _result_dtype(preferred_element_type)
    out = dot_general(x, y, contract=(left, right), batch=((), ()), dtype=dtype, **asked)
    return placed(out, None, out_sharding)


def vdot(a: ArrayLike, b: ArrayLike, *, precision: Any = None, preferred_element_type: DTypeLike = None) -> Value:
    """The dot product of two flattened arrays, the first conjugated."""
    check_precision(precision)
    return dot(ravel(conjugate(a)), ravel(b), preferred_element_type=preferred_element_type)


def vecdot(
    x1: ArrayLike, x2: ArrayLike, /, *, axis: int = -1, precision: Any = None, preferred_element_type: DTypeLike = None
) -> Value:
    """The dot products of vectors along a dim, the first conjugated."""
    check_precision(precision)
    x, y = (moveaxis(v, axis_of(axis, v.ndim, "mnp.vecdot"), -1) for v in _two(x1, x2))
    if x.shape[-1] != y.shape[-1]:
        raise _mismatch("mnp.vecdot", x.type, y.type, x.shape[-1], y.shape[-1], x.ndim - 1, y.ndim - 1)
    rows = basic.reshape(conjugate(x), shape=(*x.shape[:-1], 1, x.shape[-1]))
    columns = basic.reshape(y, shape=(*y.shape, 1))
    out = matmul(rows, columns, preferred_element_type=preferred_element_type)
    return basic.reshape(out, shape=out.shape[:-2])


def inner(a: ArrayLike, b: ArrayLike, *, precision: Any = None, preferred_element_type: DTypeLike = None) -> Value:
    """The sum of products over the last dims."""
    check_precision(precision)
    x, y = _two(a, b)
    if not x.ndim or not y.ndim:
        return dot(x, y, preferred_element_type=preferred_element_type)
    return tensordot(x, y, (-1, -1), preferred_element_type=preferred_element_type)


def outer(a: ArrayLike, b: ArrayLike, out: None = None) -> Value:
    """The product of every element of ``a`` with every element of ``b``."""
    no_out(out, "mnp.outer")
    x, y = (ravel(v) for v in _two(a, b))
    return multiply(basic.reshape(x, shape=(x.size, 1)), basic.reshape(y, shape=(1, y.size)))


def kron(a: ArrayLike, b: ArrayLike) -> Value:
    """The Kronecker product: ``b`` multiplied by every element of ``a``, as blocks."""
    x, y = _two(a, b)
    rank = max(x.ndim, y.ndim)
    left, right = ((1,) * (rank - v.ndim) + v.shape for v in (x, y))
    spread = tuple(n for pair in zip(left, right, strict=True) for n in pair)
    x = basic.broadcast_in_dim(basic.reshape(x, shape=left), shape=spread, dims=tuple(range(0, 2 * rank, 2)))
    y = basic.broadcast_in_dim(basic.reshape(y, shape=right), shape=spread, dims=tuple(range(1, 2 * rank, 2)))
    return basic.reshape(multiply(x, y), shape=tuple(n * m for n, m in zip(left, right, strict=True)))


def trace(
    a: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: DTypeLike = None, out: None = None
) -> Value:
    """The sum of a diagonal."""
    no_out(out, "mnp.trace")
    return sum(diagonal(a, offset, axis1, axis2), -1, dtype)


def cross(
    a: ArrayLike, b: ArrayLike, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> Value:
    """The cross product of vectors of three components."""
    if axis is not None:
        axisa = axisb = axisc = axis
    x, y = (moveaxis(strong(v), d, -1) for v, d in zip(_two(a, b), (axisa, axisb), strict=True))
    if x.shape[-1] != 3 or y.shape[-1] != 3:
        flat = x.shape[-1] == y.shape[-1] == 2
        raise ShapeError(
            f"mnp.cross cannot take {x.type.short()} and {y.type.short()}.",
            where=here(),
            why="a vector has three components",
            fix="a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]" if flat else "axis= names the dim of the components",
        )
    stack_ = common_shape("mnp.cross", *(basic.zeros(v.type.with_(shape=v.shape[:-1], sharding=None)) for v in (x, y)))
    x, y = (broadcast(v, (*stack_, 3)) for v in (x, y))

    def part(v: Value, n: int) -> Any:
        return basic.reshape(cut(v, v.ndim - 1, n, n + 1), shape=stack_)

    def minor(i: int, j: int) -> Value:
        return subtract(multiply(part(x, i), part(y, j)), multiply(part(x, j), part(y, i)))

    return moveaxis(stack([minor(1, 2), minor(2, 0), minor(0, 1)], -1), -1, axisc)


def matrix_power(a: ArrayLike, n: int) -> Value:
    """A square matrix multiplied by itself ``n`` times."""
    x, n = value(a), static_int(n, "n of matrix_power")
    if n < 0 or x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeError(
            f"matrix_power cannot take {x.type.short()} to the power {n}.",
            where=here(),
            why="it multiplies square matrices; an inverse is not computed",
            fix="n=2 of an array whose last two dims are equal",
        )
    if n == 0:
        return broadcast(eye(x.shape[-1], dtype=x.type.dtype), x.shape)
    power, out = x, None
    while n:
        if n & 1:
            out = power if out is None else matmul(out, power)
        n >>= 1
        power = matmul(power, power) if n else power
    return out  # type: ignore[return-value]
