"""Functions of arrays that a running kernel calls again and again: what is called often is compiled.

The steps of a grid call the same functions on arrays of the same types. Such a call is traced once, and the program's
function of NumPy arrays is kept under the function, the types and what else it was given; then it costs little more
than NumPy does. Only while ``scalars.state.compiling``: not where ops are watched, one by one, as on a clock.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import wraps
from math import copysign
from typing import Any, TypeVar

import numpy as np

from meshwright.arrays import scalars
from meshwright.core import dtypes
from meshwright.core.op import Op
from meshwright.core.program import Program
from meshwright.core.trace import Array, close, trace
from meshwright.core.trace import state as tracing
from meshwright.engine.compile import compile_program
from meshwright.engine.namespace import NUMPY
from meshwright.errors import MeshwrightError

_OFTEN = 3  # calls after which a function is compiled
_MOST_KEPT = 4096
_CONSTANT_BYTES = 1 << 26  # of results without operands, which are kept themselves

F = TypeVar("F", bound=Callable[..., Any])
# By a function and what it is given: how often it was called so; then the function of a program and the type of its
# result, or the result itself where it has no operands; None where it is not compiled.
_kept: dict[Any, Any] = {}
_programs: list[Program] = []  # whose functions are in use
# The same, of an op and two arrays: by the function, the op, the types of both and whether numbers are wide.
_pairs: dict[Any, Any] = {}

# Classes of what is known before a function runs, and says what it computes.
STATIC: set[Any] = {bool, int, str, tuple, type, type(None)}
LASTING: set[Any] = {Op}  # and those of what lives for ever


def _static(kind: Any) -> bool:
    """Whether a class is one of these."""
    if not issubclass(kind, type | np.dtype | Enum):
        return False
    STATIC.add(kind)
    return True


def compiled_in_kernels(function: F) -> F:
    """A function of arrays and of what is known before it runs, compiled for the types that a kernel calls it with."""

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        if not scalars.state.compiling or tracing.builder is not None:
            return function(*args, **named)
        if len(args) == 2 and not named:  # as below, in fewer steps
            first, x = args
            if x.__class__ is Array and x._data.__class__ is np.ndarray and x._sharding is None:
                if first.__class__ is Op:
                    found = _kept.get((function, dtypes.config._enable_x64, id(first), x.type))
                    if found.__class__ is tuple:
                        return Array(found[0](x._data)[0], found[1])
                elif first.__class__ is Array and first._data.__class__ is np.ndarray and first._sharding is None:
                    found = _kept.get((function, dtypes.config._enable_x64, first.type, x.type))
                    if found.__class__ is tuple:
                        return Array(found[0](first._data, x._data)[0], found[1])
        data: list[Any] = []
        parts: list[Any] = [function, dtypes.config._enable_x64]
        for x in args:
            kind = x.__class__
            if kind is Array:
                raw = x._data
                if raw.__class__ is not np.ndarray or x._sharding is not None:
                    return function(*args, **named)
                data.append(raw)
                parts.append(x.type)
            elif kind in STATIC:
                parts.append((kind, x))
            elif kind in LASTING:
                parts.append(id(x))
            elif kind is float:
                parts.append((x, copysign(1.0, x)))
            elif _static(kind):
                parts.append((kind, x))
            else:
                return function(*args, **named)
        for name, x in named.items():
            kind = x.__class__
            if kind not in STATIC and not _static(kind):
                return function(*args, **named)
            parts.append((name, kind, x))
        key = tuple(parts)
        try:
            found = _kept.get(key, 0)
        except TypeError:  # a tuple of arrays
            return function(*args, **named)
        if found.__class__ is tuple:
            return Array(found[0](*data)[0], found[1])
        if found.__class__ is int:
            return _count(key, found, function, args, named)
        return function(*args, **named) if found is None else found

    return call  # type: ignore[return-value]


def of_pair(function: Any, op: Op, x: Array, y: Array) -> Array | None:
    """What a compiled function makes of an op and two arrays; None where it is not compiled.

    As what `compiled_in_kernels` gives, in fewer steps: operators are what kernels use most.
    """
    a, b = x._data, y._data
    found = _pairs.get((function, id(op), x.type, y.type, dtypes.config._enable_x64))
    if found is None or not scalars.state.compiling or tracing.builder is not None:
        return None
    if a.__class__ is not np.ndarray or b.__class__ is not np.ndarray or not (x._sharding is y._sharding is None):
        return None
    return Array(found[0](a, b)[0], found[1])


def _count(key: Any, count: int, function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """``function(*args, **named)``, not compiled yet; the last such call compiles it, or notes that it cannot be."""
    result = function(*args, **named)
    if len(_kept) >= _MOST_KEPT:
        _kept.clear()
        _pairs.clear()
        _programs.clear()
    _kept[key] = count + 1
    if count + 1 < _OFTEN or result.__class__ is not Array:
        return result
    _kept[key] = None
    arrays = [x for x in args if x.__class__ is Array]
    if not arrays:
        kept = sum(x.data.nbytes for x in _kept.values() if x.__class__ is Array)
        if kept + result.data.nbytes <= _CONSTANT_BYTES:
            _kept[key] = Array(np.ascontiguousarray(result.data).reshape(result.shape), result.type)
        return result

    def on_arrays(*tracers: Any) -> tuple[Any]:
        left = iter(tracers)
        return (function(*(next(left) if x.__class__ is Array else x for x in args), **named),)

    try:
        program = close(*trace(on_arrays, [x.type for x in arrays]))
        (out,) = program.outputs
        if out.type is result.type and len(program.inputs) == len(arrays):
            # In a kernel NumPy does not warn; a function that sees to it itself is needed for scalars alone.
            made = _kept[key] = (NUMPY.function if result.ndim else compile_program)(program), result.type
            _programs.append(program)
            if len(args) == 3 and len(arrays) == 2 and args[0].__class__ is Op and not named:
                _pairs[(function, id(args[0]), args[1].type, args[2].type, key[1])] = made
    except MeshwrightError:  # it asks for a number, which a trace does not have
        pass
    return result
