"""What is wrong under shard_map is refused in one message: what, the user's line, why, and a fix that works."""

from __future__ import annotations

import linecache
from functools import partial

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax

MESH = mw.make_mesh((4, 2), ("i", "j"))
smap = partial(mw.shmap, mesh=MESH)
strict = partial(mw.shmap, mesh=MESH, auto_pbroadcast=False)
X = np.arange(8, dtype=np.float32)
Y = np.arange(2, dtype=np.float32) + 1
M = np.arange(32, dtype=np.float32).reshape(8, 4)
RING = [(n, (n + 1) % 4) for n in range(4)]


def refused(function, error=mw.MeshwrightError):
    """The error of calling ``function``, which is one lambda on one line; that line must be named."""
    with pytest.raises(error) as caught:
        function()
    line = function.__code__.co_firstlineno
    shown = f"test_errors.py:{line}   {linecache.getline(__file__, line).strip()}"
    assert caught.value.where == shown, caught.value
    return str(caught.value).replace(shown, "HERE")


def expect(function, what, why, *fix):
    assert refused(function) == f"{what}\n  at:   HERE\n  why:  {why}\n  fix:  " + "\n        ".join(fix)


def close(found, expected):
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-6)


# Results that vary where they must not


def test_a_forgotten_psum():
    expect(
        lambda: smap(lambda x: x.sum(), P("i"), P())(X),
        "Result of the function is float32[]{i}, but out_specs has P().",
        "it may differ between devices along i; by the spec all return the same",
        "lax.psum(x, 'i') or lax.pmean(x, 'i') if it is a sum or a mean over devices",
        "or return x[None], and name 'i' in the spec to join what the devices return: out_specs=mw.P('i')",
    )
    close(smap(lambda x: lax.psum(x.sum(), "i"), P("i"), P())(X), X.sum())
    close(smap(lambda x: lax.pmean(x.mean(), "i"), P("i"), P())(X), X.mean())
    close(smap(lambda x: x.sum()[None], P("i"), P("i"))(X), X.reshape(4, 2).sum(1))


def test_an_unmapped_output_that_varies():
    expect(
        lambda: smap(lambda x: 2 * x, P(("i", "j")), P())(X),
        "Result of the function is float32[1]{i,j}, but out_specs has P().",
        "it may differ between devices along i, j; by the spec all return the same",
        "lax.psum(x, ('i', 'j')) or lax.pmean(x, ('i', 'j')) if it is a sum or a mean over devices",
        "lax.all_gather_invariant(x, ('i', 'j')) if every device needs all of it",
        "or name ('i', 'j') in the spec to join what the devices return: out_specs=mw.P(('i', 'j'))",
    )
    close(smap(lambda x: lax.psum(2 * x, ("i", "j")), P(("i", "j")), P())(X), 2 * X.sum())
    close(smap(lambda x: lax.all_gather_invariant(2 * x, ("i", "j")), P(("i", "j")), P())(X), 2 * X)
    close(smap(lambda x: 2 * x, P(("i", "j")), P(("i", "j")))(X), 2 * X)


def test_a_result_that_varies_over_an_axis_more_than_its_spec_names():
    expect(
        lambda: smap(lambda x: 2 * x, P("i", "j"), P("i"))(M),
        "Result of the function is float32[2,2]{i,j}, but out_specs has P('i',).",
        "it may differ between devices along j; by the spec all return the same",
        "lax.psum(x, 'j') or lax.pmean(x, 'j') if it is a sum or a mean over devices",
        "lax.all_gather_invariant(x, 'j') if every device needs all of it",
        "or name 'j' in the spec to join what the devices return",
    )
    close(smap(lambda x: 2 * x, P("i", "j"), P("i", "j"))(M), 2 * M)
    close(smap(lambda x: lax.all_gather_invariant(x, "j", axis=1), P("i", "j"), P("i"))(M), M)


def test_the_result_in_a_tree_is_named():
    expect(
        lambda: smap(lambda x: {"loss": x.sum(), "all": [x]}, P("i"), {"loss": P(), "all": P("i")})(X),
        "Result ['loss'] of the function is float32[]{i}, but out_specs has P().",
        "it may differ between devices along i; by the spec all return the same",
        "lax.psum(x, 'i') or lax.pmean(x, 'i') if it is a sum or a mean over devices",
        "or return x[None], and name 'i' in the spec to join what the devices return: out_specs=mw.P('i')",
    )


def test_what_is_the_same_without_the_type_saying_so_leaves_by_replicated():
    unchecked = mw.shard_map(
        lambda x: lax.all_gather(x, "i"), mesh=MESH, in_specs=P("i"), out_specs=P(), check_vma=False
    )
    close(unchecked(X), X)
    close(smap(lambda x: lax.all_gather(x, "i"), P("i"), P(replicated={"i"}))(X), X)


def test_check_rep_is_the_older_name_of_check_vma():
    close(mw.shard_map(lambda x: x, mesh=MESH, in_specs=P("i"), out_specs=P("i"), check_rep=True)(X), X)
    gathered = mw.shard_map(
        lambda x: lax.all_gather(x, "i"), mesh=MESH, in_specs=P("i"), out_specs=P(), check_rep=False
    )
    close(gathered(X), X)


# Names of axes


def test_an_unknown_axis_in_a_spec():
    expect(
        lambda: smap(lambda x: x, P("k"), P())(X),
        "shard_map's in_specs has P('k',) for argument 0: there is no mesh axis 'k' to cut it along.",
        "the axes here are i, j",
        "'i' or 'j'",
    )
    expect(
        lambda: smap(lambda x: (x, {"y": x}), P("i"), (P("i"), P("k")))(X),
        "shard_map's out_specs has P('k',) for the result [1]['y']: there is no mesh axis 'k' to cut it along.",
        "the axes here are i, j",
        "'i' or 'j'",
    )


def test_an_unknown_axis_in_a_collective():
    expect(
        lambda: smap(lambda x: lax.psum(x, "k"), P("i"), P())(X),
        "psum names the mesh axis 'k', which is not there.",
        "the axes here are i, j",
        "'i' or 'j'",
    )


def test_an_axis_that_is_no_name():
    expect(
        lambda: smap(lambda x: lax.psum(x, 0), P("i"), P())(X),
        "psum is given 0 as its axis.",
        "an axis is named by a string, several by a tuple of strings",
        "lax.psum(x, 'i')",
    )


def test_an_axis_repeated_in_a_spec():
    expect(
        lambda: smap(lambda x: x, P("i", "i"), P("i"))(M),
        "shard_map's in_specs has P('i', 'i') for argument 0.",
        "it names the mesh axis 'i' twice",
        "name each axis once in a spec",
    )
    close(smap(lambda x: x, P("i", "j"), P("i", "j"))(M), M)


def test_an_axis_repeated_in_a_collective():
    expect(
        lambda: smap(lambda x: lax.psum(x, ("i", "i")), P("i"), P())(X),
        "psum names the mesh axis 'i' twice.",
        "the devices along an axis take part once",
        "lax.psum(x, 'i')",
    )
    close(smap(lambda x: lax.psum(x, "i"), P("i"), P())(X), X.reshape(4, 2).sum(0))


def test_a_collective_on_an_axis_that_is_not_manual():
    expect(
        lambda: smap(lambda x: lax.psum(x, "j"), P("i"), P("i"), axis_names={"i"})(X),
        "psum names the mesh axis 'j', which is not there.",
        "the mesh has it, but the function is written for i only",
        "axis_names={'i', 'j'} in the shard_map",
    )
    close(smap(lambda x: lax.psum(x, "j"), P("i"), P("i"), axis_names={"i", "j"})(X), 2 * X)


def test_a_spec_with_an_axis_that_is_not_manual():
    expect(
        lambda: smap(lambda x: x, P("i", "j"), P("i"), axis_names={"i"})(M),
        "shard_map's in_specs has P('i', 'j') for argument 0: there is no mesh axis 'j' to cut it along.",
        "the mesh has it, but the function is written for i only",
        "axis_names={'i', 'j'} in the shard_map",
    )
    close(smap(lambda x: x, P("i"), P("i"), axis_names={"i"})(M), M)


def test_axis_names_that_the_mesh_does_not_have():
    expect(
        lambda: smap(lambda x: x, P("i"), P("i"), axis_names={"k"})(X),
        "shard_map's axis_names has 'k'.",
        "the mesh has the axes i, j",
        "axis_names={'i', 'j'}",
    )


def test_parts_that_an_axis_does_not_have():
    expect(
        lambda: smap(lambda x: lax.psum(x, "i:(1)3"), P("i"), P())(X),
        "psum names the mesh axis 'i:(1)3', which is not there.",
        "'i' has size 4, which has no part of size 3 after one of size 1",
        "'i' or 'j'",
    )
    expect(
        lambda: smap(lambda x: x, P("i:(4)2"), P())(X),
        "shard_map's in_specs has P('i:(4)2',) for argument 0: there is no mesh axis 'i:(4)2' to cut it along.",
        "'i' has size 4, which has no part of size 2 after one of size 4",
        "'i' or 'j'",
    )


def test_parts_that_do_not_fit_together():
    six = mw.make_mesh((6,), ("x",))
    expect(
        lambda: mw.shmap(lambda x: lax.psum(lax.psum(x, "x:(1)2"), "x:(1)3"), P(), P(), mesh=six)(X),
        "Parts of the mesh axis 'x' overlap without dividing each other.",
        "one ends at 2, another at 3, and 2 does not divide 3",
        "parts that begin where others end, such as 'x:(1)2' and 'x:(2)4'",
    )


def test_a_part_and_the_whole_of_an_axis():
    expect(
        lambda: smap(lambda x: lax.psum(x, ("i", "i:(1)2")), P("i"), P())(X),
        "psum names the mesh axis 'i:(1)2' twice.",
        "the devices along an axis take part once",
        "lax.psum(x, 'i')",
    )


# Meshes and nesting


def test_a_collective_outside_of_shard_map():
    fix = (
        "mw.shard_map(f, mesh=mesh, in_specs=…, out_specs=…)(x), where f calls lax.{}; "
        "over a batch, mw.vmap(f, axis_name='i')(x)"
    )
    why = "a collective is what the devices of a mesh compute together, each running the function of a shard_map"
    expect(lambda: lax.psum(X, "i"), "psum over 'i' is used outside of a shard_map.", why, fix.format("psum"))
    expect(
        lambda: lax.axis_index("i"),
        "axis_index over 'i' is used outside of a shard_map.",
        why,
        fix.format("axis_index"),
    )
    expect(
        lambda: mw.jit(lambda x: lax.all_gather(x, "i"))(X),
        "all_gather over 'i' is used outside of a shard_map.",
        why,
        fix.format("all_gather"),
    )


def test_no_mesh():
    expect(
        lambda: mw.shmap(lambda x: x, P("i"), P("i"))(X),
        "shard_map has no mesh.",
        "none was given, and none is current",
        "mesh=mw.make_mesh((8,), ('i',)), or mw.set_mesh(mesh) before the call",
    )
    close(mw.shmap(lambda x: x, P("i"), P("i"), mesh=mw.make_mesh((8,), ("i",)))(X), X)
    with mw.set_mesh(mw.make_mesh((8,), ("i",))):
        close(mw.shmap(lambda x: x, P("i"), P("i"))(X), X)


def test_something_else_than_a_mesh():
    expect(
        lambda: mw.shmap(lambda x: x, P("i"), P("i"), mesh=8)(X),
        "shard_map is given 8 as its mesh.",
        "it is not a mesh with devices",
        "mesh=mw.make_mesh((8,), ('i',)), or mw.set_mesh(mesh) before the call",
    )


def test_a_shard_map_inside_of_one_over_the_same_axis():
    expect(
        lambda: smap(smap(lambda x: x, P("i"), P("i"), axis_names={"i"}), P("i"), P("i"), axis_names={"i"})(X),
        "shard_map's axis_names has 'i'.",
        "an enclosing shard_map works over it already",
        "axis_names={'j'}",
    )
    close(smap(smap(lambda x: x, P("j"), P("j"), axis_names={"j"}), P("i"), P("i"), axis_names={"i"})(X), X)


def test_a_shard_map_inside_of_one_that_leaves_no_axis():
    expect(
        lambda: smap(smap(lambda x: x, P("j"), P("j")), P("i"), P("i"))(X),
        "shard_map has no mesh axis to work over.",
        "enclosing shard_maps work over all axes of the mesh: i, j",
        "leave the inner shard_map out, or leave it an axis: axis_names={…} in the outer one",
    )
    close(smap(smap(lambda x: x, P("j"), P("j")), P("i"), P("i"), axis_names={"i"})(X), X)


def test_a_spec_with_an_axis_of_the_enclosing_shard_map():
    inner = smap(lambda x: x, P("i"), P(), axis_names={"j"})
    expect(
        lambda: smap(lambda x: inner(x), P("i"), P("i"), axis_names={"i"})(X),
        "shard_map's in_specs has P('i',) for argument 0: there is no mesh axis 'i' to cut it along.",
        "an enclosing shard_map has cut along it already",
        "leave 'i' out of the spec",
    )
    inner = smap(lambda x: x, P(), P(), axis_names={"j"})
    close(smap(inner, P("i"), P("i"), axis_names={"i"})(X), X)


# Specs


@pytest.mark.parametrize("name", ["in_specs", "out_specs"])
def test_specs_that_are_missing(name):
    given = {"in_specs": P("i"), "out_specs": P("i"), name: None}
    expect(
        lambda: mw.shard_map(lambda x: x, mesh=MESH, **given)(X),
        f"shard_map needs {name}.",
        "they say how arguments are cut and results put together",
        f"{name}=mw.P('i'), or mw.P() for what is the same on all devices",
    )


def test_a_string_for_a_spec():
    expect(
        lambda: mw.shard_map(lambda x: x, mesh=MESH, in_specs="i", out_specs=P("i"))(X),
        "shard_map's in_specs has 'i' for argument 0.",
        "how a value is cut is said by a partition spec",
        "mw.P('i'), or mw.P() for a value that is the same on all devices",
    )
    expect(
        lambda: mw.shard_map(lambda x: x, mesh=MESH, in_specs=P("i"), out_specs="i")(X),
        "shard_map's out_specs has 'i' for the result.",
        "how a value is cut is said by a partition spec",
        "mw.P('i'), or mw.P() for a value that is the same on all devices",
    )


def test_none_among_the_specs():
    expect(
        lambda: smap(lambda x, y: x, (P("i"), None), P("i"))(X, Y),
        "shard_map's in_specs does not fit the arguments.",
        "in_specs is (P, None), and the arguments are (*, *)",
        "in_specs=mw.P(…) for all, or one entry per argument, "
        "and mw.P() instead of None for what is the same on all devices",
    )
    close(smap(lambda x, y: x * y, (P("i"), P()), P("i"))(X, Y), X * np.tile(Y, 4))


def test_specs_that_are_no_prefix():
    expect(
        lambda: smap(lambda x, y: x, (P("i"),), P("i"))(X, Y),
        "shard_map's in_specs does not fit the arguments.",
        "in_specs is (P,), and the arguments are (*, *)",
        "in_specs=mw.P(…) for all, or one entry per argument",
    )
    expect(
        lambda: smap(lambda x: {"a": x}, P("i"), {"b": P("i")})(X),
        "shard_map's out_specs does not fit the results.",
        "out_specs is {'b': P}, and the results are {'a': *}",
        "out_specs=mw.P(…) for all, or one entry per result",
    )
    close(smap(lambda x: {"a": x}, P("i"), P("i"))(X)["a"], X)


def test_specs_with_too_many_entries():
    expect(
        lambda: smap(lambda x: x, P("i", None), P("i"))(X),
        "shard_map's in_specs has P('i', None) for argument 0, which is float32[8].",
        "a spec has at most one entry per dim, and the value has 1",
        "mw.P('i',)",
    )
    expect(
        lambda: smap(lambda x: x, P("i"), P())(np.float32(1)),
        "shard_map's in_specs has P('i',) for argument 0, which is float32[].",
        "a spec has at most one entry per dim, and the value has none",
        "mw.P()",
    )


def test_scalars_have_no_dim_to_join_along():
    expect(
        lambda: smap(lambda x: x.sum(), P("i"), P("i"))(X),
        "shard_map's out_specs has P('i',) for the result, which is float32[]{i}.",
        "a spec has at most one entry per dim, and the value has none",
        "return x[None]: the dim to join along",
    )
    close(smap(lambda x: x.sum()[None], P("i"), P("i"))(X), X.reshape(4, 2).sum(1))


def test_an_unconstrained_dim():
    expect(
        lambda: smap(lambda x: x, P(P.UNCONSTRAINED), P())(X),
        "shard_map's in_specs has P(UNCONSTRAINED,) for argument 0.",
        "inside a shard_map every dim is cut as its spec says",
        "None instead of P.UNCONSTRAINED",
    )
    close(smap(lambda x: x, P(None), P())(X), X)


def test_a_dim_that_is_not_cut_evenly():
    expect(
        lambda: smap(lambda p: p["w"], P("i"), P("i"))({"w": np.ones((6, 2), np.float32)}),
        "shard_map cannot take argument 0['w']: dim 0 of f32[6,2] is not cut into 4 equal blocks by P('i',).",
        "6 is not a multiple of 4, and every device runs the same program on blocks of one shape",
        "pad dim 0 to 8, or leave it whole: None instead of 'i'",
    )
    close(smap(lambda x: x, P("i"), P("i"))(np.pad(np.ones((6, 2), np.float32), ((0, 2), (0, 0))))[:6], np.ones((6, 2)))
    close(smap(lambda x: x, P(None), P())(np.ones((6, 2), np.float32)), np.ones((6, 2)))


def test_keyword_arguments():
    expect(
        lambda: smap(lambda x, scale: x * scale, (P("i"), P()), P("i"))(X, scale=2.0),
        "A function under shard_map is called with scale=….",
        "in_specs has one entry for each argument by position",
        "pass scale by position",
    )
    close(smap(lambda x, scale: x * scale, (P("i"), P()), P("i"))(X, 2.0), 2 * X)


def test_an_argument_that_is_no_array():
    expect(
        lambda: smap(lambda x, mode: x, (P("i"), P()), P("i"))(X, "fast"),
        "Argument 1 of shard_map is not an array or a number: its type is str.",
        "the leaves of what goes in and comes out must be arrays, NumPy arrays or numbers",
        "pass an array, or mark an argument static: mw.jit(f, static_argnums=…)",
    )
    close(smap(lambda x, mode: x, (P("i"), P()), P("i"))(X, None), X)


def test_branching_in_python():
    with pytest.raises(mw.MeshwrightError) as caught:
        smap(lambda x: x if lax.psum(x.sum(), "i") > 0 else -x, P("i"), P("i"))(X)
    assert "needs the contents of a traced value bool[]" in caught.value.what
    assert "mw.lax.cond(condition, f, g, *operands)" in caught.value.fix
    close(smap(lambda x: lax.cond(lax.psum(x.sum(), "i") > 0, lambda: x, lambda: -x), P("i"), P("i"))(X), X)


def test_too_much_by_position():
    expect(
        lambda: mw.shmap(lambda x: x, P("i"), P("i"), MESH)(X),
        "shmap is given 1 functions and 3 specs.",
        "it takes a function, in_specs and out_specs",
        "mw.shmap(f, mw.P('i'), mw.P())",
    )


def test_no_function():
    expect(
        lambda: mw.shard_map(3, mesh=MESH, in_specs=P("i"), out_specs=P("i")),
        "shard_map is given 3, which is not a function.",
        "mw.shard_map takes a function and returns one",
        "mw.shard_map(f)(x), where f computes what you want from x",
    )


# What collectives are given


def test_dims_that_a_value_does_not_have():
    expect(
        lambda: smap(lambda x: lax.all_gather(x, "i", axis=1), P("i"), P("i"))(X),
        "all_gather is given dim 1 of a value of rank 1.",
        "its only dim is 0",
        "a dim between -1 and 0",
    )
    expect(
        lambda: smap(lambda x: lax.psum_scatter(x, "j", scatter_dimension=2), P("i"), P("i"))(M),
        "psum_scatter is given dim 2 of a value of rank 2.",
        "its dims are 0 to 1",
        "a dim between -2 and 1",
    )
    expect(
        lambda: smap(lambda x: lax.all_gather(x.sum(), "i"), P("i"), P("i"))(X),
        "all_gather is given dim 0 of a value of rank 0.",
        "a scalar has no dims",
        "x[None], a vector of one element",
    )
    close(smap(lambda x: lax.all_gather_invariant(x.sum()[None], "i"), P("i"), P())(X), X.reshape(4, 2).sum(1))


@pytest.mark.parametrize("name", ["psum_scatter", "all_to_all"])
def test_dims_that_cannot_be_shared_out(name):
    call = {"psum_scatter": lax.psum_scatter, "all_to_all": lambda x, i: lax.all_to_all(x, i, 0, 0)}[name]
    with pytest.raises(mw.MeshwrightError) as caught:
        smap(lambda x: call(x, "i"), P("i"), P("i"))(X)
    assert (caught.value.what, caught.value.why, caught.value.fix) == (
        f"{name} cannot take f32[2]{{i}}.",
        "dim 0 of size 2 is not cut into 4 equal parts, one for each device",
        "a dim whose size is a multiple of 4",
    )


def test_untiled_collectives_give_away_one_row_each():
    expect(
        lambda: smap(lambda x: lax.psum_scatter(x, "j", tiled=False), P(None, "i"), P("i"))(M),
        "psum_scatter with tiled=False cannot take float32[8,1]{i}.",
        "dim 0 has size 8, and is to be given away to 2 devices, one row each",
        "tiled=True, which gives each device a block of rows",
    )
    expect(
        lambda: smap(lambda x: lax.pscatter(x, "i", tiled=False), P(), P("i"))(X),
        "pscatter with tiled=False cannot take float32[8].",
        "dim 0 has size 8, and is to be given away to 4 devices, one row each",
        "tiled=True, which gives each device a block of rows",
    )
    expect(
        lambda: smap(lambda x: lax.all_to_all(x, "j", 1, 0, tiled=False), P("i"), P("i"))(M),
        "all_to_all with tiled=False cannot take float32[2,4]{i}.",
        "dim 1 has size 4, and is to be given away to 2 devices, one row each",
        "tiled=True, which gives each device a block of rows",
    )
    close(smap(lambda x: lax.pscatter(x, "i", tiled=True), P(), P("i"))(X), X)


def test_permutations_that_are_none():
    fix = "perm=[(i, (i + 1) % 4) for i in range(4)]"
    expect(
        lambda: smap(lambda x: lax.ppermute(x, "i", [1, 2]), P("i"), P("i"))(X),
        "ppermute is given [1, 2] as its permutation.",
        "it is a list of pairs (source, target) of positions along the axis",
        "perm=[(i, (i + 1) % n) for i in range(n)]",
    )
    expect(
        lambda: smap(lambda x: lax.ppermute(x, "i", [(0, 4)]), P("i"), P("i"))(X),
        "ppermute cannot take f32[2]{i}.",
        "the positions along i are 0 to 3, and 4 is a target",
        fix,
    )
    expect(
        lambda: smap(lambda x: lax.ppermute(x, "i", [(0, 1), (2, 1)]), P("i"), P("i"))(X),
        "ppermute cannot take f32[2]{i}.",
        "1 is a target twice",
        fix,
    )
    expect(
        lambda: smap(lambda x: lax.ppermute(x, "i", [(3, 1), (3, 2)]), P("i"), P("i"))(X),
        "ppermute cannot take f32[2]{i}.",
        "3 is a source twice",
        fix,
    )
    perm = [(i, (i + 1) % 4) for i in range(4)]
    close(smap(lambda x: lax.ppermute(x, "i", perm), P("i"), P("i"))(X), np.roll(X, 2))


def test_sums_of_groups_differ_between_groups():
    expect(
        lambda: smap(lambda x: lax.psum(x, "i", axis_index_groups=[[0, 1], [2, 3]]), P("i"), P())(X),
        "Result of the function is float32[2]{i}, but out_specs has P().",
        "it may differ between devices along i; by the spec all return the same",
        "lax.psum(x, 'i') or lax.pmean(x, 'i') if it is a sum or a mean over devices",
        "lax.all_gather_invariant(x, 'i') if every device needs all of it",
        "or name 'i' in the spec to join what the devices return: out_specs=mw.P('i')",
    )
    sums = X.reshape(2, 2, 2).sum(1)
    in_groups = lambda x: lax.psum(x, "i", axis_index_groups=[[0, 1], [2, 3]])
    close(smap(in_groups, P("i"), P("i"))(X), sums.repeat(2, 0).reshape(-1))
    close(smap(lambda x: lax.psum(x, "i:(2)2"), P("i"), P("i:(1)2"))(X), sums.reshape(-1))


def test_pscatter_of_a_varying_value():
    expect(
        lambda: smap(lambda x: lax.pscatter(x, "i"), P("i"), P("i"))(M),
        "pscatter over i cannot take f32[2,4]{i}.",
        "it varies over i, and pscatter takes a value that is the same on all devices",
        "lax.psum_scatter(x, …) sums what differs and scatters the sum",
    )


# auto_pbroadcast=False


def test_a_missing_pbroadcast():
    expect(
        lambda: strict(lambda x, y: x * y, (P("i"), P()), P("i"))(X, Y),
        "mul cannot take f32[2]{i}, f32[2].",
        "its operands differ in the mesh axes they vary over",
        "lift operand 1, f32[2]: lax.pbroadcast(x, 'i')",
    )
    close(strict(lambda x, y: x * lax.pbroadcast(y, "i"), (P("i"), P()), P("i"))(X, Y), X * np.tile(Y, 4))


def test_a_missing_pbroadcast_over_two_axes():
    expect(
        lambda: strict(lambda x, y: y - x, (P(("i", "j")), P()), P(("i", "j")))(X, Y[:1]),
        "sub cannot take f32[1], f32[1]{i,j}.",
        "its operands differ in the mesh axes they vary over",
        "lift operand 0, f32[1]: lax.pbroadcast(x, ('i', 'j'))",
    )
    fixed = strict(lambda x, y: lax.pbroadcast(y, ("i", "j")) - x, (P(("i", "j")), P()), P(("i", "j")))
    close(fixed(X, Y[:1]), Y[0] - X)


def test_operands_that_each_lack_an_axis():
    expect(
        lambda: strict(lambda x, y: x * y, (P("i"), P("j")), P(("i", "j")))(X, X[:4]),
        "mul cannot take f32[2]{i}, f32[2]{j}.",
        "its operands differ in the mesh axes they vary over",
        "lift operand 0, f32[2]{i}: lax.pbroadcast(x, 'j')",
    )
    expect(
        lambda: strict(lambda x, y: lax.pbroadcast(x, "j") * y, (P("i"), P("j")), P(("i", "j")))(X, X[:4]),
        "mul cannot take f32[2]{i,j}, f32[2]{j}.",
        "its operands differ in the mesh axes they vary over",
        "lift operand 1, f32[2]{j}: lax.pbroadcast(x, 'i')",
    )
    fixed = lambda x, y: lax.pbroadcast(x, "j") * lax.pbroadcast(y, "i")
    assert strict(fixed, (P("i"), P("j")), P(("i", "j")))(X, X[:4]).shape == (16,)


def test_a_missing_pbroadcast_in_an_op_of_several_operands():
    expect(
        lambda: strict(lambda x, y: mnp.where(x > 1, x, y), (P("i"), P()), P("i"))(X, Y),
        "select cannot take bool[2]{i}, f32[2]{i}, f32[2].",
        "its operands differ in the mesh axes they vary over",
        "lift operand 2, f32[2]: lax.pbroadcast(x, 'i')",
    )


def test_constants_need_a_pbroadcast_too():
    expect(
        lambda: strict(lambda x: x * mnp.ones(2), P("i"), P("i"))(X),
        "mul cannot take f32[2]{i}, f32[2].",
        "its operands differ in the mesh axes they vary over",
        "lift operand 1, f32[2]: lax.pbroadcast(x, 'i')",
    )


def test_a_result_that_must_vary():
    expect(
        lambda: strict(lambda x: 2 * x, P(), P("i"))(Y),
        "Result of the function is float32[2], but out_specs has P('i',).",
        "it is the same on all devices along i",
        "lax.pbroadcast(x, 'i'), or leave 'i' out of the spec",
    )
    close(strict(lambda x: lax.pbroadcast(2 * x, "i"), P(), P("i"))(Y), np.tile(2 * Y, 4))
    close(strict(lambda x: 2 * x, P(), P())(Y), 2 * Y)


NEED_VARYING = {
    "psum": lambda x: lax.psum(x, "i"),
    "pmean": lambda x: lax.pmean(x, "i"),
    "pmax": lambda x: lax.pmax(x, "i"),
    "pmin": lambda x: lax.pmin(x, "i"),
    "all_gather": lambda x: lax.all_gather(x, "i"),
    "all_gather_invariant": lambda x: lax.all_gather_invariant(x, "i"),
    "psum_scatter": lambda x: lax.psum_scatter(x, "i"),
    "all_to_all": lambda x: lax.all_to_all(x, "i", 0, 0),
    "ppermute": lambda x: lax.ppermute(x, "i", RING),
}


@pytest.mark.parametrize("name", NEED_VARYING)
def test_collectives_of_an_invariant(name):
    call = NEED_VARYING[name]
    with pytest.raises(mw.MeshwrightError) as caught:
        strict(lambda x: (call(x), ())[1], P(), ())(X)
    assert (caught.value.what, caught.value.why, caught.value.fix) == (
        f"{name} over i cannot take f32[8].",
        f"it is the same on all devices along i, and {name} takes a value that varies",
        f"lax.{name}(lax.pbroadcast(x, 'i'), …) if a copy from each device is meant, or leave the {name} out",
    )
    strict(lambda x: (call(lax.pbroadcast(x, "i")), ())[1], P(), ())(X)
    smap(lambda x: (call(x), ())[1], P(), ())(X)


def test_a_psum_of_an_invariant_names_its_line():
    expect(
        lambda: strict(lambda x: lax.psum(x, "i"), P(), P())(Y),
        "psum over i cannot take f32[2].",
        "it is the same on all devices along i, and psum takes a value that varies",
        "lax.psum(lax.pbroadcast(x, 'i'), …) if a copy from each device is meant, or leave the psum out",
    )
    close(strict(lambda x: lax.psum(lax.pbroadcast(x, "i"), "i"), P(), P())(Y), 4 * Y)


def test_a_pbroadcast_of_what_varies():
    expect(
        lambda: strict(lambda x: lax.pbroadcast(x, "i"), P("i"), P("i"))(X),
        "pbroadcast over i cannot take f32[2]{i}.",
        "it varies over i, and pbroadcast takes a value that is the same on all devices",
        "leave the pbroadcast out: the value varies already",
    )
    close(strict(lambda x: x, P("i"), P("i"))(X), X)


def test_branches_of_different_variance():
    expect(
        lambda: strict(lambda x, y: lax.cond(True, lambda: x, lambda: y), (P("i"), P()), P("i"))(X, Y),
        "The branches of cond return values of different variance.",
        "result 0 is f32[2] and f32[2]{i}",
        "lax.pbroadcast(x, 'i') in the branch where it is the same on all devices",
    )
    lifted = lambda x, y: lax.cond(True, lambda: x, lambda: lax.pbroadcast(y, "i"))
    close(strict(lifted, (P("i"), P()), P("i"))(X, Y), X)
    expect(
        lambda: strict(lambda x, y: lax.switch(0, [lambda: x, lambda: y]), (P("i"), P()), P("i"))(X, Y),
        "The branches of switch return values of different variance.",
        "result 0 is f32[2]{i} and f32[2]",
        "lax.pbroadcast(x, 'i') in the branch where it is the same on all devices",
    )
    close(smap(lambda x, y: lax.switch(1, [lambda: x, lambda: y]), (P("i"), P()), P("i"))(X, Y), np.tile(Y, 4))


def test_a_carry_that_must_start_varying():
    expect(
        lambda: strict(lambda x: lax.scan(lambda c, r: (c + r, c), mnp.zeros(()), x)[1], P("i"), P("i"))(X),
        "add cannot take f32[], f32[]{i}.",
        "its operands differ in the mesh axes they vary over",
        "lift operand 0, f32[]: lax.pbroadcast(x, 'i')",
    )
    fixed = lambda x: lax.scan(lambda c, r: (c + r, c), lax.pbroadcast(mnp.zeros(()), "i"), x)[1]
    close(strict(fixed, P("i"), P("i"))(X), np.stack([np.zeros(4), X[::2]], 1).reshape(-1))


# Partial sums

PARTIAL_SUM = smap(lambda x: x, P("i"), P(sum="i"))(X)  # f32[2]{U:i}
SUM = X.reshape(4, 2).sum(0)
SUMMAND = "each device holds a summand of an unreduced value, and "


def test_what_is_not_linear_does_not_take_a_sum_that_is_owed():
    fix = "sum it first: mw.reshard(x, mw.P())"
    expect(
        lambda: mnp.exp(PARTIAL_SUM),
        "exp cannot take f32[2]{U:i}.",
        SUMMAND + "exp of the sum is not the sum of exp",
        fix,
    )
    expect(
        lambda: mnp.max(PARTIAL_SUM),
        "reduce_max cannot take f32[2]{U:i}.",
        SUMMAND + "reduce_max of the sum is not the sum of reduce_max",
        fix,
    )
    expect(
        lambda: PARTIAL_SUM + 1,
        "add cannot take f32[2]{U:i}, ~f32[].",
        SUMMAND + "add takes operands that are partial sums over the same axes",
        fix,
    )
    expect(
        lambda: PARTIAL_SUM * PARTIAL_SUM,
        "mul cannot take f32[2]{U:i}, f32[2]{U:i}.",
        SUMMAND + "mul takes one operand that is a partial sum",
        fix,
    )
    expect(
        lambda: 1 / PARTIAL_SUM,
        "div cannot take ~f32[], f32[2]{U:i}.",
        SUMMAND + "div is linear in its first operand alone",
        fix,
    )
    close(mnp.exp(mw.reshard(PARTIAL_SUM, P()) / 100), np.exp(SUM / 100))


def test_what_is_linear_does():
    for found, expected in (
        (2 * PARTIAL_SUM, 2 * SUM),
        (PARTIAL_SUM - PARTIAL_SUM / 2, SUM / 2),
        (PARTIAL_SUM.sum(), SUM.sum()),
        (PARTIAL_SUM[0], SUM[0]),
    ):
        assert mw.typeof(found).unreduced == ("i",)
        close(found, expected)


def test_what_rounds_is_not_linear():
    whole = smap(lambda x: x.astype("int32"), P("i"), P(sum="i"))(X)
    expect(
        lambda: PARTIAL_SUM.astype("int32"),
        "convert cannot take f32[2]{U:i}.",
        SUMMAND + "convert of the sum is not the sum of convert",
        "sum it first: mw.reshard(x, mw.P())",
    )
    expect(
        lambda: lax.div(whole, 2),
        "div cannot take i32[2]{U:i}, ~i32[].",
        SUMMAND + "div of the sum is not the sum of div",
        "sum it first: mw.reshard(x, mw.P())",
    )
    close(lax.div(mw.reshard(whole, P()), 2), SUM // 2)


def test_bools_are_not_summed():
    expect(
        lambda: smap(lambda x: x > 3, P("i"), P(sum="i"))(X),
        "Result of the function is bool[2]{i}, but out_specs has P(unreduced={'i'}).",
        "a sum of bools is not a bool",
        "x.astype('int32'), whose sum counts",
    )
    close(smap(lambda x: (x > 3).astype("int32"), P("i"), P(sum="i"))(X), (X > 3).reshape(4, 2).sum(0))


def test_branches_of_which_one_owes_a_sum():
    expect(
        lambda: mw.jit(lambda x, y: lax.cond(True, lambda: x, lambda: y))(PARTIAL_SUM, Y),
        "The branches of a cond do not fit together.",
        "one returns (f32[2]), another (f32[2]{U:i})",
        "return values of the same types from every branch",
    )


def test_the_summand_of_each_device_is_to_be_seen_where_there_are_devices():
    for n, shard in enumerate(PARTIAL_SUM.addressable_shards):
        close(shard.data, X[n // 2 * 2 : n // 2 * 2 + 2])
        assert shard.replica_id == n % 2  # devices along j hold the same, those along i other summands
    assert "data=[0. 1.]" in repr(PARTIAL_SUM.addressable_shards[0])
    nowhere, _ = mw.vjp(smap(lambda x: x, P("i"), P(sum="i")), X)
    expect(
        lambda: nowhere.addressable_shards[0].data,
        "There is no telling which device holds which summand of a value f32[2]{U:i}.",
        "it comes from a transformation that ran at once, and was put onto no mesh",
        "jit the transformation, whose results are on the mesh: mw.jit(lambda x: mw.vjp(f, x)[0])(x)",
    )
    close(mw.jit(lambda x: mw.vjp(smap(lambda x: x, P("i"), P(sum="i")), x)[0])(X).addressable_shards[7].data, X[6:])
    close(mw.reshard(PARTIAL_SUM, P()).addressable_shards[3].data, SUM)
    assert mw.typeof(mw.device_put(PARTIAL_SUM, mw.NamedSharding(MESH, P()))).short() == "f32[2]"


def test_an_array_like_a_partial_sum_is_whole_and_placed_as_it_is():
    for make in (mnp.zeros_like, mnp.ones_like, mnp.empty_like, lambda x: mnp.full_like(x, 3)):
        at_once, jitted = make(PARTIAL_SUM), mw.jit(make)(PARTIAL_SUM)
        assert mw.typeof(at_once).short() == mw.typeof(jitted).short() == "f32[2]"
        close(at_once, np.asarray(jitted))


def test_the_cotangent_of_a_sum_is_its_value():
    f = smap(lambda x: x, P("i"), P(sum="i"))
    for pull in (mw.vjp(f, X)[1], mw.linear_transpose(f, X)):
        for ct in (f(X), mw.reshard(f(X), P())):
            close(pull(ct)[0], np.tile(SUM, 4))


def test_a_function_of_summands_by_themselves_has_no_derivative_in_their_sum():
    f = smap(lambda x: lax.psum(x**2, "i"), P(sum="i"), P())
    expect(
        lambda: mw.vjp(f, PARTIAL_SUM)[1](SUM),
        "shard_map has no derivative in an argument that enters by P(unreduced={'i'}): f32[2]{i}.",
        "the function depends on the summands that devices hold, and not on their sum alone, so that the derivative "
        "would differ between devices along i",
        "sum it first: mw.reshard(x, mw.P()), or return it from the function before by out_specs=mw.P('i') if each "
        "device is to have its own",
    )
    by_block = smap(lambda x: lax.psum(x**2, "i"), P("i"), P())
    close(mw.vjp(by_block, X)[1](SUM)[0], 2 * X * np.tile(SUM, 4))


def test_how_a_sum_that_is_owed_enters():
    expect(
        lambda: smap(lambda x: x, P(), P())(PARTIAL_SUM),
        "shard_map cannot take argument 0: f32[2]{U:i} does not enter by P().",
        "each device holds a summand of it",
        "in_specs=mw.P(unreduced={'i'}), or sum it first: mw.reshard(x, mw.P())",
    )
    close(smap(lambda x: lax.psum(x, "i"), P(unreduced={"i"}), P())(PARTIAL_SUM), SUM)
    close(smap(lambda x: x, P(), P())(mw.reshard(PARTIAL_SUM, P())), SUM)


def test_what_is_whole_does_not_enter_as_a_summand():
    expect(
        lambda: smap(lambda x: x, P(sum="i"), P(sum="i"))(X),
        "shard_map cannot take argument 0: f32[8] does not enter by P(unreduced={'i'}).",
        "it is whole, and not a summand on each device",
        "in_specs=mw.P()",
    )


def test_a_sum_that_is_owed_is_not_closed_over():
    total = PARTIAL_SUM.sum()
    for value in (PARTIAL_SUM, total):
        expect(
            lambda value=value: smap(lambda x: x * value, P("i"), P("i"))(X),
            f"A function under shard_map closes over a value {mw.typeof(value).short()}.",
            "each device holds a summand of it, and what a function closes over comes in whole",
            "make it an argument with in_specs=mw.P(unreduced={'i'}), or sum it first: mw.reshard(x, mw.P())",
        )
    whole = mw.reshard(PARTIAL_SUM, P())
    close(smap(lambda x: x * whole, P("i"), P("i"))(X), X * np.tile(SUM, 4))


# Devices that would wait for each other


def test_a_collective_where_devices_decide_differently():
    expect(
        lambda: smap(lambda x: lax.cond(x[0] > 3, lambda: lax.psum(x, "i"), lambda: 0 * Y), P("i"), P("i"))(X),
        "A collective over i is inside of a cond that devices along i decide differently.",
        "a device that goes another way never comes to the collective, and the others wait for it",
        "do the collective outside of the cond, or decide by a value that is the same on all devices: "
        "lax.pmax(pred.astype('int32'), 'i') > 0",
    )

    def outside(x):
        total = lax.psum(x, "i")
        return lax.cond(x[0] > 3, lambda: total, lambda: 0 * Y)

    close(smap(outside, P("i"), P("i"))(X), np.where(X[::2, None] > 3, SUM, 0).reshape(-1))

    def together(x):
        return lax.cond(lax.pmax((x[0] > 3).astype("int32"), "i") > 0, lambda: lax.psum(x, "i"), lambda: 0 * Y)

    close(smap(together, P("i"), P())(X), SUM)


def test_a_collective_in_a_loop_that_devices_leave_at_different_times():
    expect(
        lambda: smap(lambda x: lax.while_loop(lambda c: c[0] < 9, lambda c: c + lax.psum(x, "i"), x), P("i"), P("i"))(
            X
        ),
        "A collective over i is inside of a while that devices along i decide differently.",
        "a device that goes another way never comes to the collective, and the others wait for it",
        "do the collective outside of the while, or decide by a value that is the same on all devices: "
        "lax.pmax(pred.astype('int32'), 'i') > 0",
    )


def test_a_collective_along_another_axis_is_right():
    """Devices along j decide alike, whatever devices along i do."""

    def body(x):
        both = lax.pbroadcast(x, "j")
        return lax.cond(x[0] > 3, lambda: lax.psum(both, "j"), lambda: x)

    close(smap(body, P("i"), P("i"))(X), np.where(np.repeat(X[::2], 2) > 3, 2 * X, X))


# Batches with names


def test_axes_that_a_vmap_does_not_have():
    expect(
        lambda: mw.vmap(lambda x: lax.psum(x, "c"), axis_name="b")(M),
        "psum names the mesh axis 'c', which is not there.",
        "the axes here are b",
        "'b'",
    )
    expect(
        lambda: mw.vmap(lambda x: lax.psum(x, "b:(1)2"), axis_name="b")(M),
        "psum names the mesh axis 'b:(1)2', which is not there.",
        "'b' is the axis of a vmap, and parts are of mesh axes",
        "'b'",
    )
    close(mw.vmap(lambda x: lax.psum(x, "b"), axis_name="b", out_axes=None)(M), M.sum(0))


def test_a_vmap_over_an_axis_that_is_there():
    expect(
        lambda: smap(lambda x: mw.vmap(lambda x: lax.psum(x, "i"), axis_name="i")(x), P("i"), P())(M),
        "vmap's axis_name 'i' is the name of an axis that is there already.",
        "a collective could not tell them apart",
        "another name",
    )


def test_batches_that_cannot_be_split():
    total = smap(lambda x: lax.psum(x, "i"), P("i"), P(), axis_names={"i"})
    expect(
        lambda: mw.vmap(total, spmd_axis_name="k")(M),
        "vmap cannot split its batch over the mesh axis 'k'.",
        "the mesh has the axes i, j",
        "spmd_axis_name=… with an axis of the mesh that the shard_map leaves alone",
    )
    expect(
        lambda: mw.vmap(total, spmd_axis_name="i")(M),
        "vmap cannot split its batch over the mesh axis 'i'.",
        "the shard_map inside works over i by hand",
        "spmd_axis_name=… with an axis of the mesh that the shard_map leaves alone",
    )
    expect(
        lambda: mw.vmap(total, spmd_axis_name="j")(M[:3]),
        "vmap cannot split a batch of 3 over 2 devices.",
        "3 is not a multiple of 2",
        "a batch of 4",
    )
    close(mw.vmap(total, spmd_axis_name="j")(M), M.sum(1, keepdims=True))
