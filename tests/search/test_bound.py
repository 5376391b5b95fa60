"""The seconds that no layout is below: of collectives, of layouts that are written out, and of random steps."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.arrays.tracing import leaf_type
from meshwright.hardware import Topology
from meshwright.partition.cost import MachineCost, reshard_seconds
from meshwright.partition.layouts import layout
from meshwright.search.layout.bound import StepBound, networks, received_shares
from meshwright.search.layout.searching import LayoutSearch, mesh_of
from meshwright.search.layout.step import Step
from meshwright.search.layout.ways import layouts_of
from tests.search.test_every_layout import STEPS, many_layouts, seconds_of, shape, trained

MACHINES = [
    ("h100", 8, {"data": 4, "model": 2}),
    ("h100", 16, {"data": 4, "model": 4}),
    ("h100", 64, {"data": 16, "model": 4}),
    ("a100", 32, {"pod": 4, "data": 2, "model": 4}),
    ("h100", 24, {"data": 3, "model": 8}),
    ("h100", 24, {"data": 8, "model": 3}),
    ("tpu v5e", (4, 4), {"data": 4, "model": 4}),
    ("tpu v5e", (4, 4), {"data": 2, "model": 8}),
    ("tpu v5p", (4, 4, 4), {"data": 8, "model": 8}),
]


@pytest.mark.parametrize(("chip", "chips", "sizes"), MACHINES)
def test_no_reshard_plan_is_faster_than_what_must_be_received(chip: str, chips: Any, sizes: dict[str, int]) -> None:
    machine, mesh = Topology(chip, chips, mesh=sizes), mesh_of(sizes)
    t = leaf_type(shape(12288, 24576, dtype="float32"))
    cost = MachineCost(machine.chip, machine, mesh)
    order = list(sizes)
    rng = np.random.default_rng(0)
    every = layouts_of(t, mesh)
    summed = [layout(mesh, tuple(d.axes for d in s.dims), (axis,)) for s in every for axis in mesh.axes
              if all(axis not in d.axes for d in s.dims)]  # fmt: skip
    bits = lambda axes: sum(1 << order.index(a.name) for a in axes)
    tight = 0
    for _ in range(120):
        have, need = (*every, *summed)[rng.integers(len(every) + len(summed))], every[rng.integers(len(every))]
        took = reshard_seconds(t, have, need, cost)
        for network in networks(machine):
            share = received_shares(
                network.blocks,
                np.array([[bits(d.axes) for d in have.dims]]),
                np.array([bits(have.unreduced)]),
                np.array([[bits(d.axes) for d in need.dims]]),
                np.array([(1 << len(order)) - 1]),
            )[0, 0]
            least = share * t.nbytes / network.bytes_per_s
            assert least <= took * (1 + 1e-9), f"{have} to {need} on {network}: {took} against {least}"
            tight += least > 0.3 * took > 0
    assert tight > 3


def check(step: Any, args: Any, chip: str, chips: int, many: int) -> float:
    """The bound of each of many layouts of the arguments, against what it takes; the largest share of that."""
    search = LayoutSearch(Step(step, args, None), Topology(chip, chips), 80e9, "exact")
    bound = StepBound(search.graph, search.returned, search.topology.chip)
    inputs = [value.step for value in search.graph.inputs]
    least, near = {}, 0.0
    for sizes, specs in many_layouts(args, chips, many):
        mesh, machine = mesh_of(sizes), search.machine(sizes)
        given = [mw.NamedSharding(mesh, spec).to_tensor_sharding(t.ndim) for spec, t in zip(specs, search.step.types)]
        took = seconds_of(step, args, sizes, specs, chip)
        found = bound.on(machine, mesh, lambda of, s, given=given: s == given[inputs.index(of)]).raised()
        assert found <= took * (1 + 1e-6), f"{sizes} {specs}: {took} against {found}"
        key = tuple(sizes.items())
        if key not in least:
            least[key] = bound.on(machine, mesh).raised()
        assert least[key] <= took * (1 + 1e-6), f"of all layouts on {sizes}: {least[key]} against {took}"
        near = max(near, found / took)
    return near


@pytest.mark.parametrize(("name", "chip"), [("a join", "h100"), ("long attention", "tpu v5e")])
def test_no_layout_is_below_its_bound(name: str, chip: str) -> None:
    assert check(*STEPS[name], chip, 4, 3) > 0.2


@pytest.mark.slow
@pytest.mark.parametrize("chip", ["h100", "tpu v5e"])
@pytest.mark.parametrize("chips", [4, 16])
@pytest.mark.parametrize("name", STEPS)
def test_no_layout_of_any_step_is_below_its_bound(name: str, chips: int, chip: str) -> None:
    check(*STEPS[name], chip, chips, 40)


def random_step(seed: int) -> tuple[Any, Any]:
    """A step of a few random matmuls, elementwise ops, transposes and sums, with or without momentum."""
    rng = np.random.default_rng(seed)
    dims = [int(rng.choice([64, 128, 512, 2048])) for _ in range(rng.integers(2, 5))]
    rows = int(rng.choice([64, 512, 8192]))
    kinds = [int(rng.integers(5)) for _ in dims[1:]]
    momentum = bool(rng.integers(2))

    def loss(ws: Any, x: Any) -> Any:
        first = x
        for w, kind in zip(ws, kinds):
            x = x @ w if kind != 1 else (w.T @ x.T).T
            if kind == 2:
                x = mw.nn.relu(x)
            elif kind == 3:
                x = mw.nn.softmax(x)
            elif kind == 4 and x.shape == first.shape:
                x = x + first
        return mnp.mean(x.astype("float32") ** 2)

    dtype = str(rng.choice(["bfloat16", "float32"]))
    ws = [shape(a, b, dtype=dtype) for a, b in pairwise(dims)]
    x = shape(rows, dims[0], dtype=dtype)
    return (with_momentum(loss), ((ws, ws), x)) if momentum else (trained(loss), (ws, x))


def with_momentum(loss: Any) -> Any:
    """The step of gradient descent with momentum for a loss of parameters and a batch."""

    def step(state: Any, batch: Any) -> Any:
        ws, means = state
        value, gradient = mw.value_and_grad(loss)(ws, batch)
        means = mw.tree.map(lambda m, g: 0.9 * m + g, means, gradient)
        return value, (mw.tree.map(lambda w, m: w - 0.1 * m, ws, means), means)

    return step


def test_an_update_reads_a_gradient_once_for_all_that_it_makes_of_it() -> None:
    """Of a small batch the update is most of a step; it reads three arrays and writes two."""
    step = with_momentum(lambda ws, x: mnp.mean(mw.nn.relu(x @ ws[0]) ** 2))
    ws = [shape(1024, 4096, dtype="float32")]
    assert check(step, ((ws, ws), shape(16, 1024, dtype="float32")), "tpu v5e", 4, 8) > 0.7


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 24))])
def test_no_layout_of_a_random_step_is_below_its_bound(seed: int) -> None:
    chip, chips = [("h100", 4), ("h100", 16), ("tpu v5e", 4), ("a100", 16)][seed % 4]
    check(*random_step(seed), chip, chips, 2 if seed < 2 else 25)
