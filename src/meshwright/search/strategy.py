"""What a strategy costs, and what costs depend on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from meshwright.errors import ShapeError
from meshwright.sharding.mesh_check import short
from meshwright.sharding.text_sdy import LARGEST
from meshwright.simulate.pipelines import SCHEDULES, check_chunks
from meshwright.simulate.transformer.strategy import RECOMPUTE, Strategy


class Costs(Protocol):
    """What the work of a layer costs, for tensors of ``itemsize`` bytes per element."""

    blocking: bool

    def product_seconds(self, m: int, k: int, n: int, batch: int, itemsize: int) -> float: ...
    def pointwise_seconds(self, count: int, operands: int, itemsize: int) -> float: ...
    def group_seconds(self, kind: str, nbytes: float, count: int, stride: int) -> float: ...
    def hop_seconds(self, nbytes: float, stride: int) -> float: ...
    def join_seconds(self) -> float: ...


@dataclass(frozen=True)
class Estimate:
    """What a strategy costs: time of a step, the most memory a device needs, samples per second, the idle part."""

    strategy: Strategy
    seconds: float
    peak_bytes: int
    samples_per_s: float
    bubble_fraction: float
    fits: bool


def written(strategy: Strategy) -> dict[str, Any]:
    """The fields of a strategy as files and commands have them: tensor parallelism is called horizontal there."""
    return {"horizontal" if name == "tensor" else name: value for name, value in asdict(strategy).items()}


def facts_of(found: Estimate) -> dict[str, Any]:
    """An estimate as JSON has it."""
    return {**asdict(found), "strategy": {**written(found.strategy), "tensor": found.strategy.tensor}}


def check_batch(strategy: Strategy, batch: int) -> None:
    """Refuse degrees that are none, a batch that does not divide, and a schedule that there is not."""
    if strategy.context != 1 or strategy.expert != 1 or strategy.sequence_parallel:
        raise ShapeError(
            f"{strategy} is for a transformer.",
            why="context, expert and sequence_parallel say how sequences, experts and norms are shared out",
            fix="dist.Strategy(data=8), or a model that is a dist.GPT or a TransformerShape",
        )
    for name in ("data", "horizontal", "pipeline", "microbatches", "chunks"):
        check_count(f"{name} of a strategy", getattr(strategy, name), f"{name}=1")
    check_count("The batch", batch, "batch=512")
    if strategy.zero not in range(4):
        raise ShapeError(
            f"zero of a strategy is {strategy.zero!r}.",
            why="0 is none, and 1, 2 and 3 are stages of ZeRO",
            fix="zero=1",
        )
    if strategy.recompute not in RECOMPUTE:
        raise ShapeError(
            f"recompute of a strategy is {strategy.recompute!r}.",
            why=f"what is computed again is one of {', '.join(RECOMPUTE)}",
            fix='recompute="full"',
        )
    check_parts("batch", batch, strategy.data * strategy.microbatches, strategy)
    if strategy.schedule not in SCHEDULES:
        raise ShapeError(
            f"There is no schedule {strategy.schedule!r}.",
            why=f"the schedules are {', '.join(SCHEDULES)}",
            fix='schedule="1f1b"',
        )
    check_chunks(strategy.schedule, strategy.chunks)


def check_count(what: str, count: Any, fix: str) -> None:
    """Refuse what is no whole number from 1, of 64 bits at most."""
    if not isinstance(count, int | np.integer) or isinstance(count, bool) or not 1 <= count <= LARGEST:
        raise ShapeError(f"{what} is {short(count)}.", why="it is a whole number from 1, of 64 bits at most", fix=fix)


def check_parts(what: str, size: int, parts: int, strategy: Strategy) -> None:
    """Refuse what does not divide into so many parts."""
    if parts < 1 or size % parts:
        raise ShapeError(
            f"The {what} {size} does not divide into {parts} equal parts.",
            why=f"the strategy is {strategy}",
            fix=f"a {what} that is a multiple of {parts}",
        )
