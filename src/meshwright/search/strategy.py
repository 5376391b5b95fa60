"""What a strategy costs, and what costs depend on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

from meshwright.errors import ShapeError
from meshwright.simulate.transformer.strategy import Strategy


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
    peak_bytes_per_device: int
    samples_per_s: float
    bubble_fraction: float
    fits: bool


class Least(NamedTuple):
    """Bounds from below on the seconds of a step, and on the bytes of the device that needs most."""

    seconds: float
    nbytes: int


def facts_of(found: Estimate) -> dict[str, Any]:
    """An estimate as JSON has it."""
    return asdict(found)


def check_batch(strategy: Strategy, batch: int, recompute: Sequence[str]) -> None:
    """Refuse what is for transformers alone, and a batch that does not divide."""
    check_kind(strategy, recompute)
    check_parts("batch", batch, strategy.data * strategy.microbatches, strategy)


def check_kind(strategy: Strategy, recompute: Sequence[str], fix: str = "") -> None:
    """Refuse what is for transformers alone, of a model that can compute again what ``recompute`` says."""
    if strategy.context != 1 or strategy.expert != 1 or strategy.sequence_parallel or not strategy.flash:
        raise ShapeError(
            f"{strategy} is for a transformer.",
            why="context, expert, sequence_parallel and flash say how sequences, experts, norms and attention are "
            "computed; of other models a search splits tensors in the way that costs least",
            fix=fix or "dist.Strategy(data=8), or a model that is a dist.GPT or a TransformerShape",
        )
    if strategy.recompute not in recompute:
        raise ShapeError(
            f"The model cannot recompute {strategy.recompute!r}.",
            why=f"of what is no transformer it is known how to recompute {', '.join(map(repr, recompute))}",
            fix=f"recompute={recompute[-1]!r}",
        )


def check_parts(what: str, size: int, parts: int, strategy: Strategy) -> None:
    """Refuse what does not divide into so many parts."""
    if parts < 1 or size % parts:
        raise ShapeError(
            f"The {what} {size} does not divide into {parts} equal parts.",
            why=f"the strategy is {strategy}",
            fix=f"a {what} that is a multiple of {parts}",
        )
