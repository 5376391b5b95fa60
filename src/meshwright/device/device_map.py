"""Device maps: trees of devices, of any depth and any fan-out, that say which devices a nested pmap runs on."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import filterfalse, islice, pairwise, repeat
from math import prod
from typing import Any, Union

from meshwright.device.types import Device
from meshwright.errors import DeviceError

Path = tuple[int, ...]
Members = range | tuple[int, ...]  # devices side by side, in order
Node = tuple[int, Union["DeviceMap", None]]

DEEPEST = 100  # levels of a map; a dict that holds itself has more
SHOWN = 16  # devices that a message names
MOST_DEVICES = 1 << 20


@dataclass(frozen=True, init=False, repr=False)
class DeviceMap:
    """A tree of devices: a dict from devices to what stands below them, or a list of devices.

    Each device stands in one place. A device may also stand among its own children: it then leads its group, as 1 and
    2 do in the example.

    >>> m = DeviceMap({1: [1, 3], 2: [2, 4]})
    >>> m.lookup(()), m.lookup((2,)), m.depth, m.fan_outs
    ((1, 2), (2, 4), 2, (2, 2))
    >>> m[1], m[Device(2)], len(m), [str(d) for d in m]
    ([Device(1), Device(3)], [Device(2), Device(4)], 2, ['1', '2'])
    >>> DeviceMap([1, 2]), DeviceMap.grid(2, 2)
    (DeviceMap([1, 2]), DeviceMap({1: [1, 2], 3: [3, 4]}))

    Below a device variable stands what resolution will find there: ``scatter(x, dim=0, devices=m[d])``.

    A map is regular where each device of a level has the same below it, moved by its number. ``moves`` are then the
    devices of a group at each level, less the device above; nothing else is kept of it. Other maps are ``listed``.
    """

    moves: tuple[Members, ...] | None
    listed: tuple[Node, ...]

    def __init__(self, devices: Mapping[int, Any] | Sequence[int] | DeviceMap) -> None:
        made = devices if isinstance(devices, DeviceMap) else _read(devices)
        _keep(self, made.moves, made.listed)
        if self.depth > 1 and not isinstance(devices, DeviceMap):
            self._check()

    @staticmethod
    def grid(*fan_outs: int, first: int = 1) -> DeviceMap:
        """A regular tree over consecutive devices, each group led by its first."""
        if not fan_outs or any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in fan_outs):
            raise DeviceError(
                f"A grid of {', '.join(map(str, fan_outs)) or 'no sizes'} has no devices.",
                why="it takes the number of devices at each level, from 1",
                fix="DeviceMap.grid(2, 4)",
            )
        _check_count(prod(fan_outs))
        if not isinstance(first, int) or isinstance(first, bool) or first < 0:
            raise _not_devices(first)
        steps = [prod(fan_outs[level + 1 :]) for level in range(len(fan_outs))]
        top, *inner = (range(0, count * step, step) for count, step in zip(fan_outs, steps, strict=True))
        return _regular((shifted(top, first), *inner))

    def keys(self) -> Members:
        """The devices of the top level."""
        return self.moves[0] if self.moves is not None else as_members([device for device, _ in self.listed])

    @cached_property
    def _listed(self) -> dict[int, DeviceMap | None]:
        return dict(self.listed)

    def _under(self, key: int) -> DeviceMap | None:
        if self.moves is None:
            return self._listed[key]
        return _regular((shifted(self.moves[1], key), *self.moves[2:])) if len(self.moves) > 1 else None

    @cached_property
    def devices(self) -> dict[Device, DeviceMap | list[Device] | None]:
        """What stands below each key: a map, a list of devices, or None."""
        return {Device(key): self._child(key) for key in self.keys()}

    def items(self) -> Iterable[tuple[Device, DeviceMap | list[Device] | None]]:
        """The keys, and what stands below each."""
        return self.devices.items()

    def __len__(self) -> int:
        return len(self.keys())

    def __iter__(self) -> Iterator[Device]:
        return iter(self.devices)

    def __contains__(self, device: object) -> bool:
        """Whether a device is a key of the top level."""
        number = device.base if isinstance(device, Device) and device.sub is None else device
        return isinstance(number, int) and number in (self.keys() if self.moves is not None else self._listed)

    def __getitem__(self, key: int | Device) -> Any:
        """What stands below a key: a map, or the list of devices at the end; below a variable, what will be found."""
        if isinstance(key, Device | str) and not isinstance(getattr(key, "base", key), int):
            return Lookup(self, (key,))
        self.group([key])
        return self._child(_number(key))

    def _child(self, key: int) -> DeviceMap | list[Device] | None:
        below = self._under(key)
        return below if below is None or below.depth > 1 else DeviceList(below)

    def lookup(self, keys: Sequence[int | Device]) -> tuple[int, ...]:
        """The devices below a path of keys; no keys: the top level."""
        return tuple(self.group(keys))

    def group(self, keys: Sequence[int | Device]) -> Members:
        """The devices below a path of keys, at equal distances a range."""
        found, above = self.below(keys), self.below(keys[:-1])
        if found is None:
            raise DeviceError(
                f"Device {keys[-1]} has no devices below it in the device map.",
                why=f"{f'the map is {above}: ' if len(above or ()) <= SHOWN else ''}{keys[-1]} is a leaf",
                fix=f"DeviceMap({{…, {keys[-1]}: [{keys[-1]}, …]}})",
            )
        return found.keys()

    def below(self, keys: Sequence[int | Device]) -> DeviceMap | None:
        """What stands below a path of keys, None for a leaf."""
        found: DeviceMap | None = self
        for n, key in enumerate(keys):
            if found is None:
                self.group(keys[:n])
            assert found is not None
            if key not in found:
                raise DeviceError(
                    f"The device map has no key {key}.",
                    why=f"its keys are {_some(found.keys())}",
                    fix=f"device_keys=[{found.keys()[0]}]",
                )
            found = found._under(_number(key))
        return found

    @property
    def depth(self) -> int:
        """The number of levels."""
        if self.moves is not None:
            return len(self.moves)
        return 1 + max((below.depth for _, below in self.listed if below is not None), default=0)

    @property
    def fan_outs(self) -> tuple[int, ...] | None:
        """The number of devices at each level of a regular tree, None where groups differ."""
        found = [self.fan_out(level) for level in range(self.depth)]
        return None if None in found else tuple(found)  # type: ignore[arg-type]

    def fan_out(self, level: int) -> int | None:
        """The number of children every node of a level has, None where they differ or there is no such level."""
        if level == 0 or self.moves is not None:
            return len((self.moves or [self.keys()])[level]) if level < self.depth else None
        found = {below.fan_out(level - 1) if below is not None else None for _, below in self.listed}
        return found.pop() if len(found) == 1 else None

    def all_devices(self) -> frozenset[int]:
        """Every device of the tree."""
        return frozenset(path[-1] for path in self.paths())

    def paths(self) -> Iterator[Path]:
        """The path of each node, parents first."""
        for device in self.keys():
            yield (device,)
            below = self._under(device)
            if below is not None:
                yield from ((device, *rest) for rest in below.paths())

    def _check(self) -> None:
        owner: dict[int, Path] = {}
        for path in self.paths():
            device = path[-1]
            earlier = owner.setdefault(device, path)
            if earlier is not path and path != (*earlier, *(device,) * (len(path) - len(earlier))):
                raise DeviceError(
                    f"Device {device} stands in two places of a device map.",
                    why=f"it is at {_show(earlier)} and at {_show(path)}; two parts of the program would share it",
                    fix="give each group devices of its own; a device repeats only below itself, as 1 in {1: [1, 3]}",
                )

    def __repr__(self) -> str:
        return f"DeviceMap({self})"

    def __str__(self) -> str:
        if self.depth == 1:
            return f"[{', '.join(map(str, self.keys()))}]"
        return f"{{{', '.join(f'{device}: {self._under(device)}' for device in self.keys())}}}"


def as_members(devices: Sequence[int]) -> Members:
    """Devices as a group: a range where they rise at equal distances."""
    step = devices[1] - devices[0] if len(devices) > 1 else 1
    even = range(devices[0], devices[0] + step * len(devices), step) if devices and step > 0 else ()
    return even if list(even) == list(devices) else tuple(devices)


def shifted(group: Members, by: int) -> Members:
    """The devices of a group moved by a distance."""
    if isinstance(group, range):
        return range(group.start + by, group.stop + by, group.step)
    return tuple([device + by for device in group])


class Devices(Collection[int]):
    """Devices in rising order: a first one moved by each of some distances, without those of another set.

    >>> Devices(1, [range(0, 16, 8), range(2)])
    Devices([1, 2, 9, 10])
    >>> several = Devices(1, [range(0, 1 << 40, 8)], Devices(1))
    >>> several.least, len(several), 17 in several, 18 in several
    (9, 137438953471, True, False)
    """

    __slots__ = ("first", "loops", "without")

    def __init__(self, first: int, groups: Iterable[Members] = (), without: Devices | None = None) -> None:
        self.first, self.without = first, without
        loops: list[Members] = []
        for group in groups:
            loop = group if isinstance(group, range) else tuple(sorted(group))
            self.first += loop[0] - group[0]
            loops += [shifted(loop, -loop[0])] if len(loop) > 1 else []
        merged: list[Members] = []
        for loop in sorted(loops, key=lambda loop: loop[1]):
            last = merged[-1] if merged else ()
            if isinstance(last, range) and isinstance(loop, range) and last[-1] + last.step == loop.step:
                merged[-1] = range(0, loop[-1] + last[-1] + 1, last.step)
            elif last and _nearest(loop) <= sum(inner[-1] for inner in merged):  # not one after the other
                merged = [tuple(sorted(set(_sums(0, [loop, *merged]))))]
            else:
                merged.append(loop)
        self.loops = tuple(reversed(merged))

    def __len__(self) -> int:
        return prod(map(len, self.loops)) - (len(self.without) if self.without is not None else 0)

    def __iter__(self) -> Iterator[int]:
        every = _sums(self.first, self.loops)
        return every if self.without is None else filterfalse(self.without.__contains__, every)

    def __contains__(self, device: object) -> bool:
        if not isinstance(device, int) or (self.without is not None and device in self.without):
            return False
        left = device - self.first
        for loop in self.loops:
            at = bisect_right(loop, left) - 1
            if at < 0:
                return False
            left -= loop[at]
        return left == 0

    @property
    def least(self) -> int:
        """The first of the devices."""
        return next(iter(self))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Devices | tuple) or len(self) != len(other):
            return False
        alike = isinstance(other, Devices) and (self.first, self.loops) == (other.first, other.loops)
        return (alike and self.without == other.without) or tuple(self) == tuple(other)  # type: ignore[union-attr]

    def __hash__(self) -> int:
        return hash((self.first, len(self)))

    def __repr__(self) -> str:
        return f"Devices([{_some([*islice(self, SHOWN + 1)])}])"


def _sums(first: int, loops: Sequence[Members]) -> Iterator[int]:
    """A number moved by each of some distances, the last loop the fastest."""
    if not loops:
        yield first
    else:
        for move in loops[0]:
            yield from _sums(first + move, loops[1:])


def _nearest(loop: Members) -> int:
    """The least distance between devices in rising order."""
    return loop.step if isinstance(loop, range) else min(b - a for a, b in pairwise(loop))


class DeviceList(list[Device]):
    """The devices at the end of a device map, in order."""

    def __init__(self, group: DeviceMap) -> None:
        super().__init__(map(Device, group.keys()))

    def keys(self) -> list[Device]:
        """The devices, as the keys of a map are."""
        return list(self)


@dataclass(frozen=True)
class Lookup:
    """What stands in a device map below keys of which some are device variables; resolution finds it."""

    device_map: DeviceMap | None
    keys_: tuple[Any, ...] = ()

    def __getitem__(self, key: Any) -> Lookup:
        return Lookup(self.device_map, (*self.keys_, key))

    def keys(self) -> Lookup:
        """The devices there."""
        return self


def _show(path: Path) -> str:
    return "device_map" + "".join(f"[{key}]" for key in path)


def _some(devices: Sequence[int]) -> str:
    """Devices by number, the first of very many."""
    return ", ".join([*map(str, devices[:SHOWN]), *(["…"] if len(devices) > SHOWN else [])])


def _read(given: Any, level: int = 1) -> DeviceMap:
    if isinstance(given, DeviceMap):
        return given
    if level > DEEPEST:
        raise DeviceError(
            f"A device map has more than {DEEPEST} levels.",
            why="its groups hold groups without end, or nearly so",
            fix="DeviceMap.grid(2, 4)",
        )
    if not isinstance(given, Mapping | Sequence) or isinstance(given, str):
        raise _not_devices(given)
    _check_count(-((given.start - given.stop) // given.step) if isinstance(given, range) else len(given))
    if not given:
        what = "A device map" if level == 1 else "A group of a device map"
        why, fix = ("the tree is empty", "DeviceMap([1, 2])") if level == 1 else ("its list is empty", "{1: [1, 3]}")
        raise DeviceError(f"{what} has no devices.", why=why, fix=fix)
    inner = given.values() if isinstance(given, Mapping) else repeat(None, len(given))
    below = [None if tree is None else _read(tree, level + 1) for tree in inner]
    keys = [_number(key) for key in given]
    if len(set(keys)) < len(keys):
        key = next(key for key, count in Counter(keys).items() if count > 1)
        raise DeviceError(
            f"Device {key} is listed twice in a device map.",
            why=f"[{_some(keys)}] are the devices of one group",
            fix=f"[{_some(list(dict.fromkeys(keys)))}]",
        )
    first = _moves(keys[0], below[0])
    if first is None or any(_moves(*node) != first for node in zip(keys, below, strict=True)):
        return _keep(object.__new__(DeviceMap), None, tuple(zip(keys, below, strict=True)))
    return _regular((as_members(keys), *first))


def _moves(key: int, below: DeviceMap | None) -> tuple[Members, ...] | None:
    """The moves of what stands below a key, less the key; None where it is not regular."""
    if below is None or below.moves is None:
        return () if below is None else None
    return shifted(below.moves[0], -key), *below.moves[1:]


def _number(key: Any) -> int:
    number = key.base if isinstance(key, Device) and key.sub is None else key
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise _not_devices(key)
    return number


def _check_count(devices: int) -> None:
    if devices > MOST_DEVICES:
        raise DeviceError(
            f"A device map of {devices} devices is not listed.",
            why=f"up to {MOST_DEVICES} devices are",
            fix="fewer devices, or a program without a device map: its parts are then symbols",
        )


def _not_devices(given: object) -> DeviceError:
    return DeviceError(
        f"{given!r} is not a device or a tree of devices.",
        why="a device is a whole number from 0; a map is a list of devices, or a dict from devices to maps",
        fix="DeviceMap({1: [1, 3], 2: [2, 4]})",
    )


def _keep(made: DeviceMap, moves: tuple[Members, ...] | None, listed: tuple[Node, ...]) -> DeviceMap:
    object.__setattr__(made, "moves", moves)
    object.__setattr__(made, "listed", listed)
    return made


def _regular(moves: tuple[Members, ...]) -> DeviceMap:
    return _keep(object.__new__(DeviceMap), moves, ())
