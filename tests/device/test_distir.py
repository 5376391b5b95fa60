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


def one_update_per_weight(fn: dist.Function) -> dist.Function:
    """An update of all weights is one op with a factor rule per weight; split, each goes the way of its weight."""
    *eqns, update = fn.eqns
    count = len(update.outputs)
    pairs = zip(update.inputs[:count], update.inputs[count:], update.outputs, strict=True)
    return fn.with_(eqns=(*eqns, *(dist.Eqn("SGDOptimizer", (w, g), (new,)) for w, g, new in pairs)))


@pytest.mark.parametrize("row", [row for row in ROWS if row["pipeline"] == 1], ids=name_of)
@pytest.mark.parametrize("fold", [False, True])
def test_the_transforms_give_distirs_numbers_too(row, fold):
    """Data and horizontal parallelism of the sequential step, nested; which weights are split follows from its ops."""
    data, horizontal, batch = row["data"], row["horizontal"], {"x0_1": 0, "z0_1": 0}
    fn = one_update_per_weight(dist.MLP(row["layers"], row["dim"], row["batch"]).unrolled())
    if data > 1:
        fn = dist.data_parallel(fn, batch)
    if horizontal > 1:
        fn = dist.horizontal_parallel(fn, batch, ["d"] if data > 1 else [], parts=horizontal)
    degrees = [n for n in (data, horizontal) if n > 1]
    device_map = dist.DeviceMap.grid(*degrees) if degrees else None
    result = dist.simulate(
        dist.keep_in_place(fn), device_map, assumptions=dist.DistIR(), steady=True, fold=fold, events=False
    )
    # DistIR charges one of the updates of a device.
    uncharged = (row["layers"] - 1) * dist.DistIR().pointwise_seconds(row["dim"] ** 2 // horizontal, 2, 4)
    assert result.seconds - uncharged == pytest.approx(row["seconds"], rel=1e-6)
    assert result.peak_bytes == {d: row["peak_bytes"][d - 1] for d in result.peak_bytes}
    assert result.base_bytes == {d: row["base_bytes"][d - 1] for d in result.base_bytes}
    assert len(result.peak_bytes) == (1 if fold else data * horizontal)


@pytest.mark.parametrize(
    ("op", "switch", "exact", "meant"),
    [
        ("allgather(a, b, e, dim=0)", "allgather_doubled", 2 * 2 / 3 * 4096, 2 * 4096),
        ("gather(a, b, e, dim=0, to_device=1)", "gather_by_item_size", 4 * 4096, 4096),
    ],
)
def test_what_a_collective_costs_with_a_defect_and_without(op, switch, exact, meant):
    """Bytes over a link of 25 Gbit/s, of three parts of 4096 bytes."""
    outs = "c, d, g" if op.startswith("allgather") else "c"
    fn = dist.parse(
        f"def f(a: Tensor[(1024,), 1], b: Tensor[(1024,), 2], e: Tensor[(1024,), 3]): {outs} = {op} return {outs}"
    )
    for value, nbytes in ((True, exact), (False, meant)):
        found = dist.simulate(fn, assumptions=replace(dist.DistIR(), **{switch: value}))
        assert found.seconds == pytest.approx(nbytes / (25e9 / 8))
