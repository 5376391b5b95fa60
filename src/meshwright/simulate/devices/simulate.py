"""`dist.simulate`: a device program on a machine."""

from __future__ import annotations

from itertools import islice
from typing import Any

from meshwright.device.device_map import DeviceMap
from meshwright.device.from_program import takes_program
from meshwright.device.function import Function
from meshwright.device.resolve import as_device_map, check_sizes, names_devices
from meshwright.device.symmetry import Covers, Distances, Folding, Roles, by_distance, check_distances
from meshwright.device.types import Tensor
from meshwright.device.walk import Walk
from meshwright.errors import MeshwrightError
from meshwright.hardware.topology import Topology
from meshwright.simulate.devices.on_topology import OnTopology
from meshwright.simulate.devices.queues import run
from meshwright.simulate.devices.simulation import Assumptions, DeviceSimulation
from meshwright.simulate.devices.steady import steady_state

MOST_UNFOLDED = 512  # devices that are simulated one by one where they do parts of what others do


@takes_program
def simulate(
    fn: Function,
    device_map: Any = None,
    topology: Any = None,
    *,
    assumptions: Assumptions | None = None,
    fold: bool = True,
    steady: bool = False,
    events: bool = True,
    **sizes: int,
) -> DeviceSimulation:
    """When each op runs and what memory it takes: on a `hardware.Topology`, or under assumptions of your own.

    Devices that do the same under the device map, at the same distances from each other, are simulated once (``fold``):
    the first of a group stands for all.
    ``steady`` leaves out bringing the inputs to their devices and the outputs back, as in the midst of training.

    >>> from meshwright import dist
    >>> fn = dist.parse("def f(x: Tensor[(1024, 1024), 0]): y = MatMul(x, x) return y")
    >>> result = dist.simulate(fn, assumptions=dist.DistIR())
    >>> f"{result.seconds * 1e6:.1f} us", result.peak_bytes
    ('172.7 us', {0: 8388608})
    """
    if assumptions is None and topology is not None:
        assumptions = OnTopology(topology)
    if assumptions is None:
        raise MeshwrightError(
            "There is no machine to simulate on.",
            why="neither a topology nor assumptions are given"
            + ("; what comes second is a device map" if isinstance(device_map, str | Topology) else ""),
            fix='dist.simulate(fn, device_map, mw.hardware.Topology("h100", 8))',
        )
    check_sizes(fn, sizes)
    if fn.unfolded is not None and device_map is None and not sizes:
        fn, device_map, sizes = fn.unfolded
    if not sizes and _is_flat(fn):
        if isinstance(assumptions, Distances):
            check_distances(fn, assumptions)
        alone = run(steady_state(fn) if steady else fn, assumptions, events=events)
        alone.same_devices = by_distance(fn)
        return alone
    devices = as_device_map(device_map, fn)
    folded = _folded(fn, devices, sizes, assumptions, steady) if fold else None
    found = run(folded[0], assumptions, *folded[1:], events=events) if folded is not None else None
    # A device that does a part of what the one does that stands for it may do so at other times, and so may those whose
    # messages take turns on a link: where there are few devices each is simulated, of many it is taken for granted.
    uneven = found is not None and any(len(parts) > 1 for parts in found.roles.sets.values())
    if folded is not None and isinstance(assumptions, OnTopology):
        uneven = uneven or any(map(assumptions.takes_turns, folded[0].eqns))
    if found is not None and not (uneven and assumptions.overlap and _are_few(devices)):
        return found
    flat = Walk(fn, devices, sizes).run().flat
    each = run(steady_state(flat) if steady else flat, assumptions, events=events)
    return found if found is not None and found.agrees(each) else each


def _are_few(devices: DeviceMap | None) -> bool:
    return devices is None or sum(1 for _ in islice(devices.paths(), MOST_UNFOLDED + 1)) <= MOST_UNFOLDED


def _folded(
    fn: Function, devices: DeviceMap | None, sizes: dict[str, int], assumptions: Assumptions, steady: bool
) -> tuple[Function, Covers, Roles] | None:
    """The flat program with devices that do the same written once, and who they are; None where that is not right."""
    crowded = isinstance(assumptions, OnTopology) and assumptions.crowded
    apart = devices is not None and devices.moves is None
    if not isinstance(assumptions, Distances) or names_devices(fn) or apart:
        return None
    try:
        walk = Walk(fn, devices, sizes, Folding(devices, assumptions)).run()
    except MeshwrightError:  # a program that takes the elements of a tuple one by one, or one that is wrong
        return None
    flat, covers = walk.flat, walk.covers
    roles = covers.roles(flat)
    if roles is not None and steady:
        program = steady_state(flat)
        covers.without_moves(flat, program)
        flat, roles = program, covers.roles(program)
    # On a torus, the messages of a device that does more than those it stands for would be in the way of theirs.
    if roles is None or (crowded and any(len(parts) > 1 for parts in roles.values())):
        return None  # roles are unknown where a device is named that another one stands for
    return flat, covers, roles


def _is_flat(fn: Function) -> bool:
    """Whether every value is a tensor on a device with a number already."""
    values = (*fn.inputs, *(v for eqn in fn.eqns for v in eqn.outputs))
    return all(isinstance(v.type, Tensor) and v.type.device.is_concrete for v in values) and not any(fn.bodies())
