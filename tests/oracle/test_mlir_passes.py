"""Passes on modules against Shardy's: the module read, propagated and written is, letter for letter, Shardy's."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from meshwright.errors import MeshwrightError
from meshwright.interop.shardy.module_writer import write_module
from meshwright.interop.shardy.passes import apply_passes
from meshwright.interop.shardy.problem_reader import read_problem
from meshwright.interop.stablehlo.context import parse_module
from tests.oracle.random_modules import EVERYTHING, Recipe, random_module
from tests.oracle.shardy import apply, newest_rules, piped, piped_by_us, refuses, survived
from tests.versions import CALLS, CONSTRAINTS, older_than

STRATEGIES = ("basic", "aggressive", "op-priority", "user-priority")


@pytest.mark.parametrize("seed", range(60))
def test_a_module_that_nothing_was_done_to_is_written_as_it_was_read(seed: int) -> None:
    module = parse_module(random_module(seed, Recipe(features=(*EVERYTHING, "named"))))
    assert str(write_module(module, read_problem(module))) == str(module)


def assert_same(seed: int, strategy: str) -> None:
    text = random_module(seed, Recipe(features=()))
    expected = apply(newest_rules(text), f"{strategy}-propagate")
    assert str(apply_passes(parse_module(text), [f"sdy-{strategy}-propagate"]).module) == expected, f"seed {seed}"


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", range(30))
def test_a_function_is_propagated_through_as_shardy_does(seed: int, strategy: str) -> None:
    assert_same(seed, strategy)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("first", range(1000, 6000, 500))
def test_many_functions_are_propagated_through_as_shardy_does(first: int, strategy: str) -> None:
    for seed in range(first, first + 500):
        assert_same(seed, strategy)


@pytest.mark.parametrize("seed", range(60))
def test_a_module_goes_through_the_pipeline_as_through_shardy_s(seed: int) -> None:
    text = random_module(seed)
    assert piped_by_us(text) == piped(text)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 11000, 500))
def test_many_modules_go_through_the_pipeline_as_through_shardy_s(first: int) -> None:
    different = []
    for seed in range(first, first + 500):
        text = random_module(seed)
        expected = survived(piped, text)  # Shardy does not survive one in a thousand
        if expected is not None and piped_by_us(text) != expected:
            different.append(seed)
    # Shardy keeps the rules of concatenations from before constraints became reshards, and folds ops as it goes.
    assert len(different) <= 4, different


@pytest.mark.parametrize(
    "passes", [("add-func-data-flow-edges",), ("add-func-data-flow-edges", "sink-func-data-flow-edges")]
)
@pytest.mark.parametrize("seed", range(15))
def test_edges_of_functions_are_those_of_shardy(seed: int, passes: tuple[str, ...]) -> None:
    text = random_module(seed, Recipe(features=("call",)))
    assert after(text, *passes) == apply(text, *passes)


@pytest.mark.parametrize("seed", range(10))
def test_propagation_takes_off_rules_that_were_written_before(seed: int) -> None:
    text = random_module(seed, Recipe(features=()))
    ruled = after(text, "populate-op-sharding-rules")
    assert "op_sharding_rule" in ruled
    assert after(ruled, "basic-propagate") == after(text, "basic-propagate") == apply(ruled, "basic-propagate")


T = "tensor<8x8xf32>"
WRITTEN = [
    "[{?}, {?}]", "[{}, {?}]", "[{}, {}]", '[{?}, {?}], replicated={"y"}', '[{?}, {?}], unreduced={"y"}',
    '[{"x", ?}, {?}]', "[{?}p1, {?}]",
]  # fmt: skip
CONSTRAINED = {  # what %v is, and how it is used
    "an op": "%v = stablehlo.negate %a {sdy.sharding = #sdy.sharding_per_value<[<@m, SAID>]>} : T",
    "one of several results": '%w:2 = "stablehlo.custom_call"(%a) <{call_target_name = "k"}> {sdy.sharding = '
    '#sdy.sharding_per_value<[<@m, SAID>, <@m, [{?}, {"y"}]>]>} : (T) -> (T, T)\n%v = stablehlo.negate %w#0 : T',
    "an edge": "%w = stablehlo.optimization_barrier %a : T\n%v = sdy.data_flow_edge %w sharding=<@m, SAID> : T",
    "a function's edge": "%w = func.call @f(%a) : (T) -> T\n"
    "%v = sdy.func_data_flow_edge %w {sdy.sharding = #sdy.sharding_per_value<[<@m, SAID>]>} : T",
}


@pytest.mark.skipif(older_than(CONSTRAINTS), reason=CONSTRAINTS.what)
@pytest.mark.parametrize("said", WRITTEN)
@pytest.mark.parametrize("value", CONSTRAINED)
def test_constraints_on_values_of_which_something_is_said(value: str, said: str) -> None:
    function = """(%a: T) -> T {
      VALUE
      %0 = stablehlo.add %v, %v : T
      %1 = sdy.sharding_constraint %v <@m, [{}, {"x"}]> : T
      %2 = sdy.sharding_constraint %1 <@m, [{"x"}, {}]> : T
      %3 = stablehlo.add %v, %v : T
      return %v : T
    }"""
    text = f'sdy.mesh @m = <["x"=2, "y"=4]>\nfunc.func @main{function}\nfunc.func private @f{function}'
    text = text.replace("VALUE", CONSTRAINED[value]).replace("SAID", said)
    text = re.sub(r"\bT\b", T, text.replace("@f(%a)", "@g(%a)"))
    text += f"\nfunc.func private @g(%a: {T}) -> {T} {{ return %a : {T} }}"
    assert after(text, "apply-sharding-constraints") == apply(text, "apply-sharding-constraints")


def after(text: str, *passes: str) -> str:
    return str(apply_passes(parse_module(text), [f"sdy-{name}" for name in passes]).module)


def is_refused_by_us(text: str) -> bool:
    try:
        apply_passes(parse_module(text), ["sdy-propagation-pipeline"])
    except MeshwrightError:
        return True
    return False


def refused_by_one(seeds: Iterable[int]) -> list[int]:
    """The modules that ours refuses and Shardy does not, or the reverse."""
    found = []
    for seed in seeds:
        text = random_module(seed)
        if survived(piped, text) is not None and is_refused_by_us(text) != refuses(text, "propagation-pipeline"):
            found.append(seed)
    return found


@pytest.mark.skipif(older_than(CALLS), reason="it refuses nothing, or something else")
def test_the_pipeline_refuses_what_shardy_s_refuses() -> None:
    assert refused_by_one(range(60)) == []


@pytest.mark.slow
@pytest.mark.skipif(older_than(CALLS), reason="it refuses nothing, or something else")
@pytest.mark.parametrize("first", range(1000, 3000, 500))
def test_the_pipeline_refuses_many_modules_as_shardy_s_does(first: int) -> None:
    assert refused_by_one(range(first, first + 500)) == []
