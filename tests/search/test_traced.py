"""Searches of a user's own step: what it costs is what `mw.simulate` says of the program that runs."""

import pickle
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from math import prod

import pytest
from examples import gpt, mlp, moe, transformer

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import dist, hardware, lax
from meshwright.errors import MeshwrightError, ShapeError
from meshwright.simulate.memory import memory


def shapes(module, config, batch):
    params = mw.eval_shape(lambda key: module.init(key, config), mw.random.key(0))
    data = mw.eval_shape(lambda key: module.make_batch(key, config, batch=batch), mw.random.key(1))
    return partial(module.train_step, config=config), params, data


@cache
def traced_gpt() -> dist.Traced:
    return dist.traced(*shapes(gpt, gpt.Config(vocab=1024, length=128, dim=256, layers=2, heads=8), 16))


def simulated(module, config, batch, **sizes):
    """The step on a mesh with the batch in parts, partitioned and simulated."""
    step, params, data = shapes(module, config, batch)
    machine = hardware.Topology("h100", prod(sizes.values()))
    if not sizes:
        return mw.simulate(mw.jit(step, donate_argnums=(0,)).lower(params, data).compile(), machine)
    mesh = mw.make_mesh(tuple(sizes.values()), tuple(sizes))
    whole, rows = mw.NamedSharding(mesh, mw.P()), mw.NamedSharding(mesh, mw.P("data"))
    options = {"in_shardings": (whole, rows), "out_shardings": (None, whole), "donate_argnums": (0,)}
    return mw.simulate(mw.jit(step, **options).lower(params, data).compile(), machine)


GPT = gpt.Config(vocab=4096, length=512, dim=512, layers=2, heads=8, dtype="bfloat16")
MODELS = {
    "gpt": (gpt, GPT, 32),
    "mlp": (mlp, mlp.Config(inputs=4096, dim=4096, outputs=4096), 8192),
    "transformer": (transformer, transformer.Config(dim=256, heads=8, kv_heads=4, hidden=512), 512),
    "transformer in a loop": (
        transformer,
        transformer.Config(dim=256, heads=8, kv_heads=4, hidden=512, scan=True),
        512,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_estimates_on_one_device_are_those_of_the_step_simulated(name):
    module, config, batch = MODELS[name]
    found = dist.estimate(
        dist.traced(*shapes(module, config, 8)), dist.Strategy(), batch, dist.OnTopology(hardware.Topology("h100", 1))
    )
    real = simulated(module, config, batch)
    assert found.seconds == pytest.approx(real.seconds, rel=0.01)
    assert found.peak_bytes_per_device == pytest.approx(real.peak_bytes_per_device, rel=0.01)


@pytest.mark.parametrize("name", MODELS)
def test_estimates_of_replicas_are_those_of_the_step_partitioned_and_simulated(name):
    module, config, batch = MODELS[name]
    found = dist.estimate(
        dist.traced(*shapes(module, config, 8)), dist.Strategy(4), batch, dist.OnTopology(hardware.Topology("h100", 4))
    )
    real = simulated(module, config, batch, data=4)
    assert found.seconds == pytest.approx(real.seconds, rel=0.1)
    assert found.peak_bytes_per_device == pytest.approx(real.peak_bytes_per_device, rel=0.1)


@pytest.mark.parametrize("devices", [2, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("batch", [64, 512])
def test_small_gradients_are_summed_together_as_the_step_partitioned_sums_them(devices, batch):
    costs = dist.OnTopology(hardware.Topology("h100", devices))
    model = dist.traced(*shapes(transformer, transformer.Config(), 8))
    real = simulated(transformer, transformer.Config(), batch, data=devices)
    found = dist.estimate(model, dist.Strategy(devices), batch, costs)
    assert found.seconds == pytest.approx(real.seconds, rel=0.02)


def test_a_traced_step_is_costed_for_the_batch_asked_for_not_the_one_it_was_traced_with():
    machine = hardware.Topology("h100", 4)

    def step(w, x):
        value, gradient = mw.value_and_grad(lambda w: mnp.mean(mnp.tanh(x @ w) ** 2))(w)
        return value, w - 0.1 * gradient

    def model(rows):
        return dist.traced(step, mw.ShapeDtypeStruct((64, 64), "float32"), mw.ShapeDtypeStruct((rows, 64), "float32"))

    few, many = (dist.grid_search(model(rows), machine, 128).estimates for rows in (8, 128))
    assert len(few) > 10
    assert [e.seconds for e in few] == pytest.approx([e.seconds for e in many])
    assert [e.peak_bytes_per_device for e in few] == pytest.approx([e.peak_bytes_per_device for e in many])


def test_a_traced_step_goes_to_processes_and_is_read_there_once():
    model = traced_gpt()
    copies = pickle.loads(pickle.dumps([pickle.dumps(model)] * 2))
    first, second = map(pickle.loads, copies)
    assert first is second
    assert first.program == model.program
    options = {"zero": [0, 2], "microbatches": [4], "recompute": [False]}
    topology = hardware.Topology("h100", 2)
    with ProcessPoolExecutor(1) as pool:
        spread = dist.grid_search(model, topology, 16, executor=pool, **options)
    assert spread == dist.grid_search(model, topology, 16, **options)


def test_recomputing_a_traced_step_takes_less_memory_and_more_time():
    costs = dist.OnTopology(hardware.Topology("h100", 4))
    kept, again = (dist.estimate(traced_gpt(), dist.Strategy(recompute=r), 64, costs) for r in (False, True))
    assert again.peak_bytes_per_device < 0.8 * kept.peak_bytes_per_device
    assert 1.1 * kept.seconds < again.seconds < 1.6 * kept.seconds


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (
            dist.Strategy(1, 3),
            "The model does not divide among 3 devices.\n"
            "  why:  no product has a dim that is a multiple of 3 and not the batch\n"
            "  fix:  tensor=1, or a degree that divides its width",
        ),
        (
            dist.Strategy(1, 1, 64),
            "The model has no 64 stages.\n  why:  it has 15 products\n  fix:  pipeline=1, microbatches=1",
        ),
    ],
)
def test_what_a_traced_step_cannot_do_is_said(strategy, message):
    with pytest.raises(ShapeError) as error:
        dist.estimate(traced_gpt(), strategy, 64, dist.OnTopology(hardware.Topology("h100", 64)))
    assert str(error.value) == message


def test_a_step_that_needs_its_whole_batch_has_no_microbatches():
    def step(w, x):
        def loss(w):
            y = x @ w
            return mnp.mean((y - mnp.mean(y, axis=0)) ** 2)

        return mw.value_and_grad(loss)(w)

    model = dist.traced(step, mnp.ones((8, 8)), mnp.ones((16, 8)))
    assert not model.separable
    found = dist.grid_search(model, hardware.Topology("h100", 4), 16)
    assert {(e.strategy.pipeline, e.strategy.microbatches) for e in found.estimates} == {(1, 1)}


def test_a_loss_that_is_divided_by_the_count_of_a_mask_is_searched_as_one_that_is_not():
    def trained(divided):
        def step(w, batch):
            x, mask = batch

            def loss(w):
                y, _ = lax.scan(lambda h, w: (mnp.tanh(h @ w), None), x, w)
                return mnp.sum(mnp.sum(y**2, -1) * mask) / (mnp.sum(mask) if divided else 8.0)

            value, gradient = mw.value_and_grad(loss)(w)
            return value, w - 0.1 * gradient

        return step

    args = mw.ShapeDtypeStruct((4, 256, 256), "float32"), (mnp.ones((1024, 256)), mnp.ones(1024))
    models = [dist.traced(trained(divided), *args) for divided in (True, False)]
    assert all(model.separable for model in models)
    some = {"microbatches": [1, 4], "zero": [0, 3], "recompute": ["none", "full"]}
    machine = hardware.Topology("h100", 4)
    found, plain = (dist.grid_search(model, machine, 1024, prune=False, **some).estimates for model in models)
    seconds = {one.strategy: one.seconds for one in plain}
    assert {one.strategy for one in found} == {*seconds} and any(s.pipeline > 1 for s in seconds)
    for one in found:
        assert one.seconds == pytest.approx(seconds[one.strategy], rel=0.02)
    parts = mw.microbatched(trained(True), 4, batch_args=1)
    real = mw.simulate(mw.jit(parts, donate_argnums=(0,)).lower(*args).compile(), "h100 1")
    one = dist.OnTopology(hardware.Topology("h100", 1))
    assert dist.estimate(models[0], dist.Strategy(microbatches=4), 1024, one).seconds == pytest.approx(
        real.seconds, rel=0.1
    )


def test_a_step_that_needs_its_whole_batch_has_the_memory_of_the_program_simulated():
    step, params, batch = shapes(moe, moe.Config(), 16)
    model = dist.traced(step, params, batch)
    machine = dist.OnTopology(hardware.Topology("h100", 2))
    assert not model.separable
    for rows in (16, 32):  # with another batch it is traced again
        found = dist.estimate(model, dist.Strategy(), rows, machine)
        real = simulated(moe, moe.Config(), rows)
        assert found.seconds == pytest.approx(real.seconds, rel=0.01)
        assert found.peak_bytes_per_device == pytest.approx(real.peak_bytes_per_device, rel=0.01)
    with pytest.raises(ShapeError, match=r"The model needs its whole batch on one device\."):
        dist.estimate(model, dist.Strategy(2), model.rows, machine)


def test_a_step_that_needs_its_whole_batch_is_searched_by_other_processes_with_another_batch():
    model, topology = dist.traced(*shapes(moe, moe.Config(), 16)), hardware.Topology("h100", 2)
    with ProcessPoolExecutor(1) as pool:
        spread = dist.grid_search(model, topology, 32, executor=pool, prune=False)
    assert spread == dist.grid_search(model, topology, 32, workers=1, prune=False)
    assert len(spread)
    fixed = dist.traced(model.program, *shapes(moe, moe.Config(), 16)[1:])
    with pytest.raises(ShapeError) as error:
        dist.grid_search(fixed, topology, 32)
    said = str(error.value).splitlines()
    assert said[0] == "The step was traced with a batch of 16, and not with 32."
    assert said[1].startswith("  why:  an equation puts the samples together, at ")
    assert said[2:] == ["  fix:  dist.traced(step, params, batch) with a batch of 32"]


def test_what_is_no_training_step_is_refused():
    with pytest.raises(MeshwrightError) as error:
        dist.traced(lambda w, x: x @ w, mnp.ones((4, 4)), mnp.ones((8, 4)))
    assert str(error.value) == (
        "The step returns no loss.\n"
        "  why:  the first result without dims is the loss, and there is none\n"
        "  fix:  return loss, new_params"
    )


def test_a_step_of_one_sample_has_a_batch():
    def step(w, x):
        value, gradient = mw.value_and_grad(lambda w: mnp.mean(mnp.tanh(x @ w) ** 2))(w)
        return value, w - 0.1 * gradient

    shape = lambda *dims: mw.ShapeDtypeStruct(dims, "float32")
    machine = dist.OnTopology(mw.hardware.Topology("h100", 4))
    one, several = (
        dist.estimate(dist.traced(step, shape(512, 512), shape(rows, 512)), dist.Strategy(data=4), 64, machine)
        for rows in (1, 16)
    )
    assert one == several


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize(
    ("kind", "policy"), [("none", None), ("matmuls", "dots_saveable"), ("full", "nothing_saveable")]
)
def test_recomputation_holds_what_the_step_with_such_a_checkpoint_does(kind, policy, scan):
    def block(x, p):
        y = x / mnp.sqrt(mnp.mean(x * x, -1, keepdims=True) + 1e-5)
        return x + mw.nn.silu(y @ p[0]) @ p[1]

    def step(params, x, layer):
        def loss(params):
            y = x
            if scan:
                y, _ = lax.scan(lambda y, p: (layer(y, p), None), y, params)
            else:
                for p in params:
                    y = layer(y, p)
            return mnp.mean(y * y)

        value, found = mw.value_and_grad(loss)(params)
        return value, mw.tree.map(lambda w, g: w - 0.1 * g, params, found)

    count, rows = 6, 4096
    stacked = (count,) if scan else ()
    sizes = [mw.ShapeDtypeStruct((*stacked, *one), "float32") for one in ((256, 1024), (1024, 256))]
    params, x = sizes if scan else [sizes] * count, mw.ShapeDtypeStruct((rows, 256), "float32")
    kept = block if policy is None else mw.checkpoint(block, policy=getattr(mw.checkpoint_policies, policy))
    program = mw.make_program(partial(step, layer=kept))(params, x)
    held = memory(program, donated=[True] * (len(program.inputs) - 1) + [False]).peak_bytes
    model = dist.traced(partial(step, layer=block), params, x)
    costs = dist.OnTopology(mw.hardware.Topology("h100", 1))
    found = dist.estimate(model, dist.Strategy(recompute=kind), rows, costs)
    assert found.peak_bytes_per_device == pytest.approx(held, rel=0.15)
    took = mw.simulate(program, "h100").seconds  # a checkpoint computes nothing again that no derivative needs
    assert 0.97 * took < found.seconds < 1.5 * took
