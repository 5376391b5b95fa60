"""Arrays on a mesh made of parts: by a function of their index, from the arrays of single devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.arrays.device_put import final_sharding
from meshwright.arrays.operands import as_dtype
from meshwright.arrays.shards import parts
from meshwright.arrays.static import static_shape
from meshwright.arrays.tracing import leaf_value
from meshwright.core.current import current_processes
from meshwright.core.source import here
from meshwright.core.trace import Array, to_array
from meshwright.core.types import TensorType
from meshwright.errors import ShapeError
from meshwright.sharding.placement import Index


def make_array_from_callback(
    shape: Sequence[int], sharding: Any, data_callback: Callable[[Index], Any], dtype: Any = None
) -> Array:
    """An array of which each device's part is what ``data_callback`` returns for its index, asked once for each part.

    >>> import meshwright as mw, numpy as np
    >>> place = mw.NamedSharding(mw.make_mesh((2,), ("x",)), mw.P("x"))
    >>> make_array_from_callback((4,), place, lambda index: np.arange(4.0)[index])
    Array([0., 1., 2., 3.], dtype=float32)
    """
    whole = static_shape(shape, "the shape of make_array_from_callback")
    place = final_sharding(sharding, whole)
    found: dict[Any, Any] = {}
    for _, index, _ in parts(place.to_tensor_sharding(len(whole)), whole):
        key = tuple(part.indices(size) for part, size in zip(index, whole, strict=True))
        if key not in found:
            found[key] = index, _contents(data_callback(index), dtype)
    return _joined(whole, place, list(found.values()))


def make_array_from_single_device_arrays(
    shape: Sequence[int], sharding: Any, arrays: Sequence[Any], *, dtype: Any = None
) -> Array:
    """An array whose parts are arrays that are on one device each.

    >>> import meshwright as mw, meshwright.numpy as mnp
    >>> place = mw.NamedSharding(mw.make_mesh((2,), ("x",)), mw.P("x"))
    >>> x = mw.device_put(mnp.arange(4.0), place)
    >>> make_array_from_single_device_arrays((4,), place, [shard.data for shard in x.addressable_shards]).tolist()
    [0.0, 1.0, 2.0, 3.0]
    """
    whole = static_shape(shape, "the shape of make_array_from_single_device_arrays")
    place = final_sharding(sharding, whole)
    table = parts(place.to_tensor_sharding(len(whole)), whole)
    held = {x.sharding.device: x for x in arrays if hasattr(getattr(x, "sharding", None), "device")}
    missing = next((device for device, _, _ in table if device not in held), None)
    if missing is not None or len(arrays) != len(table):
        raise ShapeError(
            f"make_array_from_single_device_arrays is given {len(arrays)} arrays for {len(table)} devices.",
            where=here(),
            why=f"none of them is on {missing}" if missing is not None else "each device of the sharding has one",
            fix="[mw.device_put(part, device) for device, part in zip(mesh.devices.flat, data)]",
        )
    return _joined(whole, place, [(index, np.asarray(held[device].data)) for device, index, _ in table])


def make_array_from_process_local_data(sharding: Any, local_data: Any, global_shape: Any = None) -> Array:
    """An array of which this process has ``local_data``: with one process, all of it.

    >>> import meshwright as mw, numpy as np
    >>> place = mw.NamedSharding(mw.make_mesh((2,), ("x",)), mw.P("x"))
    >>> make_array_from_process_local_data(place, np.arange(4.0)).sharding.spec
    P('x',)
    """
    data = _contents(local_data, None)
    whole = data.shape if global_shape is None else static_shape(global_shape, "global_shape")
    if current_processes.all.count > 1 or whole != data.shape:
        raise ShapeError(
            f"make_array_from_process_local_data is given data of shape {data.shape} for an array of {whole}.",
            where=here(),
            why=f"{current_processes.all.count} processes make the array",
            fix="make_array_from_callback(shape, sharding, lambda index: data[index])",
        )
    return make_array_from_callback(whole, sharding, lambda index: data[index])


def _contents(x: Any, dtype: Any) -> Any:
    data = np.asarray(leaf_value(x, "a part of an array"))  # type: ignore[call-overload]
    return data if dtype is None else data.astype(as_dtype(dtype))


def _joined(shape: tuple[int, ...], place: Any, found: Sequence[tuple[Index, Any]]) -> Array:
    """The array of these parts, each of the shape of its index."""
    dtype = to_array(found[0][1]).dtype
    whole = np.empty(shape, dtype)
    for index, part in found:
        if whole[index].shape != part.shape or part.dtype != dtype:
            raise ShapeError(
                f"The part {index} of an array of shape {shape} is {part.dtype}{list(part.shape)}.",
                where=here(),
                why=f"it is to be {dtype}{list(whole[index].shape)}",
                fix="lambda index: data[index]",
            )
        whole[index] = part
    return Array(whole, TensorType(shape, dtype), place)
