"""``meshwright opt`` and ``meshwright rules``: what they print, and what they say about bad input."""

from __future__ import annotations

import io
import json
import tomllib
from pathlib import Path

import pytest

from meshwright.cli import main
from meshwright.errors import MeshwrightError
from meshwright.interop.stablehlo import context as mlir_context

MODULE = """\
sdy.mesh @mesh = <["a"=2, "b"=4]>
func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {?}]>}) -> tensor<8x16xf32> {
  %0 = stablehlo.negate %x : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
"""
NEGATED = """\
    %0 = stablehlo.negate %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a", ?}, {?}]>]>} : tensor<8x16xf32>
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "module.mlir"
    path.write_text(MODULE)
    return str(path)


def test_a_file_is_propagated_through(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", file, "-sdy-basic-propagate"]) == 0
    assert NEGATED in capsys.readouterr().out


def test_passes_run_in_the_order_they_are_given(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", file, "-sdy-close-shardings", "-sdy-basic-propagate"]) == 0
    first = capsys.readouterr().out
    assert main(["opt", file, "-sdy-basic-propagate", "-sdy-close-shardings"]) == 0
    second = capsys.readouterr().out
    assert '[{"a", ?}, {?}]' in first
    assert '[{"a", ?}, {?}]' not in second and '[{"a"}, {}]' in second


def test_standard_input_with_two_modules(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{MODULE}// -----\n{MODULE}"))
    assert main(["opt", "-", "-split-input-file", "-sdy-basic-propagate"]) == 0
    one, two = capsys.readouterr().out.split("// -----\n")
    assert one == two and NEGATED in one


def test_an_op_without_a_rule_passes_through_with_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "module.mlir"
    path.write_text(
        MODULE.replace("stablehlo.negate %x :", "stablehlo.custom_call @strange(%x) : (tensor<8x16xf32>) ->")
    )
    assert main(["opt", str(path), "-sdy-basic-propagate", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["warnings"] == ["no sharding rule is known for strange: nothing is propagated through it"]
    assert "custom_call @strange(%arg0) : (tensor<8x16xf32>) -> tensor<8x16xf32>" in found["module"]


def test_a_malformed_module_is_shown_with_line_and_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "module.mlir"
    path.write_text(MODULE.replace("stablehlo.negate", "stablehlo.negatte"))
    assert main(["opt", str(path)]) == 2
    assert (
        capsys.readouterr().err
        == f"""\
The module cannot be read: custom op 'stablehlo.negatte' is unknown
  at:   {path}:3:8
  why:  this is there:
          %0 = stablehlo.negatte %x : tensor<8x16xf32>
               ^
"""
    )


MESH = 'sdy.mesh @mesh = <["a"=2, "b"=4]>\n'
BAD = {
    "an unknown mesh": (
        'func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mush, [{"a"}]>}) {\n  return\n}\n',
        """\
The module cannot be read: 'func.func' op arg 0 - unknown mesh: @mush
  at:   PATH:2:1
  why:  this is there:
        func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mush, [{"a"}]>}) {
        ^
""",
    ),
    "an unknown axis": (
        'func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"q"}]>}) {\n  return\n}\n',
        """\
The module cannot be read: 'func.func' op arg 0 - unknown axis name: "q"
  at:   PATH:2:1
  why:  this is there:
        func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"q"}]>}) {
        ^
""",
    ),
    "a group of values that cannot have one sharding": (
        """\
func.func @main(%x: tensor<8xf32>, %y: tensor<4xf32>) {
  sdy.sharding_group %x group_id=0 : tensor<8xf32>
  sdy.sharding_group %y group_id=0 : tensor<4xf32>
  return
}
""",
        """\
Values of the shapes (8,) and (4,) are in one sharding group.
  at:   line 4:3
  why:  the values of a group have one sharding, so they have one shape
  fix:  give them groups of their own
""",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_modules(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, message = BAD[case]
    path = tmp_path / "module.mlir"
    path.write_text(MESH + text)
    assert main(["opt", str(path), "-sdy-propagation-pipeline"]) == 2
    assert capsys.readouterr().err == message.replace("PATH", str(path))


def test_a_group_of_values_with_different_shardings_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "module.mlir"
    one, other = (f'tensor<8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"{axis}"}}]>}}' for axis in "ab")
    path.write_text(f"""\
{MESH}func.func @main(%x: {one}, %y: {other}) {{
  sdy.sharding_group %x group_id=0 : tensor<8xf32>
  sdy.sharding_group %y group_id=0 : tensor<8xf32>
  return
}}
""")
    assert main(["opt", str(path), "-sdy-propagation-pipeline"]) == 0  # as Shardy: a warning
    assert capsys.readouterr().err == (
        "warning: The values of sharding group 0 have different shardings: "
        '#sdy.sharding<@mesh, [{"a"}]>, #sdy.sharding<@mesh, [{"b"}]>\n'
    )


COMMUNICATION = """\
sdy.mesh @m = <["x"=2, "y"=2]>
func.func @f(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {"y"}]>}) -> tensor<8x8xf32> {
  %0 = sdy.reshard %a <@m, [{"y"}, {}]> : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
"""


def test_reshards_become_collectives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "module.mlir"
    path.write_text(COMMUNICATION)
    assert main(["opt", str(path), "-sdy-insert-explicit-reshards", "-sdy-reshard-to-collectives"]) == 0
    assert [line.strip() for line in capsys.readouterr().out.splitlines() if "%0" in line or "%1" in line] == [
        '%0 = sdy.collective_permute %arg0 out_sharding=<@m, [{"y"}, {"x"}]> : tensor<8x8xf32>',
        '%1 = sdy.all_gather [{}, {"x"}] %0 out_sharding=<@m, [{"y"}, {}]> : tensor<8x8xf32>',
        "return %1 : tensor<8x8xf32>",
    ]


def test_every_reshard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "module.mlir"
    path.write_text(COMMUNICATION)
    assert main(["opt", str(path), "-sdy-insert-explicit-reshards=enable-full-version=true"]) == 0
    assert "%1 = sdy.reshard %0 <@m, [{}, {}]>" in capsys.readouterr().out  # what is returned has no sharding


def test_sums_that_nobody_owed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "module.mlir"
    path.write_text(COMMUNICATION.replace('[{"y"}, {}]>', '[{}, {}], unreduced={"y"}>'))
    assert main(["opt", str(path), "-sdy-reshard-to-collectives"]) == 2
    assert (
        capsys.readouterr().err
        == """\
The reshard at line 3:8 makes a partial sum of a value that was none.
  why:  its operand is unreduced over {}, its result over {"y"}
  fix:  -sdy-insert-explicit-reshards -sdy-reshard-to-collectives
"""
    )


def test_a_named_computation_in_the_pipeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "module.mlir"
    path.write_text("""\
func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  %0 = sdy.named_computation<"g">(%a) (%b: tensor<8xf32>) {
    sdy.return %b : tensor<8xf32>
  } : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
""")
    assert main(["opt", str(path), "-sdy-user-priority-propagate"]) == 0
    capsys.readouterr()
    assert main(["opt", str(path), "-sdy-propagation-pipeline"]) == 0
    found = capsys.readouterr().out
    assert "call @g(%arg0)" in found and "func.func private @g" in found


UNREAD = """\
sdy.mesh @mesh = <["a"=2, "b"=4]>
func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}]>}, %b: i1) -> tensor<8xf32> {
  %0 = stablehlo.negate %x : tensor<8xf32>
  %1 = scf.if %b -> tensor<8xf32> {
    scf.yield %0 : tensor<8xf32>
  } else {
    scf.yield %x : tensor<8xf32>
  }
  %2 = func.call @elsewhere(%1) : (tensor<8xf32>) -> tensor<8xf32>
  return %2 : tensor<8xf32>
}
func.func @jumps(%x: tensor<8xf32>) -> tensor<8xf32> {
  cf.br ^end(%x : tensor<8xf32>)
^end(%y: tensor<8xf32>):
  return %y : tensor<8xf32>
}
func.func private @elsewhere(tensor<8xf32>) -> tensor<8xf32>
func.func private @nobody(tensor<8xf32>) -> tensor<8xf32>
"""


def test_what_is_not_read_stays_as_it_is_and_stops_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "module.mlir"
    path.write_text(UNREAD)
    assert main(["opt", str(path), "-sdy-propagation-pipeline"]) == 0
    found = capsys.readouterr()
    assert '%0 = stablehlo.negate %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a"}]>]>}' in found.out
    assert "scf.yield %0 : tensor<8xf32>" in found.out and "cf.br ^bb1(%arg0 : tensor<8xf32>)" in found.out
    assert "@elsewhere(tensor<8xf32>)" in found.out and "@nobody" not in found.out
    assert "@jumps has several blocks: it stays as it is" in found.err


def test_a_sum_of_operands_that_are_split_differently(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "module.mlir"
    path.write_text("""\
sdy.mesh @m = <["x"=2, "y"=2]>
func.func @f(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@m, [{}, {"x"}]>}, %b: tensor<8x8xf32>) {
  %0 = stablehlo.dot %a, %b {sdy.sharding = #sdy.sharding_per_value<[<@m, [{}, {}], unreduced={"x"}>]>} : \
(tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return
}
""")
    assert main(["opt", str(path), "-sdy-insert-explicit-reshards"]) == 2
    assert (
        capsys.readouterr().err
        == """\
The operands of stablehlo.dot at line 3:8 are split differently where it sums over them.
  why:  one over {"x"}, one over {}, and its result is a partial sum
  fix:  -sdy-insert-explicit-reshards=enable-full-version=true
"""
    )


def test_a_second_module_is_shown_with_its_line_in_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "module.mlir"
    path.write_text(f"{MODULE}// -----\n{MODULE.replace('@mesh, [', '@mush, [')}")
    assert main(["opt", str(path), "-split-input-file"]) == 2
    message = capsys.readouterr().err
    assert "unknown mesh: @mush" in message and f"{path}:8:1" in message


def test_every_axis_is_explained(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", file, "-sdy-basic-propagate", "--explain"]) == 0
    assert (
        capsys.readouterr().out
        == """\
%arg0, dim 0, over "a": written at line 2:17
%0, dim 0, over "a": through stablehlo.negate at line 3:8
  from %arg0, dim 0, over "a": written at line 2:17
"""
    )
    assert main(["opt", file, "--explain"]) == 2
    assert (
        capsys.readouterr().err
        == """\
There is nothing to explain.
  why:  no pass propagates
  fix:  meshwright opt FILE.mlir -sdy-user-priority-propagate --explain
"""
    )


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", "nowhere.mlir"]) == 2
    assert (
        capsys.readouterr().err
        == """\
nowhere.mlir cannot be read.
  why:  No such file or directory
  fix:  name a file with a module, or - for standard input
"""
    )


def test_the_rule_of_an_op_in_both_syntaxes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "stablehlo.transpose"]) == 0
    assert capsys.readouterr().out.startswith("""\
transpose, stablehlo.transpose

  f32[2,3,4] -> f32[4,2,3]  permutation=(2, 0, 1)
  j k i -> i j k
  #sdy.op_sharding_rule<([j, k, i])->([i, j, k]) {i=4, j=2, k=3}>
""")


def test_the_rules_of_all_ops(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "--json"]) == 0
    found = {entry["op"]: entry["rule"] for entry in json.loads(capsys.readouterr().out)}
    assert found["dot_general"] == "i k, k j -> i j  sum=k"
    assert len(found) > 100


def test_an_op_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "dot_genral"]) == 2
    assert (
        capsys.readouterr().err
        == """\
There is no op 'dot_genral'.
  why:  it is neither an op of meshwright nor one of StableHLO that it knows
  fix:  meshwright rules dot_general
"""
    )


def test_without_jaxlib_a_module_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    mlir_context.context.cache_clear()
    monkeypatch.setattr(mlir_context, "find_spec", lambda name: None)
    with pytest.raises(MeshwrightError) as caught:
        mlir_context.parse_module("module {}")
    assert str(caught.value) == (
        "MLIR is read and written by jaxlib, which is not installed.\n"
        "  fix:  pip install --editable '.[jax]' in the folder of Meshwright"
    )
    command = str(caught.value).partition("fix:  ")[2].removesuffix(" in the folder of Meshwright")
    root = Path(__file__).parents[2]
    assert f"`{command}`" in (root / "README.md").read_text()
    with (root / "pyproject.toml").open("rb") as file:
        assert "jax" in tomllib.load(file)["project"]["optional-dependencies"]
