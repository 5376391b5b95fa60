"""`find_layout` against layouts written by hand, every layout of small steps, and what the step computes."""

from __future__ import annotations

from collections import namedtuple
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from benchmarks import decoder_step
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, P
from meshwright.core.types import TensorType
from meshwright.partition.cost import MachineCost, reshard_plan
from meshwright.search.layout.find import mesh_sizes
from meshwright.search.layout.moves import move_seconds
from meshwright.search.layout.solve import best_choice


def shape(*dims: int, dtype: str = "float32") -> Any:
    return mw.ShapeDtypeStruct(dims, dtype)


def train_step(params: Any, batch: Any) -> Any:
    x, y = batch

    def loss(params: Any) -> Any:
        h = mw.nn.relu(x @ params["up"])
        return mnp.mean((h @ params["down"] - y) ** 2)

    value, gradient = mw.value_and_grad(loss)(params)
    return value, mw.tree.map(lambda p, g: p - 0.1 * g, params, gradient)


def mlp(rows: int, width: int, hidden: int) -> tuple[Any, Any]:
    return {"up": shape(width, hidden), "down": shape(hidden, width)}, (shape(rows, width), shape(rows, width))


def simulated(sizes: dict[str, int], specs: Any, batch: Any, args: Any, machine: str) -> float:
    """The seconds of a layout that somebody wrote."""
    mesh = mw.make_mesh(tuple(sizes.values()), tuple(sizes))
    params = {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
    given = (params, (NamedSharding(mesh, batch), NamedSharding(mesh, batch)))
    step = mw.jit(train_step, in_shardings=given, out_shardings=(None, params), donate_argnums=(0,))
    topology = mw.hardware.Topology(*_machine(machine), mesh=sizes)
    return mw.simulate(step.lower(*args).compile(), topology).seconds


def _machine(text: str) -> tuple[str, int]:
    name, _, count = text.rpartition(" ")
    return name, int(count)


HAND = {
    "data": (lambda n, m: {"data": n}, {"up": P(), "down": P()}, P("data")),
    "fsdp": (lambda n, m: {"data": n}, {"up": P("data"), "down": P("data")}, P("data")),
    "tensor": (lambda n, m: {"model": n}, {"up": P(None, "model"), "down": P("model")}, P()),
    "fsdp and tensor": (
        lambda n, m: {"data": n // m, "model": m},
        {"up": P("data", "model"), "down": P("model", "data")},
        P("data"),
    ),
    "data and tensor": (
        lambda n, m: {"data": n // m, "model": m},
        {"up": P(None, "model"), "down": P("model")},
        P("data"),
    ),
}
SIZES = [(16384, 1024, 4096), (512, 8192, 32768), (2048, 2048, 2048)]


@pytest.mark.parametrize(
    ("machine", "sizes"),
    [
        ("h100 8", SIZES[0]),
        *(pytest.param(m, s, marks=pytest.mark.slow) for m in ("h100 16", "tpu v5e 16") for s in SIZES),
    ],
)
def test_no_layout_written_by_hand_is_faster(machine: str, sizes: tuple[int, int, int]) -> None:
    args = mlp(*sizes)
    found = mw.find_layout(train_step, *args, topology=machine)
    chips = _machine(machine)[1]
    for name, (mesh, specs, batch) in HAND.items():
        for model in (2, 4):
            by_hand = simulated(mesh(chips, model), specs, batch, args, machine)
            assert found.best.seconds <= by_hand * (1 + 1e-9), f"{name} {model}: {by_hand}"
    assert found.bound_seconds <= found.best.seconds


def every_spec(dims: int, axes: tuple[str, ...]) -> list[P]:
    """Every way to give axes to the dims of an array."""
    found = []
    for spots in product(range(-1, dims), repeat=len(axes)):
        entries = [tuple(a for a, d in zip(axes, spots, strict=True) if d == dim) or None for dim in range(dims)]
        found.append(P(*entries))
    return found


def check_against_every_layout(sizes: tuple[int, int, int], machine: str, every: int = 1) -> None:
    """`find_layout` is within 2 % of all layouts of arguments, or of a part of them."""
    args = mlp(*sizes)
    found = mw.find_layout(train_step, *args, topology=machine)
    layouts = [
        (mesh, {"up": up, "down": down}, batch)
        for mesh in mesh_sizes(_machine(machine)[1])
        for up, down, batch in product(*[every_spec(2, tuple(mesh))] * 3)
    ]
    best = min(simulated(*layout, args, machine) for layout in layouts[::every])
    assert found.best.seconds <= best * 1.02
    assert found.bound_seconds <= best * 1.001


@pytest.mark.slow
@pytest.mark.parametrize("sizes", SIZES)
def test_within_two_percent_of_many_layouts_of_a_small_step(sizes: tuple[int, int, int]) -> None:
    check_against_every_layout(sizes, "h100 4", every=23)


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["h100 4", "tpu v5e 4", "h100 16"])
@pytest.mark.parametrize("sizes", [*SIZES, (256, 1024, 1024), (65536, 256, 256), (8192, 4096, 1024)])
def test_within_two_percent_of_every_layout_of_a_small_step(machine: str, sizes: tuple[int, int, int]) -> None:
    check_against_every_layout(sizes, machine, every=4 if machine == "h100 16" else 1)


def test_what_is_found_is_what_is_compiled_and_computes_the_step() -> None:
    args = mlp(64, 32, 128)
    check_computes(mw.find_layout(train_step, *args, topology="h100 8", fixed={"data": 4, "model": 2}), args)


def check_computes(found: Any, args: Any) -> None:
    """Every layout that was found is compiled to what was simulated, and computes the step."""
    rng = np.random.default_rng(0)
    values = mw.tree.map(lambda s: mnp.asarray(rng.normal(size=s.shape).astype("float32")), args)
    expected = train_step(*values)
    for layout in found:
        compiled = layout.compile()
        topology = mw.hardware.Topology("h100", 8, mesh=layout.mesh.shape)
        assert mw.simulate(compiled, topology).seconds == layout.seconds
        fresh = mw.tree.map(lambda x: mnp.asarray(np.asarray(x)), values)
        for one, other in zip(mw.tree.leaves(compiled(*fresh)), mw.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=2e-4, atol=1e-5)


def test_code_gives_the_layout() -> None:
    args = mlp(16384, 1024, 4096)
    found = mw.find_layout(train_step, *args, topology="h100 8", fixed={"data": 8})
    names: dict[str, Any] = {"step": train_step, "train_step": train_step}
    exec(found.best.code(), names)
    for one, other in zip(mw.tree.leaves(names["in_shardings"]), mw.tree.leaves(found.best.in_shardings), strict=True):
        assert one.to_tensor_sharding(2) == other.to_tensor_sharding(2)
    seconds = mw.simulate(names["train_step"].lower(*args).compile(), mw.hardware.Topology("h100", 8)).seconds
    assert seconds == found.best.seconds


def scanned_step(w: Any, x: Any) -> Any:
    def loss(w: Any) -> Any:
        y, _ = mw.lax.scan(lambda h, layer: (mnp.tanh(h @ layer), None), x, w)
        return mnp.mean(y**2)

    value, gradient = mw.value_and_grad(loss)(w)
    return value, w - 0.1 * gradient


@pytest.mark.slow
def test_a_scan_is_laid_out_by_its_body() -> None:
    found = mw.find_layout(scanned_step, shape(8, 1024, 1024), shape(1 << 15, 1024), topology="h100 16")
    assert found.best.seconds <= found[-1].seconds
    assert found.best.in_shardings[1].spec[0] is not None
    assert found.best.simulation.exposed_seconds < 0.2 * found.best.seconds


def test_a_prime_number_of_chips_has_an_answer() -> None:
    args = mlp(7 * 512, 512, 2048)
    even = mw.find_layout(train_step, *args, topology="h100 7", even=True)
    assert even.best.mesh.shape == {"data": 7}
    assert even.best.in_shardings[1][0].spec[0] == "data"
    found = mw.find_layout(train_step, *args, topology="h100 7")
    assert found.best.seconds < 0.9 * even.best.seconds  # parameters are in parts, too


def equal(layout: Any) -> bool:
    """Whether all arguments are in equal parts."""
    pairs = zip(mw.tree.leaves(layout.in_shardings), layout.step.types, strict=True)
    return all(n % k == 0 for s, t in pairs for n, k in zip(t.shape, s.to_tensor_sharding(t.ndim).shards, strict=True))


def test_a_batch_of_an_odd_number_of_rows_is_split_as_one_with_one_more() -> None:
    args, more = mlp(8191, 1024, 4096), mlp(8192, 1024, 4096)
    on: dict[str, Any] = {"topology": "h100 8", "fixed": {"data": 8}}
    found = mw.find_layout(train_step, *args, **on)
    by_hand = simulated({"data": 8}, {"up": P("data"), "down": P(None, "data")}, P("data"), args, "h100 8")
    assert found.best.seconds <= by_hand
    assert found.best.seconds <= 1.1 * mw.find_layout(train_step, *more, **on).best.seconds
    assert not equal(found.best)
    assert found.bound_seconds <= found.best.seconds
    assert "\n  has in parts that are not equal: batch[1] 8,191 in 8 of 1,024\n" in found.explain(what_if=False)
    with pytest.raises(mw.MeshwrightError) as error:
        found.best.code("jax")
    assert [line for line in str(error.value).splitlines() if not line.startswith("  at:")] == [
        "JAX takes arguments in equal parts alone.",
        "  why:  in this layout batch[1] has 8191 along dim 0, in 8 parts",
        "  fix:  mw.find_layout(…, even=True), or batch[1] padded to 8192",
    ]
    even = mw.find_layout(train_step, *args, **on, even=True)
    assert all(map(equal, even))
    assert even.best.seconds > found.best.seconds
    assert "jax.make_mesh" in even.best.code("jax")


def test_uneven_layouts_are_compiled_to_what_was_simulated_and_compute_the_step() -> None:
    args = mlp(61, 27, 130)
    found = mw.find_layout(train_step, *args, topology="h100 8", fixed={"data": 4, "model": 2})
    assert not all(map(equal, found))
    check_computes(found, args)


@pytest.mark.slow
def test_less_memory_is_a_layout_that_holds_less() -> None:
    args = mlp(4096, 4096, 16384)
    plenty = mw.find_layout(train_step, *args, topology="h100 8")
    held = plenty.best.peak_bytes_per_device
    least = min(one.peak_bytes_per_device for one in plenty)
    found = mw.find_layout(train_step, *args, topology="h100 8", memory=(held + least) / 2)
    assert all(one.peak_bytes_per_device <= (held + least) / 2 for one in found if one.fits)
    assert found.best.fits
    assert found.best.seconds >= plenty.best.seconds * 0.98  # both are searched, neither in full


MESH = mw.make_mesh((2,), ("x",))


def constrained_step(x: Any) -> Any:
    return mw.lax.scan(lambda c, r: (c, mw.lax.with_sharding_constraint(r * 2, NamedSharding(MESH, P("x")))), 0.0, x)[1]


def test_a_constraint_of_the_step_holds_on_the_mesh_that_it_names() -> None:
    found = mw.find_layout(constrained_step, shape(8, 8), topology="h100 2", fixed=MESH).best
    assert found.mesh.shape == {"x": 2} and found.in_shardings[0].spec == P(None, "x")


ERRORS = {
    "memory": (
        lambda: mw.find_layout(train_step, *mlp(4096, 4096, 16384), topology="h100 2", memory=1e6),
        """No layout of train_step that was found fits into 1 MB a device.
  why:  the smallest takes 839 MB on Topology('h100', 2)
  fix:  more chips, a smaller batch, more microbatches, or mw.checkpoint(layer) in the step""",
    ),
    "topology": (
        lambda: mw.find_layout(train_step, *mlp(8, 8, 8), topology="h100"),
        """The topology is 'h100'.
  why:  a layout is for chips of a number: a machine, or a chip's name and how many
  fix:  topology="h100 64\"""",
    ),
    "microbatches": (
        lambda: mw.find_layout(train_step, *mlp(8, 8, 8), topology="h100 2", microbatches=2.5),  # type: ignore[arg-type]
        """microbatches is 2.5.
  why:  it is how many parts the batch comes in, or a list of such numbers to choose from
  fix:  microbatches=[1, 2, 4]""",
    ),
    "microbatches that do not divide": (
        lambda: mw.find_layout(train_step, *mlp(8, 8, 8), topology="h100 2", microbatches=[1, 3]),
        """A batch of 8 does not come in 3 microbatches.
  why:  3 equal parts of its rows are needed
  fix:  microbatches=2""",
    ),
    "microbatches of no batch": (
        lambda: mw.find_layout(lambda w: w * 2, shape(8, 8), topology="h100 2", microbatches=2),
        """<lambda> has no batch that comes in 2 microbatches.
  why:  no argument has the batch as its first dim
  fix:  batch_args=0, or microbatches=1""",
    ),
    "fixed": (
        lambda: mw.find_layout(train_step, *mlp(8, 8, 8), topology="h100 8", fixed={"x": 3}),
        """A mesh of 3 devices does not lie on 8 chips.
  why:  fixed is {'x': 3}, and the machine h100 8
  fix:  fixed={"data": 8}""",
    ),
    "fixed number": (
        lambda: mw.find_layout(train_step, *mlp(8, 8, 8), topology="h100 8", fixed=8),
        """fixed is 8.
  why:  it is a mesh, or the sizes of its axes
  fix:  fixed={"data": 8}""",
    ),
    "fixed truth": (
        lambda: mw.find_layout(train_step, *mlp(8, 8, 8), topology="h100 8", fixed={"x": True, "y": 8}),
        """fixed is {'x': True, 'y': 8}.
  why:  it is a mesh, or the sizes of its axes
  fix:  fixed={"data": 8}""",
    ),
    "batch": (
        lambda: mw.find_layout(train_step, *mlp(8, 8, 8), topology="h100 8", batch_args=2),
        """There is no argument 2.
  why:  batch_args are positions of the 2 arguments of train_step
  fix:  batch_args=1""",
    ),
    "no topology": (
        lambda: mw.find_layout(train_step, *mlp(8, 8, 8)),
        """There is no topology to lay a step out on.
  why:  a layout is for chips of a number: a machine, or a chip's name and how many
  fix:  topology="h100 64\"""",
    ),
    "a chip that is not": (
        lambda: mw.find_layout(train_step, *mlp(8, 8, 8), topology="h1000 8"),
        """No chip is called 'h1000'.
  why:  there are tpu v2, tpu v3, tpu v4, tpu v5e, tpu v5p, tpu v6e, tpu 7x, a100, h100, h200, b200, gb200
  fix:  topology="h100 8\"""",
    ),
    "another name": (
        lambda: mw.find_layout(train_step, *mlp(8, 8, 8), topology="h100 8", memory_bytes=1e9),  # type: ignore[call-arg]
        """There is no memory_bytes of a layout search.
  why:  memory_bytes is called memory here
  fix:  memory=1000000000.0""",
    ),
    "progress": (
        lambda: mw.find_layout(train_step, *mlp(8, 8, 8), topology="h100 8", progress=3),  # type: ignore[arg-type]
        """progress of a layout search is 3.
  why:  it is a function
  fix:  progress=lambda *numbers: numbers[0]""",
    ),
    "no mesh": (
        lambda: mw.find_layout(train_step, *mlp(8, 8, 8), topology="h100 1", fixed={}),
        """fixed is {}.
  why:  it is a mesh, or the sizes of its axes
  fix:  fixed={"data": 1}""",
    ),
    "no arguments": (
        lambda: mw.find_layout(lambda: mnp.ones(8), topology="h100 8"),
        """find_layout is given no arguments of the step.
  why:  their shardings are what it looks for
  fix:  mw.find_layout(f, params, batch, topology="h100 64")""",
    ),
    "no arrays": (
        lambda: mw.find_layout(lambda xs: mnp.ones(8), [], topology="h100 8"),
        """find_layout is given no arrays of the step.
  why:  their shardings are what it looks for
  fix:  mw.find_layout(f, params, batch, topology="h100 64")""",
    ),
    "a chip behind its number": (
        lambda: mw.find_layout(train_step, *mlp(8, 8, 8), topology="64 h100"),
        """No chip is called '64 h100'.
  why:  there are tpu v2, tpu v3, tpu v4, tpu v5e, tpu v5p, tpu v6e, tpu 7x, a100, h100, h200, b200, gb200
  fix:  topology="h100 64\"""",
    ),
    "a number of chips that no machine has": (
        lambda: mw.find_layout(train_step, *mlp(8, 8, 8), topology="tpu v5e 7"),
        """No slice of tpu v5e has 7 chips.
  why:  those nearest to it are 2x2 = 4 and 2x4 = 8
  fix:  topology="tpu v5e 4" or topology="tpu v5e 8\"""",
    ),
    "a loop of any length": (
        lambda: mw.find_layout(
            lambda x: mw.lax.while_loop(lambda x: x.sum() < 9, mnp.tanh, x), shape(8), topology="h100 2"
        ),
        """The step has a while loop, and how often it runs is not known.
  why:  it ends when its condition says so, which depends on values, and so does what the step takes
  fix:  a lax.fori_loop or a lax.scan, whose length is known""",
    ),
    "a constraint": (
        lambda: mw.find_layout(constrained_step, shape(8, 8), topology="h100 2"),
        """The step has a constraint along 'x'.
  why:  find_layout is to choose the mesh
  fix:  the same step without the constraint, or fixed=mesh with the mesh that it names""",
    ),
    "a constraint on another mesh": (
        lambda: mw.find_layout(constrained_step, shape(8, 8), topology="h100 2", fixed={"data": 2}),
        """The step has a constraint along 'x'.
  why:  the mesh to stay on has 'data'
  fix:  the same step without the constraint, or fixed=mesh with the mesh that it names""",
    ),
    "batch of half": (
        lambda: mw.find_layout(train_step, *mlp(8, 8, 8), topology="h100 8", batch_args=0.5),  # type: ignore[arg-type]
        """There is no argument 0.5.
  why:  batch_args are positions of the 2 arguments of train_step
  fix:  batch_args=1""",
    ),
    "bytes": (
        lambda: mw.find_layout(train_step, *mlp(8, 8, 8), topology="h100 8", memory="80GB"),
        """The memory of a device is '80GB'.
  why:  it is a number of bytes
  fix:  memory=80e9""",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    call, text = ERRORS[name]
    with pytest.raises(mw.MeshwrightError) as error:
        call()
    lines = [line for line in str(error.value).splitlines() if not line.startswith("  at:")]
    assert "\n".join(lines) == text


def test_numbers_may_be_those_of_numpy() -> None:
    same = [
        mw.find_layout(train_step, *mlp(8, 8, 8), topology="h100 2", memory=memory, fixed={"data": size}).best
        for memory, size in ((8e9, 2), (np.float32(8e9), np.int64(2)))
    ]
    assert len({(one.seconds, one.fits, one.mesh) for one in same}) == 1


def test_a_step_with_a_shard_map_is_refused() -> None:
    mesh = mw.make_mesh((8,), ("x",))

    def step(x: Any) -> Any:
        return mw.shard_map(lambda x: mw.lax.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())(x)

    with pytest.raises(mw.MeshwrightError, match=r"The step has a shard_map\.") as error:
        mw.find_layout(step, shape(64), topology="h100 8")
    assert "the same computation without shard_map" in str(error.value)


def accumulated(w: Any, batches: Any) -> Any:
    """Gradients of microbatches, summed in a scan."""

    def one(total: Any, x: Any) -> Any:
        value, gradient = mw.value_and_grad(lambda w: mnp.mean((x @ w) ** 2))(w)
        return total + gradient, value

    gradient, values = mw.lax.scan(one, mnp.zeros_like(w), batches)
    return mnp.mean(values), w - 0.1 * gradient / batches.shape[0]


KINDS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "microbatches in a scan": (accumulated, (shape(8, 8), shape(4, 16, 8))),
    "a while loop": (
        lambda w, x: mw.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, mnp.tanh(c[1] @ w)), (0, x))[1],
        (shape(8, 8), shape(16, 8)),
    ),
    "a branch": (
        lambda w, x: mw.lax.cond(mnp.sum(x) > 0, lambda: x @ w, lambda: x),
        (shape(8, 8), shape(16, 8)),
    ),
    "whole numbers": (lambda a, b: a + b, (shape(16, dtype="int32"), shape(16, dtype="int32"))),
    "no dims": (lambda a, b: a * b, (shape(), shape())),
    "no elements": (lambda w, x: x @ w, (shape(0, 8), shape(16, 0))),
    "dims of one": (lambda w, x: x @ w, (shape(1, 8), shape(16, 1))),
    "dims that do not divide": (lambda w, x: x @ w, (shape(5, 3), shape(7, 5))),
    "no results": (lambda w: None, (shape(8, 8),)),
    "a value that is printed": (
        lambda w, x: (y := x @ w, mw.debug.print("{}", mnp.sum(y)))[0],
        (shape(8, 8), shape(16, 8)),
    ),
    "a loop that only prints": (
        lambda w, x: (x @ w, mw.lax.scan(lambda _, row: (None, mw.debug.print("{}", row[0])), None, x))[0],
        (shape(8, 8), shape(16, 8)),
    ),
    "a result that is an argument": (lambda w: w, (shape(8, 8),)),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_step_has_an_answer_that_computes_it(name: str) -> None:
    step, args = KINDS[name]
    found = mw.find_layout(step, *args, topology="h100 2").best
    rng = np.random.default_rng(0)
    values = [mnp.asarray(rng.integers(-3, 4, s.shape).astype(s.dtype)) for s in args]
    expected = [np.array(x) for x in mw.tree.leaves(step(*values))]  # arguments may be donated
    for one, other in zip(mw.tree.leaves(found.compile()(*values)), expected, strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-5, atol=1e-5)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_a_move_axis_by_axis_is_near_the_plan(data: Any) -> None:
    sizes = data.draw(st.sampled_from([{"x": 4, "y": 2}, {"x": 8}, {"x": 2, "y": 8}]))
    mesh = mw.make_mesh(tuple(sizes.values()), tuple(sizes))
    topology = mw.hardware.Topology("h100", mesh.size, mesh=sizes)
    cost = MachineCost(topology.chip, topology, mesh)
    specs = every_spec(2, tuple(sizes))
    have, need = (NamedSharding(mesh, data.draw(st.sampled_from(specs))).to_tensor_sharding(2) for _ in range(2))
    t = TensorType((64, 1 << data.draw(st.integers(14, 20))), np.dtype("float32"))
    plan = reshard_plan(t.shape, t.dtype, have, need, cost).seconds(topology) if have != need else 0.0
    found = move_seconds(t.nbytes, have, need, cost)
    assert plan / 10 <= found <= 10 * plan  # over a network or not, which a plan chooses by what it sends


def test_operands_of_one_shape_are_laid_out_apart() -> None:
    t = shape(4096, 4096, dtype="bfloat16")
    found = mw.find_layout(lambda x, w: x @ w, t, t, topology="h100 8")
    mesh = mw.make_mesh((8,), ("data",))
    rows = (NamedSharding(mesh, P("data")), NamedSharding(mesh, P()))
    by_hand = mw.simulate(mw.jit(lambda x, w: x @ w, in_shardings=rows).lower(t, t).compile(), "h100 8")
    assert found.best.seconds <= by_hand.seconds


def test_what_a_step_returns_anew_follows_from_it() -> None:
    table, tokens = shape(512, 64, dtype="bfloat16"), shape(256, dtype="int32")
    lookup = mw.find_layout(lambda e, t: (e[t] @ e.T).sum(-1), table, tokens, topology="h100 4").best
    assert lookup.step is not None and lookup.step.state == set() and lookup.step.donate == ()
    half, full, rows = shape(64, 64, dtype="bfloat16"), shape(64, 64), shape(256, 64, dtype="bfloat16")

    def update(full: Any, half: Any, x: Any) -> Any:
        gradient = mw.grad(lambda w: mnp.mean((x @ w).astype("float32")))(half)
        full = full - gradient.astype("float32")
        return full, full.astype("bfloat16")

    apart = mw.find_layout(lambda h, f, x: update(f, h, x)[::-1], half, full, rows, topology="h100 2").best
    assert apart.step is not None and apart.step.state == {0, 1} and apart.step.batch == {2}
    one = {"full": full, "half": half}
    together = mw.find_layout(
        lambda w, x: dict(zip(w, update(*w.values(), x), strict=True)), one, rows, topology="h100 2"
    )
    assert together.best.step is not None and together.best.step.donate == (0,)
    product = mw.find_layout(lambda x, w: x @ w, shape(64, 64), shape(64, 64), topology="h100 2").best
    assert product.step is not None and product.step.state == set()


def test_code_for_jax_runs_there() -> None:
    jax = pytest.importorskip("jax")
    found = mw.find_layout(lambda w, x: (x.sum(), w - x), shape(4, 4), shape(4, 4), topology="h100 1").best
    names: dict[str, Any] = {"step": lambda w, x: (x.sum(), w - x)}
    exec(found.code("jax"), names)
    assert all(kind == jax.sharding.AxisType.Auto for kind in names["mesh"].axis_types)
    total, w = names["step"](jax.numpy.ones((4, 4)), jax.numpy.ones((4, 4)))
    assert (float(total), float(w.sum())) == (16.0, 0.0)


def test_code_for_jax_takes_a_batch_in_its_parts() -> None:
    jax = pytest.importorskip("jax")
    args = {"w": shape(256, 512)}, shape(4096, 256), shape()

    def made(grad: Any, np: Any, tree: Any) -> Any:
        def step(params: Any, batch: Any, rate: Any) -> Any:
            value, gradient = grad(lambda p: np.mean(np.tanh(batch @ p["w"]) ** 2))(params)
            return value, tree.map(lambda p, g: p - rate * g, params, gradient)

        return step

    on: dict[str, Any] = {"topology": "h100 8", "fixed": {"data": 8}, "microbatches": 4, "batch_args": 1}
    found = mw.find_layout(made(mw.value_and_grad, mnp, mw.tree), *args, **on, even=True).best
    theirs = made(jax.value_and_grad, jax.numpy, jax.tree)
    names: dict[str, Any] = {"step": theirs}
    exec(found.code("jax"), names)
    rng = np.random.default_rng(0)
    given = jax.tree.map(lambda x: jax.numpy.asarray(rng.normal(size=x.shape), "float32"), args)
    expected = theirs(*given)
    lowered = names["step"].lower(*given)
    for one, other in zip(jax.tree.leaves(names["step"](*given)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert mw.simulate(lowered.compile(), mw.hardware.Topology("h100", 8)).seconds == found.seconds
    assert any(eqn.op.name == "scan" for eqn in lowered.compile().global_program.eqns)


Pair = namedtuple("Pair", "w b")
TREES = {
    "a tuple alone": (lambda p, x: tuple(q * 2.0 for q in p), (shape(16, 8), shape(8))),
    "a list": (lambda p, x: [x.sum(), (p[0] * 2.0, p[1] + 1.0)], (shape(16, 8), shape(8))),
    "a named tuple": (lambda p, x: (x.sum(), Pair(p.w * 2.0, p.b + 1.0)), Pair(shape(16, 8), shape(8))),
    "a dict of others": (lambda p, x: {"loss": x.sum(), "p": {"w": p["w"] - 1.0}}, {"w": shape(16, 8)}),
}


@pytest.mark.parametrize("name", TREES)
def test_code_of_every_tree_runs(name: str) -> None:
    step, params = TREES[name]
    found = mw.find_layout(step, params, shape(32, 16), topology="h100 2", fixed={"data": 2}).best
    names: dict[str, Any] = {"step": step, "Pair": Pair}
    exec(found.code(), names)
    seconds = mw.simulate(names["step"].lower(params, shape(32, 16)).compile(), mw.hardware.Topology("h100", 2)).seconds
    assert seconds == found.seconds


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["h100 64", "a100 16"])
def test_experts_are_split_where_each_token_goes_to_one(machine: str) -> None:
    def step(w: Any, x: Any) -> Any:  # x: [expert, token, width]
        def loss(w: Any) -> Any:
            h = mw.nn.relu(mnp.einsum("etd,edh->eth", x, w["up"]))
            return mnp.mean(mnp.einsum("eth,ehd->etd", h, w["down"]) ** 2)

        value, gradient = mw.value_and_grad(loss)(w)
        return value, mw.tree.map(lambda p, g: p - g, w, gradient)

    w = {"up": shape(64, 1024, 4096), "down": shape(64, 4096, 1024)}
    found = mw.find_layout(step, w, shape(64, 2048, 1024), topology=machine)
    assert {spec.spec[0] for spec in mw.tree.leaves(found.best.in_shardings)} == {"data"}


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_the_solver_against_all_choices(data: Any) -> None:
    count = data.draw(st.integers(1, 6))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    ways = [int(rng.integers(1, 5)) for _ in range(count)]
    alone = [rng.integers(0, 20, n).astype(float) for n in ways]
    pairs = {
        (a, b): rng.integers(0, 20, (ways[a], ways[b])).astype(float)
        for a in range(count)
        for b in range(a + 1, count)
        if rng.random() < 0.6
    }

    def cost(choice: Any) -> float:
        total = sum(u[w] for u, w in zip(alone, choice, strict=True))
        return float(total + sum(t[choice[a], choice[b]] for (a, b), t in pairs.items()))

    found = best_choice(alone, pairs)
    least = min(cost(choice) for choice in product(*map(range, ways)))
    assert cost(found.ways) == pytest.approx(found.cost) == pytest.approx(least)
    assert found.bound <= least + 1e-6


def deep_step(layers: Any, x: Any) -> Any:
    def loss(layers: Any) -> Any:
        y = x
        for layer in layers:
            y = y + mw.nn.gelu(y @ layer["up"]) @ layer["down"]
        return mnp.mean(y**2)

    value, gradient = mw.value_and_grad(loss)(layers)
    return value, mw.tree.map(lambda p, g: p - 0.1 * g, layers, gradient)


def deep(layers: int) -> tuple[Any, Any]:
    return [{"up": shape(256, 1024), "down": shape(1024, 256)} for _ in range(layers)], shape(2048, 256)


@pytest.mark.slow
def test_few_of_many_layers_tell_what_all_take() -> None:
    args = deep(40)
    found = mw.find_layout(deep_step, *args, topology="h100 8")
    assert found.best.kind == "simulated"
    assert mw.simulate(found.best.compile(), "h100 8").seconds == found.best.seconds
    others = [one for one in found if one.kind == "extrapolated"]
    assert others
    for one in others:
        assert one.simulation.seconds >= found.best.seconds and one.kind == "simulated"
    for one in found.best.in_shardings[0][1:]:
        assert one == found.best.in_shardings[0][0]


@pytest.mark.slow
def test_bytes_that_are_estimated_are_near_those_that_are_simulated() -> None:
    config = decoder_step.Config(dim=4096, heads=32, kv_heads=8, hidden=14336, layers=32)
    state = mw.eval_shape(lambda key: decoder_step.init(key, config), mw.random.key(0))
    batch = mw.eval_shape(lambda key: decoder_step.make_batch(key, config, batch=64), mw.random.key(0))
    found = mw.find_layout(partial(decoder_step.train_step, config=config), state, batch, topology="h100 64")
    other = next(one for one in found if one.kind == "estimated")
    held = other.peak_bytes_per_device
    assert held == pytest.approx(other.simulation.peak_bytes_per_device, rel=0.2)


def test_a_step_in_microbatches_is_laid_out_as_it_is_pasted() -> None:
    args = mlp(1 << 14, 256, 1024)
    least = simulated({"data": 4}, {"up": P("data"), "down": P("data")}, P("data"), args, "h100 4")
    memory = 4 * (1 << 14) * 256 * 2  # bytes, twice what a device has of the batch
    found = mw.find_layout(train_step, *args, topology="h100 4", fixed={"data": 4}, microbatches=[1, 8], memory=memory)
    parts = found.best
    assert parts.microbatches == 8 and parts.fits and not parts.constraints and parts.seconds > least
    names: dict[str, Any] = {"train_step": train_step}
    exec(parts.code(), names)
    topology = mw.hardware.Topology("h100", 4)
    assert mw.simulate(names["train_step"].lower(*args).compile(), topology).seconds == parts.seconds
    assert mw.simulate(parts.compile(), topology).seconds == parts.seconds
    assert "microbatches" in found.table().splitlines()[0]


def test_the_bound_is_below_the_work_of_every_layout() -> None:
    args = mlp(1 << 16, 1024, 8192)
    found = mw.find_layout(train_step, *args, topology="h100 8", fixed={"data": 8})
    chip, flops, update = mw.hardware.get("h100"), 2 * 5 * (1 << 16) * 1024 * 8192 / 8, 3 * 2 * 1024 * 8192 * 4 / 8
    least = flops / chip.flops_per_s("float32") + update / chip.hbm_bytes_per_s
    assert found.bound_seconds == pytest.approx(least, rel=1e-6)
    assert len(found) > 20 and all(found.bound_seconds <= one.simulation.compute_seconds for one in found)
    read = mw.find_layout(lambda w, x: x @ w, shape(8192, 8192), shape(8, 8192), topology="h100 4", fixed={"data": 4})
    least = 8192 * 8192 * 4 / 4 / mw.hardware.get("h100").hbm_bytes_per_s
    assert least <= read.bound_seconds <= read.best.seconds < 1.3 * read.bound_seconds


def test_nodes_are_an_axis_of_a_mesh() -> None:
    assert {"pod": 2, "data": 2, "model": 4} in mesh_sizes(16, node=8)
    assert mesh_sizes(7) == [{"data": 7}]
    sizes = {"pod": 2, "data": 4, "model": 2}
    found = mw.find_layout(train_step, *mlp(64, 32, 128), topology="h100 16", fixed=sizes).best
    rng = np.random.default_rng(0)
    values = mw.tree.map(lambda s: mnp.asarray(rng.normal(size=s.shape).astype("float32")), mlp(64, 32, 128))
    expected = [np.asarray(x) for x in mw.tree.leaves(train_step(*values))]
    for one, other in zip(mw.tree.leaves(found.compile()(*values)), expected, strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=2e-4, atol=1e-5)


def test_every_layout_of_a_step_that_has_few_is_simulated() -> None:
    args = shape(512, 256), shape(64, 512)
    found = mw.find_layout(lambda w, x: mnp.tanh(x @ w), *args, topology="h100 4")
    mesh = mw.make_mesh((2, 2), ("data", "model"))
    for specs in product(every_spec(2, ("data", "model")), repeat=2):
        given = tuple(NamedSharding(mesh, spec) for spec in specs)
        by_hand = mw.jit(lambda w, x: mnp.tanh(x @ w), in_shardings=given).lower(*args).compile()
        on = mw.hardware.Topology("h100", 4, mesh=mesh.shape)
        assert found.best.seconds <= mw.simulate(by_hand, on).seconds * (1 + 1e-9)


def test_a_batch_that_no_result_has_rows_of():
    def summed(tables: Any, rows: Any) -> Any:
        return mnp.sum(tables[0][rows] @ tables[1], 0)

    tables = shape(8192, 6144, dtype="bfloat16"), shape(6144, 2048, dtype="bfloat16")
    rows = shape(1000, dtype="int32")
    found = mw.find_layout(summed, tables, rows, topology="tpu v5e 2x4").best
    mesh = mw.make_mesh((8,), ("d",))
    by_hand = mw.jit(summed, in_shardings=(NamedSharding(mesh, P()), NamedSharding(mesh, P("d"))))
    compiled = by_hand.lower(tables, rows).compile()
    assert found.seconds <= compiled.simulate("tpu v5e 2x4").seconds * 1.001
