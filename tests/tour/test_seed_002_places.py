"""Seed 002: every feature of the representation through every place that takes a sharding, against Shardy itself.

Each place (``in_shardings``, ``out_shardings``, a constraint, ``mlir.load``) is given random shardings with open dims,
sub-axes, explicit replication and priorities. The same program is written as a module by hand, and Shardy's own passes
in jaxlib say what becomes of every argument, constraint and result.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.interop import mlir
from meshwright.sharding import Mesh, TensorSharding

pytest.importorskip("jaxlib")

from tests.propagate.shardy import shown_apart

PASSES = (
    "sdy-add-data-flow-edges",
    "sdy-apply-sharding-constraints",
    "sdy-user-priority-propagate",
    "sdy-sink-data-flow-edges",
)
MESH = Mesh.parse('@mesh = <["x"=2, "y"=4, "z"=2]>')


class Case:
    """A function with one constraint in it, and the same as the body of a module."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], constrained: int, body: str, result: int, f: Any) -> None:
        self.shapes = shapes  # of the two arguments
        self.constrained, self.result = constrained, result  # ranks
        self.body, self.f = body, f


def _tensor(shape: Sequence[int]) -> str:
    return f"tensor<{'x'.join(map(str, (*shape, 'f32')))}>"


A, B = (8, 16), (16, 32)
CASES: dict[str, Case] = {
    "matmul": Case(
        (A, B),
        2,
        "  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0]"
        " : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>\n"
        "  %1 = sdy.sharding_constraint %0 CONSTRAINT : tensor<8x32xf32>\n"
        "  %2 = stablehlo.tanh %1 : tensor<8x32xf32>\n"
        "  return %2 : tensor<8x32xf32>\n",
        2,
        lambda at: lambda a, b: mnp.tanh(at(a @ b)),
    ),
    "reshape": Case(
        (A, A),
        3,
        "  %0 = stablehlo.add %arg0, %arg1 : tensor<8x16xf32>\n"
        "  %1 = stablehlo.reshape %0 : (tensor<8x16xf32>) -> tensor<2x4x16xf32>\n"
        "  %2 = sdy.sharding_constraint %1 CONSTRAINT : tensor<2x4x16xf32>\n"
        "  %3 = stablehlo.transpose %2, dims = [2, 1, 0] : (tensor<2x4x16xf32>) -> tensor<16x4x2xf32>\n"
        "  return %3 : tensor<16x4x2xf32>\n",
        3,
        lambda at: lambda a, b: lax.transpose(at(mnp.reshape(a + b, (2, 4, 16))), (2, 1, 0)),
    ),
    "argument": Case(
        (A, B),
        2,
        "  %0 = sdy.sharding_constraint %arg0 CONSTRAINT : tensor<8x16xf32>\n"
        "  %1 = stablehlo.dot_general %0, %arg1, contracting_dims = [1] x [0]"
        " : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>\n"
        "  return %1 : tensor<8x32xf32>\n",
        2,
        lambda at: lambda a, b: at(a) @ b,
    ),
}


def module(case: Case, written: Sequence[TensorSharding | None]) -> str:
    """The case with the shardings of its arguments, its constraint and its result written where sdy has them."""
    *ins, constraint, result = written
    attributes = ["" if s is None else f" {{sdy.sharding = {s}}}" for s in (*ins, result)]
    arguments = [f"%arg{n}: {_tensor(shape)}{attributes[n]}" for n, shape in enumerate(case.shapes)]
    body = case.body.replace("CONSTRAINT", str(constraint).removeprefix("#sdy.sharding"))
    returned = re.findall(r"return %\d+ : (\S+)", body)[0]
    signature = f"({', '.join(arguments)}) -> ({returned}{attributes[2]})"
    return f"module {{\n {MESH.declaration()}\n func.func public @main{signature} {{\n{body} }}\n}}\n"


PARTS = ["x", "y", "z", "y:(1)2", "y:(2)2"]


def random_sharding(random: Random, rank: int) -> TensorSharding:
    """Axes and parts of them in random places, with everything else that a sharding can say."""
    parts = PARTS[:3] if random.random() < 0.7 else PARTS[:1] + PARTS[2:]
    random.shuffle(parts)
    dims: list[list[str]] = [[] for _ in range(rank)]
    replicated = []
    for axis in parts:
        place = random.randrange(rank + 3)
        if place < rank:
            dims[place].append(axis)
        elif place == rank:
            replicated.append(axis)
    written = []
    for axes in dims:
        named = ", ".join(f'"{a}"' if ":" not in a else f'"{a[0]}"{a[1:]}' for a in axes)
        is_open = random.random() < 0.6
        priority = random.choice(["", "", "", "p0", "p1", "p2"]) if axes or is_open else ""
        inside = ", ".join([*[named] * bool(axes), *["?"] * is_open])
        written.append(f"{{{inside}}}{priority}")
    order = sorted(replicated, key=PARTS.index)
    named = ", ".join(f'"{a}"' if ":" not in a else f'"{a[0]}"{a[1:]}' for a in order)
    try:
        return TensorSharding.parse(
            f"#sdy.sharding<@mesh, [{', '.join(written)}]{f', replicated={{{named}}}' if order else ''}>", MESH
        )
    except mw.MeshwrightError:  # two parts side by side that are one
        return random_sharding(random, rank)


def draw(random: Random, case: Case) -> list[TensorSharding | None]:
    ranks = [*(len(shape) for shape in case.shapes), case.constrained, case.result]
    found: list[TensorSharding | None] = [random_sharding(random, rank) for rank in ranks]
    for n in (0, 1, 3):
        if random.random() < 0.35:
            found[n] = None
    return found


def axes_of(text: str) -> list[list[str]]:
    """The axes of each dim in the text of a sharding."""
    dims = re.match(r"<@mesh, \[(.*?)\]", text)
    assert dims is not None, text
    return [re.findall(r'"[^"]*"(?::\(\d+\)\d+)?', dim) for dim in re.findall(r"\{[^}]*\}", dims[1])]


def ours(sharding: Any, rank: int) -> list[list[str]]:
    return [[str(axis) for axis in dim.axes] for dim in sharding.to_tensor_sharding(rank).dims]


SPELLINGS: list[Any] = [lambda s: s, lambda s: s.to_named(), lambda s: s.to_named().spec]  # the last on MESH
CONSTRAINTS: list[Any] = [lax.with_sharding_constraint, mw.reshard, mw.device_put]  # all the same under jit


def through_jit(case: Case, written: Sequence[TensorSharding | None], random: Random) -> Any:
    """What jit found, given each sharding in one of its spellings."""
    *ins, constraint, result = [None if s is None else random.choice(SPELLINGS)(s) for s in written]
    place = random.choice(CONSTRAINTS)
    f = case.f(lambda x: place(x, constraint))
    given = [mw.ShapeDtypeStruct(shape, mnp.float32) for shape in case.shapes]
    with mw.set_mesh(MESH):
        return mw.jit(f, in_shardings=tuple(ins), out_shardings=result).lower(*given).compile()


def constraint_of(compiled: Any) -> list[list[str]]:
    """The axes that propagation found for the value of the constraint."""
    placed = compiled._executable.placed
    (var,) = (v for eqn in placed.source.eqns if eqn.op.name == "sharding_constraint" for v in eqn.outputs)
    return [[str(axis) for axis in dim.axes] for dim in placed.propagated.shardings[var].dims]


def compare(seed: int, count: int) -> int:
    """How many cases agreed; those that Shardy does not survive are left out."""
    random = Random(seed)
    cases = [random.choice(list(CASES.values())) for _ in range(count)]
    written = [draw(random, case) for case in cases]
    theirs = shown_apart([module(c, w) for c, w in zip(cases, written, strict=True)], PASSES)
    agreed = 0
    for case, given, lines in zip(cases, written, theirs, strict=True):
        if lines is None:
            continue
        found = re.match(r"func main \((.*)\) -> (.*)", lines[0])
        assert found is not None
        expected = [axes_of(s) if s != "-" else None for s in re.findall(r"<.*?>(?=, [<-]|$)|-(?=,|$)", found[1])]
        expected.append(axes_of(found[2]) if found[2] != "-" else None)
        expected.append(next(axes_of(line[line.index("<") :]) for line in lines if "constraint" in line))
        compiled = through_jit(case, given, random)
        arguments = [ours(s, len(shape)) for s, shape in zip(compiled.in_shardings[0], case.shapes, strict=True)]
        actual = [*arguments, ours(compiled.out_shardings, case.result), constraint_of(compiled)]
        if expected[2] is None:  # propagation says nothing of the result, and the planner may lay it out as it likes
            expected[2] = actual[2]
        whole = [[[] for _ in a] if e is None else e for a, e in zip(actual, expected, strict=True)]
        assert actual == whole, f"{actual} is not {whole}\n{given}\n{chr(10).join(lines)}"
        agreed += 1
    return agreed


def test_every_feature_through_every_place_is_what_shardy_makes_of_it():
    assert compare(seed=0, count=6) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
def test_every_feature_through_every_place_is_what_shardy_makes_of_it_again(seed):
    assert compare(seed, 100) > 80


def test_load_keeps_open_dims_priorities_sub_axes_and_replication():
    random = Random(7)
    for _ in range(20):
        case = random.choice(list(CASES.values()))
        written = [s or random_sharding(random, 2) for s in draw(random, case)[:3]]
        program = mlir.load(module(case, [*written, None]))
        specs = [eqn.params["spec"] for eqn in program.eqns if eqn.op.name == "sharding_constraint"]
        assert [mw.NamedSharding(MESH, spec).to_tensor_sharding() for spec in specs] == written
        assert mw.parse_program(str(program)) == program


def test_what_a_place_cannot_take_is_refused_there():
    spec = mw.P(mw.P.dim("z", open=True), None)
    with pytest.raises(mw.MeshwrightError) as caught:
        mw.device_put(np.ones((4, 4), np.float32), mw.NamedSharding(MESH, spec))
    assert caught.value.what == "An array of shape (4, 4) cannot be put onto P(P.dim('z', open=True), None)."
    assert caught.value.why == (
        "open dims and priorities are for propagation, and an array with contents is laid out in one way"
    )
    assert caught.value.fix == "mw.P('z', None), or a constraint inside of mw.jit"
    with pytest.raises(mw.MeshwrightError) as caught:
        mnp.zeros((4, 4), device=mw.NamedSharding(MESH, mw.P(mw.P.UNCONSTRAINED)))
    assert caught.value.fix == "mw.P(None,), or a constraint inside of mw.jit"
    with pytest.raises(mw.MeshwrightError) as caught:
        mw.shard_map(lambda x: x, mesh=MESH, in_specs=spec, out_specs=mw.P())(np.ones((4, 4)))
    assert caught.value.what == "shard_map's in_specs has P(P.dim('z', open=True), None) for argument 0."
    assert caught.value.fix == "mw.P('z', None)"
    explicit = mw.make_mesh((2,), ("z",), axis_types=mw.AxisType.Explicit)
    x = mw.device_put(np.ones((4, 4), np.float32), mw.NamedSharding(explicit, mw.P()))
    for call in (
        lambda: mw.jit(lambda x: mw.reshard(x, mw.NamedSharding(explicit, spec)))(x),
        lambda: mw.jit(lambda x: x, in_shardings=mw.NamedSharding(explicit, spec))(x),
    ):
        with pytest.raises(mw.MeshwrightError) as caught:
            call()
        assert caught.value.what == "A value cannot be sharded as P(P.dim('z', open=True), None) over Explicit axes."
        assert caught.value.fix == "mw.P('z', None), or a mesh with Auto axes"


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: mw.P.dim("x", open=1), "open=1"),
        (lambda: mw.P.dim("x", priority=-1), "priority=-1"),
        (lambda: mw.P.dim("x", priority=True), "priority=True"),
        (lambda: mw.P.dim(priority=2), "priority=2 alone"),
    ],
)
def test_a_dim_of_a_spec_says_what_it_cannot_have(make, what):
    with pytest.raises(mw.MeshwrightError) as caught:
        make()
    assert caught.value.what == f"The dim of a partition spec cannot have {what}."


def test_a_constraint_outside_of_jit_leaves_open_dims_as_they_are():
    x = mw.device_put(np.arange(64.0, dtype=np.float32).reshape(8, 8), mw.NamedSharding(MESH, mw.P("x", "y")))
    found = lax.with_sharding_constraint(x, mw.NamedSharding(MESH, mw.P(None, mw.P.UNCONSTRAINED)))
    assert found.sharding.spec == mw.P(None, "y")
    np.testing.assert_array_equal(found, x)


def test_with_explicit_replication_nothing_can_partition_the_tensor_along_that_axis():
    x = mw.device_put(np.ones((8, 8), np.float32), mw.NamedSharding(MESH, mw.P("x", "y")))
    spec = mw.P("x", mw.P.UNCONSTRAINED, replicated={"y"})
    found = mw.jit(lambda v: lax.with_sharding_constraint(v, mw.NamedSharding(MESH, spec)))(x)
    assert found.sharding.spec == mw.P("x", None)
