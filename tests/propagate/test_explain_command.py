"""``meshwright explain``: what it prints, and what it says about bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.cli import main

MODEL = """\
import meshwright as mw
import meshwright.numpy as mnp

mesh = mw.make_mesh((2, 2), ("x", "y"))

def layer(params, x):
    return mnp.tanh(x @ params["w"]).sum(0)

def place(x, *spec):
    return mw.device_put(x, mw.NamedSharding(mesh, mw.P(*spec)))

def example():
    return layer, ({"w": place(mnp.ones((8, 4)), None, "y")}, place(mnp.ones((4, 8)), "x"))

def compiled():
    f, args = example()
    return mw.jit(f).lower(*args).compile()

def nothing():
    return 3
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return str(path)


@pytest.mark.parametrize("function", ["example", "compiled"])
def test_collectives_and_values(file: str, function: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", f"{file}:{function}"]) == 0
    assert capsys.readouterr().out.startswith("1 collective: all_reduce 1; ")
    assert main(["explain", f"{file}:{function}", "--value", "result", "--value", "params['w']"]) == 0
    assert (
        capsys.readouterr().out
        == """\
reduce_sum at model.py:7  f32[4]  P('y',)
  dim 0 over "y"
    through reduce_sum                model.py:7
    through tanh                      model.py:7
    through dot_general               model.py:7
    from argument params['w'], dim 1  model.py:10
params['w']  f32[8,4]  P(None, 'y')
  dim 1 over "y"
    from argument params['w'], dim 1  model.py:10
"""
    )


def test_as_json(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", f"{file}:example", "--value", "result", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["axes"][0]["origin"] == "argument params['w']" and found["axes"][0]["written"] == "model.py:10"
    assert [step["op"] for step in found["axes"][0]["through"]] == ["reduce_sum", "tanh", "dot_general"]


def test_what_cannot_be_explained(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", f"{file}:nothing"]) == 2
    assert (
        capsys.readouterr().err
        == f"""\
{file}:nothing gives a value of type int, not a function and its arguments.
  why:  the function is compiled for them
  fix:  {file}:example
"""
    )
    assert main(["explain", f"{file}:example", "--value", "params['v']"]) == 2
    assert (
        capsys.readouterr().err
        == """\
"params['v']" is no value of the program.
  why:  no argument and no result is called so, and no value is made on such a line
  fix:  --value "params['w']"
"""
    )


def test_a_file_without_an_example_is_told_the_one_to_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("step.py").write_text("def step(params, x):\n    return x @ params\n")
    assert main(["explain", "step.py:step"]) == 2
    text = capsys.readouterr().err
    assert (
        text
        == """\
step(params, x) cannot be called with no arguments.
  why:  missing a required argument: 'params'
  fix:  step.py:example, after this in step.py, with arrays or mw.ShapeDtypeStruct(shape, dtype) for params, x:
        def example(): return step, (params, x)
"""
    )
    with Path("step.py").open("a") as file:
        file.write("import meshwright as mw\nparams = x = mw.ShapeDtypeStruct((4, 4), 'float32')\n")
        file.write(text.splitlines()[-1].strip() + "\n")
    assert main(["explain", "step.py:example"]) == 0
    assert capsys.readouterr().out == "no collectives: the program runs on one device\n"
    assert main(["explain", "step.py:step"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "  fix:  step.py:example"
