"""DistIR's own numbers for an MLP training step: with its assumptions, every row of its table, latency and memory."""

import json
import pathlib
from dataclasses import replace

import numpy as np
import pytest

from meshwright import dist

ROWS = json.loads((pathlib.Path(__file__).parent / "distir_mlp_table.json").read_text())


def name_of(row: dict) -> str:
    return "dim{dim}-D{data}-H{horizontal}-P{pipeline}-K{microbatches}".format(**row)


def unrolled(row: dict) -> dist.Function:
    mlp = dist.MLP(row["layers"], row["dim"], row["batch"])
    return mlp.unrolled(row["data"], row["horizontal"], row["pipeline"], row["microbatches"])


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_latency_and_memory_of_every_row_are_distirs(row):
    result = dist.simulate(unrolled(row), assumptions=dist.DistIR(), events=False)
    devices = sorted(result.peak_bytes)
    assert result.seconds == pytest.approx(row["seconds"], rel=1e-6)
    assert [result.peak_bytes[d] for d in devices] == row["peak_bytes"]
    assert [result.base_bytes[d] for d in devices] == row["base_bytes"]


@pytest.mark.parametrize("degrees", [(1, 1, 1, 1), (2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 4), (2, 2, 2, 2)])
def test_the_program_behind_the_numbers_computes_the_training_step(degrees):
    data, horizontal, pipeline, microbatches = degrees
    mlp = dist.MLP(layers=4, dim=8, batch=16)
    fn = mlp.unrolled(*degrees)
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((8, 8)).astype("f4") / 3 for _ in range(4)]
    x, z = (rng.standard_normal((16, 8)).astype("f4") for _ in range(2))
    rows = 16 // data // microbatches

    def value(v: dist.Value) -> np.ndarray:
        stem, device = v.name.split("_")
        group = (int(device) - 1) // pipeline
        i, j = divmod(group, horizontal)
        if stem == "n":
            return np.int32(16 * 8)
        number = int(stem[1:])
        if stem[0] == "w":
            return np.split(weights[number], horizontal, 1 - number % 2)[j]
        first = (i * microbatches + number) * rows
        return (x if stem[0] == "x" else z)[first : first + rows]

    outs = dist.execute(fn, [value(v) for v in fn.inputs])
    found = dict(zip(fn.outputs, outs, strict=True))
    new = [w - 0.01 * g for w, g in zip(weights, gradients(weights, x, z), strict=True)]
    for v, out in found.items():
        if v.name.startswith("w_"):
            device = v.type.device.base
            _, j = divmod((device - 1) // pipeline, horizontal)
            parts = [p for n, w in enumerate(new) for p in [np.split(w, horizontal, 1 - n % 2)[j]]]
            assert any(p.shape == out.shape and np.allclose(p, out, rtol=1e-4, atol=1e-6) for p in parts)


def gradients(weights, x, z):
    kept = []
    for w in weights:
        kept.append((x, x @ w))
        x = np.maximum(x @ w, 0)
    dy = 2 * (x - z) / (16 * 8)
    found = []
    for (x, a), w in zip(reversed(kept), reversed(weights), strict=True):
        da = np.where(a > 0, dy, 0)
        found.append(x.T @ da)
        dy = da @ w.T
    return found[::-1]


@pytest.mark.parametrize("switch", ["last_update_only", "loss_reads_one_operand"])
def test_a_defect_switched_off_costs_more(switch):
    fn = dist.MLP(8, 64, 64).unrolled()
    exact = dist.simulate(fn, assumptions=dist.DistIR())
    meant = dist.simulate(fn, assumptions=replace(dist.DistIR(), **{switch: False}))
    assert meant.seconds > exact.seconds
    assert meant.peak_bytes == exact.peak_bytes
