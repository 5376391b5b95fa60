"""Searches: the numbers of the simulator, at the speed of a formula."""

import json
import pathlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from meshwright import dist, hardware
from meshwright.errors import ShapeError

ROWS = json.loads((pathlib.Path(__file__).parent / "distir_mlp_table.json").read_text())


@pytest.mark.parametrize(
    "row", ROWS[::3], ids=lambda r: "D{data}-H{horizontal}-P{pipeline}-K{microbatches}".format(**r)
)
def test_estimates_have_the_latency_of_the_simulation(row):
    mlp = dist.MLP(row["layers"], row["dim"], row["batch"])
    strategy = dist.Strategy(row["data"], row["horizontal"], row["pipeline"], row["microbatches"])
    found = dist.estimate(mlp, strategy, row["batch"], dist.DistIR())
    assert found.seconds == pytest.approx(row["seconds"], rel=1e-9)


def test_alike_devices_written_once_give_the_same_numbers():
    mlp = dist.MLP(8, 64, 64)
    for degrees in ((2, 2, 2, 2), (4, 1, 2, 8), (1, 4, 2, 2)):
        every = dist.simulate(mlp.unrolled(*degrees), assumptions=dist.DistIR())
        once = dist.simulate(mlp.unrolled(*degrees, fold=True), assumptions=dist.DistIR())
        assert once.seconds == every.seconds
        assert once.peak_bytes == {d: every.peak_bytes[d] for d in once.peak_bytes}
        assert len(once.peak_bytes) == degrees[2]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb-h1"])
def test_without_communication_a_pipeline_takes_as_long_as_its_schedule(schedule):
    class Even(dist.OnTopology):
        """Every product takes one second, the rest none."""

        def product_seconds(self, m, k, n, batch, itemsize):
            return 1.0

        def pointwise_seconds(self, count, operands, itemsize):
            return 0.0

        def hop_seconds(self, nbytes, stride):
            return 0.0

    chunks = 2 if schedule == "interleaved" else 1
    costs = Even(hardware.Topology("h100", 4))
    found = dist.estimate(dist.MLP(8, 64, 64), dist.Strategy(1, 1, 4, 8, schedule, chunks), 64, costs)
    make = dist.SCHEDULES[schedule]
    made = make(4, 8, chunks) if chunks > 1 else make(4, 8)
    layers = 8 // 4 // chunks
    seconds = {"F": layers, "B": layers if schedule == "zb-h1" else 2 * layers, "W": layers}
    timing = made.run(seconds)
    assert found.seconds == pytest.approx(timing.seconds)
    assert found.bubble_fraction == pytest.approx(timing.bubble_fraction)


def test_a_search_covers_the_grid_and_sorts_it():
    topology = hardware.Topology("h100", 16)
    found = dist.grid_search(dist.GPT(layers=8, dim=1024, heads=16), topology, batch=64)
    degrees = {(e.strategy.data, e.strategy.horizontal, e.strategy.pipeline) for e in found.estimates}
    assert degrees == {
        (d, h, 16 // d // h)
        for d in (1, 2, 4, 8, 16)
        for h in (1, 2, 4, 8, 16)
        if 16 % (d * h) == 0 and 16 // d // h <= 8
    }
    fitting = [e.seconds for e in found.estimates if e.fits]
    assert fitting == sorted(fitting)
    assert found.best is not None
    assert found.best.seconds == min(fitting)
    for one in found.pareto:
        assert not any(e.seconds < one.seconds and e.peak_bytes < one.peak_bytes for e in found.estimates)


def test_memory_falls_with_zero_and_recomputation_and_time_rises():
    gpt, costs = dist.GPT(layers=8, dim=1024, heads=16), dist.OnTopology(hardware.Topology("h100", 8))
    stages = [dist.estimate(gpt, dist.Strategy(8, zero=z), 64, costs, state_bytes=12) for z in range(4)]
    assert [e.peak_bytes for e in stages] == sorted((e.peak_bytes for e in stages), reverse=True)
    assert stages[3].seconds > stages[2].seconds
    kept, again = (dist.estimate(gpt, dist.Strategy(8, recompute=r), 64, costs) for r in (False, True))
    assert again.peak_bytes < kept.peak_bytes
    assert again.seconds > kept.seconds


def test_a_search_is_resumed_from_its_file_and_runs_on_any_executor(tmp_path):
    topology, gpt = hardware.Topology("h100", 8), dist.GPT(layers=4, dim=256, heads=8)
    path = tmp_path / "found.csv"
    seen: list[tuple[int, int]] = []
    first = dist.grid_search(gpt, topology, 32, path=path, progress=lambda n, of: seen.append((n, of)))
    assert seen[-1] == (len(first), len(first))
    again = dist.grid_search(gpt, topology, 32, path=path, progress=lambda n, of: pytest.fail("computed again"))
    assert set(again.estimates) == set(first.estimates)
    with ThreadPoolExecutor(2) as executor:
        spread = dist.grid_search(gpt, topology, 32, executor=executor)
    assert set(spread.estimates) == set(first.estimates)


def test_a_hundred_thousand_devices_are_as_quick_as_a_few():
    step = dist.MLP(16, 8192, 3125 * 16 * 8).unrolled(3125, 8, 4, 16, fold=True)
    assert len(step.eqns) == len(dist.MLP(16, 8192, 4 * 16 * 8).unrolled(4, 8, 4, 16, fold=True).eqns)
    assert dist.simulate(step, assumptions=dist.DistIR(), events=False).seconds > 0


def test_what_does_not_divide_is_refused():
    with pytest.raises(ShapeError) as error:
        dist.estimate(dist.MLP(8, 64, 64), dist.Strategy(data=3), 64, dist.DistIR())
    assert str(error.value) == (
        "The batch 64 does not divide into 3 equal parts.\n"
        "  why:  the strategy is Strategy(data=3, horizontal=1, pipeline=1, microbatches=1, schedule='1f1b', chunks=1,"
        " zero=0, recompute=False)\n"
        "  fix:  a batch that is a multiple of 3"
    )


def test_estimates_of_another_model_or_machine_in_the_file_are_not_taken(tmp_path):
    path = tmp_path / "found.csv"
    mlp, options = dist.MLP(8, 512, 64), {"microbatches": [1], "path": path}
    for model, chip in ((mlp, "h100"), (dist.MLP(8, 1024, 64), "h100"), (mlp, "a100"), (mlp, "h100")):
        topology = hardware.Topology(chip, 4)
        fresh = dist.grid_search(model, topology, 64, microbatches=[1])
        assert dist.grid_search(model, topology, 64, **options) == fresh
