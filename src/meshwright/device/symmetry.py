"""Which devices do the same: the ones that stand for others in a folded program, and those they stand for."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import gcd, lcm
from typing import Protocol, runtime_checkable

from meshwright.device.device_map import DeviceMap, Devices, Members, Path, shifted
from meshwright.device.function import DeviceEqn, DeviceValue, Function
from meshwright.device.types import elements
from meshwright.errors import DeviceError

SameDevices = dict[int, Devices | tuple[int, ...]]
Roles = dict[int, list[Devices]]  # for each device that is written, sets of devices that do the same
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
    those between the devices that stand in the same place of each, which a regular map alone is asked for.
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
        if group.moves is None:
            trees = {_numbered(device, below) for device, below in group.listed}
            return self.machine is None and group.fan_outs is not None and len(trees) == 1
        top, *inner = group.moves
        if self.machine is None or not inner or len(top) == 1:
            return True
        machine, period = self.machine, self.machine.period
        rows = {_row(device, inner, machine) for device in _within(top, period, *inner)}
        if len(rows) > 1:
            return False
        # The devices in the same place of each tree: an axis of a mesh each, if the first tree stands between two.
        reach = sum(move[-1] for move in inner)
        between = isinstance(top, range) and (top[0] - 1) % (len(top) * top.step) + reach < top.step
        places = _places(top[0], [_within(move, period if between else None) for move in inner])
        columns = {
            machine.signature(_within(shifted(top, place - top[0]), period), [shifted(top, place - top[0])])
            for place in places
        }
        return len(columns) == 1


def _row(device: int, inner: Sequence[Members], machine: Distances) -> Hashable:
    """How far the devices below one are from each other, and what collectives of their groups cost."""
    groups = [
        shifted(group, place)
        for n, group in enumerate(inner)
        for place in _places(device, [_within(move, machine.period, group) for move in inner[:n]], leaves=True)
    ]
    return machine.signature(_places(device, [_within(move, machine.period) for move in inner]), groups)


def _within(group: Members, period: int | None, *others: Members) -> Members:
    """Of devices at equal distances, those that stand for all: others are a period of the machine and groups away."""
    if period is None or not isinstance(group, range):
        return group
    spans = [len(other) * other.step for other in others if isinstance(other, range)]
    whole = lcm(period, *spans)
    return group[: whole // gcd(whole, group.step) + 1]


def _places(device: int, moves: Sequence[Members], *, leaves: bool = False) -> list[int]:
    """A device and those below it, level by level; ``leaves`` are those of the last level."""
    levels = [[device]]
    for group in moves:
        levels.append([place + move for place in levels[-1] for move in group])
    return levels[-1] if leaves else [place for level in levels for place in level]


def _numbered(device: int, below: DeviceMap | None) -> tuple[int, ...]:
    """The devices of a tree by the order in which they come, so that the same one gets the same number."""
    numbers: dict[int, int] = {device: 0}
    return tuple(numbers.setdefault(path[-1], len(numbers)) for path in (below.paths() if below is not None else ()))


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
    _known: dict[tuple[int, Stack], Collection[int]] = field(default_factory=dict)

    def devices(self, device: int, stack: Stack) -> Collection[int]:
        """The devices that do what one does under a stack; none where it is outside of a group of the stack."""
        if (device, stack) not in self._known:
            groups = [group for group in stack if len(group) > 1]
            inside = all(self._leads(group, device) for group in groups)
            self._known[device, stack] = Devices(device, groups) if inside else ()
        return self._known[device, stack]

    def _leads(self, group: Members, device: int) -> bool:
        """Whether a device is the first of a group, or below it in the map."""
        assert self.device_map is not None
        moves = self.device_map.moves
        assert moves is not None, "devices of a regular map stand for others"
        flat = shifted(group, -group[0])
        level = next(n for n, move in enumerate(moves) if len(move) > 1 and shifted(move, -move[0]) == flat)
        bases = accumulate([move[0] for move in moves[level + 1 :]], initial=group[0])
        return any(device in Devices(base, moves[level + 1 : level + 1 + n]) for n, base in enumerate(bases))

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

    def _stands_for_one(self, device: int, stack: Stack, written: Mapping[int, object]) -> bool:
        """Whether a device stands for another one that is written, too."""
        found = self.devices(device, stack)
        if len(found) < len(written):
            return any(other in written for other in found if other != device)
        return any(other in found for other in written if other != device)

    def roles(self, fn: Function) -> Roles | None:
        """For each device that is written, sets of devices that do the same; the device itself is in the first.

        None where a device that is written does something else than the one that stands for it, or where sets overlap.
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
            inside = [stack for stack in under if self.devices(device, stack)]
            nested = sorted({frozenset(g for g in stack if len(g) > 1) for stack in inside}, key=len)
            stands = any(self._stands_for_one(device, stack, stacks) for stack in inside)
            if stands or any(not small <= large for small, large in pairwise(nested)):
                return None
            parts: list[Devices] = []
            for groups in nested:
                parts.append(Devices(device, groups, Devices(device, nested[len(parts) - 1]) if parts else None))
            found[device] = parts
        return found


def whole_of(parts: Sequence[Devices]) -> Devices:
    """The devices that one stands for: all of the last part, and those that it is without."""
    return Devices(parts[-1].first, parts[-1].loops)


def device_of(value: DeviceValue) -> int:
    """The device of a value of a resolved program."""
    assert value.type is not None
    base = elements(value.type).device.base
    assert isinstance(base, int), f"{value} is on a device with a number"
    return base


def _folded_groups(fn: Function) -> set[tuple[int, ...]]:
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
