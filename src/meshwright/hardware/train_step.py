"""A transformer's train step under tensor, pipeline and data parallelism, in one call.

The answer is that of `simulate.transformer.train`, which stands above: it is asked when a step is.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.core.source import here
from meshwright.errors import HardwareError
from meshwright.hardware.arguments import checked
from meshwright.hardware.chips import dtype_name
from meshwright.hardware.topology import Topology
from meshwright.hardware.transformer import TransformerShape

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


@checked("a step")
def train_step(
    shape: TransformerShape,
    machine: Topology,
    *,
    batch: int,
    sequence: int,
    data: int = 1,
    tensor: int = 1,
    pipeline: int = 1,
    microbatches: int = 1,
    schedule: str = "1f1b",
    chunks: int = 1,
    zero: int = 0,
    recompute: str | bool = "none",
    sequence_parallel: bool = False,
    context: int = 1,
    expert: int = 1,
    flash: bool = True,
    dtype: object = "bf16",
    mode: str = "exact",
) -> TrainStep:
    """One iteration on ``batch`` sequences, on all chips of a machine.

    How it is laid out is said by the fields of a `simulate.transformer.Strategy`, and the answer is that of
    `simulate.transformer.train`, for which this is shorter to write.

    >>> shape = TransformerShape(layers=48, width=6144, hidden=24576, heads=64, head_dim=96, vocab=51200, gated=False)
    >>> step = train_step(shape, "a100 8", batch=4, sequence=2048, tensor=8, recompute="full")
    >>> step.seconds == sum(step.parts.values()), step.fits
    (True, True)
    """
    from meshwright.simulate.transformer import StepDtypes, Strategy, train  # the simulation is above

    strategy = Strategy(data, tensor, pipeline, microbatches, schedule, chunks, zero, recompute, sequence_parallel,
                        context, expert, flash)  # fmt: skip
    if strategy.devices != machine.size:
        others = strategy.devices // data
        raise HardwareError(
            f"A step on {strategy.devices} chips is not one on {machine.text}.",
            where=here(),
            why="data·tensor·pipeline·context·expert is the number of chips",
            fix=f"data={machine.size // others}"
            if machine.size % others == 0
            else f"machine=Topology({machine.chip.name!r}, {strategy.devices})",
        )
    name = dtype_name(dtype)
    found = train(shape, machine, strategy, batch, sequence, dtypes=StepDtypes(_DTYPES.get(name, name)), mode=mode)
    return TrainStep(
        found.seconds,
        found.parts,
        found.peak_bytes_per_device,
        found.fits,
        found.mfu,
        found.hfu,
        found.bubble_fraction,
    )
