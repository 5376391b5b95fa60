"""Seed 002, multiple logical meshes: shardings of one program on several views of the same devices.

A tensor on one mesh is used by ops on another after a naive reshard, shardings do not propagate across, and equal
placements are free. Shardy's own passes in jaxlib say how every argument and result is sharded; NumPy has the numbers.
"""

from __future__ import annotations

import re
from random import Random
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.sharding import Mesh, TensorSharding

pytest.importorskip("jaxlib")

from tests.propagate.shardy import shown_apart
from tests.tour.test_seed_002_places import PASSES

MESH_0 = Mesh.parse('@mesh_0 = <["a"=4, "b"=2]>')
MESH_1 = Mesh.parse('@mesh_1 = <["x"=2, "y"=2, "z"=2]>')
TURNED = Mesh.parse('@turned = <["q"=2, "p"=4], device_ids=[0, 2, 4, 6, 1, 3, 5, 7]>')
MESHES = (MESH_0, MESH_1, TURNED)
X, W = np.arange(64, dtype=np.float32).reshape(8, 8), np.arange(64, dtype=np.float32).reshape(8, 8) % 7 - 3


def put(x: np.ndarray, mesh: Mesh, *spec: Any) -> Any:
    return mw.device_put(x, mw.NamedSharding(mesh, mw.P(*spec)))


def test_b_of_mesh_0_is_identical_to_z_of_mesh_1():
    b, z = TensorSharding(MESH_0, [None, "b"]), TensorSharding(MESH_1, [None, "z"])
    assert b.is_equivalent_to(z) and z.on(MESH_0) == b and b.on(MESH_1) == z


def test_equal_placements_on_two_meshes_are_free():
    a, b = put(X, MESH_0, "a", "b"), put(W, MESH_1, ("x", "y"), "z")
    there = mw.NamedSharding(TURNED, mw.P("p", "q"))
    compiled = mw.jit(lambda a, b: lax.with_sharding_constraint(a + b, there) * 2).lower(a, b).compile()
    found = compiled(a, b)
    assert not compiled.collectives and found.sharding.is_equivalent_to(there, 2)
    np.testing.assert_array_equal(np.asarray(found), (X + W) * 2)


def test_a_tensor_on_one_mesh_is_resharded_to_the_mesh_of_the_op_that_uses_it():
    x = put(X, MESH_0, "a", "b")
    rows = mw.NamedSharding(MESH_1, mw.P("x", "z"))
    compiled = mw.jit(lambda x: lax.with_sharding_constraint(x, rows)).lower(x).compile()
    assert [one.kind for one in compiled.collectives] == ["all_gather"]  # of "y", the minor half of "a"
    assert compiled(x).sharding == rows
    np.testing.assert_array_equal(np.asarray(compiled(x)), X)


def test_the_module_declares_every_mesh():
    x = put(X, MESH_0.with_(name=None), "a")
    there = mw.NamedSharding(TURNED.with_(name=None), mw.P(None, "q"))
    text = mw.jit(lambda x: lax.with_sharding_constraint(x, there)).lower(x).as_text()
    assert 'sdy.mesh @mesh = <["a"=4, "b"=2]>' in text
    assert 'sdy.mesh @mesh_0 = <["q"=2, "p"=4], device_ids=[0, 2, 4, 6, 1, 3, 5, 7]>' in text
    assert 'sdy.sharding_constraint %arg0 <@mesh_0, [{}, {"q"}]>' in text


def test_derivatives_and_batches_keep_the_mesh_of_a_constraint():
    x, there = put(X, MESH_0, "a"), mw.NamedSharding(MESH_1, mw.P(None, "z"))

    def total(x: Any) -> Any:
        return mnp.sum(mnp.tanh(lax.with_sharding_constraint(x, there)) ** 2)

    expected = 2 * np.tanh(X) * (1 - np.tanh(X) ** 2)
    np.testing.assert_allclose(np.asarray(mw.jit(mw.grad(total))(x)), expected, rtol=1e-5, atol=1e-6)
    batched = mw.vmap(lambda row: lax.with_sharding_constraint(row, mw.NamedSharding(MESH_1, mw.P("z"))))
    found = mw.jit(batched)(x)
    np.testing.assert_array_equal(np.asarray(found), X)
    program = mw.jit(batched).lower(x).program
    assert mw.parse_program(str(program)) == program and 'mesh=\'<["x"=2' in str(program)


BODY = """  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (T, T) -> T
  %1 = sdy.sharding_constraint %0 CONSTRAINT : T
  %2 = stablehlo.add %1, %arg0 : T
  return %2 : T
"""


def random_sharding(random: Random) -> TensorSharding:
    mesh = random.choice(MESHES)
    dims: list[list[str]] = [[], []]
    for axis in random.sample(mesh.axis_names, len(mesh.axis_names)):
        place = random.randrange(3)
        if place < 2:
            dims[place].append(axis)
    inside = [", ".join([*(f'"{axis}"' for axis in axes), *["?"] * (random.random() < 0.4)]) for axes in dims]
    return TensorSharding.parse(f"<@{mesh.name}, [{{{inside[0]}}}, {{{inside[1]}}}]>", mesh)


def module(ins: Any, constraint: Any, out: Any) -> str:
    notes = ["" if s is None else f" {{sdy.sharding = {s}}}" for s in (*ins, out)]
    declared = "\n ".join(mesh.declaration() for mesh in MESHES)
    body = BODY.replace("CONSTRAINT", str(constraint).removeprefix("#sdy.sharding"))
    signature = f"(%arg0: T{notes[0]}, %arg1: T{notes[1]}) -> (T{notes[2]})"
    text = f"module {{\n {declared}\n func.func public @main{signature} {{\n{body} }}\n}}\n"
    return re.sub(r"\bT\b", "tensor<8x8xf32>", text)


def compare(seed: int, count: int) -> int:
    """How many programs agreed with Shardy and with NumPy."""
    random = Random(seed)
    drawn = []
    for _ in range(count):
        ins: list[TensorSharding | None] = [random_sharding(random), random_sharding(random)]
        ins[1] = ins[1] if random.random() < 0.7 else None
        out = random_sharding(random) if random.random() < 0.7 else None
        drawn.append((ins, random_sharding(random), out))
    theirs = shown_apart([module(*one) for one in drawn], PASSES)
    agreed = 0
    for (ins, constraint, out), lines in zip(drawn, theirs, strict=True):
        if lines is None:
            continue

        def f(a: Any, b: Any, constraint: Any = constraint) -> Any:
            return lax.with_sharding_constraint(a @ b, constraint) + a

        compiled = mw.jit(f, in_shardings=tuple(ins), out_shardings=out).lower(X, W).compile()
        head = re.match(r"func main \((.*)\) -> (.*)", lines[0])
        assert head is not None
        expected = [*re.findall(r"<.*?>(?=, [<-]|$)|-(?=,|$)", head[1]), head[2]]
        actual = [*compiled.in_shardings[0], compiled.out_shardings]
        for ours, text in zip(actual, expected, strict=True):
            if text != "-":  # propagation says something of it
                assert ours.is_equivalent_to(TensorSharding.parse(text, MESHES), 2), f"{ours}\n{chr(10).join(lines)}"
        np.testing.assert_array_equal(np.asarray(compiled(X, W)), X @ W + X)
        agreed += 1
    return agreed


def test_random_shardings_on_random_meshes_are_what_shardy_makes_of_them():
    assert compare(seed=0, count=12) > 9


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_random_shardings_on_random_meshes_are_what_shardy_makes_of_them_again(seed):
    assert compare(seed, 100) > 80
