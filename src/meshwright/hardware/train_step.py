"""A transformer's train step, layer by layer, under tensor, pipeline and data parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

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
    for name, count in (("batch", batch), ("sequence", sequence), ("tensor", tensor), ("pipeline", pipeline),
                        ("data", data), ("microbatch", microbatch), ("interleave", interleave)):  # fmt: skip
        if not isinstance(count, int | np.integer) or isinstance(count, bool) or count < 1:
            raise HardwareError(
                f"{name} of a step is {count!r}.", where=here(), why="it is a whole number from 1", fix=f"{name}=1"
            )
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
    do = _Costs(laid, dtype, mode)
    forward, backward = _layer(shape, do, microbatch, sequence, tensor, recompute, sequence_parallel)
    layers, count = shape.layers / pipeline, batch // (data * microbatch)
    waves = count + (pipeline - 1) / interleave
    matmuls, between, tensors = (layers * (f + b) for f, b in zip(forward, backward))
    size, rows = do.size, microbatch * sequence
    moved = size * rows * shape.width / tensor * pipeline
    sends = 2 * do.move("permute", moved, "pipeline") * interleave if pipeline > 1 else 0.0
    head = 3 * do.multiply(rows, shape.width, shape.vocab / tensor)
    own = shape.parameters / (tensor * pipeline)
    gradients = do.move("all_reduce", size * own, "data") if data > 1 else 0.0
    parts = {
        "matmuls": count * matmuls,
        "between matmuls": count * between,
        "tensor parallelism": count * tensors,
        "sends": count * sends,
        "bubble": (waves - count) * (matmuls + between + tensors + sends),
        "head": count * head if pipeline == 1 else 0.0,
        "gradients": max(0.0, gradients - layers * sum(backward)),
        # The optimizer reads gradients and reads and writes parameters and two moments in float32, and writes
        # parameters.
        "optimizer": do.touch(own * (4 + 2 * 3 * 4 + size)),
    }
    return TrainStep(sum(parts.values()), parts)


class _Costs:
    """Seconds of what a step is made of, on one machine, in one dtype and mode."""

    def __init__(self, machine: Topology, dtype: object, mode: str) -> None:
        self.machine, self.dtype, self.mode, self.size = machine, dtype, mode, item_bytes(dtype)

    def multiply(self, m: float, k: float, n: float, times: float = 1) -> float:
        """``times`` products."""
        return times * matmul(m, k, n, self.machine.chip, self.dtype, mode=self.mode).seconds  # type: ignore[arg-type]

    def touch(self, bytes: float) -> float:
        """Reading and writing so many bytes in all."""
        return work(0, bytes, self.machine.chip, mode=self.mode).seconds

    def move(self, kind: str, bytes: float, axis: str) -> float:
        """A collective along an axis of the mesh."""
        return collective_seconds(kind, bytes, self.machine, axis, self.mode)


def _layer(
    shape: TransformerShape,
    do: _Costs,
    microbatch: int,
    sequence: int,
    tensor: int,
    recompute: str,
    sequence_parallel: bool,
) -> tuple[list[float], list[float]]:
    """Seconds of one layer's matmuls, of what lies between them and of its collectives: forward, and backward."""
    size, rows = do.size, microbatch * sequence
    width, qkv = shape.width, shape.head_dim * (shape.heads + 2 * (shape.kv_heads or shape.heads))
    inner, hidden, heads = shape.head_dim * shape.heads / tensor, shape.hidden / tensor, shape.heads / tensor
    dense = (
        do.multiply(rows, width, qkv / tensor)
        + do.multiply(rows, inner, width)
        + do.multiply(rows, width, hidden, 2 if shape.gated else 1)
        + do.multiply(rows, hidden, width)
    )
    core = do.multiply(sequence, shape.head_dim, sequence, heads * microbatch)
    core += do.multiply(sequence, sequence, shape.head_dim, heads * microbatch)
    scores = heads * microbatch * sequence**2
    stream = rows * width / (tensor if sequence_parallel else 1)
    # Bytes read and written by what lies between matmuls; dropouts keep a mask of one byte.
    softmax_forward, softmax_backward = scores * (4 * size + 1), scores * (5 * size + 1)
    around_forward = stream * (2 * 2 * size + 2 * (3 * size + 1)) + 2 * size * rows * hidden
    around_backward = stream * (2 * 3 * size + 2 * (2 * size + 1)) + 3 * size * rows * hidden
    reduce = 2 * do.move("all_reduce", size * rows * width, "tensor") if tensor > 1 else 0.0
    forward = [dense + core, do.touch(softmax_forward + around_forward), reduce]
    backward = [2 * (dense + core), do.touch(softmax_backward + around_backward), reduce]
    if recompute == "full":
        backward = [a + b for a, b in zip(backward, forward)]
    elif recompute == "selective":
        backward[0] += core
        backward[1] += do.touch(softmax_forward)
    return forward, backward
