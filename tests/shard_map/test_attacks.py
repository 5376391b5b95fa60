"""Unusual input to shard_map and its collectives: right numbers or clear errors."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax
from meshwright.core.trace import state
from meshwright.errors import MeshError, ShapeError, ShardingError, VarianceError
from meshwright.sharding.mesh import get_mesh

MESH = mw.make_mesh((4,), ("i",))


ROWS = P("i")


def mapped(f, in_specs=ROWS, out_specs=ROWS, mesh=MESH):
    return mw.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs)


def test_a_jitted_function_is_compiled_for_each_current_mesh():
    @mw.jit
    def sums(x):
        names = get_mesh().axis_names
        return mw.shard_map(lambda x: lax.psum(x, names[0]), in_specs=P(names), out_specs=P(names[1]))(x)

    @mw.jit
    def around(x):
        return sums(x) + 0

    x = np.arange(8.0, dtype=np.float32)
    for sizes in ((2, 4), (4, 2), (2, 4)):
        with mw.set_mesh(mw.make_mesh(sizes, ("a", "b"))):
            for f in (sums, around):
                for _ in range(2):
                    assert np.array_equal(f(mnp.array(x)), x.reshape(sizes[0], -1).sum(0))


def test_sums_of_narrow_floats_do_not_get_stuck():
    mesh = mw.make_mesh((512,), ("i",))
    ones = mnp.ones(512, dtype="bfloat16")
    assert mapped(lambda x: lax.psum(x, "i"), out_specs=P(), mesh=mesh)(ones).tolist() == [512]
    partial_sum = mapped(lambda x: x, out_specs=P(sum="i"), mesh=mesh)(ones)
    assert mw.reshard(partial_sum, P()).tolist() == [512]
    loss = mapped(lambda w, x: lax.psum((w * x).sum(), "i"), (P(), P("i")), P(), mesh)
    assert float(mw.grad(loss)(mnp.array(1, dtype="bfloat16"), ones)) == 512
    assert float(mw.grad(lambda b: mnp.broadcast_to(b, (600,)).sum())(mnp.array(1, dtype="bfloat16"))) == 600


@pytest.mark.parametrize("part", ["x:(1)0", "x:(0)2", "x:(1)²", "x:(", "x:()2"])
def test_malformed_parts_are_refused(part):
    grid = mw.make_mesh((2, 4), ("x", "y"))
    with pytest.raises(MeshError) as caught:
        mapped(lambda v: lax.psum(v, part), P("x"), P("x"), grid)(mnp.arange(8.0))
    assert caught.value.what == f"psum names the mesh axis {part!r}, which is not there."
    assert caught.value.why == "a part of an axis is written 'x:(before)size', with positive numbers"
    with pytest.raises(ShardingError, match="a part of an axis is written"):
        mapped(lambda v: v, P(part), P(), grid)(mnp.arange(8.0))


def test_axes_in_a_set_have_no_order():
    grid = mw.make_mesh((2, 4), ("x", "y"))
    rows, x = P(("x", "y")), mnp.arange(8.0)
    assert mapped(lambda v: lax.psum(v, {"x", "y"}), rows, P(), grid)(x).tolist() == [28]
    with pytest.raises(MeshError) as caught:
        mapped(lambda v: lax.all_gather(v, {"x", "y"}), rows, rows, grid)(x)
    assert caught.value.why == "the first axis is the major one, and a set has no first"
    assert caught.value.fix == "lax.all_gather(x, ('x', 'y'))"


def test_the_fix_for_a_bad_axis_can_be_pasted():
    for call, fix in (
        (lambda v: v + lax.axis_index(None), "lax.axis_index('i')"),
        (lambda v: lax.ppermute(v, 3, [(0, 1)]), "lax.ppermute(x, 'i', perm)"),
        (lambda v: lax.all_to_all(v, 3, 0, 0), "lax.all_to_all(x, 'i', 0, 0)"),
        (lambda v: lax.psum(v, ("i", "i")), "lax.psum(x, 'i')"),
    ):
        with pytest.raises(MeshError) as caught:
            mapped(call)(mnp.arange(8.0))
        assert caught.value.fix == fix


def test_no_axes_at_all():
    x = mnp.arange(8.0)
    assert mapped(lambda v: v + lax.axis_index(()) + lax.axis_size(()))(x).tolist() == list(range(1, 9))
    assert mapped(lambda v: lax.psum(v, ()))(x).tolist() == x.tolist()


def test_positions_of_a_permutation_are_integers():
    with pytest.raises(ShapeError) as caught:
        mapped(lambda v: lax.ppermute(v, "i", [(0.5, 1)]))(mnp.arange(8.0))
    assert caught.value.what == "ppermute is given [(0.5, 1)] as its permutation."


@pytest.mark.parametrize("in_specs, copies", [(P("i"), 4), (P(), 1)])
def test_a_scattered_sum_of_bools_counts(in_specs, copies):
    flags = mnp.array([True, False, True, True] * copies)
    counts = mapped(lambda x: lax.psum_scatter(x, "i"), in_specs)(flags)
    assert counts.dtype == np.int32 and counts.tolist() == [4, 0, 4, 4]


def test_a_failing_body_leaves_nothing_behind():
    def fails(x):
        lax.scan(lambda c, _: {}["missing"], x, None, length=2)

    for f, x in (
        (mapped(fails), np.ones(8)),
        (mw.jit(mapped(fails)), np.ones(8)),
        (mw.vmap(mapped(fails)), np.ones((2, 8))),
    ):
        with pytest.raises(KeyError, match="missing"):
            f(mnp.array(x))
        assert state.manual is None and state.builder is None
    with pytest.raises(MeshError, match="outside of a shard_map"):
        lax.psum(1.0, "i")


@pytest.mark.parametrize("count", [2, 3])
def test_a_collective_in_a_switch_that_devices_decide_differently(count):
    def body(x):
        shared = [lambda x: lax.pbroadcast(lax.psum(x, "i"), "i"), lambda x: x, lambda x: -x][:count]
        return lax.switch(lax.axis_index("i"), shared, x)

    with pytest.raises(VarianceError) as caught:
        mapped(body)(mnp.arange(8.0))
    assert caught.value.what == "A collective over i is inside of a switch that devices along i decide differently."
    assert caught.value.fix == (
        "do the collective outside of the switch, or decide by a value that is the same on all devices: "
        "lax.pmax(index, 'i')"
    )


def test_results_by_parts_that_make_up_an_axis():
    x = mnp.arange(4.0)
    joined = mapped(lambda x: x, out_specs=P(("i:(1)2", "i:(2)2")))(x)
    assert joined.tolist() == x.tolist() and joined.sharding.spec == P("i")
    partial_sum = mapped(lambda x: x, out_specs=P(sum=("i:(1)2", "i:(2)2")))(x)
    assert partial_sum.sharding.spec == P(sum="i") and mw.reshard(partial_sum, P()).tolist() == [6]
    whole = mapped(lambda x: x, out_specs=P("i:(1)4"))(x)
    assert whole.tolist() == x.tolist() and whole.sharding.spec == P("i")
    swapped = mapped(lambda x: x, P(("i:(2)2", "i:(1)2")))(x)
    assert swapped.tolist() == [0, 2, 1, 3]


def test_an_owed_sum_is_made_in_a_trace_without_a_mesh():
    def total(x):
        return mw.reshard(mapped(lambda x: x, out_specs=P(sum="i"))(x), P())

    x = mnp.arange(8.0)
    assert mw.jit(total)(x).tolist() == [12, 16]
    assert mw.grad(lambda x: (total(x) ** 2).sum())(x).tolist() == [24, 32] * 4


def test_constraints_in_a_body_are_about_the_axes_it_leaves_alone():
    grid = mw.make_mesh((2, 4), ("x", "y"))
    x = mnp.arange(8.0)

    def constrained(place):
        def body(x):
            return lax.with_sharding_constraint(x * 2, place)

        return mw.shard_map(body, mesh=grid, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})

    for place in (P("y"), mw.NamedSharding(grid, P("y"))):
        assert constrained(place)(x).tolist() == (2 * x).tolist()
        assert mw.jit(constrained(place))(x).tolist() == (2 * x).tolist()
    for place in (P("x"), mw.NamedSharding(grid, P("x"))):
        with pytest.raises(ShardingError) as caught:
            constrained(place)(x)
        assert caught.value.what == "A value inside of a shard_map is to be sharded as P('x',)."
        assert caught.value.why == "the shard_map has split along x already, and the value is one device's block"
        assert caught.value.fix == "leave 'x' out of the spec, or out of the axis_names of the shard_map"


def test_axis_names_in_any_container():
    grid, x = mw.make_mesh((2, 4), ("x", "y")), mnp.arange(8.0)
    for names in ("x", ["x"], {"x": 1}, (name for name in ["x"])):
        f = mw.shard_map(lambda x: lax.psum(x, "x"), mesh=grid, in_specs=P("x"), out_specs=P(), axis_names=names)
        for _ in range(2):
            assert f(x).tolist() == [4, 6, 8, 10]
    with pytest.raises(MeshError) as caught:
        mw.shard_map(lambda x: x, mesh=grid, in_specs=P(), out_specs=P(), axis_names=3)
    assert caught.value.what == "shard_map is given axis_names=3."


def test_a_map_in_a_map_is_over_the_same_mesh():
    grid = mw.make_mesh((2, 4), ("x", "y"))

    def outer(mesh):
        def body(x):
            return mw.shard_map(lambda x: x, mesh=mesh, in_specs=P("y"), out_specs=P("y"), axis_names={"y"})(x)

        return mw.shard_map(body, mesh=grid, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})

    x = mnp.arange(24.0)
    for mesh in (None, grid, mw.AbstractMesh((2, 4), ("x", "y"))):
        assert outer(mesh)(x).tolist() == x.tolist()
    with pytest.raises(MeshError) as caught:
        outer(mw.make_mesh((2, 3), ("x", "y")))(x)
    assert caught.value.what == (
        'shard_map is given the mesh <["x"=2, "y"=3]> inside of a shard_map over <["x"=2, "y"=4]>.'
    )


def test_a_gradient_inside_of_a_body_is_summed():
    w, x = mnp.ones(2), mnp.arange(8.0)

    def loss(w, x):
        return (w * x).sum()

    def by_hand(w, x):
        return lax.psum(mw.grad(loss)(lax.pbroadcast(w, "i"), x), "i")

    whole = mapped(mw.grad(loss), (P(), P("i")), P())(w, x)
    assert whole.tolist() == mapped(by_hand, (P(), P("i")), P())(w, x).tolist() == [12, 16]


def test_pcast_is_pbroadcast():
    assert mapped(lambda x: lax.pcast(x, "i", to="varying"), P())(mnp.ones(1)).tolist() == [1] * 4
    with pytest.raises(mw.MeshwrightError) as caught:
        mapped(lambda x: lax.pcast(x, "i", to="unreduced"), P())(mnp.ones(1))
    assert caught.value.what == "pcast is given to='unreduced'."
