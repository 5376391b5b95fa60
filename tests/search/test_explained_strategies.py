"""What a search of strategies is explained by: parts of the steps, and the same steps after a change."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

import pytest
from examples import gpt

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import dist, hardware
from meshwright.cli import main
from meshwright.errors import ShapeError
from meshwright.search.explained import _LINKS, changed_machines
from meshwright.search.explained_strategies import OTHER, _traced_rows, what_if
from meshwright.simulate import transformer

MODEL, MACHINE = dist.GPT(layers=4, dim=256, heads=4), hardware.Topology("h100", 2)
SPACE: dict[str, Any] = {"microbatches": [1], "zero": [0], "recompute": [False], "pipeline": [1]}


def test_a_search_is_explained() -> None:
    found = dist.grid_search(MODEL, MACHINE, batch=8, **SPACE)
    assert found.best is not None
    text = found.explain()
    one = transformer.train(MODEL.shape, MACHINE, found.best.strategy, 8, MODEL.length)
    assert text.startswith("best: ")
    for part in ("activations", "optimizer", "half the memory: ", "twice the batch: ", one.bound, "of those found:"):
        assert part in text
    assert dist.explain_search(found, MODEL, MACHINE, batch=8) == text
    assert pickle.loads(pickle.dumps(found)) == found


def test_the_command_explains(capsys: pytest.CaptureFixture[str]) -> None:
    only = ["--microbatches", "1", "--zero", "0", "--recompute", "none", "--tensor", "1", "--pipeline", "1"]
    assert main(["search", "--model", "gpt:4x256x4", "--chips", "2", "--batch", "8", "--explain", *only]) == 0
    assert "\n\nbest: data=2\n" in capsys.readouterr().out
    assert main(["search", "--model", "mlp:4x256", "--chips", "2", "--explain"]) == 2
    error = (
        "--explain is of a transformer, or of a traced step.\n  why:  an MLP by its sizes is not known by its parts\n"
    )
    assert capsys.readouterr().err.startswith(error)


def train(ws: Any, x: Any) -> Any:
    def loss(ws: Any) -> Any:
        y = x
        for w in ws:
            y = mnp.tanh(y @ w)
        return mnp.mean(y**2)

    value, gradient = mw.value_and_grad(loss)(ws)
    return value, [w - 0.1 * g for w, g in zip(ws, gradient, strict=True)]


def traced_step() -> dist.Traced:
    weight, rows = mw.ShapeDtypeStruct((1024, 1024), "float32"), mw.ShapeDtypeStruct((64, 1024), "float32")
    return dist.traced(train, [weight] * 4, rows)


@pytest.mark.parametrize("space", [{}, {"tensor": [4]}, {"pipeline": [2], "microbatches": [4]}])
def test_a_search_of_a_traced_step_is_explained(space: dict[str, Any]) -> None:
    machine = hardware.Topology("h100", 4)
    found = dist.grid_search(traced_step(), machine, batch=64, **space)
    assert found.best is not None and found.asked is not None
    _, rows = _traced_rows([e.strategy for e in found if e.fits], found.asked)
    for row, estimate in zip(rows, [e for e in found if e.fits], strict=True):
        assert row.seconds == pytest.approx(estimate.seconds) == pytest.approx(sum(row.parts.values()))
        assert row.peak_bytes == estimate.peak_bytes_per_device
        split = {name for name in ("data", "tensor", "pipeline") if getattr(estimate.strategy, name) > 1}
        assert set(row.parts) - {"compute", "bubble"} <= split
    text = found.explain()
    assert text.startswith("best: ")
    for part in ("  computes for ", "  holds ", "half the batch: ", "of those found:"):
        assert part in text
    assert pickle.loads(pickle.dumps(found)) == found


def test_waits_of_a_traced_step_are_for_links() -> None:
    chip = hardware.get("h100")
    rates = {name: 1e6 * chip.facts[name].value for name in _LINKS if name in chip.facts}
    hops = {name: 0.0 for name in ("hop_seconds", "nvlink_hop_seconds", "net_hop_seconds") if name in chip.facts}
    waits = []
    for one in (chip, chip.replace(**rates, **hops)):
        asked = dist.grid_search(traced_step(), hardware.Topology(one, 4), batch=64, tensor=[2], zero=[0]).asked
        assert asked is not None
        _, (row,) = _traced_rows([dist.Strategy(data=2, tensor=2)], asked)
        waits.append(row.parts.get("data", 0.0) + row.parts.get("tensor", 0.0))
    assert waits[0] > 1e-6 > 100 * waits[1]


def test_a_traced_step_takes_the_same_whatever_was_read_before() -> None:
    costs, config = dist.OnTopology(hardware.Topology("h100", 64)), gpt.Config(layers=1, dim=1024, heads=16, length=512)
    params = mw.eval_shape(lambda key: gpt.init(key, config), mw.random.key(0))
    batch = mw.eval_shape(lambda key: gpt.make_batch(key, config, 512), mw.random.key(0))
    taken = []
    for before in ([], [dist.Strategy(data=8)]):
        model = dist.traced(partial(gpt.train_step, config=config), params, batch)
        *_, last = (dist.estimate(model, s, 512, costs) for s in (*before, dist.Strategy(data=8, tensor=8)))
        taken.append(last)
    assert taken[0] == taken[1]


def test_what_is_refused() -> None:
    with pytest.raises(ShapeError) as refused:
        dist.explain_search(dist.SearchResult(()), MODEL, MACHINE, batch=8)
    assert (refused.value.what, refused.value.why, refused.value.fix) == (
        "There is no strategy to explain.",
        "none fits into memory",
        "a search with more chips or a smaller batch",
    )
    with pytest.raises(ShapeError) as refused:
        dist.SearchResult(()).explain()
    assert (refused.value.what, refused.value.why, refused.value.fix) == (
        "There is nothing to explain this search by.",
        "it was not on a topology, was of an MLP by its sizes, or is not what dist.grid_search returned",
        "dist.explain_search(found, model, topology, batch)",
    )


CASES: list[tuple[dist.GPT, hardware.Topology, int, float]] = [
    (dist.GPT(layers=4, dim=2048, heads=16), hardware.Topology("h100", 4), 16, 6e9),
    (dist.GPT(layers=4, dim=1024, heads=8), hardware.Topology("tpu v5e", "2x2"), 8, 2e9),
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "machine", "batch", "memory"), CASES, ids=["h100", "v5e"])
def test_what_a_change_does_is_what_a_whole_search_after_it_finds(
    model: dist.GPT, machine: hardware.Topology, batch: int, memory: float
) -> None:
    """Nothing is pruned there: every strategy of the space is simulated on the changed machine."""
    space: dict[str, Any] = {"schedules": ["1f1b"], "zero": [0, 3], "recompute": ["none", "full"], "workers": 1}
    space |= {"pipeline": [1, 2], "sequence_parallel": [False]}
    found = dist.grid_search(model, machine, batch, memory_bytes=memory, **space)
    assert found.asked is not None and found.best is not None
    fitting = [e for e in found if e.fits]
    few, anew = (what_if(fitting, found.asked, search) for search in (False, True))
    changes = [(one.change, one.topology, batch, one.memory * memory) for one in changed_machines(machine)]
    changes += [("twice the batch", machine, 2 * batch, memory), ("half the batch", machine, batch // 2, memory)]
    assert [one.change for one in anew] == [one.change for one in few] == [change[0] for change in changes]
    others = 0
    for (_, on, samples, room), some, one in zip(changes, few, anew, strict=True):
        every = dist.grid_search(model, on, samples, memory_bytes=room, prune=False, **space)
        own, times = found.best.strategy, samples / batch
        own_now = (own, own.with_(microbatches=own.microbatches * times))  # as many microbatches, or as large ones
        kept = min((e.seconds for e in every if e.fits and e.strategy in own_now), default=inf)
        least = every.best.seconds if every.best is not None else inf
        assert one.kept_seconds == kept
        assert one.other == (least < (1 - OTHER) * kept or least == inf)
        assert one.seconds == (least if one.other else kept)
        others += one.other
        # Those found before are not all; what they say of another is true, and no faster than can be.
        assert one.other or not some.other
        assert some.seconds >= one.seconds or not one.other
    assert others


def test_a_result_without_what_it_was_asked_is_equal() -> None:
    found = dist.grid_search(MODEL, MACHINE, batch=8, tensor=[1], **SPACE)
    assert replace(found, asked=None) == found
