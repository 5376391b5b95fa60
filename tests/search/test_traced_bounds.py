"""Bounds on a user's own step: none is above what the step takes, and what they rule out is not missed."""

import random

import pytest
from examples import gpt, mlp, transformer

from meshwright import dist, hardware
from meshwright.search.pruned import bounds_of
from meshwright.search.traced_bounds import TracedBounds
from meshwright.search.traced_plan import TracedPlan
from meshwright.simulate.pipelines import SCHEDULES, TaskTime, schedule_of
from tests.search.test_search import kept
from tests.search.test_traced import shapes

STEPS = {
    "gpt": (gpt, gpt.Config(vocab=1024, length=128, dim=256, layers=2, heads=8)),
    "layers": (gpt, gpt.Config(vocab=4096, length=256, dim=512, layers=8, heads=8)),
    "loop": (transformer, transformer.Config(dim=256, heads=8, kv_heads=4, hidden=512, scan=True)),
    "mlp": (mlp, mlp.Config(inputs=1024, dim=1024, outputs=1024)),
}
KINDS = ["none", "matmuls", "full", "offload"]


@pytest.mark.parametrize("name", [n if n == "gpt" else pytest.param(n, marks=pytest.mark.slow) for n in STEPS])
def test_no_traced_strategy_takes_less_time_or_memory_than_its_bounds(name):
    draw, model = random.Random(name), dist.traced(*shapes(*STEPS[name], 16))
    chips, sizes = (4, [1, 4]) if name == "gpt" else (16, None)
    batch, costs = 4 * chips, dist.OnTopology(hardware.Topology("h100", chips))
    possible = list(dist.strategies(model, chips, batch, recompute=KINDS, microbatch=sizes))
    read = [(rows, parts) for rows in (1, batch) for parts in sorted({s.tensor for s in possible})]
    bounds = {one: TracedBounds(model, batch, costs, 4, *one) for one in read}
    for s in draw.sample(possible, min(len(possible), 600)):
        plan = TracedPlan(model, s, batch, costs, 4)
        (seconds, _), nbytes = plan.seconds(), plan.peak_bytes()
        least_of = [found.of(s) for (_, parts), found in bounds.items() if parts in (1, s.tensor)]
        for least in (*least_of, *bounds_of(plan)):
            assert least.seconds <= seconds * (1 + 1e-9), s
            assert least.nbytes <= nbytes, s


@pytest.mark.parametrize("name", [n if n == "gpt" else pytest.param(n, marks=pytest.mark.slow) for n in STEPS])
def test_what_is_pruned_of_a_traced_step_is_neither_among_the_fastest_nor_on_the_front(name):
    model, machine = dist.traced(*shapes(*STEPS[name], 16)), hardware.Topology("h100", 4)
    options = {"batch": 16, "workers": 1, "microbatch": [1, 2]}
    every = dist.grid_search(model, machine, prune=False, **options)
    some = dist.grid_search(model, machine, top=5, **options)
    assert list(some) == kept(every, 5)
    assert some.simulated < 0.7 * len(every)


@pytest.mark.parametrize("name", SCHEDULES)
def test_devices_end_when_the_schedule_that_is_played_says_so(name):
    draw = random.Random(name)
    for devices, microbatches in ((1, 3), (2, 4), (3, 6), (4, 12)):
        times = {}

        def time(phase, k, stage, times=times):
            length = draw.random()
            return times.setdefault((phase, min(k, 1), stage), TaskTime(length, length + draw.random()))

        schedule = schedule_of(name, devices, microbatches, 2 if name == "interleaved" else 1)
        assert schedule.ends(time) == schedule.play(time)[0]
