"""Every pass, one at a time, on modules with everything in them: what it prints is what Shardy's prints."""

from __future__ import annotations

import re

import pytest

from meshwright.interop.shardy.passes import pass_names
from tests.oracle.each_pass import ALONE, by_shardy, by_us, compared
from tests.versions import CONSTRAINTS, older_than


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_each_pass_does_what_shardy_s_does(first: int) -> None:
    results = [compared(seed, 0.25) for seed in range(first, first + 20)]
    assert [line for result in results for line in result.differences] == []
    assert sum(result.passes for result in results) > 60


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 21000, 1000))
def test_each_pass_does_what_shardy_s_does_on_many_modules(first: int) -> None:
    results = [compared(seed, 0.1) for seed in range(first, first + 1000)]
    assert [line for result in results for line in result.differences] == []


def test_every_pass_of_the_comparison_is_one_of_ours() -> None:
    assert {name.split("{")[0] for name in ALONE} <= set(pass_names())


MESH = 'sdy.mesh @m = <["x"=2, "y"=2]>\n'
T = "tensor<8x8xf32>"
CASES = {
    "nothing goes through a reshard": (
        "sdy-user-priority-propagate",
        """
func.func @main(%a: T {sdy.sharding = #sdy.sharding<@m, [{"x"}, {?}]>}) -> T {
  %0 = stablehlo.negate %a : T
  %1 = sdy.reshard %0 <@m, [{?}, {"y", ?}]> {kept} : T
  %2 = stablehlo.negate %1 {kept} : T
  return %2 : T
}""",
    ),
    "priorities of a manual computation reach its edges": (
        "sdy-add-data-flow-edges",
        """
func.func @main(%a: T) -> T {
  %1 = sdy.manual_computation(%a) in_shardings=[<@m, [{"y", ?}p3, {"x", ?}p1]>]
      out_shardings=[<@m, [{"y"}, {?}p1]>] manual_axes={"y"} (%i: tensor<4x8xf32>) {
    %3 = stablehlo.negate %i : tensor<4x8xf32>
    sdy.return %3 : tensor<4x8xf32>
  } {kept} : (T) -> T
  return %1 : T
}""",
    ),
    "shardings pass the edges of functions": (
        "sdy-add-func-data-flow-edges,sdy-user-priority-propagate",
        """
func.func @main(%a: T, %b: T {sdy.sharding = #sdy.sharding<@m, [{?}, {"x"}]>}) -> T {
  %0 = call @f(%a) {kept} : (T) -> T
  %1 = call @f(%b) : (T) -> T
  %2 = stablehlo.negate %1 {kept} : T
  return %2 : T
}
func.func private @f(%a: T) -> T {
  %0 = stablehlo.negate %a : T
  return %0 : T
}""",
    ),
    "a scalar that is one of several results": (
        "sdy-apply-sharding-constraints",
        """
func.func @main(%a: tensor<f32>, %b: T) -> (tensor<f32>, tensor<f32>, tensor<f32>) {
  %0:2 = stablehlo.optimization_barrier {sdy.sharding = #sdy.sharding_per_value<[<@m, []>, <@m, [{}, {}]>]>}
      %a, %b : tensor<f32>, T
  %1 = sdy.sharding_constraint %0#0 <@m, [], replicated={"x"}> : tensor<f32>
  %2 = stablehlo.negate %a {sdy.sharding = #sdy.sharding_per_value<[<@m, []>]>} : tensor<f32>
  %3 = sdy.sharding_constraint %2 <@m, [], replicated={"x"}> : tensor<f32>
  return %1, %3, %0#0 : tensor<f32>, tensor<f32>, tensor<f32>
}""",
    ),
    "groups that overlap become one": (
        "sdy-sharding-group-import",
        """
func.func @main(%a: T, %b: T, %c: T) -> T {
  %0 = stablehlo.add %a, %b : T
  sdy.sharding_group %c group_id=30 : T
  sdy.sharding_group %a group_id=7 : T
  sdy.sharding_group %0 group_id=3 : T
  sdy.sharding_group %b group_id=12 : T
  sdy.sharding_group %a group_id=12 : T
  return %0 : T
}""",
    ),
    "manual axes in the order of the mesh": (
        "sdy-manual-axes-cleanup",
        """
sdy.mesh @e = <[]>
func.func @main(%a: T, %b: T) -> T {
  %1:2 = sdy.manual_computation(%a, %b) in_shardings=[<@m, [{"y"}, {?}]>, <@e, [{}, {?}]>]
      out_shardings=[<@e, [{}, {?}]>, <@m, [{}, {"x"}]>] manual_axes={"y", "x"} (%i: tensor<4x8xf32>, %j: T) {
    sdy.return %j, %i : T, tensor<4x8xf32>
  } : (T, T) -> (T, tensor<4x16xf32>)
  return %1#0 : T
}""",
    ),
    "results without an edge": (
        "sdy-sink-data-flow-edges",
        """
func.func @main(%a: T, %b: T) -> (T, T) {
  %0:2 = stablehlo.optimization_barrier {sdy.sharding = #sdy.sharding_per_value<
      [<@m, [{"y"}, {?}]>, <@m, [{"x"}, {?}]>]>} %a, %b : T, T
  %1 = sdy.data_flow_edge %0#0 sharding=<@m, [{"x"}, {}]> : T
  return %1, %0#1 : T, T
}""",
    ),
    "an axis of size 1 divides everything": (
        "sdy-update-non-divisible-input-output-shardings",
        """
sdy.mesh @n = <["x"=2, "y"=1, "z"=2]>
func.func @main(%a: T {sdy.sharding = #sdy.sharding<@n, [{"x", "y", "z"}, {?}]>}) -> T {
  return %a : T
}""",
    ),
    "an axis of size 1 before one that does not divide": (
        "sdy-update-non-divisible-input-output-shardings",
        """
sdy.mesh @n = <["x"=3, "y"=1]>
func.func @main(%a: T {sdy.sharding = #sdy.sharding<@n, [{"y", "x"}, {?}]>}) -> T {
  %0 = sdy.manual_computation(%a) in_shardings=[<@n, [{"y", "x"}, {}]>] out_shardings=[<@n, [{}, {}]>]
      manual_axes={"y"} (%i: T) {
    sdy.return %i : T
  } : (T) -> T
  return %0 : T
}""",
    ),
    "a reshard behind a barrier": (
        "sdy-reshard-to-collectives",
        """
func.func @main(%a: T {sdy.sharding = #sdy.sharding<@m, [{"x"}, {"y"}]>}) -> (T, T) {
  %0 = sdy.propagation_barrier %a allowed_direction=NONE : T
  %1 = sdy.reshard %0 <@m, [{}, {}]> : T
  return %0, %1 : T, T
}""",
    ),
    "copies know what they were": (
        "sdy-flatten-call-graph",
        """
func.func @main(%a: T) -> T {
  %0 = call @f(%a) {kept} : (T) -> T
  %1 = call @f(%0) : (T) -> T
  %2 = call @g(%1) : (T) -> T
  return %2 : T
}
func.func private @f(%a: T) -> T attributes {kept, sdy.original_func_name = "k"} {
  %0 = call @g(%a) : (T) -> T
  return %0 : T
}
func.func private @g(%a: T {my.kept}) -> T {
  return %a : T
}""",
    ),
    "calls become computations, and functions again": (
        "sdy-import-func-calls,sdy-export-named-computations,sdy-unflatten-call-graph",
        """
func.func @main(%a: T) -> T {
  %0 = call @f(%a) {kept} : (T) -> T
  %1 = call @f(%0) {sdy.sharding = #sdy.sharding_per_value<[<@m, [{"x"}, {?}]>]>} : (T) -> T
  return %1 : T
}
func.func private @f(%a: T {my.kept}) -> T attributes {kept} {
  %0 = stablehlo.abs %a : T
  return %0 : T
}""",
    ),
    "computations of a user become functions": (
        "sdy-export-named-computations",
        """
func.func @main(%a: T {sdy.sharding = #sdy.sharding<@m, [{"x"}, {}]>}) -> T {
  %0 = sdy.named_computation<"f">(%a) in_shardings=[<@m, [{"x"}, {}]>] (%i: T) {
    %3 = stablehlo.abs %i : T
    %4 = sdy.named_computation<"f">(%3) (%j: T) { sdy.return %j : T } {kept} : (T) -> T
    sdy.return %4 : T
  } {kept} : (T) -> T
  %1 = sdy.named_computation<"g">(%0) out_shardings=[<@m, [{"x"}, {}]>] (%i: T) {
    sdy.return %i : T
  } : (T) -> T
  return %1 : T
}
func.func private @g(%a: T) -> T {
  return %a : T
}""",
    ),
    "meshes are declared once": (
        "sdy-lift-inlined-meshes",
        """
sdy.mesh @n = <["x"=2, "y"=2]>
func.func @main(%a: T {sdy.sharding = #sdy.sharding<mesh<["x"=2]>, [{"x"}, {}]>},
    %b: T {sdy.sharding = #sdy.sharding<@n, [{"x"}, {}]>}) -> T {
  %0 = stablehlo.negate %a {sdy.sharding = #sdy.sharding_per_value<[<mesh<["y"=2]>, [{"y"}, {}]>]>} : T
  %1 = stablehlo.negate %a {sdy.sharding = #sdy.sharding_per_value<[<mesh<[], device_ids=[3]>, []>]>} : T
  return %a : T
}""",
    ),
    "operands of a call on several meshes": (
        "sdy-insert-explicit-reshards{enable-full-version=true}",
        """
sdy.mesh @o = <["x"=2, "y"=2], device_ids=[3, 2, 1, 0]>
func.func @main(%a: T {sdy.sharding = #sdy.sharding<@o, [{}, {}]>},
    %b: T {sdy.sharding = #sdy.sharding<@m, [{"x"}, {}]>},
    %c: T {sdy.sharding = #sdy.sharding<@m, [{"x"}, {}]>}) -> T {
  %0 = call @f(%a, %b, %c) : (T, T, T) -> T
  return %0 : T
}
func.func private @f(%a: T, %b: T, %c: T) -> T {
  return %a : T
}""",
    ),
    "a constraint that was applied shows its rule": (
        "sdy-apply-sharding-constraints",
        """
func.func @main(%a: T, %b: tensor<f32>) -> T {
  %0 = stablehlo.negate %a : T
  %1 = sdy.sharding_constraint %0 <@m, [{"x"}, {}]> : T
  %2 = sdy.sharding_constraint %b <@m, []> : tensor<f32>
  %3 = sdy.sharding_constraint %a <@m, [{"x"}, {?}]> : T
  return %1 : T
}""",
    ),
}


SINCE_CONSTRAINTS = ("a scalar that is one of several results",)


@pytest.mark.parametrize("case", CASES)
def test_what_shardy_does(case: str) -> None:
    passes, text = CASES[case]
    if case in SINCE_CONSTRAINTS and older_than(CONSTRAINTS):
        pytest.skip(CONSTRAINTS.what)
    given = theirs = MESH + re.sub(r"\bT\b", T, text)
    for name in passes.split(","):
        theirs = by_shardy(theirs, name).text
        given = by_us(given, name).text
    assert given == theirs
