"""``jax.experimental.multihost_utils``: what several processes do together."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from meshwright.arrays.device_put import device_get, device_put, spread
from meshwright.core import tree
from meshwright.core.current import current_processes
from meshwright.core.source import here
from meshwright.errors import MeshwrightError
from meshwright.sharding.device import Device
from meshwright.sharding.mesh import Mesh
from meshwright.sharding.named import NamedSharding


def sync_global_devices(name: str) -> None:
    """Wait until all processes have come to the place called ``name``.

    >>> sync_global_devices("begin")
    """
    names = {data.decode() for data in current_processes.all.exchange(f"sync_global_devices({name!r})", name.encode())}
    if len(names) > 1:
        raise MeshwrightError(
            f"Processes wait at different places: {', '.join(sorted(names))}.",
            where=here(),
            why="sync_global_devices is called with one name by all",
            fix=f"sync_global_devices({name!r}) in every process",
        )


def assert_equal(in_tree: Any, fail_message: str = "") -> None:
    """Raise an AssertionError if the arrays of a tree differ between processes.

    >>> assert_equal({"step": 3})
    """
    found = json.dumps([np.asarray(x).tolist() for x in tree.leaves(device_get(in_tree))])
    if len(set(current_processes.all.exchange("assert_equal", found.encode()))) > 1:
        raise AssertionError(f"{fail_message} The processes have different values; this one has {found[:200]}.")


def broadcast_one_to_all(in_tree: Any, is_source: bool | None = None) -> Any:
    """What the source, by default the first process, has in a tree, for all processes.

    >>> broadcast_one_to_all({"step": np.int32(3)})
    {'step': array(3, dtype=int32)}
    """
    _alone("broadcast_one_to_all")
    return tree.map(np.asarray, in_tree)


def process_allgather(in_tree: Any, tiled: bool = False) -> Any:
    """The arrays of a tree of all processes: joined along their first dim if ``tiled``, or along a new one.

    >>> process_allgather(np.ones(2)).shape, process_allgather(np.ones(2), tiled=True).shape
    ((1, 2), (2,))
    """
    _alone("process_allgather")

    def one(x: Any) -> Any:
        whole = np.asarray(x)
        placed = isinstance(getattr(x, "sharding", None), NamedSharding)
        return whole if tiled or placed else whole[None]

    return tree.map(one, in_tree)


def host_local_array_to_global_array(local_inputs: Any, global_mesh: Mesh, pspecs: Any) -> Any:
    """The arrays of a tree on a mesh; with one process, what it has is all of them.

    >>> from meshwright.jax.sharding import Mesh, PartitionSpec as P
    >>> host_local_array_to_global_array(np.ones(4), Mesh([0, 1], "x"), P("x")).sharding.spec
    P('x',)
    """
    _alone("host_local_array_to_global_array")
    specs = spread(pspecs, local_inputs, "host_local_array_to_global_array")
    leaves, structure = tree.flatten(local_inputs)
    return tree.unflatten(
        structure, [device_put(x, NamedSharding(global_mesh, s)) for x, s in zip(leaves, specs, strict=True)]
    )


def global_array_to_host_local_array(global_inputs: Any, global_mesh: Mesh, pspecs: Any) -> Any:
    """The part of each array that the devices of this process hold; with one process, all of it.

    >>> global_array_to_host_local_array(np.ones(4), None, None).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    _alone("global_array_to_host_local_array")
    return global_inputs


class ProcessFailureError(RuntimeError):
    """That processes have ended; ``failed_devices`` are the devices that they had."""

    def __init__(self, failed_devices: set[Device]) -> None:
        super().__init__(f"processes with the devices {sorted(d.id for d in failed_devices)} have ended")
        self.failed_devices = failed_devices


@contextmanager
def live_devices(devices: Iterable[Device]) -> Iterator[set[Device]]:
    """The devices of those given whose processes are alive; inside, all of them are.

    >>> with live_devices([]) as alive:
    ...     alive
    set()
    """
    yield set(devices)


def reached_preemption_sync_point(step_id: int) -> bool:
    """Whether all processes are to save what they have at this step: nothing announces that they will be ended.

    >>> reached_preemption_sync_point(7)
    False
    """
    return False


def _alone(name: str) -> None:
    if current_processes.all.count > 1:
        raise MeshwrightError(
            f"{name} is called in a program of {current_processes.all.count} processes.",
            where=here(),
            why="processes exchange arrays as shards of arrays on a mesh of all devices",
            fix="mw.jit(lambda x: x, out_shardings=mw.NamedSharding(mesh, mw.P()))(x)",
        )
