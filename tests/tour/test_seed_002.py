"""Seed 002, "Sharding Representation": its examples and invariants, in its order and its words."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import meshwright as mw
from meshwright.sharding import AxisRef, DimensionSharding, Mesh, TensorSharding
from meshwright.sharding.check import (
    AxisOrderError,
    MergeableAxesError,
    OverlapError,
    PriorityError,
    RankError,
    RepeatedAxisError,
    SubAxisError,
    UnknownAxisError,
    UnknownMeshError,
)


def shard(mesh: str, text: str) -> TensorSharding:
    """A mesh and a sharding as the document writes them, one after the other."""
    return TensorSharding.parse(text, Mesh.parse(mesh))


def parts(sharding: TensorSharding, tensor: np.ndarray) -> dict[int, np.ndarray]:
    """What each device holds of a tensor."""
    return {d.id: tensor[index] for d, index in sharding.devices_indices_map(tensor.shape).items()}


# Overview: basic structure


def test_we_first_reshape_the_4_devices_to_create_a_mesh_with_2_axes():
    mesh = Mesh.parse('@mesh_xy = <["x"=2, "y"=2]>')
    assert np.array_equal(mesh.device_ids, [[0, 1], [2, 3]])
    assert mesh.name == "mesh_xy" and mesh.shape == {"x": 2, "y": 2} and str(mesh) == '<["x"=2, "y"=2]>'


def test_we_can_then_shard_the_rank_2_tensor():
    tensor = np.array([["a", "b"], ["c", "d"]])
    found = parts(shard('@mesh_xy = <["x"=2, "y"=2]>', 'sharding<@mesh_xy, [{"x"}, {"y"}]>'), tensor)
    assert {device: part.item() for device, part in found.items()} == {0: "a", 1: "b", 2: "c", 3: "d"}


def test_the_tensor_is_replicated_along_all_other_axes_of_the_mesh():
    tensor = np.array([["a", "b"], ["c", "d"]])
    found = parts(shard('@mesh_xy = <["x"=2, "y"=2]>', 'sharding<@mesh_xy, [{"x"}, {}]>'), tensor)
    assert [part.tolist() for part in found.values()] == [[["a", "b"]]] * 2 + [[["c", "d"]]] * 2


def test_a_sharding_is_bound_to_a_mesh_by_its_name_and_can_only_reference_axes_of_that_mesh():
    meshes = [Mesh.parse('@mesh_a = <["a"=2]>'), Mesh.parse('@mesh_b = <["b"=2]>')]
    assert TensorSharding.parse('sharding<@mesh_b, [{"b"}]>', meshes).mesh is meshes[1]
    with pytest.raises(UnknownAxisError):
        TensorSharding.parse('sharding<@mesh_b, [{"a"}]>', meshes)
    with pytest.raises(UnknownMeshError):
        TensorSharding.parse('sharding<@mesh_c, [{"a"}]>', meshes)


# Detailed design: basic structure

MESH_XYZ = '@mesh_xy = <["x"=2, "y"=4, "z"=2]>'


def test_the_local_shape_of_this_tensor_would_be_2x1():
    sharding = shard(MESH_XYZ, 'sharding<@mesh_xy, [{"x"}, {"z", "y"}]> : tensor<4x8xf32>')
    assert sharding.local_shape((4, 8)) == (2, 1)
    assert str(sharding) == '#sdy.sharding<@mesh_xy, [{"x"}, {"z", "y"}]>'


def test_axes_shard_a_dimension_from_major_to_minor():
    """z first, then y: device (x, y, z) holds column 4 z + y."""
    sharding = shard(MESH_XYZ, 'sharding<@mesh_xy, [{"x"}, {"z", "y"}]>')
    found = parts(sharding, np.arange(32).reshape(4, 8))
    for device, (x, y, z) in enumerate(itertools.product(range(2), range(4), range(2))):
        assert found[device].tolist() == [[16 * x + 4 * z + y], [16 * x + 8 + 4 * z + y]]


def test_invariant_the_number_of_dimension_shardings_must_match_the_rank_of_the_tensor():
    with pytest.raises(RankError) as caught:
        shard(MESH_XYZ, 'sharding<@mesh_xy, [{"x"}]> : tensor<4x8xf32>')
    assert caught.value.what == "The sharding has 1 dim and the tensor 2."
    with pytest.raises(RankError):
        shard(MESH_XYZ, 'sharding<@mesh_xy, [{"x"}, {"z", "y"}]>').local_shape((4, 8, 2))


def test_invariant_all_axis_names_must_exist_in_the_referenced_mesh():
    with pytest.raises(UnknownAxisError) as caught:
        shard(MESH_XYZ, 'sharding<@mesh_xy, [{"x"}, {"w"}]>')
    assert str(caught.value) == (
        'The mesh has no axis "w".\n'
        '  at:   sharding<@mesh_xy, [{"x"}, {"w"}]>\n'
        "                                    ^\n"
        '  why:  the mesh is <["x"=2, "y"=4, "z"=2]>\n'
        '  fix:  use "x" or "y" or "z"'
    )


@pytest.mark.parametrize(
    "text",
    ['[{"x"}, {"x"}]', '[{"x", "x"}, {}]', '[{"x"}, {}], replicated={"x"}', '[{"y":(1)2}, {"y":(1)2}]'],
)
def test_invariant_axes_or_sub_axes_can_only_appear_once(text):
    with pytest.raises(RepeatedAxisError, match=r"appears twice"):
        shard(MESH_XYZ, f"sharding<@mesh_xy, {text}>")


# Open/closed dimensions


def test_an_open_dimension_can_be_further_sharded_and_a_closed_one_is_fixed():
    sharding = shard(MESH_XYZ, 'sharding<@mesh_xy, [{"x"}, {"z", ?}]> : tensor<4x8xf32>')
    assert [dim.is_open for dim in sharding.dims] == [False, True]
    assert [axis.name for axis in sharding.mesh.unused(a for dim in sharding.dims for a in dim.axes)] == ["y"]
    further = shard(MESH_XYZ, 'sharding<@mesh_xy, [{"x"}, {"z", "y"}]>')
    assert sharding.local_shape((4, 8)) == (2, 4) and further.local_shape((4, 8)) == (2, 1)


def test_an_open_dimension_is_similar_to_unconstrained():
    mesh = mw.make_mesh((2, 4, 2), ("x", "y", "z"))
    sharding = mw.NamedSharding(mesh, mw.P("x", mw.P.UNCONSTRAINED))
    assert str(sharding.to_tensor_sharding()) == '#sdy.sharding<@mesh, [{"x"}, {?}]>'
    assert sharding.to_tensor_sharding().to_named() == sharding


# Explicitly replicated axes

MESH_CAB = '@mesh_xy = <["c"=2, "a"=2, "b"=2]>'


def test_replicated_axes_are_stored_in_the_order_of_the_mesh():
    sharding = shard(MESH_CAB, 'sharding<@mesh_xy, [{}], replicated={"c", "a"}>')
    assert str(sharding) == '#sdy.sharding<@mesh_xy, [{}], replicated={"c", "a"}>'
    with pytest.raises(AxisOrderError) as caught:
        shard(MESH_CAB, 'sharding<@mesh_xy, [{}], replicated={"a", "c"}>')
    assert caught.value.fix == 'replicated={"c", "a"}'
    spec = mw.P(replicated={"a", "c"})  # a set: its order is the mesh's
    assert str(mw.NamedSharding(sharding.mesh, spec).to_tensor_sharding(1)) == str(sharding)


def test_ordering_of_replicated_axes_has_no_effect_on_how_the_data_is_stored():
    replicated = shard(MESH_CAB, 'sharding<@mesh_xy, [{"b"}], replicated={"c", "a"}>')
    assert replicated.is_equivalent_to(shard(MESH_CAB, 'sharding<@mesh_xy, [{"b"}]>'))


def test_y_cannot_be_used_to_shard_the_2nd_dimension_and_z_can():
    mesh = '@mesh_xyz = <["x"=2, "y"=4, "z"=2]>'
    sharding = shard(mesh, 'sharding<@mesh_xyz, [{"x"}, {?}], replicated={"y"}> : tensor<4x8xf32>')
    assert sharding.local_shape((4, 8)) == (2, 8)
    used = [*(a for dim in sharding.dims for a in dim.axes), *sharding.replicated]
    assert [axis.name for axis in sharding.mesh.unused(used)] == ["z"]
    shard(mesh, 'sharding<@mesh_xyz, [{"x"}, {"z", ?}], replicated={"y"}>')
    with pytest.raises(RepeatedAxisError):
        shard(mesh, 'sharding<@mesh_xyz, [{"x"}, {"y", ?}], replicated={"y"}>')


# Axis splitting and sub-axes

MESH_X = '@mesh_x = <["x"=4]>'
MESH_Y8 = '@mesh_xyz = <["x"=2, "y"=8, "z"=2]>'


def test_splitting_an_axis_reshapes_the_mesh():
    """[..., k, ...] into [..., k1, ..., km, ...]: the sub-axes are the new dims."""
    mesh = Mesh.parse(MESH_Y8)
    found = TensorSharding(mesh, ["y:(1)2", "y:(2)2", "y:(4)2"])
    split = TensorSharding(
        Mesh(mesh.device_ids.reshape(2, 2, 2, 2, 2), ("x", "y0", "y1", "y2", "z")), ["y0", "y1", "y2"]
    )
    assert found.is_equivalent_to(split)


def test_the_reshape_keeps_the_data_where_it_is():
    before = shard(MESH_X, '<@mesh_x, [{"x"}]>')
    after = shard(MESH_X, '<@mesh_x, [{"x":(1)2}, {"x":(2)2}]>')
    tensor = np.arange(8)
    assert before.local_shape((8,)) == (2,) and after.local_shape((2, 4)) == (1, 2)
    for device, part in parts(before, tensor).items():
        assert parts(after, tensor.reshape(2, 4))[device].ravel().tolist() == part.tolist()


def test_users_may_write_sub_axes_in_a_partition_spec():
    mesh = mw.make_mesh((4,), ("x",))
    named = mw.NamedSharding(mesh, mw.P("x:(1)2", "x:(2)2"))
    assert str(named.to_tensor_sharding()) == '#sdy.sharding<@mesh, [{"x":(1)2}, {"x":(2)2}]>'
    assert named.to_tensor_sharding().to_named().spec is named.spec


def test_pre_size_actual_size_and_post_size():
    (dim,) = shard(MESH_Y8, 'sharding<@mesh_xyz, [{"y":(2)2}]>').dims
    (axis,) = dim.axes
    assert (axis.pre, axis.size, axis.post) == (2, 2, 2)
    coordinates = np.arange(8).reshape(2, 2, 2)  # n into [m, k, n/(m*k)]
    for value in range(2):
        assert set(np.flatnonzero(np.arange(8) // axis.post % axis.size == value)) == set(coordinates[:, value].ravel())


def test_only_one_sub_axis_of_y_is_used():
    sharding = shard(MESH_Y8, 'sharding<@mesh_xyz, [{"x"}, {"y":(2)2}]> : tensor<4x8xf32>')
    assert sharding.local_shape((4, 8)) == (2, 4)
    unused = sharding.mesh.unused(a for dim in sharding.dims for a in dim.axes)
    assert [str(axis) for axis in unused] == ['"y":(1)2', '"y":(4)2', '"z"']


def test_the_following_two_shardings_are_semantically_equivalent():
    full = shard(
        '@mesh_full = <"devices"=8>', 'sharding<@mesh_full, [{"devices":(1)4}, {"devices":(4)2}]> : tensor<4x4xf32>'
    )
    xy = shard('@mesh_xy = <"x"=4, "y"=2>', 'sharding<@mesh_xy, [{"x"},{ "y"}]> : tensor<4x4xf32>')
    assert xy.is_equivalent_to(full) and full.is_equivalent_to(xy)
    assert xy.local_shape((4, 4)) == full.local_shape((4, 4)) == (1, 2)
    assert xy.devices_indices_map((4, 4)) == full.devices_indices_map((4, 4))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('"y":(0)2', "the pre-size is the product of all sizes to its left, at least 1"),
        ('"y":(3)2', "pre-size * size is 6, which does not divide 8"),
        ('"y":(1)3', "pre-size * size is 3, which does not divide 8"),
        ('"y":(4)4', "pre-size * size is 16, which does not divide 8"),
        ('"y":(2)1', "a sub-axis splits over at least 2 devices"),
        ('"y":(1)8', "a sub-axis is a proper part; the whole axis is written by its name"),
    ],
)
def test_invariant_pre_size_and_size_divide_the_axis(text, why):
    with pytest.raises(SubAxisError) as caught:
        shard(MESH_Y8, f"sharding<@mesh_xyz, [{{{text}}}]>")
    assert caught.value.why == why


def test_sub_axes_can_be_explicitly_replicated():
    """ "y":(1)2 is explicitly replicated and "y":(4)2 implicitly."""
    sharding = shard(MESH_Y8, 'sharding<@mesh_xyz, [{"x"}, {"y":(2)2}], replicated={"y":(1)2}> : tensor<4x8xf32>')
    assert sharding.local_shape((4, 8)) == (2, 4)
    used = [*(a for dim in sharding.dims for a in dim.axes), *sharding.replicated]
    assert [str(axis) for axis in sharding.mesh.unused(used)] == ['"y":(4)2', '"z"']


def test_replicated_sub_axes_are_ordered_by_their_pre_size():
    with pytest.raises(AxisOrderError) as caught:
        shard(MESH_Y8, 'sharding<@mesh_xyz, [{}], replicated={"y":(4)2, "x", "y":(1)2}>')
    assert caught.value.fix == 'replicated={"x", "y":(1)2, "y":(4)2}'
    fixed = shard(MESH_Y8, f"sharding<@mesh_xyz, [{{}}], {caught.value.fix}>")
    assert str(fixed) == '#sdy.sharding<@mesh_xyz, [{}], replicated={"x", "y":(1)2, "y":(4)2}>'


def test_invariant_sub_axes_must_not_overlap():
    with pytest.raises(OverlapError) as caught:
        shard('@m = <["x"=8]>', 'sharding<@m, [{"x":(1)4}, {"x":(2)4}]>')
    assert caught.value.what == 'The sub-axes "x":(1)4 and "x":(2)4 overlap.'
    assert caught.value.why == '"x":(2)2 is part of both' and caught.value.fix == '"x":(1)2 in place of "x":(1)4'
    with pytest.raises(OverlapError, match="and so is its part"):
        shard('@m = <["x"=8]>', 'sharding<@m, [{"x"}, {"x":(2)4}]>')


@pytest.mark.parametrize("text", ['[{"x":(1)2, "x":(2)4}]', '[{}], replicated={"x":(1)2, "x":(2)4}'])
def test_invariant_sub_axes_must_be_as_big_as_possible(text):
    with pytest.raises(MergeableAxesError) as caught:
        shard('@m = <["x"=16]>', f"sharding<@m, {text}>")
    assert caught.value.fix == '"x":(1)8'
    with pytest.raises(MergeableAxesError) as caught:
        shard('@m = <["x"=8]>', f"sharding<@m, {text}>")
    assert caught.value.fix == '"x"'


def test_sub_axes_in_another_order_or_another_dimension_are_not_consecutive():
    shard('@m = <["x"=8]>', 'sharding<@m, [{"x":(2)4, "x":(1)2}]>')
    shard('@m = <["x"=8]>', 'sharding<@m, [{"x":(1)2}, {"x":(2)4}]>')
    shard('@m = <["x"=8]>', 'sharding<@m, [{"x":(1)2, "x":(4)2}]>')


# Multiple logical meshes


def test_b_of_mesh_0_is_identical_to_z_of_mesh_1():
    meshes = [
        Mesh.parse('@mesh_0 = {<["a"=4, "b"=2]>, device_ids=[0, 1, 2, 3, 4, 5, 6, 7]}'),
        Mesh.parse('@mesh_1 = {<["x"=2, "y"=2, "z"=2]>, device_ids=[0, 1, 2, 3, 4, 5, 6, 7]}'),
    ]
    by_b = TensorSharding.parse('<@mesh_0, [{"b"}]>', meshes)
    assert by_b.is_equivalent_to(TensorSharding.parse('<@mesh_1, [{"z"}]>', meshes))
    assert not by_b.is_equivalent_to(TensorSharding.parse('<@mesh_1, [{"y"}]>', meshes))
    assert str(meshes[0]) == '<["a"=4, "b"=2]>'  # the order 0, 1, 2, … goes without saying


def test_each_mesh_refers_to_the_same_devices_in_an_arbitrary_order():
    """No splitting of axes says this one; a mesh with its own order does."""
    tensor = np.arange(4)
    mesh = '@mesh_1 = <["d"=4], device_ids=[3, 0, 1, 2]>'
    found = parts(shard(mesh, 'sharding<@mesh_1, [{"d"}]>'), tensor)
    assert {device: part.item() for device, part in found.items()} == {3: 0, 0: 1, 1: 2, 2: 3}
    straight = shard('@mesh_0 = <["d"=4]>', 'sharding<@mesh_0, [{"d"}]>')
    assert not shard(mesh, 'sharding<@mesh_1, [{"d"}]>').is_equivalent_to(straight)


# Priorities

MESH_W = '@mesh_xy = <["w"=6, "x"=2, "y"=4, "z"=2]>'


def test_priorities_are_attached_to_dimensions_and_0_by_default():
    sharding = shard(MESH_W, 'sharding<@mesh_xy, [{"x"}p1, {"y"}, {"z",?}p2], replicated={}>')
    assert [dim.priority for dim in sharding.dims] == [1, None, 2]
    assert str(sharding) == '#sdy.sharding<@mesh_xy, [{"x"}p1, {"y"}, {"z", ?}p2]>'


def test_invariant_priorities_start_at_0_and_may_have_gaps():
    shard(MESH_W, 'sharding<@mesh_xy, [{"x"}p0, {"y"}p2]>')
    with pytest.raises(PriorityError, match="priority -1"):
        TensorSharding(Mesh.parse(MESH_W), [mw.sharding.DimensionSharding((), True, -1)])


def test_invariant_an_empty_closed_dimension_should_not_have_a_priority():
    with pytest.raises(PriorityError, match="empty and closed"):
        shard(MESH_W, "sharding<@mesh_xy, [{}p1]>")
    shard(MESH_W, "sharding<@mesh_xy, [{?}p1]>")


# Dimension sharding divisibility


def test_a_dimension_can_be_sharded_on_axes_whose_size_does_not_divide_it():
    sharding = shard(
        '@mesh_xy = <["x"=8, "y"=2, "z"=3]>', 'sharding<@mesh_xy, [{"x"}, {"y"}, {"z"}]> : tensor<7x3x8xf32>'
    )
    assert sharding.local_shape((7, 3, 8)) == (1, 2, 3)
    assert sharding.padding((7, 3, 8)) == (1, 1, 1) and sharding.padded_shape((7, 3, 8)) == (8, 4, 9)
    held = parts(sharding, np.zeros((7, 3, 8)))
    assert held[0].shape == (1, 2, 3) and held[5].shape == (1, 1, 2) and held[47].shape == (0, 1, 2)
    assert sum(part.size for part in held.values()) == 7 * 3 * 8


# Grammar


@pytest.mark.parametrize(
    "text",
    [
        '[{"x"}, {"y"}]',
        "[]",
        "[{}]",
        "[{?}]",
        '[{"x", "y", ?}]',
        '[{"y":(1)2, "x"}p3, {?}p0]',
        '[{}], replicated={"x", "y":(2)2}',
        '[{"x"}], unreduced={"y"}',
        '[{"x"}], unreduced=max{"y"}',
        '[{"x"}], replicated={"y":(1)2}, unreduced=min{"y":(2)2}',
    ],
)
def test_the_grammar_is_read_and_printed(text):
    mesh = Mesh.parse('<["x"=2, "y"=8]>')
    for spelling in ("#sdy.sharding<@mesh, {}>", "sharding<@mesh, {}>", "<@mesh, {}>"):
        assert str(TensorSharding.parse(spelling.format(text), mesh)) == f"#sdy.sharding<@mesh, {text}>"
    inline = f'#sdy.sharding<mesh<["x"=2, "y"=8]>, {text}>'
    assert str(TensorSharding.parse(inline)) == inline
    assert TensorSharding.parse(inline) == TensorSharding.parse(f"<@mesh, {text}>", mesh)


# What is given from Python


@pytest.mark.parametrize("kind", [list, tuple, set, frozenset, iter])
def test_sets_of_axes_are_stored_in_the_order_of_the_mesh_whatever_order_they_are_given_in(kind):
    mesh = Mesh.parse(MESH_Y8)
    expected = '#sdy.sharding<@mesh_xyz, [{}], replicated={"x", "y":(1)2, "y":(4)2}>'
    for order in itertools.permutations(["y:(4)2", "x", "y:(1)2"]):
        assert str(TensorSharding(mesh, [None], replicated=kind(order))) == expected
        partial_sum = TensorSharding(mesh, [None], unreduced=kind(order))
        assert str(partial_sum) == expected.replace("replicated", "unreduced")
        spec = mw.P(None, replicated=kind(order))
        assert str(mw.NamedSharding(mesh, spec).to_tensor_sharding()) == expected


def test_axes_of_another_mesh_are_refused():
    other = Mesh.parse('<["x"=4, "y"=8]>').axis_by_name
    mesh = Mesh.parse(MESH_Y8)
    for make in (
        lambda: TensorSharding(mesh, [other["x"]]),
        lambda: TensorSharding(mesh, [("y", other["x"])]),
        lambda: TensorSharding(mesh, [DimensionSharding((other["x"].split(2, 2)[0],))]),
        lambda: TensorSharding(mesh, [None], replicated={other["x"]}),
        lambda: TensorSharding(mesh, [None], unreduced=[other["x"]]),
    ):
        with pytest.raises(mw.MeshwrightError) as caught:
            make()
        assert caught.value.what.endswith(' is of another mesh, where "x" has size 4.')
        assert caught.value.why == 'the mesh of the sharding is <["x"=2, "y"=8, "z"=2]>'
    assert str(TensorSharding(mesh, [other["y"]])) == '#sdy.sharding<@mesh_xyz, [{"y"}]>'  # the same axis


@pytest.mark.parametrize("name", ["a:(1)2", "a:(1)", "a:(", "a:(b)c", ":(1)2"])
def test_no_axis_is_named_like_a_part_of_one(name):
    for make in (
        lambda: mw.make_mesh((2,), (name,)),
        lambda: mw.make_mesh((2,), name),
        lambda: mw.Mesh([0, 1], name),
        lambda: mw.AbstractMesh((2,), (name,)),
        lambda: mw.AbstractMesh((2,), ("a",)).with_(axis_names=(name,)),
        lambda: Mesh.parse(f'<["{name}"=2]>'),
        lambda: Mesh.parse(f'sdy.mesh @mesh = <["{name}"=2]>'),
        lambda: TensorSharding.parse(f'sharding<mesh<["{name}"=2]>, [{{}}]>'),
    ):
        with pytest.raises(mw.MeshwrightError) as caught:
            make()
        assert caught.value.what == f'A mesh axis cannot be named "{name}".'
        mw.make_mesh((2,), caught.value.fix.strip('"'))


def test_errors_of_parts_of_axes_are_errors_of_the_package():
    y = AxisRef.full("y", 8)
    major, _, minor = y.split(2, 2, 2)
    for make, what in (
        (lambda: AxisRef("y", 3, 2, 8), '"y":(3)2 is no part of an axis of size 8.'),
        (lambda: AxisRef("y", 1, 0, 8), '"y":(1)0 is no part of an axis of size 8.'),
        (lambda: AxisRef.full("y", 0), '"y":(1)0 is no part of an axis of size 0.'),
        (lambda: AxisRef.full("y", "8"), "An AxisRef cannot be made of ('y', 1, '8', '8')."),
        (lambda: AxisRef(3, 1, 2, 2), "An AxisRef cannot be made of (3, 1, 2, 2)."),
        (lambda: AxisRef([], 1, 2, 2), "An AxisRef cannot be made of ([], 1, 2, 2)."),
        (lambda: major.merge(minor), '"y":(4)2 does not begin where "y":(1)2 ends.'),
        (lambda: y.split(3, 2), '"y" of size 8 cannot be split into parts of sizes (3, 2).'),
        (lambda: y.split(-2, -4), '"y" of size 8 cannot be split into parts of sizes (-2, -4).'),
    ):
        with pytest.raises(mw.MeshwrightError) as caught:
            make()
        assert caught.value.what == what and caught.value.why and caught.value.fix
    assert y.split(1, 8) == (AxisRef("y", 1, 1, 8), y)  # as the fix says


@pytest.mark.parametrize("ids", [[4, 5, 6, 7], [7, 5], [9], [3, 1, 2, 0], [0, 1]])
def test_the_text_of_a_mesh_of_some_devices_reads_back(ids):
    mesh = mw.Mesh(ids, "x")
    assert Mesh.parse(str(mesh)) == mesh
    sharding = TensorSharding(mesh.with_(name=""), ["x"])
    assert TensorSharding.parse(str(sharding).removeprefix("#sdy.")) == sharding


@pytest.mark.parametrize(
    ("text", "replaced", "error"),
    [
        ('[{"y":(1)2, "y":(2)4}, {}]', '"y":(1)2, "y":(2)4', MergeableAxesError),
        ('[{"y":(1)3, "y":(3)2}, {}]', '"y":(1)3, "y":(3)2', MergeableAxesError),
        ('[{"y":(2)2, "y":(4)8}, {}]', '"y":(2)2, "y":(4)8', MergeableAxesError),
        ('[{}, {}], replicated={"z", "x", "x"}', 'replicated={"z", "x", "x"}', AxisOrderError),
        ('[{"y":(3)2}, {}]', '"y":(3)2', SubAxisError),
        ('[{"z":(1)3}, {}]', '"z":(1)3', SubAxisError),
    ],
)
def test_what_a_fix_says_is_not_refused_itself(text, replaced, error):
    with pytest.raises(error) as caught:
        shard(MESH_Y8, f"sharding<@mesh_xyz, {text}>")
    fix = caught.value.fix.partition(", or ")[0]
    shard(MESH_Y8, f"sharding<@mesh_xyz, {text.replace(replaced, fix)}>")


def test_what_a_fix_of_a_mesh_says_is_not_refused_itself():
    for sizes, names in (
        ((2,) * 13, ("x",)),
        ((2, 0), ("x",)),
        ((2, 2, 2), ("x", "x", "x2")),
        ((2, 2), ("a:(1", "a_1")),
    ):
        with pytest.raises(mw.MeshwrightError) as caught:
            mw.make_mesh(sizes, names)
        fix = caught.value.fix
        if fix.startswith("mw."):
            eval(fix, {"mw": mw})
        else:
            mw.make_mesh(sizes[:2], (fix.rpartition('"')[0].rpartition('"')[2], names[-1]))
