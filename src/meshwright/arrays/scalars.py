"""Integers and truth values of rank 0, computed as Python's own: what a kernel does with indices.

Going through arrays costs some ten times as much. Only while ``state.active``, which a running kernel sets: results are
shared between those who compute the same number, and nobody donates them there.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.trace import Array
from meshwright.core.trace import state as tracing
from meshwright.core.types import TensorType


class _ScalarState(threading.local):
    active = False
    compiling = False  # whether functions that are called often may be compiled


state = _ScalarState()

INDEX = TensorType((), dtypes.INT32)
_LIMIT = 1 << 31
_TRUTH = {value: Array(np.asarray(value), TensorType((), dtypes.BOOL)) for value in (False, True)}
_small: dict[int, Array] = {}


def _remainder(a: int, b: int) -> int:
    """With the sign of ``a``; out of range, and so left to arrays, by zero."""
    return (a % b if a >= 0 else -(-a % b)) if b > 0 else _LIMIT


_NUMBERS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "rem": _remainder,
    "maximum": max,
    "minimum": min,
}
_TESTS: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def small(value: int) -> Array:
    """An int32, the same object each time for small ones."""
    found = _small.get(value)
    if found is None:
        found = Array(np.asarray(value, np.int32), INDEX)
        if -1024 <= value <= 65536:
            _small[value] = found
    return found


def of_two(name: str, x: Any, y: Any) -> Array | None:
    """An op of two integers, at least one of them an array; None where it is not that simple."""
    number = _NUMBERS.get(name)
    test = None if number is not None else _TESTS.get(name)
    if (number is None and test is None) or tracing.builder is not None:
        return None
    if x.__class__ is not int:
        if x.__class__ is not Array or x.type is not INDEX:
            return None
        x = int(x._data if x._data.__class__ is np.ndarray else x.data)
    elif not -_LIMIT <= x < _LIMIT:
        return None
    if y.__class__ is not int:
        if y.__class__ is not Array or y.type is not INDEX:
            return None
        y = int(y._data if y._data.__class__ is np.ndarray else y.data)
    elif not -_LIMIT <= y < _LIMIT:
        return None
    if test is not None:
        return _TRUTH[test(x, y)]
    assert number is not None
    found = number(x, y)
    return small(found) if -_LIMIT <= found < _LIMIT else None
