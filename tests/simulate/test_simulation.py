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
from tests.pages import shown_in
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
    chart = simulate(megatron(), "tpu v5e").gantt(width=63).splitlines()
    assert [line.split("|")[0].rstrip() for line in chart[:2]] == ["compute", "links 1 (model)"]
    assert all(len(line.split("|")[1]) == 40 for line in chart[:2])
    compute, links = (line.split("|")[1] for line in chart[:2])
    # The sum is the last thing that happens, and nothing runs beside it.
    assert compute.startswith("d") and compute.endswith("··") and links.startswith("··") and links.endswith("p")
    assert set(compute) == set("df·") and set(links) == set("p·")
    assert [line.split("|")[2] for line in chart[:2]] == ["  28%", "  72%"]
    assert chart[-1] == "p psum, d dot_general, f fused, · idle"


def looped(steps: int) -> mw.Program:
    def f(x: Any, w: Any) -> Any:
        return mw.lax.scan(lambda c, _: (mw.numpy.tanh(mw.lax.psum(c @ w, "i")), None), x, None, length=steps)[0]

    mesh = mw.make_mesh((8,), ("i",))
    g = mw.shard_map(f, mesh=mesh, in_specs=(mw.P(), mw.P("i")), out_specs=mw.P())
    return mw.make_program(g)(struct(2048, 256), struct(2048, 256))


@pytest.mark.parametrize("program", [megatron, fsdp, lambda: looped(4), lambda: looped(500)])
@pytest.mark.parametrize("machine", ["tpu v5e", "h100"])
def test_rows_of_a_chart_are_busy_as_long_as_the_parts_of_the_machine(program: Any, machine: str) -> None:
    result = simulate(program(), machine)
    chart = result.chart()
    for lane, seconds in zip(chart.lanes, result.unit_seconds().values(), strict=True):
        assert lane.busy() == pytest.approx(seconds)
        assert sum(span.seconds * span.share for span in lane.spans) == pytest.approx(seconds)
        assert all(0 < span.share <= 1 and span.end <= 1.000001 * result.seconds for span in lane.spans)
    assert sum(chart.kinds().values()) == pytest.approx(sum(result.unit_seconds().values()))


def test_iterations_that_are_not_scheduled_one_by_one_are_one_box_that_is_busy_for_a_share() -> None:
    result = simulate(looped(500), "tpu v5e")
    rows = result.gantt(width=221).splitlines()
    for row, seconds in zip(rows, result.unit_seconds().values(), strict=False):
        letters = row.split("|")[1]
        assert 1 - letters.count("·") / len(letters) == pytest.approx(seconds / result.seconds, abs=0.01)
    more = [e for e in result.perfetto()["traceEvents"] if " more steps of " in e["name"]]
    assert {e["tid"] for e in more} == {1, 2} and all(0 < e["args"]["share busy"] < 1 for e in more)


def test_a_page_says_what_is_known_of_each_task(tmp_path: pathlib.Path) -> None:
    result = simulate(fsdp(), "h100")
    result.to_html(tmp_path / "chart.html")
    page = (tmp_path / "chart.html").read_text()
    assert "<title>one device of h100 8</title>" in page
    shown = shown_in(tmp_path / "chart.html")
    assert [title for title, _, _ in shown["figures"]] == ["a step", "exposed", "MFU", "memory"]
    chart, text = shown["parts"]
    assert [(lane["name"], lane["beside"]) for lane in chart["lanes"]][1] == ("nvlink (data)", "89%")
    spans = [e for e in result.perfetto()["traceEvents"] if e["ph"] == "X"]
    assert sum(len(lane["bars"]) for lane in chart["lanes"]) == len(spans)
    for fact in ("line: models.py:", "flops: ", "memory bytes: ", "bytes received: ", "bound: memory"):
        assert any(fact in one for one in chart["texts"])
    assert text["text"] == str(result)


def test_perfetto(tmp_path: pathlib.Path) -> None:
    result = simulate(fsdp(), "h100")
    result.to_perfetto(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["ph"] == "M"}
    assert names == {"one device of h100 8", "compute", "nvlink (data)"}
    spans = [e for e in events if e["ph"] == "X"]
    assert max(e["ts"] + e["dur"] for e in spans) == pytest.approx(result.seconds * 1e6)
    facts = {"op", "line", "flops", "memory bytes", "bytes received", "bound"}
    assert all(e["args"].keys() == facts and e["cat"] == e["args"]["op"] for e in spans)
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
            "  fix:  --strategy tensor=2\n",
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


@pytest.mark.parametrize("chip", ["h100", "gb200", "tpu v5e"])
@pytest.mark.parametrize("sizes", [(2, 4), (4, 2), (1, 8), (8, 4)])
def test_the_bound_is_the_busiest_part_of_the_machine(chip: str, sizes: tuple[int, int]) -> None:
    """Axes that share a network take turns on it: its time is the sum over them."""
    mesh = mw.make_mesh(sizes, ("data", "model"))

    def f(x: Any, w: Any) -> Any:
        return mw.lax.psum(mw.lax.psum(x @ w, "model"), "data")

    specs = (mw.P("data", "model"), mw.P("model", None))
    step = mw.shard_map(f, mesh=mesh, in_specs=specs, out_specs=mw.P())
    for width in (64, 1024, 16384):
        found = simulate(mw.make_program(step)(struct(512, width), struct(width, width)), chip)
        units, along = found.unit_seconds(), found.axis_seconds()
        longest = max(units, key=lambda unit: units[unit])
        assert ("communication-bound" in found.bound) == (longest != "compute"), (found.bound, units)
        if sum(seconds > 0 for seconds in along.values()) > 1 and "network" not in units and chip != "tpu v5e":
            assert "axes model, data (nvlink)" in found.bound
            assert units["nvlink"] == pytest.approx(sum(along.values()))
