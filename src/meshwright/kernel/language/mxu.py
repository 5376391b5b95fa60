"""The matrix units of a core, step by step: right sides are pushed and loaded, left sides multiplied, sums popped."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import meshwright.numpy as mnp
from meshwright.core import dtypes
from meshwright.core.source import here
from meshwright.core.trace import Array
from meshwright.core.types import TensorType
from meshwright.kernel.language.refs import Ref, fitted, load, store
from meshwright.kernel.language.spaces import ACC
from meshwright.kernel.run.faults import KernelError
from meshwright.kernel.run.tasks import current


@dataclass
class MatrixUnit:
    """One unit: staged right sides, the one in use, sums by address, and results in order."""

    staged: dict[int, Any] = field(default_factory=dict)
    loaded: Any = None
    sums: dict[int, Any] = field(default_factory=dict)
    results: deque[Any] = field(default_factory=deque)


def _unit(what: str, index: int) -> MatrixUnit:
    found: MatrixUnit = current(what).units.setdefault(int(index), MatrixUnit())
    return found


def matmul_push_rhs(rhs: Any, staging_register: int, mxu_index: int, *, transpose: bool = False) -> None:
    """Put a right side into a staging register of a unit."""
    unit = _unit("matmul_push_rhs", mxu_index)
    if staging_register in unit.staged:
        raise KernelError(
            f"A right side is pushed to staging register {staging_register} of unit {mxu_index}, which holds one.",
            where=here(),
            why="what is staged must be loaded before the register is used again",
            fix=f"pltpu.matmul_acc_lhs(…, load_staged_rhs={staging_register}) before it, or another register",
        )
    unit.staged[staging_register] = rhs.T if transpose else rhs


def _multiplied(unit: MatrixUnit, lhs: Any, load_staged_rhs: int | None) -> Any:
    if load_staged_rhs is not None:
        if load_staged_rhs not in unit.staged:
            raise KernelError(
                f"A right side is loaded from staging register {load_staged_rhs}, which holds none.",
                where=here(),
                why="it must be pushed first, and is gone once it is loaded",
                fix=f"pltpu.matmul_push_rhs(rhs, {load_staged_rhs}, mxu_index)",
            )
        unit.loaded = unit.staged.pop(load_staged_rhs)
    if unit.loaded is None:
        raise KernelError(
            "A left side is multiplied, and no right side is loaded.",
            where=here(),
            why="a unit multiplies by the right side that was loaded last",
            fix="load_staged_rhs=0, after pltpu.matmul_push_rhs(rhs, 0, mxu_index)",
        )
    kind = dtypes.INT32 if lhs.dtype.kind in "iu" else dtypes.FLOAT32
    return mnp.matmul(lhs, unit.loaded, preferred_element_type=kind)


def matmul_acc_lhs(acc: Any, lhs: Any, mxu_index: int | None = None, load_staged_rhs: int | None = None) -> None:
    """Add ``lhs`` times the loaded right side to an accumulator: an address in a unit, or a ref to ``pltpu.ACC(…)``.

    A ref says which unit: ``matmul_acc_lhs(acc, lhs, load_staged_rhs)``.

    >>> import meshwright as mw
    >>> from meshwright import pallas as pl
    >>> from meshwright.pallas import tpu as pltpu
    >>> def kernel(x_ref, y_ref, out_ref, acc):
    ...     pltpu.matmul_push_rhs(y_ref[...], 0, 0)
    ...     pltpu.matmul_acc_lhs(acc, x_ref[...], 0)
    ...     pltpu.matmul_acc_lhs(acc, x_ref[...])
    ...     out_ref[...] = pltpu.matmul_pop(acc)
    >>> call = pl.pallas_call(kernel, mw.ShapeDtypeStruct((2, 2), mnp.float32),
    ...                       scratch_shapes=[pltpu.ACC(0)((2, 2), mnp.float32)])
    >>> call(mnp.ones((2, 2)), mnp.eye(2))[0]
    Array([2., 2.], dtype=float32)
    """
    if isinstance(acc, Ref):
        if load_staged_rhs is None:
            load_staged_rhs, mxu_index = mxu_index, None
        space = acc.buffer.space
        unit = _unit("matmul_acc_lhs", space.mxu_id if isinstance(space, ACC) else mxu_index or 0)
        product = _multiplied(unit, lhs, load_staged_rhs)
        if isinstance(space, ACC):
            acc.data[...] += fitted(product, acc.shape, acc.dtype, acc.buffer.label)
        else:
            store(acc, ..., load(acc, ...) + product)
        return
    unit = _unit("matmul_acc_lhs", _index(mxu_index))
    product = _multiplied(unit, lhs, load_staged_rhs)
    unit.sums[int(acc)] = product if int(acc) not in unit.sums else unit.sums[int(acc)] + product


def matmul_pop(acc: Any, shape: Any = None, dtype: Any = None, mxu_index: int | None = None) -> Any:
    """The sum in an accumulator, which is zero afterwards."""
    if isinstance(acc, Ref) and isinstance(acc.buffer.space, ACC):
        taken = acc.data.copy()
        acc.data[...] = 0
        return Array(taken, TensorType(taken.shape, taken.dtype))
    if isinstance(acc, Ref):
        found = load(acc, ...)
        store(acc, ..., mnp.zeros(acc.shape, acc.dtype))
        return found
    found = _unit("matmul_pop", _index(mxu_index)).sums.pop(int(acc), None)
    return mnp.zeros(shape, dtype) if found is None else _as_asked(found, shape, dtype)


def matmul_lhs_fifo(lhs: Any, mxu_index: int, *, load_staged_rhs: int | None = None) -> None:
    """Queue ``lhs`` times the loaded right side."""
    unit = _unit("matmul_lhs_fifo", mxu_index)
    unit.results.append(_multiplied(unit, lhs, load_staged_rhs))


def matmul_pop_fifo(shape: Any, dtype: Any, mxu_index: int) -> Any:
    """The oldest product in the queue of a unit."""
    results = _unit("matmul_pop_fifo", mxu_index).results
    if not results:
        raise KernelError(
            f"A product is taken from unit {mxu_index}, which has none.",
            where=here(),
            why="each product is queued once and taken once",
            fix="pltpu.matmul_lhs_fifo(lhs, mxu_index, load_staged_rhs=0) before it",
        )
    return _as_asked(results.popleft(), shape, dtype)


def _as_asked(found: Any, shape: Any, dtype: Any) -> Any:
    if tuple(found.shape) != tuple(shape):
        raise KernelError(
            f"A product of shape {tuple(found.shape)} is taken as {tuple(shape)}.",
            where=here(),
            why="it has the rows of the left side and the columns of the right side",
            fix=f"{tuple(found.shape)}",
        )
    return found.astype(dtypes.as_dtype(dtype))


def _index(mxu_index: int | None) -> int:
    if mxu_index is None:
        raise KernelError(
            "An accumulator is named by its address, without a unit.",
            where=here(),
            why="each matrix unit has accumulators of its own",
            fix="mxu_index=0",
        )
    return mxu_index


def require_spent(units: dict[int, MatrixUnit], where: str) -> None:
    """Refuse to leave products and right sides in the units when a kernel ends."""
    for index, unit in units.items():
        what = (
            "staged right sides" if unit.staged else "sums" if unit.sums else "queued products" if unit.results else ""
        )
        if what:
            raise KernelError(
                f"Matrix unit {index} is left with {what} when the kernel ends.",
                where=where,
                why="the next kernel would find them there",
                fix="pltpu.matmul_pop(…) for each sum, load_staged_rhs=… for each right side that was pushed",
            )
