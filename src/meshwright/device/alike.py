"""Which devices do the same: the ones that stand for others in a folded program, and those they stand for."""

from __future__ import annotations

from meshwright.device.device_map import DeviceMap
from meshwright.device.function import Function

Alike = dict[int, tuple[int, ...]]


def alike_devices(fn: Function, device_map: DeviceMap | None) -> Alike:
    """For each device that a folded program writes, all that it stands for; nothing where none is folded.

    Groups of which a scatter, a broadcast or a collective writes the first alone are folded.

    >>> from meshwright import dist
    >>> fn = dist.parse("def f(x: Tensor[(8,), 0]): xs = scatter(x, dim=0, device_keys=[]) s = allreduce(xs) return s")
    >>> devices = dist.DeviceMap([1, 2, 3, 4])
    >>> alike_devices(dist.resolve(fn, devices, fold=True), devices)
    {1: (1, 2, 3, 4)}
    """
    groups = {
        tuple(eqn.attributes[name])
        for eqn in fn.eqns
        for name, written in (("devices", eqn.outputs), ("members", eqn.values))
        if name in eqn.attributes and len(eqn.attributes[name]) > len(written)
    }
    if not groups:
        return {}
    if device_map is None:
        return _by_distance(fn, groups)
    found: dict[int, dict[int, None]] = {}

    def walk(below: DeviceMap, shown: DeviceMap) -> None:
        folded = shown.keys() in groups
        for n, (device, inner) in enumerate(below.nodes):
            first, of = shown.nodes[0 if folded else n]
            found.setdefault(first, {})[device] = None
            if inner is not None and of is not None:
                walk(inner, of)

    walk(device_map, device_map)
    return {device: tuple(others) for device, others in found.items()}


def _by_distance(fn: Function, groups: set[tuple[int, ...]]) -> Alike:
    """Without a map: a device stands for the groups it leads, and for theirs, as far apart as in its own."""
    found: Alike = {}
    written = {group[0] for group in groups}
    for device in sorted(written):
        reached = [device]
        for group in sorted(g for g in groups if g[0] == device):
            reached = [base + member - device for base in reached for member in group]
        found[device] = tuple(sorted(dict.fromkeys(reached)))
    return found


def is_regular(device_map: DeviceMap | None) -> bool:
    """Whether what stands below each device of a level is what stands below the first, moved by one distance."""
    if device_map is None:
        return True
    shapes = {tuple(path[-1] - device for path in below.paths()) if below else () for device, below in device_map.nodes}
    return len(shapes) == 1 and all(is_regular(below) for _, below in device_map.nodes[:1])
