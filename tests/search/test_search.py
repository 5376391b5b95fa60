"""Searches: the numbers of the simulator, at the speed of a formula."""

import json
import os
import pathlib
import random
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import fields
from functools import partial

import pytest

import meshwright as mw
from meshwright import dist, hardware
from meshwright.errors import MeshwrightError, ShapeError
from meshwright.search.bounds import StepBounds
from meshwright.search.transformer_plan import TransformerPlan, dtypes_of
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
    some = {"microbatches": [4], "zero": [0], "recompute": ["none"], "schedules": ["1f1b"], "prune": False}
    some["sequence_parallel"] = [False]
    found = dist.grid_search(dist.GPT(layers=8, dim=1024, heads=16), topology, batch=64, **some)
    degrees = {(e.strategy.data, e.strategy.tensor, e.strategy.pipeline) for e in found.estimates}
    assert degrees == {
        (d, h, 16 // d // h)
        for d in (1, 2, 4, 8, 16)
        for h in (1, 2, 4, 8, 16)
        if 16 % (d * h) == 0 and 16 // d // h <= 8
    }
    assert len(found) == found.considered == found.simulated
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


class Turns:
    """A pool of one's own: functions run here, one after the other, by `map` alone."""

    def map(self, function, given):
        return [function(one) for one in given]


class Later:
    """A pool of one's own: what is submitted runs when its result is asked for."""

    def submit(self, function, *given):
        later = Later()
        later.result = partial(function, *given)
        return later


SOME = {"microbatches": [1, 4], "zero": [0, 2], "recompute": ["full"], "tensor": [1], "schedules": ["1f1b"]}


@pytest.mark.parametrize("prune", [True, False])
def test_a_search_is_resumed_from_its_file(prune, tmp_path):
    topology, gpt = hardware.Topology("h100", 4), dist.GPT(layers=4, dim=256, heads=8)
    path = tmp_path / "found.csv"
    some = {**SOME, "prune": prune, "workers": 1, "path": path}
    seen: list[tuple[int, int]] = []
    first = dist.grid_search(gpt, topology, 32, progress=lambda n, of: seen.append((n, of)), **some)
    assert seen[-1][1] == first.considered
    written = path.read_text()
    again = dist.grid_search(gpt, topology, 32, **some)
    assert again == first
    assert path.read_text() == written  # nothing is made again, nor ruled out again by what took long
    other = dist.grid_search(gpt, topology, 16, **some)
    assert other == dist.grid_search(gpt, topology, 16, **{**some, "path": None})
    assert path.read_text().startswith(written)
    assert dist.grid_search(gpt, topology, 32, **some) == first


@pytest.mark.parametrize("pool", [partial(ThreadPoolExecutor, 2), partial(ProcessPoolExecutor, 2), Turns, Later])
def test_a_search_runs_on_any_executor(pool):
    topology, gpt = hardware.Topology("h100", 4), dist.GPT(layers=4, dim=256, heads=8)
    executor = pool()
    for prune in (True, False):
        some = {**SOME, "prune": prune, "zero": [0]}
        here = dist.grid_search(gpt, topology, 32, **some)
        assert dist.grid_search(gpt, topology, 32, executor=executor, **some) == here
    if hasattr(executor, "shutdown"):
        executor.shutdown()


def test_what_is_no_executor_is_refused():
    with pytest.raises(MeshwrightError) as error:
        dist.grid_search(dist.MLP(8, 64, 64), hardware.Topology("h100", 4), 64, executor=4)
    assert str(error.value).splitlines()[0] == "executor of a search is 4."
    assert str(error.value).splitlines()[-2:] == [
        "  why:  it is an executor, with a method submit or map",
        "  fix:  executor=concurrent.futures.ThreadPoolExecutor()",
    ]


def test_what_is_found_is_a_sequence_and_is_told_as_it_comes():
    better: list[dist.Estimate] = []
    found = dist.grid_search(dist.MLP(8, 512, 64), hardware.Topology("h100", 4), 64, better=better.append, top=3)
    assert list(found) == [found[n] for n in range(len(found))]
    assert found[:2] == found.estimates[:2]
    assert better[-1].seconds == found.best.seconds
    assert [e.seconds for e in better] == sorted((e.seconds for e in better), reverse=True)


def test_without_a_pipeline_gradients_are_accumulated():
    """A GPT of 76B on 1,024 A100s, eight to a node: two microbatches take as long as one, and half the memory."""
    shape = hardware.TransformerShape(60, 10240, 40960, 80, 128, 51200, gated=False, tied=True)
    some = {"recompute": ["full"], "sequence_parallel": [False], "tensor": [8], "zero": [3], "pipeline": [1]}
    found = dist.grid_search(shape, hardware.Topology("a100", 1024), 1792, sequence=2048, flash=False, **some)
    times = {e.strategy.microbatches: e for e in found}
    assert times.keys() == {1, 2, 7, 14}
    assert times[2].seconds < 1.01 * times[1].seconds
    assert times[2].peak_bytes_per_device < 0.6 * times[1].peak_bytes_per_device
    assert found.best.seconds < 11.01  # what this layout was once estimated to take, when the search did not try it


def test_a_model_that_fits_nowhere_gives_what_needs_the_least_memory():
    some = {"memory_bytes": 1e6, "tensor": [1], "zero": [0, 3], "recompute": ["full"]}
    found = dist.grid_search(dist.GPT(4, 1024, 8), hardware.Topology("h100", 2), 4, top=3, **some)
    every = dist.grid_search(dist.GPT(4, 1024, 8), hardware.Topology("h100", 2), 4, prune=False, **some)
    assert found.best is None
    assert len(found) == 3
    least = min(e.peak_bytes_per_device for e in every)
    assert min(e.peak_bytes_per_device for e in found) <= 1.1 * least


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


def test_what_is_of_transformers_alone_is_refused_for_others():
    shapes = hardware.Topology("h100", 4), 64
    step = mw.value_and_grad(lambda w, x: ((x @ w) ** 2).sum())
    x, w = (mw.ShapeDtypeStruct(shape, "float32") for shape in ((8, 16), (16, 16)))
    for model in (dist.MLP(8, 64, 64), dist.traced(step, w, x)):
        for space in ({"context": [2]}, {"expert": [1, 2]}, {"sequence_parallel": [True]}, {"flash": False}):
            with pytest.raises(ShapeError, match="is for a transformer"):
                dist.grid_search(model, *shapes, **space)
        with pytest.raises(ShapeError, match="cannot recompute 'attention'"):
            dist.grid_search(model, *shapes, recompute=["none", "attention"])
        with pytest.raises(ShapeError, match="cannot recompute 'attention'"):
            dist.estimate(model, dist.Strategy(recompute="attention"), 64, dist.OnTopology(shapes[0]))


def test_estimates_of_another_model_or_machine_in_the_file_are_not_taken(tmp_path):
    path = tmp_path / "found.csv"
    mlp, options = dist.MLP(8, 512, 64), {"microbatches": [1], "path": path}
    for model, chip in ((mlp, "h100"), (dist.MLP(8, 1024, 64), "h100"), (mlp, "a100"), (mlp, "h100")):
        topology = hardware.Topology(chip, 4)
        fresh = dist.grid_search(model, topology, 64, microbatches=[1])
        assert dist.grid_search(model, topology, 64, **options) == fresh


def kept(every: dist.SearchResult, top: int) -> list[dist.Estimate]:
    """What a pruned search promises, from one that is not: the fastest, and the front up to twice the best's time."""
    fitting = dist.SearchResult(tuple(e for e in every if e.fits))
    front = [e for e in fitting.pareto if e.seconds <= 2 * every.best.seconds] if every.best is not None else []
    return [e for e in fitting if e in fitting[:top] or e in front]


def test_what_is_pruned_is_neither_among_the_fastest_nor_on_the_front():
    topology, options = hardware.Topology("h100", 16), {"batch": 64, "memory_bytes": 2e10}
    every, some = (dist.grid_search(dist.MLP(8, 8192, 64), topology, prune=p, **options) for p in (False, True))
    assert some.best == every.best
    assert list(some) == kept(every, 10)
    assert some.simulated < 0.7 * sum(e.fits for e in every)


GPT_LIKE = {"layers": 4, "width": 256, "hidden": 1024, "heads": 4, "head_dim": 64, "vocab": 2000}
SHAPES = {
    "dense": ({}, {"memory_bytes": 1e8}),
    "grouped": ({"kv_heads": 2, "gated": True, "layers": 6}, {"mode": "calibrated", "sequence": 512}),
    "experts": ({"experts": 4, "experts_per_token": 2}, {"microbatch": [1, 2], "recompute": ["none", "full"]}),
    "scores": ({"tied": True, "gated": False}, {"flash": False, "sequence": 256, "zero": [0, 1, 3]}),
    "long": ({"layers": 2}, {"sequence": 16384, "recompute": ["full"], "zero": [1, 2]}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("chips", [4, 6, 8])
def test_what_is_pruned_of_a_transformer_is_neither_among_the_fastest_nor_on_the_front(name, chips):
    sizes, some = SHAPES[name]
    shape, machine = hardware.TransformerShape(**{**GPT_LIKE, **sizes}), hardware.Topology("h100", chips)
    every = dist.grid_search(shape, machine, 4 * chips, prune=False, **some)
    assert list(dist.grid_search(shape, machine, 4 * chips, top=5, **some)) == kept(every, 5)


def bounds_and_estimates(seed: int, count: int):
    """Random transformers, machines and strategies: bounds on each, and what is simulated."""
    draw = random.Random(seed)
    for _ in range(count):
        heads, dim, experts = draw.choice([4, 8, 12]), draw.choice([32, 64, 128]), draw.choice([1, 1, 1, 4])
        shape = hardware.TransformerShape(
            draw.choice([4, 6, 10, 14]), heads * dim, draw.choice([2, 4]) * heads * dim, heads, dim,
            draw.choice([500, 32000, 50257]), kv_heads=draw.choice([None, 2, 4]), gated=draw.random() < 0.5,
            tied=draw.random() < 0.5, experts=experts, experts_per_token=min(2, experts),
        )  # fmt: skip
        chips, sequence = draw.choice([2, 4, 6, 8, 16, 24]), draw.choice([64, 512, 1024, 8192])
        machine = hardware.Topology(draw.choice(["h100", "a100"]), chips)
        costs = dist.OnTopology(machine, mode=draw.choice(["exact", "calibrated"]), overlap=draw.random() < 0.8)
        batch, (item, state) = chips * draw.choice([1, 2, 4, 12]), draw.choice([(2, 12), (4, 8), (2, 0)])
        kinds = draw.choice([None, None, ["offload", "attention"]])
        options = {"sequence": sequence, "flash": draw.random() < 0.7, "recompute": kinds}
        if draw.random() < 0.4:
            options["context"] = [1, 2]
        possible = list(dist.strategies(shape, chips, batch, **options))
        strategy = draw.choice(possible)
        model, dtypes = (shape, sequence), dtypes_of(item, state)
        quick = StepBounds(model, batch, costs, dtypes).of(strategy)
        found = dist.estimate(shape, strategy, batch, costs, sequence=sequence, itemsize=item, state_bytes=state)
        yield [quick, *TransformerPlan(model, strategy, batch, costs, dtypes).bounds()], found


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 5))])
def test_no_strategy_takes_less_time_or_memory_than_its_bounds(seed):
    for bounds, found in bounds_and_estimates(seed, 40 if seed else 4):
        for least in bounds:
            assert least.seconds <= found.seconds * (1 + 1e-9), found.strategy
            assert least.nbytes <= found.peak_bytes_per_device, found.strategy


def test_every_size_of_a_microbatch_that_divides_is_tried():
    found = {(s.data, s.microbatches) for s in dist.strategies(dist.GPT(8, 256, 4), 4, 48, pipeline=[1], tensor=[1, 2])}
    assert found == {(4, k) for k in (1, 2, 3, 4, 6, 12)} | {(2, k) for k in (1, 2, 3, 4, 6, 8, 12, 24)}
    sizes = {s.microbatches for s in dist.strategies(dist.GPT(8, 256, 4), 4, 48, pipeline=[1], microbatch=[3, 5])}
    assert sizes == {4, 8, 16}


def test_context_is_for_long_sequences_and_experts_for_those_that_have_some():
    dense = hardware.TransformerShape(**GPT_LIKE)
    mixture = hardware.TransformerShape(**{**GPT_LIKE, "experts": 4, "experts_per_token": 2})
    assert {(s.context, s.expert) for s in dist.strategies(dense, 8, 8)} == {(1, 1)}
    assert {s.context for s in dist.strategies(dense, 8, 8, sequence=16384)} == {1, 2, 4}
    assert {s.expert for s in dist.strategies(mixture, 8, 8)} == {1, 2, 4}
    for s in dist.strategies(dense, 8, 8):
        assert s == dist.Strategy(**{f.name: getattr(s, f.name) for f in fields(s)})  # checks find nothing wrong


def test_stages_may_have_a_layer_less_at_either_end():
    shape = hardware.TransformerShape(**{**GPT_LIKE, "layers": 6})
    assert {s.pipeline * s.chunks for s in dist.strategies(shape, 8, 64, schedules=["1f1b", "interleaved"])} >= {2, 4}


# Files


@pytest.mark.parametrize("name", ["found.csv", "found.json"])
def test_a_search_that_was_stopped_goes_on_where_it_was(name, tmp_path):
    path, topology, mlp = tmp_path / name, hardware.Topology("h100", 8), dist.MLP(8, 512, 64)
    whole = dist.grid_search(mlp, topology, 64, prune=False)

    def stop(done: int, count: int) -> None:
        if done == 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dist.grid_search(mlp, topology, 64, prune=False, path=path, progress=stop)
    path.write_text(path.read_text()[:-7])  # the machine went down in the midst of a line
    counts: list[int] = []
    again = dist.grid_search(mlp, topology, 64, prune=False, path=path, progress=lambda _, of: counts.append(of))
    assert again == whole
    assert counts[0] == len(whole) - 99


@pytest.mark.parametrize("name", ["found.csv", "found.json"])
def test_a_damaged_line_is_told_and_estimated_again(name, tmp_path):
    path, topology, mlp = tmp_path / name, hardware.Topology("h100", 4), dist.MLP(8, 512, 64)
    whole = dist.grid_search(mlp, topology, 64, prune=False, path=path)
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
            told_of = partial(lambda to, n, of: to.append(of), counts)
            again = dist.grid_search(mlp, topology, 64, prune=False, path=path, progress=told_of)
        assert [str(w.message) for w in told] == [f"line {number + 1} of {path} is damaged, and estimated again"]
        assert told[0].filename == __file__
        assert (again, counts) == (whole, [1])
        assert path.read_bytes().split(b"\n")[:-2] == kept
    path.write_bytes(written)
    dist.grid_search(mlp, topology, 64, prune=False, path=path, progress=lambda n, of: pytest.fail("computed again"))


def test_a_file_whose_first_line_or_last_newline_is_gone_is_still_one_of_estimates(tmp_path):
    path, topology, mlp = tmp_path / "found.csv", hardware.Topology("h100", 4), dist.MLP(8, 512, 64)
    whole = dist.grid_search(mlp, topology, 64, prune=False, path=path)
    written = path.read_text()
    path.write_text("x" + written)
    with pytest.warns(UserWarning, match=f"line 1 of {path} is damaged"):
        assert dist.grid_search(mlp, topology, 64, prune=False, path=path) == whole
    assert path.read_text() == written
    path.write_text(written[:-1])
    known = dist.grid_search(mlp, topology, 64, prune=False, path=path, progress=lambda n, of: pytest.fail("again"))
    assert known == whole
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
