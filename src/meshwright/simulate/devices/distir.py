"""The assumptions of DistIR's simulator, to the letter; what is a defect of it can be switched off.

One clock per device, no overlap, links of one bandwidth and no latency. A product costs its operands' traffic plus its
operations, an elementwise op its operands' traffic plus one operation per element.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from meshwright.core.facts import Across, Fusion, Memory
from meshwright.core.op import REGISTRY, Op
from meshwright.device.function import DeviceEqn
from meshwright.device.ops import CONSTANT, GATHER, SEND, DeviceOp, is_structural
from meshwright.device.symmetry import device_of
from meshwright.device.tensor_ops import tensor_of
from meshwright.device.types import Tensor
from meshwright.ops.named import IDENTITY


@dataclass(frozen=True)
class DistIR:
    """DistIR's machine and cost model.

    The switches, all on by default, are what its code does and its model does not mean:

    - ``last_update_only``: of an update of several parameters, the last alone is charged;
    - ``allgather_doubled``: an allgather costs 2(n-1)/n of its input, instead of (n-1) times it;
    - ``gather_by_item_size``: a gather counts bytes times the item size;
    - ``loss_reads_one_operand``: losses are charged for one operand instead of two.

    >>> from meshwright import dist
    >>> step = dist.MLP(layers=8, dim=512, batch=256).unrolled()
    >>> result = dist.simulate(step, assumptions=dist.DistIR())
    >>> f"{result.seconds:.9g}", result.peak_bytes
    ('0.000715033748', {1: 19398660})
    """

    flops_per_s: float = 1.4e13
    dram_bytes_per_s: float = 9e11
    link_bytes_per_s: float = 25e9 / 8
    launch_seconds: float = 10e-6
    last_update_only: bool = True
    allgather_doubled: bool = True
    gather_by_item_size: bool = True
    loss_reads_one_operand: bool = True
    _known: dict[tuple[object, ...], float] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def overlap(self) -> bool:
        return False

    @property
    def reuses(self) -> bool:
        return False

    def is_communication(self, eqn: DeviceEqn) -> bool:
        return eqn.op in (SEND, GATHER) or eqn.op.collective is not None

    def in_place(self, eqn: DeviceEqn) -> bool:
        return isinstance(eqn.op, DeviceOp) and eqn.op.memory is Memory.IN_PLACE

    def links(self, eqn: DeviceEqn) -> tuple[Hashable, ...]:
        return ()

    @property
    def period(self) -> int:
        """Every device is as far from the others as any."""
        return 1

    def signature(self, devices: Sequence[int], groups: Sequence[Sequence[int]]) -> Hashable:
        """All devices are equally far from each other."""
        return ()

    def seconds(self, eqn: DeviceEqn) -> dict[int, float]:
        if eqn.op in (CONSTANT, IDENTITY) or (is_structural(eqn.op) and not self.is_communication(eqn)):
            return {}
        types = [tensor_of(v) for v in eqn.values or eqn.outputs]
        key = (eqn.op, len(eqn.attributes.get("members", ())), types[0].dtype.itemsize, *[t.shape for t in types])
        cost = self._known.get(key)
        if cost is None:
            cost = self._collective(eqn) if self.is_communication(eqn) else self._compute(eqn)
            self._known[key] = cost
        return {device_of(v): cost for v in (*eqn.values, *eqn.outputs)}

    def _collective(self, eqn: DeviceEqn) -> float:
        n, x = len(eqn.attributes.get("members", eqn.values)), tensor_of(eqn.values[0])
        if eqn.op is GATHER:
            times: float = x.dtype.itemsize if self.gather_by_item_size else 1
        else:
            whole = n - 1 if not self.allgather_doubled else 2 * (n - 1) / n
            of_kind = {None: 1, "all_reduce": 2 * (n - 1) / n, "all_gather": whole, "reduce_scatter": (n - 1) / n}
            times = of_kind[eqn.op.collective]
        return times * x.nbytes / self.link_bytes_per_s

    def _compute(self, eqn: DeviceEqn) -> float:
        types, op = [tensor_of(v) for v in eqn.values], eqn.op
        if _copies(op):
            return self.launch_seconds
        if isinstance(op, DeviceOp) and op.fusion is Fusion.CONTRACTION:
            if len(eqn.outputs) == 1:
                return self._product(*types)
            x, w, dy = types
            turned, flat = (Tensor(t.shape[::-1], t.device, t.dtype) for t in (w, x))
            return self._product(dy, turned) + self._product(flat, dy)
        if isinstance(op, DeviceOp) and op.shares is not None:
            weights = types[: len(op.shares(len(types)))]
            return sum(self._elementwise(t, 2) for t in (weights[-1:] if self.last_update_only else weights))
        losses = op.name in ("Loss", "LossGrad") and self.loss_reads_one_operand
        operands = 1 if losses else sum(1 for t in types if t.shape)
        largest = max(types, key=lambda t: t.nbytes, default=tensor_of(eqn.outputs[0]))
        return self._elementwise(largest, max(1, operands))

    def _product(self, x: Tensor, y: Tensor) -> float:
        (m, k), n = x.plain().shape, y.plain().shape[1]
        return self.product_seconds(m, k, n, 1, x.dtype.itemsize)

    def _elementwise(self, t: Tensor, operands: int) -> float:
        return self.pointwise_seconds(t.plain().size, operands, t.dtype.itemsize)

    # For the search, which knows sizes alone.

    @property
    def blocking(self) -> bool:
        return True

    def product_seconds(self, m: int, k: int, n: int, batch: int, itemsize: int) -> float:
        """A product; DistIR leaves out batch dims."""
        traffic = itemsize * (m * k + k * n)
        return self.launch_seconds + traffic / self.dram_bytes_per_s + 2 * m * k * n / self.flops_per_s

    def pointwise_seconds(self, count: int, operands: int, itemsize: int) -> float:
        traffic = itemsize * count * operands
        return self.launch_seconds + traffic / self.dram_bytes_per_s + count / self.flops_per_s

    def group_seconds(self, kind: str, nbytes: float, count: int, stride: int) -> float:
        return 2 * (count - 1) / count * nbytes / self.link_bytes_per_s

    def hop_seconds(self, nbytes: float, stride: int) -> float:
        return nbytes / self.link_bytes_per_s

    def join_seconds(self) -> float:
        return self.launch_seconds


def _copies(op: Op) -> bool:
    """Whether an op copies elements without arithmetic, for whose traffic DistIR does not ask."""
    moved = op.split.across in (Across.JOINED, Across.CUT, Across.READ)
    return moved or op.fusion is Fusion.VIEW or op is REGISTRY["broadcast_in_dim"]
