"""``-sdy-convert-global-to-local``: what devices run makes up what the whole module makes, and is Shardy's text."""

from __future__ import annotations

import random

import numpy as np
import pytest

pytest.importorskip("jaxlib.mlir")

from meshwright.errors import MeshwrightError
from meshwright.interop.shardy.local_collectives import groups, indices
from meshwright.interop.shardy.passes import apply_passes
from meshwright.interop.stablehlo.context import parse_module
from meshwright.sharding.mesh import Mesh
from tests.oracle.each_pass import by_shardy, by_us
from tests.oracle.local_runs import CHAINS, CONVERT, RECIPE, differs, run
from tests.oracle.random_modules import random_module
from tests.versions import LOCAL, older_than


def test_random_modules_on_eight_devices() -> None:
    found = {seed: run(seed) for seed in range(25)}
    assert {seed: wrong for seed, wrong in found.items() if wrong} == {}
    assert sum(wrong == "" for wrong in found.values()) > 18


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 3200, 100))
def test_many_random_modules_on_eight_devices(first: int) -> None:
    found = {seed: run(seed) for seed in range(first, first + 100)}
    assert {seed: wrong for seed, wrong in found.items() if wrong} == {}


MESH = 'sdy.mesh @mesh = <["x"=2, "y"=4]>\n'
X, XY = '<@mesh, [{"x"}, {}]>', '<@mesh, [{"x"}, {"y"}]>'


def function(body: str, made: str = "tensor<8x8xf32>", given: str = XY) -> str:
    return f"""{MESH}func.func @main(%a: tensor<8x8xf32> {{sdy.sharding = #sdy.sharding{given}}},
    %b: tensor<8x8xf32> {{sdy.sharding = #sdy.sharding{X}}}, %i: tensor<i32>) -> {made} {{
  {body}
  return %r : {made}
}}"""


def reduced(kind: str, start: str) -> str:
    return function(
        f"%s = stablehlo.constant dense<{start}> : tensor<f32>\n"
        f"%r = stablehlo.reduce(%a init: %s) applies stablehlo.{kind} across dimensions = [1] : "
        "(tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>",
        "tensor<8xf32>",
    )


HARD = {
    **{f"{kind} from {start}": reduced(kind, start) for kind in ("add", "maximum", "minimum", "multiply")
       for start in ("0.0", "1.5")},
    "writing into a split dim": function(
        "%u = stablehlo.slice %b [0:3, 0:8] : (tensor<8x8xf32>) -> tensor<3x8xf32>\n"
        "%r = stablehlo.dynamic_update_slice %a, %u, %i, %i : "
        "(tensor<8x8xf32>, tensor<3x8xf32>, tensor<i32>, tensor<i32>) -> tensor<8x8xf32>"
    ),
    "a dim that the axes do not divide": function(
        '%u = stablehlo.slice %a [1:8, 0:8] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y"}, {}]>]>} : '
        "(tensor<8x8xf32>) -> tensor<7x8xf32>\n%s = stablehlo.constant dense<0.0> : tensor<f32>\n"
        "%r = stablehlo.reduce(%u init: %s) applies stablehlo.add across dimensions = [0] : "
        "(tensor<7x8xf32>, tensor<f32>) -> tensor<8xf32>",
        "tensor<8xf32>",
    ),
    "the minor part of a dim that is split": MESH + """
func.func @main(%a: tensor<3x3x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {"y":(1)2}]>})
    -> (tensor<18xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) {
  %r = stablehlo.reshape %a {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "y"}]>]>} :
      (tensor<3x3x2xf32>) -> tensor<18xf32>
  return %r : tensor<18xf32>
}""",
    "neighbours along a split dim": function(
        "%s = stablehlo.constant dense<0.0> : tensor<f32>\n"
        "%r = stablehlo.pad %a, %s, low = [1, -1], high = [-1, 1], interior = [0, 0] : "
        "(tensor<8x8xf32>, tensor<f32>) -> tensor<8x8xf32>"
    ),
    "numbers along a split dim": function(
        '%u = stablehlo.iota dim = 1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"y"}]>]>} : '
        "tensor<8x8xf32>\n%r = stablehlo.add %a, %u : tensor<8x8xf32>"
    ),
    "a list of numbers": function(
        '%u = stablehlo.constant {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y"}]>]>} '
        "dense<[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]> : tensor<8xf32>\n"
        "%v = stablehlo.broadcast_in_dim %u, dims = [1] : (tensor<8xf32>) -> tensor<8x8xf32>\n"
        "%r = stablehlo.add %a, %v : tensor<8x8xf32>"
    ),
}  # fmt: skip


@pytest.mark.parametrize("chain", CHAINS, ids=["alone", "prepared"])
@pytest.mark.parametrize("case", HARD)
def test_where_parts_do_not_simply_make_parts(case: str, chain: tuple[str, ...]) -> None:
    assert differs(HARD[case], 0, chain) == ""


def test_arguments_must_be_split_evenly() -> None:
    text = f'{MESH}func.func @main(%a: tensor<7xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}]>}}) {{ return }}'
    with pytest.raises(MeshwrightError) as caught:
        apply_passes(parse_module(text), [CONVERT], names=True)
    assert (
        str(caught.value)
        == """\
The argument 0 of a function is not split evenly.
  at:   line 2:1
  why:  its type is tensor<7xf32>, its sharding #sdy.sharding<@mesh, [{"x"}]>
  fix:  -sdy-update-non-divisible-input-output-shardings -sdy-convert-global-to-local"""
    )


SAME = {
    "collectives": """func.func @main(%a: T X) -> T {
  %0 = sdy.reduce_scatter [{}, {"y"}] %a out_sharding=<@mesh, [{"x"}, {"y"}]> : T
  %1 = sdy.collective_permute %0 out_sharding=<@mesh, [{"y":(1)2}, {"x","y":(2)2}]> : T
  %2 = sdy.all_gather [{"y":(1)2}, {"y":(2)2}] %1 out_sharding=<@mesh, [{}, {"x"}]> : T
  %3 = sdy.all_to_all [{"x"}: 1->0] %2 out_sharding=<@mesh, [{"x"}, {}]> : T
  %4 = sdy.all_slice [{"y"}, {}] %3 out_sharding=<@mesh, [{"x", "y"}, {}]> : T
  %5 = sdy.all_gather [{"x", "y"}, {}] %4 out_sharding=<@mesh, [{}, {}]> : T
  return %5 : T
}""",
    "constants and iotas": """func.func @main(%a: T X) -> (T X) {
  %0 = stablehlo.iota dim = 0 OX : T
  %1 = sdy.constant OX dense<1.0> : T
  %2 = stablehlo.add %0, %1 OX : T
  %3 = stablehlo.add %a, %2 OX : T
  return %3 : T
}""",
    "calls and loops": """func.func @main(%a: T X) -> (T X) {
  %0 = call @g(%a) OX : (T) -> T
  %c = stablehlo.constant dense<true> : tensor<i1>
  %1 = stablehlo.while(%i = %0) : T attributes OX cond { stablehlo.return %c : tensor<i1> } do {
    %2 = stablehlo.negate %i OX : T
    stablehlo.return %2 : T
  }
  return %1 : T
}
func.func private @g(%a: T X) -> (T X) {
  %0 = stablehlo.negate %a OX : T
  return %0 : T
}""",
    "partial sums of what was none": """func.func @main(%a: T) -> T {
  %r = sdy.reshard %a <@mesh, [{}, {}]> : T
  %0 = sdy.replicated_to_unreduced {"x"} %r out_sharding=<@mesh, [{}, {}], unreduced={"x"}> : T
  %1 = sdy.all_reduce {"x"} %0 out_sharding=<@mesh, [{}, {}]> : T
  return %1 : T
}""",
}
CONVERTED = "sdy-convert-global-to-local"


@pytest.mark.skipif(older_than(LOCAL), reason=LOCAL.what)
@pytest.mark.parametrize("case", SAME)
def test_the_text_is_shardy_s(case: str) -> None:
    text = SAME[case].replace("OX", f"{{sdy.sharding = #sdy.sharding_per_value<[{X}]>}}")
    text = text.replace(" X)", f" {{sdy.sharding = #sdy.sharding{X}}})").replace("T", "tensor<8x8xf32>")
    text = MESH + text.replace("%r = sdy.reshard %a <@mesh, [{}, {}]> : tensor<8x8xf32>\n", "").replace("%r", "%a")
    text = text.replace(
        "@main(%a: tensor<8x8xf32>)", "@main(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})"
    )
    theirs = by_shardy(text, CONVERTED)
    assert not theirs.error and by_us(text, CONVERTED) == theirs


@pytest.mark.parametrize("spec", ['<["x"=2, "y"=4]>', '<["x"=2, "y"=4], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>'])
def test_groups_are_all_devices_that_differ_along_some_axes(spec: str) -> None:
    mesh, rng = Mesh.parse(spec), random.Random(0)
    x, y = mesh.axes
    for axes in ((x,), (y,), (y, x), tuple(rng.sample(y.split(2, 2), 2)), y.split(2, 2)[1:]):
        found = groups(mesh, axes)
        order = np.arange(8) if mesh.order is None else np.array(mesh.order)
        position = np.argsort(order)
        assert sorted(found.ravel()) == list(range(8))
        for row in found:
            assert list(indices(mesh, axes)[position[row]]) == list(range(len(row)))


def test_random_modules_have_no_sdy_op_left() -> None:
    for seed in range(4):
        module = apply_passes(parse_module(random_module(seed, RECIPE)), CHAINS[0]).module
        names = {line.split("sdy.")[1].split(" ")[0] for line in str(module).splitlines() if "= sdy." in line}
        assert names == set()
