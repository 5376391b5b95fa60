"""A transformer's train step under tensor, pipeline and data parallelism, as Megatron-LM names its options.

The answer is that of `simulate.transformer.train`, which stands above: it is asked when a step is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.core.source import here
from meshwright.errors import HardwareError
from meshwright.hardware.chips import dtype_name
from meshwright.hardware.topology import Topology
from meshwright.hardware.transformer import TransformerShape

RECOMPUTE = ("none", "selective", "attention", "matmuls", "full", "offload")
_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}


@dataclass(frozen=True)
class TrainStep:
    """Seconds of one iteration and of its parts, which add up; and the memory of the device that needs most."""

    seconds: float
    parts: dict[str, float]
    peak_bytes_per_device: int
    fits: bool
    mfu: float
    hfu: float
    bubble_fraction: float


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
    zero: int = 0,
    context: int = 1,
    expert: int = 1,
    dtype: object = "bf16",
    mode: str = "exact",
    flash: bool = True,
) -> TrainStep:
    """One iteration on ``batch`` sequences, ``microbatch`` of them at a time on each replica.

    With ``sequence_parallel`` tensor parallelism gathers and scatters activations instead of summing them, and norms
    work on their share. ``recompute="selective"`` repeats the attention itself backward, ``"full"`` the layer.
    ``interleave`` is how many stages each device has. Without ``flash``, scores of attention are written.

    >>> shape = TransformerShape(layers=48, width=6144, hidden=24576, heads=64, head_dim=96, vocab=51200, gated=False)
    >>> step = train_step(shape, Topology("a100", 8), batch=4, sequence=2048, tensor=8, microbatch=4, recompute="full")
    >>> step.seconds == sum(step.parts.values()), step.fits
    (True, True)
    """
    for name, count in (("batch", batch), ("sequence", sequence), ("tensor", tensor), ("pipeline", pipeline),
                        ("data", data), ("microbatch", microbatch), ("interleave", interleave)):  # fmt: skip
        if not isinstance(count, int | np.integer) or isinstance(count, bool) or count < 1:
            raise HardwareError(
                f"{name} of a step is {count!r}.", where=here(), why="it is a whole number from 1", fix=f"{name}=1"
            )
    replicas = data * expert
    if (
        tensor * pipeline * replicas * context != machine.size
        or batch % (replicas * microbatch)
        or recompute not in RECOMPUTE
    ):
        raise HardwareError(
            f"A step with tensor={tensor}, pipeline={pipeline}, data={data}, batch={batch}, microbatch={microbatch}, "
            f"recompute={recompute!r} does not fit {machine.text}.",
            where=here(),
            why="tensor·pipeline·data is the number of chips, data·microbatch divides the batch, "
            f"and recompute is one of {', '.join(RECOMPUTE)}",
            fix=f"tensor={machine.size}, pipeline=1, data=1",
        )
    from meshwright.simulate.transformer import StepDtypes, Strategy, train  # the simulation is above

    chunks = interleave if pipeline > 1 else 1
    strategy = Strategy(
        data, tensor, pipeline, batch // (replicas * microbatch), "interleaved" if chunks > 1 else "1f1b", chunks,
        zero, recompute, sequence_parallel, context, expert, flash=flash,
    )  # fmt: skip
    name = dtype_name(dtype)
    dtypes = StepDtypes(_DTYPES.get(name, name))
    found = train(shape, machine, strategy, batch, sequence, dtypes=dtypes, mode=mode)
    return TrainStep(
        found.seconds,
        found.parts,
        found.peak_bytes_per_device,
        found.fits,
        found.mfu,
        found.hfu,
        found.bubble_fraction,
    )
