"""A transformer's train step, layer by layer, under tensor, pipeline and data parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from meshwright.core.source import here
from meshwright.errors import HardwareError
from meshwright.hardware.chips import item_bytes
from meshwright.hardware.collectives import collective_seconds
from meshwright.hardware.roofline import matmul, work
from meshwright.hardware.topology import Topology
from meshwright.hardware.transformer import TransformerShape

RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class TrainStep:
    """Seconds of one iteration and of its parts; the parts add up."""

    seconds: float
    parts: dict[str, float]


def train_step(
    shape: TransformerShape,
    machine: Topology,
    *,
    batch: int,
    sequence: int,
    tensor: int = 1,
    pipeline: int = 1,
    data: int = 1,
    microbatch: int = 1,
    interleave: int = 1,
    recompute: str = "none",
    sequence_parallel: bool = False,
    dtype: object = "bf16",
    mode: str = "calibrated",
) -> TrainStep:
    """One iteration on ``batch`` sequences, as Megatron-LM runs it.

    Tensor parallelism reduces activations twice per layer and direction; with ``sequence_parallel`` it gathers and
    scatters them instead, and norms and dropouts work on their share. ``recompute="selective"`` repeats the
    attention itself backward, ``"full"`` the layer. The pipeline fills and drains in (stages - 1)/interleave
    microbatches.

    >>> shape = TransformerShape(layers=48, width=6144, hidden=24576, heads=64, head_dim=96, vocab=51200, gated=False)
    >>> step = train_step(shape, Topology("a100", 8), batch=4, sequence=2048, tensor=8, microbatch=4, recompute="full")
    >>> round(step.seconds, 1)
    1.4
    """
    if tensor * pipeline * data != machine.size or batch % (data * microbatch) or recompute not in RECOMPUTE:
        raise HardwareError(
            f"A step with tensor={tensor}, pipeline={pipeline}, data={data}, batch={batch}, microbatch={microbatch}, "
            f"recompute={recompute!r} does not fit {machine.text}.",
            where=here(),
            why="tensor·pipeline·data is the number of chips, data·microbatch divides the batch, "
            f"and recompute is one of {', '.join(RECOMPUTE)}",
            fix=f"tensor={machine.size}, pipeline=1, data=1",
        )
    mesh = {"pipeline": pipeline, "data": data, "tensor": tensor}
    laid = Topology(machine.chip, prod(machine.shape), mesh=mesh) if machine.switched else machine
    size, rows, chip = item_bytes(dtype), microbatch * sequence, machine.chip

    def multiply(m: float, k: float, n: float, times: float = 1) -> float:
        return times * matmul(m, k, n, chip, dtype, mode=mode).seconds  # type: ignore[arg-type]

    def touch(bytes: float) -> float:
        return work(0, bytes, chip, mode=mode).seconds

    width, qkv = shape.width, shape.head_dim * (shape.heads + 2 * (shape.kv_heads or shape.heads))
    inner, hidden, heads = shape.head_dim * shape.heads / tensor, shape.hidden / tensor, shape.heads / tensor
    dense = (
        multiply(rows, width, qkv / tensor)
        + multiply(rows, inner, width)
        + multiply(rows, width, hidden, 2 if shape.gated else 1)
        + multiply(rows, hidden, width)
    )
    core = multiply(sequence, shape.head_dim, sequence, heads * microbatch)
    core += multiply(sequence, sequence, shape.head_dim, heads * microbatch)
    scores = heads * microbatch * sequence**2
    stream = rows * width / (tensor if sequence_parallel else 1)
    # Bytes read and written by what lies between matmuls; dropouts keep a mask of one byte.
    softmax_forward, softmax_backward = scores * (4 * size + 1), scores * (5 * size + 1)
    around_forward = stream * (2 * 2 * size + 2 * (3 * size + 1)) + 2 * size * rows * hidden
    around_backward = stream * (2 * 3 * size + 2 * (2 * size + 1)) + 3 * size * rows * hidden
    reduce = 2 * collective_seconds("all_reduce", size * rows * width, laid, "tensor", mode) if tensor > 1 else 0.0

    forward = (dense + core, touch(softmax_forward + around_forward), reduce)
    backward = [2 * (dense + core), touch(softmax_backward + around_backward), reduce]
    if recompute == "full":
        backward = [a + b for a, b in zip(backward, forward)]
    elif recompute == "selective":
        backward[0] += core
        backward[1] += touch(softmax_forward)
    layers, count = shape.layers / pipeline, batch // (data * microbatch)
    waves = count + (pipeline - 1) / interleave
    matmuls, between, tensors = (layers * (f + b) for f, b in zip(forward, backward))
    moved = size * rows * width / tensor * pipeline
    sends = 2 * collective_seconds("permute", moved, laid, "pipeline", mode) * interleave if pipeline > 1 else 0.0
    head = 3 * multiply(rows, width, shape.vocab / tensor)
    own = shape.parameters / (tensor * pipeline)
    gradients = collective_seconds("all_reduce", size * own, laid, "data", mode) if data > 1 else 0.0
    # The optimizer reads gradients and reads and writes parameters and two moments in float32, and writes parameters.
    update = touch(own * (4 + 2 * 3 * 4 + size))
    parts = {
        "matmuls": count * matmuls,
        "between matmuls": count * between,
        "tensor parallelism": count * tensors,
        "sends": count * sends,
        "bubble": (waves - count) * (matmuls + between + tensors + sends),
        "head": count * head if pipeline == 1 else 0.0,
        "gradients": max(0.0, gradients - layers * sum(backward)),
        "optimizer": update,
    }
    return TrainStep(sum(parts.values()), parts)
