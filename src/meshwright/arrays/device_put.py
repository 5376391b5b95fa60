"""device_put and device_get: trees of arrays to and from devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.arrays.shards import Sharding
from meshwright.arrays.tracing import leaf_value
from meshwright.core import tree
from meshwright.core.axis_names import whole_axis
from meshwright.core.current import current_engine
from meshwright.core.dtypes import KEY, DType
from meshwright.core.source import here
from meshwright.core.trace import Array, Manual, Value, state
from meshwright.core.types import Shape
from meshwright.engine.device_arrays import are_there, held
from meshwright.errors import MeshError, ShardingError, TreeError
from meshwright.ops.placement import sharding_constraint
from meshwright.sharding.explicit import asked_by
from meshwright.sharding.mesh import BaseMesh, Device, Mesh, get_mesh
from meshwright.sharding.named import NamedSharding, TensorSharding
from meshwright.sharding.single_device import SingleDeviceSharding
from meshwright.sharding.spec import PartitionSpec, entry_axes, pasted

PLACES = (NamedSharding, TensorSharding, SingleDeviceSharding, PartitionSpec, Device)
EXAMPLE = 'mw.NamedSharding(mesh, mw.P("x", None))'


def device_put(
    x: Any, device: Any = None, *, src: Any = None, donate: bool = False, may_alias: bool | None = None
) -> Any:
    """The arrays of a tree on other devices.

    ``device`` says where: a sharding, a device, a ``P`` on the current mesh, or None for "as it is"; for several arrays
    a tree of these, which may stop early: what it says at a place holds for all arrays there. Dims need not be
    divisible. On engine ``numpy`` no bytes move: an array keeps its contents once, and the devices hold views of them.
    On ``xla`` they go to the real devices.

    >>> import meshwright as mw
    >>> import meshwright.numpy as mnp
    >>> mesh = mw.make_mesh((2, 2), ("x", "y"))
    >>> x = device_put(mnp.ones((4, 6)), mw.NamedSharding(mesh, mw.P("x", "y")))
    >>> print(mw.typeof(x), x.addressable_shards[3].index)
    float32[4@x,6@y] (slice(2, 4, None), slice(3, 6, None))
    """
    if x.__class__ is Array and isinstance(device, PLACES):
        return put(x, device)
    leaves, structure = tree.flatten(x)
    places = spread(device, x, "device_put")
    names = tree.path_names(x)
    found = []
    for leaf, place, name in zip(leaves, places, names, strict=True):
        if isinstance(leaf, np.ndarray) and leaf.flags.writeable and not may_alias:
            leaf = leaf.copy()  # an array does not change, whatever its owner does with this one
        value = leaf_value(leaf, f"a leaf {name} given to device_put" if name else "what is given to device_put")
        found.append(value if place is None else put(value, place, name))
    return tree.unflatten(structure, found)


def device_get(x: Any) -> Any:
    """The arrays of a tree as NumPy arrays, which cannot be written to; other leaves as they are.

    >>> import meshwright.numpy as mnp
    >>> device_get({"w": mnp.arange(3), "step": 7})
    {'step': 7, 'w': array([0, 1, 2], dtype=int32)}
    """
    return tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, Value) else leaf, x)


def put(x: Value, place: Any, name: str = "") -> Value:
    """An array on the devices that ``place`` says; ``name`` is how errors call it. A traced one is constrained."""
    if not isinstance(x, Array):
        return constrained(x, place, name)
    if x.type.unreduced and _stays_unreduced(x, place):
        return x
    type = x.type.with_(unreduced=()) if x.type.unreduced else x.type  # the contents are the sum
    sharding = final_sharding(place, type.shape, name)
    return Array(_contents(x, sharding), type, sharding)


def _contents(x: Array, sharding: Sharding) -> Any:
    """The contents of an array as one in a sharding has them."""
    if x._data is None or x.type.unreduced:
        return x.data
    held = held_on_devices(sharding, x.type.shape, x.type.dtype, on_some=hasattr(x._data, "sharding"))
    return x.data if held is None else held.put(x._data)


def held_on_devices(sharding: Sharding | None, shape: Shape, dtype: DType, on_some: bool = False) -> Any:
    """How real devices hold an array, if it is to go to them: engine ``xla`` is the current one, or it is ``on_some``.
    None where it stays here: otherwise, or if these devices are not there, and of random keys, which JAX has not."""
    if sharding is None or dtype == KEY or not (on_some or current_engine.name == "xla"):
        return None
    return held(sharding.to_tensor_sharding(len(shape)), shape) if are_there(sharding.mesh) else None


def _stays_unreduced(x: Array, place: Any) -> bool:
    """Whether a partial sum lies as ``place`` says, which leaves it unreduced."""
    spec = place.spec if isinstance(place, NamedSharding) else place
    if not isinstance(spec, PartitionSpec) or not isinstance(x._sharding, NamedSharding):
        return False
    named = NamedSharding(x._sharding.mesh, spec)
    return set(spec.unreduced) == set(x.type.unreduced) and named.typed(x.type) is x.type


def constrained(x: Value, place: Any, name: str = "") -> Value:
    """A traced value that is to be laid out in a given way where the program runs on a mesh."""
    if isinstance(place, TensorSharding) and not place.mesh.is_maximal:
        _check_rank(place, x.type.shape, name)
        place = place.to_named()
    spec = place.spec if isinstance(place, NamedSharding) else place
    if state.manual is not None and isinstance(spec, PartitionSpec):
        _check_free(spec, state.manual)
    plain = place
    if isinstance(spec, PartitionSpec) and spec.unreduced:
        plain = spec.update(unreduced=())
        plain = NamedSharding(place.mesh, plain) if isinstance(place, NamedSharding) else plain
    if isinstance(plain, PartitionSpec) and get_mesh() is None and x.type.sharding is not None:
        found: Any = NamedSharding(x.type.sharding.mesh, plain)  # the type says which mesh is meant
    else:
        found = sharding_for(plain, x.type.shape, name)
        if not isinstance(found, NamedSharding):
            return x
        if state.meshes is not None:
            state.meshes.append(found.mesh)
    written = spec if isinstance(spec, PartitionSpec) else found.spec
    if found.mesh.explicit_mesh is None:
        other = state.mesh is not None and str(found.mesh) != str(state.mesh)
        params = {"mesh": str(found.mesh)} if other else {}
        return sharding_constraint(x, spec=written, **params)  # type: ignore[no-any-return]
    if not found.mesh.auto_axes and found.typed(x.type) is x.type and set(written.unreduced) == set(x.type.unreduced):
        return x  # it is laid out so
    given = asked_by(NamedSharding(found.mesh, written.update(unreduced=())), x.type.ndim)
    return sharding_constraint(x, spec=written, out_sharding=given)  # type: ignore[no-any-return]


def _check_free(spec: PartitionSpec, manual: Manual) -> None:
    """Raise if a spec splits along an axis that an enclosing shard_map has split along already."""
    taken = {whole_axis(name) for name in (*manual.axes, *manual.parts)}
    names = [name for entry in spec.partitions for name in entry_axes(entry)]
    axis = next((name for name in names if whole_axis(name) in taken), None)
    if axis is not None:
        raise ShardingError(
            f"A value inside of a shard_map is to be sharded as {spec}.",
            where=here(),
            why=f"the shard_map has split along {axis} already, and the value is one device's block",
            fix=f"leave {axis!r} out of the spec, or out of the axis_names of the shard_map",
        )


def put_created(x: Value, device: Any, out_sharding: Any) -> Value:
    """A new array where ``device=`` or ``out_sharding=`` of the function that made it says."""
    if device is not None and out_sharding is not None:
        raise ShardingError(
            "device= and out_sharding= are both given.",
            where=here(),
            why="each says where the result goes",
            fix="leave out one of them",
        )
    place = device if out_sharding is None else out_sharding
    return put(x, place)


def sharding_for(place: Any, shape: Shape, name: str = "") -> Sharding:
    """The sharding that ``place`` means for an array of this shape, or an error that says why it cannot be."""
    if isinstance(place, SingleDeviceSharding):
        return place
    if isinstance(place, Device):
        return SingleDeviceSharding(place)
    if isinstance(place, PartitionSpec):
        place = NamedSharding(_current_mesh(place), place)
    elif not isinstance(place, NamedSharding | TensorSharding):
        raise _no_place(place)
    whole = place.to_tensor_sharding() if isinstance(place, NamedSharding) else place
    if not isinstance(whole.mesh, Mesh) or whole.mesh.empty:
        raise _no_devices(whole.mesh)
    if whole.mesh.is_maximal:
        return SingleDeviceSharding(whole.mesh.devices.item())
    if whole.unreduced:
        axes = ", ".join(axis.short() for axis in whole.unreduced)
        raise ShardingError(
            f"An array cannot be put onto a sharding that is unreduced over {axes}.",
            where=here(),
            why="an array has contents; of an unreduced value each device holds a summand only",
            fix="leave out unreduced: " + pasted(whole.with_(unreduced=()).to_named().spec),
        )
    _check_rank(place, shape, name)
    return place if isinstance(place, NamedSharding) else place.to_named()


def _check_rank(place: NamedSharding | TensorSharding, shape: Shape, name: str) -> None:
    whole = place.to_tensor_sharding() if isinstance(place, NamedSharding) else place
    rank = whole.rank
    if rank > len(shape) or (rank < len(shape) and isinstance(place, TensorSharding)):
        shown = place.spec if isinstance(place, NamedSharding) else place
        spec = whole.to_named().spec
        raise ShardingError(
            f"{f'The array {name}' if name else 'An array'} of shape {shape} cannot be put onto {shown}.",
            where=here(),
            why=f"the sharding has {rank} dim{'s' * (rank != 1)}, the array {len(shape)}",
            fix=pasted(spec.update([*spec.partitions[: len(shape)], *[None] * (len(shape) - rank)])),
        )


def final_sharding(place: Any, shape: Shape, name: str = "") -> Sharding:
    """The sharding that ``place`` means for an array with contents, which is laid out in one way.

    A ``TensorSharding`` may come from propagation, for which its open dims and priorities were: its axes count.
    """
    given = place.spec if isinstance(place, NamedSharding) else place
    if isinstance(given, PartitionSpec) and not given.is_closed:
        spec = given.closed()
        spec = spec.update(spec.partitions[: len(shape)])
        sharding_for(NamedSharding(place.mesh, spec) if isinstance(place, NamedSharding) else spec, shape, name)
        raise ShardingError(
            f"{f'The array {name}' if name else 'An array'} of shape {shape} cannot be put onto {given}.",
            where=here(),
            why="open dims and priorities are for propagation, and an array with contents is laid out in one way",
            fix=f"{pasted(spec)}, or a constraint inside of mw.jit",
        )
    found = sharding_for(place, shape, name)
    if isinstance(place, TensorSharding) and isinstance(found, NamedSharding):
        return NamedSharding(found.mesh, found.spec.closed())
    return found


def spread(places: Any, full: Any, what: str) -> list[Any]:
    """For each leaf of ``full``, what ``places`` says there; None where it says nothing."""
    if places is None or isinstance(places, PLACES):
        return [places] * len(tree.leaves(full))
    said, structure = tree.flatten(places, lambda x: x is None or isinstance(x, PLACES))
    try:
        below = structure.flatten_up_to(full)
    except ValueError:
        shown = tree.outline(places, "sharding", lambda x: isinstance(x, PLACES))
        wanted = tree.outline(full, "sharding")
        raise TreeError(
            f"{what} is given shardings that do not fit the tree of arrays.",
            where=here(),
            why=f"the shardings are {shown}, and the arrays {tree.outline(full, '*')}",
            fix="give one sharding for everything, or one for each part"
            + ("" if wanted.endswith("…") else f": {wanted}"),
        ) from None
    return [place for place, part in zip(said, below, strict=True) for _ in tree.leaves(part)]


def _current_mesh(spec: PartitionSpec) -> BaseMesh:
    mesh = state.manual.mesh if state.manual is not None and state.manual.mesh is not None else get_mesh()
    if mesh is None:
        raise MeshError(
            f"{spec} is given without a mesh.",
            where=here(),
            why="a spec names axes of the current mesh, and none is set",
            fix=f"mw.NamedSharding(mesh, {pasted(spec)}), or with mw.set_mesh(mesh): …",
        )
    return mesh


def _no_devices(mesh: BaseMesh) -> MeshError:
    return MeshError(
        f"An array cannot be put onto {mesh.short()}.",
        where=here(),
        why="the mesh has no devices",
        fix=f"mw.make_mesh({mesh.axis_sizes or (2, 4)}, {mesh.axis_names or ('x', 'y')})",
    )


def check_places(places: Sequence[Any]) -> None:
    """An error for what names no place, whether or not it is ever looked at."""
    for place in places:
        if place is not None and not isinstance(
            place, SingleDeviceSharding | Device | PartitionSpec | NamedSharding | TensorSharding
        ):
            raise _no_place(place)


def _no_place(place: Any) -> ShardingError:
    what = "a mesh" if isinstance(place, BaseMesh) else repr(place)
    return ShardingError(
        f"An array cannot be put onto {what}.",
        where=here(),
        why="give a sharding, a device, or a P on the current mesh"
        + ("; a mesh does not say how the array is split" if isinstance(place, BaseMesh) else ""),
        fix=EXAMPLE,
    )
