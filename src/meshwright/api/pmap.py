"""``pmap`` and ``smap``: functions of one device's part, with dims in the place of specs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from itertools import count
from typing import Any

from meshwright.api.shard_map import shard_map
from meshwright.api.vmap import _axes_for
from meshwright.arrays.tracing import argument_numbers, check_function, leaf_value
from meshwright.compile.jit import jit
from meshwright.core import tree
from meshwright.core.source import here
from meshwright.core.trace import Value
from meshwright.errors import ShapeError
from meshwright.ops.basic import move_dim, reshape
from meshwright.sharding.mesh import Mesh, make_mesh
from meshwright.sharding.spec import PartitionSpec

Function = Callable[..., Any]
_numbers = count()


def smap(f: Function | None = None, /, *, in_axes: Any = None, out_axes: Any, axis_name: str, mesh: Any = None) -> Any:
    """``shard_map`` over one axis of the current mesh: arguments are cut along the dims ``in_axes``, results joined
    along ``out_axes``; None leaves a value whole.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> with mw.set_mesh(mw.make_mesh((2,), ("x",))):
    ...     smap(lambda x: x.sum(keepdims=True), in_axes=0, out_axes=0, axis_name="x")(mnp.arange(4.0)).tolist()
    [1.0, 5.0]
    """
    if f is None:
        return lambda function: smap(function, in_axes=in_axes, out_axes=out_axes, axis_name=axis_name, mesh=mesh)
    check_function(f, "smap")
    given = None if in_axes is None else tree.map(lambda n: _spec(n, axis_name), in_axes, is_leaf=_is_none)
    results = tree.map(lambda n: _spec(n, axis_name), out_axes, is_leaf=_is_none)
    return shard_map(f, mesh=mesh, in_specs=given, out_specs=results, axis_names=(axis_name,))


def _is_none(x: Any) -> bool:
    return x is None


def _spec(dim: int | None, axis: str) -> PartitionSpec:
    return PartitionSpec() if dim is None else PartitionSpec(*[None] * dim, axis)


def pmap(
    fun: Function,
    axis_name: str | None = None,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    static_broadcasted_argnums: int | Sequence[int] = (),
    devices: Sequence[Any] | None = None,
    backend: str | None = None,
    axis_size: int | None = None,
    donate_argnums: int | Sequence[int] = (),
) -> Function:
    """``fun`` on as many devices as the mapped dim is long, each with one row of the arguments.

    It is a ``shard_map`` over a mesh of one axis, compiled; collectives over ``axis_name`` go between the devices.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> pmap(lambda x: x - mw.lax.pmean(x, "i"), axis_name="i")(mnp.arange(4.0)).tolist()
    [-1.5, -0.5, 0.5, 1.5]
    """
    check_function(fun, "pmap")
    name = f"pmap{next(_numbers)}" if axis_name is None else axis_name
    static = argument_numbers(static_broadcasted_argnums, "pmap", "static_broadcasted_argnums")

    def on_devices(*args: Any, **kwargs: Any) -> Any:
        places = [n % len(args) for n in static]
        fixed = {n: args[n] for n in places}
        rest = [x for n, x in enumerate(args) if n not in fixed]
        own = in_axes
        if isinstance(own, tuple | list) and fixed:
            own = tuple(a for n, a in enumerate(own) if n not in fixed)
        axes = _axes_for(own, tuple(rest), "in_axes") + [0] * len(tree.leaves(kwargs))
        leaves, structure = tree.flatten((tuple(rest), kwargs))
        values = [leaf_value(x, "an argument of pmap") for x in leaves]
        mesh = _mesh_for(values, axes, name, devices, axis_size)
        moved = [x if a is None else move_dim(x, a % x.ndim, 0) for x, a in zip(values, axes, strict=True)]
        trees: list[Any] = []
        whole: list[int | None] = []

        def one(*blocks: Any) -> Any:
            rows = [b if a is None else reshape(b, shape=b.shape[1:]) for b, a in zip(blocks, axes, strict=True)]
            given, named = tree.unflatten(structure, rows)
            following = iter(given)
            full = [fixed[n] if n in fixed else next(following) for n in range(len(fixed) + len(given))]
            outs, out_tree = tree.flatten(fun(*full, **named))
            trees.append(out_tree)
            whole[:] = _axes_for(out_axes, tree.unflatten(out_tree, range(len(outs))), "out_axes")
            found = [leaf_value(x, "a result of the function") for x in outs]
            return [reshape(x, shape=(1, *x.shape)) for x in found]

        specs = tuple(PartitionSpec() if a is None else PartitionSpec(name) for a in axes)
        mapped = shard_map(one, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(name), check_vma=False)
        outs = [x[0] if a is None else move_dim(x, 0, a % x.ndim) for x, a in zip(mapped(*moved), whole, strict=True)]
        return tree.unflatten(trees[-1], outs)

    return wraps(fun)(jit(on_devices, static_argnums=static, donate_argnums=donate_argnums))


def _mesh_for(
    values: Sequence[Value], axes: Sequence[int | None], name: str, devices: Any, axis_size: int | None
) -> Mesh:
    sizes = {x.shape[a] for x, a in zip(values, axes, strict=True) if a is not None and -x.ndim <= a < x.ndim}
    sizes |= {axis_size} if axis_size is not None else set()
    if len(sizes) != 1:
        raise ShapeError(
            "pmap needs one number of devices.",
            where=here(),
            why=f"the mapped dims have sizes {sorted(sizes)}" if sizes else "no argument has a mapped dim",
            fix="arguments whose mapped dims have one size, or in_axes=None for what all devices get",
        )
    (size,) = sizes
    return make_mesh((size,), (name,), devices=None if devices is None else list(devices)[:size])
