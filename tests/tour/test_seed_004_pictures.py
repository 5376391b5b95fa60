"""Seed 004, "Pallas Collectives": its two pictures, drawn from the kernels themselves.

The first, of blocks, shows which steps of the grid see which part of each operand. The second, of the overlapped
all-gather, shows what is sent while what is multiplied: a chunk of the left side goes on to the neighbors in the same
slot in which it is fetched, and in those in which it is multiplied.
"""

from __future__ import annotations

import json
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
import meshwright.numpy as jnp
from meshwright import pallas as pl
from meshwright.cli import main
from meshwright.pallas import tpu as pltpu
from meshwright.report.kernels import kernels_of
from tests.pages import shown_in
from tests.tour.test_seed_004 import existing_matmul_kernel, matmul
from tests.tour.test_seed_004_all_gather_matmul import make_kernel

Printed = pytest.CaptureFixture[str]
MATRIX = mw.ShapeDtypeStruct((1024, 1024), jnp.float32)

GRID_RECAP = """\
x_ref float32[1024, 1024]  y_ref float32[1024, 1024]          z_ref float32[1024, 1024]
┌───────────────┐          ┌───────────────┬───────────────┐  ┌────────┬────────┐
│ (0, 0) (0, 1) │          │ (0, 0) (1, 0) │ (0, 1) (1, 1) │  │ (0, 0) │ (0, 1) │
├───────────────┤          └───────────────┴───────────────┘  ├────────┼────────┤
│ (1, 0) (1, 1) │                                             │ (1, 0) │ (1, 1) │
└───────────────┘                                             └────────┴────────┘

              slot 0         slot 1          slot 2             slot 3              slot 4
          ┌────────────┬───────────────┬────────────────┬───────────────────┬───────────────────┐
 x_ref in │ [0:512, :] │               │ [512:1024, :]  │                   │                   │
          ├────────────┼───────────────┼────────────────┼───────────────────┼───────────────────┤
 y_ref in │ [:, 0:512] │ [:, 512:1024] │   [:, 0:512]   │   [:, 512:1024]   │                   │
          ├────────────┼───────────────┼────────────────┼───────────────────┼───────────────────┤
  compute │            │    (0, 0)     │     (0, 1)     │      (1, 0)       │      (1, 1)       │
          ├────────────┼───────────────┼────────────────┼───────────────────┼───────────────────┤
z_ref out │            │               │ [0:512, 0:512] │ [0:512, 512:1024] │ [512:1024, 0:512] │
          └────────────┴───────────────┴────────────────┴───────────────────┴───────────────────┘

                   slot 5
          ┌──────────────────────┐
 x_ref in │                      │
          ├──────────────────────┤
 y_ref in │                      │
          ├──────────────────────┤
  compute │                      │
          ├──────────────────────┤
z_ref out │ [512:1024, 512:1024] │
          └──────────────────────┘
matmul_kernel on one device: 6 slots, in each of which a core computes once and a block of each operand is copied
4 of the 6 slots with copies compute as well"""

FILE = """\
from tests.tour.test_seed_004_pictures import all_gather, matmul

def nothing(x):
    return x * 2
"""


def all_gather(lhs: Any, rhs: Any) -> Any:
    """The document's last listing on four devices, the left side in chunks of four tiles."""
    return mw.shard_map(
        lambda lhs, rhs: make_kernel(4, 16, 16, 16, 8, 8, 16)(lhs, rhs)[0],
        mesh=mw.make_mesh((4,), ("x",)),
        in_specs=(mw.P(None, "x"), mw.P(None, "x")),
        out_specs=mw.P(None, "x"),
    )(lhs, rhs)


def test_grid_recap_is_drawn():
    assert str(mw.debug.kernel_picture(mw.make_program(matmul)(MATRIX, MATRIX))) == GRID_RECAP


def slots_of(function: Any, *types: Any) -> Any:
    (one,) = kernels_of(mw.make_program(function)(*types))
    return one.slots


def test_inputs_for_the_next_iteration_and_outputs_of_the_previous_one_move_while_one_runs():
    """ "slicing and prefetching the inputs for the next iteration and writing the outputs of the previous iteration as
    we are running the current one" """
    slots = slots_of(matmul, MATRIX, MATRIX)
    computed = {work.label: work.slot for work in slots.works if work.lane == "compute"}
    steps = list(computed)
    for work in slots.works:
        if work.lane == "z_ref out":
            row, column = (int(part.split(":")[0]) // 512 for part in work.label[1:-1].split(", "))
            assert work.slot == computed[f"({row}, {column})"] + 1
    for before, step in pairwise(steps):
        assert computed[step] == computed[before] + 1  # no bubble between them


def test_the_left_side_is_sent_while_it_is_multiplied():
    types = mw.ShapeDtypeStruct((16, 64), jnp.float32), mw.ShapeDtypeStruct((64, 64), jnp.float32)
    slots = slots_of(all_gather, *types)
    for device in range(4):
        mine = [work for work in slots.works if work.device == device]
        around = {f"to device {(device + 1) % 4}", f"to device {(device - 1) % 4}"}
        assert {work.lane for work in mine if work.lane.startswith("to ")} == around
        sent = {work.slot for work in mine if work.lane in around and "scratch" in work.label}
        fetched = {work.slot for work in mine if work.lane == "lhs_scratch_ref in"}
        assert sent <= fetched  # in the slots of the first fetches, before anything waits for it
        computed = [work for work in mine if work.lane == "compute"]
        assert len(computed) == 2 * 2 * 4  # two steps both ways, of 1 x 2 x 2 tiles
        assert len({work.slot for work in computed}) == len(computed)


def test_a_nested_pipeline_fetches_ahead():
    def parent(x_ref, y_ref, z_ref):
        pltpu.emit_pipeline(
            existing_matmul_kernel,
            grid=(1, 1, 4),
            in_specs=[pl.BlockSpec(lambda i, j, k: (i, k), (8, 8)), pl.BlockSpec(lambda i, j, k: (k, j), (8, 8))],
            out_specs=pl.BlockSpec(lambda i, j, k: (i, j), (8, 8)),
        )(x_ref, y_ref, z_ref)

    whole = pl.BlockSpec(memory_space=pl.ANY)
    call = pl.pallas_call(parent, mw.ShapeDtypeStruct((8, 8), jnp.float32), in_specs=[whole, whole], out_specs=whole)
    slots = slots_of(call, mw.ShapeDtypeStruct((8, 32), jnp.float32), mw.ShapeDtypeStruct((32, 8), jnp.float32))
    lanes = {lane: [work.slot for work in slots.works if work.lane == lane] for lane in slots.lanes(0)}
    assert lanes == {"x_ref in": [0, 1, 2, 3], "y_ref in": [0, 1, 2, 3], "compute": [1, 2, 3, 4], "z_ref out": [5]}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    Path("seed.py").write_text(FILE)
    return "seed.py"


TWO = "f32[1024,1024] f32[1024,1024]"
SHARDED = "f32[16,64] f32[64,64]"


def test_the_command_draws_the_picture(file: str, capsys: Printed):
    assert main(["kernel", f"{file}:matmul", "--args", TWO, "--picture"]) == 0
    assert capsys.readouterr().out == GRID_RECAP + "\n"


def test_the_command_says_it_in_two_lines(file: str, capsys: Printed):
    assert main(["kernel", f"{file}:matmul", "--args", TWO]) == 0
    assert capsys.readouterr().out.splitlines() == GRID_RECAP.splitlines()[-2:]


def test_devices_and_slots_that_are_not_drawn_are_counted(file: str, capsys: Printed):
    assert main(["kernel", f"{file}:all_gather", "--args", SHARDED, "--picture", "--devices", "1", "--slots", "4"]) == 0
    text = capsys.readouterr().out
    assert "slot 3\n" in text and "slot 4" not in text
    assert {line for line in text.splitlines() if line.startswith("device")} == {"device 0"}
    assert text.endswith(" more slots\n… 3 more devices\n")


class Cells(HTMLParser):
    """The texts of the cells of tables."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.inside = False

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.inside = tag in ("td", "th")

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.found.append(data)


def test_the_page_has_what_the_text_has(file: str, capsys: Printed):
    assert main(["kernel", f"{file}:matmul", "--args", TWO, "--html", "picture.html"]) == 0
    assert capsys.readouterr().out == ""
    parser = Cells()
    timeline, picture = shown_in(Path("picture.html"))["parts"]
    parser.feed(picture["html"])
    shown = [timeline["names"][name] for lane in timeline["lanes"] for _, _, name, *_ in lane["bars"]]
    shown += [text for text in parser.found if text[0] == "("]
    boxes = [part.strip() for line in GRID_RECAP.splitlines() for part in line.split("│")[1:-1]]
    assert sorted(shown) == sorted(text for text in boxes if text)


def test_the_same_as_json(file: str, capsys: Printed):
    assert main(["kernel", f"{file}:all_gather", "--args", SHARDED, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["mesh"], found["grid"]) == ({"x": 4}, [2, 2])
    assert {work["device"] for work in found["work"]} == {0, 1, 2, 3}


def test_bad_input(file: str, capsys: Printed):
    assert main(["kernel", f"{file}:nothing", "--args", "f32[2]"]) == 2
    assert capsys.readouterr().err == (
        "There is no kernel to draw.\n"
        "  why:  the program does not call one, or was read from text, which keeps the name of a kernel alone\n"
        "  fix:  mw.make_program(f)(…) of a function that calls pl.pallas_call\n"
    )
    assert main(["kernel", f"{file}:matmul", "--args", TWO, "--slots", "0"]) == 2
    assert capsys.readouterr().err == "--slots is 0.\n  why:  it is a number from 1\n  fix:  --slots 12\n"
    assert main(["kernel", f"{file}:matmul"]) == 2
    assert capsys.readouterr().err.endswith("  fix:  --args 'f32[8,4] f32[8,4]' with the types of x, y\n")
