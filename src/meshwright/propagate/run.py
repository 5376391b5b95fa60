"""Passes over a problem, by name: those that propagate, those before and after, and the pipelines made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from meshwright.errors import MeshwrightError
from meshwright.propagate import after, before, calls, constants, constraints, groups, unreduced
from meshwright.propagate.fixpoint import Propagation, ShardingEvent
from meshwright.propagate.graph import Graph
from meshwright.propagate.priority import by_op, by_user
from meshwright.propagate.problem import Problem

Strategy = Callable[[Propagation], None]


def _once(propagation: Propagation) -> None:
    propagation.run()


STRATEGIES: Mapping[str, Strategy] = {
    "sdy-basic-propagate": _once,
    "sdy-aggressive-propagate": _once,
    "sdy-op-priority-propagate": by_op,
    "sdy-user-priority-propagate": by_user,
}

PASSES: Mapping[str, Callable[[Graph], None]] = {
    "symbol-dce": before.remove_unused_functions,
    "sdy-lift-inlined-meshes": lambda graph: None,  # done as a module is read
    "sdy-remove-size-one-axes": before.remove_size_one_axes,
    "sdy-propagate-sharding-from-func-to-call": before.share_result_shardings,
    "sdy-constant-or-scalar-splitter": constants.split_constants,
    "sdy-manual-axes-cleanup": before.clean_manual_axes,
    "sdy-add-data-flow-edges": before.add_edges,
    "sdy-flatten-call-graph": calls.flatten_calls,
    "sdy-add-func-data-flow-edges": calls.add_function_edges,
    "sdy-apply-sharding-constraints": constraints.apply_constraints,
    "sdy-sink-func-data-flow-edges": calls.sink_function_edges,
    "sdy-sharding-group-import": groups.import_groups,
    "sdy-import-func-calls": calls.import_calls,
    "sdy-pre-order-funcs": calls.order_functions,
    "sdy-export-named-computations": after.export_computations,
    "sdy-propagate-to-func-results": after.results_from_returns,
    "sdy-unflatten-call-graph": after.unflatten_calls,
    "sdy-insert-func-call-reshards": after.reshard_calls,
    "sdy-constant-or-scalar-merger": after.merge_constants,
    "sdy-sink-data-flow-edges": after.sink_edges,
    "sdy-remove-sharding-groups": after.remove_groups,
    "sdy-sharding-constraint-to-reshard": after.constraints_to_reshards,
    "sdy-update-non-divisible-input-output-shardings": after.make_divisible,
    "sdy-remove-sub-axes-in-input-output-shardings": after.remove_sub_axes,
    "sdy-close-shardings": after.close_shardings,
    "sdy-verify-unreduced-axes": unreduced.verify_unreduced,
}

_IMPORT = (
    "symbol-dce",
    "sdy-lift-inlined-meshes",
    "sdy-remove-size-one-axes",
    "sdy-propagate-sharding-from-func-to-call",
    "sdy-constant-or-scalar-splitter",
    "symbol-dce",
    "sdy-manual-axes-cleanup",
    "sdy-add-data-flow-edges",
)
_EXPORT = (
    "sdy-constant-or-scalar-merger",
    "sdy-sink-data-flow-edges",
    "sdy-remove-sharding-groups",
    "sdy-sharding-constraint-to-reshard",
    "sdy-update-non-divisible-input-output-shardings",
    "sdy-remove-sub-axes-in-input-output-shardings",
    "sdy-close-shardings",
    "sdy-verify-unreduced-axes",
)

_FULLY = "dedup-functions-fully"
PIPELINES: Mapping[str, tuple[str, ...]] = {
    "sdy-import-pipeline": _IMPORT,
    "sdy-export-pipeline": _EXPORT,
    "sdy-propagation-pipeline": (
        *_IMPORT,
        "sdy-flatten-call-graph",
        "symbol-dce",
        "sdy-add-func-data-flow-edges",
        "sdy-apply-sharding-constraints",
        "sdy-sink-func-data-flow-edges",
        "sdy-sharding-group-import",
        "sdy-import-func-calls",
        "symbol-dce",
        "sdy-pre-order-funcs",
        "sdy-user-priority-propagate",
        "sdy-export-named-computations",
        "sdy-propagate-to-func-results",
        "sdy-unflatten-call-graph",
        "symbol-dce",
        "sdy-insert-func-call-reshards",
        *_EXPORT,
    ),
    # The same where functions are never copied: one of each serves all its calls.
    f"sdy-propagation-pipeline{{{_FULLY}=true}}": (
        *_IMPORT,
        "sdy-apply-sharding-constraints",
        "sdy-sharding-group-import",
        "sdy-add-func-data-flow-edges",
        "sdy-pre-order-funcs",
        "sdy-user-priority-propagate",
        "sdy-propagate-to-func-results",
        "sdy-sink-func-data-flow-edges",
        "sdy-unflatten-call-graph",
        "symbol-dce",
        "sdy-insert-func-call-reshards",
        *_EXPORT,
    ),
}


class Answer:
    """The graph of a problem after the passes.

    ``problem`` is the program with its shardings, ``graph`` the same as propagation knows it, ``events`` what changed
    when and why, ``told`` what a user should know, ``steps`` how many different steps there were.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.events: list[ShardingEvent] = []
        self.told: list[str] = []
        self.steps = 0

    @cached_property
    def problem(self) -> Problem:
        return self.graph.problem()


class Options(NamedTuple):
    """How a pass propagates.

    ``conservative``: nothing is ever sharded over a part of an axis. ``strategy``: what a step does about conflicts,
    ``aggressive`` (each tensor takes what it can), or ``basic`` (what all agree on). ``fully``: copies of a function
    become one whatever their shardings. ``edges``: computations that were calls have data-flow edges. ``by_op``: of
    each priority that a user wrote, some ops propagate before others.
    """

    conservative: bool = False
    strategy: str = "aggressive"
    fully: bool = False
    edges: bool = True
    by_op: bool = True


def run(
    problem: Problem, passes: Sequence[str], *, conservative: bool = False, options: Sequence[Options] = ()
) -> Answer:
    """Run passes and pipelines in order, each with its ``options``, or all ``conservative``.

    >>> from meshwright.sharding.mesh import Mesh
    >>> from meshwright.sharding.named import TensorSharding
    >>> from meshwright.propagate.problem import FactorRule, Kind, ProblemBlock, ProblemFunction
    >>> from meshwright.propagate.problem import ProblemNode, ProblemValue
    >>> given = TensorSharding.parse('sharding<@mesh, [{"x"}, {?}]>', Mesh.parse('<["x"=2]>'))
    >>> negate = ProblemNode(Kind.OP, (0,), (1,), FactorRule.identity((4, 8)), elementwise=True)
    >>> main = ProblemFunction("main", ProblemBlock((0,), (negate,), (1,)), (None,))
    >>> answer = run(Problem((ProblemValue((4, 8), given), ProblemValue((4, 8))), (main,)), ["sdy-basic-propagate"])
    >>> answer.problem.functions[0].result_shardings
    (#sdy.sharding<@mesh, [{"x", ?}, {?}]>,)
    """
    answer = Answer(Graph(problem))
    for name, how in zip(passes, options or [Options(conservative)] * len(passes), strict=True):
        for one in PIPELINES.get(name, (name,)):
            _run_pass(answer, one, how)
    return answer


def _run_pass(answer: Answer, name: str, how: Options) -> None:
    strategy = STRATEGIES.get(name)
    if strategy is not None:
        use_basic = name == "sdy-basic-propagate" or how.strategy == "basic"
        propagation = Propagation(answer.graph, use_basic=use_basic, conservative=how.conservative)
        if how.by_op:
            strategy(propagation)
        elif strategy is by_user:
            by_user(propagation, _once)
        else:
            _once(propagation)
        propagation.finish()
        answer.events += propagation.events
        answer.told += propagation.told
        answer.steps += propagation.different_steps
    elif name == "sdy-unflatten-call-graph":
        after.unflatten_calls(answer.graph, how.fully)
    elif name == "sdy-import-func-calls":
        calls.import_calls(answer.graph, how.edges)
    elif name in PASSES:
        PASSES[name](answer.graph)
    else:
        known = ", ".join(sorted({*STRATEGIES, *PASSES, *PIPELINES}))
        raise MeshwrightError(
            f"There is no pass {name!r}.", why=f"the passes are {known}", fix="sdy-propagation-pipeline"
        )
