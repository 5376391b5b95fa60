"""A kernel as one op of a program: its evaluation starts the machine, on all devices at once.

``mesh`` are the axes of the ``shard_map`` it is called in, with their sizes; those of the program may be parts of them,
where partitioning has cut the mesh. The first operands are the device's coordinates along them, so that every device
has a call of its own even where the operands are the same. ``rows`` are the dims in front of all operands, as batching
puts them there: devices along an axis of the program, or examples of a ``vmap``, which have no name.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from meshwright.core.facts import Structure
from meshwright.core.op import Cost, Linearity, No, Op, Types, Value, define_op
from meshwright.core.program import Params, Rule
from meshwright.core.source import here
from meshwright.core.types import TensorType, Variance
from meshwright.kernel import derivatives
from meshwright.kernel.run.faults import KernelError
from meshwright.kernel.run.pool import pool
from meshwright.ops.basic import broadcast_in_dim
from meshwright.sharding.spec import read_axis
from meshwright.transform.batch import batch_axis

Axes = tuple[tuple[str, int], ...]


def _type(
    *types: TensorType, kernel: Rule, mesh: Axes, out: tuple[TensorType, ...], rows: Axes
) -> tuple[TensorType, ...]:
    """Results vary over the axes that their types say; those that are rows already do not count."""
    named = {axis for axis, _ in rows}
    front = tuple(size for _, size in rows)
    return tuple(
        t.with_(shape=front + t.shape, varying=tuple(axis for axis in t.varying if axis not in named)) for t in out
    )


def _batch(
    op: Op, size: int, args: Sequence[Value], batched: Sequence[bool], params: Params
) -> tuple[list[Value], list[bool]]:
    axis = batch_axis()
    known = {name for name, _ in params["rows"]}
    mine = axis is not None and axis not in known and _of_mesh(axis, size, params["mesh"]) is not None
    name = axis if axis is not None and mine else ""
    operands = [
        x if is_batched else broadcast_in_dim(x, shape=(size, *x.shape), dims=tuple(range(1, x.ndim + 1)))
        for x, is_batched in zip(args, batched, strict=True)
    ]
    outs = op(*operands, **{**params, "rows": ((name, size), *params["rows"])})
    rows = [not name or name in t.varying for t in params["out"]]
    return [out if one else out[0] for out, one in zip(outs, rows, strict=True)], rows


def _evaluate(
    xp: Any, *arrays: Any, kernel: Rule, mesh: Axes, out: tuple[TensorType, ...], rows: Axes
) -> tuple[Any, ...]:
    if kernel.function is None:
        raise KernelError(
            f"The kernel {kernel.name!r} is not part of this program.",
            why="the program was read from text, which keeps the name of a kernel and not its Python code",
            fix="trace the function again with mw.make_program(f)(…)",
        )
    if not all(isinstance(x, np.ndarray | np.generic) for x in arrays):
        raise KernelError(
            f"The kernel {kernel.name!r} is run on arrays of {type(arrays[-1]).__module__.split('.')[0]}.",
            why="kernels run on the machine of the NumPy engine",
            fix="pass arrays of NumPy, or run the kernel by JAX: mw.interop.pallas.to_jax(pl.pallas_call(…))",
        )
    inputs = [np.asarray(x) for x in arrays[len(mesh) :]]
    front = tuple(size for _, size in rows)
    results = tuple(pool.empty(front + t.shape, t.dtype) for t in out)
    examples = [range(size) if not name else range(1) for name, size in rows]
    devices = _devices(rows, mesh)
    for example in product(*examples):
        places = [tuple(n if at is None else at for n, at in zip(example, one, strict=True)) for one in devices]
        memory = [[result[_at(place)] for result in results] for place in places]
        found = kernel(dict(mesh), [[x[place] for x in inputs] for place in places], memory)
        for own, row in zip(memory, found, strict=True):
            for target, data in zip(own, row, strict=True):
                if data is not target:
                    target[...] = data
    _require_same(kernel, out, rows, results)
    return results


@lru_cache(maxsize=256)
def _devices(rows: Axes, mesh: Axes) -> list[tuple[int | None, ...]]:
    """Where each device of a mesh is along the axes of a program; None along those of a batch."""
    every = product(*(range(size) for _, size in mesh))
    return [tuple(_coordinate(name, size, mesh, device) if name else None for name, size in rows) for device in every]


def _interval(axis: str, size: int) -> tuple[str, int, int]:
    """The axis that a name stands for a part of, what lies before the part, and that times its size."""
    part = read_axis(axis)
    before = part.pre or 1
    return part.name, before, before * size


def _of_mesh(axis: str, size: int, mesh: Axes) -> int | None:
    """The number of the mesh axis that an axis of the program is, or is a part of: partitioning may have cut it."""
    name, low, high = _interval(axis, size)
    for n, whole in enumerate(mesh):
        wide = _interval(*whole)
        if wide[0] == name and wide[1] <= low and high <= wide[2]:
            return n
    return None


def _coordinate(axis: str, size: int, mesh: Axes, device: Sequence[int]) -> int:
    """A device's coordinate along an axis of the program, from those along the mesh's axes."""
    n = _of_mesh(axis, size, mesh)
    assert n is not None, f"{axis} is no part of the mesh"
    return device[n] // (_interval(*mesh[n])[2] // _interval(axis, size)[2]) % size


def _require_same(kernel: Rule, out: tuple[TensorType, ...], rows: Axes, results: Sequence[Any]) -> None:
    """Hold results to what their types say: devices along an axis they do not vary over have the same."""
    for n, (t, result) in enumerate(zip(out, results, strict=True)):
        for dim, (axis, _) in enumerate(rows):
            if axis and axis not in t.varying:
                first = np.take(result, [0], dim)
                same = (result == first) | ((result != result) & (first != first))
                if not same.all():
                    raise KernelError(
                        f"Result {n} of the kernel {kernel.name.rpartition('#')[0]!r} differs between devices "
                        f"along {axis!r}.",
                        where=here(),
                        why=f"its out_shape says that it varies over {sorted(t.varying)} only",
                        fix=f"vma={sorted((*t.varying, axis))} in its out_shape",
                    )


def _at(place: tuple[int, ...]) -> Any:
    """An index that gives a view, of rank 0 if need be."""
    return (*place, Ellipsis)


def _cost(operands: Types, results: Types, params: Params) -> Cost:
    """What a kernel computes is not known without running it; that it reads and writes its operands is."""
    return Cost(0.0, float(sum(t.nbytes for t in (*operands, *results))))


pallas_call: Op = define_op(
    "pallas_call",
    type=_type,
    factors=No("a kernel says itself how its operands are cut"),
    linear=Linearity.NONE,
    jvp=derivatives.jvp,
    linearize=derivatives.linearize,
    transpose=No("a kernel is not linear; give it a derivative: mw.custom_vjp around the call"),
    batch=_batch,
    structure=Structure.KERNEL,
    evaluate=_evaluate,
    cost=_cost,
    variance=Variance.OWN,
    effects=True,
    samples=lambda: [],
)
