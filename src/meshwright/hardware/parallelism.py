"""Where data, tensor and mixed parallelism stop being compute-bound.

For a two-matrix MLP of width D and hidden size F on B tokens; α = C/W is the chip's FLOPs per byte over one axis,
both ways.
"""

from __future__ import annotations

from math import sqrt

from meshwright.hardware.chips import Chip, get, item_bytes
from meshwright.hardware.collectives import collective_bytes_per_s
from meshwright.hardware.roofline import Machine
from meshwright.hardware.topology import Axes, Topology


def link_intensity(machine: Machine, axes: Axes = None, dtype: object = "bf16") -> float:
    """FLOPs per byte gathered: over a chip's number of ``axes``, or over those of a topology (all, if None).

    >>> link_intensity("tpu v5p"), link_intensity("tpu v5p", 3)
    (2550.0, 850.0)
    >>> link_intensity(Topology("b200", 64))
    5625.0
    """
    if isinstance(machine, Topology):
        return machine.chip.flops_per_s(dtype) / collective_bytes_per_s("all_gather", machine, axes, "asymptotic")
    count = axes if isinstance(axes, int) else 1
    return get(machine).link_intensity(dtype, count)


def data_parallel_tokens(
    machine: Machine, axes: Axes = None, dtype: object = "bf16", *, experts: int = 1, active: int = 1
) -> float:
    """Tokens per chip above which data parallelism (also fully sharded) is compute-bound: α/axes.

    Forward and backward alike: 4·B·D·F/C FLOPs per layer against 4·D·F/W bytes of weights. A mixture of experts moves
    all of them and computes with the active ones.

    >>> round(data_parallel_tokens(Topology("tpu v5p", (16, 16, 16))))
    850
    """
    return link_intensity(machine, axes, dtype) * experts / active


def data_parallel_batch(topology: Topology, axes: Axes = None, dtype: object = "bf16") -> float:
    """Tokens of the whole batch above which data parallelism over all chips is compute-bound.

    >>> round(data_parallel_batch(Topology("tpu v5p", (16, 20, 28))))
    7616000
    """
    return topology.size * data_parallel_tokens(topology, axes, dtype)


def data_parallel_chips(batch: float, machine: Machine, axes: Axes = None, dtype: object = "bf16") -> float:
    """Chips that a batch keeps compute-bound under data parallelism.

    >>> round(data_parallel_chips(16e6, "tpu v5p", 3))
    18824
    """
    return batch / data_parallel_tokens(machine, axes, dtype)


def slice_tokens(chip: str | Chip, dtype: object = "bf16") -> float:
    """Tokens per slice above which data parallelism between slices, over the data-center network, is compute-bound.

    >>> slice_tokens("tpu v5p")
    73440.0
    """
    return get(chip).intensity(dtype, "dcn")


def tokens_per_chip(batch: float, topology: Topology) -> float:
    """Tokens of a batch that each chip gets.

    >>> round(tokens_per_chip(4194304, Topology("tpu v5p", (16, 20, 28))))
    468
    """
    return batch / topology.size


def tensor_parallel_limit(hidden: int, machine: Machine, axes: Axes = None, dtype: object = "bf16") -> float:
    """Ways of tensor parallelism up to which it is compute-bound: axes·F/α, whatever the batch.

    >>> round(tensor_parallel_limit(30000, "tpu v5p"), 1)
    11.8
    """
    return hidden / link_intensity(machine, axes, dtype)


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
    """
    intensity = get(chip).link_intensity(dtype)
    return (1 if overlap else 4) * intensity**2 / (data_axes * tensor_axes * hidden)


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
