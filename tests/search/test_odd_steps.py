"""``meshwright search`` and ``meshwright layout`` of odd steps in files, on 7 and 8 chips: an answer (exit code 0), a
plain no (1), or one error (2)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.cli import main

HEAD = """
import meshwright as mw
import meshwright.numpy as mnp

def of(*dims):
    return mw.ShapeDtypeStruct(dims, "float32")

def layer(x, w):
    return mnp.tanh(x @ w)

def trained(loss):
    def step(ws, x):
        value, gradient = mw.value_and_grad(loss)(ws, x)
        return value, mw.tree.map(lambda w, g: w - 0.1 * g, ws, gradient)
    return step
"""
STEPS = {
    "plain": """
def loss(ws, x):
    return mnp.mean(layer(layer(x, ws[0]), ws[1]) ** 2)
def model():
    return trained(loss), [of(64, 64)] * 2, of(56, 64)
""",
    "scan": """
def loss(ws, x):
    return mnp.mean(mw.lax.scan(lambda x, w: (layer(x, w), None), x, ws)[0] ** 2)
def model():
    return trained(loss), of(4, 64, 64), of(56, 64)
""",
    "shard_map": """
def loss(w, x):
    mesh = mw.make_mesh((8,), ("x",))
    inside = mw.shard_map(layer, mesh=mesh, in_specs=(mw.P("x"), mw.P()), out_specs=mw.P("x"))
    return mnp.mean(inside(x, w) ** 2)
def model():
    return trained(loss), of(64, 64), of(56, 64)
""",
    "too large": """
def loss(w, x):
    return mnp.mean(layer(x, w) ** 2)
def model():
    return trained(loss), of(4 << 20, 4 << 20), of(56, 4 << 20)
""",
    "no loss": """
def model():
    return layer, of(56, 64), of(64, 64)
""",
    "one sample": """
def loss(w, x):
    return mnp.mean(layer(x, w) ** 2)
def model():
    return trained(loss), of(64, 64), of(1, 64)
""",
    "no matmul": """
def model():
    return (lambda w, x: mnp.sum(x * w)), of(64), of(56, 64)
""",
}
LARGEST = {7: "20.1 TB", 8: "17.6 TB"}  # the smallest layout
ERRORS = {
    ("shard_map", "search"): """The step has a shard_map.
  at:   step.py:20   return mnp.mean(inside(x, w) ** 2)
  why:  it is written for one device of a mesh, and a search looks for the mesh
  fix:  the same computation without shard_map, or mw.simulate of the step on the mesh that it names
""",
    ("shard_map", "layout"): """The step has a shard_map.
  at:   step.py:20   return mnp.mean(inside(x, w) ** 2)
  why:  it is written for one device of a mesh, and find_layout is to choose the mesh
  fix:  the same computation without shard_map, or mw.jit(f, in_shardings=…) on the mesh that it names
""",
    ("no loss", "search"): """The step returns no loss.
  why:  the first result without dims is the loss, and there is none
  fix:  return loss, new_params
""",
}
SLOW = {("plain", "layout", 8), ("scan", "layout", 8), ("scan", "search", 8)}
EVERY = [(name, command, chips) for name in STEPS for command in ("search", "layout") for chips in (7, 8)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "step.py"


def asked(path: Path, name: str, command: str, chips: int, *more: str) -> list[str]:
    path.write_text(HEAD + STEPS[name])
    batch = ["--batch", "56"] if (name, command) == ("one sample", "search") else []
    return [command, str(path), "--chips", str(chips), "--json", *batch, *more]


@pytest.mark.parametrize(
    ("name", "command", "chips"),
    [pytest.param(*one, marks=[pytest.mark.slow] if one in SLOW else []) for one in EVERY],
)
def test_every_step_has_an_answer_or_one_error(
    name: str, command: str, chips: int, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(asked(path, name, command, chips))
    out, err = capsys.readouterr()
    if (name, command) in ERRORS:
        assert (code, out, err) == (2, "", ERRORS[name, command])
    elif name == "too large" and command == "layout":
        why = f"the smallest takes {LARGEST[chips]} on Topology('h100', {chips})"
        fix = "more chips, a smaller batch, more microbatches, or mw.checkpoint(layer) in the step"
        what = "No layout of step that was found fits into 80 GB a device."
        assert (code, out, err) == (1, "", f"{what}\n  why:  {why}\n  fix:  {fix}\n")
    elif name == "too large":
        found = json.loads(out)
        assert (code, found["best"]) == (1, None)
        assert found["fastest"] and not any(one["fits"] for one in found["fastest"])
    elif command == "search":
        best = json.loads(out)["best"]
        degrees = [best["strategy"][axis] for axis in ("data", "tensor", "pipeline")]
        assert (code, best["fits"], degrees[0] * degrees[1] * degrees[2]) == (0, True, chips)
    else:
        first = json.loads(out)["layouts"][0]
        sizes = 1
        for size in first["mesh"].values():
            sizes *= size
        assert (code, first["fits"], sizes) == (0, True, chips)


@pytest.mark.parametrize("name", ["plain", "scan", "one sample"])
@pytest.mark.parametrize("command", ["search", "layout"])
def test_memory_that_holds_nothing_is_a_no(
    name: str, command: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(asked(path, name, command, 7, "--memory", "0.000000001")) == 1
    out, err = capsys.readouterr()
    if command == "search":
        assert (json.loads(out)["best"], err) == (None, "")
    else:
        assert out == ""
        assert err.startswith("No layout of step that was found fits into 1 B a device.\n  why:  the smallest takes ")


@pytest.mark.parametrize("command", ["search", "layout"])
def test_five_chips_that_divide_nothing(command: str, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of them may do the same, which a search of strategies does not count as one."""
    code = main(asked(path, "plain", command, 5))
    out, err = capsys.readouterr()
    if command == "layout":
        assert (code, err, json.loads(out)["layouts"][0]["fits"]) == (0, "", True)
    else:
        fix = "another --chips or --batch, such as powers of two"
        why = "degrees must divide the batch of 56, the layers, and the width or heads of the model"
        what = f"No strategy puts {path} on 5 devices."
        assert (code, out, err) == (2, "", f"{what}\n  why:  {why}\n  fix:  {fix}\n")


@pytest.mark.parametrize("command", ["search", "layout"])
@pytest.mark.parametrize(
    ("chip", "chips", "message"),
    [
        (
            "h100",
            11,
            "11 h100 do not fill their nodes.\n"
            "  why:  a node has 8 GPUs, and 11 is more than one node but no multiple of 8\n"
            "  fix:  --chips 8\n",
        ),
        (
            "tpu v5e",
            7,
            "No slice of tpu v5e has 7 chips.\n"
            "  why:  those nearest to it are 2x2 = 4 and 2x4 = 8\n"
            "  fix:  --chips 4 or --chips 8\n",
        ),
        (
            "tpu v5p",
            13,
            "No slice of tpu v5p has 13 chips.\n"
            "  why:  those nearest to it are 2x2x2 = 8 and 2x2x4 = 16\n"
            "  fix:  --chips 8 or --chips 16\n",
        ),
    ],
)
def test_a_prime_number_of_chips_that_no_machine_has(
    chip: str, chips: int, message: str, command: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*asked(path, "plain", command, chips), "--hardware", chip]) == 2
    assert capsys.readouterr() == ("", message)
