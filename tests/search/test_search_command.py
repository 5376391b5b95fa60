"""``meshwright search``: what it reads, what it prints, and what it says when it cannot."""

import json
import pathlib

import numpy as np
import pytest

import meshwright as mw
from meshwright import dist
from meshwright.cli import main
from meshwright.commands import search as command
from meshwright.commands.models import read_model
from meshwright.commands.programs import read_shape
from meshwright.search import strategies as search

ON = ("search", "--model", "mlp:8x1024", "--batch", "64", "--chips", "4")


def table(out: str) -> list[str]:
    """What is printed, without the line that says how many strategies were simulated."""
    return out.splitlines()[3:-1]


def test_it_prints_the_fastest_first(capsys):
    assert main([*ON, "--top", "3"]) == 0
    out = capsys.readouterr().out
    found = dist.grid_search(dist.MLP(8, 1024, 64), mw.hardware.Topology("h100", 4), 64)
    lines = out.splitlines()
    best = found.best.strategy
    assert lines[:3] == [
        "mlp:8x1024; a step of 64 samples",
        "on 4 chips of h100 4, 80 GB each; peak rates, transfers beside compute (docs/assumptions.md)",
        "",
    ]
    assert lines[3].split()[:4] == ["data", "tensor", "pipeline", "microbatches"]
    degrees = (best.data, best.tensor, best.pipeline, best.microbatches)
    size = 64 // best.data // best.microbatches
    assert lines[4].split()[:6] == [*map(str, degrees), "of", str(size)]
    assert lines[7] == ""
    assert lines[8].startswith(f"{found.considered} strategies, ")
    assert lines[8].endswith(" on the front of time and memory")
    assert main([*ON, "--top", "3", "--all"]) == 0
    every = capsys.readouterr().out.splitlines()
    assert every[:8] == lines[:8]
    assert every[8].startswith(f"{found.considered} strategies, {found.considered} fit; ")


def test_json_has_the_best_and_the_front(capsys):
    only = ["--zero", "1,3", "--recompute", "full", "--tensor", "1", "--microbatch", "2", "--schedules", "1f1b"]
    command = ["search", "--model", "gpt:2x256x4", "--batch", "8", "--hardware", "tpu v5e 2x2", "--json"]
    assert main([*command, "--sequence", "512", "--mode", "calibrated", "--memory", "8", *only]) == 0
    found = json.loads(capsys.readouterr().out)
    space = {"zero": [1, 3], "recompute": ["full"], "tensor": [1], "microbatch": [2], "schedules": ["1f1b"]}
    space |= {"sequence": 512, "mode": "calibrated", "memory_bytes": 8e9}
    wanted = dist.grid_search(dist.GPT(2, 256, 4), mw.hardware.Topology("tpu v5e", "2x2"), 8, **space)
    assert (found["model"], found["hardware"], found["devices"]) == ("gpt:2x256x4", "tpu v5e 2x2", 4)
    assert (found["sequence"], found["mode"], found["memory_bytes"]) == (512, "calibrated", 8e9)
    assert {e["microbatch"] for e in found["fastest"]} == {2}
    assert found["strategies"] == wanted.considered
    assert found["best"]["seconds"] == wanted.best.seconds
    assert [e["peak_bytes_per_device"] for e in found["pareto"]] == [e.peak_bytes_per_device for e in wanted.pareto]


def test_a_model_that_fits_nowhere_is_a_no(capsys):
    assert main(["search", "--model", "mlp:2x262144", "--batch", "2", "--chips", "1", "--top", "1"]) == 1
    out = capsys.readouterr().out
    assert "does not fit" in out
    assert out.splitlines()[-1].startswith("4 strategies, none fits: the least needs ")


def test_estimates_are_kept_in_a_file(tmp_path, capsys):
    path = tmp_path / "estimates.csv"
    outs = []
    for _ in range(2):
        assert main([*ON, "--file", str(path)]) == 0
        outs.append(table(capsys.readouterr().out))
    assert outs[0] == outs[1]
    assert path.read_text().startswith("data,tensor,pipeline,")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--model", "mlp:16", "--chips", "4"],
            "'mlp:16' is not a model.\n"
            "  why:  a model is mlp:LAYERSxWIDTH, gpt:LAYERSxWIDTHxHEADS with sizes from 1, the sizes of a transformer"
            " (layers=32,width=4096,hidden=11008,heads=32,head_dim=128,vocab=32000), or one of gpt2, gpt2-medium,"
            " gpt2-large, gpt2-xl, gpt3-175b, llama3-8b, llama3-70b, llama3-405b, mixtral-8x7b\n"
            "  fix:  --model mlp:16x8192\n",
        ),
        (
            ["--model", "gpt2", "--chips", "0"],
            "--chips is 0.\n  why:  it is a number from 1\n  fix:  --chips 8\n",
        ),
        (
            ["--model", "gpt2"],
            "How many chips h100 is to have is not said.\n"
            "  why:  neither --chips nor a shape in --hardware is given\n"
            "  fix:  --chips 64, or --hardware 'h100 64'\n",
        ),
        (
            ["--model", "gpt2", "--hardware", "tpu v5e 2x2", "--chips", "8"],
            "tpu v5e 2x2 has 4 chips, not 8.\n  why:  each device is a chip\n  fix:  --chips 4\n",
        ),
        (
            ["--model", "gpt2", "--chips", "5", "--batch", "3"],
            "No strategy puts gpt2 on 5 devices.\n"
            "  why:  degrees must divide the batch of 3, the layers, and the width or heads of the model\n"
            "  fix:  another --chips or --batch, such as powers of two\n",
        ),
        (
            ["--model", "gpt2", "--chips", "8", "--memory", "0"],
            "--memory is 0.\n  why:  it is a number of GB above 0\n  fix:  --memory 80\n",
        ),
        (
            ["--model", "mlp:8x64", "--chips", "8", "--sequence", "64"],
            "--sequence is of a transformer.\n"
            "  why:  an MLP has no sequences, and a step that is traced has its own\n"
            "  fix:  leave it out, or --model llama3-70b\n",
        ),
        (
            ["--model", "mlp:8x64", "--chips", "8", "--context", "1,2"],
            "Strategy(context=2) is for a transformer.\n"
            "  why:  context, expert, sequence_parallel and flash say how sequences, experts, norms and attention are "
            "computed; of other models a search splits tensors in the way that costs least\n"
            "  fix:  leave it out, or --model llama3-70b or another one\n",
        ),
        (
            ["--model", "mlp:8x64", "--chips", "8", "--recompute", "matmuls"],
            "The model cannot recompute 'matmuls'.\n"
            "  why:  of what is no transformer it is known how to recompute 'none', 'full'\n"
            "  fix:  --recompute full\n",
        ),
        (
            ["--model", "gpt2", "--chips", "8", "--zero", "4"],
            "--zero has '4'.\n  why:  it is of 0, 1, 2, 3\n  fix:  --zero 0,1\n",
        ),
        (
            ["--model", "gpt2", "--chips", "8", "--tensor", "2,x"],
            "--tensor has 'x'.\n  why:  it has numbers from 1\n  fix:  --tensor 1,2\n",
        ),
        (
            ["--model", "gpt2", "--chips", "8", "--recompute", "some"],
            "--recompute has 'some'.\n"
            "  why:  it is of none, attention, matmuls, full, offload\n"
            "  fix:  --recompute none,attention\n",
        ),
        (
            ["--model", "gpt2", "--chips", "8", "--batch", "5000000000"],
            "--batch is 5000000000.\n  why:  it is a number from 1 to 4294967296\n  fix:  --batch 512\n",
        ),
    ],
)
def test_bad_input_is_one_message(arguments, message, capsys):
    assert main(["search", *arguments]) == 2
    found = capsys.readouterr()
    assert (found.out, found.err) == ("", message)


# Models in Python files

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
SMALL = ("--chips", "4", "--batch", "32", "--top", "1", "--json")
STEP = """
import meshwright as mw
import meshwright.numpy as mnp
def loss(w, x):
    return mnp.mean((x @ w) ** 2)
def step(w, x):
    value, gradient = mw.value_and_grad(loss)(w, x)
    return value, w - 0.1 * gradient
"""


def searched(capsys, *arguments: str) -> dict:
    assert main(["search", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", ["mlp", "transformer", "gpt"])
def test_an_example_is_searched_from_its_train_step(name, capsys):
    settings = {"mlp": "dim=64,layers=2", "transformer": "dim=64", "gpt": "vocab=64,length=16,dim=32,layers=2,heads=4"}
    found = searched(capsys, f"{EXAMPLES}/{name}.py", *SMALL, "--config", settings[name], "--all")
    assert found["strategies"] > 20
    assert found["best"]["strategy"]["data"] * found["best"]["strategy"]["tensor"] <= 4
    # Of steps this small, accumulating gradients saves the memory that pipelines do, and time.
    assert len({(e["strategy"]["tensor"], e["strategy"]["microbatches"]) for e in found["pareto"]}) > 1


@pytest.mark.parametrize(
    "text",
    [
        "from meshwright import dist\nmodel = dist.MLP(8, 1024, 64)",
        "from meshwright import dist\ndef model(): return dist.MLP(8, 1024, 64)",
        "from meshwright import dist\nOTHER = dist.MLP(8, 1024, 64)",
    ],
)
def test_a_model_of_a_file_is_searched_as_it_is(text, tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(text)
    name = f"{path}:OTHER" if "OTHER" in text else str(path)
    assert main(["search", name, "--batch", "64", "--chips", "4"]) == 0
    mine = capsys.readouterr().out
    assert main([*ON]) == 0
    assert table(mine) == table(capsys.readouterr().out)


@pytest.mark.parametrize(
    "text",
    [
        "def model(): return step, mnp.ones((64, 64)), mnp.ones((8, 64))",
        "def model(): return step, (mnp.ones((64, 64)), mnp.ones((8, 64)))",
        "train_step = lambda p, b, config: step(p, b)\nclass Config: pass\n"
        "def init(key, config): return mnp.ones((64, 64))\n"
        "def make_batch(key, config): return mnp.ones((8, 64))",
    ],
)
def test_a_step_of_a_file_is_traced(text, tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(STEP + text)
    found = searched(capsys, str(path), *SMALL)
    space: dict = {}
    exec(STEP, space)
    model = dist.traced(space["step"], np.ones((64, 64), "f4"), np.ones((8, 64), "f4"))
    wanted = dist.grid_search(model, mw.hardware.Topology("h100", 4), 32)
    assert (found["best"]["seconds"], found["strategies"]) == (wanted.best.seconds, wanted.considered)


@pytest.mark.parametrize(
    ("text", "given", "batch"),
    [
        ("def model(): return step, mnp.ones((64, 64)), mnp.ones((24, 64))", (), 24),
        ("def model(): return step, mnp.ones((64, 64)), mnp.ones((24, 64))", ("--batch", "48"), 48),
        ("def model(): return step, mnp.ones((64, 64)), mnp.ones((1, 64))", (), 1),
        (
            "train_step = lambda p, b, config: step(p, b)\nclass Config: pass\n"
            "def init(key, config): return mnp.ones((64, 64))\n"
            "def make_batch(key, config): return mnp.ones((24, 64))",
            (),
            24,
        ),
        (
            "train_step = lambda p, b, config: step(p, b)\nclass Config: pass\n"
            "def init(key, config): return mnp.ones((64, 64))\n"
            "def make_batch(key, config, batch=4): return mnp.ones((batch, 64))",
            (),
            512,
        ),
        (
            "from meshwright import dist\n"
            "model = dist.traced(step, mnp.ones((64, 64)), mnp.ones((24, 64)))",
            (),
            24,
        ),
        ("from meshwright import dist\nmodel = dist.MLP(2, 64, 24)", (), 24),
        ("from meshwright import dist\nmodel = dist.GPT(2, 64, 4)", ("--sequence", "16"), 512),
    ],
)  # fmt: skip
def test_a_batch_is_that_of_the_step_unless_another_is_asked_for(text, given, batch, tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(STEP + text)
    assert searched(capsys, str(path), "--chips", "1", "--top", "1", "--json", *given)["batch"] == batch


def test_a_file_with_a_loss_alone_is_searched_by_its_gradient(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(
        "import meshwright.numpy as mnp\nclass Config: pass\ndef init(key, config): return mnp.ones((64, 64))\n"
        "def make_batch(key, config, batch): return mnp.ones((batch, 64))\n"
        "def loss(w, x, config): return mnp.mean((x @ w) ** 2)"
    )
    assert searched(capsys, str(path), *SMALL)["strategies"] > 5


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (
            None,
            [],
            "{path} cannot be read.\n  why:  No such file or directory\n  fix:  FILE.py:NAME\n",
        ),
        (
            "x = 1",
            [],
            "{path} has no model.\n"
            "  why:  it has neither a name `model`, nor Config, init, make_batch and train_step\n"
            "  fix:  model = dist.GPT(layers=12, dim=768, heads=12)\n",
        ),
        (
            "model = 3",
            [],
            "{path} has no model.\n"
            "  why:  model is a value of type int, and a model is a dist.GPT, a dist.MLP, a configuration of init,"
            " make_batch and train_step, or (step, params, batch)\n"
            "  fix:  model = dist.GPT(layers=12, dim=768, heads=12)\n",
        ),
        ("x = 1 / 0", [],
         "{path} raised ZeroDivisionError.\n  at:   mine.py:1   x = 1 / 0\n  why:  division by zero\n"),
        ("def model(): return 1 / 0", [],
         "{path}:model raised ZeroDivisionError.\n"
         "  at:   mine.py:1   def model(): return 1 / 0\n"
         "  why:  division by zero\n"),
        ("x = (", [],
         "{path} raised SyntaxError.\n  at:   mine.py:1   x = (\n  why:  '(' was never closed (mine.py, line 1)\n"),
        (
            "def model(size): pass",
            [],
            "{path}:model cannot be called without arguments.\n"
            "  why:  missing a required argument: 'size'; a function that gives a model takes none\n"
            "  fix:  def model(): return train_step, params, batch\n",
        ),
        (
            "from meshwright import dist\nmodel = dist.GPT(2, 8, 2)",
            ["--config", "layers=3,depth=4"],
            "'depth=4' sets no field of the configuration.\n"
            "  why:  its fields are layers, dim, heads, hidden, vocab, length\n"
            "  fix:  --config layers=…\n",
        ),
        (
            "from meshwright import dist\nmodel = dist.GPT(2, 8, 2)",
            ["--config", "layers=two"],
            "layers of --config is 'two'.\n  why:  it is a whole number\n  fix:  --config layers=2\n",
        ),
        (
            "from meshwright import dist\nmodel = dist.GPT(2, 8, 2)",
            ["--model", "gpt2"],
            "One model is searched for.\n"
            "  why:  FILE.py and --model are both given\n"
            "  fix:  meshwright search examples/gpt.py --chips 64 --hardware h100\n",
        ),
        (
            "from meshwright import dist\nmodel = dist.GPT(2, 8, 2)",
            ["--file", "/nodir/x.csv"],
            "/nodir/x.csv cannot be written.\n"
            "  why:  No such file or directory\n"
            "  fix:  name a file in a folder that exists\n",
        ),
    ],
)  # fmt: skip
def test_a_bad_file_is_one_message(text, arguments, message, tmp_path, capsys):
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    assert main(["search", str(path), "--chips", "4", "--batch", "8", *arguments]) == 2
    found = capsys.readouterr()
    assert (found.out, found.err) == ("", message.format(path=path))


def test_an_unknown_chip_is_one_message_with_those_that_are_like_it(capsys):
    assert main(["search", "--model", "gpt2", "--chips", "4", "--chip", "h10"]) == 2
    what, why, fix = capsys.readouterr().err.splitlines()
    assert (what, fix) == ("No chip is called 'h10'.", "  fix:  --hardware 'h100'")
    assert why.startswith("  why:  there are tpu v2, ")


def test_ctrl_c_leaves_a_file_to_go_on_from(tmp_path, capsys, monkeypatch):
    path = tmp_path / "found.csv"
    planned = []

    def interrupted(self, strategy):
        if len(planned) == 40:
            raise KeyboardInterrupt
        planned.append(strategy)
        return plan(self, strategy)

    plan = search._Planner.__call__
    monkeypatch.setattr(search._Planner, "__call__", interrupted)
    assert main([*ON, "--file", str(path), "--all"]) == 130
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("Stopped after 40 of ")
    assert said.err.endswith(f" strategies. What is done is in {path}; the same command goes on from there.\n")
    assert len(path.read_text().splitlines()) == 41
    path.write_text(path.read_text()[:-10])  # the last line is cut off
    monkeypatch.setattr(search._Planner, "__call__", plan)
    assert main([*ON, "--file", str(path), "--all"]) == 0
    resumed = capsys.readouterr().out
    assert main([*ON, "--all"]) == 0
    assert resumed == capsys.readouterr().out


def test_help_says_what_a_model_is(capsys):
    with pytest.raises(SystemExit):
        main(["search", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "a configuration of init, make_batch and train_step" in said


def test_a_damaged_line_of_a_file_is_one_line_on_the_terminal(tmp_path, capsys):
    path = tmp_path / "found.csv"
    assert main([*ON, "--file", str(path)]) == 0
    whole = capsys.readouterr()
    path.write_text(path.read_text().replace("1f1b", "1f1c", 1))
    assert main([*ON, "--file", str(path)]) == 0
    again = capsys.readouterr()
    assert table(again.out) == table(whole.out)
    assert again.err == f"line 2 of {path} is damaged, and estimated again.\n"


def test_memory_that_nothing_fits_into_is_a_no(capsys):
    command = ["search", "--model", "gpt:8x65536x64", "--chips", "1", "--batch", "1", "--recompute", "full"]
    assert main([*command, "--memory", "0.001", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["best"] is None
    assert not any(e["fits"] for e in found["fastest"])


def test_a_prime_number_of_chips_has_an_answer(capsys):
    assert main(["search", "--model", "mlp:8x1024", "--batch", "28", "--chips", "7", "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["best"]["strategy"]
    assert best["data"] * best["tensor"] * best["pipeline"] == 7


@pytest.mark.parametrize(("chips", "filled"), [(13, 8), (61, 56)])
def test_gpus_that_do_not_fill_their_nodes_are_one_message(chips, filled, capsys):
    assert main(["search", "--model", "gpt2", "--chips", str(chips)]) == 2
    assert capsys.readouterr().err == (
        f"{chips} h100 do not fill their nodes.\n"
        f"  why:  a node has 8 GPUs, and {chips} is more than one node but no multiple of 8\n"
        f"  fix:  --chips {filled}\n"
    )


LLAMA = "layers=80,width=8192,hidden=28672,heads=64,head_dim=128,vocab=128256,kv_heads=8"


def test_a_transformer_has_one_name_for_all_commands(capsys):
    assert read_model("llama3-70b", 1) == read_model(LLAMA, 1) == read_shape(LLAMA) == read_shape("llama3-70b")
    narrow = ["--tensor", "8", "--pipeline", "8", "--microbatches", "16", "--recompute", "full", "--json"]
    only = [*narrow, "--zero", "0", "--schedules", "1f1b", "--batch", "64", "--chips", "64", "--sequence", "1024"]
    assert main(["search", "--transformer", "llama3-70b", *only]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["parameters"], found["strategies"]) == (70553706496, 2)  # with and without sequence parallelism
    options = "tensor=8,pipeline=8,microbatches=16,recompute=full,sequence_parallel=1"
    given = ["--batch", "64", "--sequence", "1024", "--hardware", "h100 64", "--strategy", options, "--json"]
    assert main(["simulate", "--transformer", "llama3-70b", *given]) == 0
    assert json.loads(capsys.readouterr().out)["seconds"] == found["best"]["seconds"]


def test_a_long_search_says_how_far_it_is(capsys, monkeypatch):
    monkeypatch.setattr(command, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(command, "LINE_SECONDS", 0.0)
    assert main([*ON]) == 0
    lines = capsys.readouterr().err.splitlines()
    count = dist.grid_search(dist.MLP(8, 1024, 64), mw.hardware.Topology("h100", 4), 64).considered
    assert len(lines) == count
    assert lines[-1].startswith(f"{count:,} of {count:,} strategies; best so far ")
