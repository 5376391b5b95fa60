"""Training runs as published, their layouts withheld: where the search puts them.

``python -m tests.search.test_published_layouts`` prints the table. A search looks at what the system of the paper had:
``SPACES`` says what that left out, and `Run` whether it ran transfers beside work and what its optimizer kept.
Where the authors say by which rule they chose, the search keeps to it (``RULES``); another test says what that costs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from meshwright import dist
from meshwright.hardware import Topology
from meshwright.search.strategy import Estimate
from tests.simulate.test_published_runs import RUNS, Run

ONE_F = ("1f1b", "interleaved")
# 2021: recomputation of whole layers, and neither ZeRO nor sequence parallelism. Later NVIDIA's recomputed attention or
# layers, which is nothing or layers where attention is one kernel (with all but matmuls made again, Nemotron-4 would be
# 7 % faster), and shared out the optimizer's state; FSDP shares
# out gradients, too, or nothing. Llama 3 shared out positions of its long sequences alone: with 2 devices for 8,192 of
# them another layout is 7 % faster. (Its data parallelism crossed pods of 3,072 chips, between which the network is 7
# times slower; here all chips are in one.)
MEGATRON_2021 = {"zero": [0], "recompute": ["full"], "sequence_parallel": [False], "schedules": ONE_F, "flash": False}
SPACES: dict[str, dict[str, Any]] = {
    "Megatron 2021": MEGATRON_2021,
    "BLOOM": {**MEGATRON_2021, "zero": [0, 1]},
    "Nemotron-4": {"zero": [0, 1], "recompute": ["none", "full"], "schedules": ONE_F},
    "Llama 3": {"zero": [0, 2, 3], "schedules": ONE_F, "context": [1]},
}
# "Tensor model parallelism up to degree g in servers with g GPUs, then pipeline model parallelism": section 3 of the
# paper, which says that it does not search.
RULES: dict[str, list[dict[str, Any]]] = {"Megatron 2021": [{"pipeline": [1]}, {"tensor": [8]}]}
# What a paper does not say of its layout, and a search may choose.
UNSAID = {"Megatron 2021": ("microbatch", "chunks"), "Llama 3": ("chunks", "recompute")}
CHOSEN = [("Megatron 2021", 128), ("Megatron 2021", 512), ("BLOOM", 384), ("Nemotron-4", 1536), ("Llama 3", 8192)]


def chosen() -> list[Run]:
    return [next(run for run in RUNS if (run.row["source"], run.row["chips"]) == one) for one in CHOSEN]


def search(run: Run, **space: Any) -> dist.SearchResult:
    machine = Topology(run.row["chip"], run.row["chips"])
    return dist.grid_search(
        run.shape,
        machine,
        run.row["batch"],
        costs=dist.OnTopology(machine, mode="calibrated", overlap=run.overlap != "none"),
        sequence=run.sequence,
        state_bytes=run.dtypes.state_bytes,
        workers=1,
        **{**SPACES[run.row["source"]], **space},
    )


def as_published(run: Run) -> dict[str, Any]:
    """A space that has the published layout alone, and what its paper does not say."""
    s, unsaid = run.strategy, UNSAID.get(run.row["source"], ())
    said = {
        "microbatch": [run.row["microbatch"]],
        "chunks": [s.chunks],
        "schedules": [s.schedule],
        "recompute": ["none" if s.flash and s.recompute == "attention" else s.recompute],
    }
    fixed = {name: one for name, one in said.items() if name not in unsaid}
    if "chunks" in unsaid:
        fixed.pop("schedules")
    degrees = {"tensor": [s.tensor], "pipeline": [s.pipeline], "context": [s.context]}
    return {**degrees, **fixed, "zero": [s.zero], "sequence_parallel": [s.sequence_parallel]}


class Found(NamedTuple):
    """Where a published layout stands: ``rank`` strategies are faster."""

    rank: int
    published: Estimate
    best: Estimate

    @property
    def loses(self) -> float:
        return self.published.seconds / self.best.seconds - 1


def found(run: Run, rules: Sequence[dict[str, Any]]) -> Found:
    """A published layout among those of some rules; with an empty one, among all."""
    own = search(run, **as_published(run)).best
    fitting = [e for rule in rules for e in search(run, **rule) if e.fits]
    assert own is not None
    return Found(sum(e.seconds < own.seconds for e in fitting), own, min(fitting, key=lambda e: e.seconds))


def line(run: Run, rules: Sequence[dict[str, Any]]) -> str:
    rank, own, best = one = found(run, rules)
    published = f"published {own.strategy} {own.seconds:.2f} s, behind {rank}"
    return f"{run.name}, {rules}: {published}; best {best.strategy} {best.seconds:.2f} s, {one.loses:+.1%}"


@pytest.mark.slow
@pytest.mark.parametrize("run", chosen(), ids=lambda run: run.name)
def test_a_published_layout_is_near_the_best(run: Run) -> None:
    one = found(run, RULES.get(run.row["source"], [{}]))
    assert one.rank < 5 or one.loses <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize(("chips", "loses"), [(128, 0.09), (512, 0.15)])
def test_what_a_rule_costs_is_sums_of_tensor_parallelism(chips: int, loses: float) -> None:
    """Fewer tensor-parallel devices and more stages have fewer sums, for which that system waited."""
    run = next(run for run in chosen() if run.row["chips"] == chips)
    one = found(run, [{}])
    assert one.loses == pytest.approx(loses, abs=0.01)
    own, best = (run.predicted(e.strategy) for e in (one.published, one.best))
    assert own.seconds - best.seconds <= own.parts["tensor"] - best.parts.get("tensor", 0.0)


if __name__ == "__main__":
    for one in chosen():
        if not sys.argv[1:] or any(word in one.name for word in sys.argv[1:]):
            for rules in [*([RULES[one.row["source"]]] if one.row["source"] in RULES else []), [{}]]:
                print(line(one, rules), flush=True)
