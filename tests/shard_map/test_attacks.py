"""Unusual input to shard_map and its collectives: right numbers or clear errors."""

import numpy as np

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax
from meshwright.core.mesh import get_mesh

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
    owed = mapped(lambda x: x, out_specs=P(sum="i"), mesh=mesh)(ones)
    assert mw.reshard(owed, P()).tolist() == [512]
    loss = mapped(lambda w, x: lax.psum((w * x).sum(), "i"), (P(), P("i")), P(), mesh)
    assert float(mw.grad(loss)(mnp.array(1, dtype="bfloat16"), ones)) == 512
    assert float(mw.grad(lambda b: mnp.broadcast_to(b, (600,)).sum())(mnp.array(1, dtype="bfloat16"))) == 600
