"""Options of passes: those that Shardy has are known, and do what they do there."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("jaxlib.mlir")

from jaxlib.mlir.passmanager import PassManager

from meshwright.errors import MeshwrightError
from meshwright.interop.shardy.passes import checked_pass, pass_names
from tests.oracle.each_pass import MARKED, by_shardy, by_us, is_installed, nested
from tests.oracle.shardy import context
from tests.versions import LOCAL as LOCAL_CHANGE
from tests.versions import older_than

HALO = "enable-halo-exchange"


@pytest.mark.parametrize("name", [one for one in pass_names() if one.startswith("sdy-") and "pipeline" not in one])
def test_every_option_of_shardy_may_be_written_with_its_default(name: str) -> None:
    if not is_installed(name):
        pytest.skip("the installed Shardy does not have this pass")
    with context():
        text = str(PassManager.parse(f"builtin.module({nested(name)})"))
    for option, value in re.findall(r"([\w-]+)=([\w-]*)", text):
        if option != HALO:
            assert checked_pass(f"{name}={option}={value}").options == {option: value}


def test_an_option_of_shardy_that_is_not_offered_says_what_to_write() -> None:
    found = []
    for text in (
        f"sdy-resolve-permutation-factors={HALO}=true",
        "sdy-convert-global-to-local=combine-multi-dimension-reduce-scatter=true",
        "sdy-basic-propagate=module-dump-directory=dumps",
        "sdy-sink-data-flow-edges=sink-debug-sharding-origins=true",
    ):
        with pytest.raises(MeshwrightError) as error:
            checked_pass(text)
        found.append(str(error.value))
    assert found == [
        "The option enable-halo-exchange of sdy-resolve-permutation-factors is not offered.\n"
        "  why:  what moves between neighbours is made whole first\n"
        "  fix:  -sdy-resolve-permutation-factors=enable-halo-exchange=false",
        "The option combine-multi-dimension-reduce-scatter of sdy-convert-global-to-local is not offered.\n"
        "  why:  each dim is scattered by itself\n"
        "  fix:  -sdy-convert-global-to-local",
        "The option module-dump-directory of sdy-basic-propagate is not offered.\n"
        "  why:  what passes print goes to the standard output\n"
        "  fix:  meshwright opt -sdy-basic-propagate … > saved.mlir",
        "The option sink-debug-sharding-origins of sdy-sink-data-flow-edges is not offered.\n"
        "  why:  it writes attributes that only Shardy's own tools read\n"
        "  fix:  -sdy-sink-data-flow-edges --explain",
    ]


GATHERS = """sdy.mesh @m = <["x"=2, "y"=4, "z"=2]>
func.func @main(%a: tensor<8x8x8xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {"z"}, {"y"}]>})
    -> (tensor<8x8x8xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {}, {}]>}) {
  %0 = sdy.all_gather [{}, {"z"}, {"y"}] %a out_sharding=<@m, [{"x"}, {}, {}]> : tensor<8x8x8xf32>
  %1 = sdy.all_slice [{}, {}, {"y"}] %0 out_sharding=<@m, [{"x"}, {}, {"y"}]> : tensor<8x8x8xf32>
  %2 = sdy.all_gather [{}, {}, {"y"}] %1 out_sharding=<@m, [{"x"}, {}, {}]> : tensor<8x8x8xf32>
  return %2 : tensor<8x8x8xf32>
}"""
ON_WRITTEN_MESHES = """
func.func @main(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<mesh<["x"=2, "y y"=4]>, [{"x"}, {"y y"}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<mesh<["x"=2, "y y"=4]>, [{"x"}, {}]>}) {
  %0 = sdy.all_gather [{}, {"y y"}] %a out_sharding=<mesh<["x"=2, "y y"=4]>, [{"x"}, {}]> : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}"""
LOCAL = """module attributes {sdy.output_shardings = #sdy.sharding_per_value<[<mesh<["x"=2]>, [{"x"}]>]>,
    sdy.parameters_shardings = #sdy.sharding_per_value<[<mesh<["x"=2]>, [{}]>]>} {
  func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {
    return %a : tensor<8xf32>
  }
}"""
MATMUL = """sdy.mesh @m = <["x"=2, "y"=2]>
func.func @main(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@m, [{"y"}, {"x"}]>},
    %b: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {}]>}) -> (tensor<8x8xf32>, tensor<8xf32>) {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      {sdy.sharding = #sdy.sharding_per_value<[<@m, [{"y"}, {}]>]>}
      : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = stablehlo.constant dense<0.0> : tensor<f32>
  %2 = stablehlo.reduce(%a init: %1) applies stablehlo.maximum across dimensions = [1]
      {sdy.sharding = #sdy.sharding_per_value<[<@m, [{"y"}]>]>} : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
  return %0, %2 : tensor<8x8xf32>, tensor<8xf32>
}"""
ROWS = """sdy.mesh @m = <["x"=2]>
func.func @main(%a: tensor<4x2x2xf32> {sdy.sharding = #sdy.sharding<@m, [{?}, {?}, {"x", ?}]>},
    %b: tensor<3x2x1xi32>) -> tensor<3x4x2x2xf32> {
  %0 = "stablehlo.gather"(%a, %b) <{dimension_numbers = #stablehlo.gather<offset_dims = [1, 3],
      collapsed_slice_dims = [2], start_index_map = [2], index_vector_dim = 2>, slice_sizes = array<i64: 4, 2, 1>}>
      {sdy.sharding = #sdy.sharding_per_value<[<@m, [{?}p2, {}, {?}, {}]>]>}
      : (tensor<4x2x2xf32>, tensor<3x2x1xi32>) -> tensor<3x4x2x2xf32>
  return %0 : tensor<3x4x2x2xf32>
}"""
INLINED = """func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.negate %a {sdy.sharding = #sdy.sharding_per_value<[<mesh<[], device_ids=[3]>, []>]>} : tensor<8xf32>
  return %0 : tensor<8xf32>
}"""
PRIORITIES = """sdy.mesh @m = <["x"=2, "y"=2]>
func.func @main(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}p1, {?}]>},
    %b: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@m, [{?}, {"x"}p0]>}) -> tensor<8x8xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = stablehlo.add %0, %a : tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}"""
CONVERT = "sdy-convert-global-to-local"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (f"{CONVERT}{{enable-rgv3=false}}", ON_WRITTEN_MESHES),
        (f"{CONVERT}{{per-dim-all-gather=true}}", GATHERS),
        (f"{CONVERT}{{enable-rgv3=false per-dim-all-gather=true}}", GATHERS),
        (f"{CONVERT}{{replica-count=16}}", GATHERS),
        (f"{CONVERT}{{partition-count=16}}", GATHERS),
        ("sdy-drop-sharding-and-mesh", LOCAL),
        ("sdy-drop-sharding-and-mesh{keep-module-sharding-metadata=true}", LOCAL),
        (MARKED, MATMUL),
        (MARKED, ROWS),
        ("sdy-lift-inlined-meshes{use-single-device-mesh-names=true}", INLINED),
        ("sdy-user-priority-propagate{run-op-priority-propagation=false}", PRIORITIES),
        ("sdy-op-priority-propagate{run-op-priority-propagation=false}", PRIORITIES),
    ],
)
def test_an_option_does_what_it_does_in_shardy(name: str, text: str) -> None:
    if not is_installed(name):
        pytest.skip("the installed Shardy does not have this option")
    if name.split("{")[0] in (CONVERT, "sdy-drop-sharding-and-mesh") and older_than(LOCAL_CHANGE):
        pytest.skip(LOCAL_CHANGE.what)
    assert by_us(text, name) == by_shardy(text, name)


def test_groups_on_a_mesh_without_a_name_are_lists_of_devices() -> None:
    """What Shardy writes then, ``mesh = #sdy.mesh<…>``, it cannot read."""
    found = by_us(ON_WRITTEN_MESHES, CONVERT).text
    assert "dense<[[0, 1, 2, 3], [4, 5, 6, 7]]>" in found
    assert found == by_us(ON_WRITTEN_MESHES, f"{CONVERT}{{enable-rgv3=false}}").text


def test_a_call_of_a_function_that_says_nothing_is_made_local_with_whole_values() -> None:
    text = """sdy.mesh @m = <["x"=2]>
func.func @main(%a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}]>}) -> tensor<8xf32> {
  %0 = call @f(%a) {sdy.sharding = #sdy.sharding_per_value<[<@m, [{"x"}]>]>} : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
func.func private @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  return %a : tensor<8xf32>
}"""
    found = by_us(text, CONVERT)
    assert found.error == "" and "call @f(%0)" in found.text
    assert "(tensor<8xf32>) -> tensor<8xf32>" in next(line for line in found.text.splitlines() if "call @f" in line)
