"""What ops of device programs cost on a machine of `hardware`: rooflines on chips, collectives and sends on its links.

Device n is chip n - 1 of the topology; device 0 is the host, reached over PCIe. A chip computes and communicates at
the same time, one op and one transfer each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from meshwright.core.facts import Memory, Structure
from meshwright.core.op import Op
from meshwright.device.function import DeviceEqn, Number
from meshwright.device.ops import BROADCAST, CONSTANT, GATHER, SCATTER, SEND, DeviceOp
from meshwright.device.symmetry import device_of
from meshwright.device.tensor_ops import cost, is_tensor_eqn, params_of, signature, tensor_of
from meshwright.errors import HardwareError
from meshwright.hardware.arguments import checked_fields, given
from meshwright.hardware.chip_groups import coordinates, group_cost
from meshwright.hardware.chips import dtype_name
from meshwright.hardware.collectives import collective_seconds, point_to_point
from meshwright.hardware.roofline import work
from meshwright.hardware.topology import Topology

_DTYPES = {1: "int8", 2: "bf16", 4: "f32", 8: "f64"}
_KINDS = {"allreduce": "all_reduce", "allgather": "all_gather", "reduce_scatter": "reduce_scatter"}
Link = tuple[int, int, int]  # chip, axis, direction


@checked_fields("costs", topology=given)
class OnTopology:
    """Costs on a topology. A group that is a mesh axis runs beside the others of the axis, any other group alone.

    >>> from meshwright import hardware
    >>> machine = OnTopology(hardware.Topology("h100", 16))
    >>> machine.collective("allreduce", 1e9, (1, 2, 3, 4)) < machine.collective("allreduce", 1e9, (1, 5, 9, 13))
    True
    """

    def __init__(self, topology: Topology, *, overlap: bool = True, mode: str = "exact") -> None:
        if not isinstance(topology, Topology):
            raise HardwareError(
                f"{topology!r} is not a topology.",
                why="what an op costs depends on the chips and how they are joined",
                fix='mw.hardware.Topology("h100", 8)',
            )
        self.topology, self.overlap, self.mode = topology, overlap, mode
        self._collective = lru_cache(maxsize=None)(self._collective_seconds)
        self._send = lru_cache(maxsize=None)(self._send_seconds)
        self._route = lru_cache(maxsize=None)(lambda source, target: route(source, target, topology))
        self._load = lru_cache(maxsize=None)(
            lambda sources, step: load(((source, source + step) for source in sources), topology)
        )
        self._compute: dict[object, float] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), overlap=self.overlap, mode=self.mode), (self.topology,)

    @property
    def key(self) -> tuple[object, ...]:
        """What its costs depend on."""
        return type(self), repr(self.topology), self.overlap, self.mode

    def is_communication(self, eqn: DeviceEqn) -> bool:
        return eqn.op.structure is Structure.MOVE

    def in_place(self, eqn: DeviceEqn) -> bool:
        updates = isinstance(eqn.op, DeviceOp) and eqn.op.memory is Memory.IN_PLACE
        return updates or eqn.op.structure is Structure.TUPLE

    @property
    def crowded(self) -> bool:
        """Whether messages of different devices may share a link."""
        return not self.topology.switched

    @property
    def period(self) -> int | None:
        """Devices that are moved by a multiple of it are as far from each other as before; a torus may have edges."""
        return self.topology.levels[-1].size if self.topology.switched else None

    def signature(self, devices: Sequence[int], groups: Sequence[Sequence[int]]) -> Hashable:
        """Equal for lists of devices between which messages and collectives of groups cost the same, place by place."""
        topology = self.topology
        if max(devices) > topology.size:
            raise self.outside(max(devices))
        if topology.switched:
            node = topology.node_size
            if (min(devices) - 1) // node == (max(devices) - 1) // node:
                return len(devices)  # behind one switch, all are equally far
            places: list[Hashable] = [_relative((np.asarray(devices) - 1) // level.size) for level in topology.levels]
        else:
            chips = np.array([coordinates(topology, d - 1) for d in devices])
            moved = chips[:, 1:] - chips[0, 1:]
            around = np.where(topology.wrap, moved % topology.shape, moved)
            places = [_relative(chips[:, 0]), around.tobytes()]
        costs = [self.collective("allreduce", nbytes, group) for group in groups for nbytes in (1.0, 1e9)]
        return (*places, *costs)

    def links(self, eqn: DeviceEqn) -> tuple[Hashable, ...]:
        """The links of a torus that a message has for itself.

        What a collective along a mesh axis costs has it that the other groups of the axis do the same.
        """
        if self.topology.switched or eqn.op is not SEND:
            return ()
        source, target = device_of(eqn.values[0]), device_of(eqn.outputs[0])
        return tuple(self._route(source, target)) if source and target else ()

    def seconds(self, eqn: DeviceEqn) -> dict[int, float]:
        if eqn.op.structure is Structure.TUPLE or eqn.op is CONSTANT:
            return {}
        devices = {device_of(v) for v in (*eqn.values, *eqn.outputs)}
        if is_tensor_eqn(eqn):
            if max(devices, default=0) > self.topology.size:
                raise self.outside(max(devices))
            return dict.fromkeys(devices, self.compute(eqn))
        nbytes, source, target = tensor_of(eqn.values[0]).nbytes, device_of(eqn.values[0]), device_of(eqn.outputs[0])
        members: Sequence[int] = eqn.attributes.get("members") or [device_of(v) for v in eqn.values]
        if eqn.op is SEND:
            cost = self.send(nbytes, source, target) * self.together(eqn, source, target)
        elif eqn.op in (SCATTER, BROADCAST):
            cost = self.spread(eqn.op, nbytes, source, eqn.attributes["devices"])
        elif eqn.op is GATHER:
            cost = self.spread(SCATTER, tensor_of(eqn.outputs[0]).nbytes, target, members)
        else:
            kind = eqn.op.collective
            whole = nbytes * (len(members) if kind == "all_gather" else 1)
            cost = self.collective(eqn.op.name, whole, members)
        return dict.fromkeys(devices, cost)

    def takes_turns(self, eqn: DeviceEqn) -> bool:
        """Whether a message stands for several of which one waits for the other."""
        return eqn.op is SEND and self.together(eqn, device_of(eqn.values[0]), device_of(eqn.outputs[0])) > 1

    def together(self, eqn: DeviceEqn, source: int, target: int) -> int:
        """How many messages take turns on a link, where one stands for those of all ``members``."""
        members = eqn.attributes.get("members", ())
        if self.topology.switched or not source or not target or len(members) < 2:
            return 1
        return self._load(tuple(members), target - source)

    def compute(self, eqn: DeviceEqn) -> float:
        """The roofline time of a tensor op on one chip."""
        args = tuple(signature(x if isinstance(x, Number) else tensor_of(x)) for x in eqn.inputs)
        results = tuple(signature(tensor_of(v)) for v in eqn.outputs)
        params = params_of(eqn)
        key = (eqn.op, args, results, *params.items())
        try:
            known = self._compute.get(key)
        except TypeError:  # an array among the params
            key, known = (), None
        if known is None:
            found = cost(eqn.op, args, results, params)
            known = self.work(found.flops, found.nbytes, tensor_of(eqn.outputs[0]).dtype)
            self._compute.update({key: known} if key else {})
        return known

    def work(self, flops: float, nbytes: float, dtype: object) -> float:
        """Time of some work on one chip; numbers the chip does not compute with take the rate of f32 or bf16."""
        name = dtype_name(dtype)
        known = name if name in ("bf16", "f16", "f32", "f64", "f8", "int8") else "f32"
        try:
            return work(flops, nbytes, self.topology.chip, known, self.mode).seconds
        except HardwareError:
            return work(flops, nbytes, self.topology.chip, "bf16", self.mode).seconds

    # For the search, which knows sizes alone.

    blocking = False
    reuses = True

    def product_seconds(self, m: int, k: int, n: int, batch: int, itemsize: int) -> float:
        """A product at the chip's roofline."""
        moved = float(itemsize * batch * (m * k + k * n + m * n))
        return self.work(2.0 * batch * m * k * n, moved, _DTYPES.get(itemsize, "f32"))

    def pointwise_seconds(self, count: int, operands: int, itemsize: int) -> float:
        return self.work(float(count), float(itemsize * count * (operands + 1)), _DTYPES.get(itemsize, "f32"))

    def group_seconds(self, kind: str, nbytes: float, count: int, stride: int) -> float:
        """A collective over ``count`` devices that stand ``stride`` apart."""
        return self._collective(kind, float(nbytes), 1, count, stride)

    def hop_seconds(self, nbytes: float, stride: int) -> float:
        return self.send(nbytes, 1, min(1 + stride, self.topology.size))

    def join_seconds(self) -> float:
        return 0.0

    # Communication

    def collective(self, op: str, nbytes: float, members: Sequence[int]) -> float:
        """A collective on ``nbytes``: the whole for an allgather, what each device holds for the others."""
        return self._collective(op, float(nbytes), *_pattern(members))

    def _collective_seconds(
        self, op: str, nbytes: float, first: int, count: int, stride: int, members: tuple[int, ...] = ()
    ) -> float:
        if count == 1:
            return 0.0
        group = members or range(first, first + count * stride, stride)
        least, most = (min(members), max(members)) if members else sorted((group[0], group[-1]))
        if least < 1 or most > self.topology.size:
            raise self.outside(least if least < 1 else most)
        placed = self._placed(first, count, stride, group)
        if placed is not None:
            return collective_seconds(_KINDS[op], nbytes, placed, "group", self.mode)
        chips = [device - 1 for device in group]
        return collective_seconds(_KINDS[op], nbytes, self.topology, mode=self.mode, members=chips)

    def _placed(self, first: int, count: int, stride: int, group: Sequence[int]) -> Topology | None:
        """The machine with a mesh that has the group for an axis, None where it is no axis."""
        topology = self.topology
        if topology.switched:
            node = topology.node_size
            if (group[0] - 1) // node == (group[-1] - 1) // node:  # behind one switch, all are equally far
                return Topology(topology.chip, count, mesh={"group": count})
            span = count * stride
            if not stride or not (stride % node == 0 or (node % stride == 0 and span % node == 0)):
                return None
        if not stride or topology.size % (count * stride) or (first - 1) % (count * stride) >= stride:
            return None
        mesh = {"outer": topology.size // (count * stride), "group": count, "inner": stride}
        try:
            return Topology(topology.chip, topology.shape, mesh=mesh, wrap=topology.wrap, slices=topology.slices)
        except HardwareError:  # the axes of the torus do not divide so
            return None

    def send(self, nbytes: float, source: int, target: int) -> float:
        """A message from one device to another; the host is device 0."""
        return self._send(float(nbytes), source, target)

    def _send_seconds(self, nbytes: float, source: int, target: int) -> float:
        if source == target:
            return 0.0
        topology, chip = self.topology, self.topology.chip
        if max(source, target) > topology.size:
            raise self.outside(max(source, target))
        if not source or not target:
            return nbytes / chip.memory_bytes_per_s("pcie")
        if topology.switched:
            return group_cost("permute", 2 * nbytes, topology, (source - 1, target - 1)).seconds
        (number, *start), (other, *stop) = coordinates(topology, source - 1), coordinates(topology, target - 1)
        if number != other:
            return nbytes / chip.dcn_bytes_per_s + chip.dcn_hop_seconds
        return point_to_point(nbytes, topology, tuple(start), tuple(stop)).seconds

    def spread(self, op: Op, nbytes: float, root: int, devices: Sequence[int]) -> float:
        """Scatter or broadcast from one device: its port carries what the others get; the host has a port per chip."""
        others = len(devices) - devices.count(root)
        if not others:
            return 0.0
        share = nbytes / len(devices) if op is SCATTER else nbytes
        # Behind switches, one of the first and the last is as far as any; on a torus it may be another.
        few = isinstance(devices, range) and (self.topology.switched or not root)
        ends = {*devices[:2], *devices[-2:]} if few else devices
        single = max(self.send(share, root, d) for d in ends if d != root)
        return single if not root or op is BROADCAST else others * single

    def outside(self, device: int) -> HardwareError:
        return HardwareError(
            f"The machine has no chip for device {device}.",
            why=f"{self.topology.text} has {self.topology.size} chips: devices 1 to {self.topology.size}",
            fix=f"a larger topology, or devices up to {self.topology.size}",
        )


def _relative(blocks: Sequence[int] | np.ndarray[Any, Any]) -> bytes:
    """Blocks by the order in which they come: who shares one with whom."""
    steps = np.diff(blocks)
    if (steps >= 0).all():  # those of a block stand together
        return np.cumsum(steps > 0, dtype=np.int64).tobytes()
    numbers: dict[int, int] = {}
    return np.array([numbers.setdefault(int(n), len(numbers)) for n in blocks], np.int64)[1:].tobytes()


def _pattern(members: Sequence[int]) -> tuple[int, int, int, tuple[int, ...]]:
    """First device, count and stride of a group; where it has no stride, 0 and the members."""
    if isinstance(members, range):
        return members[0], len(members), members.step, ()
    found = np.sort(members)
    if len(found) < 2:
        return int(found[0]), len(found), 1, ()
    steps = np.diff(found)
    if steps[0] and (steps == steps[0]).all():
        return int(found[0]), len(found), int(steps[0]), ()
    return int(found[0]), len(found), 0, tuple(map(int, found))


def route(source: int, target: int, topology: Topology) -> frozenset[Link]:
    """The links of the shortest ways of a message: one way begins with each axis, and both ways around half a ring.

    >>> sorted(route(1, 3, Topology("tpu v5e", (1, 4))))
    [(0, 1, 1), (1, 1, 1)]
    """
    (number, *start), (other, *stop) = coordinates(topology, source - 1), coordinates(topology, target - 1)
    if topology.switched or number != other:
        return frozenset()
    moves = []  # along each axis, the ways to go that are the shortest
    for axis, (a, b, size, wraps) in enumerate(zip(start, stop, topology.shape, topology.wrap, strict=True)):
        around = [b - a - size, b - a, b - a + size] if wraps else [b - a]
        least = min(map(abs, around))
        moves += [[(axis, steps) for steps in around if abs(steps) == least]] if least else []
    found: set[Link] = set()
    for first in range(len(moves)):
        choices, *rest = moves[first:] + moves[:first]
        for choice in choices:
            at = [number, *start]
            for axis, steps in (choice, *(others[0] for others in rest)):
                for _ in range(abs(steps)):
                    step = 1 if steps > 0 else -1
                    found.add((int(np.ravel_multi_index(at, (topology.slices, *topology.shape))), axis, step))
                    at[axis + 1] = (at[axis + 1] + step) % topology.shape[axis]
    return frozenset(found)


def load(messages: Iterable[tuple[int, int]], topology: Topology) -> int:
    """The most messages that go over one link, if all go at once.

    >>> load([(1, 3), (2, 4), (4, 3)], Topology("tpu v5e", (1, 4)))
    2
    """
    count: Counter[Link] = Counter()
    for source, target in messages:
        count.update(route(source, target, topology))
    return max(count.values(), default=1)
