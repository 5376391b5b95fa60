"""Meshes, the current mesh, partition specs, named shardings and the space of them."""

from __future__ import annotations

import pickle
import threading
from math import comb, factorial

import jax
import numpy as np
import pytest

import meshwright as mw
from meshwright.core.types import TensorType
from meshwright.errors import MeshError, ShardingError
from meshwright.sharding import (
    AxisRef,
    DimensionSharding,
    Mesh,
    TensorSharding,
    count_shardings,
    enumerate_shardings,
    get_mesh,
)
from meshwright.sharding.check import RepeatedAxisError, UnknownAxisError
from tests.versions import UNREDUCED_KIND, older_than

# Meshes


def test_a_mesh_has_the_names_jax_gives_it():
    auto = (jax.sharding.AxisType.Auto,) * 2
    ours, theirs = mw.make_mesh((2, 4), ("x", "y")), jax.sharding.AbstractMesh((2, 4), ("x", "y"), axis_types=auto)
    assert ours.shape == dict(theirs.shape) and ours.axis_names == theirs.axis_names
    assert ours.size == theirs.size and ours.axis_sizes == theirs.axis_sizes and not ours.empty
    assert repr(mw.AbstractMesh((2, 4), ("x", "y"))) == repr(theirs)
    assert ours.abstract_mesh == mw.AbstractMesh((2, 4), ("x", "y")) != ours
    assert repr(ours.axis_types) == repr(theirs.axis_types) == "(Auto, Auto)"


def test_devices_are_made_as_needed_and_called_by_their_kind():
    mesh = mw.make_mesh((64, 64), ("x", "y"), kind="tpu v5e")
    assert mesh.devices.shape == (64, 64) and repr(mesh.devices[1, 0]) == "TpuDevice(id=64)"
    assert mesh.devices[0, 1] is mw.sharding.Device(1, "tpu v5e") and mesh.devices[0, 1].kind == "tpu v5e"
    assert not mesh.devices.flags.writeable and not mesh.device_ids.flags.writeable
    assert pickle.loads(pickle.dumps(mesh.devices[0, 3])) is mesh.devices[0, 3]


def test_four_tpus_are_the_host_of_seed_001():
    assert mw.make_mesh((2, 2), ("x", "y"), kind="tpu").device_ids.tolist() == [[0, 1], [2, 3]]
    assert mw.make_mesh((4,), ("xy",), kind="tpu").device_ids.tolist() == [0, 2, 1, 3]
    assert mw.make_mesh((4,), ("xy",)).device_ids.tolist() == [0, 1, 2, 3]


def test_meshes_from_devices_numbers_and_parts_of_other_meshes():
    mesh = mw.make_mesh((2, 4), ("x", "y"), kind="gpu")
    half = mw.Mesh(mesh.devices[1], "y")
    assert half.kind == "gpu" and half.order == (4, 5, 6, 7) and half.size == 4
    assert mw.Mesh(np.arange(8).reshape(2, 4), ("x", "y"), kind="gpu") == mesh
    assert mw.make_mesh((2, 2), ("a", "b"), devices=mesh.devices[:, ::2].ravel()).order == (0, 2, 4, 6)
    assert str(mw.Mesh([3, 1, 2, 0], "x")) == '<["x"=4], device_ids=[3, 1, 2, 0]>'
    assert mw.Mesh(np.array(5), ()).is_maximal and str(mw.Mesh(np.array(5), ())) == "<[], device_ids=[5]>"
    assert mw.Mesh([], ()).empty and str(mw.Mesh([], ())) == "<[]>" and mw.Mesh([], ()).devices.size == 0


def test_meshes_are_equal_by_what_they_are_not_by_name():
    one, other = Mesh.parse('@a = <["x"=2, "y"=4]>'), Mesh.parse('@b = <["x"=2, "y"=4]>')
    assert one == other and hash(one) == hash(other) and one.name != other.name
    different = [
        Mesh.parse('<["x"=4, "y"=2]>'),
        Mesh.parse('<["y"=2, "x"=4]>'),
        one.with_(kind="tpu"),
        one.with_(axis_types=mw.AxisType.Explicit),
        mw.make_mesh((2, 4), ("x", "y"), devices=[1, 0, 2, 3, 4, 5, 6, 7]),
        one.abstract_mesh,
    ]
    assert all(one != mesh for mesh in different) and len({one, other, *different}) == 7
    for mesh in (one, *different, Mesh.parse("<[]>"), Mesh.parse("<[], device_ids=[3]>")):
        again = pickle.loads(pickle.dumps(mesh))
        assert again == mesh and again.name == mesh.name and str(again) == str(mesh)


def test_axis_types():
    types = (mw.AxisType.Auto, mw.AxisType.Explicit, mw.AxisType.Manual)
    mesh = mw.make_mesh((2, 3, 4), ("a", "e", "m"), axis_types=types)
    assert (mesh.auto_axes, mesh.explicit_axes, mesh.manual_axes) == (("a",), ("e",), ("m",))
    assert repr(mesh) == "Mesh(axis_sizes=(2, 3, 4), axis_names=('a', 'e', 'm'), axis_types=(Auto, Explicit, Manual))"
    assert mw.make_mesh((2, 2), ("x", "y"), mw.AxisType.Manual).manual_axes == ("x", "y")


@pytest.mark.parametrize(
    "text",
    [
        '<["x"=2, "y"=4]>',
        "<[]>",
        "<[], device_ids=[3]>",
        '<["a\\22b"=2, "\\C3\\A9"=3]>',
        '<["x"=2, "y"=2], device_ids=[0, 2, 1, 3]>',
    ],
)
def test_meshes_are_read_and_printed(text):
    assert str(Mesh.parse(text)) == str(Mesh.parse(f"mesh{text}")) == str(Mesh.parse(f"#sdy.mesh{text}")) == text
    assert Mesh.parse(f"sdy.mesh @some.mesh = {text}").declaration() == f"sdy.mesh @some.mesh = {text}"
    assert Mesh.parse(f'sdy.mesh @"a b" = {text}').declaration() == f'sdy.mesh @"a b" = {text}'


# The current mesh


def test_set_mesh_as_a_call_and_as_a_block():
    one, other = mw.make_mesh((2,), ("x",)), mw.make_mesh((4,), ("y",))
    before = mw.set_mesh(one)
    try:
        assert get_mesh() is one
        with mw.set_mesh(other) as inside:
            assert get_mesh() is other is inside
            assert str(TensorSharding.parse('<@mesh, [{"y"}]>')) == '#sdy.sharding<@mesh, [{"y"}]>'
        assert get_mesh() is one
        with pytest.raises(RuntimeError), mw.set_mesh(other):
            raise RuntimeError
        assert get_mesh() is one
        seen = []
        thread = threading.Thread(target=lambda: seen.append(get_mesh()))
        thread.start()
        thread.join()
        assert seen == [None]
    finally:
        before.__exit__(None, None, None)
    assert get_mesh() is None
    with pytest.raises(MeshError, match="set_mesh cannot take"):
        mw.set_mesh("x")


# Partition specs


def test_specs_print_as_in_jax():
    for entries in [(), ("x",), ("x", None), (("x", "y"), None), (None, ("x",)), ((),), (["x", "y"],)]:
        assert repr(mw.P(*entries)) == repr(jax.P(*entries))
    assert repr(mw.P(mw.P.UNCONSTRAINED, "x")) == repr(jax.P(jax.P.UNCONSTRAINED, "x"))
    kind = "" if older_than(UNREDUCED_KIND) else ", unreduced_kind=sum"
    for entries in [("x",), ()]:
        theirs = repr(jax.P(*entries, unreduced={"y"}))
        assert repr(mw.P(*entries, unreduced={"y"})) == theirs.replace(f"{kind})", ")")
    assert repr(mw.P("x", replicated={"z", "y"})) == "P('x', replicated={'y', 'z'})"


def test_specs_behave_as_in_jax():
    spec = mw.P("x", None, ("y", "z"))
    assert (
        len(spec) == 3 and list(spec) == ["x", None, ("y", "z")] and spec[2] == ("y", "z") and spec[:2] == ("x", None)
    )
    assert spec is mw.PartitionSpec("x", None, ("y", "z")) and spec != mw.P("x") and spec != ("x", None, ("y", "z"))
    assert mw.P("x") != mw.P("x", None) and mw.P(()) == mw.P(None) and mw.P(("x",)) == mw.P("x")
    assert mw.P("x") + mw.P("y") == mw.P("x") + tuple("y") == tuple("x") + mw.P("y") == mw.P("x", "y")
    assert spec.index(None) == 1 and spec.count(("y", "z")) == 1
    assert mw.P("x", sum="i") == mw.P("x", unreduced={"i"}) and mw.P(sum=("i", "j")).unreduced == {"i", "j"}
    assert spec.update(unreduced={"w"}) == mw.P("x", None, ("y", "z"), unreduced={"w"})
    assert pickle.loads(pickle.dumps(spec)) is spec
    assert pickle.loads(pickle.dumps(mw.P(mw.P.UNCONSTRAINED)))[0] is mw.P.UNCONSTRAINED
    assert mw.P(AxisRef("x", 1, 2, 8), (AxisRef.full("y", 2), "z")) == mw.P("x:(1)2", ("y", "z"))
    with pytest.raises(ShardingError, match="cannot have the entry 3"):
        mw.P(3)
    with pytest.raises(AttributeError):
        spec.unreduced = ()


# Named shardings


def test_named_shardings_are_equal_hashed_printed_and_copied():
    mesh = mw.make_mesh((2, 4), ("x", "y"))
    one, other = mw.NamedSharding(mesh, mw.P("x")), mw.NamedSharding(mw.make_mesh((2, 4), ("x", "y")), mw.P("x"))
    assert one == other and hash(one) == hash(other) and one != mw.NamedSharding(mesh, mw.P("x", None))
    assert one.is_equivalent_to(mw.NamedSharding(mesh, mw.P("x", None)), 2)
    assert pickle.loads(pickle.dumps(one)) == one
    assert one.num_devices == 8 and one.device_set == set(mesh.devices.flat)
    assert mw.NamedSharding(mesh, ("x", None)).spec == mw.P("x", None)
    tensor = one.to_tensor_sharding(3)
    assert pickle.loads(pickle.dumps(tensor)) == tensor and tensor.to_named().spec == mw.P("x", None, None)


def test_named_shardings_know_sub_axes_unreduced_and_replicated_axes():
    mesh = mw.make_mesh((2, 8, 3), ("x", "y", "z"))
    spec = mw.P(("x", "y:(2)2"), mw.P.UNCONSTRAINED, replicated={"z"}, unreduced={"y:(4)2", "y:(1)2"})
    sharding = mw.NamedSharding(mesh, spec)
    text = '[{"x", "y":(2)2}, {?}], replicated={"z"}, unreduced={"y":(1)2, "y":(4)2}'
    assert str(sharding.to_tensor_sharding()) == f"#sdy.sharding<@mesh, {text}>"
    assert sharding.to_tensor_sharding().to_named() == sharding
    assert sharding.shard_shape((8, 5, 7)) == (2, 5, 7) and not sharding.is_fully_replicated
    assert not mw.NamedSharding(mesh, mw.P(None, unreduced={"x"})).is_fully_replicated
    assert mw.NamedSharding(mesh, mw.P(None)).is_fully_replicated
    with pytest.raises(ShardingError, match="no partition spec"):
        TensorSharding(mesh, [None], unreduced=["x"], reduction="max").to_named()


def test_named_shardings_are_checked():
    mesh = mw.make_mesh((2, 4), ("x", "y"))
    with pytest.raises(RepeatedAxisError):
        mw.NamedSharding(mesh, mw.P("x", "x"))
    with pytest.raises(RepeatedAxisError):
        mw.NamedSharding(mesh, mw.P("x", unreduced={"x"}))
    with pytest.raises(UnknownAxisError):
        mw.NamedSharding(mesh, mw.P("x", unreduced={"q"}))
    with pytest.raises(ShardingError, match="for a mesh"):
        mw.NamedSharding(mw.P("x"), mesh)
    with pytest.raises(MeshError, match="has no devices"):
        mw.NamedSharding(mesh.abstract_mesh, mw.P("x")).devices_indices_map((4,))
    assert mw.NamedSharding(mesh.abstract_mesh, mw.P("x")).shard_shape((4,)) == (2,)


def test_types_show_shardings():
    mesh = mw.make_mesh((2, 4, 8), ("x", "y", "z"))
    bf16 = np.dtype("float32")
    for spec, shown in [
        (mw.P("x", "y"), "float32[2048@x,8192@y]"),
        (mw.P(("x", "y")), "float32[2048@(x,y),8192]"),
        (mw.P(None, "z:(1)2"), "float32[2048,8192@z:(1)2]"),
        (mw.P(None, ("x", "z:(2)4")), "float32[2048,8192@(x,z:(2)4)]"),
    ]:
        named = mw.NamedSharding(mesh, spec)
        for sharding in (named, named.to_tensor_sharding(2)):
            type = TensorType((2048, 8192), bf16, sharding=sharding)
            assert str(type) == shown and TensorType((2048, 8192), bf16, sharding=sharding) is type


# The tensor sharding as an object


def test_tensor_shardings_are_made_from_names_references_and_dims():
    mesh = Mesh.parse('<["x"=2, "y"=8]>')
    x, y = mesh.axes
    one = TensorSharding(mesh, ["x", ("y:(1)2", y.part(4, 8))], replicated=["y:(2)2"])
    assert one == TensorSharding(mesh, [[x], DimensionSharding((y.part(1, 2), y.part(4, 8)))], [y.part(2, 4)])
    assert hash(one) == hash(one.with_(replicated=[y.part(2, 4)])) and one != one.with_(replicated=())
    assert one.with_(dims=[None]).shards == (1,) and one.shards == (2, 4) and one.rank == 2
    dim = DimensionSharding((x,))
    assert DimensionSharding((x,)) is dim and dim.with_(is_open=True).is_open and dim.shards == 2
    assert pickle.loads(pickle.dumps(dim)) is dim and repr(dim) == 'DimensionSharding({"x"})'
    with pytest.raises(ShardingError, match="cannot be unreduced by 'mean'"):
        TensorSharding(mesh, [None], unreduced=["x"], reduction="mean")


def test_a_mesh_is_chosen_by_name():
    mesh, named = Mesh.parse('<["x"=2]>'), Mesh.parse('@m = <["x"=2]>')
    assert str(TensorSharding.parse('<@anything, [{"x"}]>', mesh)) == '#sdy.sharding<@anything, [{"x"}]>'
    assert TensorSharding.parse('<@mesh, [{"x"}]>', mesh).mesh is mesh
    assert str(TensorSharding.parse('<@k, [{"x"}]>', {"k": named})) == '#sdy.sharding<@k, [{"x"}]>'
    assert str(TensorSharding.parse('<@m, [{"x"}]>', {"m": mesh})) == '#sdy.sharding<@m, [{"x"}]>'
    for given in (named, [named], {"m": named}, None):
        with pytest.raises(ShardingError, match="There is no mesh @other"):
            TensorSharding.parse('<@other, [{"x"}]>', given)


# The space of shardings


@pytest.mark.parametrize("axes", range(4))
@pytest.mark.parametrize("ndim", range(4))
def test_shardings_are_counted_by_the_seeds_formula(axes, ndim):
    formula = sum(comb(axes, k) * comb(ndim, k) * factorial(k) for k in range(min(axes, ndim) + 1))
    mesh = mw.make_mesh((2,) * axes, tuple("xyz"[:axes])) if axes else mw.Mesh([], ())
    simple, compound = enumerate_shardings(mesh, ndim), enumerate_shardings(mesh, ndim, compound=True)
    assert count_shardings(axes, ndim) == formula == len(simple) == len(set(simple))
    assert count_shardings(axes, ndim, compound=True) == len(compound) == len(set(compound))
    assert set(simple) <= set(compound)
    assert all(len(sharding.spec) == ndim for sharding in compound)
    layouts = {sharding.to_tensor_sharding(ndim).layout for sharding in compound}
    assert len(layouts) == len(compound)  # the merging is noncommutative: another order is another placement


def test_devices_are_those_of_the_current_mesh_or_as_many_as_asked_for():
    assert mw.devices() == [mw.sharding.Device(n) for n in range(8)]
    assert mw.devices("tpu", count=2) == [mw.sharding.Device(0, "tpu"), mw.sharding.Device(1, "tpu")]
    assert mw.Mesh(mw.devices(), ("batch",)) == mw.make_mesh((8,), ("batch",))
    with mw.set_mesh(mw.Mesh([[3, 1], [2, 0]], ("x", "y"))):
        assert mw.devices() == [mw.sharding.Device(n) for n in range(4)]
        assert mw.devices("tpu", count=1) == [mw.sharding.Device(0, "tpu")]
    with mw.set_mesh(mw.AbstractMesh((2,), ("x",))):
        assert len(mw.devices()) == 8
    for count, what in (
        (0, 'The mesh axis "devices" has size 0.'),
        ("2", "The sizes of a mesh are integers, not ('2',)."),
    ):
        with pytest.raises(MeshError) as caught:
            mw.devices(count=count)
        assert caught.value.what == what
