"""Functions that see some axes of a mesh as of another type: Auto inside of Explicit code, and the reverse."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any

from meshwright.api.reshard import reshard
from meshwright.arrays.tracing import check_function, leaf_value
from meshwright.core import tree
from meshwright.core.source import here
from meshwright.core.trace import Array, Value
from meshwright.errors import MeshError, ShardingError
from meshwright.sharding.explicit import spec_of
from meshwright.sharding.mesh import AbstractMesh, AxisType, BaseMesh, get_mesh, set_mesh
from meshwright.sharding.named import NamedSharding
from meshwright.sharding.spec import PartitionSpec, entry_axes, read_axis

Function = Callable[..., Any]


def use_abstract_mesh(mesh: AbstractMesh) -> AbstractContextManager[Any]:
    """Make a mesh without devices the current one for the length of a ``with`` block.

    >>> with use_abstract_mesh(AbstractMesh((2,), ("x",))):
    ...     get_abstract_mesh()
    AbstractMesh('x': 2, axis_types=(Auto,))
    """
    return set_mesh(mesh)


def get_abstract_mesh() -> AbstractMesh:
    """The current mesh without its devices; one of no axes if there is none."""
    mesh = get_mesh()
    return AbstractMesh((), ()) if mesh is None else mesh.abstract_mesh


def auto_axes(f: Function | None = None, /, *, axes: Any = None, out_sharding: Any = None) -> Any:
    """``f`` with axes that are Explicit outside (all, or those given) being Auto inside.

    Inside, types say nothing about those axes, so that ops which are ambiguous over Explicit axes can be used; results
    leave as ``out_sharding`` says, a spec or a tree of them.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mesh = mw.make_mesh((2,), ("x",), axis_types=mw.AxisType.Explicit)
    >>> x = mw.device_put(mnp.arange(4.0), mw.NamedSharding(mesh, mw.P("x")))
    >>> with mw.set_mesh(mesh):
    ...     y = auto_axes(lambda x: x[mnp.array([3, 1])], out_sharding=mw.P("x"))(x)
    >>> print(mw.typeof(y), y.tolist())
    float32[2@x] [3.0, 1.0]
    """
    if f is None:
        return lambda function: auto_axes(function, axes=axes, out_sharding=out_sharding)
    check_function(f, "auto_axes")
    names = _names(axes)

    @wraps(f)
    def inside(*args: Any, out_sharding: Any = out_sharding, **kwargs: Any) -> Any:
        if out_sharding is None:
            raise ShardingError(
                "auto_axes has no out_sharding.",
                where=here(),
                why="over Explicit axes types say how values are split, and inside they did not",
                fix="auto_axes(f, out_sharding=mw.P('x', None))",
            )
        plain = tree.map(lambda x: _without(leaf_value(x, "an argument of auto_axes"), names), (args, kwargs))
        return reshard(f(*plain[0], **plain[1]), out_sharding)

    return inside


def explicit_axes(f: Function | None = None, /, *, axes: Any = None, in_sharding: Any = None) -> Any:
    """``f`` with axes that are Auto outside (all, or those given) being Explicit inside.

    Arguments enter as ``in_sharding`` says, a spec or a tree of them, and their types say so inside.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> mesh = mw.make_mesh((2,), ("x",))
    >>> def show(x):
    ...     print(mw.typeof(x * 2))
    ...     return x * 2
    >>> with mw.set_mesh(mesh):
    ...     y = mw.jit(explicit_axes(show, in_sharding=mw.P("x")))(mnp.arange(4.0))
    float32[4@x]
    """
    if f is None:
        return lambda function: explicit_axes(function, axes=axes, in_sharding=in_sharding)
    check_function(f, "explicit_axes")
    names = _names(axes)

    @wraps(f)
    def inside(*args: Any, in_sharding: Any = in_sharding, **kwargs: Any) -> Any:
        mesh = get_mesh()
        if mesh is None or in_sharding is None:
            raise MeshError(
                f"explicit_axes has no {'mesh' if mesh is None else 'in_sharding'}.",
                where=here(),
                why="arguments enter as specs on the current mesh say",
                fix="with mw.set_mesh(mesh): explicit_axes(f, in_sharding=mw.P('x', None))(x)",
            )
        changed = [name for name in mesh.axis_names if names is None or name in names]
        typed = mesh.update_axis_types(dict.fromkeys(changed, AxisType.Explicit))
        with set_mesh(typed):
            specs = in_sharding if isinstance(in_sharding, tuple | PartitionSpec) else (in_sharding,)
            entered = reshard(args, specs)
            outs = f(*entered, **kwargs)
            return tree.map(lambda x: _without(leaf_value(x, "a result of explicit_axes"), names), outs)

    return inside


def _names(axes: str | Iterable[str] | None) -> frozenset[str] | None:
    return None if axes is None else frozenset((axes,) if isinstance(axes, str) else axes)


def _without(x: Value, names: frozenset[str] | None) -> Value:
    """A value that is not split along Explicit axes of these names; its type says nothing of them."""
    if x.type.sharding is None:
        return x
    spec = spec_of(x.type)
    kept = [
        tuple(axis for axis in entry_axes(entry) if names is not None and read_axis(axis).name not in names)
        for entry in spec.partitions
    ]
    mesh: BaseMesh = x._sharding.mesh if x.__class__ is Array else x.type.sharding.mesh
    current = get_mesh()
    if current is not None and current.explicit_mesh == x.type.sharding.mesh:
        mesh = current
    return reshard(x, NamedSharding(mesh, PartitionSpec(*(entry or None for entry in kept))))  # type: ignore[no-any-return]
