"""Passes by name, and what cannot be: whole messages."""

from __future__ import annotations

import pytest

from meshwright.errors import MeshwrightError
from meshwright.propagate.problem import (
    Direction,
    FactorRule,
    Kind,
    Problem,
    ProblemBlock,
    ProblemFunction,
    ProblemNode,
    ProblemValue,
)
from meshwright.propagate.run import PASSES, PIPELINES, STRATEGIES, run
from meshwright.propagate.why import AnswerReasons
from meshwright.sharding.mesh import Mesh
from meshwright.sharding.named import TensorSharding

MESH = Mesh.parse('<["x"=2, "y"=2]>')


def sharded(text: str) -> TensorSharding:
    return TensorSharding.parse(f"sharding<@mesh, {text}>", MESH)


def of(values: list[ProblemValue], nodes: list[ProblemNode], arguments: int, returns: tuple[int, ...] = ()) -> Problem:
    block = ProblemBlock(tuple(range(arguments)), tuple(nodes), returns)
    return Problem(tuple(values), (ProblemFunction("main", block, (None,) * len(returns)),), (MESH,))


def message(problem: Problem, *passes: str) -> str:
    with pytest.raises(MeshwrightError) as raised:
        run(problem, passes)
    return str(raised.value)


def test_an_unknown_pass_is_refused() -> None:
    known = ", ".join(sorted({*STRATEGIES, *PASSES, *PIPELINES}))
    assert message(of([], [], 0), "sdy-propagate") == (
        f"There is no pass 'sdy-propagate'.\n  why:  the passes are {known}\n  fix:  sdy-propagation-pipeline"
    )


def test_the_values_of_a_group_have_one_shape() -> None:
    groups = [ProblemNode(Kind.GROUP, (number,), (), group=3, where=f"model.py:{number}") for number in (0, 1)]
    problem = of([ProblemValue((4, 8)), ProblemValue((8, 4))], groups, 2)
    assert message(problem, "sdy-sharding-group-import") == (
        "Values of the shapes (4, 8) and (8, 4) are in one sharding group.\n"
        "  at:   model.py:1\n"
        "  why:  the values of a group have one sharding, so they have one shape\n"
        "  fix:  give them groups of their own"
    )


def test_a_group_does_not_cross_a_manual_computation() -> None:
    inside = ProblemBlock((1,), (ProblemNode(Kind.GROUP, (1,), (), group=0, where="model.py:7"),), (1,))
    whole = sharded("[{?}]")
    manual = ProblemNode(
        Kind.MANUAL, (0,), (2,), regions=(inside,), in_shardings=(whole,), out_shardings=(whole,), manual_axes=("x",)
    )
    outside = ProblemNode(Kind.GROUP, (0,), (), group=0)
    problem = of([ProblemValue((4,)), ProblemValue((4,)), ProblemValue((4,))], [outside, manual], 1, (2,))
    assert message(problem, "sdy-sharding-group-import") == (
        "A sharding group has values inside and outside of a manual computation.\n"
        "  at:   model.py:7\n"
        "  why:  inside, the manual axes are not there to shard over\n"
        "  fix:  give the values inside a group of their own"
    )


def test_conflicting_groups_are_told() -> None:
    groups = [ProblemNode(Kind.GROUP, (number,), ()) for number in (0, 1)]
    values = [ProblemValue((4,), sharded('[{"x", ?}]')), ProblemValue((4,), sharded('[{"y", ?}]'))]
    answer = run(of(values, groups, 2, (0, 1)), ["sdy-basic-propagate"])
    assert answer.told == [
        "The values of sharding group 0 have different shardings: "
        '#sdy.sharding<@mesh, [{"x", ?}]>, #sdy.sharding<@mesh, [{"y", ?}]>'
    ]


def test_both_sides_of_a_conflict_are_kept() -> None:
    add = ProblemNode(
        Kind.OP, (0, 1), (2,), FactorRule.identity((4,), 2), elementwise=True, passes=Direction.BOTH, name="add"
    )
    values = [
        ProblemValue((4,), sharded('[{"x"}]'), "%a"),
        ProblemValue((4,), sharded('[{"y"}]'), "%b"),
        ProblemValue((4,), None, "%c"),
    ]
    answer = run(of(values, [add], 2, (2,)), ["sdy-user-priority-propagate"])
    first = next(iter(AnswerReasons(answer).conflicts()))
    sides = [(value.origin.name if value.origin else "", [*map(str, axes)]) for value, axes in (first.one, first.other)]
    assert (first.factor, sides) == (0, [("%a", ['"x"']), ("%b", ['"y"'])])


def test_a_second_equal_layer_takes_no_new_steps() -> None:
    def layers(count: int) -> Problem:
        values = [ProblemValue((4, 8), sharded('[{"x"}, {?}]')), *(ProblemValue((4, 8)) for _ in range(count))]
        rule = FactorRule.identity((4, 8))
        nodes = [
            ProblemNode(Kind.OP, (n,), (n + 1,), rule, elementwise=True, passes=Direction.BOTH) for n in range(count)
        ]
        return of(values, nodes, 1, (count,))

    answers = [run(layers(count), ["sdy-user-priority-propagate"]) for count in (10, 100)]
    assert [len(answer.events) for answer in answers] == [10, 100]
    assert answers[1].steps == answers[0].steps
