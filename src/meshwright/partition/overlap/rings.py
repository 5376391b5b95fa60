"""Matmuls while their operands or results go round a ring of devices: loops of permutes and partial products.

    gather x along dim, z = x · y                   z = x · y, reduce-scatter z along dim

    repeat N-1 times                                sum = the block of z for the device that is N-1 further
        z, at the block of x at hand = x · y        repeat N-1 times
        x = what the device before has                  sum = what the device before has
    z, at the last block = x · y                        sum += the block of z for the device one nearer

Where the gathered dim is summed over, ``z`` is the sum of the matmuls with the blocks of ``y``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from typing import NamedTuple

import numpy as np

from meshwright.core import dtypes
from meshwright.core.axis_names import axis_part
from meshwright.core.op import Value
from meshwright.core.program import Eqn, Params, Program
from meshwright.core.source import Source
from meshwright.core.trace import Array, Manual, at_source, make_varying, state
from meshwright.core.types import TensorType
from meshwright.ops.basic import add, mul, reshape, transpose, zeros
from meshwright.ops.collective import axis_index, permuted, ppermute
from meshwright.ops.contraction import dot_general, free_dims
from meshwright.ops.elementwise import rem
from meshwright.ops.indexing import dynamic_slice, dynamic_update_slice
from meshwright.transform.regions.region import as_type, region
from meshwright.transform.regions.scan import scan
from meshwright.transform.stack import inline_calls

Product = Callable[[Value, Value, str], Value]  # all_gather(x, columns) @ y, over the devices along an axis


class Around(NamedTuple):
    """The devices of a ring: mesh axes from major to minor, their sizes, and the line that asked for it."""

    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    source: Source | None

    @property
    def size(self) -> int:
        return prod(self.sizes)

    @property
    def permutation(self) -> tuple[tuple[int, int], ...]:
        """Every device sends to the next."""
        return tuple((n, (n + 1) % self.size) for n in range(self.size))

    def position(self) -> Value:
        """The position of a device on the ring."""
        position: Value | None = None
        for axis, size in zip(self.axes, self.sizes, strict=True):
            one = axis_index(axes=(axis,), sizes=(size,))
            position = one if position is None else add(mul(position, size), one)
        return position

    def before(self, position: Value) -> Value:
        """The position before one."""
        return rem(add(position, self.size - 1), self.size)

    def sent(self, x: Value) -> Value:
        """The value of the device before on the ring."""
        with at_source(self.source):
            return ppermute(x, axes=self.axes, sizes=self.sizes, permutation=self.permutation)


class Roles(NamedTuple):
    """The dims that a dim of a matmul's operand is matched with: one of the other operand, of the result, or both."""

    other: int | None
    result: int | None


def roles(eqn: Eqn, operand: int, dim: int) -> Roles:
    """The roles of a dim of an operand of a dot_general."""
    contract, batch = eqn.params["contract"], eqn.params["batch"]
    if dim in contract[operand]:
        return Roles(contract[1 - operand][contract[operand].index(dim)], None)
    if dim in batch[operand]:
        at = batch[operand].index(dim)
        return Roles(batch[1 - operand][at], at)
    free = [free_dims(a.type.ndim, contract[n], batch[n]) for n, a in enumerate(eqn.inputs)]
    return Roles(None, len(batch[0]) + (len(free[0]) if operand else 0) + free[operand].index(dim))


def origins(eqn: Eqn, dim: int) -> tuple[int | None, int | None]:
    """The dims of the operands of a dot_general that a dim of its result comes from."""
    found: list[int | None] = [None, None]
    for operand, atom in enumerate(eqn.inputs):
        for d in range(atom.type.ndim):
            if roles(eqn, operand, d).result == dim:
                found[operand] = d
    return found[0], found[1]


class MatmulOperand(NamedTuple):
    """A matmul that reads what is gathered: the equation, and which of its operands it is."""

    eqn: Eqn
    operand: int

    @property
    def other(self) -> TensorType:
        return self.eqn.inputs[1 - self.operand].type

    @property
    def result(self) -> TensorType:
        return self.eqn.outputs[0].type


def _cut(x: Value, dim: int, block: Value, size: int) -> Value:
    """A block of ``x`` along a dim."""
    sizes = tuple(size if d == dim else n for d, n in enumerate(x.shape))
    return dynamic_slice(x, *_starts(x, dim, block, size), sizes=sizes)


def _put(whole: Value, part: Value, dim: int, block: Value) -> Value:
    """``whole`` with a block along a dim replaced."""
    return dynamic_update_slice(whole, part, *_starts(whole, dim, block, part.shape[dim]))


def _starts(x: Value, dim: int, block: Value, size: int) -> list[Value]:
    zero = Array(np.zeros((), np.int32), TensorType((), np.dtype("int32")))
    return [mul(block, size) if d == dim else zero for d in range(x.ndim)]


def _traced(function: Callable[..., list[Value]], types: Sequence[TensorType], source: Source | None) -> Program:
    """The program of a function whose equations are all from one line."""

    def here(*values: Value) -> list[Value]:
        with at_source(source):
            return function(*values)

    return region(here, types)


def _loop(step: Callable[..., list[Value]], consts: Sequence[Value], start: Sequence[Value], times: int) -> list[Value]:
    """``step(*consts, *carry)`` repeated."""
    types = [x.type for x in start]

    def body(*values: Value) -> list[Value]:
        return [as_type(x, t) for x, t in zip(step(*values), types, strict=True)]

    inner = _traced(body, [*(x.type for x in consts), *types], state.source)
    return list(scan(*consts, *start, body=inner, consts=len(consts), carry=len(start), length=times, reverse=False))


def gather_ring(
    around: Around, shard: TensorType, dim: int, uses: Sequence[MatmulOperand], wholes: Sequence[TensorType]
) -> Program:
    """From a shard and the other operands of the matmuls: the matmuls with all shards, joined along ``dim``.

    After them come the shards themselves, joined, once for each type in ``wholes``.
    """
    size = shard.shape[dim]
    targets = [use.result.with_(dtype=_wide(use, dim), weak=False) for use in uses]

    def multiplied(x: Value, block: Value, others: Sequence[Value], sums: Sequence[Value]) -> list[Value]:
        found = []
        for use, other, sum_ in zip(uses, others, sums, strict=False):
            role = roles(use.eqn, use.operand, dim)
            y = other if role.other is None else _cut(other, role.other, block, size)
            part = dot_general(*((y, x) if use.operand else (x, y)), **{**use.eqn.params, "dtype": sum_.dtype})
            found.append(add(sum_, part) if role.result is None else _put(sum_, part, role.result, block))
        return [*found, *(_put(whole, x, dim, block) for whole in sums[len(uses) :])]

    def step(*values: Value) -> list[Value]:
        others, (x, block, *sums) = values[: len(uses)], values[len(uses) :]
        return [around.sent(x), around.before(block), *multiplied(x, block, others, sums)]

    def function(x: Value, *others: Value) -> list[Value]:
        sums = [zeros(t) for t in targets]
        if wholes:
            shape = (*shard.shape[:dim], around.size * size, *shard.shape[dim + 1 :])
            sums.append(zeros(shard.with_(shape=shape, weak=False)))
        x, block, *sums = _loop(step, others, [x, around.position(), *sums], around.size - 1)
        outs = multiplied(x, block, others, sums)
        found = [as_type(out, use.result) for out, use in zip(outs, uses, strict=False)]
        return found + [as_type(outs[-1], t) for t in wholes]

    return _traced(function, [shard, *(use.other for use in uses)], uses[0].eqn.source)


def _wide(use: MatmulOperand, dim: int) -> dtypes.DType:
    """The dtype to sum partial products in: short floats are rounded once, at the end, as in one matmul."""
    result = use.result.dtype
    summed = roles(use.eqn, use.operand, dim).result is None
    return dtypes.FLOAT32 if summed and dtypes.is_float(result) and result.itemsize < 4 else result


def scatter_ring(around: Around, matmuls: Sequence[Eqn], dim: int, result: TensorType) -> Program:
    """From the operands of matmuls, what a reduce-scatter of their sum along ``dim`` leaves on each device."""
    size = result.shape[dim]

    def part(operands: Sequence[Value], block: Value) -> Value:
        parts = []
        for n, eqn in enumerate(matmuls):
            pair = zip(operands[2 * n : 2 * n + 2], origins(eqn, dim), strict=True)
            parts.append(dot_general(*(x if d is None else _cut(x, d, block, size) for x, d in pair), **eqn.params))
        return reduce(add, parts)

    def step(*values: Value) -> list[Value]:
        operands, total, block = values[:-2], values[-2], around.before(values[-1])
        return [add(around.sent(total), part(operands, block)), block]

    def function(*operands: Value) -> list[Value]:
        block = around.before(around.position())
        total, _ = _loop(step, operands, [part(operands, block), block], around.size - 1)
        return [as_type(total, result)]

    return _traced(function, [a.type for eqn in matmuls for a in eqn.inputs], matmuls[0].source)


def _shaped(x: Value, shape: tuple[int, ...]) -> Value:
    return x if x.shape == shape else reshape(x, shape=shape)


def kernel_takes(use: MatmulOperand, dim: int, around: Around, mesh: Sequence[str]) -> bool:
    """Whether a kernel for ``all_gather(x, columns) @ y`` can be a matmul: one of matrices along one whole axis."""
    params: Params = use.eqn.params
    same = len({use.result.dtype, *(a.type.dtype for a in use.eqn.inputs)}) == 1
    along = len(around.axes) == 1 and axis_part(around.axes[0]) is None and sorted(use.result.varying) == sorted(mesh)
    return same and along and dim in params["contract"][use.operand] and not params["batch"][0]


def kernel_call(
    around: Around, shard: TensorType, dim: int, use: MatmulOperand, kernel: Product, mesh: Sequence[tuple[str, int]]
) -> Program:
    """From a shard and the other operand, the matmul by a kernel for ``all_gather(x, columns) @ y``."""
    contract = use.eqn.params["contract"]
    # The dim that is gathered comes first of those that are summed over: the columns of a device stand together.
    pairs = list(zip(contract[use.operand], contract[1 - use.operand], strict=True))
    pairs.sort(key=lambda pair: pair[0] != dim)
    free = free_dims(shard.ndim, contract[use.operand]), free_dims(use.other.ndim, contract[1 - use.operand])

    def function(x: Value, y: Value) -> list[Value]:
        assert state.builder is not None
        levels = dict.fromkeys([axis for axis, _ in mesh], state.builder.level)
        before, state.manual = state.manual, Manual(None, dict(mesh), levels, {}, automatic=True)
        try:
            rows = [prod(v.shape[d] for d in dims) for v, dims in zip((x, y), free, strict=True)]
            left = permuted(make_varying(x, use.result.varying), (*free[0], *(d for d, _ in pairs)))
            right = permuted(make_varying(y, use.result.varying), (*(e for _, e in pairs), *free[1]))
            out = kernel(
                _shaped(left, (rows[0], left.size // rows[0])),
                _shaped(right, (right.size // rows[1], rows[1])),
                around.axes[0],
            )
        finally:
            state.manual = before
        if use.operand:  # rows are those of the right
            out = transpose(out, permutation=(1, 0))
        return [as_type(_shaped(out, use.result.shape), use.result)]

    return inline_calls(_traced(function, [shard, use.other], use.eqn.source), shard_maps=False)
