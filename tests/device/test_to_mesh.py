"""Device programs as mesh programs: the same numbers, shardings that say where things are, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import dist
from meshwright.errors import DeviceError, MeshwrightError, ShapeError
from tests.device.models import MODELS
from tests.device.test_properties import SETTINGS, models, run, trees

MAP = {1: [1, 3], 2: [2, 4]}
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


@pytest.mark.parametrize("name", ["mlp", "transformer"])
@pytest.mark.parametrize("word", ["DH", "3"])
def test_training_steps(name, word):
    model = MODELS[name]()
    fn = dist.data_parallel(model.function, model.batch) if word == "DH" else dist.zero(model.function, model.batch, 3)
    if word == "DH":
        fn = dist.horizontal_parallel(fn, model.batch, ["d"])
    agree(fn, model.inputs, MAP)


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
    piped = dist.pipeline_parallel(model.function, 2, 2, "1f1b", model.batch)
    error = refused(lambda: dist.to_mesh(piped, [1, 2]))
    assert error.value.what == "A pipeline is no mesh program."
    inside = dist.pipeline_parallel(dist.data_parallel(model.function, model.batch), 2, 2, "1f1b", model.batch, ["d"])
    assert refused(lambda: dist.to_mesh(inside, MAP)).value.what == "A pipeline is no mesh program."
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
