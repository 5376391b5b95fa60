"""Commands that read a Python file: each takes whatever a file may hold of a program, and says the same of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import meshwright as mw
from meshwright.cli import main

Printed = pytest.CaptureFixture[str]

MODEL = """\
import meshwright as mw
import meshwright.numpy as mnp
from meshwright import pallas as pl

mesh = mw.make_mesh((2, 4), ("data", "model"))
x = mw.device_put(mnp.ones((8, 16)), mw.NamedSharding(mesh, mw.P("data", "model")))
w = mw.device_put(mnp.ones((16, 8)), mw.NamedSharding(mesh, mw.P("model")))

def f(x, w):
    return mnp.tanh(x @ w)

def call():
    return f, (x, w)

def jitted_call():
    return mw.jit(f), (x, w)

def call_by_keyword():
    return mw.jit(f), (x,), {"w": w}

def lowered():
    return mw.jit(f).lower(x, w)

def compiled():
    return mw.jit(f).lower(x, w).compile()

traced = lowered()
made = compiled()

def double(x_ref, y_ref):
    y_ref[...] = x_ref[...] * 2

def kernel():
    return pl.pallas_call(double, out_shape=mw.ShapeDtypeStruct((8,), mnp.float32)), (mnp.ones(8),)
"""
LAID_OUT = ("call", "jitted_call", "call_by_keyword", "lowered", "compiled", "traced", "made")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)


@pytest.mark.parametrize("name", LAID_OUT)
def test_every_form_of_a_call_is_laid_out_as_its_arguments_are(name: str, capsys: Printed) -> None:
    found = {}
    for command in ("simulate", "cost", "explain", "stages"):
        assert main([command, f"model.py:{name}"]) == 0
        assert capsys.readouterr().out
        assert main([command, f"model.py:{name}", "--json"]) == 0
        found[command] = json.loads(capsys.readouterr().out)
    assert found["simulate"]["mesh"] == found["cost"]["mesh"] == {"data": 2, "model": 4}
    assert found["simulate"]["axis_seconds"].keys() == found["cost"]["axis_seconds"].keys() == {"model"}
    (one,) = found["explain"]["collectives"]
    assert found["explain"]["bytes_received_per_device"] == one["bytes"] == 192
    assert (one["kind"], one["axes"], one["times"], one["implicit"]) == ("all_reduce", ["model"], 1, True)
    assert (one["line"], one["value"]) == ("model.py:10", "towards result f32[8,8]")
    assert one["why"] == "the matmul leaves partial sums over model; the tanh needs it sharded as [8@data, 8]"
    assert "partition" in [stage["stage"] for stage in found["stages"]]


def test_a_kernel_alone_has_a_timeline_and_a_cost(capsys: Printed) -> None:
    assert main(["simulate", "model.py:kernel", "--perfetto", "trace.json"]) == 0
    shown = capsys.readouterr().out
    assert " for double on tpu v5e 1\n" in shown and "device 0 compute |" in shown and "         memory  |" in shown
    assert json.loads(Path("trace.json").read_text())["traceEvents"]
    assert main(["simulate", "model.py:kernel", "--json"]) == 0
    timeline = json.loads(capsys.readouterr().out)
    assert timeline["kernel"] == "double" and timeline["memory_bytes"] == 64.0
    assert main(["cost", "model.py:kernel", "--json"]) == 0
    cost = json.loads(capsys.readouterr().out)
    assert [share["name"] for share in cost["by_op"]] == ["pallas_call"]
    assert cost["compute_seconds"] == timeline["seconds"]
    assert main(["kernel", "model.py:kernel"]) == 0
    assert capsys.readouterr().out.startswith("double on one device: ")


def test_what_was_lowered_is_simulated_as_it_is_laid_out() -> None:
    mesh = mw.make_mesh((4,), ("x",))
    lowered = mw.jit(lambda x: x.sum(0)).lower(mw.device_put(mw.numpy.ones((8, 8)), mw.NamedSharding(mesh, mw.P("x"))))
    assert str(mw.simulate(lowered, "h100")) == str(lowered.compile().simulate("h100"))


@pytest.mark.parametrize("name", ["made", "traced"])
@pytest.mark.parametrize("command", ["simulate", "cost", "kernel"])
def test_types_are_of_functions(command: str, name: str, capsys: Printed) -> None:
    assert main([command, f"model.py:{name}", "--args", "f32[8,16] f32[16,8]"]) == 2
    kind = {"made": "Compiled", "traced": "Lowered"}[name]
    assert capsys.readouterr().err == (
        f"--args does not go with model.py:{name}.\n"
        f"  why:  it is a value of type {kind}, and types are of a function's arguments\n"
        "  fix:  leave out --args\n"
    )


def test_a_text_has_its_types(capsys: Printed) -> None:
    Path("program.txt").write_text("program(a: f32[2]) { b: f32[2] = add a a  return b }")
    assert main(["cost", "program.txt"]) == 0
    capsys.readouterr()
    assert main(["cost", "program.txt", "--args", "f32[2]"]) == 2
    assert capsys.readouterr().err == (
        "--args does not go with program.txt.\n"
        "  why:  it is the text of a program, and types are of a function's arguments\n"
        "  fix:  leave out --args\n"
    )


def test_what_is_compiled_has_its_mesh(capsys: Printed) -> None:
    assert main(["simulate", "model.py:call", "--mesh", "x=2"]) == 2
    assert capsys.readouterr().err == (
        "--mesh does not go with model.py:call.\n"
        '  why:  it is compiled for the mesh <["data"=2, "model"=4]>\n'
        "  fix:  leave out --mesh\n"
    )
