"""Calls on arrays take a shorter way, and mean the same; results that repeat themselves are written when read."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.api.callback import pure_callback
from meshwright.engine.chunks import LARGE_BYTES, Repeated


@pytest.mark.parametrize("engine", ["numpy", "xla"])
def test_every_call_gives_what_the_function_gives(engine: str) -> None:
    f = mw.jit(lambda x, y: {"sum": x + y, "product": (x * y, x)}, engine=engine)
    g = mw.jit(lambda x, y: x - 2 * y, engine=engine)
    calls: list[tuple[Any, Any]] = [
        (mnp.arange(3.0), mnp.ones(3)),
        (mnp.arange(3.0), mnp.ones(3)),
        (mnp.arange(4.0), mnp.ones(4)),
        (mnp.arange(3.0), 2.0),
        (np.arange(3.0, dtype=np.float32), mnp.ones(3)),
        (mnp.arange(3), mnp.ones(3, int)),
        (mnp.arange(3.0), mnp.ones(3)),
    ]
    for x, y in [*calls, *calls]:
        found, other = f(x, y), g(x, y)
        x, y = np.asarray(x), np.asarray(y)
        np.testing.assert_array_equal(found["sum"], x + y)
        np.testing.assert_array_equal(found["product"][0], x * y)
        np.testing.assert_array_equal(other, x - 2 * y)
    np.testing.assert_array_equal(g(g(mnp.ones(3), mnp.ones(3)), g(y=mnp.ones(3), x=mnp.zeros(3))), np.full(3, 3.0))


def test_a_call_with_another_number_of_arguments() -> None:
    f = mw.jit(lambda *xs: sum(xs[1:], xs[0]))
    for count in (2, 3, 1, 2, 20):
        assert float(f(*[mnp.ones(())] * count)) == count
    assert float(mw.jit(lambda: mnp.ones(()))()) == 1


def test_what_a_call_depends_on_is_asked_every_time() -> None:
    calls = []

    def f(x: Any) -> Any:
        calls.append(x)
        return x + 1

    jitted = mw.jit(f)
    x = mnp.ones(3)
    jitted(x), jitted(x)
    assert len(calls) == 1
    np.testing.assert_array_equal(mw.jit(lambda x: jitted(x) * 2)(x), np.full(3, 4.0))  # in a trace
    np.testing.assert_array_equal(mw.grad(lambda x: jitted(x * x).sum())(x), np.full(3, 2.0))
    before = len(calls)
    try:
        mw.set_engine("xla")
        assert not isinstance(jitted(x)._data, np.ndarray)
        assert len(calls) >= before
    finally:
        mw.set_engine("numpy")
    assert isinstance(jitted(x)._data, np.ndarray)
    mesh = mw.make_mesh((3,), ("i",))
    put = mw.device_put(x, mw.NamedSharding(mesh, mw.P("i")))
    assert jitted(put).sharding == put.sharding
    assert jitted(x).sharding != put.sharding


def test_a_donated_array_is_an_error_in_a_direct_call_too() -> None:
    plain, takes = mw.jit(lambda x: x + 1), mw.jit(lambda x: x + 1, donate_argnums=0)
    x = mnp.ones(3)
    plain(x), plain(x)
    takes(x)
    with pytest.raises(mw.errors.MeshwrightError, match="was donated"):
        plain(x)


def test_a_compiled_function_is_called_directly_and_checks_its_arguments() -> None:
    compiled = mw.jit(lambda x, y: x + y).lower(mnp.ones(3), mnp.ones(3)).compile()
    for _ in range(3):
        np.testing.assert_array_equal(compiled(mnp.ones(3), mnp.arange(3.0)), np.arange(3.0) + 1)
        with pytest.raises(mw.errors.ShapeError, match="cannot take"):
            compiled(mnp.ones(4), mnp.ones(4))
        with pytest.raises(mw.errors.TreeError, match="containers"):
            compiled(mnp.ones(3))


def gathered() -> tuple[Any, Any]:
    mesh = mw.make_mesh((4,), ("i",))
    gather = mw.shard_map(
        lambda x: mw.lax.all_gather(x, "i", tiled=True), mesh=mesh, in_specs=mw.P("i"), out_specs=mw.P("i")
    )
    return mw.jit(gather), np.random.default_rng(0).normal(size=(LARGE_BYTES // 8,)).astype(np.float32)


def test_a_gathered_result_is_there_once_until_it_is_read() -> None:
    gather, x = gathered()
    found = gather(mnp.asarray(x))
    assert isinstance(found._data, Repeated)
    assert found.shape == (4 * len(x),) and found.dtype == np.float32
    np.testing.assert_array_equal(np.asarray(found), np.tile(x, 4))
    assert isinstance(found._data, np.ndarray)


@pytest.mark.parametrize("engine", ["numpy", "xla"])
def test_a_gathered_result_is_an_argument_like_others(engine: str) -> None:
    gather, x = gathered()
    use = mw.jit(lambda y: y * 2, engine=engine)
    for _ in range(3):
        np.testing.assert_array_equal(use(gather(mnp.asarray(x))), 2 * np.tile(x, 4))
    compiled = use.lower(gather(mnp.asarray(x))).compile()
    np.testing.assert_array_equal(compiled(gather(mnp.asarray(x))), 2 * np.tile(x, 4))
    found = gather(mnp.asarray(x))
    np.testing.assert_array_equal(found[3:7] + found[3], x[3:7] + x[3])
    assert [shard.data.shape for shard in found.addressable_shards] == [(len(x),)] * 4


def test_an_argument_that_is_donated_afterwards_does_not_change_what_was_gathered_of_it() -> None:
    gather, x = gathered()
    takes = mw.jit(lambda y: y + 1, donate_argnums=0)
    given = mnp.asarray(x.copy())
    found = gather(given)
    takes(given)
    np.testing.assert_array_equal(np.asarray(found), np.tile(x, 4))
    again = gather(mnp.asarray(x))
    np.testing.assert_array_equal(takes(again), np.tile(x, 4) + 1)


class Pair(NamedTuple):
    first: Any
    second: Any


def in_containers(x: Any) -> Any:
    return {"b": [x, (x + 1, None)], "a": Pair(x * 2, {}), 3: ()}


@pytest.mark.parametrize("engine", ["numpy", "xla"])
def test_calls_on_arrays_in_containers(engine: str) -> None:
    calls = []

    def f(tree: Any, y: Any) -> Any:
        calls.append(tree)
        return mw.tree.map(lambda x: x * y, tree), Pair(y, None)

    jitted, y = mw.jit(f, engine=engine), mnp.full((3,), 2.0)
    for n in range(4):
        given = in_containers(mnp.arange(3.0) + n)
        found, pair = jitted(given, y)
        assert mw.tree.structure(found) == mw.tree.structure(given) and list(found) == [3, "a", "b"]
        assert type(found["a"]) is type(pair) is Pair and pair.second is None
        for one, other in zip(mw.tree.leaves(found), mw.tree.leaves(given), strict=True):
            np.testing.assert_array_equal(one, np.asarray(other) * 2)
    assert len(calls) == 1
    others: list[Any] = [
        {**in_containers(mnp.ones(3)), "c": mnp.ones(3)},
        {**in_containers(mnp.ones(3)), "b": [mnp.ones(3), [mnp.ones(3), None]]},
        {**in_containers(mnp.ones(3)), "b": [mnp.ones(3), (mnp.ones(3), mnp.ones(3))]},
        {**in_containers(mnp.ones(3)), "a": (mnp.ones(3), {})},
        [mnp.ones(3)],
        mnp.ones(3),
    ]
    for other in others:
        assert mw.tree.structure(jitted(other, y)[0]) == mw.tree.structure(other)
    assert len(calls) == 1 + len(others)


@pytest.mark.parametrize("engine", ["numpy", "xla", "xla-stacked"])
def test_calls_on_arrays_on_a_mesh(engine: str) -> None:
    mesh = mw.make_mesh((4,), ("i",))
    rows, whole = (mw.NamedSharding(mesh, mw.P(spec)) for spec in ("i", None))
    f = mw.jit(lambda tree: mw.tree.map(lambda x: x + 1, tree), engine=engine)
    for sharding in (rows, rows, rows, whole, whole, rows, mw.NamedSharding(mesh, mw.P("i"))):
        x = {"x": mw.device_put(mnp.arange(8.0), sharding)}
        for _ in range(3):
            x = f(x)
            assert x["x"].sharding == sharding
        np.testing.assert_array_equal(x["x"], np.arange(8.0) + 3)
    summed = mw.jit(lambda x: x.sum(), engine=engine)
    for _ in range(3):
        summed(mw.device_put(mnp.arange(8.0), rows))
    with mw.no_implicit_comms(), pytest.raises(mw.errors.CommunicationError, match="that nobody wrote"):
        summed(mw.device_put(mnp.arange(8.0), rows))


@pytest.mark.parametrize("engine", ["numpy", "xla"])
def test_donated_arrays_in_calls_from_the_second_on(engine: str) -> None:
    f = mw.jit(lambda xs, y: ([x + y for x in xs], y), engine=engine, donate_argnums=0)
    y = mw.jit(lambda x: x + 0, engine=engine)(mnp.ones(3))
    xs = [y * 1, y * 2]
    for n in range(5):
        given, (xs, _) = xs, f(xs, y)
        np.testing.assert_array_equal(xs[1], np.full(3, 3.0 + n))
        with pytest.raises(mw.errors.MeshwrightError, match="was donated"):
            np.asarray(given[0])
    shared = xs[0]._data  # what somebody else has, too, stays as it is
    before = np.array(shared)
    found, _ = f([xs[0], xs[0]], y)
    np.testing.assert_array_equal(found[0], before + 1)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(shared, before)
    with pytest.raises(mw.errors.DonatedError) as error:
        f(xs, y)
    assert "test_direct.py" in str(error.value)  # the line that called it


def test_static_arguments_are_compared_in_every_call() -> None:
    f = mw.jit(lambda x, n, m: x * n + m, static_argnums=(1,), static_argnames="m")
    for _ in range(3):
        assert float(f(mnp.ones(()), 2, 1)) == 3
    assert f(mnp.ones((), int), 2.0, 1).dtype == np.float32
    assert f(mnp.ones((), int), 2, 1).dtype == np.int32
    assert [float(f(mnp.ones(()), n, m)) for n, m in ((3, 1), (2, 1), (2, 2), (True, 2))] == [4, 3, 4, 3]


def test_an_error_of_the_program_is_raised_once() -> None:
    calls = []

    def fails(x: Any) -> Any:
        calls.append(x)
        if len(calls) > 2:
            raise ValueError("too many")
        return x

    f = mw.jit(lambda x: pure_callback(fails, mw.ShapeDtypeStruct((), np.float32), x))
    f(mnp.ones(())), f(mnp.ones(()))
    with pytest.raises(Exception, match="too many"):
        f(mnp.ones(()))
    assert len(calls) == 3


def times(x: Any) -> Any:
    for _ in range(6):
        x = x @ x * 0.01
    return x


def test_arrays_of_numpy_among_those_on_a_device() -> None:
    pytest.importorskip("jax")
    from jax import monitoring

    compiled = []
    monitoring.register_event_duration_secs_listener(lambda event, *_, **__: compiled.append(event))
    step = mw.jit(lambda w, x, n: {"w": w["w"] + x.sum() * n}, engine="xla", donate_argnums=0)
    w, expected = {"w": mnp.zeros(4)}, np.zeros(4, np.float32)
    number = mw.jit(lambda x: x + 1, engine="xla")(mnp.zeros(()))
    kinds: list[Any] = [
        lambda x: x,
        mnp.asarray,
        lambda x: mnp.asarray(x) + 0,
        mw.jit(lambda x: x + 0, engine="xla"),
    ]
    for n in range(24):
        x = np.full(3, n, np.float32)
        w = step(w, kinds[n % 4 if n < 12 else n // 3 - 4](x), number)
        expected += x.sum()
        np.testing.assert_array_equal(w["w"], expected)
        if n == 3:
            compiled.clear()  # the program, and that of `kinds[3]`
    assert not [event for event in compiled if "compile" in event]


def test_what_is_passed_may_be_written_over_at_once() -> None:
    pytest.importorskip("jax")
    rows = np.random.default_rng(0).normal(size=(300, 300)).astype(np.float32)
    on_device, here = mw.jit(times, engine="xla"), mw.jit(lambda x: x * 0, donate_argnums=0)
    expected = np.asarray(on_device(mnp.asarray(rows)))
    for _ in range(8):
        x = rows.copy()
        found = on_device(x)
        x[:] = 0
        np.testing.assert_array_equal(found, expected)
        y = mnp.asarray(rows.copy())
        found = on_device(y)
        here(y)
        np.testing.assert_array_equal(found, expected)


def test_an_array_of_numpy_goes_where_those_go_that_are_put_nowhere() -> None:
    pytest.importorskip("jax")
    f, devices = mw.jit(lambda x: x + 1, engine="xla"), mw.devices("cpu", count=3)
    x = np.ones(3, np.float32)
    for place in (None, 2, 1, None, 2, None, 1):
        if place is None:
            found = [f(x) for _ in range(3)]
        else:
            with mw.default_device(devices[place]):
                found = [f(x) for _ in range(3)]
        for one in found:
            assert one.device.id == (place or 0)
            np.testing.assert_array_equal(one, x + 1)
