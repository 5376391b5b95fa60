"""Factor rules of StableHLO ops against Shardy's own, for every op of random modules and for those that are rare."""

from __future__ import annotations

import pytest

from meshwright.interop.shardy.passes import populate_rules
from meshwright.interop.stablehlo.context import parse_module
from tests.oracle.random_modules import EVERYTHING, Recipe, random_module
from tests.oracle.shardy import apply, newest_rules

EVERY_FEATURE = Recipe(features=(*EVERYTHING, "named"))
MATRICES = "%a: tensor<4x6xf32>, %b: tensor<4x6xf32>, %i: tensor<i32>, %w: tensor<4x6xui32>, %s: tensor<2xui32>"


def populated(text: str) -> str:
    module = parse_module(text)
    populate_rules(module)
    return str(module)


def assert_same_rules(text: str) -> None:
    assert populated(text) == apply(newest_rules(text), "populate-op-sharding-rules")


@pytest.mark.parametrize("seed", range(150))
def test_every_op_of_a_random_module_has_the_rule_of_shardy(seed: int) -> None:
    assert_same_rules(random_module(seed, EVERY_FEATURE))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 21000, 500))
def test_every_op_of_many_random_modules_has_the_rule_of_shardy(first: int) -> None:
    for seed in range(first, first + 500):
        text = random_module(seed, EVERY_FEATURE)
        assert populated(text) == apply(newest_rules(text), "populate-op-sharding-rules"), f"seed {seed}"


def call(target: str, operands: str, results: str, more: str = "") -> str:
    """A custom call on arguments of its own."""
    types = [f"tensor<{t}>" for t in operands.split()]
    arguments = ", ".join(f"%a{n}: {t}" for n, t in enumerate(types))
    names = ", ".join(f"%a{n}" for n in range(len(types)))
    made = ", ".join(f"tensor<{t}>" for t in results.split())
    op = f'%r:{len(results.split())} = "stablehlo.custom_call"({names}) <{{call_target_name = "{target}"}}> {more}'
    return f"func.func @main({arguments}) {{\n{op} : ({', '.join(types)}) -> ({made})\nreturn\n}}"


@pytest.mark.parametrize(
    ("target", "operands", "results"),
    [
        ("mhlo.topk", "4x6x8xf32", "4x6x3xf32 4x6x3xi32"),
        ("mhlo.topk", "4x6x8xf32", "4x6x8xf32 4x6x8xi32"),
        ("ApproxTopK", "4x6x8xf32 4x6x8xi32 f32 i32", "4x6x3xf32 4x6x3xi32"),
        ("PartialReduce", "4x6x8xf32 4x6x8xi32 f32 i32", "4x2x8xf32 4x2x8xi32"),
        ("Eigh", "4x6x6xf32", "4x6x6xf32 4x6xf32"),
        ("Qr", "4x6x8xf32", "4x6x8xf32 4x6xf32"),
        ("ProductOfElementaryHouseholderReflectors", "4x8x6xf32 4x6xf32", "4x8x6xf32"),
        ("X64Combine", "4x6xui32 4x6xui32", "4x6xui64"),
        ("X64SplitLow", "4x6xui64", "4x6xui32"),
        ("_SPMDInternalOp_MultiPad", "4x6xf32 f32", "4x8xf32"),
        ("_SPMDInternalOp_MultiSlice", "4x6xf32", "4x4xf32 4x4xf32"),
        ("annotate_device_placement", "4x6xf32 4xf32", "4x6xf32"),
        ("CompactWyHelper", "4x6x6xf32 4x6x6xf32", "4x6x6xf32"),
        ("InspectSharding", "4x6x6xf32", "4x6x6xf32"),
        ("Cholesky", "f32", "f32"),
        ("xla.megascale.provide_metadata", "4x6x6xf32", "4x6x6xf32"),
        ("unheard_of", "4x6xf32", "4x6xf32"),
    ],
)
def test_custom_calls(target: str, operands: str, results: str) -> None:
    assert_same_rules(call(target, operands, results))


def test_a_rule_of_the_users_is_kept() -> None:
    rule = "sdy.sharding_rule = #sdy.op_sharding_rule<([ij])->([i, j]) {i=2, j=3}, custom>"
    assert_same_rules(call("unheard_of", "6xf32", "2x3xf32", f"{{{rule}}}"))


@pytest.mark.parametrize(
    "body",
    [
        # What is joined may stay split if it was cut out before.
        "%0 = stablehlo.slice %a [0:2, 0:6] : (tensor<4x6xf32>) -> tensor<2x6xf32>\n"
        "%1 = stablehlo.slice %b [0:2, 0:6] : (tensor<4x6xf32>) -> tensor<2x6xf32>\n"
        "%2 = stablehlo.concatenate %0, %1, dim = 0 : (tensor<2x6xf32>, tensor<2x6xf32>) -> tensor<4x6xf32>\n"
        "%3 = stablehlo.concatenate %0, %a, dim = 0 : (tensor<2x6xf32>, tensor<4x6xf32>) -> tensor<6x6xf32>\n"
        "%4 = stablehlo.concatenate %0, %b, dim = 0 : (tensor<2x6xf32>, tensor<4x6xf32>) -> tensor<6x6xf32>\n"
        "%5 = stablehlo.concatenate %a, dim = 0 : (tensor<4x6xf32>) -> tensor<4x6xf32>",
        # What is written at a known place need not be whole.
        "%c = stablehlo.constant dense<0> : tensor<i32>\n"
        "%u = stablehlo.slice %a [0:2, 0:6] : (tensor<4x6xf32>) -> tensor<2x6xf32>\n"
        "%1 = stablehlo.dynamic_update_slice %a, %u, %c, %c : "
        "(tensor<4x6xf32>, tensor<2x6xf32>, tensor<i32>, tensor<i32>) -> tensor<4x6xf32>\n"
        "%2 = stablehlo.dynamic_update_slice %a, %u, %i, %c : "
        "(tensor<4x6xf32>, tensor<2x6xf32>, tensor<i32>, tensor<i32>) -> tensor<4x6xf32>",
        # The state of a random generator is not split.
        '%c = "stablehlo.custom_call"(%s, %s) <{call_target_name = "X64Combine"}> : '
        "(tensor<2xui32>, tensor<2xui32>) -> tensor<2xui64>\n"
        "%r:2 = stablehlo.rng_bit_generator %c, algorithm = THREE_FRY : "
        "(tensor<2xui64>) -> (tensor<2xui64>, tensor<8xui32>)",
        # Ops that Shardy has no rule for.
        '%r = "chlo.erf"(%a) : (tensor<4x6xf32>) -> tensor<4x6xf32>',
        "%r = stablehlo.partition_id : tensor<ui32>",
        "%t = stablehlo.create_token : !stablehlo.token\n%q = stablehlo.after_all %t, %t : !stablehlo.token",
        '%r = "stablehlo.map"(%a, %b) <{dimensions = array<i64: 0, 1>}> ({ ^bb0(%x: tensor<f32>, %y: tensor<f32>):\n'
        "%q = stablehlo.add %x, %y : tensor<f32>\nstablehlo.return %q : tensor<f32> }) : "
        "(tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>",
        "%r = stablehlo.convert %a : (tensor<4x6xf32>) -> tensor<4x6xi4>",
        "%r = arith.addf %a, %b : tensor<4x6xf32>",
        '%r:2 = "stablehlo.all_gather"(%a, %b) <{all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1]]> : '
        "tensor<1x2xi64>}> : (tensor<4x6xf32>, tensor<4x6xf32>) -> (tensor<8x6xf32>, tensor<8x6xf32>)",
    ],
)
def test_neighbours_and_rare_ops(body: str) -> None:
    assert_same_rules(f"func.func @main({MATRICES}) {{\n{body}\nreturn\n}}")
