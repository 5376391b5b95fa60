"""`dist.simulate`: a device program on a machine."""

from __future__ import annotations

from functools import partial
from typing import Any

from meshwright.device.alike import alike_devices, is_regular
from meshwright.device.function import Function
from meshwright.device.on_topology import OnTopology
from meshwright.device.queues import run
from meshwright.device.resolve import as_device_map, resolve
from meshwright.device.simulation import Assumptions, Simulation
from meshwright.device.steady import steady_state
from meshwright.device.types import Tensor
from meshwright.errors import MeshwrightError


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

    Devices that do the same under the device map are simulated once (``fold``): the first of a group stands for all.
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
    devices = as_device_map(device_map, fn)
    # Messages of replicas may cross on a torus: one stands for all only if they are as far apart as the first.
    fold = fold and not (isinstance(assumptions, OnTopology) and assumptions.crowded and not is_regular(devices))
    flat = fn if not sizes and _is_flat(fn) else resolve(fn, devices, fold=fold, **sizes)
    find = partial(alike_devices, flat, devices)
    found = run(steady_state(flat) if steady else flat, assumptions, events=events)
    found.find_alike = find
    return found


def _is_flat(fn: Function) -> bool:
    """Whether every value is a tensor on a device with a number already."""
    values = (*fn.inputs, *(v for eqn in fn.eqns for v in eqn.outputs))
    return all(isinstance(v.type, Tensor) and v.type.device.is_concrete for v in values) and not any(fn.bodies())
