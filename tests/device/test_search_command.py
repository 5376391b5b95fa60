"""``meshwright search``: what it reads, what it prints, and what it says when it cannot."""

import json

import pytest

import meshwright as mw
from meshwright import dist
from meshwright.cli import main

ON = ("search", "--model", "mlp:8x1024", "--batch", "64", "--devices", "4")


def test_it_prints_the_fastest_first(capsys):
    assert main([*ON, "--top", "3"]) == 0
    out = capsys.readouterr().out
    found = dist.grid_search(dist.MLP(8, 1024, 64), mw.hardware.Topology("h100", 4), 64)
    lines = out.splitlines()
    best = found.best.strategy
    assert lines[0].split()[:3] == ["data", "horizontal", "pipeline"]
    assert lines[1].split()[:4] == [str(n) for n in (best.data, best.horizontal, best.pipeline, best.microbatches)]
    fitting = sum(e.fits for e in found.estimates)
    assert lines[4:] == ["", f"{len(found)} strategies, {fitting} fit, {len(found.pareto)} on the front"]


def test_json_has_the_best_and_the_front(capsys):
    assert main(["search", "--model", "gpt2", "--batch", "32", "--topology", "tpu v5e 2x2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    wanted = dist.grid_search(dist.GPT(12, 768, 12), mw.hardware.Topology("tpu v5e", "2x2"), 32)
    assert (found["model"], found["hardware"], found["devices"]) == ("gpt2", "tpu v5e 2x2", 4)
    assert found["best"]["seconds"] == wanted.best.seconds
    assert [e["peak_bytes"] for e in found["pareto"]] == [e.peak_bytes for e in wanted.pareto]


def test_a_model_that_fits_nowhere_is_a_no(capsys):
    assert main(["search", "--model", "mlp:2x262144", "--batch", "2", "--devices", "1", "--top", "1"]) == 1
    assert "does not fit" in capsys.readouterr().out


def test_estimates_are_kept_in_a_file(tmp_path, capsys):
    path = tmp_path / "estimates.csv"
    outs = []
    for _ in range(2):
        assert main([*ON, "--file", str(path)]) == 0
        outs.append(capsys.readouterr().out)
    assert outs[0] == outs[1]
    assert path.read_text().startswith("data,horizontal,pipeline,")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--model", "mlp:16", "--devices", "4"],
            "'mlp:16' is not a model.\n"
            "  why:  a model is mlp:LAYERSxWIDTH, gpt:LAYERSxWIDTHxHEADS with sizes from 1, or one of gpt2,"
            " gpt2-medium, gpt2-large, gpt2-xl\n"
            "  fix:  --model mlp:16x8192\n",
        ),
        (
            ["--model", "gpt2", "--devices", "0"],
            "--devices is 0.\n  why:  it is a number from 1\n  fix:  --devices 8\n",
        ),
        (
            ["--model", "gpt2"],
            "How many chips h100 is to have is not said.\n"
            "  why:  neither --devices nor a shape in --topology is given\n"
            "  fix:  --devices 64, or --topology 'h100 64'\n",
        ),
        (
            ["--model", "gpt2", "--topology", "tpu v5e 2x2", "--devices", "8"],
            "tpu v5e 2x2 has 4 chips, not 8.\n  why:  each device is a chip\n  fix:  --devices 4\n",
        ),
        (
            ["--model", "gpt2", "--devices", "7", "--batch", "3"],
            "No strategy puts gpt2 on 7 devices.\n"
            "  why:  degrees must divide the batch of 3, the layers, and the width or heads of the model\n"
            "  fix:  another --devices or --batch, such as powers of two\n",
        ),
    ],
)
def test_bad_input_is_one_message(arguments, message, capsys):
    assert main(["search", *arguments]) == 2
    found = capsys.readouterr()
    assert (found.out, found.err) == ("", message)
