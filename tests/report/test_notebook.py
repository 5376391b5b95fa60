"""What a notebook shows: small HTML, which loads nothing, with the user's text escaped; and a notebook that runs."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
import meshwright.numpy as mnp

NOTEBOOK = Path(__file__).parents[2] / "examples" / "layer.ipynb"
EVIL = "<b>data"
LARGEST = 200_000  # bytes of one output: a notebook of some hundred stays small


def things() -> dict[str, Any]:
    mesh = mw.make_mesh((2, 4), (EVIL, "model"))
    x = mw.device_put(mnp.ones((16, 8)), mw.NamedSharding(mesh, mw.P(EVIL)))
    w = mw.device_put(mnp.ones((8, 8)), mw.NamedSharding(mesh, mw.P(None, "model")))

    def loss(w: Any, x: Any) -> Any:
        return mnp.tanh(x @ w).sum()

    compiled = mw.jit(mw.grad(loss)).lower(w, x).compile()
    return {
        "mesh": mesh,
        "sharding": x.sharding,
        "tensor sharding": x.sharding.to_tensor_sharding(),
        "array": x,
        "array on one device": mnp.ones(3),
        "scalar": mnp.float32(1),
        "empty": mw.device_put(mnp.ones((0, 4)), mw.NamedSharding(mesh, mw.P(EVIL))),
        "program": mw.make_program(loss)(w, x),
        "compiled": compiled,
        "compiled for one device": mw.jit(loss).lower(mnp.ones((8, 8)), mnp.ones((16, 8))).compile(),
        "timeline": compiled.simulate("h100"),
        "many devices": mw.make_mesh((64, 64), ("x", "y")),
        "array on many": mw.device_put(
            mnp.ones((4096, 64)), mw.NamedSharding(mw.make_mesh((1024,), ("x",)), mw.P("x"))
        ),
    }


class Balanced(HTMLParser):
    """Which elements are open, and which attributes and text there were."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        if tag != "input":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("name", things())
def test_what_is_shown_is_whole_small_and_escaped(name: str) -> None:
    html = things()[name]._repr_html_()
    read = Balanced()
    read.feed(html)
    assert read.open == [] and len(html) < LARGEST
    assert EVIL not in html and "<script" not in html
    loaded = [value for key, value in read.attributes if key in ("src", "href") or "url(" in (value or "")]
    assert loaded == []


def shown(name: str) -> str:
    read = Balanced()
    read.feed(things()[name]._repr_html_())
    return read.text


def test_an_array_says_what_each_device_holds() -> None:
    assert "CPU 0,1,2,3" in shown("array") and "(8, 8)" in shown("array") and EVIL in shown("array")


def test_a_compiled_function_says_what_it_sends_and_why() -> None:
    assert "all_reduce" in shown("compiled") and "leaves partial sums over " + EVIL in shown("compiled")
    assert "collectivesnone" in shown("compiled for one device")


def test_a_program_has_ops_lines_and_an_end() -> None:
    assert "dot_general" in shown("program") and "test_notebook.py:" in shown("program")

    def long(x: Any) -> Any:
        for _ in range(100):
            x = mnp.sin(x)
        return x

    text = mw.make_program(long)(1.0)._repr_html_()
    assert "… 43 more lines; print(program) has all of them" in text and text.count("\n") == 60


def test_a_timeline_has_its_summary_and_its_bars() -> None:
    assert "on h100 8 (8 chips" in shown("timeline") and "<svg" in things()["timeline"]._repr_html_()


def test_the_notebook_is_committed_without_outputs() -> None:
    assert not re.search(r'"output_type"|"execution_count": \d', NOTEBOOK.read_text())


def test_the_notebook_runs_and_every_cell_shows_something_rich() -> None:
    reason = "nbclient and ipykernel are not installed: make test adds them"
    nbformat = pytest.importorskip("nbformat", reason=reason)
    nbclient = pytest.importorskip("nbclient", reason=reason)
    pytest.importorskip("ipykernel", reason=reason)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    rich = ["text/html" in (cell.outputs[-1].get("data") or {}) for cell in cells]
    assert rich == [True] * len(cells) and len(cells) == 6
    assert cells[4].outputs[0]["text"] == "True\n"
