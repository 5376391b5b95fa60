"""Resolution: a device program on a device map becomes a flat one, every value a tensor on a device with a number."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

from meshwright.device.device_map import DeviceMap
from meshwright.device.from_program import takes_program
from meshwright.device.function import DeviceEqn, Function
from meshwright.device.symmetry import Folding
from meshwright.device.types import Device, Tensor
from meshwright.device.walk import Walk, symbols_of
from meshwright.errors import ShapeError


def as_device_map(given: Any, fn: Function) -> DeviceMap | None:
    """The map to use: the one given, or the function's own."""
    if given is None:
        return fn.device_map
    return given if isinstance(given, DeviceMap) else DeviceMap(given)


@takes_program
def resolve(fn: Function, device_map: Any = None, *, fold: bool = False, **sizes: int) -> Function:
    """The flat program: no pmaps, every value a tensor on a device with a number; sizes of symbols may be given.

    Every annotation is checked on the way: shapes, devices, lengths of tuples, replicas that share a device. With
    ``fold``, devices that do the same are written once: the first of a group stands for all, and its collectives name
    their ``members``; devices that a program names one by one are all written.

    >>> from meshwright import dist
    >>> fn = dist.parse("def f(x: Tensor[(B, F), 0]): xs = scatter(x, dim=0, device_keys=[]) return xs")
    >>> print(dist.resolve(fn, {1: [1, 3], 2: [2, 4]}, B=8))
    def f(x_0: Tensor[(8, F), 0]):
        xs_1: Tensor[(4, F), 1], xs_2: Tensor[(4, F), 2] = scatter(x_0, dim=0, devices=[1, 2])
        return xs_1, xs_2
    """
    check_sizes(fn, sizes)
    devices = as_device_map(device_map, fn)
    folding = Folding(devices) if fold and not names_devices(fn) else None
    found = Walk(fn, devices, sizes, folding).run().flat
    if folding is not None:
        found.__dict__["unfolded"] = (fn, devices, sizes)  # which devices do the same depends on the machine, too
    return found


def check_sizes(fn: Function, sizes: Mapping[str, int]) -> None:
    """Refuse sizes of symbols that a function does not have, and those that are no sizes."""
    unknown = sorted(set(sizes) - symbols_of(fn))
    if unknown:
        raise ShapeError(
            f"{fn.name} has no symbol {unknown[0]}.",
            why=f"its symbols are {', '.join(sorted(symbols_of(fn))) or 'none'}",
            fix="name a symbol of the inputs' shapes",
        )
    for name, size in sizes.items():
        if not isinstance(size, Integral) or isinstance(size, bool) or size < 0:
            raise ShapeError(f"{name} is {size!r}.", why="it is the size of a dim: a whole number", fix=f"{name}=8")


def names_devices(fn: Function) -> bool:
    """Whether devices are named one by one, of which the map does not say that they do the same."""
    return any(map(_names_devices, fn.eqns)) or any(
        any(map(_names_one, body.eqns)) or names_devices(body) for body in fn.bodies()
    )


def _names_devices(eqn: DeviceEqn) -> bool:
    """Whether a tuple is spread over devices with numbers, below one, or by a map that is not the program's."""
    spread = "devices" in eqn.attributes and not (len(eqn.outputs) == 1 and isinstance(eqn.outputs[0].type, Tensor))
    own = "device_map" in eqn.attributes
    return spread or own or any(isinstance(key, int) for key in eqn.attributes.get("device_keys", ()))


def _names_one(eqn: DeviceEqn) -> bool:
    """Whether an equation is on a device of which the map says nothing: the same one in every replica, or ``d+1``."""
    found = [eqn.attributes.get(name) for name in ("to_device", "device")]
    return any(isinstance(d, Device) and (d.is_concrete or d.offset != 0) for d in found)


@takes_program
def check(fn: Function, device_map: Any = None) -> Function:
    """Return ``fn`` if its annotations, devices and tuples are right on a device map; otherwise say what is not.

    >>> from meshwright import dist
    >>> fn = dist.check(dist.parse("def f(x: Tensor[(B,), 0]): y: Tensor[(B,), 0] = tanh(x) return y"))
    """
    resolve(fn, device_map)
    return fn
