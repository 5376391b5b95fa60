"""``meshwright visualize``: what it reads, what it prints and writes, and what it says when it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import meshwright as mw
from meshwright.cli import main
from meshwright.sharding.text_command import read_mesh, read_shape, read_spec

Printed = pytest.CaptureFixture[str]
ON = ("visualize", "--mesh", "x=4,y=2", "--shape")


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("x,y", mw.P("x", "y")),
        ("x", mw.P("x")),
        ("", mw.P()),
        ("None,y", mw.P(None, "y")),
        ("(x,y),None", mw.P(("x", "y"))),
        ("(x),(y,)", mw.P("x", "y")),
        ("x:(1)2,None", mw.P("x:(1)2")),
        ("x:(2)2 , (y, x:(1)2)", mw.P("x:(2)2", ("y", "x:(1)2"))),
        ("P('x', None)", mw.P("x")),
        ('mw.P("x:(1)2", unreduced={"y"})', mw.P("x:(1)2", unreduced={"y"})),
        ("y,unreduced=x", mw.P("y", unreduced={"x"})),
        ("unreduced={y,x}", mw.P(unreduced={"x", "y"})),
        ("y,replicated={x:(1)2},unreduced={x:(2)2}", mw.P("y", replicated={"x:(1)2"}, unreduced={"x:(2)2"})),
        ("x,?", mw.P("x", mw.P.UNCONSTRAINED)),
        ('[{"x"}, {}]', mw.P("x")),
        ('#sdy.sharding<@mesh, [{"x"}, {"y"}]>', mw.P("x", "y")),
        ('sharding<@mesh, [{"x"}, {}], unreduced={"y"}>', mw.P("x", unreduced={"y"})),
        ("{devices=[4,1,2]<=[8] last_tile_dim_replicate}", mw.P("x")),
    ],
)
def test_a_sharding_is_read_as_it_is_meant(text: str, spec: mw.P) -> None:
    mesh = read_mesh("x=4,y=2")
    assert read_spec(text, mesh, (8, 8)) == mw.NamedSharding(mesh, spec).to_tensor_sharding(2)


def test_meshes_and_shapes_are_read() -> None:
    assert read_mesh("x=2, y=4", "tpu") == mw.make_mesh((2, 4), ("x", "y"), kind="tpu")
    assert read_mesh("x=4", "tpu").order == (0, 2, 1, 3)
    assert read_mesh('<["x"=2], device_ids=[1, 0]>').order == (1, 0)
    assert read_mesh("P=2").axis_names == ("P",)
    assert str(read_spec("P", read_mesh("P=2"), (8,))) == '#sdy.sharding<@mesh, [{"P"}]>'
    shapes = {"64x64": (64, 64), "8": (8,), "": (), "()": (), "(3,)": (3,), "2,3": (2, 3), "0x2": (0, 2)}
    assert {text: read_shape(text) for text in shapes} == shapes


def test_it_prints_the_picture(capsys: Printed) -> None:
    assert main(["visualize", "--mesh", "x=2,y=2", "--shape", "1024", "y", "--kind", "tpu"]) == 0
    assert capsys.readouterr().out == "┌───────┬───────┐\n│TPU 0,2│TPU 1,3│\n└───────┴───────┘\n"


def test_without_a_sharding_it_prints_the_mesh(capsys: Printed) -> None:
    assert main(["visualize", "--mesh", "x=2"]) == 0
    assert capsys.readouterr().out.endswith("x=2: 2 CPU devices\n")


def test_json_says_what_the_picture_shows(capsys: Printed) -> None:
    assert main([*ON, "6x4", "x,unreduced={y}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["local_shape"] == [2, 4] and found["unreduced"] == ["y"] and found["reduction"] == "sum"
    assert found["blocks"][2] == {"start": [4, 0], "stop": [6, 4], "devices": [[4], [5]]}
    assert main(["visualize", "--mesh", "x=2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["axes"] == {"x": 2}


def test_a_page_is_written_whole_or_not_at_all(
    tmp_path: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "picture.html"
    assert main([*ON, "8x8", "x,y", "--html", str(page)]) == 0
    whole = page.read_text(encoding="utf-8")
    assert whole.startswith("<!DOCTYPE html>") and whole.count("\\u003ctd") == 8 and "CPU 7" in whole
    assert capsys.readouterr().out == ""

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    assert main([*ON, "8x8", "x", "--html", str(page)]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert page.read_text(encoding="utf-8") == whole and [path.name for path in tmp_path.iterdir()] == ["picture.html"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--mesh", "x=4,y=2", "--shape", "8x8", "z"], 'The mesh has no axis "z"'),
        (["--mesh", "x=4,y=2", "--shape", "8x8", "x,x"], 'The axis "x" appears twice'),
        (["--mesh", "x=4,y=2", "--shape", "8x8", "x,y,None"], "The sharding has 3 dims and the tensor 2"),
        (["--mesh", "x=4,y=2", "--shape", "8x8", "x,,y"], "This is not a partition spec: character 3"),
        (["--mesh", "x=4,y=2", "--shape", "8x8", "x:(1"], "This is not a partition spec: character 5"),
        (["--mesh", "x=4,y=2", "--shape", "8x8", "x:(3)2"], 'The sub-axis "x":(3)2 is no part of "x"=4'),
        (["--mesh", "x=4,y=2", "--shape", "8x8", "x y"], "This is not a partition spec: character 3"),
        (["--mesh", "x=4,y=2", "--shape", "8x8", "*"], "This is not a partition spec: character 1"),
        (["--mesh", "x=4,y=2", "--shape", "8x8", "P(x"], "This is not a partition spec: character 4"),
        (["--mesh", "x=4,y=2", "--shape", "8x8", '[{"z"}, {}]'], 'The mesh has no axis "z"'),
        (["--mesh", "x=4,y=2", "--shape", "8x8", "sharding<@mesh, [{}]>"], "The sharding has 1 dim and the tensor 2"),
        (["--mesh", "x=4,y=2", "--shape", "8x8", "{devices=[3,1]<=[3]}"], ""),
        (["--mesh", "x=4,y=2", "--shape", "8by8", "x"], "'8by8' is not a shape"),
        (["--mesh", "x=4,y=2", "--shape=-8", "x"], "'-8' is not a shape"),
        (["--mesh", "x=4,y=2", "x"], "A sharding is drawn for a shape"),
        (["--mesh", "x", "--shape", "8", "x"], "'x' is not an axis of a mesh"),
        (["--mesh", "x=0", "--shape", "8", "x"], 'The mesh axis "x" has size 0'),
        (["--mesh", "x=2,x=2", "--shape", "8", "x"], 'Two axes of the mesh are named "x"'),
        (["--mesh", "", "--shape", "8", "x"], "This is not a mesh: character 1"),
        (["--mesh", '<["x"=2', "--shape", "8", "x"], "This is not a mesh: character 8"),
        (["--mesh", "x=2", "--kind", " ", "--shape", "8", "x"], "Devices cannot have an empty kind"),
        (["--mesh", "x=99999999999", "--shape", "8", "x"], "99999999999 devices are too many to list"),
        (["--mesh", "x=2", "--shape", "8", "x", "--html", "/no/such/folder/page.html"], "cannot be written"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(arguments: list[str], says: str, capsys: Printed) -> None:
    assert main(["visualize", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and says in printed.err.splitlines()[0] and "Traceback" not in printed.err
    assert "why:" in printed.err and "fix:" in printed.err and "test_command.py" not in printed.err


LONG = "9" * 5000


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--mesh", f"x=2,y={LONG}"], "This is not a mesh: character 7."),
        (["--mesh", f'<["x"={LONG}]>'], "This is not a mesh: character 7."),
        (["--mesh", "x=2", "--shape", f"8x{LONG}", "x"], "This is not a shape: character 3."),
        (["--mesh", "x=2", "--shape", "8", f"x:(1){LONG}"], "This is not a partition spec: character 6."),
        (["--mesh", "x=2", "--shape", "8", f"P('x:(1){LONG}')"], "This is not a part of an axis: character 6."),
        (["--mesh", "x=2", "--shape", "8", f"{{devices=[{LONG}]<=[2]}}"], "This is not an HLO sharding: character 11."),
    ],
)
def test_a_number_of_thousands_of_digits_is_pointed_at(arguments: list[str], says: str, capsys: Printed) -> None:
    assert main(["visualize", *arguments]) == 2
    what, at, *_ = capsys.readouterr().err.splitlines()
    assert what == says and at.startswith("  at:   ") and at.endswith("…") and len(at) < 200


def test_too_long_a_size_is_told_whole(capsys: Printed) -> None:
    assert main(["visualize", "--mesh", "x=2,y=99999999999999999999"]) == 2
    assert capsys.readouterr().err == (
        "This is not a mesh: character 7.\n"
        "  at:   x=2,y=99999999999999999999\n"
        "              ^\n"
        "  why:  the integer does not fit into 64 bits\n"
        "  fix:  x=2,y=4\n"
    )


def test_a_mesh_of_very_many_devices_is_drawn(capsys: Printed) -> None:
    twos = ",".join(f"a{i}=2" for i in range(60))
    for mesh in ("x=1099511627776", twos):
        assert main(["visualize", "--mesh", mesh]) == 0
        assert "CPU devices" in capsys.readouterr().out
    assert main(["visualize", "--mesh", "x=1099511627776", "--json"]) == 2
    assert "1099511627776 devices are too many to list." in capsys.readouterr().err
