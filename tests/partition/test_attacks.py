"""Unusual input to programs on a mesh: right numbers or clear errors."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax
from meshwright.errors import CommunicationError, MeshError, MeshwrightError, ShardingError, TreeError
from meshwright.testing import assert_comms

MESH = mw.make_mesh((2, 4), ("x", "y"))


def placed(x, *spec):
    return mw.device_put(mnp.array(x, dtype="float32"), mw.NamedSharding(MESH, P(*spec)))


def test_out_shardings_that_are_no_places_are_refused():
    for place in ("x", 3, object(), np.ones(2)):
        with pytest.raises(ShardingError, match="An array cannot be put onto"):
            mw.jit(lambda x: x, out_shardings=place)(mnp.ones(8))
    with pytest.raises(MeshError) as caught:
        mw.jit(lambda x: x, out_shardings=P("x"))(mnp.ones(8))
    assert caught.value.what == "P('x',) is given without a mesh."


def test_no_implicit_comms_holds_for_what_is_compiled_already():
    x, w = placed(np.ones((8, 4)), "x", "y"), placed(np.ones((4, 8)), "y", "x")
    f = mw.jit(lambda x, w: x @ w)
    assert float(f(x, w)[0, 0]) == 4
    compiled = f.lower(x, w).compile()
    for call in (f, compiled):
        with mw.no_implicit_comms(), pytest.raises(CommunicationError, match="that nobody wrote"):
            call(x, w)
    assert float(f(x, w)[0, 0]) == 4


def test_a_reshard_is_written_and_a_sum_is_not():
    x = placed(np.ones((8, 4)), "x")
    for way in (lambda x: mw.reshard(x, P(None, "x")), lambda x: lax.with_sharding_constraint(x, P("y"))):
        with mw.set_mesh(MESH), mw.no_implicit_comms():
            compiled = mw.jit(way).lower(x).compile()
            compiled(x)
            assert [one.implicit for one in compiled.collectives] == [False]
            with pytest.raises(CommunicationError, match="needs 1 collective that nobody wrote"):
                mw.jit(lambda x, way=way: way(x).sum())(x)


def test_a_mesh_without_devices_is_refused():
    there = mw.NamedSharding(mw.AbstractMesh((2, 4), ("x", "y")), P("x"))
    with pytest.raises(MeshError) as caught:
        mw.jit(lambda x: x @ x.T).lower(mw.ShapeDtypeStruct((8, 8), mnp.float32, sharding=there))
    assert caught.value.what == f"A program cannot be compiled for {there.mesh.short()}."
    assert caught.value.why == "the mesh has no devices"
    assert caught.value.fix == "mw.make_mesh((2, 4), ('x', 'y')), which needs no machine"


def test_a_shard_map_over_another_mesh_than_that_of_the_arguments():
    other = mw.make_mesh((2,), ("q",))
    f = mw.shard_map(lambda x: lax.psum(x, "q"), mesh=other, in_specs=P("q"), out_specs=P())
    with pytest.raises(MeshError) as caught:
        mw.jit(f)(placed(np.ones((8, 4)), "x"))
    assert caught.value.what == "One program names two meshes."


def test_check_partitioned_where_there_is_nothing_to_derive():
    x = placed(np.ones((8, 4)), "x")
    mw.check_partitioned(lambda x: None, x)
    mw.check_partitioned(lambda x: x > 0, x)


def test_check_partitioned_of_complex_numbers():
    x = mw.device_put(mnp.arange(16.0).reshape(4, 4) * (0.01 + 0.02j), mw.NamedSharding(MESH, P("x", "y")))
    mw.check_partitioned(lambda x: (x @ x, mnp.abs(x).sum()), x)
    other = iter(range(2))
    with pytest.raises(MeshwrightError, match="gives another result"):
        mw.check_partitioned(lambda x: x * 0 + next(other) * 1j, x)


def test_compiled_functions_take_arguments_as_they_were():
    x = placed(np.ones((8, 4)), "x")
    compiled = mw.jit(lambda a, *, b: a + b["w"]).lower(x, b={"w": x}).compile()
    for args, b, given in (((x,), x, "(*,), b=*"), (((x,),), {"w": x}, "((*,),), b={'w': *}")):
        with pytest.raises(TreeError) as caught:
            compiled(*args, b=b)
        assert caught.value.why == f"it was compiled for (*,), b={{'w': *}}, and is given {given}"


def test_assert_comms_wants_a_compiled_program():
    x = placed(np.ones((8, 4)), "x")
    f = mw.jit(lambda x: x.sum(0))
    for given, name in ((f, "Jitted"), (f.lower(x), "Lowered"), (lambda x: x, "function")):
        with pytest.raises(MeshwrightError) as caught:
            assert_comms(given, all_reduce=1)
        assert caught.value.what == f"assert_comms is given a {name}."
    assert_comms(f.lower(x).compile(), all_reduce=1)


def test_shardings_that_do_not_fit_the_arguments():
    rows = mw.NamedSharding(MESH, P("x"))
    three = "(sharding, sharding, sharding)"
    for given, shown in (([rows] * 3, three), ({"a": rows}, "{'a': sharding}"), ((None,), "(None,)")):
        with pytest.raises(TreeError) as caught:
            mw.jit(lambda x, w: x @ w, in_shardings=given)(mnp.ones((8, 4)), mnp.ones((4, 8)))
        assert caught.value.what == "jit's in_shardings is given shardings that do not fit the tree of arrays."
        assert caught.value.why == f"the shardings are {shown}, and the arrays (*, *)"
