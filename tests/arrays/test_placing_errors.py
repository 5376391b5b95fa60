"""Places that cannot be: each gives one error with the user's line and a fix. The whole message is asserted."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.sharding import TensorSharding

MESH = mw.make_mesh((2, 4), ("x", "y"))
X = np.ones((4, 6), np.float32)


def expect(function, what, why, fix):
    with pytest.raises(mw.MeshwrightError) as caught:
        function()
    assert caught.value.where.startswith(f"test_placing_errors.py:{function.__code__.co_firstlineno}   ")
    assert (caught.value.what, caught.value.why, caught.value.fix) == (what, why, fix)


def on(*spec, **keywords):
    return mw.NamedSharding(MESH, mw.P(*spec, **keywords))


def test_more_dims_than_the_array_has():
    expect(
        lambda: mw.device_put(X, on("x", None, "y")),
        "An array of shape (4, 6) cannot be put onto P('x', None, 'y').",
        "the sharding has 3 dims, the array 2",
        "mw.P('x', None)",
    )
    expect(
        lambda: mw.device_put({"b": np.ones(3), "w": X}, on("x", "y")),
        "The array ['b'] of shape (3,) cannot be put onto P('x', 'y').",
        "the sharding has 2 dims, the array 1",
        "mw.P('x',)",
    )
    expect(
        lambda: mnp.zeros((), device=on("x")),
        "An array of shape () cannot be put onto P('x',).",
        "the sharding has 1 dim, the array 0",
        "mw.P()",
    )


def test_a_tensor_sharding_of_another_rank():
    expect(
        lambda: mw.device_put(X, TensorSharding(MESH, ["x"])),
        'An array of shape (4, 6) cannot be put onto #sdy.sharding<@mesh, [{"x"}]>.',
        "the sharding has 1 dim, the array 2",
        "mw.P('x', None)",
    )


def test_an_unreduced_sharding():
    expect(
        lambda: mw.device_put(X, on("x", unreduced={"y"})),
        "An array cannot be put onto a sharding that is unreduced over y.",
        "an array has contents; of an unreduced value each device holds a summand only",
        "leave out unreduced: mw.P('x',)",
    )


def test_a_spec_without_a_mesh():
    expect(
        lambda: mw.device_put(X, mw.P("x")),
        "P('x',) is given without a mesh.",
        "a spec names axes of the current mesh, and none is set",
        "mw.NamedSharding(mesh, mw.P('x',)), or with mw.set_mesh(mesh): …",
    )


def test_an_axis_that_the_mesh_has_not():
    with mw.set_mesh(MESH), pytest.raises(mw.MeshwrightError, match="z") as caught:
        mw.device_put(X, mw.P("z"))
    assert caught.value.where.startswith("test_placing_errors.py:")


def test_a_mesh_without_devices():
    abstract = mw.AbstractMesh((2, 4), ("x", "y"))
    expect(
        lambda: mw.device_put(X, mw.NamedSharding(abstract, mw.P("x"))),
        "An array cannot be put onto AbstractMesh('x': 2, 'y': 4, axis_types=(Auto, Auto)).",
        "the mesh has no devices",
        "mw.make_mesh((2, 4), ('x', 'y'))",
    )


def test_a_mesh_is_no_place():
    expect(
        lambda: mnp.zeros(3, device=MESH),
        "An array cannot be put onto a mesh.",
        "give a sharding, a device, or a P on the current mesh; a mesh does not say how the array is split",
        'mw.NamedSharding(mesh, mw.P("x", None))',
    )


def test_something_else_is_no_place():
    for place in ("cpu", 3):
        expect(
            lambda place=place: mw.device_put(X, place),
            f"An array cannot be put onto {place!r}.",
            "give a sharding, a device, or a P on the current mesh",
            'mw.NamedSharding(mesh, mw.P("x", None))',
        )


def test_both_keywords():
    expect(
        lambda: mnp.zeros(3, device=on("x"), out_sharding=on("y")),
        "device= and out_sharding= are both given.",
        "each says where the result goes",
        "leave out one of them",
    )


def test_places_of_another_structure():
    expect(
        lambda: mw.device_put({"w": X}, {"v": on("x")}),
        "device_put is given shardings that do not fit the tree of arrays.",
        "the shardings are {'v': sharding}, and the arrays {'w': *}",
        "give one sharding for everything, or one for each part: {'w': sharding}",
    )


def test_places_of_another_count_than_the_arguments():
    sharding, y = on("x"), mnp.ones((2, 2))
    expect(
        lambda: mw.jit(lambda x, y: x, in_shardings=(sharding,))(X, y),
        "jit's in_shardings is given shardings that do not fit the tree of arrays.",
        "the shardings are (sharding,), and the arrays (*, *)",
        "give one sharding for everything, or one for each part: (sharding, sharding)",
    )
    placed = mw.jit(lambda x, y: x, in_shardings=(sharding, sharding))(X, y)
    assert placed.sharding.is_equivalent_to(sharding, 2)
    many = [X] * 100
    expect(
        lambda: mw.device_put(many, (sharding,)),
        "device_put is given shardings that do not fit the tree of arrays.",
        "the shardings are (sharding,), and the arrays [" + ("*, " * 100)[:199] + "…",
        "give one sharding for everything, or one for each part",
    )


def test_a_leaf_that_is_no_array():
    expect(
        lambda: mw.device_put({"w": "text"}, on("x")),
        "A leaf ['w'] given to device_put is not an array or a number: its type is str.",
        "the leaves of what goes in and comes out must be arrays, NumPy arrays or numbers",
        "pass an array, or mark an argument static: mw.jit(f, static_argnums=…)",
    )


def test_a_traced_value_is_constrained():
    assert str(mw.typeof(mw.jit(lambda x: mw.device_put(x, on("x")))(X))) == "float32[4@x,6]"
    assert str(mw.typeof(mw.jit(lambda: mnp.zeros((4, 6), device=on("x")))())) == "float32[4@x,6]"
    assert mw.jit(lambda x: mw.device_put(x) * 2)(1.0) == 2
