"""Seed 001, setup: devices as the document prints them, and the order in which a mesh takes them, which is JAX's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations
from random import Random
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax

jax = pytest.importorskip("jax")
mesh_utils = pytest.importorskip("jax.experimental.mesh_utils")


def test_devices_print_as_in_the_document():
    assert repr(mw.devices("tpu", count=4)) == (
        "[TpuDevice(id=0, process_index=0, coords=(0,0,0), core_on_chip=0), "
        "TpuDevice(id=1, process_index=0, coords=(1,0,0), core_on_chip=0), "
        "TpuDevice(id=2, process_index=0, coords=(0,1,0), core_on_chip=0), "
        "TpuDevice(id=3, process_index=0, coords=(1,1,0), core_on_chip=0)]"
    )


def shapes(count: int) -> set[tuple[int, ...]]:
    """Every shape of a mesh of so many devices, up to four axes, some of size 1."""
    found = {(count,)}
    for first in range(1, count + 1):
        if count % first == 0:
            for second in range(1, count // first + 1):
                if count // first % second == 0:
                    found |= set(permutations((first, second, count // first // second)))
                    found.add((first, count // first))
    return found


def theirs(shape: tuple[int, ...]) -> list[int] | None:
    """The order of JAX's mesh utilities on a TPU v4 slice; None where they find none."""
    devices = [
        SimpleNamespace(
            id=d.id,
            coords=d.coords,
            core_on_chip=0,
            device_kind="TPU v4",
            platform="tpu",
            process_index=d.process_index,
        )
        for d in mw.devices("tpu", count=int(np.prod(shape)))
    ]
    try:
        made = mesh_utils.create_device_mesh(shape, devices)
    except NotImplementedError:
        return None
    return [device.id for device in made.ravel()]


@pytest.mark.parametrize("count", [1, 2, 4, 8, 12, 16, 32, 64])
def test_a_mesh_of_tpus_takes_them_in_the_order_of_jax(count):
    compared = 0
    for shape in sorted(shapes(count)):
        expected = theirs(shape)
        if expected is not None:
            made = mw.make_mesh(shape, tuple("xyzw"[: len(shape)]), kind="tpu")
            assert made.device_ids.ravel().tolist() == expected, shape
            compared += 1
    assert compared >= min(count, 4)


def test_random_shapes_of_many_axes_take_tpus_in_the_order_of_jax():
    random, compared = Random(0), 0
    for _ in range(150):
        sizes = [2, 2, random.choice([1, 2, 3, 4, 6, 8, 16, 64])]
        while random.random() < 0.4:  # an axis over several dims of the torus
            first, second = random.sample(range(len(sizes)), 2) if len(sizes) > 1 else (0, 0)
            if first != second:
                sizes[first] *= sizes[second]
                del sizes[second]
        sizes += [1] * random.randrange(3)
        random.shuffle(sizes)
        expected = theirs(tuple(sizes))
        if expected is not None:
            made = mw.make_mesh(tuple(sizes), tuple("uvwxy"[: len(sizes)]), kind="tpu")
            assert made.device_ids.ravel().tolist() == expected, sizes
            compared += 1
    assert compared > 100


def test_typeof_echoes_as_in_the_document():
    mesh = mw.make_mesh((2, 2), ("x", "y"), axis_types=(mw.AxisType.Explicit,) * 2, kind="tpu")
    A = mnp.zeros((2048, 8192), dtype=mnp.bfloat16, device=mw.NamedSharding(mesh, mw.P("x", "y")))
    assert repr(mw.typeof(A)) == "ShapedArray(bfloat16[2048@x,8192@y])"
    assert str(mw.typeof(A)) == "bfloat16[2048@x,8192@y]"
    for value in (1.0, 2, True, np.ones((2, 3), np.float32), np.zeros((), np.int8)):
        assert repr(mw.typeof(value)) == repr(jax.typeof(value))


# A device for what is put nowhere


@pytest.fixture
def tpus() -> Iterator[list[Any]]:
    yield mw.devices("tpu", count=4)
    mw.config.update("jax_default_device", None)


MAKERS: dict[str, Callable[[], Any]] = {
    "zeros": lambda: mnp.zeros((2, 3)),
    "ones": lambda: mnp.ones(3, mnp.bfloat16),
    "full": lambda: mnp.full((2,), 7),
    "empty": lambda: mnp.empty(3),
    "arange": lambda: mnp.arange(5),
    "linspace": lambda: mnp.linspace(0.0, 1.0, 5),
    "logspace": lambda: mnp.logspace(0.0, 1.0, 5),
    "geomspace": lambda: mnp.geomspace(1.0, 2.0, 5),
    "eye": lambda: mnp.eye(3),
    "identity": lambda: mnp.identity(3),
    "tri": lambda: mnp.tri(3),
    "indices": lambda: mnp.indices((2, 2))[0],
    "meshgrid": lambda: mnp.meshgrid(np.arange(2), np.arange(3))[0],
    "array": lambda: mnp.array([1.0, 2.0]),
    "asarray": lambda: mnp.asarray(np.ones(2)),
    "zeros_like": lambda: mnp.zeros_like(np.ones(2)),
    "iota": lambda: lax.iota("int32", 4),
    "lax.full": lambda: lax.full((2,), 1.0),
    "key": lambda: mw.random.key(0),
    "normal": lambda: mw.random.normal(mw.random.key(0), (4,)),
    "randint": lambda: mw.random.randint(mw.random.key(0), (4,), 0, 9),
    "device_put": lambda: mw.device_put(np.ones(3)),
    "device_put of a tree": lambda: mw.device_put({"a": [1.0, np.ones(3)]})["a"][1],
    "a number": lambda: mnp.sin(1.0),
    "jit": lambda: mw.jit(lambda: 1.0)(),
    "jit of a number": lambda: mw.jit(lambda x: x + 1)(2.0),
    "jit of creation": lambda: mw.jit(lambda: mnp.zeros((2, 2)))(),
    "grad": lambda: mw.grad(lambda x: x * x)(3.0),
    "vmap": lambda: mw.vmap(lambda x: x * 2)(np.ones(3)),
    "one_hot": lambda: mw.nn.one_hot(np.arange(3), 4),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_every_function_that_makes_an_array_makes_it_on_the_default_device(make, tpus):
    assert make().device is mw.devices(count=1)[0]
    mw.config.update("jax_default_device", tpus[2])
    made = make()
    assert made.device is tpus[2] and not made.committed
    with mw.default_device(tpus[1]):
        assert make().device is tpus[1]
        with mw.default_device("tpu v5e"):
            assert repr(make().device).startswith("TpuDevice(id=0")
        assert make().device is tpus[1] and mw.config.jax_default_device is tpus[1]
    assert make().device is tpus[2]
    assert made.device is tpus[2] and mw.device_put(made, tpus[0]).committed


def test_what_is_computed_is_where_it_was_put_or_on_the_default_device(tpus):
    mw.config.update("jax_default_device", tpus[2])
    x = mnp.ones(3)
    placed = mw.device_put(x, tpus[3])
    double = mw.jit(lambda x: x * 2)
    with mw.default_device(tpus[1]):
        assert (x + 1).device is double(x).device is mnp.zeros_like(x).device is tpus[1]
        assert mnp.asarray(x).device is mw.device_put(x).device is tpus[2]  # as it is
        for found in (placed + x, double(placed), double.lower(placed).compile()(placed), placed[:1], mnp.sin(placed)):
            assert found.device is tpus[3] and found.committed
        assert mw.grad(lambda x: (x**2).sum())(placed).device is tpus[3]
        for jitted in (mw.jit(lambda x: x, out_shardings=tpus[3]), mw.jit(lambda x: x, in_shardings=tpus[3])):
            assert jitted(x).device is tpus[3] and jitted(x).committed
    mw.config.default_device = None
    assert str(double(x).device) == "CPU 0" and x.device is tpus[2]


def test_another_thread_has_the_default_device_of_the_process(tpus):
    mw.config.update("jax_default_device", tpus[2])
    found: list[Any] = []
    with mw.default_device(tpus[1]):
        thread = Thread(target=lambda: found.append(mnp.ones(1).device))
        thread.start()
        thread.join()
    assert found == [tpus[2]]


def test_arrays_on_different_devices_are_not_computed_with(tpus):
    x, y = (mw.device_put(np.ones(4, np.float32), device) for device in tpus[:2])
    z = mw.device_put(np.ones(4, np.float32), mw.NamedSharding(mw.make_mesh((4,), ("x",), kind="tpu"), mw.P("x")))
    for call, what, why in (
        (lambda: x + y, "The operands of add are on different devices.", "one is on TPU 0, another on TPU 1"),
        (
            lambda: mw.jit(mnp.add)(x, y),
            "The arguments and results of one program are on different devices.",
            "one is on TPU 0, another on TPU 1",
        ),
        (
            lambda: mw.jit(lambda x: x, out_shardings=tpus[1])(x),
            "The arguments and results of one program are on different devices.",
            "one is on TPU 1, another on TPU 0",
        ),
    ):
        with pytest.raises(mw.MeshwrightError) as caught:
            call()
        assert (caught.value.what, caught.value.why) == (what, why)
        assert caught.value.fix == "mw.device_put(x, y.sharding)"
    assert (mw.device_put(x, y.sharding) + y).device is tpus[1]
    summed = mw.shard_map(lambda x: lax.psum(x, "x"), mesh=z.sharding.mesh, in_specs=mw.P("x"), out_specs=mw.P())
    for call in (lambda: x + z, lambda: mw.jit(mnp.add)(x, z), lambda: summed(x), lambda: mw.jit(summed)(x)):
        with pytest.raises(mw.MeshwrightError) as caught:
            call()
        assert caught.value.why == 'one is on TPU 0, another on <["x"=4], device_ids=[0, 2, 1, 3]>'
        assert caught.value.fix == "mw.device_put(x, mw.NamedSharding(mesh, mw.P()))"
    assert summed(mw.device_put(x, mw.NamedSharding(z.sharding.mesh, mw.P()))).tolist() == [4.0]


@pytest.mark.parametrize("wrong", [3, "", 1.5, [0], object])
def test_a_default_device_is_a_device_or_a_kind(wrong):
    for call in (lambda: mw.config.update("jax_default_device", wrong), lambda: mw.default_device(wrong).__enter__()):
        with pytest.raises(mw.MeshwrightError) as caught:
            call()
        assert caught.value.what == f"The default device cannot be {wrong!r}."
        assert caught.value.why == "it is a device, the name of a kind of them, or None for the first one"
        assert caught.value.fix == 'mw.config.update("jax_default_device", mw.devices("tpu", count=4)[1])'
    assert mw.config.jax_default_device is None
