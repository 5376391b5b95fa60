"""The program of a train step under every strategy computes what one device computes, and is what `train` simulates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright.core.trace import run
from meshwright.hardware import TransformerShape
from meshwright.simulate import transformer
from meshwright.simulate.transformer import StepDtypes, Strategy, train_program
from meshwright.simulate.transformer.program import parameters

GROUPED = TransformerShape(layers=4, width=32, hidden=64, heads=8, kv_heads=2, head_dim=8, vocab=64)
TIED = TransformerShape(layers=2, width=32, hidden=64, heads=4, head_dim=8, vocab=64, gated=False, tied=True)
EXPERTS = TransformerShape(2, 32, 64, heads=4, head_dim=8, vocab=64, experts=4, experts_per_token=4)
WIDE = StepDtypes("float32", None, "float32")


def step(shape: TransformerShape, strategy: Strategy, dtypes: StepDtypes = WIDE) -> list[np.ndarray]:
    """The loss, and parameters and state after a step on 16 sequences."""
    program = train_program(shape, strategy, 16, 16, dtypes=dtypes)
    rng = np.random.default_rng(0)
    params = mw.tree.map(lambda p: rng.normal(size=p.shape).astype(np.float32) * 0.3, parameters(shape, "float32"))
    zeros = mw.tree.map(np.zeros_like, params)
    tokens = rng.integers(0, shape.vocab, size=(16, 16)).astype(np.int32)
    state = [params, *([params] if dtypes.master else []), *([zeros, zeros] if dtypes.moments else [])]
    state += [zeros] if dtypes.gradient_copy else []
    found = mw.jit(lambda *args: run(program, args))(*mw.tree.leaves((state, tokens)))
    return [np.asarray(x) for x in found]


CASES: list[tuple[TransformerShape, Strategy]] = [
    (GROUPED, Strategy(data=4)),
    (GROUPED, Strategy(tensor=2)),
    (GROUPED, Strategy(tensor=4)),  # two devices have copies of each key and value head
    (GROUPED, Strategy(data=2, tensor=4, sequence_parallel=True, zero=1)),
    (GROUPED, Strategy(data=2, tensor=2, zero=2, microbatches=4)),
    (GROUPED, Strategy(data=4, zero=3, microbatches=2, recompute="full")),
    (GROUPED, Strategy(data=2, context=2, tensor=2, sequence_parallel=True, zero=3)),
    (GROUPED, Strategy(data=2, context=2, recompute="matmuls", microbatches=2)),
    (GROUPED, Strategy(microbatches=4, recompute="attention")),
    (TIED, Strategy(data=2, tensor=2, microbatches=2, zero=1)),
    (EXPERTS, Strategy(expert=4, tensor=2)),  # every token goes to every expert: none is dropped
    (EXPERTS, Strategy(data=2, expert=2, zero=2, microbatches=2)),
    (EXPERTS, Strategy(data=2, expert=2, context=2, zero=3, recompute="full")),
]
NAMES = [str(strategy) for _, strategy in CASES]


@pytest.mark.parametrize(("shape", "strategy"), CASES, ids=NAMES)
def test_every_strategy_makes_the_same_step(shape: TransformerShape, strategy: Strategy) -> None:
    for a, b in zip(step(shape, strategy), step(shape, Strategy()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("zero", range(4))
@pytest.mark.parametrize(
    "dtypes",
    [StepDtypes("float32"), StepDtypes("float32", None, None), StepDtypes("float32", gradient_copy="float32")],
    ids=str,
)
def test_optimizers_with_copies_of_parameters_and_gradients_and_without_state(zero: int, dtypes: StepDtypes) -> None:
    for a, b in zip(step(TIED, Strategy(data=2, zero=zero), dtypes), step(TIED, Strategy(), dtypes), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize(("shape", "strategy"), CASES, ids=NAMES)
def test_train_is_the_simulation_of_the_program(shape: TransformerShape, strategy: Strategy) -> None:
    program = train_program(shape, strategy, 16, 16)
    donated = [True] * (len(program.inputs) - 1) + [False]
    found, wanted = transformer.train(shape, "h100", strategy, 16, 16), mw.simulate(program, "h100", donated=donated)
    assert (found.seconds, found.peak_bytes_per_device) == (wanted.seconds, wanted.peak_bytes_per_device)
    assert transformer.train_memory(shape, strategy, 16, 16, hardware="h100").curve == wanted.memory.curve


def test_there_is_no_one_program_of_a_pipeline() -> None:
    with pytest.raises(mw.MeshwrightError) as caught:
        train_program(GROUPED, Strategy(pipeline=2), 16, 16)
    error: Any = caught.value
    assert (error.what, error.why, error.fix) == (
        "There is no one program of 2 stages.",
        "the stages of a pipeline run different programs, in the order of a schedule",
        "transformer.train(shape, hardware, strategy, batch, sequence), or pipeline=1",
    )
