"""Programs on XLA's devices against the same programs on NumPy."""

from typing import Any

import jax
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax
from meshwright.errors import MeshwrightError
from tests.partition.models import load

ON_XLA = ("xla", "xla-stacked")


def close(found: Any, expected: Any, tolerance: float = 2e-5) -> None:
    for one, other in zip(mw.tree.leaves(found), mw.tree.leaves(expected), strict=True):
        assert one.type == other.type
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=tolerance, atol=tolerance)


def placed(sizes: tuple[int, ...], *spec: Any, shape: tuple[int, ...] = (8, 12), dtype: Any = "float32") -> Any:
    mesh = mw.make_mesh(sizes, ("i", "j", "k")[: len(sizes)])
    x = np.random.default_rng(0).normal(size=shape).astype(dtype)
    return mw.device_put(mnp.asarray(x), mw.NamedSharding(mesh, P(*spec)))


def manual(x: Any) -> Any:
    mesh = mw.get_mesh() or mw.make_mesh((2, 4), ("i", "j"))
    gather = lambda x: lax.all_gather_invariant(x, "j", axis=1, tiled=True)
    body = lambda x: (lax.psum(x, "i"), gather(x), lax.ppermute(x, "j", [(0, 1)]))
    return mw.shard_map(body, mesh=mesh, in_specs=P("i", "j"), out_specs=(P(None, "j"), P("i"), P("i", "j")))(x)


PROGRAMS: dict[str, Any] = {
    "elementwise": lambda x: mnp.tanh(x) * 2 + 1,
    "product": lambda x: x @ x.T,
    "sums": lambda x: (x.sum(), x.mean(0), x.max(1)),
    "turned": lambda x: lax.with_sharding_constraint(x, P("j", "i")) + 1,
    "loop": lambda x: lax.scan(lambda c, row: (c + row, c.sum()), mnp.zeros(x.shape[1]), x),
    "gradient": lambda x: mw.grad(lambda x: mnp.sum(mw.nn.softmax(x @ x.T) ** 2))(x),
    "sorted": lambda x: mnp.sort(x, axis=0),
    "random": lambda x: x + mw.random.normal(mw.random.key(3), x.shape),
    "written for a device": manual,
}


@pytest.mark.parametrize("engine", ON_XLA)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_on_a_mesh(name: str, engine: str) -> None:
    x = placed((2, 4), "i", "j")
    with mw.set_mesh(mw.make_mesh((2, 4), ("i", "j"))):
        close(mw.jit(PROGRAMS[name], engine=engine)(x), mw.jit(PROGRAMS[name])(x))


@pytest.mark.parametrize("engine", ON_XLA)
@pytest.mark.parametrize("shape", [(7, 5), (3, 1), (8, 9)])
def test_dims_that_do_not_divide(shape: tuple[int, ...], engine: str) -> None:
    x = placed((2, 4), "i", "j", shape=shape)
    function = lambda x: (x * 2, x.sum(0), x @ x.T)
    close(mw.jit(function, engine=engine)(x), mw.jit(function)(x))


@pytest.mark.parametrize("engine", ON_XLA)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int8", "bool", "bfloat16", "complex64"])
def test_dtypes(dtype: str, engine: str) -> None:
    x = mnp.asarray(np.arange(24).reshape(4, 6) % 3).astype(dtype)
    x = mw.device_put(x, mw.NamedSharding(mw.make_mesh((2,), ("i",)), P("i")))
    function = lambda x: (x, x.sum(0), x == x[0])
    close(mw.jit(function, engine=engine)(x), mw.jit(function)(x), 1e-2)


@pytest.mark.parametrize("engine", ON_XLA)
def test_numbers_of_64_bits(engine: str, x64: Any) -> None:
    x = mnp.asarray(np.arange(6) * (2**40 + 1))
    y = mnp.asarray(np.linspace(0, 1, 6))
    assert x.dtype == "int64" and y.dtype == "float64"
    close(mw.jit(lambda x, y: (x * 3, y / 3), engine=engine)(x, y), (x * 3, y / 3), 1e-15)


def test_arrays_stay_on_the_devices_between_calls() -> None:
    mesh = mw.make_mesh((2, 4), ("i", "j"))
    step = mw.jit(lambda x: x * 2, engine="xla", out_shardings=mw.NamedSharding(mesh, P("i", "j")))
    first = step(placed((2, 4), "i", "j"))
    held = first._data
    assert isinstance(held, jax.Array) and len(held.sharding.device_set) == 8
    assert held.sharding.shard_shape(held.shape) == (4, 3)
    with jax.transfer_guard("disallow"):
        second = step(first)
    assert isinstance(second._data, jax.Array)
    np.testing.assert_allclose(np.asarray(second), 2 * np.asarray(first))


def test_an_array_that_was_read_is_still_on_the_devices() -> None:
    x = mw.jit(lambda x: x * 2, engine="xla")(placed((2, 4), "i", "j"))
    held = x._data
    assert np.asarray(x).shape == (8, 12) and x._data is held


def test_an_argument_goes_to_the_devices_once() -> None:
    x = placed((2, 4), "i", "j")
    step = mw.jit(lambda x: x * 2, engine="xla")
    step(x)
    held = x._data
    assert isinstance(held, jax.Array)
    with jax.transfer_guard("disallow"):
        step(x)
    assert x._data is held


@pytest.fixture
def on_xla() -> Any:
    mw.set_engine("xla")
    yield
    mw.set_engine("numpy")


@pytest.mark.parametrize("shape", [(8, 12), (7, 5), (3, 1), (0, 5)])
def test_what_is_put_onto_a_mesh_is_on_its_devices(shape: tuple[int, ...], on_xla: None) -> None:
    mesh = mw.Mesh(np.array([[5, 3], [1, 6]]), ("i", "j"))
    contents = np.random.default_rng(0).normal(size=shape).astype("float32")
    x = mw.device_put(contents, mw.NamedSharding(mesh, P("i", "j")))
    padded = tuple(-(-n // 2) * 2 for n in shape)
    assert x._data.shape == padded and x.shape == shape
    np.testing.assert_array_equal(np.asarray(x), contents)
    by_device = {jax.devices().index(shard.device): np.asarray(shard.data) for shard in x._data.addressable_shards}
    assert set(by_device) == {5, 3, 1, 6}
    for shard in x.addressable_shards:  # JAX's device of the same number has the block
        own = by_device[shard.device.id][tuple(slice(n) for n in shard.data.shape)]
        np.testing.assert_array_equal(own, np.asarray(shard.data))
    turned = mw.device_put(x, mw.NamedSharding(mesh, P(("j", "i"))))
    assert isinstance(turned._data, jax.Array)
    np.testing.assert_array_equal(np.asarray(turned), contents)
    alone = mw.device_put(turned, mw.sharding.Device(4))
    assert alone._data.devices() == {jax.devices()[4]}
    np.testing.assert_array_equal(np.asarray(alone), contents)
    doubled = mw.jit(lambda x: x * 2)(alone)
    assert doubled._data.devices() == {jax.devices()[4]}
    np.testing.assert_array_equal(np.asarray(doubled), 2 * contents)


def test_what_is_put_onto_more_devices_than_there_are_stays_here(on_xla: None) -> None:
    x = mw.device_put(np.ones(64, "float32"), mw.NamedSharding(mw.make_mesh((64,), ("i",)), P("i")))
    assert isinstance(x._data, np.ndarray)
    assert float(mw.jit(lambda x: x.sum(), engine="numpy")(x)) == 64


def test_dims_that_do_not_divide_are_in_parts_between_calls() -> None:
    mesh = mw.make_mesh((2, 4), ("i", "j"))
    first = mw.jit(lambda x: mnp.exp(x), engine="xla")  # whose padding is 1
    second = mw.jit(lambda x: (x.sum(0), x.max(1), x @ x.T, mnp.cumsum(x, 0), x[::-1]), engine="xla")
    whole = placed((2, 4), "i", "j", shape=(7, 5))
    held = first(whole)
    assert held._data.shape == (8, 8)
    assert held._data.sharding.shard_shape((8, 8)) == (4, 2)
    with jax.transfer_guard("disallow"):
        found = second(held)
    close(found, mw.jit(lambda x: second.fun(mnp.exp(x)))(whole), 1e-4)
    # into a program for which its parts are others, on another engine, and read one by one
    again = mw.jit(lambda x: x * 1, engine="xla")
    by_rows, other = (mw.NamedSharding(mesh, spec) for spec in (P(("i", "j")), P("j")))
    moved = [lambda x, to=to: again(mw.device_put(x, to)) for to in (by_rows, other)]
    for step in (*moved, mw.jit(lambda x: x * 1, engine="xla-stacked"), mw.jit(lambda x: x * 1)):
        np.testing.assert_allclose(np.asarray(step(held)), np.exp(np.asarray(whole)), rtol=1e-6)
    for shard in held.addressable_shards:
        np.testing.assert_allclose(np.asarray(shard.data), np.exp(np.asarray(whole))[shard.index], rtol=1e-6)


def test_parts_of_axes_that_do_not_nest() -> None:
    mesh = mw.make_mesh((6,), ("k",))
    x = mw.device_put(mnp.arange(42.0).reshape(6, 7), mw.NamedSharding(mesh, P("k:(1)2", "k:(2)3")))
    y = mw.device_put(mnp.arange(42.0).reshape(6, 7), mw.NamedSharding(mesh, P("k:(1)3", "k:(3)2")))
    function = lambda x, y: (x + y, x @ y.T, y)
    close(mw.jit(function, engine="xla")(x, y), mw.jit(function)(x, y))


def test_views_of_the_same_devices_that_have_no_common_parts() -> None:
    six, turned = mw.make_mesh((2, 3), ("i", "j")), mw.make_mesh((3, 2), ("a", "b"))
    x = mw.device_put(mnp.arange(42.0).reshape(6, 7), mw.NamedSharding(six, P("i", "j")))
    y = mw.device_put(mnp.arange(42.0).reshape(6, 7), mw.NamedSharding(turned, P("a", "b")))
    step = mw.jit(lambda x, y: (x + y, y * 2), engine="xla", out_shardings=(None, y.sharding))
    found = step(x, y)
    assert str(found[1].sharding) == str(y.sharding)
    close(found, mw.jit(lambda x, y: (x + y, y * 2), out_shardings=(None, y.sharding))(x, y))
    close(step(*found), mw.jit(lambda x, y: (x + y, y * 2), out_shardings=(None, y.sharding))(*found))


@pytest.mark.parametrize("shape", [(64, 128), (9, 5)])
def test_saved_from_devices_and_loaded_to_them(shape: tuple[int, ...], tmp_path: Any, on_xla: None) -> None:
    mesh, other = mw.make_mesh((2, 4), ("i", "j")), mw.make_mesh((3,), ("k",))
    x = mw.jit(lambda x: x * 2)(placed((2, 4), "i", "j", shape=shape))
    mw.save(tmp_path / "saved", {"x": x, "y": mw.device_put(x, mw.NamedSharding(other, P(None, "k")))})
    for place in (mw.NamedSharding(mesh, P("j", "i")), mw.NamedSharding(other, P("k"))):
        loaded = mw.load(tmp_path / "saved", like={"x": place, "y": place})
        for one in loaded.values():
            assert isinstance(one._data, jax.Array) and one.sharding == place
            assert len(one._data.devices()) == place.mesh.size
            np.testing.assert_array_equal(np.asarray(one), np.asarray(x))


def test_an_array_of_xla_goes_anywhere() -> None:
    x = mw.jit(lambda x: x * 2, engine="xla")(placed((2, 4), "i", "j"))
    close(mw.jit(lambda x: x + 1)(x), x + 1)
    close(mw.jit(lambda x: x + 1, engine="xla-stacked")(x), x + 1)
    close(mw.device_put(x, mw.NamedSharding(mw.make_mesh((8,), ("k",)), P("k"))), x * 1)
    assert float(x.sum()) == pytest.approx(float(np.asarray(x).sum()))


def test_a_donated_array_is_gone() -> None:
    x = mw.jit(lambda x: x * 2, engine="xla")(placed((2, 4), "i", "j"))
    expected = np.asarray(x) + 1
    x = mw.jit(lambda x: x * 1, engine="xla")(x)
    step = mw.jit(lambda x: x + 1, donate_argnums=0, engine="xla")
    np.testing.assert_allclose(np.asarray(step(x)), expected)
    with pytest.raises(MeshwrightError, match="was donated"):
        np.asarray(x)


def test_what_another_array_holds_is_not_written_over() -> None:
    x = mw.jit(lambda x: x * 2, engine="xla")(placed((2, 4), "i", "j"))
    expected = np.asarray(mw.jit(lambda x: x + 0)(x))
    other = mw.device_put(x, x.sharding)
    mw.jit(lambda x: x + 1, donate_argnums=0, engine="xla")(x)
    np.testing.assert_allclose(np.asarray(other), expected)
    both = mw.jit(lambda x, y: x + y, donate_argnums=0, engine="xla")(other, other)
    np.testing.assert_allclose(np.asarray(both), 2 * expected)


@pytest.mark.parametrize("engine", ON_XLA)
def test_a_function_on_a_mesh_that_returns_nothing(engine: str) -> None:
    jitted = mw.jit(lambda x: {"nothing": None}, engine=engine)
    for _ in range(3):
        assert jitted(placed((2, 4), "i", "j")) == {"nothing": None}


@pytest.mark.parametrize("engine", ON_XLA)
@pytest.mark.parametrize("name", ["mlp", pytest.param("transformer", marks=pytest.mark.slow),
                                  pytest.param("moe", marks=pytest.mark.slow),
                                  pytest.param("convnet", marks=pytest.mark.slow),
                                  pytest.param("gpt", marks=pytest.mark.slow)])  # fmt: skip
def test_twenty_steps_of_an_example(name: str, engine: str) -> None:
    module = load(name)
    config = module.Config()
    mesh = mw.make_mesh((4,), ("data",))
    whole, rows = mw.NamedSharding(mesh, P()), mw.NamedSharding(mesh, P("data"))
    params = mw.device_put(module.init(mw.random.key(0), config), whole)
    batch = mw.device_put(module.make_batch(mw.random.key(1), config), rows)
    losses = {}
    for one in ("numpy", engine):
        step = mw.jit(lambda p, b: module.train_step(p, b, config), engine=one, out_shardings=(whole, whole))
        state, losses[one] = params, []
        for _ in range(20):
            value, state = step(state, batch)
            losses[one].append(float(value))
    np.testing.assert_allclose(losses[engine], losses["numpy"], rtol=1e-3)


def test_the_collectives_are_those_explained() -> None:
    mesh = mw.make_mesh((4,), ("data",))
    whole, rows = mw.NamedSharding(mesh, P()), mw.NamedSharding(mesh, P("data"))
    step = mw.jit(
        lambda w, x: mw.grad(lambda w: mnp.mean((mnp.tanh(x @ w[0]) @ w[1]) ** 2))(w),
        in_shardings=(whole, rows), out_shardings=whole, engine="xla",
    )  # fmt: skip
    shape = lambda *dims: mw.ShapeDtypeStruct(dims, "float32")
    compiled = step.lower([shape(8, 16), shape(16, 8)], shape(512, 8)).compile()
    assert [one.kind for one in compiled.collectives] == ["all_reduce"]
    types = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in compiled._types]
    text = jax.jit(mw.interop.jax.to_jax(compiled)).lower([types[0], types[1]], types[2]).compile().as_text()
    (line,) = [line for line in text.splitlines() if " all-reduce(" in line]
    assert "f32[8,16]" in line and "f32[16,8]" in line


def test_the_current_engine() -> None:
    try:
        mw.set_engine("xla")
        assert isinstance(mw.jit(lambda x: x * 2)(mnp.ones(3))._data, jax.Array)
        assert mw.jit(lambda x: x * 2).lower(mnp.ones(3)).compile().stages[-1].text.startswith("module @main")
        found = mw.jit(lambda x: x * 2).lower(mnp.ones(3)).compile(engine="numpy")(mnp.ones(3))
        assert isinstance(found._data, np.ndarray)
    finally:
        mw.set_engine("numpy")


def test_no_such_engine() -> None:
    for wrong in (
        lambda: mw.set_engine("cuda"),
        lambda: mw.jit(lambda x: x, engine="cuda"),
        lambda: mw.jit(lambda x: x).lower(mnp.ones(3)).compile(engine="cuda"),
    ):
        with pytest.raises(MeshwrightError) as error:
            wrong()
        assert error.value.what == "There is no engine 'cuda'."
        assert error.value.why == "there are 'numpy', 'xla', 'xla-stacked'"
        assert error.value.fix == 'engine="xla"'


def test_more_devices_than_there_are() -> None:
    x = mw.ShapeDtypeStruct((512,), "float32", sharding=mw.NamedSharding(mw.make_mesh((512,), ("i",)), P("i")))
    with pytest.raises(MeshwrightError) as error:
        mw.jit(lambda x: x * 2, engine="xla").lower(x).compile()
    assert error.value.what == "The function was compiled for 512 devices, and JAX has 8."
