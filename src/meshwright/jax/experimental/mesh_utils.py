"""``jax.experimental.mesh_utils``: devices in the order that a mesh has them in."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.core.source import here
from meshwright.errors import MeshError
from meshwright.jax.devices import devices as all_devices
from meshwright.sharding.mesh import make_mesh


def create_device_mesh(
    mesh_shape: Sequence[int],
    devices: Sequence[Any] | None = None,
    *,
    contiguous_submeshes: bool = False,
    allow_split_physical_axes: bool = False,
) -> NDArray[np.object_]:
    """The devices as an array of shape ``mesh_shape``, which ``Mesh`` takes.

    >>> create_device_mesh((2, 2), [0, 1, 2, 3]).shape
    (2, 2)
    """
    given = list(all_devices() if devices is None else devices)
    shape = tuple(mesh_shape)
    if len(given) != prod(shape):
        raise MeshError(
            f"create_device_mesh is given {len(given)} devices for a mesh of shape {shape}.",
            where=here(),
            why=f"that mesh has {prod(shape)} devices",
            fix=f"create_device_mesh({shape}, jax.devices()[:{prod(shape)}]), or more devices: "
            f"meshwright run-jax --devices {prod(shape)}",
        )
    names = tuple(f"d{n}" for n in range(len(shape)))
    kinds = {getattr(device, "kind", "cpu") for device in given}
    if kinds == {"tpu"} and devices is None:  # whose places in the torus decide
        return make_mesh(shape, names, kind="tpu").devices
    return np.array(given, dtype=object).reshape(shape)


def create_hybrid_device_mesh(
    mesh_shape: Sequence[int],
    dcn_mesh_shape: Sequence[int],
    devices: Sequence[Any] | None = None,
    *,
    process_is_granule: bool = False,
    should_sort_granules_by_key: bool = True,
    allow_split_physical_axes: bool = False,
) -> NDArray[np.object_]:
    """Devices of several slices: ``dcn_mesh_shape`` slices of ``mesh_shape`` devices each, slices outermost.

    >>> create_hybrid_device_mesh((2,), (2,), [0, 1, 2, 3]).shape
    (4,)
    """
    slices, each = tuple(dcn_mesh_shape), tuple(mesh_shape)
    if len(slices) != len(each):
        raise MeshError(
            f"create_hybrid_device_mesh is given shapes {each} and {slices}.",
            where=here(),
            why="each axis has a size within a slice and a size across slices",
            fix="mesh_shape=(1, 4), dcn_mesh_shape=(2, 1)",
        )
    given = create_device_mesh((prod(slices), prod(each)), devices)
    parts = given.reshape(*slices, *each)
    order = [dim for n in range(len(each)) for dim in (n, n + len(each))]
    return parts.transpose(order).reshape([a * b for a, b in zip(slices, each, strict=True)])
