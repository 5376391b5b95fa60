"""What ops of device programs cost on a machine of `hardware`: rooflines on chips, collectives and sends on its links.

Device n is chip n - 1 of the topology; device 0 is the host, reached over PCIe. A chip computes and communicates at
the same time, one op and one transfer each.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod

from meshwright.device.classes import is_tensor_eqn
from meshwright.device.function import Eqn, Number, Value
from meshwright.device.tensor_ops import cost, signature
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
    """Costs on a topology. A group that is a mesh axis runs on it; another is a ring of its slowest link.

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
        self._compute: dict[object, float] = {}

    def is_communication(self, eqn: Eqn) -> bool:
        return not is_tensor_eqn(eqn) and eqn.op not in _LOCAL

    def in_place(self, eqn: Eqn) -> bool:
        return eqn.op == "SGDOptimizer" or eqn.op in _LOCAL

    def seconds(self, eqn: Eqn) -> dict[int, float]:
        devices = {_device(v) for v in (*eqn.values, *eqn.outputs) if isinstance(v.type, Tensor)}
        if eqn.op in _LOCAL or eqn.op == "constant":
            return {}
        if is_tensor_eqn(eqn):
            return dict.fromkeys(devices, self.compute(eqn))
        first = _type(eqn.values[0])
        members: Sequence[int] = eqn.attributes.get("members") or [_device(v) for v in eqn.values]
        if eqn.op == "send":
            cost = self.send(first.nbytes, _device(eqn.values[0]), _device(eqn.outputs[0]))
        elif eqn.op in ("scatter", "broadcast"):
            cost = self.spread(eqn.op, first.nbytes, _device(eqn.values[0]), eqn.attributes["devices"])
        elif eqn.op == "gather":
            whole = _type(eqn.outputs[0])
            cost = self.spread("scatter", whole.nbytes, _device(eqn.outputs[0]), members)
        else:
            nbytes = first.nbytes * (len(members) if eqn.op == "allgather" else 1)
            cost = self.collective(eqn.op, nbytes, tuple(members))
        return dict.fromkeys(devices, cost)

    def compute(self, eqn: Eqn) -> float:
        """The roofline time of a tensor op on one chip."""
        args = tuple(signature(x if isinstance(x, Number) else _type(x)) for x in eqn.inputs)
        results = tuple(signature(_type(v)) for v in eqn.outputs)
        params = {k: v for k, v in eqn.attributes.items() if k != "device"}
        key = (eqn.op, args, results)
        found = self._compute.get(key)
        if found is None:
            work_ = cost(eqn.op, args, results, params)
            found = self._compute[key] = self.work(work_.flops, work_.nbytes, _type(eqn.outputs[0]).dtype)
        return found

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

    def _collective_seconds(self, op: str, nbytes: float, first: int, count: int, stride: int) -> float:
        if count == 1:
            return 0.0
        size = self.topology.size
        if first < 1 or first + (count - 1) * stride > size:
            raise self.outside(first + (count - 1) * stride)
        if stride and size % (count * stride) == 0 and (first - 1) % (count * stride) < stride:
            mesh = {"outer": size // (count * stride), "group": count, "inner": stride}
            placed = Topology(self.topology.chip, self.topology.shape, mesh=mesh, wrap=self.topology.wrap)
            return collective_seconds(_KINDS[op], nbytes, placed, "group", self.mode)
        steps = 2 * (count - 1) if op == "allreduce" else count - 1
        slowest = self.send(nbytes / count, first, min(size, first + max(stride, 1) * (count - 1)))
        return steps * slowest

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
        if topology.switched and len(topology.levels) > 1:
            node = topology.levels[1]
            if (source - 1) // node.size != (target - 1) // node.size:
                return nbytes / (node.bytes_per_s / node.size) + node.hop_seconds
        ends = (_coordinates(source - 1, topology.shape), _coordinates(target - 1, topology.shape))
        return point_to_point(nbytes, topology, *ends).seconds

    def spread(self, op: str, nbytes: float, root: int, devices: Sequence[int]) -> float:
        """Scatter or broadcast from one device: its port carries what the others get; the host has a port per chip."""
        others = [d for d in devices if d != root]
        if not others:
            return 0.0
        share = nbytes / len(devices) if op == "scatter" else nbytes
        far = max((others[0], others[-1]), key=lambda d: self.send(share, root, d))
        single = self.send(share, root, far)
        return single if not root or op == "broadcast" else len(others) * single

    def outside(self, device: int) -> HardwareError:
        return HardwareError(
            f"The machine has no chip for device {device}.",
            why=f"{self.topology.text} has {self.topology.size} chips: devices 1 to {self.topology.size}",
            fix=f"a larger topology, or devices up to {self.topology.size}",
        )


def _pattern(members: Sequence[int]) -> tuple[int, int, int]:
    """First device, count and stride of a group; stride 0 where it has none."""
    found = sorted(members)
    if len(found) < 2:
        return found[0], len(found), 1
    stride = found[1] - found[0]
    regular = stride > 0 and found[-1] - found[0] == stride * (len(found) - 1) and len(set(found)) == len(found)
    if regular and all(b - a == stride for a, b in pairwise(found)):
        return found[0], len(found), stride
    return found[0], len(found), 0


def _coordinates(chip: int, shape: Sequence[int]) -> tuple[int, ...]:
    found = []
    for n, _ in enumerate(shape):
        rest = prod(shape[n + 1 :])
        found.append(chip // rest % shape[n])
    return tuple(found)


def _type(value: Value) -> Tensor:
    assert isinstance(value.type, Tensor), f"{value.name} is no tensor of a resolved program"
    return value.type


def _device(value: Value) -> int:
    base = _type(value).device.base
    assert isinstance(base, int)
    return base
