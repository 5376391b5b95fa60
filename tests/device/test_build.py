"""Programs written in Python are the programs their text would be."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import dist
from meshwright.errors import DeviceError, ShapeError

MAP = dist.DeviceMap({1: [1, 3], 2: [2, 4]})


@dist.function
def nested(wA: dist.Tensor(("F", "H"), 0), wB: dist.Tensor(("H", "C"), 0), x: dist.Tensor(("B", "F"), 0)):
    def replica(d):
        def body(xi, wAi, wBi):
            xs = dist.broadcast(xi, device_keys=[d])
            wAs = dist.scatter(wAi, dim=1, device_keys=[d])
            wBs = dist.scatter(wBi, dim=0, device_keys=[d])
            ys = dist.pmap(lambda dd: lambda x, wA, wB: (x @ wA) @ wB, (xs, wAs, wBs))
            return dist.allreduce(ys)

        return body

    xs = dist.scatter(x, dim=0, device_keys=[])
    wAs = dist.broadcast(wA, device_keys=[])
    wBs = dist.broadcast(wB, device_keys=[])
    return dist.gather(dist.pmap(replica, (xs, wAs, wBs)), dim=0, to_device=0)


def inputs():
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype("f4") for shape in ((4, 6), (6, 2), (8, 4))]


def test_the_nested_program_of_the_document_can_be_written_in_python():
    wA, wB, x = inputs()
    np.testing.assert_allclose(dist.execute(nested, [wA, wB, x], MAP), x @ wA @ wB, rtol=1e-4, atol=1e-5)
    chain = dist.parse(
        "def f(wA: Tensor[(F, H), 0], wB: Tensor[(H, C), 0], x: Tensor[(B, F), 0]):"
        " a = MatMul(x, wA) y = MatMul(a, wB) return y"
    )
    spread = dist.horizontal_parallel(dist.data_parallel(chain.with_(device_map=MAP), {"x": 0}), device_keys=["d"])
    assert dist.resolve(nested, MAP) == dist.resolve(spread)


def test_every_tensor_op_is_a_name():
    @dist.function
    def f(x: dist.Tensor((8, 4), 0)):
        y = dist.tanh(x * 2) + 1.0
        return dist.reduce_sum(y, axes=(0, 1)), y - x

    x = np.linspace(-1, 1, 32, dtype="f4").reshape(8, 4)
    total, rest = dist.execute(f, [x])
    np.testing.assert_allclose(total, (np.tanh(2 * x) + 1).sum(), rtol=1e-5)
    np.testing.assert_allclose(rest, np.tanh(2 * x) + 1 - x, rtol=1e-5)
    assert dist.parse(str(f)) == f
    with pytest.raises(AttributeError, match="has no op 'frobnicate'"):
        _ = dist.frobnicate


def test_sub_devices_and_arithmetic_are_methods_of_the_variable():
    @dist.function
    def f(x: dist.Tensor((8,), 0)):
        xs = dist.scatter(x, dim=0, device_keys=[])
        ys = dist.pmap(lambda d: lambda x: dist.neg(dist.send(x, to_device=d.child(1))), (xs,))
        return dist.gather(ys, dim=0, to_device=0)

    flat = dist.resolve(f, MAP)
    assert [eqn.outputs[0].type.device.base for eqn in flat.eqns if eqn.op == "neg"] == [3, 4]
    assert str(dist.Device("d") + 1) == "d+1"


def test_a_body_sees_its_own_inputs_only():
    def f(x: dist.Tensor((8,), 0)):
        xs = dist.scatter(x, dim=0, devices=[1, 2])
        return dist.pmap(lambda d: lambda part: part + x, (xs,))

    with pytest.raises(DeviceError, match="the body of a pmap sees its own inputs only"):
        dist.function(f)


def test_misuse_is_one_clear_error():
    def untyped(x):
        return x

    with pytest.raises(DeviceError, match="The input x of untyped has no type"):
        dist.function(untyped)
    with pytest.raises(DeviceError, match="outside of a device program"):
        dist.tanh(1.0)

    def twice(x: dist.Tensor((8,), 0)):
        return dist.scatter(x, dim=0, devices=[1], device_keys=[])

    with pytest.raises(ShapeError, match="The devices are given once"):
        dist.function(twice)


def test_a_traced_program_goes_into_every_transform_as_it_is():
    program = mw.make_program(lambda w, x: mnp.tanh(x @ w))(mnp.ones((4, 6)), mnp.ones((8, 4)))
    rng = np.random.default_rng(0)
    w, x = rng.standard_normal((4, 6)).astype("f4"), rng.standard_normal((8, 4)).astype("f4")
    spread = dist.data_parallel(program, {"b": 0}, parts=2)
    assert isinstance(spread, mw.Program)
    assert spread == dist.data_parallel(dist.from_program(program), {"b": 0}, parts=2)
    expected = np.tanh(x @ w)
    horizontal = dist.horizontal_parallel(program, {"b": 0})
    for fn in (program, spread, horizontal, dist.pipeline_parallel(program, 2, 2, batch={"b": 0})):
        np.testing.assert_allclose(dist.execute(fn, [w, x], [1, 2]), expected, rtol=1e-5)
    np.testing.assert_allclose(dist.to_mesh(spread, [1, 2])(w, x), expected, rtol=1e-5)
    assert dist.resolve(program).eqns[0].op == "MatMul"
