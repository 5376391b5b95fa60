"""The document about nested pmap, line by line: device maps as proposed, devices, annotations, transforms."""

import warnings

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import dist, hardware
from meshwright.dist import Device, DeviceMap
from meshwright.errors import DeviceError, ShapeError, TextError
from tests.tour.listings_003 import SUB_DEVICES

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")
MAP = {1: [1, 3], 2: [2, 4]}
CHAIN = """def matmul(wA: Tensor[(4, 8), 0], wB: Tensor[(8, 4), 0], x: Tensor[(8, 4), 0]):
    a = MatMul(x, wA)
    y = MatMul(a, wB)
    return y"""


def arrays(*shapes):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype("f4") for shape in shapes]


def body_of(lines: str, device_map=MAP, annotation: str = ""):
    """A program whose pmap over two devices has these lines, resolved."""
    text = f"""def f(x: Tensor[(8,), 0]):
        xs{annotation} = scatter(x, dim=0, device_keys=[])
        ys = pmap(lambda d: lambda (a: Tensor[(4,), d]): {{ {lines} return b }}, (xs,))
        return ys"""
    return dist.resolve(dist.parse(text), device_map)


def devices_of(fn):
    return [v.type.device.base for v in fn.outputs]


# "The DeviceMap type serves as a wrapper over a Python dict with Device keys"


def test_devices_are_a_dict_with_device_keys_and_maps_or_lists_as_values():
    m = DeviceMap({1: {1: [1, 5], 3: [3]}, 2: [2, 4]})
    assert m.devices == {Device(1): DeviceMap({1: [1, 5], 3: [3]}), Device(2): [Device(2), Device(4)]}
    assert m[Device(1)] == m[1] == m.devices[Device(1)]
    assert isinstance(m[1], DeviceMap)
    assert isinstance(m[1][1], list)
    assert m[1][Device(1)] == [1, 5]
    assert (len(m), list(m), dict(m.items())) == (2, [Device(1), Device(2)], m.devices)
    assert m[2].keys() == [2, 4]
    assert {Device(1): "one"}[1] == "one"


def test_a_key_that_is_not_there_is_one_clear_error():
    with pytest.raises(DeviceError) as error:
        DeviceMap(MAP)[Device(7)]
    assert str(error.value) == "The device map has no key 7.\n  why:  its keys are 1, 2\n  fix:  device_keys=[1]"


# "We add a DeviceMap value as an input to the function, initialized with the actual Device tree."


def test_a_device_map_is_an_input_of_a_function():
    fn = dist.parse("""def f(m: DeviceMap, x: Tensor[(8,), 0]):
        xs = scatter(x, dim=0, devices=m.keys())
        ys = pmap(lambda d: lambda (a): {
            parts = scatter(a, dim=0, devices=m[d])
            zs = pmap(lambda dd: lambda (p): { z = neg(p) return z }, (parts,))
            b = gather(zs, dim=0, to_device=d)
            return b
        }, (xs,))
        y = gather(ys, dim=0, to_device=0)
        return y""")
    assert dist.parse(str(fn)) == fn
    assert str(fn).startswith("def f(m: DeviceMap, x: Tensor[(8,), 0]):")
    (x,) = arrays((8,))
    for found in (
        dist.execute(fn, [MAP, x]),
        dist.execute(fn, {"m": DeviceMap(MAP), "x": x}),
        dist.execute(fn, [x], MAP),
        fn(MAP, x),
    ):
        np.testing.assert_array_equal(found, -x)
    with pytest.raises(DeviceError, match="There are two device maps"):
        dist.execute(fn, [MAP, x], {1: [1, 2], 3: [3, 4]})


def test_a_device_map_is_an_input_in_python_and_devices_below_a_variable_are_looked_up():
    @dist.function
    def f(x: dist.Tensor((8,), 0), m: DeviceMap):
        xs = dist.scatter(x, dim=0, devices=m.keys())

        def replica(d):
            return lambda a: dist.gather(dist.scatter(a, dim=0, devices=m[d]), dim=0, to_device=d)

        return dist.gather(dist.pmap(replica, (xs,)), dim=0, to_device=0)

    (x,) = arrays((8,))
    np.testing.assert_array_equal(f(x, MAP), x)
    assert f.eqns[1].body.eqns[0].attributes == {"dim": 0, "device_keys": ("d",)}


def test_devices_of_a_map_at_hand_are_looked_up_in_python():
    m = DeviceMap(MAP)

    @dist.function
    def f(x: dist.Tensor((8,), 0)):
        xs = dist.scatter(x, dim=0, devices=m.keys())
        ys = dist.pmap(lambda d: lambda a: dist.allreduce(dist.scatter(a, dim=0, devices=m[d])), (xs,))
        return dist.gather(ys, dim=0, to_device=0)

    assert f.device_map == m
    flat = dist.resolve(f)
    assert [eqn.attributes["devices"] for eqn in flat.eqns if eqn.op == "scatter"] == [(1, 2), (1, 3), (2, 4)]


# "device_map={1: [1, 3], 2: [2, 4]},  # this tells simulator what d.1 is"


def test_each_pmap_may_have_a_device_map_of_its_own():
    inner = "lambda d: lambda (a): { b = send(a, to_device=d.1) return b }"
    fn = dist.parse(f"""def f(x: Tensor[(8,), 0]):
        xs = scatter(x, dim=0, devices=[1, 2])
        ys = pmap({inner}, device_map={{1: [1, 3], 2: [2, 4]}}, (xs,))
        zs = pmap({inner}, device_map={{1: [1, 5], 2: [2, 6]}}, (xs,))
        return ys, zs""")
    assert devices_of(dist.resolve(fn)) == [3, 4, 5, 6]
    assert dist.parse(str(fn)) == fn
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert dist.parse(SUB_DEVICES).device_map == DeviceMap(MAP)


# "d2 = get_sub_device(d)"


def test_get_sub_device_names_the_devices_below_one_in_turn():
    found = body_of("e = get_sub_device(d) f = get_sub_device(d) c = send(a, to_device=e) b = send(c, to_device=f)", {
        1: [1, 3, 5], 2: [2, 4, 6]})  # fmt: skip
    assert devices_of(found) == [5, 6]
    assert str(dist.get_sub_device(Device("d"))) == "d.1"


# "Device arithmetic"


@pytest.mark.parametrize(
    ("device", "found"), [("d+1", [2, 21]), ("d-1", [0, 19]), ("2+d", [3, 22]), ("d.1.1", [8, 10]), ("d.1", [7, 9])]
)
def test_devices_near_others(device, found):
    flat = body_of(f"b = send(a, to_device={device})", {1: {1: [1], 7: [7, 8]}, 20: {20: [20], 9: [9, 10]}})
    assert devices_of(flat) == found


def test_arithmetic_is_that_of_numbers():
    d = Device("d")
    assert [str(x) for x in (d - 1, 2 + d, d + 2 - 3, Device(3) - 1, d.child(1).child(0))] == [
        "d-1",
        "d+2",
        "d-1",
        "2",
        "d.1.0",
    ]


# "with each key corresponding to a successive depth"; "The keys can either be explicit Devices or Device variables."


def test_keys_of_transforms_are_devices_too():
    fn = dist.data_parallel(dist.parse(CHAIN).with_(device_map=DeviceMap(MAP)), {"x": 0}, [])
    assert dist.horizontal_parallel(fn, {"x": 0}, [Device("d")]) == dist.horizontal_parallel(fn, {"x": 0}, ["d"])
    with pytest.raises(DeviceError, match="d\\.1 is not a key of a device map"):
        dist.horizontal_parallel(fn, {"x": 0}, [Device("d").child(1)])


def test_a_pmap_whose_variable_has_the_name_of_the_next_level_is_spread_under_another():
    fn = dist.data_parallel(dist.parse(CHAIN).with_(device_map=DeviceMap(MAP)), {"x": 0})
    text = str(fn).replace("lambda d:", "lambda dd:").replace(", d]", ", dd]")
    spread = dist.horizontal_parallel(dist.parse(text), {"x": 0}, ["dd"])
    inner = next(body for body in spread.bodies())
    assert [body.variable for body in inner.bodies()] == ["ddd"]
    wA, wB, x = arrays((4, 8), (8, 4), (8, 4))
    np.testing.assert_allclose(spread(wA, wB, x), x @ wA @ wB, rtol=1e-5, atol=1e-5)


# Annotations


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("b: Tensor[(4,), d.1] = tanh(a)", "b is on another device than its annotation says"),
        ("b: Tensor[(4,), d+1] = tanh(a)", "b is on another device than its annotation says"),
        ("b: Tensor[(4,), e] = tanh(a)", "The device variable e is not bound here"),
        ("b: Tensor[(4,), d.7] = tanh(a)", "d.7 is not a device"),
        ("b: Tensor[i32, (4,), d] = tanh(a)", "b is not what its annotation says"),
    ],
)
def test_annotations_are_checked(line, message):
    with pytest.raises((DeviceError, ShapeError), match=message):
        body_of(line)


def test_a_variable_outside_of_its_pmap_is_not_bound():
    with pytest.raises(DeviceError, match="The device variable d is not bound here"):
        body_of("b = tanh(a)", annotation=": Tuple[Tensor[(4,), d], Tensor[(4,), d]]")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("xs = scatter(x, dim=0, devices=[1, 2], device_keys=[]) return xs", "The devices are given once"),
        ("xs = scatter(x, dim=0, dim=0, device_keys=[]) return xs", "dim is given twice"),
        (
            "xs = scatter(x, dim=0, device_keys=[]) ys = pmap(lambda d: lambda (a): { return a }, axis=0, (xs,))",
            "A pmap has no attribute axis",
        ),
    ],
)
def test_keywords_are_checked(text, message):
    with pytest.raises(TextError, match=message):
        dist.parse(f"def f(x: Tensor[(8,), 0]): {text}")


def test_allreduce_by_any_reduction_it_has_and_no_other():
    def reduced(how, dtype="f32"):
        text = f"xs = scatter(x, dim=0, device_keys=[]) s = allreduce(xs, reduce='{how}') return s"
        return dist.parse(f"def f(x: Tensor[{dtype}, (8,), 0]): {text}")

    (x,) = arrays((8,))
    mean = dist.execute(reduced("mean"), [x], [1, 2])
    np.testing.assert_allclose(mean, x.reshape(2, 4).mean(0), rtol=1e-6)
    assert mean.dtype == np.float32
    np.testing.assert_allclose(dist.to_mesh(reduced("mean"), [1, 2])(x), mean, rtol=1e-6)
    with pytest.raises(ShapeError) as error:
        dist.resolve(reduced("median"), [1, 2])
    assert str(error.value) == (
        "There is no allreduce by 'median'.\n"
        "  at:   s = allreduce(xs, reduce='median')\n"
        "  why:  it combines tensors by sum, mean, max, min, prod, or, and\n"
        '  fix:  allreduce(xs, reduce="sum")'
    )
    with pytest.raises(ShapeError, match="An allreduce by mean takes floats"):
        dist.resolve(reduced("mean", "i32"), [1, 2])
    with pytest.raises(ShapeError, match="An allreduce by or takes bools"):
        dist.resolve(reduced("or", "i32"), [1, 2])


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_results_have_the_dtypes_that_are_declared(dtype):
    fn = dist.parse(f"""def f(w: Tensor[{dtype}, (4, 4), 0], v: Tensor[f32, (4,), 0], x: Tensor[{dtype}, (4, 4), 0]):
        y = MatMul(x, w)
        dy = LossGrad(y, x, 16)
        dx, dw = MatMulGrad(x, w, dy)
        g = Softmax(y)
        a, b = SGDOptimizer(w, v, dw, v)
        return y, dy, dx, dw, g, a, b""")
    flat = dist.resolve(fn)
    inputs = [np.ones(v.type.shape, v.type.dtype) for v in flat.inputs]
    for value, found in zip(flat.outputs, dist.execute(fn, inputs), strict=True):
        assert (found.dtype, found.shape) == (value.type.dtype, value.type.shape), value


@pytest.mark.parametrize("op", ["Gelu(x)", "Softmax(x)", "LayerNorm(x)", "LossGrad(x, x, 8)", "SGDOptimizer(x, x)"])
def test_results_are_not_cut_to_integers(op):
    with pytest.raises(ShapeError, match="takes floats"):
        dist.resolve(dist.parse(f"def f(x: Tensor[i32, (8,), 0]): y = {op} return y"))


def test_the_text_of_any_program_reads_back():
    table = np.arange(100, dtype="f4")
    for function, x, name in (
        (lambda x: x + table, np.ones(100, "f4"), "inf"),
        (lambda x: x * (1 + 2j), np.ones(3, "c8"), "two words"),
        (lambda x: mnp.where(x > 0, x, -mnp.inf), np.ones(3, "f4"), "return"),
    ):
        fn = dist.from_program(mw.make_program(function)(x), [name])
        again = dist.parse(str(fn), strict=True)
        assert again == fn
        np.testing.assert_array_equal(again(x), fn(x))


# "SGDOptimizer": steps of several weights


STEP = """def step(a: Tensor[(4, 8), 0], b: Tensor[(8,), 0], w: Tensor[(8, 4), 0],
        x: Tensor[(8, 4), 0], z: Tensor[(8, 4), 0],
        ma: Tensor[(4, 8), 0], mb: Tensor[(8,), 0], mw: Tensor[(8, 4), 0],
        va: Tensor[(4, 8), 0], vb: Tensor[(8,), 0], vw: Tensor[(8, 4), 0]):
    h = Gemm(x, a, b)
    r = Relu(h)
    y = MatMul(r, w)
    dy = LossGrad(y, z, 32)
    dr, dw = MatMulGrad(r, w, dy)
    dh = ReluGrad(h, dr)
    dx, da = MatMulGrad(x, a, dh)
    db = reduce_sum(dh, axes=(0,))
    na, nb, nw, oa, ob, ow, pa, pb, pw = AdamOptimizer(a, b, w, da, db, dw, ma, mb, mw, va, vb, vw, 1, lr=0.1)
    return na, nb, nw"""


def adam_in_jax(a, b, w, x, z, *state):
    def loss(params):
        a, b, w = params
        return jnp.sum((jax.nn.relu(x @ a + b) @ w - z) ** 2) / 32

    gradients = jax.grad(loss)((a, b, w))
    new = []
    for value, g, m, v in zip((a, b, w), gradients, state[:3], state[3:], strict=True):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        new.append(value - 0.1 * (m / 0.1) / (jnp.sqrt(v / 0.001) + 1e-8))
    return new


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_then_tensor_parallel_with_adam_and_biases(stage):
    inputs = arrays((4, 8), (8,), (8, 4), (8, 4), (8, 4), (4, 8), (8,), (8, 4))
    inputs += [np.abs(x) + 1 for x in arrays((4, 8), (8,), (8, 4))]
    fn = dist.zero(dist.parse(STEP).with_(device_map=DeviceMap(MAP)), {"x": 0, "z": 0}, stage)
    fn = dist.horizontal_parallel(fn, {"x": 0, "z": 0}, ["d"])
    for found, expected in zip(fn(*inputs), adam_in_jax(*inputs), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_ops_of_transformers_are_written_by_their_names():
    fn = dist.parse(
        """def f(x: Tensor[(8, 4), 0], w: Tensor[(4, 8), 0], b: Tensor[(8,), 0],
                v: Tensor[(8, 4), 0], s: Tensor[(4,), 0]):
        h = Gemm(x, w, b)
        g = Gelu(h)
        y = Gemm(g, v)
        n = LayerNorm(y, s, s)
        p = Softmax(n)
        q = Concat(p, x, axis=1)
        return q""",
        strict=True,
    )

    def reference(x, w, b, v, s):
        y = jax.nn.gelu(x @ w + b, approximate=False) @ v
        n = (y - y.mean(-1, keepdims=True)) / jnp.sqrt(y.var(-1, keepdims=True) + 1e-5) * s + s
        return jnp.concatenate([jax.nn.softmax(n), x], 1)

    inputs = arrays((8, 4), (4, 8), (8,), (8, 4), (4,))
    expected = reference(*inputs)
    data = dist.data_parallel(fn, {"x": 0})
    for spread, devices in (
        (fn, None),
        (data, [1, 2]),
        (dist.horizontal_parallel(data, {"x": 0}, ["d"]), MAP),
        (dist.zero(fn, {"x": 0}, 3), [1, 2]),
    ):
        np.testing.assert_allclose(spread(*inputs, device_map=devices), expected, rtol=1e-4, atol=1e-5)
    split = dist.horizontal_parallel(fn, {"x": 0}, parts=2)
    assert [eqn.op for eqn in split.eqns].count("allreduce") == 1


# Programs are functions


def test_a_program_is_called_differentiated_and_put_into_another():
    @dist.function
    def layer(x: dist.Tensor(("B", "F"), 0), w: dist.Tensor(("F", "H"), 0), b: dist.Tensor(("H",), 0)):
        return 1.0 - -(x @ w + b) / 2.0

    @dist.function
    def twice(x: dist.Tensor(("B", "F"), 0), w: dist.Tensor(("F", "F"), 0), b: dist.Tensor(("F",), 0)):
        return layer(layer(x, w, b), w, b)

    def reference(x, w, b):
        for _ in range(2):
            x = 1 + (x @ w + b) / 2
        return x

    inputs = arrays((8, 4), (4, 4), (4,))
    np.testing.assert_allclose(twice(*inputs), reference(*inputs), rtol=1e-5)
    spread = dist.data_parallel(twice.with_(device_map=DeviceMap([1, 2])), {"x": 0})
    for fn in (twice, spread):
        found = mw.grad(lambda *xs, fn=fn: mnp.sum(fn(*xs) ** 2), argnums=(0, 1, 2))(*map(mnp.asarray, inputs))
        expected = jax.grad(lambda *xs: jnp.sum(reference(*xs) ** 2), argnums=(0, 1, 2))(*inputs)
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


def test_a_program_with_a_device_map_as_an_input_is_put_into_another_with_one():
    @dist.function
    def spread(x: dist.Tensor(("B",), 0), m: DeviceMap):
        return dist.gather(dist.scatter(x, dim=0, devices=m.keys()), dim=0, to_device=0)

    @dist.function
    def outer(x: dist.Tensor((8,), 0), m: DeviceMap):
        return spread(-x, m)

    @dist.function
    def fixed(x: dist.Tensor((8,), 0)):
        return spread(-x, {1: [1], 2: [2]})

    (x,) = arrays((8,))
    np.testing.assert_array_equal(outer(x, [1, 2]), -x)
    np.testing.assert_array_equal(fixed(x), -x)
    assert fixed.device_map == DeviceMap({1: [1], 2: [2]})


# "The full explicit Device list will be resolved at simulation time."


@pytest.mark.parametrize(
    ("device_map", "chips"),
    [
        (DeviceMap.grid(2, 4, first=7), 16),  # the first group crosses nodes, the second does not
        (DeviceMap.grid(3, 12), 40),
        ({1: [1, 3], 2: [2, 4, 5, 6]}, 8),
        ({5: [5, 6], 1: [1, 9]}, 16),
        ({1: [1, 3], 2: [5, 6]}, 8),  # 1 leads its group, 2 does not
    ],
)
def test_groups_that_are_not_alike_are_simulated_each(device_map, chips):
    text = CHAIN.replace("4", "4096").replace("8", "1536")
    fn = dist.horizontal_parallel(dist.data_parallel(dist.parse(text), {"x": 0}), {"x": 0}, ["d"])
    machine = hardware.Topology("h100", chips)
    once, each = (dist.simulate(fn, device_map, machine, fold=fold) for fold in (True, False))
    assert once.seconds == pytest.approx(each.seconds)
    assert {d: once.peak_bytes[d] for d in each.peak_bytes} == each.peak_bytes


def test_memory_of_a_device_that_another_stands_for_can_be_asked_for():
    fn = dist.data_parallel(dist.parse(CHAIN), {"x": 0})
    found = dist.simulate(fn, DeviceMap.grid(8), hardware.Topology("h100", 8), steady=True)
    assert list(found.peak_bytes) == [1]
    assert found.peak_bytes[5] == found.peak_bytes[1]
    with pytest.raises(KeyError):
        found.peak_bytes[9]
