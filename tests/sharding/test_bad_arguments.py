"""Arguments of the wrong type, numbers that are too long, meshes that are too large: one clear error each."""

from __future__ import annotations

import linecache

import numpy as np
import pytest

import meshwright as mw
from meshwright.errors import MeshError, MeshwrightError, ShapeError, ShardingError, TextError
from meshwright.sharding import Device, DimensionSharding, Mesh, TensorSharding
from meshwright.sharding.space import count_shardings, enumerate_shardings

MESH = mw.make_mesh((2, 4), ("x", "y"))
ON_X = mw.NamedSharding(MESH, mw.P("x"))
LONG = "9" * 5000
HUGE = Mesh.parse('<["x"=1048576, "y"=1048576]>')
CPU, TPU = Device(0), Device(1, "tpu")


@pytest.mark.parametrize(
    ("call", "kind", "what"),
    [
        (lambda: mw.make_mesh(None, ("x",)), MeshError, "The sizes of a mesh are integers, not None."),
        (lambda: mw.make_mesh("2", ("x",)), MeshError, "The sizes of a mesh are integers, not '2'."),
        (lambda: mw.make_mesh((10**5000,), ("x",)), MeshError, "A size of the mesh does not fit into 64 bits."),
        (lambda: mw.make_mesh((2,), None), MeshError, "Axis names cannot be None."),
        (lambda: mw.make_mesh((2,), 3), MeshError, "Axis names cannot be 3."),
        (lambda: mw.make_mesh((2,), "a:(1)2"), MeshError, 'A mesh axis cannot be named "a:(1)2".'),
        (lambda: mw.AbstractMesh((2,), "a b:(2)4"), MeshError, 'A mesh axis cannot be named "a b:(2)4".'),
        (lambda: mw.make_mesh((2,), "x", kind=None), MeshError, "Devices cannot be of kind None."),
        (lambda: mw.make_mesh((2,), "x", kind=3), MeshError, "Devices cannot be of kind 3."),
        (lambda: mw.make_mesh((2,), "x", kind=" "), MeshError, "Devices cannot be of kind ' '."),
        (lambda: mw.make_mesh((2,), "x", name=3), MeshError, "A mesh cannot be named 3."),
        (lambda: mw.make_mesh((2,), "x", 3), MeshError, "axis_types=3 does not fit a mesh of 1 axes."),
        (lambda: mw.make_mesh((2,), "x", devices=["a", "b"]), MeshError, "A mesh cannot be made of ['a', 'b']."),
        (lambda: mw.make_mesh((2,), "x", devices=[0.5, 1.5]), MeshError, "A mesh cannot be made of [0.5, 1.5]."),
        (lambda: mw.Mesh([[0, 1], [2]], ("x", "y")), MeshError, "A mesh cannot be made of [[0, 1], [2]]."),
        (lambda: mw.Mesh([CPU, 3], "x"), MeshError, "A mesh cannot be made of [CpuDevice(id=0), 3]."),
        (lambda: mw.Mesh([CPU, TPU], "x"), MeshError, "The devices of a mesh are of 2 kinds: cpu, tpu."),
        (lambda: mw.make_mesh((2,), "x", devices=[CPU, TPU]), MeshError,
         "The devices of a mesh are of 2 kinds: cpu, tpu."),
        (lambda: mw.Mesh([0, 1], None), MeshError, "Axis names cannot be None."),
        (lambda: MESH.with_(kind=None), MeshError, "Devices cannot be of kind None."),
        (lambda: mw.AbstractMesh(None, "x"), MeshError, "The sizes of a mesh are integers, not None."),
        (lambda: Device("a"), MeshError, "A device cannot have the number 'a'."),
        (lambda: Device([1]), MeshError, "A device cannot have the number [1]."),
        (lambda: Device(0, None), MeshError, "Devices cannot be of kind None."),
        (lambda: mw.P(unreduced=3), ShardingError, "A partition spec cannot have unreduced=3."),
        (lambda: mw.P(unreduced=None), ShardingError, "A partition spec cannot have unreduced=None."),
        (lambda: mw.P(unreduced=[["x"]]), ShardingError, "A partition spec cannot have unreduced=[['x']]."),
        (lambda: mw.P(replicated={3}), ShardingError, "A partition spec cannot have replicated={3}."),
        (lambda: mw.NamedSharding(MESH, None), ShardingError,
         "NamedSharding cannot take None for a partition spec."),
        (lambda: mw.NamedSharding(MESH, "xy"), ShardingError,
         "NamedSharding cannot take 'xy' for a partition spec."),
        (lambda: TensorSharding(MESH, None), ShardingError, "TensorSharding cannot take None for its dims."),
        (lambda: TensorSharding(MESH, [3]), ShardingError, "A tensor cannot be sharded over 3."),
        (lambda: TensorSharding(MESH, [None], unreduced=[3]), ShardingError, "A tensor cannot be sharded over [3]."),
        (lambda: TensorSharding(3, ["x"]), ShardingError, "TensorSharding cannot take 3 for a mesh."),
        (lambda: DimensionSharding(("x",)), ShardingError, "A DimensionSharding cannot have the axes ('x',)."),
        (lambda: DimensionSharding((), True, "1"), ShardingError, "A DimensionSharding cannot have priority='1'."),
        (lambda: DimensionSharding(3), ShardingError, "A DimensionSharding cannot have the axes 3."),
        (lambda: DimensionSharding([["x"]]), ShardingError, "A DimensionSharding cannot have the axes [['x']]."),
        (lambda: mw.make_mesh((-(10**5000),), "x"), MeshError, "A size of the mesh does not fit into 64 bits."),
        (lambda: TensorSharding.parse("<@m, []>", {"m": 3}), ShardingError, "parse cannot take 3 for a mesh."),
        (lambda: TensorSharding.parse(None), TextError, "A NoneType is not the text of a sharding."),
        (lambda: TensorSharding.parse(b"<@mesh, []>"), TextError, "A bytes is not the text of a sharding."),
        (lambda: TensorSharding.parse("<@mesh, []>", 3), ShardingError, "parse cannot take 3 for a mesh."),
        (lambda: TensorSharding.parse("<@mesh, []>", [MESH, 3]), ShardingError, "parse cannot take 3 for a mesh."),
        (lambda: TensorSharding.parse("<@mesh, []>", MESH, 3), ShapeError, "3 is not a shape."),
        (lambda: Mesh.parse(None), TextError, "A NoneType is not the text of a mesh."),
        (lambda: TensorSharding.from_hlo(None), TextError, "A NoneType is not the text of an HLO sharding."),
        (lambda: TensorSharding.from_hlo("{replicated}", 3, 1), ShardingError, "from_hlo cannot take 3 for a mesh."),
        (lambda: TensorSharding.from_hlo("{replicated}", MESH, "a"), ShardingError, "'a' is no number of dims."),
        (lambda: ON_X.is_equivalent_to(3, 1), ShardingError, "3 is not a sharding."),
        (lambda: ON_X.is_equivalent_to(ON_X, "a"), ShardingError, "'a' is no number of dims."),
        (lambda: ON_X.shard_shape(8), ShapeError, "8 is not a shape."),
        (lambda: ON_X.shard_shape((-4, 4)), ShapeError, "(-4, 4) is not a shape."),
        (lambda: ON_X.shard_shape((4.5, 4)), ShapeError, "(4.5, 4) is not a shape."),
        (lambda: ON_X.to_tensor_sharding(1).local_shape(None), ShapeError, "None is not a shape."),
        (lambda: ON_X.devices_indices_map("ab"), ShapeError, "'ab' is not a shape."),
        (lambda: enumerate_shardings(3, 1), ShardingError, "enumerate_shardings cannot take 3 for a mesh."),
        (lambda: enumerate_shardings(MESH, "a"), ShardingError, "'a' is no number of dims."),
        (lambda: count_shardings(1.5, 2), ShardingError, "1.5 is no number of mesh axes."),
        (lambda: count_shardings(-1, 2), ShardingError, "-1 is no number of mesh axes."),
        (lambda: count_shardings(2, None), ShardingError, "None is no number of dims."),
        (lambda: mw.sharding.SingleDeviceSharding(3), ShardingError,
         "SingleDeviceSharding cannot take 3 for a device."),
        (lambda: HUGE.devices, MeshError, "1099511627776 devices are too many to list."),
        (lambda: HUGE.device_ids, MeshError, "1099511627776 devices are too many to list."),
        (lambda: mw.NamedSharding(HUGE, mw.P("x")).devices_indices_map((8,)), MeshError,
         "1099511627776 devices are too many to list."),
        (lambda: mw.NamedSharding(HUGE, mw.P("x")).device_set, MeshError,
         "1099511627776 devices are too many to list."),
        (lambda: mw.make_mesh((1,) * 70, [f"a{i}" for i in range(70)]).devices, MeshError,
         "The devices of a mesh of 70 axes cannot be listed."),
        (lambda: mw.make_mesh((2**62,) * 20, [f"a{i}" for i in range(20)]), MeshError,
         'With the axis "a16" the mesh has too many devices.'),
    ],
)  # fmt: skip
def test_the_type_of_each_argument_is_checked(call, kind, what):
    with pytest.raises(kind) as caught:
        call()
    error = caught.value
    assert isinstance(error, MeshwrightError)
    assert error.what == what and error.why and error.fix
    assert error.where.startswith(f"test_bad_arguments.py:{call.__code__.co_firstlineno} ")


def test_some_of_these_messages_whole():
    def whole(call):
        with pytest.raises(MeshwrightError) as caught:
            call()
        line = call.__code__.co_firstlineno
        place = f"test_bad_arguments.py:{line}   {linecache.getline(__file__, line).strip()}"
        return str(caught.value).replace(place, "HERE")

    assert whole(lambda: mw.Mesh([CPU, TPU], "x")) == (
        "The devices of a mesh are of 2 kinds: cpu, tpu.\n"
        "  at:   HERE\n"
        "  why:  a mesh has devices of one kind\n"
        "  fix:  a mesh for each kind, such as mw.Mesh([d for d in devices if d.kind == 'cpu'], …)"
    )
    mesh = mw.make_mesh((2, 4), ("data", "model"))
    for given, meant in (("model", "'model'"), ("dp", "'data'"), (None, "")):
        assert whole(lambda given=given: mw.NamedSharding(mesh, given)) == (
            f"NamedSharding cannot take {given!r} for a partition spec.\n"
            "  at:   HERE\n"
            "  why:  a partition spec says for each dim which axes split it\n"
            f"  fix:  mw.NamedSharding(mesh, mw.P({meant}))"
        )
    assert whole(lambda: HUGE.devices) == (
        "1099511627776 devices are too many to list.\n"
        "  at:   HERE\n"
        "  why:  up to 4194304 are; more are known by their mesh's axes alone\n"
        "  fix:  ask for shapes and placements, .shard_shape(…) or .is_equivalent_to(…), or take a smaller mesh"
    )
    assert whole(lambda: ON_X.shard_shape(8)) == (
        "8 is not a shape.\n"
        "  at:   HERE\n"
        "  why:  a shape is a tuple of sizes, whole numbers of at least 0\n"
        "  fix:  (8,)"
    )


@pytest.mark.parametrize(
    ("call", "text", "at"),
    [
        (Mesh.parse, f'<["x"={LONG}]>', 6),
        (Mesh.parse, f'<["x"=2], device_ids=[{LONG}, 0]>', 22),
        (lambda text: TensorSharding.parse(text, MESH), f'<@mesh, [{{"x"}}p{LONG}]>', 14),
        (lambda text: TensorSharding.parse(text, MESH), f'<@mesh, [{{"y":(1){LONG}}}]>', 17),
        (lambda text: TensorSharding.parse(text, MESH), f"<@mesh, [{{}}]> : tensor<4x{LONG}xf32>", 25),
        (TensorSharding.from_hlo, f"{{devices=[{LONG}]<=[2]}}", 10),
        (TensorSharding.from_hlo, f"{{maximal device={LONG}}}", 16),
        (lambda text: mw.NamedSharding(MESH, mw.P(text)), f"y:(1){LONG}", 5),
        (lambda text: TensorSharding(MESH, [text]), f"y:({LONG})2", 3),
    ],
)
def test_a_number_of_thousands_of_digits_is_pointed_at(call, text, at):
    with pytest.raises(TextError) as caught:
        call(text)
    assert caught.value.what.endswith(f": character {at + 1}.")
    assert caught.value.why.endswith("does not fit into 64 bits")
    assert caught.value.where == f"{text[: at + 80]}…\n{' ' * at}^"


def test_leading_zeros_do_not_make_a_number_large():
    assert Mesh.parse(f'<["x"={"0" * 5000}2]>').axis_sizes == (2,)


def test_a_long_line_is_shown_around_the_place_and_a_repeated_device_is_found_fast():
    ids = [*range(200_000), 7]
    text = f'<["x"={len(ids)}], device_ids={ids}]>'.replace("]]", "]")
    with pytest.raises(MeshError) as caught:
        Mesh.parse(text)
    at = text.rindex("7]")
    assert caught.value.what == "The device 7 is given twice."
    assert caught.value.where == f"…{text[at - 80 :]}\n{' ' * 81}^"


def test_meshes_of_many_devices_are_read_from_hlo():
    flat = TensorSharding.from_hlo("{devices=[1099511627776]<=[1099511627776]}")
    assert str(flat) == '#sdy.sharding<mesh<["_axis_0"=1099511627776]>, [{"_axis_0"}]>'
    twos = ",".join(["2"] * 60)
    turned = TensorSharding.from_hlo(f"{{devices=[{twos}]<=[{twos}]T({','.join(map(str, reversed(range(60))))})}}")
    assert turned.rank == 60 and turned.mesh.size == 2**60 and turned.local_shape((2,) * 60) == (1,) * 60
    assert flat.to_hlo() == "{devices=[1099511627776]<=[1099511627776]}"
    with pytest.raises(TextError, match="character 26"):
        TensorSharding.from_hlo("{devices=[1099511627776] 0,1}")


def test_an_array_of_tiles_without_digits_is_listed_only_when_small():
    assert TensorSharding.from_hlo("{devices=[2,3]<=[2,3]T(1,0)}").mesh.order == (0, 3, 1, 4, 2, 5)
    text = f"{{devices=[2,{3**20}]<=[2,{3**20}]T(1,0)}}"
    with pytest.raises(MeshError) as caught:
        TensorSharding.from_hlo(text)
    assert caught.value.what == f"{2 * 3**20} devices are too many to list."
    assert caught.value.where == f"{text}\n{' ' * 9}^"


def test_devices_of_different_kinds_are_different():
    cpu, tpu = (mw.NamedSharding(mw.make_mesh((2, 2), ("x", "y"), kind=kind), mw.P("x")) for kind in ("cpu", "tpu"))
    assert not cpu.is_equivalent_to(tpu, 1) and cpu.is_equivalent_to(cpu.to_tensor_sharding(1), 1)
    one, other = (mw.sharding.SingleDeviceSharding(Device(0, kind)) for kind in ("cpu", "tpu"))
    assert not one.is_equivalent_to(other, 1)
    assert not mw.NamedSharding(Mesh([0], "x"), mw.P()).is_equivalent_to(other, 1)
    assert mw.NamedSharding(Mesh([0], "x"), mw.P()).is_equivalent_to(one, 1)


def test_the_order_of_four_tpus_does_not_depend_on_case_or_model():
    for kind in ("tpu", "TPU", "Tpu"):
        assert mw.make_mesh((4,), "x", kind=kind).device_ids.tolist() == [0, 2, 1, 3]
    for kind in ("tpu v5e", "TPU v5e", "cpu"):
        assert mw.make_mesh((4,), "x", kind=kind).device_ids.tolist() == [0, 1, 2, 3]


def test_numpy_integers_are_as_good_as_pythons():
    assert ON_X.shard_shape(np.array([4, 4])) == (2, 4) and ON_X.shard_shape([np.int32(4)]) == (2,)
    assert mw.make_mesh(np.array([2, 4]), ("x", "y")) == MESH and Device(np.int64(0)) is CPU


@pytest.mark.parametrize(
    ("text", "mesh", "ndim", "at", "what", "why", "fix"),
    [
        (
            "{replicated}", MESH, None, 1, "The text does not say enough.",
            "{replicated} is said of tensors of any rank on any devices: it does not say how many dims the tensor has",
            "from_hlo(text, mesh, ndim=2)",
        ),
        (
            "{manual}", None, 1, 1, "The text does not say enough.",
            "{manual} is said of tensors of any rank on any devices: it does not say which devices there are",
            "from_hlo(text, mesh, ndim=1)",
        ),
        (
            "{devices=[4]<=[4]}", MESH, None, 9,
            'The tiles are over 4 devices and the mesh <["x"=2, "y"=4]> has 8.',
            "the product of the tile dims is 4, and every device has its tile",
            'mw.make_mesh((4,), ("x",)), or from_hlo(text) for a mesh that is made for it',
        ),
        (
            "{devices=[8]<=[8]}", MESH, 2, 9, "The tiles are those of a tensor of 1 dims, not 2.",
            "the tiles have 1 dims, one for each dim", "ndim=1, or leave ndim out",
        ),
        (
            "{devices=[8]0,1,2,3,4,5,7,6}", MESH, None, 9,
            'The tiles follow no axes of the mesh <["x"=2, "y"=4]>.',
            "along an axis or a part of one, device numbers grow by equal steps, and those of the tiles do not",
            "from_hlo(text) for a mesh that is made for it",
        ),
        (
            "{devices=[4,2]<=[8] last_tile_dims={manual}}", MESH, None, 20, "A part of 'y' is manual.",
            "an axis of a mesh is manual as a whole",
            'a mesh with "y":(2)2 as an axis of its own, or from_hlo(text) for one that is made for it',
        ),
    ],
)  # fmt: skip
def test_what_hlo_text_means_is_checked_at_its_place(text, mesh, ndim, at, what, why, fix):
    with pytest.raises(ShardingError) as caught:
        TensorSharding.from_hlo(text, mesh, ndim)
    assert str(caught.value) == f"{what}\n  at:   {text}\n        {' ' * at}^\n  why:  {why}\n  fix:  {fix}"
