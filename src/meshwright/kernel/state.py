"""Refs outside kernels: arrays that are changed in place, and kernels that change them."""

from __future__ import annotations

from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

import meshwright.numpy as mnp
from meshwright.arrays.tracing import ShapeDtypeStruct, leaf_value
from meshwright.core import dtypes, trace, tree
from meshwright.core.source import here
from meshwright.kernel.call import CompilerParams
from meshwright.kernel.calling import pallas_call
from meshwright.kernel.language.cores import TensorCoreMesh, core_mesh
from meshwright.kernel.language.indexing import Slice
from meshwright.kernel.language.spaces import MemorySpace
from meshwright.kernel.pipeline.blocks import BlockSpec
from meshwright.kernel.run import tasks
from meshwright.kernel.run.faults import KernelError


class StateRef:
    """An array that is read and written by index; a kernel sees it as memory."""

    __slots__ = ("_value", "builder")

    def __init__(self, value: Any) -> None:
        self._value = value
        self.builder = trace.state.builder

    def _require_here(self) -> None:
        if tasks.state.task is not None:
            raise KernelError(
                "A ref of the function around a kernel is used in it.",
                where=here(),
                why="the kernel does not know it as memory of its own",
                fix="use it in the body given to pl.core_map, or pass it to the function that pl.kernel returns",
            )
        if trace.state.builder is not self.builder:
            raise KernelError(
                "A ref is used in a function that is traced, and was made outside of it.",
                where=here(),
                why="the function is run once for many calls: what it stores would be seen by the first alone",
                fix="make it inside: ref = pl.new_ref(x), and return pl.freeze(ref)",
            )

    @property
    def value(self) -> Any:
        """What it holds now."""
        self._require_here()
        return self._value

    @value.setter
    def value(self, value: Any) -> None:
        self._require_here()
        self._value = value

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._value.shape)

    @property
    def dtype(self) -> dtypes.DType:
        return self._value.dtype  # type: ignore[no-any-return]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(self._value.size)

    def __getitem__(self, key: Any) -> Any:
        return self.value[_plain(key)]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.value = self.value.at[_plain(key)].set(value)

    def __repr__(self) -> str:
        return f"<ref to {self.dtype.name}{list(self.shape)}>"


def _plain(key: Any) -> Any:
    """An index of arrays for an index of refs."""
    if isinstance(key, Slice):
        if isinstance(key.start, int):
            return slice(key.start, key.start + (key.size - 1) * key.stride + 1, key.stride)
        return key.start + key.stride * mnp.arange(key.size)
    return tuple(_plain(k) for k in key) if key.__class__ is tuple else key


def new_ref(x: Any) -> StateRef:
    """A ref to a copy of an array.

    >>> ref = new_ref(mnp.zeros(2))
    >>> ref[0] = 3.0
    >>> ref[...]
    Array([3., 0.], dtype=float32)
    """
    return StateRef(leaf_value(x, "the array of a ref"))


def empty_ref(ty: Any) -> StateRef:
    """A ref to an array whose contents are arbitrary, of a shape and a dtype."""
    return new_ref(empty(ty.shape, ty.dtype))


def empty_ref_like(x: Any) -> StateRef:
    """A ref of the shape and the dtype of an array, or of what has them."""
    return empty_ref(x)


def empty(shape: Any, dtype: Any, *, out_sharding: Any = None) -> Any:
    """An array whose contents are arbitrary: NaN, or the largest number of a dtype without it."""
    sizes = tuple(shape) if isinstance(shape, tuple | list) else (int(shape),)
    kind = dtypes.as_dtype(dtype)
    fill = mnp.iinfo(kind).max if kind.kind in "iu" else True if kind.kind == "b" else mnp.nan
    return mnp.full(sizes, fill, kind, out_sharding=out_sharding)


def empty_like(x: Any) -> Any:
    """Arrays whose contents are arbitrary, of the shapes and dtypes of a tree."""
    return tree.map(lambda leaf: empty(leaf.shape, leaf.dtype), x)


def freeze(ref: StateRef) -> Any:
    """What a ref holds, at its end."""
    return ref.value


def run_state(f: Callable[..., None]) -> Callable[[Any], Any]:
    """A function of arrays from one of refs, which it changes: the arrays as they are at the end.

    >>> def double(refs):
    ...     x_ref, y_ref = refs
    ...     y_ref[...] = x_ref[...] * 2
    >>> run_state(double)((mnp.arange(3.0), mnp.zeros(3)))[1]
    Array([0., 2., 4.], dtype=float32)
    """

    def run(values: Any) -> Any:
        refs = tree.map(new_ref, values)
        f(refs)
        return tree.map(freeze, refs)

    return run


def core_map(
    mesh: TensorCoreMesh,
    *,
    compiler_params: Any = None,
    interpret: Any = None,
    debug: Any = None,
    cost_estimate: Any = None,
    name: str | None = None,
    metadata: Any = None,
    scratch_shapes: Any = (),
) -> Callable[[Callable[..., Any]], None]:
    """Run the decorated function now, on every core; the refs it refers to are memory that it changes.

    >>> from meshwright import lax
    >>> from meshwright.pallas import tpu as pltpu
    >>> def double(refs):
    ...     x_ref, y_ref = refs
    ...     @core_map(pltpu.create_tensorcore_mesh("core", num_cores=2), scratch_shapes=[pltpu.VMEM((2,), mnp.float32)])
    ...     def _(block):
    ...         row = lax.axis_index("core")
    ...         pltpu.sync_copy(x_ref.at[row], block)
    ...         block[...] *= 2
    ...         pltpu.sync_copy(block, y_ref.at[row])
    >>> run_state(double)((mnp.ones((2, 2)), mnp.zeros((2, 2))))[1]
    Array([[2., 2.],
           [2., 2.]], dtype=float32)
    """

    def run(body: Callable[..., Any]) -> None:
        refs = list(_captured(body, {}).values())

        def kernel(*args: Any, **named: Any) -> Any:
            count = len(refs)
            seen = {id(ref): memory for ref, memory in zip(refs, args[count : 2 * count], strict=True)}
            return _rebound(body, seen)(*args[2 * count :], **named)

        kernel.__name__ = name or getattr(body, "__name__", "body").strip("_") or "core_map"
        _changed(kernel, refs, (), mesh, scratch_shapes, compiler_params, debug, interpret)

    return run


def kernel(
    body: Any = None,
    out_type: Any = None,
    *,
    mesh: TensorCoreMesh,
    out_shape: Any = None,
    scratch_types: Any = (),
    scratch_shapes: Any = (),
    compiler_params: Any = None,
    interpret: Any = None,
    cost_estimate: Any = None,
    debug: Any = None,
    name: str | None = None,
    metadata: Any = None,
) -> Callable[..., Any]:
    """A function of arrays that runs ``body`` once on every core of a mesh, on refs to main memory; also a decorator.

    Main memory is the device's; scratch memory and semaphores are each core's own. Refs among the arguments
    (``pl.new_ref``) are changed in place.

    >>> import meshwright as mw
    >>> from meshwright import lax
    >>> from meshwright.pallas import tpu as pltpu
    >>> def double(x_ref, out_ref, block):
    ...     row = lax.axis_index("core")
    ...     pltpu.sync_copy(x_ref.at[row], block)
    ...     block[...] *= 2
    ...     pltpu.sync_copy(block, out_ref.at[row])
    >>> f = kernel(double, mw.ShapeDtypeStruct((2, 3), mnp.float32), scratch_types=[pltpu.VMEM((3,), mnp.float32)],
    ...            mesh=pltpu.create_tensorcore_mesh("core", num_cores=2))
    >>> f(mnp.arange(6.0).reshape(2, 3))
    Array([[ 0.,  2.,  4.],
           [ 6.,  8., 10.]], dtype=float32)
    """
    outs = out_type if out_type is not None else out_shape
    scratch = scratch_types or scratch_shapes

    def of(body: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            refs = {n: arg for n, arg in enumerate(args) if isinstance(arg, StateRef)}
            return _changed(body, refs, args, mesh, scratch, compiler_params, debug, interpret, outs, name)

        return call

    return of if body is None else of(body)


def _changed(
    body: Callable[..., Any],
    refs: Any,
    args: tuple[Any, ...],
    mesh: TensorCoreMesh,
    scratch: Any,
    params: Any,
    debug: Any,
    interpret: Any,
    outs: Any = None,
    name: str | None = None,
) -> Any:
    """Run a body over main memory; ``refs``, all its arguments or those of ``args`` by number, hold what it leaves."""
    named = refs if isinstance(refs, dict) else dict(enumerate(refs))
    given = [arg.value if isinstance(arg, StateRef) else arg for arg in (args or tuple(refs))]
    many = isinstance(outs, tuple | list) or outs is None
    asked = list(outs or ()) if many else [outs]
    more = [ShapeDtypeStruct(ref.shape, ref.dtype) for ref in named.values()]
    first, last = len(given) + len(asked), len(given) + len(asked) + len(more)
    before = [len(tree.leaves(arg)) for arg in given]
    out_leaves = len(tree.leaves(asked))

    def on_refs(*found: Any, **by_name: Any) -> Any:
        return body(*found[:first], *found[last:], **by_name)

    on_refs.__name__ = str(name or getattr(body, "__name__", "kernel"))
    whole = BlockSpec(memory_space=MemorySpace.ANY)
    results = pallas_call(
        on_refs if args else body,
        (*asked, *more),
        in_specs=[whole] * len(given),
        out_specs=[whole] * (len(asked) + len(more)),
        scratch_shapes=scratch,
        input_output_aliases={sum(before[:n]): out_leaves + k for k, n in enumerate(named)},
        compiler_params=params if params is not None else CompilerParams(),
        debug=debug,
        interpret=interpret,
        name=on_refs.__name__,
        core_mesh=core_mesh(mesh),
    )(*given)
    for ref, value in zip(named.values(), results[len(asked) :], strict=True):
        ref.value = value
    return tuple(results[: len(asked)]) if many else results[0]


def _captured(value: Any, found: dict[int, StateRef]) -> dict[int, StateRef]:
    """The refs that a function refers to, itself or by functions and containers that it refers to."""
    if isinstance(value, StateRef):
        found[id(value)] = value
    elif isinstance(value, FunctionType):
        for cell in value.__closure__ or ():
            try:
                _captured(cell.cell_contents, found)
            except ValueError:  # a name that is not bound yet
                continue
    elif value.__class__ in (list, tuple, dict):
        for one in value.values() if isinstance(value, dict) else value:
            _captured(one, found)
    return found


def _rebound(value: Any, memory: dict[int, Any]) -> Any:
    """A function, or a container, that refers to memory in the place of refs."""
    if isinstance(value, StateRef):
        return memory[id(value)]
    if not _captured(value, {}):
        return value
    if isinstance(value, FunctionType):
        cells = tuple(CellType(_rebound(cell.cell_contents, memory)) for cell in value.__closure__ or ())
        made = FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, cells)
        made.__kwdefaults__ = value.__kwdefaults__
        return made
    if isinstance(value, dict):
        return {key: _rebound(one, memory) for key, one in value.items()}
    return value.__class__(_rebound(one, memory) for one in value)
