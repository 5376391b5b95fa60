"""Where data, tensor and mixed parallelism stop being compute-bound.

For a two-matrix MLP of width D and hidden size F on B tokens, with s bytes per item: 4·B·D·F FLOPs at C per second
against bytes at W per second, over one axis both ways. α = s·C/2W is the number of tokens (or of hidden units) whose
FLOPs take as long as moving the items they are multiplied by: C/W in bf16, and the same in int8 where C doubles.
"""

from __future__ import annotations

from math import inf, sqrt

from meshwright.core.source import here
from meshwright.errors import HardwareError
from meshwright.hardware.chip_groups import coordinates
from meshwright.hardware.chips import Chip, get, item_bytes
from meshwright.hardware.collectives import collective_bytes_per_s, point_to_point
from meshwright.hardware.roofline import Machine
from meshwright.hardware.topology import Axes, Topology


def link_intensity(machine: Machine, axes: Axes = None, dtype: object = "bf16", mode: str = "asymptotic") -> float:
    """FLOPs per byte gathered: over a chip's number of ``axes``, or over those of a topology (all, if None).

    ``mode="exact"`` counts that a chip of N gathers (N-1)/N of the bytes; it needs a topology.

    >>> link_intensity("tpu v5p"), link_intensity("tpu v5p", 3)
    (2550.0, 850.0)
    >>> link_intensity(Topology("b200", 64)), link_intensity(Topology("b200", 64), mode="exact")
    (5625.0, 4921.875)
    """
    if mode not in ("exact", "asymptotic"):
        raise HardwareError(
            f"A threshold has no mode {mode!r}.",
            where=here(),
            why="peak rates are compared: in an asymptotic or in an exact count of bytes",
            fix="mode='asymptotic'",
        )
    if isinstance(machine, Topology):
        return machine.chip.flops_per_s(dtype) / collective_bytes_per_s("all_gather", machine, axes, mode)
    found = get(machine)
    if mode == "exact":
        raise HardwareError(
            f"An exact threshold of {found.name} needs the number of chips.",
            where=here(),
            why="a chip of N gathers (N-1)/N of the bytes",
            fix=f"Topology({found.name!r}, 16)",
        )
    return found.link_intensity(dtype, axes if isinstance(axes, int) else 1)


def _balance(machine: Machine, axes: Axes, dtype: object, mode: str) -> float:
    """α = s·C/2W."""
    return item_bytes(dtype) / 2 * link_intensity(machine, axes, dtype, mode)


def data_parallel_tokens(
    machine: Machine,
    axes: Axes = None,
    dtype: object = "bf16",
    *,
    experts: int = 1,
    active: int = 1,
    mode: str = "asymptotic",
) -> float:
    """Tokens per chip above which data parallelism (also fully sharded) is compute-bound: α/axes.

    Forward and backward alike: 4·b·D·F/C for b tokens per chip against 2s·D·F/W for the weights. A mixture of experts
    moves all of them and computes with the active ones. Exactly, (N-1)/N of that, N chips sharing the weights.

    >>> round(data_parallel_tokens(Topology("tpu v5p", (16, 16, 16))))
    850
    >>> two_nodes = Topology("h100", 16, mesh={"data": 2, "model": 8})
    >>> [round(data_parallel_tokens(two_nodes, "data", mode=mode)) for mode in ("asymptotic", "exact")]
    [19780, 9890]
    """
    return _balance(machine, axes, dtype, mode) * experts / active


def data_parallel_batch(
    topology: Topology, axes: Axes = None, dtype: object = "bf16", mode: str = "asymptotic"
) -> float:
    """Tokens of the whole batch above which data parallelism over all chips is compute-bound.

    >>> round(data_parallel_batch(Topology("tpu v5p", (16, 20, 28))))
    7616000
    """
    return topology.size * data_parallel_tokens(topology, axes, dtype, mode=mode)


def data_parallel_chips(
    batch: float, machine: Machine, axes: Axes = None, dtype: object = "bf16", mode: str = "asymptotic"
) -> float:
    """Chips that a batch keeps compute-bound under data parallelism; as many as one likes where none communicate.

    >>> round(data_parallel_chips(16e6, "tpu v5p", 3))
    18824
    """
    tokens = data_parallel_tokens(machine, axes, dtype, mode=mode)
    return batch / tokens if tokens else inf


def slice_tokens(chip: str | Chip, dtype: object = "bf16", slices: int | None = None) -> float:
    """Tokens per slice above which data parallelism between slices, over the data-center network, is compute-bound.

    Of many slices, or exactly of so many.

    >>> slice_tokens("tpu v5p"), slice_tokens("tpu v5p", slices=2)
    (73440.0, 36720.0)
    """
    others = (slices - 1) / slices if slices else 1.0
    return others * item_bytes(dtype) / 2 * get(chip).intensity(dtype, "dcn")


def tokens_per_chip(batch: float, topology: Topology) -> float:
    """Tokens of a batch that each chip gets.

    >>> round(tokens_per_chip(4194304, Topology("tpu v5p", (16, 20, 28))))
    468
    """
    return batch / topology.size


def tensor_parallel_limit(
    hidden: int, machine: Machine, axes: Axes = None, dtype: object = "bf16", mode: str = "asymptotic"
) -> float:
    """Ways of tensor parallelism up to which it is compute-bound: axes·F/α, whatever the batch.

    Over Y chips 4·B·D·F/(Y·C) against a gather and a scatter of B·D items, 2s·B·D/W. Exactly, (Y-1)/Y of these, Y the
    size of ``axes``: compute-bound if the limit is above Y.

    >>> [round(tensor_parallel_limit(30000, "tpu v5p", dtype=dtype), 1) for dtype in ("bf16", "int8")]
    [11.8, 11.8]
    """
    balance = _balance(machine, axes, dtype, mode)
    return hidden / balance if balance else inf


def best_data_parallelism(batch: float, hidden: int, chips: int, data_axes: int = 2, tensor_axes: int = 1) -> float:
    """Ways of data parallelism that cost least communication beside tensor parallelism on the rest: √(B/F · Mx/My ·
    N).

    >>> round(best_data_parallelism(48000, 32768, 64), 1)
    13.7
    """
    return sqrt(batch / hidden * data_axes / tensor_axes * chips)


def mixed_tokens(
    hidden: int,
    chip: str | Chip,
    data_axes: int = 2,
    tensor_axes: int = 1,
    *,
    overlap: bool = True,
    dtype: object = "bf16",
) -> float:
    """Tokens per chip above which data with tensor parallelism is compute-bound, at its best split.

    α²/(Mx·My·F) if the two axes communicate at the same time, four times that if one after the other.

    >>> round(mixed_tokens(32768, "tpu v5p")), round(mixed_tokens(32768, "tpu v5p", overlap=False))
    (99, 397)
    >>> round(mixed_tokens(32768, "tpu v5p", dtype="int8"))
    99
    """
    return (1 if overlap else 4) * _balance(chip, 1, dtype, "asymptotic") ** 2 / (data_axes * tensor_axes * hidden)


def mixed_forward_seconds(
    batch: float,
    width: int,
    hidden: int,
    chip: str | Chip,
    *,
    data: int,
    tensor: int,
    data_axes: int = 2,
    tensor_axes: int = 1,
    overlap: bool = True,
    dtype: object = "bf16",
) -> float:
    """Forward communication of an MLP layer: its weights gathered over the data axes, activations over the tensor
    axes.

    Two gathers of D·F/tensor items, and a gather and a scatter of B·D/data items; both at once, or one after the
    other.

    >>> round(mixed_forward_seconds(1e6, 8192, 32768, "tpu v5p", data=512, tensor=8) * 1e6)
    373
    """
    found, size = get(chip), item_bytes(dtype)
    weights = 2 * size * width * hidden / tensor / found.axis_bytes_per_s(data_axes)
    activations = 2 * size * batch * width / data / found.axis_bytes_per_s(tensor_axes)
    return max(weights, activations) if overlap else weights + activations


def pipeline_send_seconds(
    batch: float,
    width: int,
    stages: int,
    microbatches: int,
    machine: Topology,
    *,
    stride: int = 1,
    dtype: object = "bf16",
) -> float:
    """What a pipeline's forward pass waits for its activations to be sent: s·B·D/(m·W)·(m + stages - 2).

    B tokens go through in m microbatches, each sent to the next stage, the chip ``stride`` further, while the one
    before it is sent on: the first takes stages - 1 messages, each of the others one more.

    >>> round(pipeline_send_seconds(65536, 8192, 4, 8, Topology("h100", 32), stride=8) * 1e3, 2)
    26.84
    """
    if stages < 2:
        return 0.0
    if stride >= machine.size:
        raise HardwareError(
            f"{machine.text} has no chip {stride} further.",
            where=here(),
            why=f"it has {machine.size} chips",
            fix=f"stride={max(1, machine.size // stages)}",
        )
    ends = [coordinates(machine, chip)[1:] for chip in (0, stride)]
    one = point_to_point(item_bytes(dtype) * batch * width / microbatches, machine, *ends)
    return one.seconds * (microbatches + stages - 2)


# Decoding.


def decode_tensor_parallel_limit(hidden: int, batch: int, chip: str | Chip) -> float:
    """Ways of tensor parallelism up to which loading weights takes longer than moving activations: F/(B·β), β =
    W_hbm/W.

    >>> round(decode_tensor_parallel_limit(16384, 32, "tpu v5e"))
    57
    """
    found = get(chip)
    return hidden / (batch * (found.hbm_bytes_per_s / found.axis_bytes_per_s()))


def weight_stationary_seconds(
    batch: int, width: int, chips: int, chip: str | Chip, *, hidden_ratio: float = 4.0, dtype: object = "bf16"
) -> float:
    """Communication of an MLP layer with weights split both ways, [D_x, F_yz], and activations moved.

    [B, F_yz] is scattered and gathered over x, one axis; [B, D_x] over yz, two axes: with s bytes per item
    (2s·F·x/N + s·D/x)·B/W, least for x = √(D·N/2F).

    >>> round(weight_stationary_seconds(64, 8192, 64, "tpu v5p") * 1e6, 2)
    4.12
    """
    size, rate = item_bytes(dtype), get(chip).axis_bytes_per_s()
    across = sqrt(chips / (2 * hidden_ratio))
    return size * batch * width * (2 * hidden_ratio * across / chips + 1 / across) / rate


def weight_stationary_chips(hidden_ratio: float = 4.0, axes: int = 3) -> float:
    """Chips above which that beats tensor parallelism along the hidden dim over ``axes`` axes, 2s·B·D/(axes·W).

    At its best, 2s·B·D·√(2F/D)/(√N·W): N = 2·(F/D)·axes².

    >>> weight_stationary_chips()
    72.0
    """
    return 2 * hidden_ratio * axes**2
