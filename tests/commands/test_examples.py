"""Every example that ``--help`` shows runs, and what it prints with ``--json`` is as its schema says."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meshwright.cli import main
from meshwright.commands.examples import EXAMPLES
from meshwright.commands.parsers import COMMANDS
from meshwright.commands.schema import schema_of

Printed = pytest.CaptureFixture[str]
HERE = Path(__file__).parent
RAW = HERE.parents[1] / "benchmarks" / "data" / "h200_torch.json"
MODULE = """\
sdy.mesh @mesh = <["x"=2]>
func.func @main(%a: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<4xf32> {
  %0 = stablehlo.add %a, %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
LONG = ("meshwright tour", "meshwright calibrate", "meshwright launch", "meshwright layout", "meshwright serving",
        "meshwright simulate --transformer")  # fmt: skip
TINY = "--transformer layers=2,width=64,hidden=128,heads=2,head_dim=32,vocab=64 --strategy data=2,tensor=1 --batch 8"
MORE = (
    f"meshwright cost {TINY} --sequence 16",
    f"meshwright simulate {TINY} --sequence 16",
    "meshwright simulate model.py:kernel",
    "meshwright diff model.py:example model.py:example",
    "meshwright opt module.mlir -sdy-propagation-pipeline -split-input-file --explain",
    "meshwright report model.py:example -o out.html --compare model.py:before",
    "meshwright reshard --mesh x=2,y=4 --shape 64x64 x,y '(x,y)' --hardware h100",
    "meshwright rules",
    "meshwright tour representation",
    "meshwright visualize --mesh x=2,y=4",
    "meshwright visualize x --mesh x=4,y=2 --shape 10",
    "meshwright visualize 'x,unreduced={y}' --mesh x=4,y=2 --shape 10",
)
EVERY = [one for examples in EXAMPLES.values() for one in examples]


def quick(calls: list[str]) -> list[Any]:
    return [pytest.param(one, marks=[pytest.mark.slow] if one.startswith(LONG) else []) for one in calls]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(HERE / "model.py", tmp_path)
    shutil.copy(RAW, tmp_path / "raw.json")
    (tmp_path / "module.mlir").write_text(MODULE)
    (tmp_path / "script.py").write_text("print(1)\n")
    main(["explain", "model.py:before", "--json"])
    (tmp_path / "saved.json").write_text(capsys.readouterr().out)


def words(example: str) -> list[str]:
    """The arguments of a command; what a shell does with its output is not looked at."""
    return shlex.split(example.partition(" > ")[0])[1:]


def ran(arguments: list[str], capsys: Printed) -> tuple[int, str]:
    """The exit code of a command and what it prints; of one that has ``import jax`` mean us, in its own process."""
    if arguments[0] != "run-jax":
        return main(arguments), capsys.readouterr().out
    one = subprocess.run([sys.executable, "-m", "meshwright", *arguments], capture_output=True, text=True)
    return one.returncode, one.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_the_examples_of_the_command(command: str, capsys: Printed) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    shown = capsys.readouterr().out.partition("\nexamples:\n")[2]
    assert shown.splitlines() == [f"  {one}" for one in EXAMPLES[command]]
    assert all(one.split()[:2] == ["meshwright", command] for one in EXAMPLES[command])


@pytest.mark.parametrize("example", quick(EVERY))
def test_an_example_runs(example: str, capsys: Printed) -> None:
    code, out = ran(words(example), capsys)
    assert code == (1 if "--exit-code" in example else 0) and out.strip()


@pytest.mark.parametrize("call", quick([*EVERY, *MORE]))
def test_json_is_as_its_schema_says(call: str, capsys: Printed) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: make test adds it")
    name, *arguments = words(call)
    at = len(arguments) - 1 if name in ("launch", "run-jax") else len(arguments)  # before the script
    _, out = ran([name, *arguments[:at], "--json", *arguments[at:]], capsys)
    answer = json.loads(out.splitlines()[-1] if name in ("launch", "run-jax") else out)
    jsonschema.validate(answer, schema_of(name))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_schema_is_one_and_refuses_something_else(command: str) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: make test adds it")
    schema = schema_of(command)
    jsonschema.Draft202012Validator.check_schema(schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(None, schema)


def test_a_schema_of_no_command(capsys: Printed) -> None:
    assert main(["schema", "explan"]) == 2
    assert capsys.readouterr().err == (
        f"There is no command 'explan'.\n  why:  there are {', '.join(sorted(COMMANDS))}\n"
        "  fix:  meshwright schema explain\n"
    )


@pytest.mark.parametrize("call", [["explain"], ["diff", "model.py:example"], ["report", "-o", "page.html"]])
def test_a_machine_that_is_too_small_is_answered_with_one_to_type(call: list[str], capsys: Printed) -> None:
    command = [call[0], "model.py:example", *call[1:], "--hardware"]
    assert main([*command, "tpu v5e 2x3"]) == 2
    error = capsys.readouterr().err
    assert error == (
        "A mesh of data=2, model=4 does not fit on tpu v5e 2x3.\n"
        "  why:  the mesh has 8 devices, the machine 6 chips\n"
        "  fix:  --hardware 'tpu v5e 2x4'\n"
    )
    assert main([*command, error.split("'")[1]]) == 0


def test_the_line_that_is_meant_is_among_those_that_are_listed(capsys: Printed) -> None:
    """Seven lines have a collective each, and five are listed: the nearest is the last of the seven."""
    calls = "".join("    x = mnp.tanh(x @ w)\n" for _ in range(7))
    head = (Path("model.py").read_text().partition("def feed")[0]).rstrip()
    text = f"{head}\n\n\ndef f(x, w):\n{calls}    return x\n\n\ndef example():\n"
    text += '    return mw.jit(f), (on((64, 64), None, "model"), on((64, 64), "model"))\n'
    Path("seven.py").write_text(text)
    last = text.splitlines().index("    return x")
    assert main(["explain", "seven.py:example", "--line", f"seven.py:{last}{last % 10}"]) == 2
    found = capsys.readouterr().err.splitlines()
    listed = found[1].removeprefix("  why:  collectives are of ").split(", ")
    assert (len(listed), listed[0], found[2]) == (5, f"seven.py:{last}", f"  fix:  --line seven.py:{last}")


def test_a_filter_that_can_match_nothing_is_refused(capsys: Printed) -> None:
    assert main(["explain", "model.py:example", "--axis", "modle"]) == 2
    assert capsys.readouterr().err == "--axis is 'modle'.\n  why:  there are data, model\n  fix:  --axis model\n"
    assert main(["explain", "model.py:example", "--kind", "alltoall"]) == 2
    assert capsys.readouterr().err == (
        "--kind is 'alltoall'.\n  why:  there are all_gather, all_reduce, all_to_all, permute, reduce_scatter\n"
        "  fix:  --kind all_to_all\n"
    )
    assert main(["explain", "model.py:example", "--line", "modle.py:9"]) == 2
    found = capsys.readouterr().err.splitlines()
    assert found[0] == "--line is 'modle.py:9'."
    assert found[1].startswith("  why:  collectives are of model.py:")
    assert found[2] in {
        f"  fix:  --line {line}" for line in found[1].removeprefix("  why:  collectives are of ").split(", ")
    }
    assert main(["explain", "model.py:example", "--scope", "layers"]) == 2
    assert capsys.readouterr().err == (
        "--scope is 'layers'.\n  why:  no collective is in a scope\n  fix:  meshwright explain model.py:example\n"
    )


def test_without_hints_nothing_is_tried(capsys: Printed) -> None:
    assert main(["explain", "model.py:example"]) == 0
    with_hints = capsys.readouterr().out.splitlines()
    assert main(["explain", "model.py:example", "--no-hints"]) == 0
    without = capsys.readouterr().out.splitlines()
    left_out = ("    instead: ", "    next best: ", "cheaper:", "    lay out ")
    assert set(without) <= set(with_hints)
    assert not any(line.startswith(left_out) for line in without)
