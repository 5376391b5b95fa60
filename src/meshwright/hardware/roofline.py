"""How long a chip computes and moves memory, which of the two bounds it, and whether compute hides communication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, prod

from meshwright.core.source import here
from meshwright.errors import HardwareError
from meshwright.hardware.chips import Chip, get, item_bytes
from meshwright.hardware.kernels import Kernels
from meshwright.hardware.topology import Topology

Machine = str | Chip | Topology
MODES = ("exact", "asymptotic", "calibrated")  # the first two differ for collectives only


@dataclass(frozen=True)
class Roofline:
    """Work, the time each part of the machine needs for it, and what bounds it."""

    flops: float
    bytes: float
    compute_seconds: float
    memory_seconds: float
    communication_seconds: float = 0.0
    launch_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """The lower bound: everything but the launch overlaps."""
        return self.launch_seconds + max(self.compute_seconds, self.memory_seconds, self.communication_seconds)

    @property
    def serial_seconds(self) -> float:
        """The upper bound: communication waits for compute."""
        return self.launch_seconds + max(self.compute_seconds, self.memory_seconds) + self.communication_seconds

    @property
    def bound(self) -> str:
        """ "compute", "memory" or "communication".

        >>> matmul(64, 4096, 8192, "b200").bound
        'memory'
        """
        times = {
            "compute": self.compute_seconds,
            "memory": self.memory_seconds,
            "communication": self.communication_seconds,
        }
        return max(times, key=lambda name: times[name])

    @property
    def intensity(self) -> float:
        """FLOPs per byte of memory."""
        return self.flops / self.bytes if self.bytes else inf

    def with_communication(self, seconds: float) -> Roofline:
        """The same work beside communication of that length."""
        return replace(self, communication_seconds=seconds)


def _chips(machine: Machine) -> tuple[Chip, int]:
    return (machine.chip, machine.size) if isinstance(machine, Topology) else (get(machine), 1)


def work(flops: float, bytes: float, machine: Machine, dtype: object = "bf16", mode: str = "exact") -> Roofline:
    """Work spread evenly over a machine; ``mode="calibrated"`` uses the efficiencies that were measured.

    >>> work(1e12, 0, "h100").seconds
    0.0010111223458038423
    """
    if mode not in MODES:
        raise HardwareError(
            f"There is no mode {mode!r}.", where=here(), why=f"there are {', '.join(MODES)}", fix=f"{MODES[0]!r}"
        )
    chip, count = _chips(machine)
    calibrated = mode == "calibrated"
    rate = chip.flops_per_s(dtype) * (chip.known("matmul_efficiency", 1.0) if calibrated else 1.0) if flops else 1.0
    memory = chip.hbm_bytes_per_s * (chip.known("hbm_efficiency", 1.0) if calibrated else 1.0) if bytes else 1.0
    return Roofline(flops, bytes, flops / (count * rate), bytes / (count * memory))


def compute_seconds(flops: float, machine: Machine, dtype: object = "bf16", utilization: float = 1.0) -> float:
    """FLOPs over the peak rate, of which ``utilization`` is reached.

    >>> compute_seconds(1e12, "h100")
    0.0010111223458038423
    """
    return work(flops, 0, machine, dtype).compute_seconds / utilization


def memory_seconds(bytes: float, machine: Machine, memory: str = "hbm") -> float:
    """Time to read ``bytes`` bytes, spread over the machine's chips, from "hbm", "vmem", "pcie" (host memory) or
    "dcn".

    >>> round(memory_seconds(200e9 * 2, Topology("tpu v4", (4, 4, 2))) * 1e3, 1)
    10.4
    """
    chip, count = _chips(machine)
    return bytes / (count * chip.memory_bytes_per_s(memory))


def matmul(
    m: int,
    k: int,
    n: int,
    machine: Machine,
    dtype: object = "bf16",
    *,
    weight_dtype: object = None,
    out_dtype: object = None,
    batch: int = 1,
    mode: str = "exact",
) -> Roofline:
    """``[m, k] @ [k, n]``, ``batch`` times: 2mkn FLOPs; both operands read and the result written once.

    >>> cost = matmul(64, 4096, 8192, "b200")
    >>> cost.bound, cost.seconds
    ('memory', 8.585216e-06)
    """
    left, right = item_bytes(dtype), item_bytes(weight_dtype or dtype)
    out = item_bytes(out_dtype or dtype)
    moved = batch * (left * m * k + right * k * n + out * m * n)
    return work(2 * batch * m * k * n, moved, machine, dtype, mode)


def matmul_seconds(m: int, k: int, n: int, machine: Machine, dtype: object = "bf16", **options: object) -> float:
    """The roofline time of a matmul; options are those of `matmul`.

    >>> matmul_seconds(64, 4096, 8192, "b200")
    8.585216e-06
    """
    return matmul(m, k, n, machine, dtype, **options).seconds  # type: ignore[arg-type]


def elementwise(
    shape: int | Sequence[int],
    machine: Machine,
    dtype: object = "f32",
    *,
    inputs: int = 2,
    outputs: int = 1,
    flops: float = 0.0,
    mode: str = "exact",
) -> Roofline:
    """An elementwise op: each input read and each output written once; ``flops`` per element, if they should count.

    ``mode="calibrated"`` on a chip whose kernels were measured counts the launch, and the rate of elements.

    >>> round(elementwise(2**30, "h100").seconds * 1e3, 2)
    3.85
    >>> round(elementwise(1, "h200", mode="calibrated").seconds * 1e6, 1)
    1.6
    """
    elements = shape if isinstance(shape, int) else prod(shape)
    cost = work(flops * elements, (inputs + outputs) * elements * item_bytes(dtype), machine, "bf16", mode)
    return _launched(cost, "stream", elements, machine, mode)


def _launched(cost: Roofline, kind: str, elements: float, machine: Machine, mode: str) -> Roofline:
    """The cost of a kernel that reads and writes as it was measured, if it was: its launch, and its own bandwidth."""
    chip, count = _chips(machine)
    if mode != "calibrated" or "kernels" not in chip.facts:
        return cost
    kernels = Kernels.of(chip)
    memory = cost.memory_seconds / kernels.share.get(kind, 1.0)
    if kind == "stream":
        memory = max(memory, elements / (count * kernels.elements_per_s))
    return replace(cost, memory_seconds=memory, launch_seconds=kernels.launch_seconds)


def elementwise_seconds(
    shape: int | Sequence[int], machine: Machine, dtype: object = "f32", **options: object
) -> float:
    """The roofline time of an elementwise op; options are those of `elementwise`.

    >>> round(elementwise_seconds(2**30, "h100", mode="calibrated") * 1e3, 2)
    4.09
    """
    return elementwise(shape, machine, dtype, **options).seconds  # type: ignore[arg-type]


def reduction(
    shape: Sequence[int], axes: int | Sequence[int], machine: Machine, dtype: object = "f32", mode: str = "exact"
) -> Roofline:
    """A reduction over ``axes``: the input read once, the result written once.

    >>> reduction((1024, 1024), 0, "tpu v5e", "bf16").bytes
    2099200.0
    """
    dims = {axes} if isinstance(axes, int) else set(axes)
    if any(not -len(shape) <= dim < len(shape) for dim in dims):
        raise HardwareError(
            f"An array of {len(shape)} dims is not reduced over {', '.join(map(str, sorted(dims)))}.",
            where=here(),
            why="dims are counted from 0, or back from -1",
            fix="axes=-1" if shape else "a shape with dims",
        )
    kept = prod(size for dim, size in enumerate(shape) if dim not in dims and dim - len(shape) not in dims)
    cost = work(prod(shape), float((prod(shape) + kept) * item_bytes(dtype)), machine, "bf16", mode)
    trailing = all((dim + len(shape)) % len(shape) >= len(shape) - len(dims) for dim in dims)
    return _launched(cost, "reduce" if trailing else "column_reduce", prod(shape), machine, mode)


def attention(
    queries: int,
    keys: int,
    machine: Machine,
    dtype: object = "bf16",
    *,
    heads: int = 1,
    kv_heads: int | None = None,
    head_dim: int = 128,
    batch: int = 1,
    causal: bool = False,
    fused: bool = True,
    mode: str = "exact",
) -> Roofline:
    """Scores, softmax and weighted sum. Fused, scores never reach memory; otherwise they are written and read twice.

    Per sequence and head 4·queries·keys·head_dim FLOPs (half of it if causal); queries and results once per head,
    keys and values once per kv head.

    >>> prefill = attention(4096, 4096, "tpu v5e", heads=32, causal=True)
    >>> decode = attention(1, 4096, "tpu v5e", heads=32)
    >>> prefill.bound, decode.bound
    ('compute', 'memory')
    """
    size, shared = item_bytes(dtype), kv_heads or heads
    flops = 4.0 * batch * heads * queries * keys * head_dim * (0.5 if causal else 1.0)
    moved = size * batch * head_dim * (2 * heads * queries + 2 * shared * keys)
    if not fused:
        moved += 4 * size * batch * heads * queries * keys
    return work(flops, moved, machine, dtype, mode)


def einsum_flops(expression: str, sizes: Mapping[str, int]) -> int:
    """FLOPs of contracting two arrays: twice the product of all sizes.

    >>> einsum_flops("IJKL,IJMNO->KLMNO", dict(I=2, J=3, K=4, L=5, M=6, N=7, O=8))
    80640
    """
    letters = sorted({letter for letter in expression if letter.isalpha()})
    missing = [letter for letter in letters if letter not in sizes]
    if missing:
        raise HardwareError(
            f"{expression!r} has no size for {', '.join(missing)}.",
            where=here(),
            why="every index needs one",
            fix=f"sizes={{{missing[0]!r}: …}}",
        )
    return 2 * prod(sizes[letter] for letter in letters)


# Where one bound takes over from another.


def critical_batch(
    machine: Machine,
    dtype: object = "bf16",
    *,
    weight_dtype: object = None,
    memory: str = "hbm",
    experts: int = 1,
    active: int = 1,
) -> float:
    """Tokens above which ``[tokens, D] @ [D, F]`` is compute-bound, weights being all that is read (tokens ≪ D, F).

    2·B·D·F / C = D·F·itemsize / W. With ``experts`` of which each token uses ``active``, an expert sees only
    B·active/experts tokens.

    >>> round(critical_batch("tpu v5e", "int8"))
    243
    """
    chip, _ = _chips(machine)
    per_expert = item_bytes(weight_dtype or dtype) / 2 * chip.intensity(dtype, memory)
    return per_expert * experts / active


def matmul_critical_batch(
    k: int, n: int, machine: Machine, dtype: object = "bf16", *, weight_dtype: object = None, out_dtype: object = None
) -> float:
    """Rows of ``[rows, k] @ [k, n]`` above which it is compute-bound, every byte counted; ``inf`` if it never is.

    >>> round(matmul_critical_batch(4096, 16384, "tpu v5e", "int8"), 1)
    262.7
    """
    chip, _ = _chips(machine)
    left, right, out = item_bytes(dtype), item_bytes(weight_dtype or dtype), item_bytes(out_dtype or dtype)
    gain = 2 * k * n / chip.intensity(dtype) - (left * k + out * n)
    return right * k * n / gain if gain > 0 else inf


def attention_critical_tokens(machine: Machine, dtype: object = "bf16", *, intensity: float | None = None) -> float:
    """Prompt length above which attention over it is compute-bound.

    T queries against T keys, multi-head: 4T²H FLOPs over 4TH items of keys, values, queries and results, that is
    T/2 per byte for 2-byte items.

    >>> attention_critical_tokens("tpu v5e", intensity=240)
    480.0
    """
    chip, _ = _chips(machine)
    return float(item_bytes(dtype) * (chip.intensity(dtype) if intensity is None else intensity))


# Compute beside communication.


def collective_matmul_threshold(
    chips: int, machine: Machine, dtype: object = "bf16", *, axes: int = 1, both_ways: bool = True
) -> float:
    """The dim above which a collective matmul hides its communication (seed 004).

    ``[m, k/chips]`` is gathered while it is multiplied by ``[k, n]``: 2mnk/chips FLOPs per chip against 2mk bytes,
    hidden if n > chips·C/W. The same holds for the contracted dim when partial sums are exchanged. ``both_ways``
    round a ring, or over one link one way.

    >>> collective_matmul_threshold(8, "tpu v5p")
    20400.0
    """
    chip, _ = _chips(machine)
    rate = chip.axis_bytes_per_s(axes)
    if not both_ways and chip.kind == "tpu":
        rate /= 2
    return chips * chip.flops_per_s(dtype) * item_bytes(dtype) / (2 * rate)


def is_hidden(n: int, chips: int, machine: Machine, dtype: object = "bf16", *, both_ways: bool = True) -> bool:
    """Whether a collective matmul of output width ``n`` hides its communication.

    >>> is_hidden(32768, 8, "tpu v5p"), is_hidden(16384, 8, "tpu v5p")
    (True, False)
    """
    return n > collective_matmul_threshold(chips, machine, dtype, both_ways=both_ways)


def overlapped_seconds(compute: float, communication: float, steps: int | None = None) -> float:
    """Compute and communication side by side, cut into ``steps``: the first and last step have nothing beside them.

        T = max(compute, communication) + min(compute, communication) / steps

    >>> round(overlapped_seconds(224e-6, 87e-6, steps=4) * 1e6, 2)
    245.75
    """
    low, high = sorted((compute, communication))
    return high + (low / steps if steps else 0.0)


def hidden_fraction(compute: float, communication: float, steps: int | None = None) -> float:
    """The part of the communication that overlap removes from the serial time.

    >>> round(hidden_fraction(224e-6, 87e-6, steps=4), 3)
    0.75
    """
    return (compute + communication - overlapped_seconds(compute, communication, steps)) / communication


def utilization(flops: float, seconds: float, machine: Machine, dtype: object = "bf16") -> float:
    """The share of the peak rate that was used (MFU).

    >>> round(utilization(1e12, 2e-3, "h100"), 3)
    0.506
    """
    return compute_seconds(flops, machine, dtype) / seconds


def tile_expansion(shape: Sequence[int], tile: Sequence[int]) -> float:
    """Memory of an array whose last dims are padded to whole tiles, relative to its own.

    >>> tile_expansion((3, 5), (2, 2))
    1.6
    """
    padded = [*shape[: len(shape) - len(tile)]]
    padded += [-(-size // side) * side for size, side in zip(shape[len(shape) - len(tile) :], tile)]
    return prod(padded) / prod(shape)
