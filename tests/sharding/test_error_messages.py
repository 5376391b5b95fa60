"""What is said when a mesh, a sharding or a text is wrong: the whole message, the place, and a fix that is right."""

from __future__ import annotations

import linecache

import numpy as np
import pytest

import meshwright as mw
from meshwright.errors import MeshError, MeshwrightError, TextError
from meshwright.sharding import DimensionSharding, Mesh, TensorSharding
from meshwright.sharding import check as sharding_check

MESH = Mesh.parse('<["x"=2, "y"=8, "z"=3]>')


def message(text: str, mesh: Mesh = MESH) -> str:
    with pytest.raises(MeshwrightError) as caught:
        TensorSharding.parse(text, mesh)
    return str(caught.value)


@pytest.mark.parametrize(
    ("body", "kind", "what", "at", "why", "fix"),
    [
        (
            '[{"x"}, {"w"}]', "UnknownAxisError", 'The mesh has no axis "w".', '[{"x"}, {^"w"}]',
            'the mesh is <["x"=2, "y"=8, "z"=3]>', 'use "x" or "y" or "z"',
        ),
        (
            '[{"x"}, {"x"}]', "RepeatedAxisError", 'The axis "x" appears twice.', '[{"x"}, {^"x"}]',
            "an axis shards one dim, or is replicated, or unreduced: it appears once in a sharding",
            'leave out one "x"',
        ),
        (
            '[{"y":(1)2, "y":(2)2}]', "MergeableAxesError",
            'The sub-axes "y":(1)2 and "y":(2)2 are consecutive.', '[{^"y":(1)2',
            'sub-axes are as big as possible, and together these two are "y":(1)4', '"y":(1)4',
        ),
        (
            '[{}], unreduced={"y", "x"}', "AxisOrderError",
            'The unreduced axes "y", "x" are not in the order of the mesh.', '[{}], unreduced={^"y"',
            'the mesh is <["x"=2, "y"=8, "z"=3]>, and parts of one axis go by their pre-size',
            'unreduced={"x", "y"}',
        ),
        (
            '[{"y":(1)4}], replicated={"y":(2)4}', "OverlapError",
            'The sub-axes "y":(1)4 and "y":(2)4 overlap.', '[{"y":(1)4}], replicated={^"y"',
            '"y":(2)2 is part of both', '"y":(1)2 in place of "y":(1)4',
        ),
        (
            '[{"y":(2)2}, {"y"}]', "OverlapError", 'The axis "y" is used, and so is its part "y":(2)2.', '[{^"y"',
            '"y" contains "y":(2)2', 'leave out one of "y", "y":(2)2',
        ),
        (
            '[{"y":(3)2}]', "SubAxisError", 'The sub-axis "y":(3)2 is no part of "y"=8.', '[{^"y"',
            "pre-size * size is 6, which does not divide 8", '"y":(1)2, or "y"',
        ),
        (
            '[{"z":(1)3}]', "SubAxisError", 'The sub-axis "z":(1)3 is all of "z"=3.', '[{^"z"',
            "a sub-axis is a proper part; the whole axis is written by its name", '"z"',
        ),
        (
            '[{"y":(2)1}]', "SubAxisError", 'The sub-axis "y":(2)1 has size 1.', '[{^"y"',
            "a sub-axis splits over at least 2 devices", '"y":(1)2, or "y"',
        ),
        (
            '[{"y":(0)2}]', "SubAxisError", 'The sub-axis "y":(0)2 has pre-size 0.', '[{^"y"',
            "the pre-size is the product of all sizes to its left, at least 1", '"y":(1)2, or "y"',
        ),
        (
            "[{?}, {}p2]", "PriorityError", "Dim 1 is empty and closed, and has the priority 2.", "[{?}, ^{}p2]",
            "there is nothing in it to propagate, now or later", "{}, or {?}p2 if it may be sharded further",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value.endswith("Error") else "",
)  # fmt: skip
def test_each_rule_has_its_own_message(body, kind, what, at, why, fix):
    """``at`` is the text with a ^ before the place that is pointed at."""
    text = f"sharding<@mesh, {body}>"
    with pytest.raises(getattr(sharding_check, kind)) as caught:
        TensorSharding.parse(text, MESH)
    column = f"sharding<@mesh, {at}".index("^")
    assert str(caught.value) == f"{what}\n  at:   {text}\n        {' ' * column}^\n  why:  {why}\n  fix:  {fix}"


def test_the_rank_must_be_that_of_the_tensor():
    assert message("sharding<@mesh, [{}]> : tensor<4x8xf32>") == (
        "The sharding has 1 dim and the tensor 2.\n"
        "  at:   sharding<@mesh, [{}]> : tensor<4x8xf32>\n"
        "                 ^\n"
        "  why:  a sharding says for each dim how it is sharded, and the shape is (4, 8)\n"
        "  fix:  write 2 dim shardings, {} for a dim that is not sharded"
    )


@pytest.mark.parametrize("mesh", [MESH, MESH.abstract_mesh], ids=["mesh", "abstract"])
def test_a_mesh_that_is_entered_is_current(mesh):
    with mesh as entered:
        assert mw.get_mesh() is entered is mesh
    assert mw.get_mesh() is None


def test_a_spec_with_more_entries_than_dims():
    sharding = mw.NamedSharding(MESH, mw.P("x", None, "y", unreduced={"z"}))

    def refused(use):
        with pytest.raises(sharding_check.RankError) as caught:
            use()
        return str(caught.value.why), caught.value.fix

    spec = "P('x', None, 'y', unreduced={'z'}) says for each dim how it is sharded"
    fix = "mw.P('x', None, unreduced={'z'})"
    assert refused(lambda: sharding.shard_shape((4, 8))) == (f"{spec}, and the shape is (4, 8)", fix)
    assert refused(lambda: sharding.to_tensor_sharding(2)) == (f"{spec}, and the tensor has 2 dims", fix)
    assert refused(lambda: sharding.is_equivalent_to(sharding, 2)) == (f"{spec}, and the tensor has 2 dims", fix)
    assert eval(fix, {"mw": mw}) == mw.P("x", None, unreduced={"z"})


@pytest.mark.parametrize(
    ("written", "fits"),
    [
        ((None, None, "x"), "mw.P(None, 'x')"),
        (("x", None, None), "mw.P('x', None)"),
        (("x", "y", "z"), "mw.P('x', 'y')"),
    ],
)
def test_a_struct_of_fewer_dims_than_its_spec_is_refused_where_it_is_made(written, fits):
    sharding = mw.NamedSharding(MESH, mw.P(*written))
    with pytest.raises(sharding_check.RankError) as caught:
        mw.ShapeDtypeStruct((4, 8), "float32", sharding=sharding)
    assert caught.value.what == "The sharding has 3 dims and the tensor 2."
    assert str(caught.value.where).startswith("test_error_messages.py:")
    assert caught.value.why == f"{mw.P(*written)!r} says for each dim how it is sharded, and the shape is (4, 8)"
    assert caught.value.fix == fits


def test_the_mesh_of_one_device_and_the_mesh_that_is_missing():
    one = Mesh.parse("@one = <[], device_ids=[3]>")
    assert message("sharding<@one, [{}]>", one) == (
        "A sharding on a single device has dims or axes.\n"
        "  at:   sharding<@one, [{}]>\n"
        "                        ^\n"
        "  why:  the whole tensor, whatever its rank, is on that device\n"
        "  fix:  sharding<@one, []>"
    )
    assert message("sharding<@two, [{}]>", one) == (
        "There is no mesh @two.\n"
        "  at:   sharding<@two, [{}]>\n"
        "                 ^\n"
        "  why:  the meshes are @one\n"
        "  fix:  write @one"
    )


@pytest.mark.parametrize(
    ("text", "at", "why"),
    [
        ('sharding<@mesh, [{"x"}, {"y"}]', 30, "expected `>`, found the end of the text"),
        ('sharding<@mesh [{"x"}]>', 15, "expected `,`, found `[`"),
        ("sharding<@mesh, [{x}]>", 18, 'expected an axis name in quotes, such as "x", found `x`'),
        ('sharding<@mesh, [{"x" "y"}]>', 22, 'expected `,` or `}`, found `"y"`'),
        ('sharding<@mesh, [{"x", ?, "y"}]>', 24, "expected `}`, found `,`"),
        ('sharding<@mesh, [{"x"}p01]>', 22, "expected a priority such as `p1`, without leading zeros, found `p01`"),
        ('sharding<@mesh, [{"y":2}]>', 22, "expected `(`, found `2`"),
        ('sharding<@mesh, [{"y":(1)}]>', 25, "expected an integer, found `}`"),
        ('sharding<@mesh, [{"y":(99999999999999999999)2}]>', 23, "the integer does not fit into 64 bits"),
        ('sharding<@mesh, [{"x"}], other={"y"}>', 25,
         "expected `replicated={…}` or `unreduced={…}`, each at most once, found `other`"),
        ("#sdy.sharding<@mesh, [{}], replicated={}>", 39, 'expected an axis name in quotes, such as "x", found `}`'),
        ('sharding<@mesh, [{"x}]>', 18,
         'this string is not closed, or has an escape other than \\\\, \\", \\n, \\t, \\0A'),
        ('sharding<@mesh, [{"x"}; {}]>', 22, "';' means nothing here"),
        ('sharding<@mesh, [{"x"}]> : vector<4>', 27, "expected a type such as tensor<4x8xf32>, found `vector`"),
        ('sharding<@mesh, [{"x"}]> [', 25, "expected the end of the text, found `[`"),
        ("#sdy.sharding <@mesh, [{}]>", 14, "nothing may stand between `#sdy.sharding` and `<`"),
        ('sharding<@"", [{}]>', 9, "the name of a mesh cannot be empty"),
    ],
)  # fmt: skip
def test_a_text_that_cannot_be_read_is_shown_with_the_character(text, at, why):
    with pytest.raises(TextError) as caught:
        TensorSharding.parse(text, MESH)
    error = caught.value
    assert error.what == f"This is not a sharding: character {at + 1}."
    assert error.where == f"{text}\n{' ' * at}^" and error.why == why
    assert error.fix.startswith("write a sharding as #sdy.sharding<@mesh,")


def test_the_line_and_column_of_a_longer_text():
    with pytest.raises(TextError) as caught:
        Mesh.parse('@mesh = <["x"=2,\n         "y"=oops]>')
    assert str(caught.value) == (
        "This is not a mesh: line 2, column 14.\n"
        '  at:            "y"=oops]>\n'
        "                     ^\n"
        "  why:  expected an integer, found `oops`\n"
        '  fix:  write a mesh as <["x"=2, "y"=4]> or <["x"=2, "y"=4], device_ids=[…]>, perhaps after '
        "`sdy.mesh @name = `"
    )


@pytest.mark.parametrize(
    ("text", "at", "what", "fix"),
    [
        ('<["x"=0]>', 2, 'The mesh axis "x" has size 0.', '"x"=1, or leave the axis out'),
        ('<["x"=2, "x"=2]>', 9, 'Two axes of the mesh are named "x".', 'rename one of them: "x2"'),
        ('<["x"=2], device_ids=[-1, 0]>', 22, "The device id -1 is negative.", "0"),
        (
            "<[], device_ids=[0, 1]>", 16, "A mesh without axes has 2 devices.",
            '<["x"=2], device_ids=[0, 1]>, or device_ids=[0]',
        ),
        (
            '<["x"=2], device_ids=[2, 0, 1]>', 21, "The axes have 2 places and 3 devices are given.",
            "give 2 devices, or none for the order 0, 1, 2, …",
        ),
        ('<["x"=2], device_ids=[1, 1]>', 25, "The device 1 is given twice.", "give each device once"),
        (
            'sdy.mesh @m = <["x"=2], device_ids=[7, 5]>', 35, "The device ids [7, 5] are not an order of 0, …, 1.",
            "device_ids=[1, 0]",
        ),
        ('<["x:(1)2"=2]>', 2, 'A mesh axis cannot be named "x:(1)2".', '"x_1_2"'),
    ],
)  # fmt: skip
def test_each_rule_of_a_mesh_has_its_own_message(text, at, what, fix):
    with pytest.raises(MeshError) as caught:
        Mesh.parse(text)
    assert (caught.value.what, caught.value.fix) == (what, fix)
    assert caught.value.where == f"{text}\n{' ' * at}^"


@pytest.mark.parametrize(
    "call",
    [
        lambda: mw.make_mesh((2, 4), ("x",)),
        lambda: mw.make_mesh((2, 0), ("x", "y")),
        lambda: mw.make_mesh((2, 4), ("x", "x")),
        lambda: mw.make_mesh((2, 4), ("x", 3)),
        lambda: mw.make_mesh((2, 2.5), ("x", "y")),
        lambda: mw.make_mesh((2, 4), ("x", "y"), devices=[0, 1]),
        lambda: mw.make_mesh((2,), ("x",), axis_types="Auto"),
        lambda: mw.make_mesh((2,), ("x",), axis_types=(mw.AxisType.Auto,) * 2),
        lambda: mw.Mesh([0, 1, 2, 3], ("x", "y")),
        lambda: mw.Mesh([0, 0], "x"),
        lambda: mw.Mesh(np.array([0.5]), "x"),
        lambda: mw.AbstractMesh((2, 4), ("x",)),
        lambda: mw.NamedSharding(MESH, mw.P("x", "x")),
        lambda: mw.NamedSharding(MESH, mw.P("x:(1)3")),
        lambda: mw.P(1.5),
        lambda: TensorSharding(MESH, [DimensionSharding((), False, 1)]),
        lambda: TensorSharding(MESH, [None], replicated=["y", "y"]),
        lambda: TensorSharding(MESH, ["x"]).local_shape((3, 4)),
        lambda: mw.NamedSharding(MESH, mw.P("x", "y")).shard_shape((3,)),
    ],
    ids=range(19),
)
def test_an_error_names_the_users_line_says_why_and_how_to_fix_it(call):
    with pytest.raises(MeshwrightError) as caught:
        call()
    line = call.__code__.co_firstlineno
    shown = linecache.getline(__file__, line).strip()
    assert caught.value.where == f"test_error_messages.py:{line}   {shown}"
    assert caught.value.what.endswith(".") and caught.value.why and caught.value.fix
