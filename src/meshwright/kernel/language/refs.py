"""Refs: memory as a kernel sees it. Reading gives arrays, ``.at`` gives smaller refs."""

from __future__ import annotations

from math import prod
from typing import Any, NoReturn

import numpy as np

from meshwright.arrays import scalars
from meshwright.core import dtypes, trace
from meshwright.core.source import here
from meshwright.core.trace import Array
from meshwright.core.types import TensorType
from meshwright.errors import TracerError
from meshwright.kernel.language.indexing import resolve, sizes_of
from meshwright.kernel.language.spaces import ACC, MemorySpace
from meshwright.kernel.races.poison import poisoned, unwrapped, watch
from meshwright.kernel.run.faults import BoundsError, CopyError, KernelError, ScopeError
from meshwright.kernel.run.memory import Bitcast, Box, Buffer, Data, Path, Reshape, box_of, reshaped
from meshwright.kernel.run.tasks import current, state

_NOT_ASKED = object()


class Ref:
    """A view of memory: ``ref[index]`` loads, ``ref[index] = value`` stores, ``ref.at[index]`` is a smaller view."""

    __slots__ = ("_box", "_type", "buffer", "data", "path")

    has_tangent = False  # whether it is differentiated

    def __init__(self, buffer: Buffer, data: Data | None = None, path: Path = ()) -> None:
        self.buffer = buffer
        self.data = buffer.data if data is None else data
        self.path = path
        self._box: Any = _NOT_ASKED
        self._type: TensorType | None = None  # of what a load of all of it returns, once there was one

    @property
    def box(self) -> Box | None:
        """Where in its buffer it starts and stops along each dim; None if it is no box."""
        if self._box is _NOT_ASKED:
            self._box = box_of(self.buffer.data.shape, self.path)
        return self._box  # type: ignore[no-any-return]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape  # type: ignore[no-any-return]

    @property
    def dtype(self) -> dtypes.DType:
        return self.data.dtype  # type: ignore[no-any-return]

    @property
    def ndim(self) -> int:
        return self.data.ndim

    @property
    def size(self) -> int:
        return self.data.size

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    @property
    def memory_space(self) -> MemorySpace | ACC:
        return self.buffer.space

    @property
    def vma(self) -> frozenset[str]:
        """The mesh axes that what the memory holds may vary over: as the operand's type says, or all."""
        machine = current("ref.vma").machine
        axes = machine.axes.get(self.buffer.key)
        return frozenset(machine.mesh) if axes is None else axes

    @property
    def at(self) -> _RefAt:
        """``ref.at[index]``: the part of the memory that ``index`` selects."""
        return _RefAt(self)

    def __len__(self) -> int:
        return int(self.data.shape[0])

    def __repr__(self) -> str:
        return f"<ref to {self.buffer.label}: {self.memory_space.name} {self.dtype.name}{list(self.shape)}>"

    @property
    def text(self) -> str:
        """``x_ref[0:8, :]``: which part of its buffer it is."""
        return f"a part of {self.buffer.label}" if self.box is None else self.buffer.label + self.part

    @property
    def part(self) -> str:
        """``[0:8, :]``: which part of its buffer it is; nothing for all of it."""
        if self.box is None:
            return "[…]"
        ends = []
        for (start, stop), n in zip(self.box, self.buffer.data.shape, strict=True):
            ends.append(":" if (start, stop) == (0, n) else str(start) if stop == start + 1 else f"{start}:{stop}")
        return "" if set(ends) <= {":"} else f"[{', '.join(ends)}]"

    def same(self, other: Ref) -> bool:
        """Whether another ref is to the same memory, seen in the same way."""
        a, b = self.data, other.data
        if self.buffer is not other.buffer or (a.shape, a.dtype) != (b.shape, b.dtype):
            return False
        if self.box is not None and other.box is not None:
            return self.box == other.box
        return (a.ctypes.data, a.strides) == (b.ctypes.data, b.strides)

    def reshape(self, *shape: Any) -> Ref:
        """The same memory in another shape."""
        sizes = tuple(int(n) for n in (shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape))
        if -1 in sizes:
            rest = -int(np.prod(sizes))
            sizes = tuple(self.data.size // rest if n == -1 else n for n in sizes)
        return Ref(self.buffer, reshaped(self.data, sizes), (*self.path, Reshape(sizes)))

    def bitcast(self, dtype: Any) -> Ref:
        """The same bits as numbers of another dtype; of another width, with more or fewer rows, as TPUs pack them."""
        wanted = dtypes.as_dtype(dtype)
        if wanted.itemsize != self.dtype.itemsize:
            return PackedRef(self, wanted)  # type: ignore[return-value]
        return Ref(self.buffer, self.data.view(wanted), (*self.path, Bitcast(wanted)))

    def __getitem__(self, key: Any) -> Array:
        # What kernels do most, all of memory that nothing is looked for in, in fewer steps than `load`.
        if key is Ellipsis and self._type is not None:
            buffer, task = self.buffer, state.task
            if (
                buffer.accesses is None
                and buffer.unfilled is None
                and buffer.alive
                and task is not None
                and trace.state.builder is None
                and not task.machine.clock.dry
            ):
                return Array(self.data.copy(), self._type)
        return load(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        if key is Ellipsis and value.__class__ is Array and value.type is self._type:
            buffer, task = self.buffer, state.task
            if (
                buffer.accesses is None
                and buffer.unfilled is None
                and buffer.alive
                and not buffer.readonly
                and task is not None
                and trace.state.builder is None
                and not task.machine.clock.dry
                and value._data.__class__ is np.ndarray
            ):
                self.data[...] = value._data
                return
        store(self, key, value)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise CopyError(
            f"A ref to {self.buffer.label} is used as an array.",
            where=here(),
            why="a ref is memory; its value is what a load returns",
            fix="ref[...]",
        )


def _no_arithmetic(ref: Ref, *_: Any) -> NoReturn:
    ref.__array__()


_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "neg", "lt", "le", "gt", "ge")
for _name in (*_ARITHMETIC, "bool"):
    for _side in ("", "r"):
        setattr(Ref, f"__{_side}{_name}__", _no_arithmetic)


class _RefAt:
    __slots__ = ("ref",)

    def __init__(self, ref: Ref) -> None:
        self.ref = ref

    def __getitem__(self, key: Any) -> Ref:
        ref = self.ref
        try:
            index, selects = resolve(ref.data.shape, key)
        except BoundsError as fault:
            sizes = sizes_of(ref.data.shape, key)
            if sizes is None:
                raise
            return RefBeyond(ref, sizes, fault)
        if not selects:
            raise KernelError(
                "A ref is sliced with an array of indices.",
                where=here(),
                why="a view of memory has a start, a size and a stride per dim",
                fix="load with the indices, ref[indices], or loop over them: ref.at[indices[i]]",
            )
        index = as_view(ref.data, index)
        data = ref.data[index]
        if data.shape == ref.data.shape and data.strides == ref.data.strides and data.size:
            return ref  # all of it
        return Ref(ref.buffer, data, (*ref.path, index))


class PackedRef:
    """Memory seen as numbers of another width: rows of narrow ones share a row of wide ones, the low bits first."""

    __slots__ = ("dtype", "keys", "ref")

    def __init__(self, ref: Ref, dtype: dtypes.DType, keys: tuple[Any, ...] = ()) -> None:
        self.ref, self.dtype, self.keys = ref, dtype, keys
        if not keys:
            bitcast_rows(np.empty(ref.shape, ref.dtype), dtype)  # what cannot be is said where it is written

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._of(bitcast_rows(np.empty(self.ref.shape, self.ref.dtype), self.dtype)).shape)

    @property
    def at(self) -> _PackedAt:
        return _PackedAt(self)

    def _of(self, data: Data) -> Data:
        for key in self.keys:
            index, _ = resolve(data.shape, key)
            data = data[as_view(data, index)]
        return data

    def __getitem__(self, key: Any) -> Array:
        found = self.at[key]
        data = np.array(found._of(bitcast_rows(load(self.ref, ...).data, self.dtype)))
        return Array(data, TensorType(data.shape, data.dtype))

    def __setitem__(self, key: Any, value: Any) -> None:
        found = self.at[key]
        whole = np.array(bitcast_rows(self.ref.data, self.dtype))
        part = found._of(whole)
        part[...] = fitted(value, part.shape, self.dtype, self.ref.buffer.label)
        if part.size != whole.size:
            load(self.ref, ...)  # the rest stays as it is, so it has to be there
        rows = bitcast_rows(whole, self.ref.dtype)
        store(self.ref, ..., Array(rows, TensorType(rows.shape, rows.dtype)))


class _PackedAt:
    __slots__ = ("ref",)

    def __init__(self, ref: PackedRef) -> None:
        self.ref = ref

    def __getitem__(self, key: Any) -> PackedRef:
        return PackedRef(self.ref.ref, self.ref.dtype, (*self.ref.keys, key))


def bitcast_rows(data: Data, dtype: dtypes.DType) -> Data:
    """The bits of ``data`` as another dtype, its second to last dim growing or shrinking by the ratio of the widths."""
    before, after = data.dtype.itemsize, dtype.itemsize
    ratio = max(before, after) // min(before, after)
    if data.ndim < 2 or (before < after and data.shape[-2] % ratio):
        raise CopyError(
            f"A ref of {data.dtype.name}{list(data.shape)} cannot be seen as {dtype.name}.",
            where=here(),
            why=f"{ratio} rows of the narrower dtype are one of the wider",
            fix=f"a ref of two dims or more, with a multiple of {ratio} rows",
        )
    *front, rows, lanes = data.shape
    if before < after:
        groups = np.moveaxis(data.reshape(*front, rows // ratio, ratio, lanes), -2, -1)
        return np.ascontiguousarray(groups).view(dtype)[..., 0]
    parts = np.ascontiguousarray(data)[..., None].view(dtype)
    return np.moveaxis(parts, -1, -2).reshape(*front, rows * ratio, lanes)


class RefBeyond(Ref):
    """A view that leaves its memory: good for the bytes that a wait takes; using the memory is an error."""

    __slots__ = ("_dtype", "_shape", "fault")

    def __init__(self, ref: Ref, shape: tuple[int, ...], fault: BoundsError) -> None:
        self.buffer, self.path, self._box, self._type = ref.buffer, ref.path, None, None
        self._dtype, self._shape, self.fault = ref.dtype, shape, fault

    @property
    def data(self) -> Data:  # type: ignore[override]
        raise self.fault

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def dtype(self) -> dtypes.DType:
        return self._dtype

    @property
    def nbytes(self) -> int:
        return prod(self._shape) * self._dtype.itemsize


def check_reachable(buffer: Buffer, verb: str) -> None:
    """Refuse loads and stores of memory that only copies reach, or that is gone, and those inside a trace."""
    if trace.state.builder is not None:
        raise TracerError(
            f"A ref is {verb} in a function being traced.",
            where=here(),
            why="jit, grad and vmap run a function once for many calls, memory would be used only then",
            fix="load before the call and store its result: ref[...] = f(ref[...])",
        )
    if not buffer.alive:
        raise ScopeError(
            f"{buffer.label} is {verb} after its scope has ended.",
            where=here(),
            why="memory of run_scoped lives while its function runs",
            fix="use it inside the function given to pl.run_scoped",
        )
    if isinstance(buffer.space, ACC):
        raise KernelError(
            f"{buffer.label} is {verb} directly, but it is an accumulator of a matrix unit.",
            where=here(),
            why="products are added to it, and their sum is taken",
            fix="pltpu.matmul_acc_lhs(acc, lhs), pltpu.matmul_pop(acc)",
        )
    if not buffer.space.addressable:
        raise KernelError(
            f"{buffer.label} is {verb} directly, but it is in {buffer.space.name}.",
            where=here(),
            why="compute reaches VMEM and SMEM; main memory is reached by copies",
            fix="pltpu.sync_copy(ref, vmem_ref), or give the operand a BlockSpec without memory_space",
        )


def load(ref: Ref, key: Any) -> Array:
    """The value of memory."""
    if ref.has_tangent:
        return ref[key]
    task = current("A ref")
    buffer = ref.buffer
    if trace.state.builder is not None or not buffer.alive or not buffer.addressable:
        check_reachable(buffer, "read")
    if key is not Ellipsis:
        index, selects = resolve(ref.data.shape, key)
        if not selects:
            buffer.fill_unwritten()  # what arrays of indices select is a copy
        index = as_view(ref.data, index)
        found = ref.data[index]
        if buffer.accesses is not None or buffer.unfilled is not None:
            ref = Ref(buffer, found, (*ref.path, index))
    else:
        found = ref.data
    if buffer.unfilled is not None:
        buffer.before_read(ref.box)
    if buffer.accesses is not None:
        undefined = buffer.accesses.read_by_task(task, ref)
        if undefined is not None and undefined is not False:
            trace.state.watch = watch  # until the kernel ends
            return poisoned(np.array(found), undefined, buffer.accesses.origin(task, ref, undefined))
    if not found.ndim and found.dtype == dtypes.INT32:
        return scalars.small(int(found))
    data = np.array(found) if not task.machine.clock.dry or found.dtype.kind in "biu" else _no_numbers(found)
    type = TensorType(data.shape, data.dtype)
    if key is Ellipsis and buffer.addressable:
        ref._type = type
    return Array(data, type)


def _no_numbers(like: Data) -> Data:
    """Zeros that take no memory."""
    return np.broadcast_to(np.zeros((), like.dtype), like.shape)


def as_view(data: Data, index: Any) -> Any:
    """An index that gives an array, of rank 0 if need be."""
    if len(index) != data.ndim:
        return index
    for k in index:
        if k.__class__ is not int:
            return index
    return (*index, Ellipsis)


def store(ref: Ref, key: Any, value: Any) -> None:
    """Write a value to memory."""
    if ref.has_tangent:
        ref[key] = value
        return
    task = current("A ref")
    buffer = ref.buffer
    if trace.state.builder is not None or not buffer.alive or not buffer.addressable:
        check_reachable(buffer, "written")
    value, poison = unwrapped(value)
    if key is Ellipsis:
        data = fitted(value, ref.data.shape, ref.data.dtype, buffer.label)
        target = ref
        index: Any = key
    else:
        index, selects = resolve(ref.data.shape, key)
        index = as_view(ref.data, index) if selects else index
        target = Ref(buffer, ref.data[index], (*ref.path, index))
        data = fitted(value, target.data.shape, ref.data.dtype, buffer.label)
    if buffer.readonly:
        raise CopyError(
            f"A value is stored to {buffer.label}, an input.",
            where=here(),
            why="a block of an input comes and does not go: nothing brings back what is stored to it",
            fix="store to an output or to scratch memory",
        )
    if buffer.unfilled is not None:
        buffer.before_write(target.box)
    if buffer.accesses is not None and poison is not None:
        buffer.accesses.write_by_task(task, target, np.broadcast_to(poison.undefined, target.data.shape))
        buffer.accesses.poison = (poison.origin, task.source())
    elif buffer.accesses is not None:
        buffer.accesses.write_by_task(task, target)
    if not task.machine.clock.dry or data.dtype.kind in "biu":
        ref.data[index] = data


def fitted(value: Any, shape: tuple[int, ...], dtype: dtypes.DType, label: str) -> Data:
    """A value as the elements to store: of the memory's dtype, and of its shape or one number."""
    array = value if value.__class__ is Array else _array(value, label)
    data: Data = array.data
    if data.dtype != dtype:
        if not array.type.weak or dtypes.promote((array.dtype, True), (dtype, False))[0] != dtype:
            raise CopyError(
                f"A value of {array.dtype.name} is stored to {label}, which holds {dtype.name}.",
                where=here(),
                why="a store does not convert",
                fix=f"ref[...] = value.astype('{dtype.name}')",
            )
        data = data.astype(dtype)
    if data.shape != shape and data.shape != ():
        raise CopyError(
            f"A value of shape {data.shape} is stored to {shape} of {label}.",
            where=here(),
            why="a store writes one element to each place",
            fix=f"ref[...] = mnp.broadcast_to(value, {shape})",
        )
    return data


def _array(value: Any, label: str) -> Array:
    if isinstance(value, Ref):
        raise CopyError(
            f"A ref is stored to {label}.",
            where=here(),
            why="a ref is memory; its value is what a load returns",
            fix="ref[...] = other_ref[...]",
        )
    array = trace.to_array(value)
    if not isinstance(array, Array):
        raise TracerError(
            f"A traced value is stored to {label}.",
            where=here(),
            why="kernel bodies run on values; this one belongs to a function being traced around the kernel",
            fix="pass the value to the kernel as an argument",
        )
    return array
