"""Which devices do the same: the ones that stand for others in a folded program, and those they stand for."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from meshwright.device.device_map import DeviceMap, Path
from meshwright.device.function import DeviceEqn, DeviceValue, Function
from meshwright.device.types import elements
from meshwright.errors import DeviceError

SameDevices = dict[int, tuple[int, ...]]
Members = tuple[int, ...]
Roles = dict[int, list[frozenset[int]]]  # for each device that is written, sets of devices that do the same
Stack = tuple[Members, ...]  # groups whose first device stands for all, the outermost first


@runtime_checkable
class Distances(Protocol):
    """What of a machine decides whether devices are as far from each other as others are."""

    @property
    def period(self) -> int | None:
        """Devices that are moved by a multiple of it are as far from each other as before; None if there is none."""
        ...

    def signature(self, devices: Sequence[int], groups: Sequence[Members]) -> Hashable:
        """Equal for lists of devices between which messages and collectives of groups cost the same, place by place."""
        ...


class Folding:
    """The groups of a device map whose devices do the same on a machine, so that the first of them stands for all.

    The trees below them are alike, down to which devices lead their groups; so are the distances in each tree, and
    those between the devices that stand in the same place of each.
    """

    def __init__(self, device_map: DeviceMap | None, machine: Distances | None = None) -> None:
        self.device_map, self.machine = device_map, machine
        self.known: dict[Path, bool] = {}

    def __call__(self, path: Path) -> bool:
        """Whether the devices below a path do the same."""
        found = self.known.get(path)
        if found is None:
            below = self.device_map.below(path) if self.device_map is not None else None
            found = self.known[path] = below is not None and self._do_the_same(below)
        return found

    def _do_the_same(self, group: DeviceMap) -> bool:
        if group.fan_outs is None:
            return False
        trees, machine = group.trees, self.machine
        if len(trees) == 1 or len(trees[0]) == 1:
            return True
        rows = np.array(trees)
        moved = bool((rows - rows[:, :1] == rows[0] - rows[0, 0]).all())  # the first tree, moved
        if not moved and len({_numbered(tree) for tree in trees}) > 1:
            return False
        if machine is None:
            return True
        below = [inner for _, inner in group.nodes]
        tested = _tested(rows, _groups(below[0]), machine) if moved else range(len(trees))
        if len({machine.signature(trees[n], _groups(below[n])) for n in tested}) > 1:
            return False
        columns = rows.T
        tested = _tested(columns, [tuple(columns[0].tolist())], machine) if moved else range(len(columns))
        across = (tuple(columns[n].tolist()) for n in tested)
        return len({machine.signature(column, [column]) for column in across}) == 1


def _tested(rows: np.ndarray[Any, Any], groups: Sequence[Members], machine: Distances) -> Sequence[int]:
    """Of rows of devices, which are the first row moved, those that stand for all: others are a whole period away."""
    if machine.period is None:
        return range(len(rows))
    spans = {machine.period, *(len(g) * (g[1] - g[0]) for g in groups if len(g) > 1 and g[1] > g[0])}
    key = np.zeros(len(rows), np.int64)
    for span in sorted(spans):
        key = key * span + (rows[:, 0] - 1) % span
    return np.unique(key, return_index=True)[1].tolist()  # type: ignore[no-any-return]


def _numbered(devices: Sequence[int]) -> tuple[int, ...]:
    """Devices by the order in which they come, so that the same one gets the same number."""
    numbers: dict[int, int] = {}
    return tuple(numbers.setdefault(device, len(numbers)) for device in devices)


def _groups(below: DeviceMap | None) -> list[Members]:
    if below is None:
        return []
    return [below.keys(), *(group for _, inner in below.nodes if inner is not None for group in _groups(inner))]


class Spot(NamedTuple):
    """A group of the map: its level, the tree below each of its devices, and the places in the first of them."""

    level: int
    trees: list[tuple[int, ...]]
    places: dict[int, int]


@dataclass
class Covers:
    """Whom the values and equations of a folded program stand for.

    A value is made inside of pmaps of which the first replica is written, or for a group of which the first device is:
    its stack. An equation is done on each of its devices under a stack; it is known by its first result. An output may
    be ``returned`` by fewer devices than have it.
    """

    device_map: DeviceMap | None = None
    values: dict[DeviceValue, Stack] = field(default_factory=dict)
    eqns: dict[DeviceValue, dict[int, Stack]] = field(default_factory=dict)
    taken: dict[DeviceValue, Stack] = field(default_factory=dict)
    returned: dict[DeviceValue, Stack] = field(default_factory=dict)
    _known: dict[tuple[int, Stack], frozenset[int]] = field(default_factory=dict)
    _spots: dict[Members, Spot] = field(default_factory=dict)

    def spot(self, group: Members) -> Spot:
        """Where a group of the map stands; what is folded is mostly below the first device of each level."""
        if not self._spots and self.device_map is not None:
            self._find(self.device_map, 0, everywhere=False)
        if group not in self._spots and self.device_map is not None:
            self._find(self.device_map, 0, everywhere=True)
        return self._spots[group]

    def _find(self, below: DeviceMap, level: int, *, everywhere: bool) -> None:
        keys = below.keys()
        if len(below.nodes) > 1 and keys not in self._spots:
            trees = below.trees
            places = {device: n for n, device in reversed([*enumerate(trees[0])])}
            self._spots[keys] = Spot(level, trees, places)
        for _, inner in below.nodes if everywhere else below.nodes[:1]:
            if inner is not None:
                self._find(inner, level + 1, everywhere=everywhere)

    def devices(self, device: int, stack: Stack) -> frozenset[int]:
        """The devices that do what one does under a stack; none where it is outside of a group of the stack."""
        found = self._known.get((device, stack))
        if found is None:
            reached = {device}
            spots = [self.spot(group) for group in stack if len(group) > 1]
            for spot in sorted(spots, key=lambda spot: -spot.level):
                if not reached <= spot.places.keys():
                    reached = set()
                reached = {tree[spot.places[x]] for x in reached for tree in spot.trees}
            found = self._known[device, stack] = frozenset(reached)
        return found

    def note(self, eqn: DeviceEqn, taken: Stack, made: Stack) -> None:
        """Remember the stacks under which an equation takes its operands and makes its results."""
        self.values.update(dict.fromkeys(eqn.outputs, made))
        self.taken[eqn.outputs[0]] = taken
        places: dict[int, Stack] = {}
        for stack, values in ((taken, eqn.values), (made, eqn.outputs)):
            for v in values:
                places[device_of(v)] = max(places.get(device_of(v), ()), stack, key=len)
        self.eqns[eqn.outputs[0]] = places

    def done(self, eqn: DeviceEqn) -> dict[int, Stack]:
        """The devices of an equation, and the stacks under which it is done there."""
        return self.eqns.get(eqn.outputs[0], {})

    def without_moves(self, flat: Function, steady: Function) -> None:
        """Note who keeps the outputs of a steady state: the devices that sent them away before."""
        kept = {eqn.outputs[0] for eqn in steady.eqns}
        for eqn in flat.eqns:
            if eqn.outputs[0] not in kept:
                for v in eqn.values:
                    self.returned[v] = max(self.returned.get(v, ()), self.taken[eqn.outputs[0]], key=len)

    def output(self, value: DeviceValue) -> Stack:
        """The stack under which an output is kept."""
        return self.returned.get(value, self.values.get(value, ()))

    def roles(self, fn: Function) -> Roles | None:
        """For each device that is written, sets of devices that do the same; the device itself is in the first.

        None where a device that is written does something else than the one that stands for it.
        """
        stacks: dict[int, dict[Stack, None]] = {}
        for v in fn.inputs:
            stacks.setdefault(device_of(v), {})[self.values.get(v, ())] = None
        for v in fn.outputs:
            stacks.setdefault(device_of(v), {})[self.output(v)] = None
        for eqn in fn.eqns:
            for device, stack in self.done(eqn).items():
                stacks.setdefault(device, {})[stack] = None
        found: Roles = {}
        for device, under in stacks.items():
            covers = [self.devices(device, stack) for stack in under]
            every = frozenset().union(*covers)
            if every & stacks.keys() != {device}:
                return None
            parts = [every]
            for cover in covers:
                parts = [part for whole in parts for part in (whole & cover, whole - cover) if part]
            found[device] = sorted(parts, key=lambda part: (device not in part, min(part)))
        return found


def device_of(value: DeviceValue) -> int:
    """The device of a value of a resolved program."""
    assert value.type is not None
    base = elements(value.type).device.base
    assert isinstance(base, int), f"{value} is on a device with a number"
    return base


def _folded_groups(fn: Function) -> set[Members]:
    """The groups of a flat program of which one device stands for all."""
    return {
        tuple(eqn.attributes[name])
        for eqn in fn.eqns
        for name, written in (("devices", eqn.outputs), ("members", eqn.values))
        if name in eqn.attributes and len(eqn.attributes[name]) > len(written)
    }


def by_distance(fn: Function) -> SameDevices:
    """Whom devices of a folded program stand for, without a map: the groups they lead, and theirs, as far apart."""
    groups = _folded_groups(fn)
    found: SameDevices = {}
    for device in sorted({group[0] for group in groups}):
        reached = [device]
        for group in sorted(g for g in groups if g[0] == device):
            reached = [base + member - device for base in reached for member in group]
        found[device] = tuple(sorted(dict.fromkeys(reached)))
    return found


def check_distances(fn: Function, machine: Distances) -> None:
    """Refuse a folded program without a map if a group stands for others, as far apart, that are not like it."""
    groups = _folded_groups(fn)
    for group in sorted(groups):
        moves = [0]
        for other in sorted(g for g in groups if g[0] == group[0] and g != group):
            moves = [move + member - group[0] for move in moves for member in other]
        first = machine.signature(group, [group])
        for move in moves:
            moved = tuple(member + move for member in group)
            if move and machine.signature(moved, [moved]) != first:
                raise DeviceError(
                    f"Devices {list(group)} stand for devices {list(moved)}, which are not as far from each other.",
                    why="the program is resolved with fold=True, and it is not known for which map",
                    fix="dist.simulate(fn, device_map, topology) of the program before it is resolved",
                )


def is_regular(device_map: DeviceMap | None) -> bool:
    """Whether what stands below each device of a level is what stands below the first, moved by one distance."""
    if device_map is None:
        return True
    shapes = {tuple(path[-1] - device for path in below.paths()) if below else () for device, below in device_map.nodes}
    return len(shapes) == 1 and all(is_regular(below) for _, below in device_map.nodes[:1])
