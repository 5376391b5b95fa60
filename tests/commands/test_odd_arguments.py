"""Commands with an argument replaced by an odd one, left out or put in: an answer, or exit code 2 and one message."""

from __future__ import annotations

import io
import random
import time
from pathlib import Path

import pytest

from meshwright.cli import COMMANDS, main

Printed = pytest.CaptureFixture[str]

MODEL = """\
import meshwright as mw
import meshwright.numpy as mnp
from meshwright import pallas as pl

def f(x, w):
    return x @ w

def example():
    return mw.jit(f), (mnp.ones((4, 4)), mnp.ones((4, 4)))

def lowered():
    return mw.jit(f).lower(mnp.ones((4, 4)), mnp.ones((4, 4)))

def double(x_ref, y_ref):
    y_ref[...] = x_ref[...] * 2

def kernel():
    return pl.pallas_call(double, out_shape=mw.ShapeDtypeStruct((4,), mnp.float32)), (mnp.ones(4),)

model = 3
"""
MODULE = """\
sdy.mesh @m = <["x"=2]>
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  return %a : tensor<4xf32>
}
"""
TYPES = ("--args", "f32[4,4] f32[4,4]")
TINY = "layers=2,width=64,hidden=128,heads=2,head_dim=32,vocab=64"
CALLS: tuple[tuple[str, ...], ...] = (
    ("cost", "model.py:f", *TYPES, "--mesh", "x=2", "--hardware", "tpu v5e", "--mode", "exact", "--while-steps", "3"),
    ("simulate", "model.py:f", *TYPES, "--hardware", "tpu v5e 2x2"),
    ("simulate", "model.py:example", "--overlap", "steps", "--hardware", "h100"),
    ("simulate", "model.py:kernel", "--hardware", "tpu v5e"),
    ("cost", "model.py:lowered", "--mode", "asymptotic"),
    ("simulate", "--transformer", TINY, "--strategy", "data=2,tensor=1", "--batch", "8", "--sequence", "16"),
    ("explain", "model.py:example", "--value", "result[0]"),
    ("explain", "model.py:example", "--axis", "x", "--top", "2", "--hardware", "h100"),
    ("diff", "model.py:example", "model.py:lowered", "--hardware", "h100"),
    ("report", "model.py:example", "-o", "out.html", "--hardware", "h100"),
    ("stages", "model.py:example", "--stage", "combine"),
    ("kernel", "model.py:f", *TYPES, "--slots", "3", "--devices", "2"),
    ("matmul", "A[I_x,J] @ B[J,K_y] -> C[I,K]", "--mesh", "x=2,y=4", "--size", "I=8,J=8,K=8", "--dtype", "bf16"),
    ("opt", "m.mlir", "-sdy-basic-propagate"),
    ("opt", "m.mlir", "--explain"),
    ("reshard", "x,y", "y,x", "--mesh", "x=2,y=4", "--shape", "64x64", "--dtype", "f32", "--hardware", "tpu v5e"),
    ("reshard", "x,y", "y,x", "--mesh", "x=2,y=4", "--target-mesh", "y=4,x=2", "--shape", "64x64"),
    ("rules", "dot_general"),
    ("search", "--model", "mlp:2x8", "--batch", "8", "--chips", "4", "--chip", "h100", "--top", "2"),
    ("search", "--model", "gpt:2x8x2", "--config", "sequence=8", "--batch", "8", "--chips", "4", "--prune"),
    ("layout", "model.py:example", "--batch", "8", "--chips", "4", "--chip", "h100", "--top", "2"),
    ("serving", "--model", "gpt:2x8x2", "--batch", "8", "--context", "16", "--chips", "2", "--chip", "h100"),
    ("visualize", "x,y", "--mesh", "x=2,y=4", "--shape", "8x8"),
    ("calibrate", "--from", "raw.json"),
)
ODD = (
    "", "-1", "0", "9" * 20, "9" * 500, "1e400", "nan", "None", "True", "x", "x=", "=2", "x=0", "x=-1", "x=2,x=2",
    "x=1.5", "a" * 3000, "é", "\0", "\n", "[", "{", "((((", "(x", "x:(1)2", "x:(3)5", "'", "f32[", "f32[-1]",
    "f99[2]", "8x", "x8", "f32[99999999999,99999999999]", "0x0", "99999999999x9999999999", "model.py", "model.py:",
    "model.py:nope", ":f", "..", "/", "/dev/null", "gone.json", "tpu", "tpu v5e 0x0", "tpu v5e 9999999x9999999",
    "h100 -1", "@", "--", "*", "?", "{?}", "unreduced={y}", "I=0,J=8,K=8", "I=8", "A[I] @ B", "A[I,J] @ B[J,K]",
    "A[I_q,J] @ B[J,K] -> C[I,K]", "layers=0", "layers=99999999999", "width=x", "mlp:", "mlp:0x0",
    "mlp:99999x99999999", "gpt:1x1", "gpt:2x7x3", '<["x"=2]>', '<["x"=99999999999]>', '[{"x"},{}]', "stablehlo.add",
    "no_such_op", "data=3", "pipeline=0", "data=99999999999", "1,2",
)  # fmt: skip
OPTIONS = ("--json", "--batch", "--mesh", "--shape", "--dtype")
SECONDS = 2  # of the CPU: the machine may be shared


def odd_call(draw: random.Random) -> list[str]:
    """A call of a command with one or two things changed."""
    call = list(draw.choice(CALLS))
    for _ in range(draw.choice((1, 1, 1, 2))):
        at = draw.randrange(1, len(call) + 1)
        how = draw.randrange(5)
        if how == 4 or at == len(call):
            call.insert(at, draw.choice(ODD + OPTIONS))
        elif how == 3:
            del call[at]
        else:
            call[at] = draw.choice(ODD)
    return call


def check(count: int, seed: int, printed: Printed, patch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    for _ in range(count):
        call = odd_call(draw)
        if call[0] == "calibrate" and "--from" not in call:  # which measures the machine
            continue
        patch.setattr("sys.stdin", io.StringIO(""))
        start = time.process_time()
        try:
            code, ours = main(call), True
        except SystemExit as left:  # the parser of arguments prints how a command is used
            code, ours = left.code, False  # type: ignore[assignment]
        took, (_, err) = time.process_time() - start, printed.readouterr()
        assert code in (0, 2), (call, code, err)
        assert code == 0 or len(err) < 8000, (call, err)
        assert code == 0 or not ours or ("\n  why:  " in err and "Traceback" not in err), (call, err)
        assert took < SECONDS, (call, took)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    Path("m.mlir").write_text(MODULE)


def test_every_command_is_called() -> None:
    others = {"tour", "completion", "schema", "launch", "run-jax"}  # which take words and scripts
    assert {call[0] for call in CALLS} == set(COMMANDS) - others


def test_odd_arguments_are_one_message(capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    check(250, 1, capsys, monkeypatch)


@pytest.mark.slow
def test_many_odd_arguments_are_one_message(capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    check(8000, 2, capsys, monkeypatch)
