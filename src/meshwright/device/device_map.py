"""Device maps: trees of devices, of any depth and any fan-out, that say which devices a nested pmap runs on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, repeat
from math import prod
from typing import Any

from meshwright.device.types import Device
from meshwright.errors import DeviceError

Path = tuple[int, ...]

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
    """

    nodes: tuple[tuple[int, DeviceMap | None], ...]

    def __init__(self, devices: Mapping[int, Any] | Sequence[int] | DeviceMap) -> None:
        object.__setattr__(self, "nodes", _nodes(devices))
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
        return _grid(fan_outs, first)

    def keys(self) -> tuple[int, ...]:
        """The devices of the top level."""
        return self._keys

    @cached_property
    def _keys(self) -> tuple[int, ...]:
        return tuple([device for device, _ in self.nodes])

    @cached_property
    def _below(self) -> dict[int, DeviceMap | None]:
        return dict(self.nodes)

    @cached_property
    def devices(self) -> dict[Device, DeviceMap | list[Device] | None]:
        """What stands below each key: a map, a list of devices, or None."""
        return {Device(key): self._child(key) for key in self.keys()}

    def items(self) -> Iterable[tuple[Device, DeviceMap | list[Device] | None]]:
        """The keys, and what stands below each."""
        return self.devices.items()

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[Device]:
        return iter(self.devices)

    def __contains__(self, device: object) -> bool:
        """Whether a device is a key of the top level."""
        return isinstance(device, int | Device) and device in self._below

    def __getitem__(self, key: int | Device) -> Any:
        """What stands below a key: a map, or the list of devices at the end; below a variable, what will be found."""
        if isinstance(key, Device | str) and not isinstance(getattr(key, "base", key), int):
            return Lookup(self, (key,))
        self._descend(key)
        return self._child(int(key.base if isinstance(key, Device) else key))  # type: ignore[arg-type]

    def _child(self, key: int) -> DeviceMap | list[Device] | None:
        below = self._below[key]
        return below if below is None or any(inner for _, inner in below.nodes) else DeviceList(below)

    def _descend(self, key: int | Device) -> DeviceMap:
        if key not in self:
            raise DeviceError(
                f"The device map has no key {key}.",
                why=f"its keys are {_some(self.keys())}",
                fix=f"device_keys=[{self.keys()[0]}]",
            )
        below = self._below[key]  # type: ignore[index]  # a device with a number equals the number
        if below is None:
            raise DeviceError(
                f"Device {key} has no devices below it in the device map.",
                why=f"{f'the map is {self}: ' if len(self.nodes) <= SHOWN else ''}{key} is a leaf",
                fix=f"DeviceMap({{…, {key}: [{key}, …]}})",
            )
        return below

    def lookup(self, keys: Sequence[int | Device]) -> tuple[int, ...]:
        """The devices below a path of keys; no keys: the top level."""
        below = self
        for key in keys:
            below = below._descend(key)
        return below.keys()

    def below(self, keys: Sequence[int]) -> DeviceMap | None:
        """What stands below a path of keys, None for a leaf."""
        found: DeviceMap | None = self
        for key in keys:
            assert found is not None
            found = found._below[key] if key in found else found._descend(key)
        return found

    @cached_property
    def trees(self) -> list[tuple[int, ...]]:
        """Each device of the top level with those below it, in the order of paths."""
        return [
            (device,) if below is None else (device, *chain.from_iterable(below.trees)) for device, below in self.nodes
        ]

    @property
    def depth(self) -> int:
        """The number of levels."""
        return 1 + max((below.depth for _, below in self.nodes if below is not None), default=0)

    @property
    def fan_outs(self) -> tuple[int, ...] | None:
        """The number of devices at each level of a regular tree, None where groups differ."""
        if all(below is None for _, below in self.nodes):
            return (len(self.nodes),)
        inner = {below.fan_outs if below is not None else () for _, below in self.nodes}
        if len(inner) != 1 or None in inner:
            return None
        (rest,) = inner
        assert rest is not None
        return (len(self.nodes), *rest)

    def fan_out(self, level: int) -> int | None:
        """The number of children every node of a level has, None where they differ or there is no such level."""
        if level == 0:
            return len(self.nodes)
        found = {below.fan_out(level - 1) if below is not None else None for _, below in self.nodes}
        return found.pop() if len(found) == 1 else None

    def all_devices(self) -> frozenset[int]:
        """Every device of the tree."""
        inside = (below.all_devices() for _, below in self.nodes if below is not None)
        return frozenset(self.keys()).union(*inside)

    def paths(self) -> Iterator[Path]:
        """The path of each node, parents first."""
        for device, below in self.nodes:
            yield (device,)
            if below is not None:
                yield from ((device, *rest) for rest in below.paths())

    def _check(self) -> None:
        if not self.nodes:
            raise DeviceError("A device map has no devices.", why="the tree is empty", fix="DeviceMap([1, 2])")
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
        if all(below is None for _, below in self.nodes):
            return f"[{', '.join(map(str, self.keys()))}]"
        inside = (f"{device}: {below if below is not None else None}" for device, below in self.nodes)
        return f"{{{', '.join(inside)}}}"


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


def _nodes(given: Any, level: int = 1) -> tuple[tuple[int, DeviceMap | None], ...]:
    if isinstance(given, DeviceMap):
        return given.nodes
    if level > DEEPEST:
        raise DeviceError(
            f"A device map has more than {DEEPEST} levels.",
            why="its groups hold groups without end, or nearly so",
            fix="DeviceMap.grid(2, 4)",
        )
    if isinstance(given, Mapping | Sequence):
        _check_count(-((given.start - given.stop) // given.step) if isinstance(given, range) else len(given))
    if isinstance(given, Mapping):
        pairs = [(key, None if below is None else _inner(below, level + 1)) for key, below in given.items()]
    elif isinstance(given, Sequence) and not isinstance(given, str):
        pairs = [(key, None) for key in given]
    else:
        raise _not_devices(given)
    found = []
    for key, below in pairs:
        number = key.base if isinstance(key, Device) and key.sub is None else key
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise _not_devices(key)
        found.append((number, below))
    keys = [key for key, _ in found]
    if len(set(keys)) < len(keys):
        key = next(key for key, count in Counter(keys).items() if count > 1)
        raise DeviceError(
            f"Device {key} is listed twice in a device map.",
            why=f"[{_some(keys)}] are the devices of one group",
            fix=f"[{_some(list(dict.fromkeys(keys)))}]",
        )
    return tuple(found)


def _check_count(devices: int) -> None:
    if devices > MOST_DEVICES:
        raise DeviceError(
            f"A device map of {devices} devices is not listed.",
            why=f"up to {MOST_DEVICES} devices are",
            fix="fewer devices, or a program without a device map: its parts are then symbols",
        )


def _inner(given: Any, level: int) -> DeviceMap:
    """A part of a map; the whole is checked once."""
    made = object.__new__(DeviceMap)
    nodes = _nodes(given, level)
    object.__setattr__(made, "nodes", nodes)
    if not nodes:
        raise DeviceError("A group of a device map has no devices.", why="its list is empty", fix="{1: [1, 3]}")
    return made


def _not_devices(given: object) -> DeviceError:
    return DeviceError(
        f"{given!r} is not a device or a tree of devices.",
        why="a device is a whole number from 0; a map is a list of devices, or a dict from devices to maps",
        fix="DeviceMap({1: [1, 3], 2: [2, 4]})",
    )


def _grid(fan_outs: Sequence[int], first: int) -> DeviceMap:
    made = object.__new__(DeviceMap)
    step = prod(fan_outs[1:])
    devices = range(first, first + fan_outs[0] * step, step)
    below = (_grid(fan_outs[1:], device) for device in devices) if len(fan_outs) > 1 else repeat(None)
    object.__setattr__(made, "nodes", tuple(zip(devices, below)))
    return made
