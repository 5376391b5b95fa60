"""What `find_layout` says of its layouts: parts that add up, waits, and what single changes do."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, hardware
from meshwright.search.explained import LayoutParts, WhatIf, parts_of, table_of, waits_of, what_if_lines
from meshwright.search.layout.explain import contenders, memory_of
from meshwright.search.layout.found import FoundLayouts


def shape(*dims: int, dtype: str = "bfloat16") -> Any:
    return mw.ShapeDtypeStruct(dims, dtype)


def step(params: Any, batch: Any) -> Any:
    x, y = batch
    value, gradient = mw.value_and_grad(lambda w: mnp.mean((x @ w - y).astype("float32") ** 2))(params["w"])
    return value, {"w": params["w"] - 0.1 * gradient}


def arguments(rows: int = 4096) -> tuple[Any, Any]:
    return {"w": shape(1024, 4096)}, (shape(rows, 1024), shape(rows, 4096))


@cache
def found() -> Any:
    return mw.find_layout(step, *arguments(), topology="h100 4", fixed={"data": 2, "model": 2})


def test_parts_add_up_to_the_seconds_and_kinds_to_the_peak() -> None:
    for one in found():
        assert sum(parts_of(one.simulation).values()) == pytest.approx(one.seconds, rel=1e-9)
        assert sum(memory_of(one).values()) == one.peak_bytes_per_device
        assert min(memory_of(one).values()) >= 0
        waits = sum(wait.seconds for wait in waits_of(one.simulation))
        assert waits == pytest.approx(one.simulation.exposed_seconds, rel=1e-4, abs=1e-6 * one.seconds)


@pytest.mark.parametrize("length", [2, 9])
def test_of_what_runs_one_after_another_every_collective_is_a_wait(length: int) -> None:
    mesh = mw.make_mesh((4, 2), ("x", "y"))

    def body(x: Any, w: Any) -> Any:
        x = mw.lax.psum(x @ w, "x")
        return mw.lax.pvary(x, "x") + mw.lax.all_gather(w, "y", axis=0, tiled=True)[:512], None

    def f(x: Any, ws: Any) -> Any:
        return mw.lax.psum(mw.lax.scan(body, x, ws)[0], ("x", "y"))

    run = mw.shard_map(f, mesh=mesh, in_specs=(P(("x", "y")), P(None, ("x", "y"))), out_specs=P())
    program = mw.make_program(run)(shape(8 * 512, 512), shape(length, 8 * 512, 512))
    alone = mw.simulate(program, "h100", overlap="none")
    found: dict[str, float] = {}
    for wait in waits_of(alone):
        found[wait.axes] = found.get(wait.axes, 0.0) + wait.seconds
    assert found == pytest.approx(alone.axis_seconds(), rel=1e-6)


def test_nothing_is_waited_for_where_everything_is_hidden_or_nothing_is_sent() -> None:
    alone = mw.simulate(mw.make_program(lambda x: x @ x)(shape(1024, 1024)), "h100")
    assert waits_of(alone) == []
    assert list(parts_of(alone)) == ["compute"]


def test_what_is_said_after_a_change_is_what_a_simulation_of_that_says() -> None:
    said = {one.change: one for one in found().what_if()}
    chip = hardware.get("h100")
    links = ("nvlink", "nic", "node", "unit", "spine", "measured_bus")
    rates = {f"{n}_bytes_per_s": 0.5 * chip.facts[f"{n}_bytes_per_s"].value for n in links}
    best = found().best
    slower = hardware.Topology(chip.replace(**rates), 4, mesh=best.mesh.shape)
    kept = said["half the bandwidth of links"].kept_seconds
    assert mw.simulate(best.compile(), slower).seconds == kept
    assert said["twice the memory"].kept_seconds == best.seconds
    params, batch = best.in_shardings
    laid = mw.jit(step, in_shardings=(params, batch), out_shardings=(None, params), donate_argnums=(0,))
    machine = hardware.Topology("h100", 4, mesh=best.mesh.shape)
    twice = mw.simulate(laid.lower(*arguments(8192)).compile(), machine)
    assert said["twice the batch"].kept_seconds == twice.seconds
    assert said["twice the batch"].seconds <= twice.seconds
    assert {"half the chips", "twice the chips", "half the batch", "h200 chips"} <= set(said)


def test_less_memory_makes_another_best_where_the_best_needs_it() -> None:
    best = found().best
    memory = 1.3 * best.peak_bytes_per_device
    tight = FoundLayouts(tuple(replace(one, memory=memory) for one in found()), found().bound_seconds)
    half = next(one for one in tight.what_if() if one.change == "half the memory")
    assert half.other
    assert half.kept_seconds == float("inf")
    least = min(one.peak_bytes_per_device for one in contenders(tight, 5))
    assert (least <= memory / 2) == (half.seconds < float("inf"))


def test_texts() -> None:
    text = found().explain()
    assert text.startswith("best: ")
    for part in (" a step, ", "  computes for ", "  holds ", "made by the step", "half the bandwidth of links: "):
        assert part in text
    assert "compute" in found().gantt(80)
    assert "<svg" in found()._repr_html_()
    rows = [LayoutParts("a", 1.0, {"compute": 1.0}, {"w": 10}, True, "one"),
            LayoutParts("b", 2.0, {"compute": 1.0, "x": 1.0, "y": 1e-12}, {"w": 5, "made": 1}, False)]  # fmt: skip
    assert table_of(rows) == (
        "   seconds  loses  compute  x waits  y waits  w     made\n"
        "a  1 s             1 s      0        0        10 B  0 B   one\n"
        "b  2 s      +1 s   1 s      1 s      0        5 B   1 B   does not fit"
    )
    inf = float("inf")
    same, other = WhatIf("twice", "a", 1.0, 1.0, False), WhatIf("half", "b", 2.0, 3.0, True)
    changes = [same, other, WhatIf("c", "d", 1.0, inf, True)]
    assert what_if_lines(changes) == [
        "what would make another best:",
        "  half: b, 2 s, against 3 s",
        "  c: d, 1 s, what is best now cannot be had",
        "  twice: the same, 1 s",
    ]
    assert what_if_lines(changes[:1])[0] == "no change tried makes another best:"
    assert str(WhatIf("half", "", inf, inf, True)) == "half: nothing that was found fits"


def test_runners_up_say_what_is_different() -> None:
    rows = found().compare(10)
    assert rows[0].seconds == found().best.seconds
    assert all(row.note for row in rows)
