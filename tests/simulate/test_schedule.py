"""The event engine: what waits for what, what runs at once, and loops by multiplication."""

from __future__ import annotations

from itertools import pairwise
from math import isclose
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright import P, lax
from meshwright.simulate import schedule, simulate
from meshwright.simulate.machine import COMPUTE, TaskCost
from meshwright.simulate.schedule import Scheduler
from meshwright.simulate.simulation import Simulation
from meshwright.simulate.tasks import Task
from tests.simulate.models import fsdp, megatron, struct


def task(unit: str, seconds: float, *after: int) -> Task:
    axes = () if unit == COMPUTE else ("x",)
    return Task(unit, unit, None, TaskCost(seconds, (unit,), "compute", axes=axes), after)


def starts(tasks: list[Task], overlap: str = "loops") -> list[float]:
    return Scheduler(overlap).order(tasks, [t.cost.seconds for t in tasks], [t.after for t in tasks])


def test_a_transfer_runs_beside_what_does_not_need_it() -> None:
    tasks = [task(COMPUTE, 1.0), task("links 0", 5.0, 0), task(COMPUTE, 3.0), task(COMPUTE, 1.0, 1)]
    assert starts(tasks) == [0.0, 1.0, 1.0, 6.0]
    assert starts(tasks, "none") == [0.0, 1.0, 6.0, 9.0]


def test_what_a_transfer_waits_for_comes_first() -> None:
    # In the program's order 4 + 1 + 5 + 1; with the task that the transfer needs in front, 1 + 5 + 1.
    tasks = [task(COMPUTE, 4.0), task(COMPUTE, 1.0), task("links 0", 5.0, 1), task(COMPUTE, 1.0, 0, 2)]
    assert starts(tasks) == [1.0, 0.0, 1.0, 6.0]


def test_transfers_on_the_same_links_take_turns_and_others_do_not() -> None:
    tasks = [task("links 0", 2.0), task("links 0", 2.0), task("links 1", 3.0)]
    assert starts(tasks) == [0.0, 2.0, 0.0]


def test_random_graphs_never_break_a_rule() -> None:
    rng = np.random.default_rng(1)
    for _ in range(100):
        count = int(rng.integers(1, 120))
        tasks = []
        for n in range(count):
            before = sorted(set(rng.integers(0, n, size=min(n, 2)).tolist())) if n else []
            unit = [COMPUTE, COMPUTE, "links 0", "links 1"][rng.integers(4)]
            tasks.append(task(unit, float(rng.integers(0, 5)), *before))
        found = starts(tasks)
        ends = [s + t.cost.seconds for s, t in zip(found, tasks, strict=True)]
        for n, one in enumerate(tasks):
            assert all(found[n] >= ends[before] for before in one.after)
        for unit in (COMPUTE, "links 0", "links 1"):
            spans = sorted(
                (found[n], ends[n]) for n in range(count) if tasks[n].cost.units == (unit,) and ends[n] > found[n]
            )
            assert all(a[1] <= b[0] for a, b in pairwise(spans))
        busiest = max(sum(t.cost.seconds for t in tasks if t.cost.units == (u,)) for u in (COMPUTE, "links 0"))
        assert busiest <= max(ends) <= sum(t.cost.seconds for t in tasks)


def check_consistent(result: Simulation) -> None:
    busy = result.unit_seconds()
    assert max(busy.values()) <= result.seconds * (1 + 1e-9)
    assert result.seconds <= (result.compute_seconds + result.communication_seconds) * (1 + 1e-9)
    assert 0 <= result.mfu <= 1
    for event in result.timeline:
        assert event.start >= 0 and event.end <= result.seconds * (1 + 1e-9)


@pytest.mark.parametrize("overlap", schedule.OVERLAPS)
@pytest.mark.parametrize("scan", [False, True])
def test_whole_programs_are_consistent(scan: bool, overlap: str) -> None:
    check_consistent(simulate(fsdp(scan=scan), "h100", overlap=overlap))


def test_less_overlap_takes_longer() -> None:
    times = [simulate(fsdp(), "tpu v5e", overlap=overlap).seconds for overlap in schedule.OVERLAPS]
    assert times[0] < times[1] < times[2]
    serial = simulate(fsdp(), "tpu v5e", overlap="none")
    assert isclose(serial.seconds, serial.compute_seconds + serial.communication_seconds)


@pytest.mark.parametrize("chip", ["tpu v5e", "h100", "tpu v5p"])
@pytest.mark.parametrize("rows", [128, 1024, 8192])
def test_a_loop_by_multiplication_is_the_loop_played_in_full(chip: str, rows: int, monkeypatch: Any) -> None:
    program = fsdp(rows=rows, layers=24)
    found = simulate(program, chip).seconds
    monkeypatch.setattr(schedule, "ITERATIONS", 1000)
    assert isclose(found, simulate(program, chip).seconds, rel_tol=0.02)


def test_what_nobody_waits_for_lengthens_no_iteration_but_the_last(monkeypatch: Any) -> None:
    """As gradients of weights in a backward pass: at the end of a loop they are put off, and only there."""
    rng, loops = np.random.default_rng(3), []
    for _ in range(40):
        body: list[Task] = []
        last = -1  # of the chain from carry to carry
        for n in range(int(rng.integers(4, 12))):
            before = (last,) if last >= 0 else ()
            if rng.random() < 0.5:
                body.append(task(COMPUTE, float(rng.integers(1, 8)), *before))
            body.append(task("links 0" if n % 3 == 2 else COMPUTE, float(rng.integers(1, 5)), *before))
            last = len(body) - 1
        first = next(n for n, one in enumerate(body) if last in (n,) or any(n in other.after for other in body))
        block: Any = SimpleNamespace(tasks=body)
        cost = TaskCost(0.0, (COMPUTE,), "compute")
        loops.append(Task("loop", "scan", None, cost, body=block, times=60, carried=((first, last),)))
    found = [Scheduler("loops").loop(one).seconds for one in loops]
    monkeypatch.setattr(schedule, "ITERATIONS", 1000)
    assert found == [pytest.approx(Scheduler("loops").loop(one).seconds, rel=0.03) for one in loops]


def test_a_loop_overlaps_as_its_unrolled_twin_does() -> None:
    looped = simulate(fsdp(layers=24), "h100")
    unrolled = simulate(fsdp(layers=24, scan=False), "h100")
    assert looped.communication_seconds == pytest.approx(unrolled.communication_seconds, rel=0.01)
    assert looped.seconds == pytest.approx(unrolled.seconds, rel=0.1)


def test_without_overlap_time_is_the_sum_of_what_hardware_says() -> None:
    result = simulate(megatron(), "tpu v5e", overlap="none")
    machine = result.topology
    products = 2 * mw.hardware.matmul_seconds(2048, 1024, 1024, "tpu v5e")
    between = mw.hardware.elementwise_seconds((2048, 1024), "tpu v5e", "bf16", inputs=1)
    total = mw.hardware.collective_seconds("all_reduce", 2048 * 1024 * 2, machine, "model")
    assert result.seconds == pytest.approx(products + between + total)


def test_a_pipeline_of_ppermutes() -> None:
    mesh = mw.AbstractMesh((4,), ("x",))
    ring = [(n, (n + 1) % 4) for n in range(4)]

    def rotate(x: Any, w: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            block, total = carry
            return (lax.ppermute(block, "x", ring), total + block @ w), None

        (_, total), _ = lax.scan(step, (x, x * 0), None, length=4)
        return total

    mapped = mw.shard_map(rotate, mesh=mesh, in_specs=(P("x"), P("x")), out_specs=P("x"))
    program = mw.make_program(mapped)(struct(4 * 4096, 4096), struct(4 * 4096, 4096))
    result = simulate(program, mw.hardware.Topology("tpu v5e", 4, wrap=True))
    one = mw.hardware.collective_seconds("permute", 4 * 4096 * 4096 * 2, result.topology, "x")
    assert result.axis_seconds() == {"x": pytest.approx(4 * one)}
    # The transfer of a step runs beside its product; which is longer decides.
    assert result.seconds == pytest.approx(max(4 * one, result.compute_seconds), rel=0.15)
