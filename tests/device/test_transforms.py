"""Transforms keep the meaning: alone, nested in any order, on regular and irregular maps, three levels deep."""

import itertools

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import dist
from meshwright.device.spread import Planner
from meshwright.errors import ShapeError
from meshwright.simulate.devices.steady import steady_state
from tests.device.models import MODELS, Model, check, mlp_training, transformer_training

TWO = {1: [1, 3], 2: [2, 4]}
THREE = {1: {1: [1, 5], 3: [3, 7]}, 2: {2: [2, 6], 4: [4, 8]}}


def D(fn: dist.Function, model: Model, keys: list[str]) -> dist.Function:
    return dist.data_parallel(fn, model.batch, keys)


def H(fn: dist.Function, model: Model, keys: list[str], parts: int | None = 2) -> dist.Function:
    return dist.horizontal_parallel(fn, model.batch, keys, parts=parts)


def P(fn: dist.Function, model: Model, keys: list[str]) -> dist.Function:
    return dist.pipeline_parallel(fn, 2, 2, "1f1b", model.batch, keys)


def Z(fn: dist.Function, model: Model, keys: list[str]) -> dist.Function:
    return dist.zero(fn, model.batch, 2, keys)


TRANSFORMS = {"D": D, "H": H, "P": P, "Z": Z}
VARIABLES = ["d", "dd", "ddd"]


def stack(model: Model, word: str, parts: int | None = 2) -> dist.Function:
    """Transforms from the outermost in; with parts=None, the number of devices is left open."""
    fn = model.function
    for depth, letter in enumerate(word):
        keys = VARIABLES[:depth]
        fn = H(fn, model, keys, parts) if letter == "H" else TRANSFORMS[letter](fn, model, keys)
    return fn


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("word", ["D", "H", "P", "Z"])
def test_one_transform_keeps_the_meaning(name, word):
    model = MODELS[name]()
    fn = stack(model, word)
    check(model, fn, [1, 2])
    assert dist.parse(str(fn)) == fn or name == "transformer"  # large constants have no text


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("word", ["DH", "HD", "DP", "PD", "HP", "PH"])
def test_two_levels_in_any_order_keep_the_meaning(name, word):
    model = MODELS[name]()
    fn = stack(model, word)
    check(model, fn, TWO)
    check(model, dist.keep_in_place(fn), TWO)


@pytest.mark.parametrize("name", MODELS)
def test_the_number_of_devices_may_be_left_open_on_every_level(name):
    model = MODELS[name]()
    inside = dist.data_parallel(dist.horizontal_parallel(model.function, model.batch), model.batch, ["d"])
    check(model, inside, TWO)
    check(model, inside, {1: [1], 2: [2, 4]})
    check(
        model,
        dist.pipeline_parallel(dist.horizontal_parallel(model.function, model.batch), 2, 2, "1f1b", model.batch, ["d"]),
        TWO,
    )


WORDS = ["".join(w) for w in itertools.permutations("DHP")]


@pytest.mark.parametrize(
    ("name", "word"),
    [("chain", word) for word in WORDS]
    + [("mlp", word) for word in [*WORDS, "ZHP", "DDH", "DHH", "DPZ"]]
    + [("transformer", word) for word in ("DHP", "HDP", "PDH", "DPH")],
)
def test_three_levels_keep_the_meaning(name, word):
    model = MODELS[name]()
    fn = stack(model, word)
    check(model, fn, THREE)
    if name != "transformer" or word == "DHP":
        check(model, dist.keep_in_place(fn), THREE)


# Groups of one and of two devices. The stages of a pipeline are two everywhere; what is below them may differ.
IRREGULAR = {
    "DH": {9: [1, 3], 8: [2]},
    "HD": {1: [1], 2: [2, 4]},
    "HZ": {1: [1], 2: [2, 4]},
    "PD": {1: [1, 3], 2: [2]},
    "PH": {9: [1], 8: [2, 4]},
    "DHP": {1: {1: [1, 5]}, 2: {2: [2, 6], 4: [4, 8]}},
    "HDP": {1: {1: [1, 5], 3: [3, 7]}, 2: {2: [2, 6]}},
    "DPH": {1: {1: [1], 3: [3, 7]}, 2: {2: [2, 6], 4: [4]}},
    "PDH": {1: {1: [1, 5], 3: [3]}, 2: {2: [2, 6]}},
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("word", IRREGULAR)
def test_groups_of_different_sizes_keep_the_meaning(name, word):
    model = MODELS[name]()
    fn = stack(model, word, parts=None)
    check(model, fn, IRREGULAR[word])
    if word == "DH" and name != "transformer":  # which has two heads for keys and values
        check(model, fn, {1: [1, 3], 2: [2, 4, 5, 6]})


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_keeps_the_meaning_at_every_stage(stage):
    model = mlp_training()
    check(model, dist.zero(model.function, model.batch, stage), [1, 2, 3, 4])


def test_zero_splits_states_gradients_and_parameters_in_turn():
    model = mlp_training()
    ops = [[eqn.op for eqn in dist.zero(model.function, model.batch, stage, parts=4).eqns] for stage in (1, 2, 3)]
    assert [names.count("reduce_scatter") for names in ops] == [0, 4, 4]
    # Each weight is gathered going forward; at stage 3 those in the middle are gathered again going back.
    assert [names.count("allgather") for names in ops] == [4, 4, 6]
    # Between steps, a device has the parts of weights and momentum that it updates.
    assert [names.count("scatter") for names in ops] == [10, 10, 10]


def test_zero_sends_as_much_as_data_parallelism_and_half_as_much_again_at_stages_1_and_3():
    def step(ws, frozen, x):
        value, gradient = mw.value_and_grad(lambda ws: mnp.mean(mnp.tanh(mnp.tanh(x @ ws[0]) @ frozen) @ ws[1]))(ws)
        return value, [w - 0.1 * g for w, g in zip(ws, gradient, strict=True)]

    size = mw.ShapeDtypeStruct((64, 64), "float32")
    train = dist.from_program(mw.make_program(step)([size] * 2, size, size), ["w0", "w1", "frozen", "x"])

    def halves(fn) -> int:
        """Weights that travel, in units of what a reduce_scatter or an allgather of one sends."""
        flat = steady_state(dist.resolve(fn, [1, 2, 3, 4]))
        weigh = {"allreduce": 2, "reduce_scatter": 1, "allgather": 1}
        large = [eqn for eqn in flat.eqns if eqn.op in weigh and eqn.outputs[0].type.shape]
        return sum(weigh[eqn.op] for eqn in large)

    stages = [dist.data_parallel(train, {"x": 0}), *(dist.zero(train, {"x": 0}, stage) for stage in (1, 2, 3))]
    # The frozen weight is not updated, and stays whole until stage 3, which gathers it going forward and going back.
    assert [halves(fn) for fn in stages] == [4, 6, 4, 6]


def test_zero_inside_splits_the_updates_of_every_replica():
    model = mlp_training()
    fn = dist.zero(dist.data_parallel(model.function, model.batch), model.batch, 3, ["d"])
    update = [eqn.body for eqn in fn.eqns if eqn.op == "pmap"][-1]
    assert [eqn.op for eqn in update.eqns] == ["scatter"] * 12 + ["pmap"] + ["gather"] * 8
    check(model, fn, TWO)


def test_zero_holds_one_whole_parameter_and_one_whole_gradient_at_a_time():
    layers, size = 8, 256

    def peak(stage: int, overlap: bool = False) -> float:
        """Bytes on a device, in units of a layer's weights; activations are small."""
        fn = dist.zero(train, {"x": 0}, stage) if stage else dist.data_parallel(train, {"x": 0})
        machine = dist.OnTopology(mw.hardware.Topology("h100", 8), overlap=overlap)
        found = dist.simulate(fn, list(range(1, 9)), assumptions=machine, steady=True)
        return found.peak_bytes[1] / (4 * size * size)

    def loss(ws, x):
        for w in ws:
            x = mnp.tanh(x @ w)
        return mnp.mean(x * x)

    def step(ws, x):
        value, gradient = mw.value_and_grad(loss)(ws, x)
        return value, [w - 0.1 * g for w, g in zip(ws, gradient, strict=True)]

    args = ([mw.ShapeDtypeStruct((size, size), "float32")] * layers, mw.ShapeDtypeStruct((32, size), "float32"))
    train = dist.from_program(mw.make_program(step)(*args), [*(f"w{n}" for n in range(layers)), "x"])
    # Weights and gradients; weights and their parts; parts of both, and one of each whole.
    assert peak(0) == pytest.approx(2 * layers + 1, abs=0.1)
    assert peak(2) == pytest.approx(layers + 1.35, abs=0.1)
    assert peak(3) == pytest.approx(3.35, abs=0.1)
    assert peak(3, overlap=True) < 4.5  # the next one is gathered meanwhile, and no other


@pytest.mark.parametrize("name", ["mlp", "transformer"])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_every_schedule_keeps_the_meaning(name, schedule):
    model = MODELS[name]()
    for stages, microbatches in ((2, 4), (4, 4), (3, 2)):
        fn = dist.pipeline_parallel(model.function, stages, microbatches, schedule, model.batch)
        check(model, fn, list(range(1, stages + 1)))


@pytest.mark.parametrize("word", ["P", "DP"])
def test_updates_run_once_where_the_parameters_are(word):
    fn = stack(mlp_training(), word)
    body = fn if word == "P" else [eqn.body for eqn in fn.eqns if eqn.op == "pmap"][-1]
    calls = [eqn for eqn in body.eqns if eqn.op == "call"][-2:]
    assert [[v.name for v in eqn.values if v.name[0] in "mw"] for eqn in calls] == [
        ["m0_to_0", "m1_to_0", "w0_to_0", "w1_to_0"],
        ["m2_to_1", "m3_to_1", "w2_to_1", "w3_to_1"],
    ]


@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_interleaved_stages_keep_the_meaning(name):
    model = MODELS[name]()
    fn = dist.pipeline_parallel(model.function, 2, 4, "interleaved", model.batch, chunks=2)
    check(model, fn, [1, 2])


@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_recomputation_keeps_the_meaning_and_nests(name):
    model = MODELS[name]()
    again = dist.recompute(model.function, segments=3)
    assert len(again.eqns) > len(model.function.eqns)
    check(model, again, None)
    check(model, D(again, model, []), [1, 2])
    check(model, P(again, model, []), [1, 2])
    inside = dist.recompute(D(model.function, model, []), 3, ["d"])
    assert "_again" in str(inside)
    check(model, inside, [1, 2])
    with pytest.raises(ShapeError, match="There is no loss"):
        dist.recompute(MODELS["chain"]().function)


def test_horizontal_parallelism_of_the_transformer_is_two_sums_per_layer_forward_and_back():
    model = MODELS["transformer"]()
    fn = dist.horizontal_parallel(model.function, model.batch, parts=2)
    ops = [eqn.op for eqn in fn.eqns]
    assert "allgather" not in ops
    assert "reduce_scatter" not in ops
    split = {eqn.inputs[0].name: eqn.attributes["dim"] for eqn in fn.eqns if eqn.op == "scatter"}
    # Leaves in the order of the tree: attention norm, down, gate, mlp norm, up, wk, wo, wq, wv after the embedding.
    assert len(split) == 7


def test_horizontal_parallelism_looks_at_equations_in_proportion_to_layers(monkeypatch):
    def loss(ws, x):
        for w in ws:
            x = mnp.maximum(x @ w, 0)
        return mnp.mean(x * x)

    def looked_at(layers: int) -> int:
        """The equations that plans were made of, for all dims that could be split."""
        seen = []
        monkeypatch.setattr(Planner, "step", lambda self, eqn: (seen.append(eqn), step(self, eqn)))
        sizes = [mw.ShapeDtypeStruct((64, 64), "float32")] * layers, mw.ShapeDtypeStruct((32, 64), "float32")
        program = mw.make_program(mw.value_and_grad(loss))(*sizes)
        dist.horizontal_parallel(dist.from_program(program, [*(f"w{n}" for n in range(layers)), "x"]), {"x": 0})
        return len(seen)

    step = Planner.step
    counts = [looked_at(layers) for layers in (16, 32, 64)]
    assert counts[2] - counts[1] == pytest.approx(2 * (counts[1] - counts[0]), rel=0.1)


def test_parts_kept_in_place_are_neither_gathered_nor_scattered_again():
    model = mlp_training()
    fn = stack(model, "DH")
    before, after = ([eqn.op for eqn in dist.resolve(f, TWO).eqns] for f in (fn, dist.keep_in_place(fn)))
    assert after.count("gather") < before.count("gather")
    assert after.count("scatter") < before.count("scatter")
    assert dist.parse(str(dist.keep_in_place(fn))) == dist.keep_in_place(fn)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_horizontal_parallelism_inside_zero_splits_what_zero_gathers(stage):
    model = transformer_training(layers=3)  # which zero cannot store by layer, but by heads and hidden units
    fn = dist.zero(model.function.with_(device_map=dist.DeviceMap(TWO)), model.batch, stage)
    check(model, dist.horizontal_parallel(fn, model.batch, ["d"]), TWO)


def test_a_maximum_computed_again_elsewhere_is_compared_with_itself():
    """Sums of parts differ in their last bits from the sum on one device, and a relu goes back where it is equal."""
    rng = np.random.default_rng(1)

    def step(ws, x):
        def loss(ws):
            h = x
            for w in ws:
                h = mnp.maximum(h @ w, 0)
            return mnp.mean(h * h)

        value, gradient = mw.value_and_grad(loss)(ws)
        return value, [w - 0.1 * g for w, g in zip(ws, gradient, strict=True)]

    ws = [rng.standard_normal((12, 12)).astype("f4") * 0.3 for _ in range(4)]
    x = rng.standard_normal((24, 12)).astype("f4")
    fn = dist.from_program(mw.make_program(step)(ws, x), ["w0", "w1", "w2", "w3", "x"])
    spread = dist.horizontal_parallel(dist.recompute(fn, 2), {"x": 0})
    spread = dist.pipeline_parallel(spread, 2, 2, "1f1b", {"x": 0}, ["d"])
    spread = dist.horizontal_parallel(spread, {"x": 0}, ["d", "dd"])
    uneven = {1: {1: [1], 3: [3, 5]}, 2: {2: [2], 4: [4, 6]}}
    for found, wanted in zip(dist.execute(spread, [*ws, x], uneven), dist.execute(fn, [*ws, x]), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
