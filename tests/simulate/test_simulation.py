"""What a simulation says: the bound, tables, charts, files; and that its cost does not grow with the mesh."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

import meshwright as mw
import meshwright.simulate as package
from meshwright.cli import main
from meshwright.simulate import simulate
from meshwright.simulate.transformer import Strategy, TransformerShape, train_program
from tests.simulate.models import fsdp, megatron, struct

LAYERS_32 = TransformerShape(layers=32, width=4096, hidden=11008, heads=32, head_dim=128, vocab=32000)


def test_the_module_is_the_function() -> None:
    assert mw.simulate is package
    assert mw.simulate(megatron(), "tpu v5e").seconds == simulate(megatron(), "tpu v5e").seconds


def test_what_jit_compiled_is_simulated_on_its_mesh() -> None:
    mesh = mw.make_mesh((2, 4), ("data", "model"))
    places = [mw.NamedSharding(mesh, spec) for spec in (mw.P("data"), mw.P(None, "model"), mw.P("model"))]
    shapes = [struct(4096, 1024), struct(1024, 4096), struct(4096, 1024)]
    f = mw.jit(lambda x, w1, w2: mw.nn.silu(x @ w1) @ w2, in_shardings=tuple(places), out_shardings=places[0])
    compiled = f.lower(*shapes).compile()
    found, by_hand = simulate(compiled, "tpu v5e"), simulate(megatron(), "tpu v5e")
    assert found.mesh == {"data": 2, "model": 4}
    assert found.seconds == pytest.approx(by_hand.seconds)
    assert found.axis_seconds() == by_hand.axis_seconds()


def test_the_same_tasks_however_many_devices() -> None:
    """A transformer of 32 layers on 512, 16,384 and a million devices: benchmarks/bench_simulate.py has the times."""
    counts = set()
    for data in (64, 2048, 125_000):
        result = simulate(train_program(LAYERS_32, Strategy(data=data, tensor=8), data, 512), "h100")
        assert result.topology.size == 8 * data
        counts.add((sum(1 for _ in result.leaves()), len(result.timeline)))
    assert len(counts) == 1


def test_the_bound() -> None:
    assert simulate(megatron(rows=16384, hidden=8 * 4096), "tpu v5e").bound == "compute-bound by 3.1x over axis model"
    assert simulate(megatron(rows=16), "tpu v5e").bound == "communication-bound on axis model by 1.1x"
    alone = mw.make_program(lambda x: x + 1)(struct(1024, 1024))
    assert simulate(alone, "h100").bound == "memory-bound, without communication"
    assert simulate(mw.make_program(lambda x: x)(struct(8)), "h100").bound == "nothing to do"


def test_the_summary() -> None:
    assert str(simulate(megatron(), "tpu v5e")) == (
        "194 µs on tpu v5e 2x4 (8 chips, mesh data=2 model=4), exact\n"
        "  communication-bound on axis model by 2.6x\n"
        "  compute 54 µs, communication 140 µs, 0% of it hidden\n"
        "  8.62e+09 FLOPs a device, MFU 22.5%\n"
        "  memory 16.8 MB of 16 GB"
    )


def test_a_program_that_does_not_fit_says_so() -> None:
    program = mw.make_program(lambda x: x * 2)(struct(2**17, 2**17))
    result = simulate(program, "tpu v5e")
    assert not result.fits and str(result).endswith("memory 68.7 GB of 16 GB  DOES NOT FIT")


def test_shares_add_up_by_op_and_by_line() -> None:
    result = simulate(fsdp(), "h100")
    whole = result.compute_seconds + result.communication_seconds
    for shares in (result.by_op(), result.by_line()):
        assert sum(share.seconds for share in shares) == pytest.approx(whole)
        assert sum(share.flops for share in shares) == pytest.approx(result.flops)
    assert {share.name for share in result.by_op()} >= {"dot_general", "fused", "all_gather", "psum_scatter"}
    gathers = next(share for share in result.by_op() if share.name == "all_gather")
    assert gathers.times == 16  # eight layers, and again backward
    assert all(share.name.startswith("models.py:") for share in result.by_line())


def test_the_gantt_chart() -> None:
    chart = simulate(megatron(), "tpu v5e").gantt(width=40).splitlines()
    assert [line.split("|")[0].rstrip() for line in chart[:2]] == ["compute", "links 1 (model)"]
    assert all(len(line.split("|")[1]) == 40 for line in chart[:2])
    compute, links = (line.split("|")[1] for line in chart[:2])
    # The sum is the last thing that happens, and nothing runs beside it.
    assert compute.startswith("█") and compute.endswith("  ") and links.startswith("  ") and links.endswith("█")


def test_perfetto(tmp_path: pathlib.Path) -> None:
    result = simulate(fsdp(), "h100")
    result.to_perfetto(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["ph"] == "M"}
    assert names == {"one device of h100 8", "compute", "nvlink (data)"}
    spans = [e for e in events if e["ph"] == "X"]
    assert max(e["ts"] + e["dur"] for e in spans) == pytest.approx(result.seconds * 1e6)
    with pytest.raises(mw.MeshwrightError, match=r"cannot be written"):
        result.to_perfetto(tmp_path / "no" / "trace.json")


# Commands

TINY = "layers=2,width=64,hidden=128,heads=4,head_dim=16,vocab=64"


def test_simulate_prints_the_summary_the_chart_and_the_tables(capsys: Any, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("import meshwright.numpy as mnp\n\ndef f(x, w):\n    return mnp.tanh(x @ w)\n")
    trace = tmp_path / "trace.json"
    call = ["simulate", f"{file}:f", "--args", "bf16[512,512] bf16[512,512]", "--hardware", "h100"]
    assert main([*call, "--perfetto", str(trace)]) == 0
    out = capsys.readouterr().out
    assert "on h100 1 (1 chip), exact" in out and "compute |" in out and "dot_general" in out
    assert json.loads(trace.read_text())["traceEvents"]
    assert main([*call, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["flops"] > 2 * 512**3 and facts["memory"]["argument_bytes"] == 2 * 2 * 512 * 512


def test_cost_of_program_text_and_of_a_transformer(capsys: Any, tmp_path: pathlib.Path) -> None:
    text = tmp_path / "program.txt"
    body = next(eqn.params["body"] for eqn in megatron().eqns)
    text.write_text(body.to_text(constants=True))
    assert main(["cost", str(text), "--mesh", "data=2,model=4"]) == 0
    assert "along model: " in capsys.readouterr().out
    call = ["cost", "--transformer", TINY, "--strategy", "data=2,tensor=2", "--batch", "4", "--sequence", "32"]
    assert main([*call, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mesh"] == {"data": 2, "tensor": 2} and "seconds" not in found


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (["simulate"], "One program is wanted.\n  why:  neither PROGRAM nor --transformer is given\n"),
        (["simulate", "nowhere.py:f"], "nowhere.py cannot be read.\n  why:  No such file or directory\n"),
        (["cost", "--transformer", "layers=2"], "--transformer has no 'width'.\n"),
        (["cost", "--transformer", "depth=2"], "--transformer has no 'depth'.\n"),
        (["simulate", "x.py:f", "--hardware", "tpu v9"], "No chip is called 'tpu v9'.\n"),
        (
            [
                "cost",
                "--transformer",
                "layers=2,width=64,hidden=128,heads=4,head_dim=16,vocab=64",
                "--strategy",
                "tensor=3",
            ],
            "heads=4 is not split into 3 equal parts.\n"
            "  why:  tensor is 3, and every device does the same\n"
            "  fix:  heads=6 in --transformer\n",
        ),
    ],
)
def test_bad_input_is_one_message(call: list[str], message: str, capsys: Any) -> None:
    assert main(call) == 2
    assert capsys.readouterr().err.startswith(message)


def test_a_program_of_text_is_checked(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "program.txt"
    file.write_text("program(a: f32[2]) { b: f32[3] = add a a  return b }")
    assert main(["cost", str(file), "--hardware", "h100"]) == 2
    assert "its result is f32[3], but the op gives f32[2]" in capsys.readouterr().err
