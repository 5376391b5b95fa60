"""Device programs as mesh programs: the same numbers, shardings that say where things are, and what is refused."""

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import dist
from meshwright.device.staged import StageSend
from meshwright.errors import DeviceError, MeshwrightError, ShapeError
from tests.device.models import MODELS
from tests.device.test_properties import SETTINGS, models, run, trees
from tests.device.test_transforms import THREE, TWO, stack

MAP = {1: [1, 3], 2: [2, 4]}
MAPS = {1: [1, 2], 2: TWO, 3: THREE}
PIPELINES = ["P", "DP", "PD", "HP", "PH", "DHP", "DPH", "PDH", "3P", "P2"]
# By number of levels: keys that stand above their groups, keys that lead them.
SIZED = {
    1: ([1, 2], [2, 1]),
    2: ({9: [1, 3], 8: [2, 4]}, TWO),
    3: ({21: {11: [1, 5], 13: [3, 7]}, 22: {12: [2, 6], 14: [4, 8]}}, THREE),
}
CHAIN = dist.parse("def f(x: Tensor[(B, F), 0], w: Tensor[(F, H), 0]): y = MatMul(x, w) return y")


def leaves(found):
    return [y for x in found for y in leaves(x)] if isinstance(found, tuple) else [np.asarray(found)]


def agree(fn, inputs, device_map):
    program = dist.to_mesh(fn, device_map)
    found, wanted = leaves(program(*inputs)), leaves(dist.execute(fn, inputs, device_map))
    assert [x.shape for x in found] == [x.shape for x in wanted]
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=5e-3, atol=5e-5)
    return program


@SETTINGS
@given(models(), st.text("DH123", min_size=1, max_size=2), st.data())
def test_a_mesh_program_computes_what_the_device_program_does(case, word, data):
    device_map = data.draw(trees(len(word), regular=True))
    fn = run(case, word, device_map)
    for version in (fn, dist.keep_in_place(fn)):
        program = agree(version, case[1], device_map)
        assert tuple(program.mesh.shape.values()) == dist.DeviceMap(device_map).fan_outs


@settings(SETTINGS, max_examples=15)
@given(models(), st.sampled_from(PIPELINES), st.booleans(), st.sampled_from(["gpipe", "1f1b", "zb-h1"]))
def test_a_pipeline_on_meshes_computes_what_the_device_program_does(case, word, leads, schedule):
    device_map = dist.DeviceMap(SIZED[len(word)][leads])
    fn = run(case, word, device_map, schedule=schedule)
    for version in (fn, dist.keep_in_place(fn)):
        program = agree(version, case[1], device_map)
        # A stage is the part of the mesh with one index along the axis of the pipeline.
        axis = word.index("P")
        grid = program.mesh.device_ids
        for index, mesh in enumerate(program.meshes.values()):
            np.testing.assert_array_equal(mesh.device_ids, np.take(grid, [index], axis))


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(models(), st.text("DHP123", min_size=1, max_size=3), st.data())
def test_any_stack_on_any_mesh(case, word, data):
    device_map = data.draw(trees(len(word), regular=True))
    sizes = dist.DeviceMap(device_map).fan_outs
    stages = {n for n, letter in zip(sizes, word, strict=True) if letter == "P"}
    assume(len(stages) <= 1)
    fn = run(case, word, device_map, stages=stages.pop() if stages else 2)
    agree(fn, case[1], device_map)


@pytest.mark.parametrize(
    ("name", "word"),
    [("mlp", word) for word in ("DH", "HD", "Z", "P", "DP", "HP", "PD", "PH", "DHP")]
    + [("transformer", word) for word in ("DH", "HD", "Z", "P", "DP", "PH", "DHP")],
)
def test_training_steps(name, word):
    model = MODELS[name]()
    agree(stack(model, word), model.inputs, MAPS[len(word)])


def test_zero_on_a_mesh_gathers_parameters():
    model = MODELS["mlp"]()
    program = agree(dist.zero(model.function, model.batch, 3), model.inputs, [1, 2])
    assert [tuple(s.spec) for s in program.in_shardings[:4]] == [("d",)] * 4


def test_a_pipeline_sends_what_a_stage_needs_and_sums_where_gradients_are():
    model = MODELS["mlp"]()
    program = dist.to_mesh(stack(model, "DPH"), MAPS[3])
    assert repr(program) == (
        'MeshPipeline(stage 0: <["d"=2, "dd"=1, "ddd"=2], device_ids=[0, 4, 1, 5]>;'
        ' stage 1: <["d"=2, "dd"=1, "ddd"=2], device_ids=[2, 6, 3, 7]>; 23 programs, 8 sends)'
    )
    sends = [action for action in program.actions if isinstance(action, StageSend)]
    assert {(str(a.stage), str(a.target)) for a in sends} == {("stage 0", "stage 1"), ("stage 1", "stage 0")}
    assert str(sends[0]) == "stage 0: send s_0 to stage 1 P('d',)"
    # Gradients are summed over microbatches and replicas in parts, as the products of a stage leave them.
    found = {run.names[0]: [(c.kind, c.axes) for c in compiled.collectives] for run, compiled in program.compiled}
    assert found["l_0"] == found["bs_0"] == [("all_reduce", ("ddd",))]
    assert found["bs_sum"] == found["bv_sum"] == found["cb_sum"] == []
    assert found["bss_dp"] == found["cbs_dp"] == [("all_reduce", ("d",))]
    assert {kind for kinds in found.values() for kind, _ in kinds} == {"all_reduce"}
    again = {id(compiled) for run, compiled in program.compiled if run.names[0] in ("l_0", "l_1")}
    assert len(again) == 1  # microbatches share a program


def test_a_pipeline_within_a_pipeline_has_a_mesh_per_stage_of_a_stage():
    model = MODELS["mlp"]()
    program = agree(stack(model, "PP"), model.inputs, MAP)
    assert list(program.meshes) == ["stage 0.0", "stage 0.1", "stage 1.0", "stage 1.1"]


def test_interleaved_stages_are_programs_on_the_meshes_of_two_devices():
    model = MODELS["mlp"]()
    fn = dist.pipeline_parallel(model.function, 2, 4, "interleaved", model.batch, chunks=2)
    assert list(agree(fn, model.inputs, [3, 1]).meshes) == ["stage 0", "stage 1"]


def test_a_pipeline_takes_any_sizes_by_name_and_its_inputs_are_checked():
    text = "def f(w: Tensor[(F, H), 0], v: Tensor[(H, C), 0], x: Tensor[(B, F), 0]): a = MatMul(x, w) y = MatMul(a, v)"
    fn = dist.pipeline_parallel(dist.parse(f"{text} return y"), 2, 2, batch={"x": 0})
    program = dist.to_mesh(fn, [1, 2])
    rng = np.random.default_rng(0)
    w, v, x = (rng.standard_normal(shape).astype("f4") for shape in ((4, 6), (6, 2), (8, 4)))
    for rows in (8, 4):
        np.testing.assert_allclose(program(x=x[:rows], w=w, v=v), x[:rows] @ w @ v, rtol=1e-4, atol=1e-5)
    assert refused(lambda: program(w, v)).value.what == "f takes 3 inputs: w, v, x."
    assert refused(lambda: program.compiled).value.what == "The size B of the mesh program is not known."
    assert refused(lambda: program(w, v, x[:3])).value.what == "Dim 0 of size 3 does not divide into 2 equal parts."
    found = mw.grad(lambda w: mnp.sum(program(w, v, x)))(w)
    np.testing.assert_allclose(found, x.T @ np.ones((8, 2), "f4") @ v.T, rtol=1e-4, atol=1e-5)
    assert refused(lambda: mw.jit(program)(w, v, x)).value.what == "One program names two meshes."


def test_a_tuple_over_replicas_that_hold_pipelines_comes_out_as_a_tuple():
    model = MODELS["chain"]()
    fn = stack(model, "DP")
    tuples = next(eqn.outputs[0] for eqn in fn.eqns if eqn.op == "pmap")
    gathered = fn.outputs[0]
    both = fn.with_(outputs=(tuples, gathered, fn.inputs[0]))
    found = agree(both, model.inputs, MAP)(*model.inputs)
    assert isinstance(found[0], tuple)
    np.testing.assert_array_equal(np.concatenate(found[0]), found[1])


def test_three_levels_and_one_that_the_program_does_not_use():
    model = MODELS["chain"]()
    fn = dist.horizontal_parallel(dist.data_parallel(model.function, model.batch), model.batch, ["d"])
    assert agree(fn, model.inputs, dist.DeviceMap.grid(2, 2, 2)).mesh.shape == {"d": 2, "dd": 2, "ddd": 2}
    fn = dist.data_parallel(fn, model.batch, ["d", "dd"])
    program = agree(fn, model.inputs, dist.DeviceMap.grid(2, 2, 2))
    assert tuple(program.in_shardings[-1].spec) == (("d", "ddd"), "dd")


@pytest.mark.parametrize("how", ["sum", "max", "min", "prod"])
def test_every_reduction(how):
    text = (
        f"def f(x: Tensor[(B,), 0]): xs = scatter(x, dim=0, device_keys=[]) s = allreduce(xs, reduce={how!r}) return s"
    )
    agree(dist.parse(text), [np.arange(1.0, 7.0, dtype=np.float32)], [1, 2, 3])


@pytest.mark.parametrize("how", ["or", "and"])
def test_reductions_of_bools(how):
    body = f"xs = scatter(x, dim=0, device_keys=[]) s = allreduce(xs, reduce={how!r}) return s"
    agree(dist.parse(f"def f(x: Tensor[bool, (B,), 0]): {body}"), [np.array([1, 0, 1, 1, 0, 0], bool)], [1, 2, 3])


@pytest.mark.parametrize(
    "body",
    [
        "ys = pmap(lambda d: lambda (x: Tensor[(B/3,), d]): { y = tanh(x) return y }, (xs)) return ys",
        "ys = reduce_scatter(xs, dim=0) y = gather(ys, dim=0, to_device=0) return y",
        "ys = allgather(xs, dim=0) zs = own_part(ys, dim=0) y = gather(zs, dim=0, to_device=0) return y, ys, zs",
        "a = gather(xs, dim=0, to_device=0) b = tanh(a) bs = scatter(b, dim=0, device_keys=[]) return a, b, bs, x",
        "ys = broadcast(x, device_keys=[]) s = allreduce(ys) g = gather(ys, dim=0, to_device=0) return s, g",
        "c = split(x, dim=0, parts=3) a = item(c, index=1) g = gather(c, dim=0, to_device=0) return a, g",
    ],
)
def test_tuples_and_collectives_one_by_one(body):
    fn = dist.parse(f"def f(x: Tensor[(B,), 0]): xs = scatter(x, dim=0, device_keys=[]) {body}")
    agree(fn, [np.linspace(-1, 1, 9, dtype=np.float32)], [5, 2, 7])


def test_an_input_used_in_two_ways_enters_as_both_begin():
    text = (
        "def f(x: Tensor[(B, B), 0]): r = scatter(x, dim=0, device_keys=[]) c = scatter(x, dim=1, device_keys=[])"
        " a = gather(r, dim=0, to_device=0) b = gather(c, dim=1, to_device=0) y = add(a, b) return y"
    )
    program = agree(dist.parse(text), [np.arange(16, dtype=np.float32).reshape(4, 4)], [1, 2])
    assert tuple(program.in_shardings[0].spec) == ()


def test_a_mesh_program_is_differentiated_like_any_function():
    fn = dist.horizontal_parallel(dist.data_parallel(CHAIN, {"x": 0}), {"x": 0}, ["d"])
    program = dist.to_mesh(fn, MAP)
    x, w = (np.random.default_rng(n).standard_normal((4, 4)).astype("f4") for n in range(2))
    found = mw.grad(lambda x, w: mnp.sum(mnp.square(program.function(x, w))), argnums=(0, 1))(x, w)
    wanted = mw.grad(lambda x, w: mnp.sum(mnp.square(x @ w)), argnums=(0, 1))(x, w)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def refused(make):
    with pytest.raises(MeshwrightError) as error:
        make()
    return error


def test_what_is_no_mesh_program_is_refused_with_the_case():
    split = dist.data_parallel(CHAIN, {"x": 0})
    error = refused(lambda: dist.to_mesh(dist.horizontal_parallel(split, {"x": 0}, ["d"]), {1: [1, 3], 2: [2]}))
    assert str(error.value) == (
        "The device map {1: [1, 3], 2: [2]} is no mesh.\n"
        "  why:  its groups differ in size or depth, and an axis of a mesh has one size\n"
        "  fix:  a regular map, such as dist.DeviceMap.grid(2, 4), or dist.execute(fn, inputs, device_map)"
    )
    model = MODELS["chain"]()
    piped = dist.data_parallel(dist.pipeline_parallel(model.function, 2, 2, "1f1b", model.batch), model.batch, ["d"])
    error = refused(lambda: dist.to_mesh(piped, {1: [1, 3], 2: [2]}))
    assert error.value.what == "The device map {1: [1, 3], 2: [2]} is no mesh."
    assert refused(lambda: dist.to_mesh(split)).value.what == "There is no device map."
    moved = dist.parse("def f(x: Tensor[(B,), 0]): y = send(x, to_device=2) return y")
    assert refused(lambda: dist.to_mesh(moved, [1, 2])).value.what == "A send to device 2 is no mesh program."
    named = dist.parse("def f(x: Tensor[(B,), 0]): xs = scatter(x, dim=0, devices=[2, 1]) return xs")
    error = refused(lambda: dist.to_mesh(named, [1, 2]))
    assert isinstance(error.value, DeviceError)
    assert error.value.what == "The devices 2, 1 are no group of the device map."
    one = dist.parse("def f(x: Tensor[(B,), 0]): xs = scatter(x, dim=0, device_keys=[]) y = item(xs, index=0) return y")
    assert refused(lambda: dist.to_mesh(one, [1, 2])).value.what == (
        "One element of what item takes or gives is no mesh program."
    )
    inputs = dist.parse("def f(x: Tuple[Tensor[(B,), 1], Tensor[(B,), 2]]): y = allreduce(x) return y")
    assert refused(lambda: dist.to_mesh(inputs, [1, 2])).value.what == "The input x is a tuple."


def test_inputs_and_sizes_that_do_not_fit():
    program = dist.to_mesh(dist.data_parallel(CHAIN, {"x": 0}), [1, 2], B=4)
    x, w = np.ones((6, 4), "f4"), np.ones((4, 2), "f4")
    assert refused(lambda: program(x, w)).value.what == "B is 6 in the inputs, and 4 in the mesh program."
    assert refused(lambda: program(x)).value.what == "f takes 2 inputs: x, w."
    assert refused(lambda: program.program).value.what == "The size F of the mesh program is not known."
    error = refused(lambda: dist.to_mesh(dist.data_parallel(CHAIN, {"x": 0}), [1, 2])(x[:5], w))
    assert isinstance(error.value, ShapeError)
    assert error.value.what == "Dim 0 of size 5 does not divide into 2 equal parts."


def test_what_is_spread_over_the_stages_of_a_pipeline_is_refused():
    text = (
        "def f(x: Tensor[(B,), 0]): xs = scatter(x, dim=0, device_keys=[])"
        " y = call(lambda d: lambda (x): { y = tanh(x) return y }, (x,)) return xs, y"
    )
    assert str(refused(lambda: dist.to_mesh(dist.parse(text), [0, 1])).value) == (
        "xs is spread over the stages of a pipeline.\n"
        "  why:  they lie along d, and each has a mesh of its own\n"
        "  fix:  a level of the device map for the stages alone, such as dist.DeviceMap.grid(2, 4) of two stages"
    )


@pytest.mark.parametrize("inner", ["scatter(x, dim=0, device_keys=[d])", "broadcast(x, device_keys=[d])"])
@pytest.mark.parametrize("outer", ["scatter(x, dim=0, device_keys=[])", "broadcast(x, device_keys=[])"])
def test_tuples_of_tuples_and_of_copies_come_out_as_they_are(outer, inner):
    body = f"xs = {outer} ys = pmap(lambda d: lambda (x): {{ y = {inner} return y }}, (xs,)) return ys, xs"
    agree(dist.parse(f"def f(x: Tensor[(B,), 0]): {body}"), [np.arange(8, dtype=np.float32)], MAP)
