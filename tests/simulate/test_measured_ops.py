"""Ops of random kinds and sizes that were timed on an H200 after its numbers were fitted: what simulate says of them.

`python -m tests.simulate.test_measured_ops` writes the table in docs/accuracy.md.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.engine.measuring.cases import SCALES, Case, operands, random_cases
from meshwright.engine.measuring.ops import TYPES, function
from meshwright.engine.measuring.work import work
from meshwright.hardware.kernels import Kernels
from meshwright.hardware.measurements import read_measurements
from meshwright.simulate.machine import half_zero
from meshwright.transform.stack import inline_calls

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "accuracy.md"
BEGIN, END = "<!-- one h200 -->\n", "\n<!-- end of one h200 -->"
SEED = 2030


@cache
def fresh() -> dict[str, Any]:
    return read_measurements(ROOT / "benchmarks" / "data" / "h200_fresh.json")


def program(case: Case) -> mw.Program:
    """The op of a case, traced."""
    types = [
        mw.ShapeDtypeStruct(shape, "int32" if dtype.startswith("below") else TYPES[dtype])
        for shape, dtype in operands(case)
    ]
    return mw.make_program(function(case, mw))(*types)


def predicted(case: Case) -> float:
    """What simulate says; attention that is not cuDNN's runs as separate kernels, as XLA compiles it."""
    flash = case.op == "fused_attention"
    return mw.simulate(program(case), "h200", mode="calibrated", flash=flash).seconds


@cache
def compared() -> tuple[tuple[str, float, float], ...]:
    """Name, measured and predicted seconds of each op."""
    rows = []
    for row in fresh()["measurements"]:
        case = Case(row["part"], row["op"], row["dtype"], row["sizes"])
        rows.append((case.name, float(median(row["seconds"])), predicted(case)))
    return tuple(rows)


def table() -> str:
    """The lines of the documentation, the farthest off first."""
    rows = sorted(compared(), key=lambda row: -abs(row[2] / row[1] - 1))
    lines = ["| | measured | predicted | predicted / measured |", "|---|---|---|---|"]
    lines += [f"| {name} | {_time(took)} | {_time(said)} | {said / took:.2f} |" for name, took, said in rows]
    return "\n".join(lines)


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def test_the_ops_are_those_of_a_seed_and_none_was_fitted_to() -> None:
    raw = fresh()
    names = [case.name for case in random_cases(SCALES["accelerator"], 60, SEED)]
    assert [row["name"] for row in raw["measurements"]] == names and raw["failed"] == []
    seen = {row["name"] for row in read_measurements(ROOT / "benchmarks/data/h200_jax.json")["measurements"]}
    assert not seen & set(names)
    kinds = [name.split()[0] for name in names]
    assert sum("attention" in kind for kind in kinds) >= 5 and sum("_grad" in kind for kind in kinds) >= 5


def test_fresh_ops_are_predicted() -> None:
    errors = sorted(abs(said / took - 1) for _, took, said in compared())
    assert median(errors) <= 0.05
    assert sum(error <= 0.21 for error in errors) >= 57 and sum(error <= 0.2 for error in errors) >= 55
    assert errors[-2] <= 0.6 and errors[-1] <= 0.75


def test_the_documentation_lists_every_fresh_op() -> None:
    assert BEGIN + table() + END in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("seed", [3, 4])
def test_what_simulate_runs_is_what_the_measurements_list(seed: int) -> None:
    """The kernels of a traced op take as long as those that its case lists, but for small ones that casts add."""
    kernels = Kernels.of("h200")
    for case in random_cases(SCALES["accelerator"], 40, seed):
        said = predicted(case)
        listed = sum(kernels.kernel_seconds(one) * one["count"] for one in work(case, "jax"))
        assert said == pytest.approx(listed, rel=0.03, abs=2.5 * kernels.launch_seconds), case.name


def test_products_of_relus_take_less_power() -> None:
    shape = mw.ShapeDtypeStruct((8192, 8192), "bfloat16")

    def seconds(activation: Any) -> float:
        whole = mw.make_program(lambda x, w: activation(x) @ w)(shape, shape)
        result = mw.simulate(whole, "h200", mode="calibrated")
        return result.seconds

    assert seconds(mw.nn.relu) < 0.95 * seconds(lambda x: mnp.tanh(x))


def test_values_that_are_half_zero_are_found() -> None:
    def relus(x: Any) -> Any:
        y = mw.nn.relu(x)
        return y, y.T, y.astype(mnp.float32), lax.exp(y), x.T

    found = mw.make_program(relus)(mw.ShapeDtypeStruct((4, 8), "bfloat16"))
    flat = inline_calls(found)
    zeros = half_zero(flat)
    assert [atom in zeros for atom in flat.outputs] == [True, True, True, False, False]


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.index(BEGIN) + len(BEGIN), text.index(END)
    PAGE.write_text(text[:before] + table() + text[after:], encoding="utf-8")
