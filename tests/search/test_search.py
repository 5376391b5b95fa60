"""Searches: the numbers of the simulator, at the speed of a formula."""

import json
import os
import pathlib
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from meshwright import dist, hardware
from meshwright.errors import MeshwrightError, ShapeError
from meshwright.simulate.pipelines import peak_activations

ROWS = json.loads((pathlib.Path(__file__).parents[1] / "device" / "distir_mlp_table.json").read_text())


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
    some = {"microbatches": [4], "zero": (0, 1)}
    found = dist.grid_search(dist.GPT(layers=8, dim=1024, heads=16), topology, batch=64, **some)
    degrees = {(e.strategy.data, e.strategy.tensor, e.strategy.pipeline) for e in found.estimates}
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
        assert not any(
            e.seconds < one.seconds and e.peak_bytes_per_device < one.peak_bytes_per_device for e in found.estimates
        )


def test_memory_falls_with_zero_and_recomputation_and_time_rises():
    gpt, costs = dist.GPT(layers=8, dim=1024, heads=16), dist.OnTopology(hardware.Topology("h100", 8))
    stages = [dist.estimate(gpt, dist.Strategy(8, zero=z), 64, costs, state_bytes=12) for z in range(4)]
    assert [e.peak_bytes_per_device for e in stages] == sorted((e.peak_bytes_per_device for e in stages), reverse=True)
    again = [dist.estimate(gpt, dist.Strategy(8, microbatches=8, zero=z), 64, costs) for z in (2, 3)]
    assert again[1].seconds > again[0].seconds  # parameters are gathered for every microbatch
    kept, again = (dist.estimate(gpt, dist.Strategy(8, recompute=r), 64, costs) for r in (False, True))
    assert again.peak_bytes_per_device < kept.peak_bytes_per_device
    assert again.seconds > kept.seconds


def test_a_search_is_resumed_from_its_file_and_runs_on_any_executor(tmp_path):
    topology, gpt = hardware.Topology("h100", 8), dist.GPT(layers=4, dim=256, heads=8)
    path = tmp_path / "found.csv"
    some = {"microbatches": [1, 4], "zero": (0, 2)}
    seen: list[tuple[int, int]] = []
    first = dist.grid_search(gpt, topology, 32, path=path, progress=lambda n, of: seen.append((n, of)), **some)
    assert seen[-1] == (len(first), len(first))
    again = dist.grid_search(gpt, topology, 32, path=path, progress=lambda n, of: pytest.fail("computed again"), **some)
    assert set(again.estimates) == set(first.estimates)
    with ThreadPoolExecutor(2) as executor:
        spread = dist.grid_search(gpt, topology, 32, executor=executor, **some)
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
        "  why:  the strategy is Strategy(data=3)\n"
        "  fix:  a batch that is a multiple of 3"
    )


def test_estimates_of_another_model_or_machine_in_the_file_are_not_taken(tmp_path):
    path = tmp_path / "found.csv"
    mlp, options = dist.MLP(8, 512, 64), {"microbatches": [1], "path": path}
    for model, chip in ((mlp, "h100"), (dist.MLP(8, 1024, 64), "h100"), (mlp, "a100"), (mlp, "h100")):
        topology = hardware.Topology(chip, 4)
        fresh = dist.grid_search(model, topology, 64, microbatches=[1])
        assert dist.grid_search(model, topology, 64, **options) == fresh


@pytest.mark.parametrize("model", [dist.MLP(16, 8192, 64), dist.GPT(layers=24, dim=2048, heads=16)])
def test_what_is_pruned_is_neither_best_nor_on_the_front(model):
    topology, options = hardware.Topology("h100", 16), {"batch": 64, "memory_bytes": 2e10}
    every, some = (dist.grid_search(model, topology, prune=prune, **options) for prune in (False, True))
    fitting = dist.SearchResult(tuple(e for e in every.estimates if e.fits))
    assert some.best == every.best
    assert some.pareto == fitting.pareto
    assert set(some.estimates) < set(fitting.estimates)
    assert len(some) < 0.75 * len(fitting)


# Files


@pytest.mark.parametrize("name", ["found.csv", "found.json"])
def test_a_search_that_was_stopped_goes_on_where_it_was(name, tmp_path):
    path, topology, mlp = tmp_path / name, hardware.Topology("h100", 8), dist.MLP(8, 512, 64)
    whole = dist.grid_search(mlp, topology, 64)

    def stop(done: int, count: int) -> None:
        if done == 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dist.grid_search(mlp, topology, 64, path=path, progress=stop)
    path.write_text(path.read_text()[:-7])  # the machine went down in the midst of a line
    counts: list[int] = []
    again = dist.grid_search(mlp, topology, 64, path=path, progress=lambda done, count: counts.append(count))
    assert again == whole
    assert counts[0] == len(whole) - 99


@pytest.mark.parametrize("name", ["found.csv", "found.json"])
def test_a_damaged_line_is_told_and_estimated_again(name, tmp_path):
    path, topology, mlp = tmp_path / name, hardware.Topology("h100", 4), dist.MLP(8, 512, 64)
    whole = dist.grid_search(mlp, topology, 64, path=path)
    written = path.read_bytes()
    lines = written.split(b"\n")[:-1]
    first = name == "found.csv"
    rng = random.Random(0)
    for _ in range(40):
        number = rng.randrange(first, len(lines))
        at = rng.randrange(len(lines[number]))
        other = rng.choice([b for b in b'0123456789,"aTF\xff\0 {}' if b != lines[number][at]])
        kept = [line for n, line in enumerate(lines) if n != number]
        damaged = lines[number][:at] + bytes([other]) + lines[number][at + 1 :]
        path.write_bytes(b"".join(line + b"\n" for line in [*lines[:number], damaged, *lines[number + 1 :]]))
        counts: list[int] = []
        with pytest.warns(UserWarning) as told:
            again = dist.grid_search(mlp, topology, 64, path=path, progress=lambda n, of, to=counts: to.append(of))
        assert [str(w.message) for w in told] == [f"line {number + 1} of {path} is damaged, and estimated again"]
        assert told[0].filename == __file__
        assert (again, counts) == (whole, [1])
        assert path.read_bytes().split(b"\n")[:-2] == kept
    path.write_bytes(written)
    dist.grid_search(mlp, topology, 64, path=path, progress=lambda n, of: pytest.fail("computed again"))


def test_a_file_whose_first_line_or_last_newline_is_gone_is_still_one_of_estimates(tmp_path):
    path, topology, mlp = tmp_path / "found.csv", hardware.Topology("h100", 4), dist.MLP(8, 512, 64)
    whole = dist.grid_search(mlp, topology, 64, path=path)
    written = path.read_text()
    path.write_text("x" + written)
    with pytest.warns(UserWarning, match=f"line 1 of {path} is damaged"):
        assert dist.grid_search(mlp, topology, 64, path=path) == whole
    assert path.read_text() == written
    path.write_text(written[:-1])
    assert dist.grid_search(mlp, topology, 64, path=path, progress=lambda n, of: pytest.fail("again")) == whole
    assert path.read_text() == written


@pytest.mark.parametrize("text", ["no newline", "several lines\nand no newline"])
def test_a_file_that_is_refused_keeps_what_it_has(text, tmp_path):
    path = tmp_path / "notes.csv"
    path.write_text(text)
    with pytest.raises(ShapeError):
        dist.grid_search(dist.MLP(8, 512, 64), hardware.Topology("h100", 4), 64, path=path)
    assert path.read_text() == text


def test_estimates_are_kept_in_regular_files_alone(tmp_path):
    path = tmp_path / "pipe.csv"
    os.mkfifo(path)
    for place in (path, "/dev/zero"):
        with pytest.raises(MeshwrightError) as error:
            dist.grid_search(dist.MLP(8, 512, 64), hardware.Topology("h100", 4), 64, path=place)
        assert str(error.value).splitlines()[0] == f"{place} cannot be written."
        assert str(error.value).splitlines()[-2:] == [
            "  why:  it is not a regular file",
            "  fix:  name a file in a folder that exists",
        ]


@pytest.mark.parametrize("text", ["a,b\n1,2\n", '{"a": 1}\n', "[1]\n", "no json\n"])
def test_a_file_of_something_else_is_refused(text, tmp_path):
    path = tmp_path / ("found.csv" if "," in text else "found.json")
    path.write_text(text)
    with pytest.raises(ShapeError) as error:
        dist.grid_search(dist.MLP(8, 512, 64), hardware.Topology("h100", 8), 64, path=path)
    assert str(error.value).splitlines() == [
        f"{path} is not a file of estimates.",
        f"  why:  it begins with {text.splitlines()[0]!r}",
        "  fix:  another file, or delete this one",
    ]
    assert path.read_text() == text


@pytest.mark.parametrize("name", dist.SCHEDULES)
def test_the_activations_of_schedules_in_closed_form_are_those_of_running_them(name):
    for devices in (1, 2, 3, 4):
        for times in (1, 2, 5):
            for chunks in (2, 3) if name == "interleaved" else (1,):
                given = (devices, devices * times, chunks) if name == "interleaved" else (devices, devices * times)
                run = dist.SCHEDULES[name](*given).run()
                assert peak_activations(name, devices, devices * times, chunks) == run.peak_activations
