"""``meshwright layout``: its table, its code, its JSON, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.cli import main
from tests.pages import shown_in

STEP = """
import meshwright as mw
import meshwright.numpy as mnp

def step(w, x):
    loss, gradient = mw.value_and_grad(lambda w: mnp.mean((x @ w) ** 2))(w)
    return loss, w - 0.1 * gradient

def model():
    return step, mw.ShapeDtypeStruct((1024, 1024), "float32"), mw.ShapeDtypeStruct((65536, 1024), "float32")
"""


@pytest.fixture
def step(tmp_path: Path) -> str:
    path = tmp_path / "step.py"
    path.write_text(STEP)
    return str(path)


def test_a_table_and_code(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["layout", step, "--chips", "8"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("mesh ")
    assert "mesh = mw.make_mesh((" in out
    assert "in_shardings = mw.tree.map(" in out


def test_json_and_jax(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["layout", step, "--chips", "4", "--json", "--top", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    first = found["layouts"][0]
    assert len(found["layouts"]) == 2
    assert found["bound_seconds"] <= first["seconds"]
    assert first["fits"]
    assert "jax.make_mesh" in found["jax"]
    assert list(first["in_shardings"]) == ["w", "x"]
    assert sum(first["parts"].values()) == pytest.approx(first["seconds"])
    assert sum(first["memory"].values()) == first["peak_bytes_per_device"]
    assert "explanation" not in found


def test_an_explanation_and_a_picture(step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["layout", step, "--chips", "2", "--explain", "--html", str(page)]) == 0
    out = capsys.readouterr().out
    assert "best: " in out
    assert "half the batch: " in out
    shown = shown_in(page)
    assert [part["title"] for part in shown["parts"]] == ["Timeline", "Layouts", "The best as code"]
    assert [lane["name"] for lane in shown["parts"][0]["lanes"]] == ["data=2"] * 3
    assert "mesh = mw.make_mesh((2,), ('data',))" in shown["parts"][2]["text"]
    assert main(["layout", step, "--chips", "2", "--explain", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["explanation"]
    assert {"bound", "waits", "runners_up", "what_if"} == set(found)
    assert found["what_if"][0]["change"] == "twice the bandwidth of links"


def test_parts_of_a_batch(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["layout", step, "--chips", "2", "--microbatches", "2", "--top", "1"]) == 0
    assert "= mw.microbatched(" in capsys.readouterr().out
    assert main(["layout", step, "--chips", "2", "--microbatches", "1,x"]) == 2
    assert (
        capsys.readouterr().err
        == """--microbatches is '1,x'.
  why:  it is numbers between commas
  fix:  --microbatches 1,2,4
"""
    )


def test_what_is_refused(step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["layout", step]) == 2
    assert "How many chips h100 is to have is not said." in capsys.readouterr().err
    assert main(["layout", step, "--chips", "8", "--memory", "0.000001"]) == 1
    assert "No layout of step that was found fits into 1 kB a device." in capsys.readouterr().err
    assert main(["layout", step, "--chips", "8", "--batch", "4"]) == 2
    assert capsys.readouterr().err == (
        "--batch is for a configuration.\n"
        f"  why:  {step} gives the step with a batch of its own\n"
        "  fix:  leave out --batch\n"
    )
    assert main(["layout", step, "--hardware", "tpu v5e 2x4", "--chips", "7"]) == 2
    assert capsys.readouterr().err == (
        "tpu v5e 2x4 has 8 chips, not 7.\n"
        "  why:  a layout is looked for on all chips of a machine\n"
        "  fix:  --chips 8, or --hardware 'tpu v5e' --chips 7\n"
    )
    other = tmp_path / "other.py"
    other.write_text("from meshwright import dist\nmodel = dist.GPT(layers=2, dim=64, heads=2)\n")
    assert main(["layout", str(other), "--chips", "8"]) == 2
    assert "has no step." in capsys.readouterr().err
    other.write_text("model = 3, 4, 5\n")
    assert main(["layout", str(other), "--chips", "8"]) == 2
    assert capsys.readouterr().err == (
        f"{other} has no step.\n"
        "  why:  model is a tuple of 3 that begins with a value of type int, and a step is a configuration of init, "
        "make_batch and train_step, or (step, params, batch), or (step, …) with other arguments\n"
        "  fix:  def model(): return train_step, params, batch\n"
    )


DECODE = """
import meshwright as mw
import meshwright.numpy as mnp

def decode(w, cache, x, position):
    cache = cache.at[:, position].set(x @ w["in"])
    return mnp.einsum("bsd,bd->bd", cache, x) @ w["out"], cache

def model():
    shape = lambda *dims: mw.ShapeDtypeStruct(dims, "bfloat16")
    w = {"in": shape(1024, 1024), "out": shape(1024, 8192)}
    return decode, w, shape(32, 512, 1024), shape(32, 1024), mw.ShapeDtypeStruct((), "int32")
"""


def test_a_step_of_other_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "decode.py"
    path.write_text(DECODE)
    assert main(["layout", str(path), "--chips", "4", "--top", "1"]) == 0
    out = capsys.readouterr().out
    assert "in_shardings = mw.tree.map(" in out and "(w_specs, cache_specs, x_specs, position_specs,)" in out
    assert "donate_argnums=(1,)" in out
    assert main(["search", str(path), "--chips", "4"]) == 2
    assert capsys.readouterr().err == (
        f"{path} gives a step with 4 arguments.\n"
        "  why:  a search is of a step of parameters and a batch: (step, params, batch)\n"
        f"  fix:  meshwright layout {path}, or a step of (params, batch)\n"
    )


OF = "of = mw.ShapeDtypeStruct((8, 8), 'float32')\n"


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            "return (lambda w, x: 1 / 0), of, of",
            [],
            "{path} raised ZeroDivisionError.\n"
            "  at:   step.py:7   return (lambda w, x: 1 / 0), of, of\n"
            "  why:  division by zero\n",
        ),
        (
            "return (lambda w: w), of, of",
            [],
            "{path} raised TypeError.\n"
            "  why:  model.<locals>.<lambda>() takes 1 positional argument but 2 were given\n"
            "  fix:  def model(): return train_step, params, batch\n",
        ),
        (
            "return mnp.dot, of, of",
            ["--html", "missing/page.html"],
            "missing/page.html cannot be written.\n"
            "  why:  No such file or directory\n"
            "  fix:  name a file in a folder that exists\n",
        ),
        (
            "return mnp.dot, of, of",
            ["--microbatches", "3"],
            "A batch of 8 does not come in 3 microbatches.\n"
            "  why:  3 equal parts of its rows are needed\n"
            "  fix:  --microbatches 2\n",
        ),
    ],
)
def test_a_step_that_cannot_be_searched_is_one_error(
    model: str, options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "step.py"
    path.write_text(f"import meshwright as mw\nimport meshwright.numpy as mnp\n{OF}\n\ndef model():\n    {model}\n")
    assert main(["layout", str(path), "--chips", "2", *options]) == 2
    assert capsys.readouterr() == ("", message.format(path=path))


def test_a_file_without_a_step_is_told_how_to_give_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "step.py"
    path.write_text("x = 1\n")
    assert main(["layout", str(path), "--chips", "2"]) == 2
    assert capsys.readouterr().err.endswith("\n  fix:  def model(): return train_step, params, batch\n")
