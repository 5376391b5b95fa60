"""What ops of device programs cost on a machine of `hardware`: rooflines on chips, collectives and sends on its links.

Device n is chip n - 1 of the topology; device 0 is the host, reached over PCIe. A chip computes and communicates at
the same time, one op and one transfer each.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from meshwright.core.facts import Memory
from meshwright.device.function import DeviceEqn, DeviceValue, Number
from meshwright.device.links import chip_of, load, route
from meshwright.device.ops import DeviceOp
from meshwright.device.tensor_ops import Arg, cost, is_tensor_eqn, signature
from meshwright.device.types import Tensor
from meshwright.errors import HardwareError
from meshwright.hardware.chips import dtype_name
from meshwright.hardware.collectives import collective_seconds, point_to_point
from meshwright.hardware.roofline import work
from meshwright.hardware.topology import Topology

_LOCAL = frozenset({"split", "item", "tuple"})
_DTYPES = {1: "int8", 2: "bf16", 4: "f32", 8: "f64"}
_KINDS = {"allreduce": "all_reduce", "allgather": "all_gather", "reduce_scatter": "reduce_scatter"}


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
        return not is_tensor_eqn(eqn) and eqn.op not in _LOCAL

    def in_place(self, eqn: DeviceEqn) -> bool:
        return eqn.op in _LOCAL or (isinstance(eqn.op, DeviceOp) and eqn.op.memory is Memory.IN_PLACE)

    @property
    def crowded(self) -> bool:
        """Whether messages of different devices may share a link."""
        return not self.topology.switched

    @property
    def period(self) -> int | None:
        """Devices that are moved by a multiple of it are as far from each other as before; a torus may have edges."""
        return self.topology.levels[-1].size if self.topology.switched else None

    def signature(self, devices: Sequence[int], groups: Sequence[tuple[int, ...]]) -> Hashable:
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
            chips = [chip_of(d, topology) for d in devices]
            first = chips[0][1]
            moved = [
                tuple((a - b) % size if wrap else a - b for a, b, size, wrap in zip(*axes, strict=True))
                for _, at in chips
                for axes in [(at, first, topology.shape, topology.wrap)]
            ]
            places = [_relative([number for number, _ in chips]), tuple(moved)]
        costs = [self.collective("allreduce", nbytes, group) for group in groups for nbytes in (1.0, 1e9)]
        return (*places, *costs)

    def links(self, eqn: DeviceEqn) -> tuple[Hashable, ...]:
        """The links of a torus that a message has for itself.

        What a collective along a mesh axis costs has it that the other groups of the axis do the same.
        """
        if self.topology.switched or eqn.op != "send":
            return ()
        source, target = _device(eqn.values[0]), _device(eqn.outputs[0])
        return tuple(self._route(source, target)) if source and target else ()

    def seconds(self, eqn: DeviceEqn) -> dict[int, float]:
        devices = {_device(v) for v in (*eqn.values, *eqn.outputs) if isinstance(v.type, Tensor)}
        if eqn.op in _LOCAL or eqn.op == "constant":
            return {}
        if is_tensor_eqn(eqn):
            if max(devices, default=0) > self.topology.size:
                raise self.outside(max(devices))
            return dict.fromkeys(devices, self.compute(eqn))
        first = _type(eqn.values[0])
        members: Sequence[int] = eqn.attributes.get("members") or [_device(v) for v in eqn.values]
        if eqn.op == "send":
            source, target = _device(eqn.values[0]), _device(eqn.outputs[0])
            cost = self.send(first.nbytes, source, target) * self.together(eqn, source, target)
        elif eqn.op in ("scatter", "broadcast"):
            cost = self.spread(eqn.op.name, first.nbytes, _device(eqn.values[0]), eqn.attributes["devices"])
        elif eqn.op == "gather":
            whole = _type(eqn.outputs[0])
            cost = self.spread("scatter", whole.nbytes, _device(eqn.outputs[0]), members)
        else:
            nbytes = first.nbytes * (len(members) if eqn.op == "allgather" else 1)
            cost = self.collective(eqn.op.name, nbytes, tuple(members))
        return dict.fromkeys(devices, cost)

    def together(self, eqn: DeviceEqn, source: int, target: int) -> int:
        """How many messages take turns on a link, where one stands for those of all ``members``."""
        members = eqn.attributes.get("members", ())
        if self.topology.switched or not source or not target or len(members) < 2:
            return 1
        return self._load(tuple(members), target - source)

    def compute(self, eqn: DeviceEqn) -> float:
        """The roofline time of a tensor op on one chip."""
        args = tuple(signature(x if isinstance(x, Number) else _type(x)) for x in eqn.inputs)
        results = tuple(signature(_type(v)) for v in eqn.outputs)
        params = {k: v for k, v in eqn.attributes.items() if k != "device"}
        key = (eqn.op, args, results, tuple(params.items()))
        try:
            found = self._compute.get(key)
        except TypeError:  # an array among the attributes
            return self._work_seconds(eqn, args, results, params)
        if found is None:
            found = self._compute[key] = self._work_seconds(eqn, args, results, params)
        return found

    def _work_seconds(
        self, eqn: DeviceEqn, args: Sequence[Arg], results: Sequence[Arg], params: dict[str, Any]
    ) -> float:
        found = cost(eqn.op, args, results, params)
        return self.work(found.flops, found.nbytes, _type(eqn.outputs[0]).dtype)

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

    def collective(self, op: str, nbytes: float, members: tuple[int, ...]) -> float:
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
        for device in (source, target):
            if device > topology.size:
                raise self.outside(device)
        if not source or not target:
            return nbytes / chip.memory_bytes_per_s("pcie")
        (number, start), (other, stop) = chip_of(source, topology), chip_of(target, topology)
        if number != other:
            return nbytes / chip.dcn_bytes_per_s + chip.dcn_hop_seconds
        return point_to_point(nbytes, topology, start, stop).seconds

    def spread(self, op: str, nbytes: float, root: int, devices: Sequence[int]) -> float:
        """Scatter or broadcast from one device: its port carries what the others get; the host has a port per chip."""
        others = [d for d in devices if d != root]
        if not others:
            return 0.0
        share = nbytes / len(devices) if op == "scatter" else nbytes
        # Behind switches, one of the first and the last is as far as any; on a torus it may be another.
        ends = (min(others), max(others)) if self.topology.switched or not root else others
        single = max(self.send(share, root, d) for d in ends)
        return single if not root or op == "broadcast" else len(others) * single

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
    found = np.sort(members)
    if len(found) < 2:
        return int(found[0]), len(found), 1, ()
    steps = np.diff(found)
    if steps[0] and (steps == steps[0]).all():
        return int(found[0]), len(found), int(steps[0]), ()
    return int(found[0]), len(found), 0, tuple(map(int, found))


def _type(value: DeviceValue) -> Tensor:
    assert isinstance(value.type, Tensor), f"{value.name} is no tensor of a resolved program"
    return value.type


def _device(value: DeviceValue) -> int:
    base = _type(value).device.base
    assert isinstance(base, int)
    return base
