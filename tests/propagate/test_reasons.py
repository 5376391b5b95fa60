"""Every axis of every value of a program on a mesh is explained: the chain leads to what a user wrote on some line."""

from __future__ import annotations

import inspect
import pathlib
import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax
from meshwright.compile.sharding_reasons import reasons_of
from meshwright.core.program import Eqn, Var
from meshwright.errors import MeshwrightError
from meshwright.propagate.from_program import propagate_program
from meshwright.propagate.graph import FunctionOp, GraphOp, GraphValue
from meshwright.propagate.own_regions import own_regions
from meshwright.propagate.problem import FactorRule, Kind
from meshwright.propagate.reasons import Reason, Reasons, equations
from meshwright.propagate.why import Link
from meshwright.sharding.axes import AxisRef
from meshwright.sharding.named import TensorSharding
from meshwright.transform.stack import inline_calls
from tests.ops.drawing import rng
from tests.partition.models import MODELS, USUAL, setting
from tests.partition.partitioning import layouts
from tests.partition.test_random_programs import (
    FORWARD,
    IN_PARTS,
    MESHES,
    REVERSE,
    backward,
    drawn,
    layout_of_parts,
    program_of,
)

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
HERE = pathlib.Path(__file__)
XY = mw.make_mesh((2, 2), ("x", "y"))


def put(x: Any, *spec: Any) -> Any:
    return mw.device_put(x, mw.NamedSharding(XY, P(*spec)))


def line_of(text: str) -> str:
    """The line of this file on which a text stands first."""
    lines = HERE.read_text().splitlines()
    return f"{HERE.name}:{next(n for n, line in enumerate(lines, 1) if text in line)}"


def all_reasons(compiled: Any) -> Reasons:
    return reasons_of(compiled._executable, compiled._in_tree, compiled._parameters)


def is_line(where: str) -> bool:
    """Whether a line of an example, or of a test, is named that is there and is not empty."""
    found = re.fullmatch(r"(\w+\.py):(\d+)", where)
    if found is None:
        return False
    folders = (EXAMPLES, HERE.parent, HERE.parents[1] / "partition")
    path = next(folder / found[1] for folder in folders if (folder / found[1]).exists())
    return path.read_text().splitlines()[int(found[2]) - 1].strip() != ""


def has(sharding: Any, dim: int, axis: AxisRef) -> bool:
    return sharding is not None and any(one.overlaps(axis) for one in sharding.dims[dim].axes)


def stands_for(reasons: Reasons, value: GraphValue) -> set[Any]:
    """The variables of a value; what a loop carries has one outside and one in each region."""
    found = {reasons.variable(value)}
    if value.op is not None and value.op.kind is Kind.EDGE:
        owner = value.op.operands[0].value
        assert owner.op is not None
        found |= {reasons.variable(block.arguments[owner.index]) for block in owner.op.blocks if block.arguments}
    return found


def assert_joined(reasons: Reasons, by: GraphOp, one: Link, other: Link, made: dict[Var, Eqn]) -> None:
    """The node has both values, and its rule has a factor that is in both dims."""
    if by.kind is Kind.EDGE:
        values = [*(use.value for use in by.sources), by.results[0]]
        rule = FactorRule.identity(by.results[0].shape or (), len(by.sources))
    elif by.kind is Kind.CONSTRAINT:
        values, rule = [by.operands[0].value, by.results[0]], FactorRule.identity(by.results[0].shape or ())
    else:
        assert by.rule is not None and by.node is not None
        values, rule = [*(use.value for use in by.operands), *by.results], by.rule
        result = reasons.variable(by.results[0])
        if result in made and made[result].op.name == by.node.name:  # the equation itself says the same
            eqn = made[result]
            types = [a.type for a in eqn.inputs], [v.type for v in eqn.outputs]
            assert FactorRule.of(eqn.op.factors(*types, eqn.params)) is rule and by.node.where == str(eqn.source)
            assert all(
                stands_for(reasons, link.value).intersection((*eqn.inputs, *eqn.outputs)) for link in (one, other)
            )
    tensors = (*rule.operands, *rule.results)

    def factors(link: Link) -> set[int]:
        dims = [t for v, t in zip(values, tensors, strict=True) if link.value in (v, v.holder, v.sunk)]
        assert dims, (by, link)
        return {factor for tensor in dims for factor in tensor[link.dim]}

    assert factors(one) & factors(other), (by, str(one), str(other))


def follow(reasons: Reasons, var: Var, reason: Reason, made: dict[Var, Eqn], given: dict[str, Any]) -> None:
    """Go the way of an axis: each step is one that its equation can make, and at its end somebody wrote the axis.

    ``given`` are the shardings that were written, by the names of arguments and results.
    """
    links = reasons.links(var, reason.dim, reason.axis)
    assert len(links) == len(reason.steps) and reason.steps[0].var is var
    for one, other in pairwise(links):
        assert isinstance(one.by, GraphOp)
        if one.value.given_by is not other.value:
            assert_joined(reasons, one.by, one, other, made)
        beside = reasons.variable(other.value)
        if beside in reasons.propagated.shardings:
            assert has(reasons.propagated.shardings[beside], other.dim, reason.axis)
    origin = reason.origin
    name = origin.op.removeprefix("argument ").removeprefix("out_shardings, ")
    assert isinstance(links[-1].by, FunctionOp) == origin.op.startswith("out_shardings")
    assert has(given[name], origin.dim, reason.axis), (name, reason)


@pytest.mark.parametrize("layout", USUAL)
@pytest.mark.parametrize("name", MODELS)
def test_every_axis_of_the_example_models(name: str, layout: str) -> None:
    model = setting(name, layout)
    reasons = all_reasons(model.step.lower(model.placed, model.split, config=model.config).compile())
    written = [x.sharding.to_tensor_sharding(x.ndim) for x in mw.tree.leaves((model.placed, model.split))]
    given = dict(zip(reasons.names.values(), written, strict=True))
    given |= dict(zip(reasons.out_names, reasons.propagated.asked, strict=True))
    made = {var: eqn for eqn in equations(reasons.program) for var in eqn.outputs}
    axes = 0
    for var, sharding in reasons.propagated.shardings.items():
        found = reasons.of(var)
        assert [(r.dim, r.axis) for r in found.reasons] == [(d, a) for d, s in enumerate(sharding.dims) for a in s.axes]
        for reason in found.reasons:
            follow(reasons, var, reason, made, given)
            assert all(is_line(step.where) for step in reason.steps), reason
            axes += 1
    assert axes > 50


def explained_axes(seed: int) -> int:
    """How many axes a random program has in a random layout, each of them followed."""
    one, generator = drawn(seed, FORWARD if seed % 3 else REVERSE), rng("reasons", seed)
    arrays = one.arrays()
    function = one.on(mw) if seed % 3 or not one.floats else backward(one, arrays)
    program = own_regions(inline_calls(program_of(function, arrays), shard_maps=False))
    mesh = IN_PARTS if seed % 2 else MESHES[0]

    def sharding(rank: int) -> TensorSharding | None:
        if not generator.integers(3):
            return None
        found = layouts(mesh, rank)
        return layout_of_parts(rank, generator) if seed % 2 else found[generator.integers(len(found))]

    ins, outs = ([sharding(t.ndim) for t in types] for types in (program.in_types, program.out_types))
    propagated = propagate_program(program, mesh, ins, outs)
    reasons = Reasons(propagated, [f"a{n}" for n in range(len(ins))], [f"r{n}" for n in range(len(outs))])
    given = {f"a{n}": s for n, s in enumerate(ins)} | {f"r{n}": s for n, s in enumerate(outs)}
    made = {var: eqn for eqn in equations(program) for var in eqn.outputs}
    axes = 0
    for var in propagated.shardings:
        for reason in reasons.of(var).reasons:
            follow(reasons, var, reason, made, given)
            axes += 1
    return axes


def test_random_programs() -> None:
    assert sum(map(explained_axes, range(50))) > 500


@pytest.mark.slow
def test_many_random_programs() -> None:
    assert sum(map(explained_axes, range(1000, 3000))) > 20_000


def model(w: Any, x: Any) -> Any:
    h = mnp.tanh(x @ w)
    return h.sum(0)


def test_what_is_said_of_a_value() -> None:
    first, last = inspect.getsourcelines(model)[1] + 1, inspect.getsourcelines(model)[1] + 2
    w, x = put(mnp.ones((8, 4)), None, "y"), put(mnp.ones((4, 8)), "x")
    put_line = line_of("mw.device_put(x, mw.NamedSharding(XY")
    compiled = mw.jit(model).lower(w, x).compile()
    assert (
        str(compiled.explain_sharding("w"))
        == f"""\
w  f32[8,4]  P(None, 'y')
  dim 1 over "y"
    from argument w, dim 1  {put_line}"""
    )
    by_line = compiled.explain_sharding(f"test_reasons.py:{first}")
    assert [one.name for one in by_line] == [
        f"dot_general at test_reasons.py:{first}",
        f"tanh at test_reasons.py:{first}",
    ]
    assert (
        str(by_line[1])
        == f"""\
tanh at test_reasons.py:{first}  f32[4,4]  P('x', 'y')
  dim 0 over "x"
    through tanh            test_reasons.py:{first}
    through dot_general     test_reasons.py:{first}
    from argument x, dim 0  {put_line}
  dim 1 over "y"
    through tanh            test_reasons.py:{first}
    through dot_general     test_reasons.py:{first}
    from argument w, dim 1  {put_line}"""
    )
    result = f"""\
reduce_sum at test_reasons.py:{last}  f32[4]  P('y',)
  dim 0 over "y"
    through reduce_sum      test_reasons.py:{last}
    through tanh            test_reasons.py:{first}
    through dot_general     test_reasons.py:{first}
    from argument w, dim 1  {put_line}"""
    for value in (0, -1, "result", compiled.global_program.outputs[0]):
        assert str(compiled.explain_sharding(value)) == result


def add(a: Any, b: Any) -> Any:
    return a + b


def test_a_conflict_is_shown_with_both_sides() -> None:
    a, b = put(mnp.ones((4, 4)), "x"), put(mnp.ones((4, 4)), "y")
    compiled = mw.jit(add).lower(a, b).compile()
    (found,) = compiled.explain_sharding(0)
    put_line, line = line_of("mw.device_put(x, mw.NamedSharding(XY"), inspect.getsourcelines(add)[1] + 1
    assert [str(one) for one in found.conflicts][:1] == [
        f"""\
  conflict at add  test_reasons.py:{line}
    a, dim 0, has "x", from argument a  {put_line}
    b, dim 0, has "y", from argument b  {put_line}"""
    ]


def test_constraints_specs_and_loops() -> None:
    def f(x: Any, rows: Any) -> Any:
        x = lax.with_sharding_constraint(x, mw.NamedSharding(XY, P("x")))
        y = mw.shard_map(lambda x: x * 2, mesh=XY, in_specs=P(None, "y"), out_specs=P(None, "y"))(x)
        return x, y, lax.scan(lambda c, row: (c + row, c * row), x[0], rows)

    compiled = mw.jit(f).lower(mnp.ones((4, 4)), mnp.ones((3, 4))).compile()
    first = inspect.getsourcelines(f)[1] + 1
    found = compiled.explain_sharding(0)[0].reasons
    assert [(r.dim, r.origin.op, r.origin.where) for r in found] == [
        (0, "sharding_constraint", f"test_reasons.py:{first}")
    ]
    found = compiled.explain_sharding(1)[0].reasons
    assert [(r.dim, r.origin.op, r.origin.where) for r in found] == [
        (1, "shard_map's out_specs", f"test_reasons.py:{first + 1}")
    ]
    reasons = all_reasons(compiled)
    wheres = [s.where for var in reasons.propagated.shardings for r in reasons.of(var).reasons for s in r.steps]
    assert wheres and all(map(is_line, wheres))


def test_a_result_that_is_asked_for_in_another_layout() -> None:
    x, there = put(mnp.ones((4, 4)), "x"), mw.NamedSharding(XY, P(None, "y"))
    line = line_of('there = put(mnp.ones((4, 4)), "x"), mw.NamedSharding(XY, P(None, "y"))')
    compiled = mw.jit(lambda x: x, out_shardings=there).lower(x).compile()
    assert (
        str(compiled.explain_sharding(0))
        == f"""\
result  f32[4,4]  P(None, 'y')
  dim 1 over "y"
    from out_shardings, result, dim 1  {line}
x  f32[4,4]  P('x', None)
  dim 0 over "x"
    from argument x, dim 0  {line_of("mw.device_put(x, mw.NamedSharding(XY")}"""
    )


def test_what_arguments_are_called() -> None:
    def f(first: Any, mode: str, *rest: Any, **named: Any) -> Any:
        return first + rest[0]["a"] + rest[1] + named["last"]

    x = put(mnp.ones((4, 4)), "x")
    compiled = mw.jit(f, static_argnums=1).lower(x, "mode", {"a": x}, x, last=x).compile()
    assert list(all_reasons(compiled).names.values()) == ["first", "rest[0]['a']", "rest[1]", "last"]


def test_branches_loops_and_their_gradients() -> None:
    def f(w: Any, x: Any, n: Any) -> Any:
        x = lax.cond(n > 1, lambda x: mnp.tanh(x @ w), lambda x: x * 2, x)
        y = lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (n, lax.stop_gradient(x)))[1]
        return (lax.map(lambda row: mnp.sin(row), x) + y).sum()

    w, x = put(mnp.ones((4, 4)), None, "y"), put(mnp.ones((4, 4)), "x")
    xs = put(mnp.ones((2, 4, 4)), None, "x")
    for fun, given in ((f, x), (mw.grad(f), x), (mw.vmap(f, (None, 0, None)), xs)):
        reasons = all_reasons(mw.jit(fun).lower(w, given, mnp.int32(2)).compile())
        found = [r for var in reasons.propagated.shardings for r in reasons.of(var).reasons]
        assert len(found) > 10
        for reason in found:
            assert all(is_line(step.where) for step in reason.steps), reason
            assert reason.origin.op in ("argument w", "argument x"), reason


def test_layouts_that_are_part_of_types() -> None:
    mesh = mw.make_mesh((2, 2), ("x", "y"), axis_types=(mw.AxisType.Explicit,) * 2)
    x = mw.device_put(mnp.ones((4, 4)), mw.NamedSharding(mesh, P("x")))
    compiled = mw.jit(lambda x: mnp.tanh(x).T).lower(x).compile()
    (found,) = compiled.explain_sharding(compiled.global_program.outputs[0])
    assert [(r.dim, str(r.axis), is_line(r.origin.where)) for r in found.reasons] == [(1, '"x"', True)]


def test_a_value_that_is_not_there() -> None:
    x = put(mnp.ones((4, 4)), "x")
    compiled = mw.jit(lambda weights: weights * 2).lower(x).compile()
    with pytest.raises(MeshwrightError) as error:
        compiled.explain_sharding("wieghts")
    assert error.value.what == "'wieghts' is no value of the program."
    assert error.value.why == "no argument and no result is called so, and no value is made on such a line"
    assert error.value.fix == "compiled.explain_sharding('weights')"
    with pytest.raises(MeshwrightError, match="result 1 is no value of the program"):
        compiled.explain_sharding(1)
    with pytest.raises(MeshwrightError, match="it is none of"):
        compiled.explain_sharding(Var(x.type))
    with pytest.raises(MeshwrightError, match="There is no sharding to explain"):
        mw.jit(lambda x: x * 2).lower(mnp.ones(3)).compile().explain_sharding(0)


def test_a_program_may_constrain_values_on_another_mesh_of_its_devices() -> None:
    line = mw.make_mesh((4,), ("x",))

    def constrain(x: Any) -> Any:
        return lax.with_sharding_constraint(x, mw.NamedSharding(line, P("x")))

    inner = mw.jit(constrain)
    for f in (constrain, lambda x: inner(x), lambda x: inner(x) * 2):  # the last finds the inner one traced
        found = mw.jit(f)(put(mnp.ones((4, 4)), "x"))
        assert found.sharding.is_equivalent_to(mw.NamedSharding(line, P("x")), 2)
    part = mw.shard_map(lambda x: x * 2, mesh=line, in_specs=P("x"), out_specs=P("x"))
    doubled = mw.jit(lambda x: part(x))(put(mnp.ones((4, 4)), "x"))
    assert doubled.sharding.is_equivalent_to(mw.NamedSharding(line, P("x")), 2)
    np.testing.assert_array_equal(doubled, np.full((4, 4), 2.0))


def test_two_calls_of_one_loop_are_sharded_each_on_its_own() -> None:
    layer = mw.jit(lambda x: lax.scan(lambda c, _: (mnp.tanh(c) * 2, None), x, None, length=3)[0])
    a, b = put(mnp.ones((4, 4)), "x"), put(mnp.ones((4, 4)), None, "y")
    compiled = mw.jit(lambda a, b: (layer(a), layer(b))).lower(a, b).compile()
    assert compiled.collectives == []
    assert [str(s.spec) for s in compiled.out_shardings] == ["P('x', None)", "P(None, 'y')"]
