"""What a strategy costs for a transformer: what `simulate.transformer.train` says, with bounds for a search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

from meshwright.errors import ShapeError
from meshwright.hardware.transformer import TransformerShape
from meshwright.search.bounds import bounds_for, machine_of
from meshwright.search.layered import GPT
from meshwright.search.strategy import Least
from meshwright.simulate.devices.on_topology import OnTopology
from meshwright.simulate.transformer.program import splits
from meshwright.simulate.transformer.step import StepTotals, step_totals
from meshwright.simulate.transformer.step_program import StepDtypes
from meshwright.simulate.transformer.strategy import Strategy

SEQUENCE = 2048  # tokens of a sequence where nothing else is said
_STATES = {
    16: StepDtypes(gradients="bfloat16", gradient_copy="float32"),
    12: StepDtypes(),
    8: StepDtypes(master=None),
    4: StepDtypes(master=None, moments="bfloat16"),
    0: StepDtypes(master=None, moments=None),
}
_PARAMETERS = {1: "int8", 2: "bfloat16", 4: "float32"}


def transformer_of(model: Any, sequence: int | None = None) -> tuple[TransformerShape, int] | None:
    """The sizes of a model that is a transformer, and the length of its sequences; None if it is none."""
    if isinstance(model, GPT):
        return model.shape, sequence or model.length
    return (model, sequence or SEQUENCE) if isinstance(model, TransformerShape) else None


def dtypes_of(itemsize: int | None, state_bytes: int | None) -> StepDtypes:
    """The dtypes of a step by the bytes of a parameter, and of what the optimizer has for each."""
    state = 12 if state_bytes is None else state_bytes
    if state not in _STATES or (itemsize or 2) not in (2, 4):
        raise ShapeError(
            f"A transformer has no state of {state} bytes beside parameters of {itemsize or 2}.",
            why="parameters are bfloat16 (2) or float32 (4), and an optimizer has its copy of them and two moments in "
            "float32 (12), with a copy of gradients that are added up in bfloat16 (16); moments in float32 (8) or "
            "bfloat16 (4); or nothing (0)",
            fix="itemsize=2, state_bytes=12",
        )
    found = _STATES[state]
    return replace(found, parameters=_PARAMETERS[itemsize or 2])


def fits_on(shape: TransformerShape, strategy: Strategy, batch: int, sequence: int) -> bool:
    """Whether a strategy's degrees divide a model and a batch."""
    return not any(one.size % one.parts for one in splits(shape, strategy, batch, sequence))


class TransformerPlan:
    """A transformer under a strategy."""

    def __init__(
        self,
        model: tuple[TransformerShape, int],
        strategy: Strategy,
        batch: int,
        costs: Any,
        dtypes: StepDtypes,
    ) -> None:
        if not isinstance(costs, OnTopology):
            raise ShapeError(
                "A transformer is costed on a topology.",
                why=f"{type(costs).__name__} does not say what the kernels of a program cost",
                fix='costs=dist.OnTopology(mw.hardware.Topology("h100", 64))',
            )
        self.shape, self.sequence = model
        self.strategy, self.batch, self.dtypes = strategy, batch, dtypes
        self.costs = costs
        self.topology = machine_of(costs.topology, strategy)
        self.mode, self.overlap = costs.mode, "loops" if costs.overlap else "none"

    @cached_property
    def totals(self) -> StepTotals:
        return step_totals(
            self.shape, self.topology, self.strategy, self.batch, self.sequence,
            dtypes=self.dtypes, mode=self.mode, overlap=self.overlap,
        )  # fmt: skip

    def peak_bytes(self) -> int:
        return self.totals.peak_bytes

    def bounds(self) -> Iterator[Least]:
        """A bound that is had before a step is put together; without a pipeline, its time before its memory."""
        quick = bounds_for((self.shape, self.sequence), self.batch, self.costs, self.dtypes)
        nbytes = quick.of(self.strategy).nbytes
        yield Least(quick.closer(self.strategy), nbytes)
        if self.strategy.pipeline == 1:
            yield Least(self.least_seconds(), nbytes)

    def least_seconds(self) -> float:
        """A bound on the time: the work of the device that has most, without a wait."""
        return self.totals.least_seconds

    def seconds(self) -> tuple[float, float]:
        return self.totals.seconds
