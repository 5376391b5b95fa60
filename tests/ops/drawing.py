"""Operands to test ops with: a ``Sample`` and a dtype become the same arrays in every run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any
from zlib import crc32

import ml_dtypes
import numpy as np

from meshwright.core import dtypes
from meshwright.core.dtypes import DType
from meshwright.core.op import Operand, Sample

Arrays = list[np.ndarray[Any, Any]]


def rng(*key: object) -> np.random.Generator:
    """A generator that depends on ``key`` and nothing else."""
    return np.random.default_rng(crc32(repr(key).encode()))


def draw_operand(generator: np.random.Generator, operand: Operand, dtype: DType | None) -> np.ndarray[Any, Any]:
    """An array of the operand's shape with values in its range, its own dtype before ``dtype``."""
    wanted = operand.dtype or dtype
    assert wanted is not None
    shape, low, high = operand.shape, operand.low, operand.high
    if wanted == dtypes.BOOL:
        return generator.integers(0, 2, shape).astype(bool)
    if dtypes.is_integer(wanted):
        info = np.iinfo(wanted)
        first, last = max(int(np.ceil(low)), int(info.min)), min(int(np.floor(high)), int(info.max))
        return generator.integers(first, max(first, last), shape, endpoint=True).astype(wanted)
    if dtypes.is_complex(wanted):
        values = generator.uniform(low, high, shape) + 1j * generator.uniform(low, high, shape)
        return np.asarray(values).astype(wanted)
    return np.asarray(generator.uniform(low, high, shape)).astype(wanted)


def draw(sample: Sample, dtype: DType | None, *key: object) -> Arrays:
    """The operands of a call, which no one may write to; another ``key`` gives other values."""
    generator = rng(*key)
    arrays = [draw_operand(generator, operand, dtype) for operand in sample.operands]
    arrays = [np.array(x) for x in sample.prepare(arrays)] if sample.prepare else arrays
    for x in arrays:
        x.flags.writeable = False
    return arrays


def strided(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An equal array whose elements lie backward and apart in memory."""
    spread = np.zeros([2 * n for n in reversed(x.shape)], x.dtype).T
    view = spread[(*(slice(None, None, -2) for _ in x.shape), ...)]
    view[...] = x
    view.flags.writeable = False
    return view


def draw_like(array: np.ndarray[Any, Any], *key: object) -> np.ndarray[Any, Any]:
    """A tangent or cotangent for ``array``: its shape and dtype, values of order one."""
    return draw_operand(rng(*key), Operand(array.shape, array.dtype, -1.0, 1.0), None)


def edges(dtype: DType) -> np.ndarray[Any, Any]:
    """The values of a dtype where ops most often go wrong."""
    if dtype == dtypes.BOOL:
        return np.array([False, True])
    if dtypes.is_integer(dtype):
        info = np.iinfo(dtype)
        values = [info.min, info.min + 1, 0, 1, 2, 3, 7, 8, 31, 32, 33, info.max - 1, info.max]
        if info.min < 0:
            values += [-1, -2, -3, -8]
        return np.array(values, dtype)
    if dtypes.is_complex(dtype):
        parts = np.array([0.0, -0.0, 1.0, -1.5, 2.0], dtypes.real_part(dtype))
        return np.array([complex(re, im) for re, im in product(parts.tolist(), repeat=2)], dtype)
    limits = ml_dtypes.finfo(dtype)
    values = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, 2.0, 2.5, -2.5, 3.0, -3.0, 10.0, -10.0]
    values += [np.nan, float(limits.max), float(limits.min), float(limits.smallest_normal)]
    if dtype != dtypes.FLOAT8_E4M3FN:  # which has no infinity
        values += [np.inf, -np.inf]
    return np.array(values, np.float64).astype(dtype)


def edge_operands(sample: Sample, dtype: DType | None) -> Arrays:
    """Flat operands that together hold every combination of edge values."""
    columns = [edges(operand.dtype or dtype) for operand in sample.operands]  # type: ignore[arg-type]
    grids = np.meshgrid(*[np.arange(len(column)) for column in columns], indexing="ij")
    return [column[grid.ravel()] for column, grid in zip(columns, grids, strict=True)]


def stack(items: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Examples as one batch, the batch first."""
    return np.stack([np.asarray(x) for x in items])
