"""Arrays on many devices: what each device holds, and what stays as it was."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.sharding import Device, SingleDeviceSharding, TensorSharding
from tests.arrays.random_places import places, shapes
from tests.sharding.brute_force import blocks

MESH = mw.make_mesh((2, 4), ("x", "y"))


def on(*spec, mesh=MESH, **keywords):
    return mw.NamedSharding(mesh, mw.P(*spec, **keywords))


@st.composite
def arrays_and_places(draw, count=1):
    shape = draw(shapes())
    return shape, [draw(places(len(shape))) for _ in range(count)]


def by_definition(whole, sharding):
    """For each device, the block it holds: each dim cut into equal blocks, rounded up, the last ones cut off."""
    if sharding.mesh.is_maximal:
        return {sharding.mesh.order[0]: whole}
    found = {}
    for device, (numbers, _) in blocks(sharding).items():
        part = whole
        for dim, number in enumerate(numbers):
            size = -(-whole.shape[dim] // sharding.dims[dim].shards)
            part = np.take(part, range(whole.shape[dim])[number * size : (number + 1) * size], axis=dim)
        found[device] = part
    return found


@given(arrays_and_places())
@settings(max_examples=1000, deadline=None)
def test_every_device_holds_the_slice_of_the_definition(case):
    shape, (sharding,) = case
    whole = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    x = mw.device_put(whole, sharding)
    expected = by_definition(whole, sharding)
    shards = x.addressable_shards
    assert sorted(shard.device.id for shard in shards) == sorted(expected)
    for shard in shards:
        np.testing.assert_array_equal(np.asarray(shard.data), expected[shard.device.id])
        np.testing.assert_array_equal(whole[shard.index], np.asarray(shard.data))
        assert shard.data.sharding == SingleDeviceSharding(shard.device)
    # The first replicas are a partition of the array.
    firsts = [np.asarray(shard.data).ravel() for shard in shards if shard.replica_id == 0]
    assert sorted(np.concatenate(firsts).tolist()) == list(range(whole.size))
    copies = [np.asarray(shards[n].data).tobytes() for n in range(len(shards))]
    assert [np.asarray(x.addressable_data(n)).tobytes() for n in range(len(shards))] == copies


@given(arrays_and_places(count=4))
@settings(max_examples=50, deadline=None)
def test_putting_an_array_from_sharding_to_sharding_and_back_changes_no_bit(case):
    shape, chain = case
    whole = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x = mw.device_put(whole, chain[0])
    first = x.sharding
    for place in chain[1:]:
        x = mw.device_put(x, place)
        if not place.mesh.is_maximal:
            assert place.is_equivalent_to(x.sharding.to_tensor_sharding(x.ndim))
    x = mw.device_put(x, first)
    assert x.sharding == first
    assert mw.device_get(x).tobytes() == whole.tobytes()


def test_device_put_moves_no_bytes():
    x = mw.device_put(np.ones((64, 64), np.float32), on("x", "y"))
    y = mw.device_put(x, on(None, ("y", "x")))
    assert np.shares_memory(np.asarray(x), np.asarray(y))
    assert all(np.shares_memory(np.asarray(shard.data), np.asarray(x)) for shard in y.addressable_shards)


def test_a_numpy_array_may_change_after_it_was_put():
    mine = np.zeros(8, np.float32)
    x = mw.device_put(mine, on("x"))
    mine[:] = 1
    assert float(x.sum()) == 0


def test_uneven_dims_have_smaller_shards_and_no_visible_padding():
    x = mnp.arange(5, device=on("y"))
    assert [np.asarray(s.data).tolist() for s in x.addressable_shards[:4]] == [[0, 1], [2, 3], [4], []]
    assert x.sharding.shard_shape(x.shape) == (2,)
    assert [s.replica_id for s in x.addressable_shards] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_what_an_array_says_of_its_devices():
    x = mnp.zeros((4, 6), device=on("x", None))
    assert x.sharding == on("x", None)
    assert x.devices() == set(MESH.devices.flat)
    assert x.device == x.sharding
    assert not x.is_fully_replicated
    assert x.is_fully_addressable
    assert x.committed
    assert len(x.global_shards) == 8
    assert repr(x.addressable_shards[5]) == (
        "Shard(device=CpuDevice(id=5), index=(slice(2, 4, None), slice(None, None, None)), replica_id=1, "
        "data=[[0. 0. 0. 0. 0. 0.]\n [0. 0. 0. 0. 0. 0.]])"
    )
    plain = mnp.zeros(3)
    assert plain.sharding == SingleDeviceSharding(Device(0))
    assert plain.device is Device(0)
    assert plain.is_fully_replicated
    assert not plain.committed
    assert [s.index for s in plain.addressable_shards] == [(slice(None),)]


@pytest.mark.parametrize(
    "make",
    [
        lambda **at: mnp.zeros((4, 6), **at),
        lambda **at: mnp.ones((4, 6), "bfloat16", **at),
        lambda **at: mnp.full((4, 6), 7, **at),
        lambda **at: mnp.empty((4, 6), **at),
        lambda **at: mnp.arange(4.5, **at),
        lambda **at: mnp.arange(1, 9, 2, **at),
        lambda **at: mnp.linspace(0, 1, 5, **at),
        lambda **at: mnp.eye(4, 6, **at),
        lambda **at: mnp.array([[1, 2], [3, 4]], **at),
        lambda **at: mnp.asarray(np.ones((4, 6)), **at),
        lambda **at: mnp.zeros_like(mnp.ones((4, 6)), **at),
        lambda **at: mnp.ones_like(mnp.ones((4, 6)), **at),
        lambda **at: mnp.empty_like(mnp.ones((4, 6)), **at),
        lambda **at: mnp.full_like(mnp.ones((4, 6)), 3, **at),
    ],
)
def test_creation_functions_place_their_result(make):
    for keyword in ("device", "out_sharding"):
        x = make(**{keyword: on("x")})
        assert x.sharding == on("x")
        np.testing.assert_array_equal(np.asarray(x), np.asarray(make()))
    assert make(device=Device(3)).sharding == SingleDeviceSharding(Device(3))


def test_like_functions_keep_the_devices():
    x = mnp.ones((4, 6), device=on("x", "y"))
    assert mnp.zeros_like(x).sharding == x.sharding
    assert mnp.zeros_like(x, dtype=int).sharding == x.sharding
    assert mnp.zeros_like(x, shape=(3,)).sharding == mnp.zeros(3).sharding
    struct = mw.ShapeDtypeStruct((4, 6), "float32", sharding=on("y"))
    assert mnp.zeros_like(struct).sharding == on("y")
    assert mw.jit(mnp.zeros_like)(x).shape == (4, 6)


def test_types_show_shardings():
    full = mw.make_mesh((2, 2, 4), ("x", "y", "z"))
    x = mnp.zeros((2048, 8192), "bfloat16", device=mw.NamedSharding(full, mw.P("x", "y")))
    assert str(mw.typeof(x)) == "bfloat16[2048@x,8192@y]"
    assert str(mw.typeof(mw.device_put(x, mw.NamedSharding(full, mw.P(None, ("y", "z:(2)2")))))) == (
        "bfloat16[2048,8192@(y,z:(2)2)]"
    )
    assert str(mw.typeof(mnp.zeros(3))) == "float32[3]"
    assert str(mw.typeof(mw.device_put(x, Device(1)))) == "bfloat16[2048,8192]"
    assert str(mw.typeof(mw.ShapeDtypeStruct((4, 6), "float32", sharding=on("x")))) == "float32[4@x,6]"
    assert str(x.type) == "bfloat16[2048,8192]"


def test_computing_with_placed_arrays_is_computing_with_their_contents():
    x = mnp.arange(24.0, device=on(("x", "y"))).reshape(4, 6)
    y = mw.device_put(x, on("x", "y"))
    compiled = mw.jit(lambda a: (a @ a.T).sum())
    assert float(compiled(y)) == float(compiled(x))
    np.testing.assert_array_equal(np.asarray(y.at[1, 2].set(7.0)), np.asarray(x.at[1, 2].set(7.0)))
    np.testing.assert_array_equal(np.asarray(y + 1), np.asarray(x) + 1)
    assert (y + 1).sharding == y.sharding  # and stays there
    np.testing.assert_array_equal(np.asarray(mw.grad(lambda a: (a * a).sum())(y)), 2 * np.asarray(x))
    assert repr(y) == repr(x)


def test_other_libraries_see_the_contents():
    y = mnp.arange(5, device=on("y"))
    np.testing.assert_array_equal(np.from_dlpack(y), np.arange(5))
    assert np.asarray(y).flags.writeable is False
    for again in (pickle.loads(pickle.dumps(y)), copy.copy(y), copy.deepcopy(y), y.copy()):
        assert again.sharding == y.sharding
        np.testing.assert_array_equal(np.asarray(again), np.arange(5))


def test_a_notebook_shows_shape_dtype_and_sharding():
    html = mnp.zeros((4, 6), device=on("x"))._repr_html_()
    assert html.partition("<figure")[0] == (
        "<table><tr><th>shape</th><td>(4, 6)</td></tr><tr><th>dtype</th><td>float32</td></tr>"
        "<tr><th>sharding</th><td>P(&#x27;x&#x27;,)</td></tr><tr><th>mesh</th><td>x: 2, y: 4</td></tr>"
        "<tr><th>shard</th><td>(2, 6)</td></tr></table>"
    )
    assert "<tr><th>device</th><td>CPU 0</td></tr>" in mnp.zeros(3)._repr_html_()


def test_trees_and_prefixes_of_places():
    tree = {"w": np.ones((4, 6), np.float32), "layers": [np.ones(4), (np.ones(8), 2.0)], "none": None}
    found = mw.device_put(tree, {"w": on("x", "y"), "layers": [None, on()], "none": None})
    assert found["w"].sharding == on("x", "y")
    assert not found["layers"][0].committed
    assert found["layers"][1][0].sharding == found["layers"][1][1].sharding == on()
    assert found["none"] is None
    with mw.set_mesh(MESH):
        assert mw.device_put(tree["w"], mw.P("y")).sharding == on("y")
    text = 'sharding<@mesh, [{"x", ?}p1, {?}]>'
    assert mw.device_put(tree["w"], TensorSharding.parse(text, MESH)).sharding.spec == mw.P("x", None)
    got = mw.device_get(found)
    assert got["layers"][1][1] == np.float32(2.0)
    assert mw.device_get({"a": 1, "b": "text"}) == {"a": 1, "b": "text"}


def test_a_donated_array_leaves_its_other_placements_alone():
    x = mw.device_put(np.ones((64, 64), np.float32), on("x"))
    y = mw.device_put(x, on("y"))
    shard = y.addressable_shards[0].data
    mw.jit(lambda a: a * 3, donate_argnums=0)(x)
    assert float(y.sum()) == 64 * 64
    assert float(shard.sum()) == shard.size


REPLICATED = """
import resource, tracemalloc
import numpy as np
import meshwright as mw
import meshwright.numpy as mnp

source = np.full((4096, 4096), 7, np.float32)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
tracemalloc.start()
mesh = mw.make_mesh((64, 64), ("x", "y"))
x = mw.device_put(mnp.asarray(source), mw.NamedSharding(mesh, mw.P()))
assert x.nbytes == np.asarray(x).nbytes == 64 * 2**20 and np.asarray(x)[-1, -1] == 7
shards = x.addressable_shards
assert len(shards) == 4096 and len({shard.device for shard in shards}) == 4096
assert all(shard.data.shape == (4096, 4096) for shard in shards)
datas = [shard.data for shard in shards]
print(tracemalloc.get_traced_memory()[1], (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_a_replicated_64_mb_array_on_4096_devices_takes_less_than_100_mb():
    printed = subprocess.run([sys.executable, "-c", REPLICATED], capture_output=True, text=True, check=True).stdout
    traced, resident = map(int, printed.split())
    assert traced < 100e6
    assert resident < 100e6


def test_importing_the_package_loads_no_shardings():
    words = ("shard", "partition", "safetensors")
    code = f"import sys, meshwright; print([m for m in sys.modules if any(w in m for w in {words})])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
