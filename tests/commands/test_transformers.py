"""Steps of transformers on the command line: what is typed wrong is answered with what to type, which works."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from meshwright.cli import main
from meshwright.hardware import Topology, TransformerShape
from meshwright.simulate import transformer
from meshwright.simulate.transformer import Strategy

Printed = pytest.CaptureFixture[str]
SIZES = "layers=4,width=64,hidden=132,heads=66,head_dim=16,vocab=64"
STEP = ["simulate", "--transformer", SIZES, "--sequence", "8", "--batch", "8"]
DECODE = ["simulate", "--transformer", SIZES, "--decode"]

WRONG = {
    "a degree by another name": (
        [*STEP, "--strategy", "tp=2,data=4"],
        "--strategy has no 'tp'.\n  why:  tp is called tensor here\n  fix:  --strategy data=4,tensor=2\n",
    ),
    "a degree that there is not": (
        [*STEP, "--strategy", "data=4,colour=2"],
        "--strategy has no 'colour'.\n"
        "  why:  it has data, tensor, pipeline, microbatches, schedule, chunks, zero, recompute, sequence_parallel, "
        "context, expert, flash\n"
        "  fix:  --strategy data=4\n",
    ),
    "a word that is nearly right": (
        [*STEP, "--strategy", "data=2,recompute=selectiv"],
        "recompute of --strategy is 'selectiv'.\n"
        "  why:  it is one of none, attention, matmuls, full, offload\n"
        "  fix:  --strategy data=2,recompute=attention\n",
    ),
    "a word by another name": (
        [*STEP, "--strategy", "data=2,recompute=selective"],
        "recompute of --strategy is 'selective'.\n"
        "  why:  selective is called attention here; it is one of none, attention, matmuls, full, offload\n"
        "  fix:  --strategy data=2,recompute=attention\n",
    ),
    "heads that are not split": (
        [*STEP, "--strategy", "tensor=8,data=2"],
        "heads=66 is not split into 8 equal parts.\n"
        "  why:  tensor is 8, and every device does the same\n"
        "  fix:  --strategy tensor=6,data=2\n",
    ),
    "layers that are not split": (
        [*STEP, "--strategy", "pipeline=8,microbatches=2"],
        "layers=4 is not split into 8 equal parts.\n"
        "  why:  pipeline is 8, and every device does the same\n"
        "  fix:  --strategy pipeline=4,microbatches=2\n",
    ),
    "a width that replicas do not share": (
        [*STEP, "--strategy", "data=3,zero=1", "--batch", "12"],
        "width=64 is not split into 3 equal parts.\n"
        "  why:  what zero shares out is 3, and every device does the same\n"
        "  fix:  --strategy data=2,zero=1\n",
    ),
    "chunks without a schedule for them": (
        [*STEP, "--strategy", "pipeline=2,microbatches=2,chunks=2"],
        "The schedule 1f1b of a strategy has chunks=2.\n"
        "  why:  an interleaved schedule has several chunks per device, every other one\n"
        "  fix:  --strategy pipeline=2,microbatches=2,chunks=2,schedule=interleaved\n",
    ),
    "a schedule for chunks without them": (
        [*STEP, "--strategy", "pipeline=2,microbatches=2,schedule=interleaved"],
        "The schedule interleaved of a strategy has chunks=1.\n"
        "  why:  an interleaved schedule has several chunks per device, every other one\n"
        "  fix:  --strategy pipeline=2,microbatches=2,schedule=interleaved,chunks=2\n",
    ),
    "a slice by the name that a cloud has": (
        [*STEP, "--hardware", "tpu v5e-16"],
        "'tpu v5e-16' is not how a machine is named here.\n"
        "  why:  a chip and a number or a shape are: v5e-16 has 16 chips\n"
        "  fix:  --hardware 'tpu v5e 16'\n",
    ),
    "a slice whose cores are counted": (
        [*STEP, "--hardware", "v4-16"],
        "'v4-16' is not how a machine is named here.\n"
        "  why:  a chip and a number or a shape are: v4-16 has 8 chips\n"
        "  fix:  --hardware 'tpu v4 8'\n",
    ),
    "a dtype that there is not": (
        [*STEP, "--dtype", "fp99"],
        "dtype of a step is 'fp99'.\n  why:  it is one of bf16, f16, f32, fp8\n  fix:  --dtype bf16\n",
    ),
    "decoding over replicas": (
        [*DECODE, "--strategy", "data=2"],
        "Strategy(data=2) is for a train step.\n"
        "  why:  a step of decoding is laid out by tensor alone\n"
        "  fix:  --strategy tensor=2\n",
    ),
    "the sequence of a step of decoding": (
        [*DECODE, "--sequence", "64"],
        "--sequence does not go with a step of decoding.\n  why:  it has --context\n  fix:  leave out --sequence\n",
    ),
    "the context of a train step": (
        [*STEP, "--context", "64"],
        "--context does not go with a train step.\n  why:  it has --sequence\n  fix:  leave out --context\n",
    ),
}


def typed(call: list[str], fix: str) -> list[str]:
    """A command line with options as a fix says."""
    left_out = re.fullmatch(r"leave out (--[\w-]+)", fix)
    option, *value = [left_out[1]] if left_out else shlex.split(fix)
    if option in call:
        at = call.index(option)
        call = [*call[:at], *call[at + 2 :]]
    return call if left_out else [*call, option, *value]


@pytest.mark.parametrize(("call", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_step_is_one_message_and_its_fix_is_typed(call: list[str], message: str, capsys: Printed) -> None:
    assert main(call) == 2
    assert capsys.readouterr() == ("", message)
    assert main(typed(call, message.rpartition("fix:  ")[2].strip())) == 0, capsys.readouterr().err


SHAPE = TransformerShape(4, 64, 132, heads=66, head_dim=16, vocab=64)


def test_decoding_is_what_the_function_says(capsys: Printed) -> None:
    options = ["--context", "64", "--batch", "4", "--strategy", "tensor=2", "--dtype", "int8", "--cache-dtype", "bf16"]
    assert main([*DECODE, *options, "--hardware", "h100 8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    wanted = transformer.decode(SHAPE, "h100 8", 4, 64, tensor=2, dtype="int8", cache_dtype="bf16")
    assert (found["seconds"], found["idle_chips"]) == (wanted.seconds, 6)
    assert found["memory"]["peak_bytes_per_device"] == wanted.peak_bytes_per_device


def test_chips_that_do_nothing_are_told(capsys: Printed) -> None:
    step = transformer.train(SHAPE, Topology("h100", 64), Strategy(data=4, tensor=2, pipeline=2, microbatches=2), 8, 8)
    assert step.idle_chips == 48
    assert "  48 of 64 chips do nothing: the program is for 16" in str(step).splitlines()
    assert transformer.train(SHAPE, "h100 8", Strategy(data=8), 8, 8).idle_chips == 0
    assert main(["cost", *STEP[1:], "--strategy", "data=4", "--hardware", "h100 8"]) == 0
    assert "  4 of 8 chips do nothing: the program is for 4" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("command", ["cost", "simulate"])
def test_what_does_not_fit_is_a_no(command: str, capsys: Printed) -> None:
    large = "layers=32,width=4096,hidden=11008,heads=32,head_dim=128,vocab=32000"
    assert main([command, "--transformer", large, "--batch", "1", "--sequence", "64", "--hardware", "h100"]) == 1
    assert "DOES NOT FIT" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "Exit code 1: the program does not fit into the memory of a chip." in text


def test_a_function_of_dicts_is_called_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(
        "import meshwright.numpy as mnp\n"
        "def f(params, x):\n"
        '    return x @ params["w"]\n'
        'params, x = {"w": mnp.ones((4, 4))}, mnp.ones((4, 4))\n'
        "def example(): return f, (params, x)\n"
    )
    assert main(["cost", "model.py:f", "--args", "f32[4,4] f32[4,4]"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "  fix:  for arguments that are no arrays: def example(): return f, (params, x), and model.py:example"
    )
    assert main(["cost", "model.py:example"]) == 0


def test_an_option_by_another_name_is_told(capsys: Printed) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["search", "--model", "gpt2", "--topology", "h100 8"])
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "meshwright search: error: unrecognized arguments: --topology; --topology is called --hardware here"
    )
