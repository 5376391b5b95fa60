"""`dist.simulate`: a device program on a machine."""

from __future__ import annotations

from typing import Any

from meshwright.device.alike import Covers, Distances, Folding, by_distance, is_regular
from meshwright.device.device_map import DeviceMap
from meshwright.device.function import Function
from meshwright.device.on_topology import OnTopology
from meshwright.device.queues import run
from meshwright.device.resolve import as_device_map, check_sizes, names_devices, resolved
from meshwright.device.simulation import Assumptions, Simulation
from meshwright.device.steady import steady_state
from meshwright.device.types import Tensor
from meshwright.errors import DeviceError, MeshwrightError, ShapeError


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
) -> Simulation:
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
            why="neither a topology nor assumptions are given",
            fix='dist.simulate(fn, device_map, mw.hardware.Topology("h100", 8))',
        )
    check_sizes(fn, sizes)
    if not sizes and _is_flat(fn):
        flat, covers = fn, None
    else:
        flat, covers = _resolved(fn, as_device_map(device_map, fn), sizes, assumptions, fold)
    roles = covers.roles(flat) if covers is not None else {}
    if roles is None:  # a device is named that another one stands for
        flat, covers = resolved(fn, as_device_map(device_map, fn), sizes, None)[0], None
    program = steady_state(flat) if steady else flat
    if covers is not None and steady:
        covers.without_moves(flat, program)
        roles = covers.roles(program)
    found = run(program, assumptions, covers, roles or {}, events=events)
    if covers is None:
        found.alike = by_distance(flat)
    return found


def _resolved(
    fn: Function, devices: DeviceMap | None, sizes: dict[str, int], assumptions: Assumptions, fold: bool
) -> tuple[Function, Covers | None]:
    """The flat program; where devices that do the same are written once, whom they stand for."""
    machine = assumptions if isinstance(assumptions, Distances) else None
    # Messages of replicas may cross on a torus: one stands for all only if they are as far apart as the first.
    crowded = isinstance(assumptions, OnTopology) and assumptions.crowded
    if fold and machine is not None and not names_devices(fn) and not (crowded and not is_regular(devices)):
        try:
            return resolved(fn, devices, sizes, Folding(devices, machine))
        except (DeviceError, ShapeError):
            pass  # a program that takes the elements of a tuple one by one is written out, or refused for a reason
    return resolved(fn, devices, sizes, None)[0], None


def _is_flat(fn: Function) -> bool:
    """Whether every value is a tensor on a device with a number already."""
    values = (*fn.inputs, *(v for eqn in fn.eqns for v in eqn.outputs))
    return all(isinstance(v.type, Tensor) and v.type.device.is_concrete for v in values) and not any(fn.bodies())
