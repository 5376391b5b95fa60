"""What ``meshwright opt`` says of a bad module: Shardy's words, at Shardy's place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager

from meshwright.cli import main
from meshwright.errors import MeshwrightError
from meshwright.interop.shardy.diagnostics import diagnosed
from meshwright.interop.shardy.passes import apply_passes
from meshwright.interop.stablehlo.context import parse_module, plain_module
from tests.oracle.bad_modules import MESHES, bad_modules
from tests.oracle.each_pass import is_installed, nested
from tests.oracle.shardy import context, refuses
from tests.versions import VERIFICATION, older_than


def said_by_shardy(text: str, name: str = "") -> list[tuple[int, int, str]]:
    """The errors, each with its line and column."""
    with context():
        try:
            module = ir.Module.parse(text)
            if name:
                PassManager.parse(f"builtin.module({name})").run(module.operation)
        except ir.MLIRError as error:
            places = [re.search(r":(\d+):(\d+)", str(one.location)) for one in error.error_diagnostics]
            return [
                (int(place[1]), int(place[2]), one.message)
                for one, place in zip(error.error_diagnostics, places, strict=True)
                if place is not None
            ]
    return []


def said_by_us(text: str, *passes: str) -> list[tuple[int, int, str]]:
    found = diagnosed(text, lambda: apply_passes(plain_module(text, False), passes, names=True))
    return [(one.line, one.column, one.message) for one in found if one.kind == "error"]


def test_the_verifiers_say_the_same_in_the_same_place() -> None:
    different, messages = [], set()
    for wrong, text in bad_modules():
        theirs = said_by_shardy(text)
        if said_by_us(text) != theirs:
            different.append(wrong)
        messages.update(message for _, _, message in theirs)
    assert different == []
    assert len(messages) >= 350


BY_PASSES = {
    "a group of values of two shapes": (
        "sdy-sharding-group-import",
        """func.func @main(%x: tensor<8xf32>, %y: tensor<4xf32>) {
  sdy.sharding_group %x group_id=7 : tensor<8xf32>
  sdy.sharding_group %y group_id=7 : tensor<4xf32>
  return
}""",
    ),
    "a group across the border of a manual computation": (
        "sdy-sharding-group-import",
        """func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  sdy.sharding_group %x group_id=0 : tensor<8xf32>
  %1 = sdy.manual_computation(%x) in_shardings=[<@m, [{}]>] out_shardings=[<@m, [{}]>] manual_axes={}
      (%i: tensor<8xf32>) {
    sdy.sharding_group %i group_id=0 : tensor<8xf32>
    sdy.return %i : tensor<8xf32>
  } : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}""",
    ),
    "edges that are there": (
        "sdy-add-data-flow-edges",
        """func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.optimization_barrier %x : tensor<8xf32>
  %1 = sdy.data_flow_edge %0 : tensor<8xf32>
  return %1 : tensor<8xf32>
}""",
    ),
}
MERGED = """func.func @main() -> (tensor<8xf32>, tensor<8xf32>) {
  %0 = stablehlo.constant dense<1.5> : tensor<8xf32>
  %1 = stablehlo.constant {sdy.sharding = #sdy.sharding_per_value<[<@m, [{"y"}]>]>} dense<1.5> : tensor<8xf32>
  %2 = sdy.all_gather [{"y"}] %1 out_sharding=<@m, [{}]> : tensor<8xf32>
  return %0, %2 : tensor<8xf32>, tensor<8xf32>
}"""
PARTIAL = '{sdy.sharding = #sdy.sharding<@m, [{}], unreduced={"y"}>}'
BY_VERIFICATION = [
    f"func.func @main(%x: V {PARTIAL}) -> V {{\n  %0 = stablehlo.negate %x : V\n  return %0 : V\n}}",
    f"""func.func @main(%x: V {PARTIAL}) -> V {{
  %0 = call @f(%x) : (V) -> V
  return %0 : V
}}
func.func private @f(%x: V) -> V {{
  return %x : V
}}""",
    f"func.func @main(%x: V) -> (V {PARTIAL}) {{\n  return %x : V\n}}",
    """func.func @main(%x: V {sdy.sharding = #sdy.sharding<@m, [{}], unreduced=max{"y"}>}) -> V {
  %0 = stablehlo.negate %x {sdy.sharding = #sdy.sharding_per_value<[<@m, [{}], unreduced={"y"}>]>} : V
  return %0 : V
}""",
    f"""func.func @main(%x: V {PARTIAL}) -> V {{
  %1 = sdy.named_computation<"f">(%x) in_shardings=[<@m, [{{}}], unreduced={{"y"}}>]
      out_shardings=[<@m, [{{}}]>] (%i: V) {{
    sdy.return %i : V
  }} : (V) -> V
  return %1 : V
}}""",
]


@pytest.mark.parametrize("case", BY_PASSES)
def test_passes_say_the_same_in_the_same_place(case: str) -> None:
    name, text = BY_PASSES[case]
    theirs = said_by_shardy(MESHES + text, name)
    ours = said_by_us(MESHES + text, name)
    assert theirs and [(line, column) for line, column, _ in ours] == [(line, column) for line, column, _ in theirs]
    assert ours[0][2].endswith(theirs[0][2])


@pytest.mark.parametrize(
    "name",
    ["sdy-export-pipeline", "sdy-optimize-collectives", "sdy-explicit-gather-scatter-batching", "canonicalize"],
)
def test_equal_constants_of_two_shardings_that_become_one_are_told_as_by_shardy(name: str) -> None:
    if not is_installed(name):
        pytest.skip("the installed Shardy does not have this pass")
    theirs, ours = said_by_shardy(MESHES + MERGED, nested(name)), said_by_us(MESHES + MERGED, name)
    assert theirs and [(line, column) for line, column, _ in ours] == [(line, column) for line, column, _ in theirs]
    assert ours[0][2] == f"The module is not valid after {name}: {theirs[0][2]}"
    with pytest.raises(MeshwrightError) as error:
        apply_passes(parse_module(MESHES + MERGED), [name])
    assert (error.value.why, error.value.fix) == (
        "equal constants became one, and so did their shardings: only sdy.constant stays apart",
        "-sdy-constant-or-scalar-splitter before",
    )
    apply_passes(parse_module(MESHES + MERGED), ["sdy-constant-or-scalar-splitter", name])


@pytest.mark.skipif(older_than(VERIFICATION), reason=VERIFICATION.what)
@pytest.mark.parametrize("text", BY_VERIFICATION)
def test_lost_partial_sums_are_told_as_shardy_tells_them(text: str) -> None:
    text = MESHES + re.sub(r"\bV\b", "tensor<8xf32>", text)
    theirs = said_by_shardy(text, "func.func(sdy-verify-unreduced-axes)")
    assert theirs and said_by_us(text, "sdy-verify-unreduced-axes") == theirs
    assert refuses(text, "verify-unreduced-axes")


EXPECTING = """\
sdy.mesh @m = <["x"=2]>
// expected-error @+1 {{'func.func' op arg 0 - unknown axis name: "q"}}
func.func @main(%x: tensor<8xf32> {sdy.sharding=#sdy.sharding<@m,[{"q"}]>}) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}
// -----
func.func @main(%x: tensor<8xf32>, %y: tensor<4xf32>) {
  sdy.sharding_group %x group_id=0 : tensor<8xf32>
  // expected-error-re@below {{must have the {{s.me}} shape}}
  sdy.sharding_group %y group_id=0 : tensor<4xf32>
  return
}
// -----
func.func @main() {
  // expected-error@+1 {{unregistered dialect}}
  "strange.op"() : () -> ()
  return
}
"""


def test_expected_diagnostics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "module.mlir"
    path.write_text(EXPECTING)
    command = ["opt", str(path), "-split-input-file", "-verify-diagnostics", "-sdy-sharding-group-import"]
    assert main(command) == 0
    assert capsys.readouterr() == ("", "")
    assert main([*command, "-allow-unregistered-dialect"]) == 1
    assert capsys.readouterr().err == f'{path}:15: error: expected error "unregistered dialect" was not produced\n'
    path.write_text(EXPECTING.replace("unknown axis", "known axis"))
    assert main(command) == 1
    assert (
        capsys.readouterr().err
        == f"""\
{path}:3:1: error: unexpected error: 'func.func' op arg 0 - unknown axis name: "q"
{path}:2: error: expected error "'func.func' op arg 0 - known axis name: "q"" was not produced
"""
    )
