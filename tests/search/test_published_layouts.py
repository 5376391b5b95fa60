"""Training runs as published, their layouts withheld: where the search puts them.

``python -m tests.search.test_published_layouts`` prints the table. A search looks at what the system of the paper had:
``spaces`` says what that left out.
"""

from typing import Any

import pytest

from meshwright import dist
from meshwright.hardware import Topology
from tests.simulate.test_published_runs import RUNS, Run

ONE_F = ("1f1b", "interleaved")
# What the systems had: recomputation of whole layers and no ZeRO or sequence parallelism (2021), ZeRO 1 (BLOOM), …
MEGATRON_2021 = {"zero": [0], "recompute": ["full"], "sequence_parallel": [False], "schedules": ONE_F, "flash": False}
SPACES: dict[str, dict[str, Any]] = {
    "Megatron 2021": MEGATRON_2021,
    "BLOOM": {**MEGATRON_2021, "zero": [0, 1]},
    "Nemotron-4": {"zero": [0, 1], "schedules": ONE_F},
    "Llama 3": {"zero": [0, 1, 2], "schedules": ONE_F},
}
CHOSEN = [("Megatron 2021", 128), ("Megatron 2021", 512), ("BLOOM", 384), ("Nemotron-4", 1536), ("Llama 3", 8192)]


def chosen() -> list[Run]:
    return [next(run for run in RUNS if (run.row["source"], run.row["chips"]) == one) for one in CHOSEN]


def found(run: Run) -> tuple[int, float, float, Any]:
    """How many strategies are faster than the published one, its seconds, and those of the winner, which is last."""
    row = run.row
    result = dist.grid_search(
        run.shape,
        Topology(row["chip"], row["chips"]),
        row["batch"],
        sequence=run.sequence,
        mode="calibrated",
        workers=1,
        **SPACES[row["source"]],
    )
    seconds = run.predicted().seconds
    best = result.best
    assert best is not None
    return sum(e.fits and e.seconds < seconds for e in result), seconds, best.seconds, best.strategy


def line(run: Run) -> str:
    rank, seconds, best, strategy = found(run)
    published = f"published {run.strategy} {seconds:.2f} s, behind {rank}"
    return f"{run.name}: {published}; best {strategy} {best:.2f} s, {seconds / best - 1:+.0%}"


# Elsewhere the search is 6 to 17 % below what was published: with less tensor parallelism, or more chunks of a stage.
NEAR = "BLOOM"


@pytest.mark.slow
@pytest.mark.parametrize(
    "run",
    [
        pytest.param(run, marks=[] if run.row["source"] == NEAR else [pytest.mark.xfail(strict=True)])
        for run in chosen()
    ],
    ids=lambda run: run.name,
)
def test_a_published_layout_is_near_the_best(run: Run) -> None:
    rank, seconds, best, _ = found(run)
    assert rank < 5 or seconds <= 1.05 * best


if __name__ == "__main__":
    for one in chosen():
        print(line(one), flush=True)
