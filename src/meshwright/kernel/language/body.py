"""What a kernel's body says beside loads, stores and copies."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ContextDecorator, contextmanager
from functools import partial
from typing import Any

import numpy as np

from meshwright.api.direct import integer
from meshwright.core import tree
from meshwright.core.source import here
from meshwright.core.trace import Array, to_array
from meshwright.core.types import TensorType
from meshwright.kernel.language.indexing import Slice, as_int
from meshwright.kernel.language.refs import Ref, load, store
from meshwright.kernel.language.semaphores import SemaphoreRef
from meshwright.kernel.language.spaces import MemoryType, Semaphores, SemaphoreType
from meshwright.kernel.run.faults import CopyError, KernelError
from meshwright.kernel.run.tasks import KernelTask, current


def program_id(axis: int) -> Any:
    """The index of the grid step along a grid axis, in the innermost pipeline.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> from meshwright import pallas as pl
    >>> def kernel(out_ref):
    ...     out_ref[0] = pl.program_id(0)
    >>> one = pl.BlockSpec((1,), lambda i: (i,))
    >>> pl.pallas_call(kernel, mw.ShapeDtypeStruct((3,), mnp.int32), grid=(3,), out_specs=one)()
    Array([0, 1, 2], dtype=int32)
    """
    return integer(_grid("program_id", axis)[0][axis])


def num_programs(axis: int) -> Any:
    """The size of the grid along an axis, in the innermost pipeline."""
    return integer(_grid("num_programs", axis)[1][axis])


def _grid(what: str, axis: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    task = current(what)
    grid = task.grids[-1] if task.grids else ((), ())
    if not 0 <= axis < len(grid[0]):
        raise KernelError(
            f"{what}({axis}) is asked of a grid of {len(grid[0])} axes.",
            where=here(),
            why=f"the innermost grid is {grid[1]}",
            fix="pl.pallas_call(…, grid=(…)) with one size per axis",
        )
    return grid


def when(condition: Any) -> Callable[[Callable[[], Any]], None]:
    """Run the decorated function now, if the condition holds.

    >>> @when(1 + 1 == 2)
    ... def _():
    ...     print("so it is")
    so it is
    """
    hold = bool(condition.data) if condition.__class__ is Array and not condition.ndim else bool(condition)

    def decorate(function: Callable[[], Any]) -> None:
        if hold:
            function()

    return decorate


def loop(
    lower: Any, upper: Any, *, init_carry: Any = None, step: Any = 1, unroll: Any = None
) -> Callable[[Callable[..., Any]], Any]:
    """Run the decorated function for each index from ``lower`` to ``upper``.

    With ``init_carry`` it is given what it returned the time before, too, and its name is what it returned at last.

    >>> @loop(0, 3)
    ... def _(i):
    ...     print(i)
    0
    1
    2
    """
    indices = range(as_int(lower), as_int(upper), as_int(step))

    def decorate(function: Callable[..., Any]) -> Any:
        if init_carry is None:
            for i in indices:
                function(integer(i))
            return None
        carry = init_carry
        for i in indices:
            carry = function(integer(i), carry)
        return carry

    return decorate


def multiple_of(x: Any, values: int | Any) -> Any:
    """``x``, which must be a multiple of ``values``: a promise, held to.

    >>> multiple_of(256, 128)
    256
    """
    for value in values if isinstance(values, tuple | list) else (values,):
        data = np.asarray(x)
        if (data % value).any():
            raise KernelError(
                f"{data} is promised to be a multiple of {value}.",
                where=here(),
                why="memory is addressed by that promise",
                fix=f"pl.multiple_of(n * {value}, {value})",
            )
    return x


def run_scoped(function: Callable[..., Any], *types: Any, **named: Any) -> Any:
    """Call ``function`` with memory and semaphores that live while it runs, and return what it returns.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> from meshwright import pallas as pl
    >>> from meshwright.pallas import tpu as pltpu
    >>> def kernel(x_ref, out_ref):
    ...     def twice(scratch):
    ...         scratch[...] = x_ref[...] * 2
    ...         out_ref[...] = scratch[...]
    ...     pl.run_scoped(twice, pltpu.VMEM((2,), mnp.float32))
    >>> pl.pallas_call(kernel, mw.ShapeDtypeStruct((2,), mnp.float32))(mnp.array([1.0, 2.0]))
    Array([2., 4.], dtype=float32)
    """
    task = current("run_scoped")
    made: list[Any] = []

    def refs(wanted: Any, name: str) -> Any:
        return tree.map(lambda leaf: _scoped(task, leaf, name, made), wanted)

    names = [*parameter_names(function), *(f"scoped memory {n}" for n in range(len(types)))]
    args = [refs(wanted, name) for wanted, name in zip(types, names, strict=False)]
    kwargs = {name: refs(wanted, name) for name, wanted in named.items()}
    result = function(*args, **kwargs)
    close_scope(task, made)
    return result


def mismatch(function: Callable[..., Any], args: Sequence[Any], named: dict[str, Any] | None = None) -> str:
    """Why a function cannot be called with these arguments, or nothing if it can."""
    try:
        inspect.signature(function).bind(*args, **named or {})
    except TypeError as error:
        return str(error)
    except ValueError:  # a partial whose own arguments do not fit, or a function without a signature
        if isinstance(function, partial):
            return mismatch(function.func, [*function.args, *args], {**function.keywords, **(named or {})})
    return ""


def named_too(function: Callable[..., Any]) -> str:
    """The parameters that a partial function has been given by name, as they are written in its definition."""
    return f", *, {', '.join(function.keywords)}" if isinstance(function, partial) and function.keywords else ""


def parameter_names(function: Callable[..., Any]) -> list[str]:
    """What a function calls its arguments, where it names them one by one."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _scoped(task: KernelTask, wanted: Any, name: str, made: list[Any]) -> Any:
    if isinstance(wanted, MemoryType) and not wanted.memory_space.of_core:
        raise KernelError(
            f"run_scoped is asked for {wanted}.",
            where=here(),
            why="main memory is allocated before a kernel starts",
            fix="make it an output of the call: out_shape=[…], out_specs=pl.BlockSpec(memory_space=pl.ANY)",
        )
    return scoped(task, wanted, name, made)


def scoped(task: KernelTask, wanted: Any, name: str, made: list[Any]) -> Ref | SemaphoreRef:
    """Memory at the next free address of a task; ``made`` is what to give back."""
    if isinstance(wanted, SemaphoreType):
        wanted = Semaphores(wanted)
    if not isinstance(wanted, MemoryType | Semaphores):
        raise KernelError(
            f"Scratch memory is asked for with {wanted!r}.",
            where=here(),
            why="it needs a memory space, a shape and a dtype",
            fix="pltpu.VMEM((8, 128), mnp.float32), or pltpu.SemaphoreType.DMA",
        )
    found = task.machine.allocate(task, ("scoped", len(task.scopes)), name, wanted)
    task.scopes.append(found)
    made.append(found)
    return SemaphoreRef(found) if isinstance(wanted, Semaphores) else Ref(found)


def close_scope(task: KernelTask, made: list[Any]) -> None:
    """Give back memory, the last first."""
    for found in reversed(made):
        task.machine.free(task, found)
        task.scopes.pop()


class trace(ContextDecorator):
    """Name what happens inside, for timelines: ``with pltpu.trace("dots"):``, or as a decorator."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> trace:
        task = current("trace")
        task.machine.clock.charge_compute(task)
        task.regions.append(self.name)
        return self

    def __exit__(self, *exc: object) -> None:
        task = current("trace")
        task.machine.clock.charge_compute(task)
        task.regions.pop()


def masked_load(ref: Ref, idx: Any = ..., *, mask: Any = None, other: Any = None) -> Array:
    """``ref[idx]``; where ``mask`` is false, ``other`` (zero), and memory there is not read."""
    if mask is None:
        return load(ref, idx)
    places, allowed = _lanes(ref, idx, mask)
    data = np.zeros(allowed.shape, ref.dtype)
    if other is not None:
        given = to_array(other)
        if given.dtype != data.dtype and not given.type.weak:
            raise CopyError(
                f"other is of {given.dtype.name}, what is loaded of {data.dtype.name}.",
                where=here(),
                why="a load does not convert",
                fix=f"other.astype('{data.dtype.name}')",
            )
        data[...] = _spread("other", given.data, data.shape)  # type: ignore[attr-defined]
    if allowed.any():
        data[allowed] = load(ref, tuple(place[allowed] for place in places)).data
    return Array(data, TensorType(data.shape, data.dtype))


def masked_store(ref: Ref, idx: Any, val: Any, *, mask: Any = None) -> None:
    """``ref[idx] = val``; where ``mask`` is false, nothing is written."""
    if mask is None:
        store(ref, idx, val)
        return
    places, allowed = _lanes(ref, idx, mask)
    if allowed.any():
        array = to_array(val)
        data = _spread("The value", array.data, allowed.shape)[allowed]  # type: ignore[attr-defined]
        store(
            ref,
            tuple(place[allowed] for place in places),
            Array(data, TensorType(data.shape, data.dtype, array.type.weak)),
        )


def _lanes(ref: Ref, idx: Any, mask: Any) -> tuple[list[Any], Any]:
    """Per dim of the ref the index of every element that ``idx`` selects, and which of them the mask allows."""
    keys = list(idx) if isinstance(idx, tuple) else [idx]
    if Ellipsis in keys:
        n = keys.index(Ellipsis)
        keys[n : n + 1] = [slice(None)] * (ref.ndim - len(keys) + 1)
    keys += [slice(None)] * (ref.ndim - len(keys))
    columns: list[Any] = []
    for key, size in zip(keys, ref.shape, strict=True):
        if isinstance(key, Slice):
            columns.append(as_int(key.start) + key.stride * np.arange(key.size))
        elif isinstance(key, slice):
            columns.append(np.arange(size)[key])
        else:
            columns.append(np.asarray(as_int(key)))
    rank = sum(column.ndim for column in columns)
    places, dim = [], 0
    for column in columns:
        if column.ndim:
            column = column.reshape([-1 if n == dim else 1 for n in range(rank)])
            dim += 1
        places.append(column)
    shape = np.broadcast_shapes(*(place.shape for place in places))
    allowed = np.asarray(mask)
    if allowed.dtype != np.bool_:
        raise CopyError(
            f"The mask of a load or a store is of {allowed.dtype.name}.",
            where=here(),
            why="it says of each element yes or no",
            fix="mask=mask != 0",
        )
    return [np.broadcast_to(place, shape) for place in places], _spread("The mask", allowed, shape)


def _spread(what: str, data: Any, shape: tuple[int, ...]) -> Any:
    """``data`` in a larger shape, for a load or a store under a mask."""
    try:
        return np.broadcast_to(data, shape)
    except ValueError:
        raise CopyError(
            f"{what} of a load or a store has shape {np.shape(data)}; {shape} is selected.",
            where=here(),
            why="it has one element for each that is selected, or is broadcast to them",
            fix=f"mnp.broadcast_to(…, {shape})",
        ) from None


def load_whole(ref: Ref, *, mask: Any = None) -> Array:
    """``ref[...]``; where ``mask`` is false memory is not read, and the value is arbitrary: zero."""
    return masked_load(ref, ..., mask=mask)


def store_whole(ref: Ref, val: Any, *, mask: Any = None) -> None:
    """``ref[...] = val``; where ``mask`` is false nothing is written."""
    masked_store(ref, ..., val, mask=mask)


def with_scoped(*types: Any, collective_axes: Any = (), **named: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: the function is called with memory that lives while it runs, after its own arguments.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> from meshwright import pallas as pl
    >>> from meshwright.pallas import tpu as pltpu
    >>> def kernel(x_ref, out_ref):
    ...     @pl.with_scoped(pltpu.VMEM((2,), mnp.float32))
    ...     def twice(factor, scratch):
    ...         scratch[...] = x_ref[...] * factor
    ...         out_ref[...] = scratch[...]
    ...     twice(3)
    >>> pl.pallas_call(kernel, mw.ShapeDtypeStruct((2,), mnp.float32))(mnp.array([1.0, 2.0]))
    Array([3., 6.], dtype=float32)
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return run_scoped(lambda *refs, **by_name: function(*args, *refs, **kwargs, **by_name), *types, **named)

        return call

    return decorate


def select_ref(idx: Any, *refs: Any) -> Any:
    """One of several refs, by a number of the kernel."""
    number = as_int(idx)
    if not 0 <= number < len(refs):
        raise KernelError(
            f"select_ref is given {number} to select one of {len(refs)} refs.",
            where=here(),
            why="they are counted from 0",
            fix=f"an index from 0 to {len(refs) - 1}",
        )
    return refs[number]


def touch(ref: Any) -> None:
    """Nothing: a compiler would take it for a read and a write."""


def annotate(ref: Any, **assumptions: bool) -> Any:
    """``ref``: what a compiler may assume of it changes no number."""
    return ref


def has_memory_space(ref: Any, memory_space: Any) -> bool:
    """Whether a ref is in a memory space."""
    return bool(ref.memory_space is memory_space)


def trace_value(label: str, value: Any) -> None:
    """Nothing: a profiler would show the value."""


def cdiv(a: int, b: int) -> int:
    """How many pieces of ``b`` cover ``a``.

    >>> cdiv(7, 4)
    2
    """
    return -(-a // b)


def delay(nanos: Any) -> None:
    """Let time pass on this core."""
    current("delay").time += as_int(nanos) * 1e-9


def debug_print(fmt: str, *values: Any) -> None:
    """Print values of the kernel, with the device they are of: ``debug_print("x = {}", x)``."""
    task = current("debug_print")
    shown = [getattr(getattr(x, "_data", None), "primal", x) for x in values]  # of what is differentiated, the value
    print(f"[{task.name}] {fmt.format(*shown)}")


class _DebugChecks(threading.local):
    """Whether ``debug_check`` looks at its conditions; called, a context in which it does or does not."""

    value = False

    @contextmanager
    def __call__(self, new_val: bool = True) -> Iterator[None]:
        before, self.value = self.value, bool(new_val)
        try:
            yield
        finally:
            self.value = before


enable_debug_checks = _DebugChecks()


@contextmanager
def enable_poison_buffers(new_val: bool = True) -> Iterator[None]:
    """Nothing: memory that nobody wrote is NaN in any case, and with ``pl.Debug()`` what is made of it is an error."""
    yield


def debug_check(condition: Any, message: Any) -> None:
    """Stop the kernel where a condition does not hold, under ``pl.Debug(…)`` or ``pl.enable_debug_checks(True)``.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> from meshwright import pallas as pl
    >>> def halve(x_ref, out_ref):
    ...     pl.debug_check((x_ref[...] % 2 == 0).all(), "an odd number")
    ...     out_ref[...] = x_ref[...] // 2
    >>> call = pl.pallas_call(halve, out_shape=mw.ShapeDtypeStruct((2,), mnp.int32))
    >>> call(mnp.array([3, 4]))
    Array([1, 2], dtype=int32)
    >>> try:
    ...     with pl.enable_debug_checks(True):
    ...         call(mnp.array([3, 4]))
    ... except mw.MeshwrightError as error:
    ...     print(error.what)
    A check fails on device 0: an odd number
    """
    task = current("debug_check")
    if (task.machine.checks or enable_debug_checks.value) and not bool(condition):
        raise KernelError(f"A check fails on {task.name}: {message}", where=here())
