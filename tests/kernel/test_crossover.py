"""When a kernel is faster than a collective and computing after it, by the command."""

from __future__ import annotations

import json

import pytest

from meshwright.cli import main
from meshwright.hardware import Topology, collective_seconds, get

MODEL = """
import meshwright as mw
from meshwright.pallas import ops

mesh, columns = mw.make_mesh((4,), ("x",)), mw.P(None, "x")


def product(x, y):
    f = lambda x, y: ops.all_gather_matmul(x, y, "x", tiles=(1024, 512, 1024), fused=True)
    return mw.shard_map(f, mesh=mesh, in_specs=(columns, columns), out_specs=columns)(x, y)
"""
ARGS = ["--args", "bf16[2048,8192] bf16[8192,8192]", "--hardware", "tpu v5e 4x4"]


@pytest.fixture
def model(tmp_path):
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    return f"{file}:product"


def test_a_ring_beside_a_product_is_faster_once_the_product_is_large(model, capsys, tmp_path):
    perfetto = tmp_path / "timeline.json"
    assert main(["kernel", model, *ARGS, "--json", "--perfetto", str(perfetto)]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["size"] for row in rows] == [256 << n for n in range(8)]
    # A device receives the left sides of three others, 8 MiB each; what it gathers is the same at every size.
    chips = Topology(get("tpu v5e"), (4,))
    gather = collective_seconds("all_gather", 4 * 2048 * 2048 * 2, chips)
    for row in rows:
        assert row["sent_bytes"] == 3 * 2048 * 2048 * 2
        assert row["collective_seconds"] == pytest.approx(gather)
        assert row["apart_seconds"] == pytest.approx(gather + row["compute_seconds"])
        assert row["kernel_seconds"] >= max(gather, row["compute_seconds"]) * 0.99
    ratios = [row["ratio"] for row in rows]
    assert ratios[0] > 1 > min(ratios)
    assert json.loads(perfetto.read_text())["traceEvents"]


def test_the_table(model, capsys):
    assert main(["kernel", model, *ARGS]) == 0
    text = capsys.readouterr().out.splitlines()
    assert text[3] == "kernel on tpu v5e 4x4: sending beside computing, and one after the other"
    assert text[4].split() == ["last", "dim", "kernel", "gather", "compute", "apart", "ratio"]
    assert text[-1] == "The kernel is faster from a last dim of 2048 on."


def test_larger_sizes_follow_until_the_kernel_is_faster(model, capsys):
    args = ["--args", "bf16[2048,8192] bf16[8192,256]", "--hardware", "tpu v5e 4x4"]
    assert main(["kernel", model, *args, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    sizes = [row["size"] for row in rows]
    assert sizes == [sizes[0] << n for n in range(len(sizes))] and sizes[-1] == 2048
    assert [row["ratio"] < 1 for row in rows] == [False] * (len(rows) - 1) + [True]


def test_without_sizes_there_is_no_time(model, capsys):
    assert main(["kernel", model, "--hardware", "tpu v5e 4x4"]) == 2
    assert "--hardware needs --args." in capsys.readouterr().err


ALONE = """
import meshwright as mw
from meshwright import pallas as pl


def double(x):
    def body(x_ref, o_ref):
        o_ref[...] = 2 * x_ref[...]

    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    shape = mw.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(body, out_shape=shape, grid=(x.shape[0] // 8,), in_specs=[block], out_specs=block)(x)
"""


def test_a_kernel_that_sends_nothing_is_compared_with_nothing(tmp_path, capsys):
    (tmp_path / "alone.py").write_text(ALONE)
    command = ["kernel", f"{tmp_path / 'alone.py'}:double", "--args", "f32[32,128]", "--hardware", "tpu v5e"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert " for body on tpu v5e 1\n" in text and "beside" not in text and "faster" not in text
    page = tmp_path / "page.html"
    assert main([*command, "--json", "--html", str(page)]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["size"], row["sent_bytes"], row["collective_seconds"]) == (128, 0, 0.0)
    assert "or after it" not in page.read_text()


@pytest.mark.parametrize("options", [[], ["--json"], ["--picture"], ["--hardware", "tpu v5e"]])
def test_arguments_for_which_no_step_runs_are_refused(tmp_path, capsys, options):
    (tmp_path / "alone.py").write_text(ALONE)
    assert main(["kernel", f"{tmp_path / 'alone.py'}:double", "--args", "f32[4,128]", *options]) == 2
    assert capsys.readouterr() == (
        "",
        "body runs no step.\n"
        "  why:  for arguments of these types its grid is empty\n"
        "  fix:  --args of larger types: along each axis of the grid one block or more\n",
    )
