"""Training runs as published, against what is predicted for them: model, layout and chips in, seconds and bytes out."""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from meshwright.hardware import Topology, TransformerShape
from meshwright.simulate import transformer

HERE = Path(__file__).parent
DATA = json.loads((HERE / "published_runs.json").read_text())
PAGE = HERE.parent.parent / "docs" / "accuracy.md"


@dataclass(frozen=True, eq=False)
class Run:
    """A row of a paper's table."""

    row: dict[str, Any]

    @property
    def name(self) -> str:
        r = self.row
        return f"{r['source']}: {r['model']} on {r['chips']} {r['chip']}, {r['recompute']}, {r.get('sequence', 2048)}"

    @property
    def shape(self) -> TransformerShape:
        sizes = dict(DATA["models"][self.row["model"]])
        width, heads = sizes["width"], sizes["heads"]
        defaults = {"hidden": 4 * width, "head_dim": width // heads, "vocab": 51200, "gated": False, "tied": True}
        return TransformerShape(**{**defaults, **sizes})

    @property
    def sequence(self) -> int:
        return int(self.row.get("sequence", 2048))

    @property
    def measured(self) -> float:
        """Seconds of an iteration, as the paper says or by its own count of FLOPs."""
        r, shape, s = self.row, self.shape, self.sequence
        if "seconds" in r:
            return float(r["seconds"])
        if "tflops_with_recompute" in r:
            layers, h = shape.layers, shape.width
            flops = 96 * r["batch"] * s * layers * h**2 * (1 + s / (6 * h) + shape.vocab / (16 * layers * h))
            return float(flops / (r["chips"] * r["tflops_with_recompute"] * 1e12))
        # Parameters, and attention to the positions before.
        flops = r["batch"] * s * (6 * shape.parameters + 6 * s * shape.layers * shape.heads * shape.head_dim)
        return float(flops / (r["chips"] * r["tflops"] * 1e12))

    @property
    def strategy(self) -> transformer.Strategy:
        r = self.row
        tensor, pipeline, context = r["tensor"], r.get("pipeline", 1), r.get("context", 1)
        data = r["chips"] // (tensor * pipeline * context)
        chunks = r.get("interleave", 1)
        return transformer.Strategy(
            data=data,
            tensor=tensor,
            pipeline=pipeline,
            context=context,
            microbatches=r["batch"] // (data * r["microbatch"]),
            schedule="interleaved" if chunks > 1 else "1f1b",
            chunks=chunks,
            zero=r.get("zero", 0),
            sequence_parallel=r.get("sequence_parallel", False),
            recompute=r["recompute"],
            flash=r["chip"] != "a100",  # these runs were before fused attention
        )

    @property
    def overlap(self) -> str:
        """Whether transfers run beside work: not in systems that ran one operation after another."""
        return "none" if self.row["source"] in DATA["in_order"] else "loops"

    @property
    def dtypes(self) -> transformer.StepDtypes:
        """Gradients in 16 bits of which the optimizer has a copy, or as everywhere else."""
        if self.row["source"] in DATA["gradients_copied"]:
            return transformer.StepDtypes(gradients="bfloat16", gradient_copy="float32")
        return transformer.StepDtypes()

    def predicted(self, strategy: transformer.Strategy | None = None) -> Any:
        machine, row = Topology(self.row["chip"], self.row["chips"]), self.row
        return transformer.train(
            self.shape,
            machine,
            strategy or self.strategy,
            row["batch"],
            self.sequence,
            dtypes=self.dtypes,
            mode="calibrated",
            overlap=self.overlap,
        )


RUNS = [Run(row) for row in DATA["runs"]]
COUNTED = [run for run in RUNS if not run.row.get("fitted") and "not_counted" not in run.row]
# The same layout of the same model took a quarter less time in a table of "Megatron 2021".
SLOWER = "MT-NLG"


def line(run: Run) -> str:
    """A row of the table in docs/accuracy.md."""
    found = run.predicted()
    r, s = run.row, run.strategy
    layout = f"{s.data}·{s.tensor}·{s.pipeline}" + (f"·{s.context}" if s.context > 1 else "")
    note = " (fitted)" if r.get("fitted") else " (not counted)" if "not_counted" in r else ""
    share = f"{found.seconds / run.measured:.2f}{note}"
    memory = f"{found.peak_bytes_per_device / 1e9:.0f} GB"
    return (
        f"| {r['source']} | {r['model']} | {r['chips']:,} {r['chip']} | {layout} | {r['recompute']} "
        f"| {run.measured:.2f} s | {found.seconds:.2f} s | {share} | {memory} |"
    )


@pytest.mark.parametrize(
    "run",
    [pytest.param(run, marks=[pytest.mark.slow] if n % 4 else []) for n, run in enumerate(RUNS)],
    ids=lambda run: run.name,
)
def test_a_run_that_took_place_fits_and_the_page_says_what_is_predicted(run):
    assert run.predicted().fits
    assert line(run) in PAGE.read_text()


def test_predictions_against_what_was_measured():
    errors = {run: abs(run.predicted().seconds / run.measured - 1) for run in COUNTED}
    assert median(errors.values()) <= 0.03
    assert max(error for run, error in errors.items() if run.row["source"] != SLOWER) <= 0.15
    assert max(errors.values()) <= 0.20
    assert len({run.row["source"].split(",")[0] for run in COUNTED}) >= 4


def main() -> None:
    """Print the table of docs/accuracy.md."""
    print(*map(line, RUNS), sep="\n")


if __name__ == "__main__":
    main()
