"""What is wrong with a step of a transformer or a search is one error, asserted whole."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright import dist, hardware
from meshwright.hardware import Topology, TransformerShape
from meshwright.simulate import transformer
from meshwright.simulate.transformer import StepDtypes, Strategy

SMALL = TransformerShape(layers=4, width=64, hidden=132, heads=66, head_dim=16, vocab=64)
SHAPE = "TransformerShape(layers=32, width=4096, hidden=11008, heads=32, head_dim=128, vocab=32000)"
CASES: dict[str, tuple[Callable[[], Any], str, str, str]] = {
    "another name of a degree": (
        lambda: Strategy(pp=2),  # type: ignore[call-arg]
        "There is no pp of a strategy.",
        "pp is called pipeline here",
        "pipeline=2",
    ),
    "the name that transforms have": (
        lambda: Strategy(horizontal=2),  # type: ignore[call-arg]
        "There is no horizontal of a strategy.",
        "horizontal is called tensor here",
        "tensor=2",
    ),
    "the size of a microbatch": (
        lambda: hardware.train_step(SMALL, "h100 8", batch=8, sequence=8, data=8, microbatch=1),  # type: ignore[call-arg]
        "There is no microbatch of a step.",
        "microbatches are counted: they are the batch of a replica over the size of one",
        "microbatches=8",
    ),
    "a name that means nothing": (
        lambda: StepDtypes(colour="red"),  # type: ignore[call-arg]
        "There is no colour of a step's dtypes.",
        "it has parameters, master, moments, gradients, gradient_copy",
        "leave out colour='red'",
    ),
    "no number": (
        lambda: Strategy(data=None),  # type: ignore[arg-type]
        "data of a strategy is None.",
        "it is a whole number from 1",
        "data=8",
    ),
    "a float": (
        lambda: transformer.train(SMALL, "h100", Strategy(), 8.0, 8),  # type: ignore[arg-type]
        "batch of a step is 8.0.",
        "it is a whole number from 1",
        "batch=8",
    ),
    "a number that is too large": (
        lambda: Strategy(data=10**9),
        "data of a strategy is 1000000000.",
        "it is a whole number from 1 to 16777216",
        "data=8",
    ),
    "a word that others have": (
        lambda: Strategy(recompute="selective"),
        "recompute of a strategy is 'selective'.",
        "selective is called attention here; it is one of none, attention, matmuls, full, offload, True, False",
        "recompute='attention'",
    ),
    "a dict for a strategy": (
        lambda: transformer.train(SMALL, "h100", {"data": 8}, 8, 8),  # type: ignore[arg-type]
        "strategy of a step is {'data': 8}.",
        "it is a Strategy",
        "strategy=Strategy(data=8)",
    ),
    "a name for a model": (
        lambda: transformer.train("llama", "h100", Strategy(), 8, 8),  # type: ignore[arg-type]
        "shape of a step is 'llama'.",
        "it is a TransformerShape",
        f"shape={SHAPE}",
    ),
    "a dtype that is none": (
        lambda: transformer.train(SMALL, "h100", Strategy(), 8, 8, dtype="x"),
        "dtype of a step is 'x'.",
        "it is one of bf16, f16, f32, fp8",
        "dtype='bf16'",
    ),
    "a dtype that is not trained in": (
        lambda: transformer.train(SMALL, "h100", Strategy(), 8, 8, dtype=np.int8),
        "dtype of a step is <class 'numpy.int8'>.",
        "it is one of bf16, f16, f32, fp8",
        "dtype='bf16'",
    ),
    "no number of chips": (
        lambda: hardware.train_step(SMALL, "h100", batch=8, sequence=8),  # type: ignore[arg-type]
        "machine of a step is 'h100'.",
        "it is chips in a shape; how many there are is not said",
        "machine='h100 8'",
    ),
    "chips that are left over": (
        lambda: hardware.train_step(SMALL, Topology("h100", 8), batch=8, sequence=8, data=2),
        "A step on 2 chips is not one on h100 8.",
        "data·tensor·pipeline·context·expert is the number of chips",
        "data=8",
    ),
    "arguments that are missing": (
        lambda: hardware.train_step(SMALL, "h100 8"),  # type: ignore[call-arg, arg-type]
        "The arguments do not fit a step.",
        "missing a required argument: 'batch'",
        f"shape={SHAPE}, machine='h100 8', batch=8, sequence=8",
    ),
    "heads that are not split": (
        lambda: transformer.train(SMALL, "h100", Strategy(tensor=8), 8, 8),
        "heads=66 is not split into 8 equal parts.",
        "tensor is 8, and every device does the same",
        "tensor=6",
    ),
    "a schedule for chunks without them": (
        lambda: Strategy(pipeline=2, schedule="interleaved"),
        "The schedule interleaved of a strategy has chunks=1.",
        "an interleaved schedule has several chunks per device, every other one",
        "schedule='interleaved', chunks=2",
    ),
    "a slice by the name that a cloud has": (
        lambda: transformer.decode(SMALL, "tpu v5e-16", 8, 8),
        "'tpu v5e-16' is not how a machine is named here.",
        "a chip and a number or a shape are: v5e-16 has 16 chips",
        "'tpu v5e 16'",
    ),
    "one number for a list": (
        lambda: dist.grid_search(SMALL, Topology("h100", 8), 8, zero=1),  # type: ignore[arg-type]
        "zero of a search is 1.",
        "it is a list",
        "zero=[0]",
    ),
    "an element that cannot be": (
        lambda: dist.grid_search(SMALL, Topology("h100", 8), 8, microbatches=[1, 0]),
        "microbatches[1] of a search is 0.",
        "it is a whole number from 1",
        "microbatches=[8]",
    ),
    "a model without layers": (
        lambda: dist.GPT(layers=0, dim=8, heads=2),
        "layers of a model is 0.",
        "it is a whole number from 1",
        "layers=8",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_step_that_cannot_be_is_one_error(name: str) -> None:
    function, what, why, fix = CASES[name]
    with pytest.raises(mw.MeshwrightError) as caught:
        function()
    line = function.__code__.co_firstlineno
    where = f"test_step_errors.py:{line}   {linecache.getline(__file__, line).strip()}"
    assert str(caught.value) == f"{what}\n  at:   {where}\n  why:  {why}\n  fix:  {fix}"
