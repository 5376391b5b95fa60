"""Pictures: against JAX where it draws, by what they mean where it does not; layouts, HTML, colours and errors."""

from __future__ import annotations

import io
import sys
import types
from html.parser import HTMLParser
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.debug import as_html, as_text, picture, visualize_array_sharding, visualize_mesh, visualize_sharding
from meshwright.report.blocks import blocks_of, listed
from meshwright.report.visualize import facts, mesh_facts, resolved

P, NamedSharding = mw.P, mw.NamedSharding
Printed = pytest.CaptureFixture[str]


def on(spec: Any, kind: str = "cpu", **axes: int) -> mw.NamedSharding:
    return NamedSharding(mw.make_mesh(tuple(axes.values()), tuple(axes), kind=kind), spec)


# Against JAX


def every_spec(names: tuple[str, ...], rank: int) -> list[mw.P]:
    choices = [None, *names, *[(a, b) for a in names for b in names if a != b]]

    def flat(spec: tuple[Any, ...]) -> list[str]:
        return [name for entry in spec for name in ((entry,) if isinstance(entry, str) else entry or ())]

    return [P(*s) for s in product(choices, repeat=rank) if len(flat(s)) == len(set(flat(s)))]


SHAPES = [(1024, 1024), (64, 128), (128, 64), (24, 8), (8, 8), (48, 1000), (1024,), (8,), (48,)]


@pytest.mark.parametrize("sizes", [(2, 2), (2, 4), (4, 2), (8, 1), (4, 4), (2, 2, 2), (3, 2)], ids=str)
def test_pictures_are_those_of_jax(sizes: tuple[int, ...], capsys: Printed) -> None:
    names = ("x", "y", "z")[: len(sizes)]
    mesh = mw.make_mesh(sizes, names, kind="tpu")
    compared = 0
    for shape in SHAPES:
        for spec in every_spec(names, len(shape)):
            sharding = NamedSharding(mesh, spec)
            shards = resolved(shape, sharding).shards
            if any(size % count for size, count in zip(shape, shards, strict=True)) or mesh.size > 8 * prod(shards):
                continue  # JAX draws no uneven blocks, and lists any number of devices
            jax.debug.visualize_sharding(shape, sharding, use_color=False)
            theirs = capsys.readouterr().out
            if theirs.index("\n") == 80 and shards[-1] > 1:
                continue  # too wide for JAX: it leaves out the names of the devices
            assert as_text(shape, sharding) + "\n" == theirs, (shape, spec)
            compared += 1
    assert compared >= 20


@pytest.mark.parametrize("options", [{"scale": 0.5}, {"scale": 2.0}, {"min_width": 14}, {"min_width": 3}], ids=str)
def test_sizes_are_those_of_jax(options: dict[str, Any], capsys: Printed) -> None:
    for spec, shape in ((P("x", "y"), (64, 64)), (P(None, "y"), (64, 32)), (P("x"), (16,)), (P(("x", "y")), (8, 2))):
        sharding = on(spec, x=2, y=2)
        jax.debug.visualize_sharding(shape, sharding, use_color=False, **options)
        assert as_text(shape, sharding, **options) + "\n" == capsys.readouterr().out


# What a picture says is where things are


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], mw.NamedSharding]:
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=3))
    names = ["a", "b", "c"][: len(sizes)]
    order = draw(st.permutations(range(prod(sizes))))
    mesh = mw.Mesh(np.array(order).reshape(sizes), tuple(names))
    rank = draw(st.integers(0, 4))
    axes: list[list[str]] = [[] for _ in range(rank + 2)]
    for name, size in zip(names, sizes, strict=True):
        parts = [f"{name}:(1)2", f"{name}:(2){size // 2}"] if size >= 4 and draw(st.booleans()) else [name]
        for part in parts:
            axes[draw(st.integers(0, rank + 1))].append(part)
    shape = tuple(draw(st.lists(st.integers(0, 9), min_size=rank, max_size=rank)))
    dims = [tuple(draw(st.permutations(entry))) for entry in axes[:rank]]
    try:
        return shape, NamedSharding(mesh, P(*dims, unreduced=axes[rank]))
    except mw.MeshwrightError:  # two parts that are one
        return shape, NamedSharding(mesh, P())


@settings(max_examples=200, deadline=None)
@given(layouts())
def test_every_device_stands_at_the_block_it_holds(layout: tuple[tuple[int, ...], mw.NamedSharding]) -> None:
    shape, sharding = layout
    found = facts(shape, sharding)
    held = {device.id: index for device, index in sharding.devices_indices_map(shape).items()}
    seen = []
    for block in found["blocks"]:
        for group in block["devices"]:
            for device in group:
                bounds = [s.indices(size)[:2] for s, size in zip(held[device], shape, strict=True)]
                assert bounds == list(zip(block["start"], block["stop"], strict=True))
                seen.append(device)
    assert sorted(seen) == sorted(held)
    text = as_text(shape, sharding)
    assert all(len(line) <= 80 for line in text.splitlines() if "│" in line)
    assert as_html(shape, sharding).startswith("<figure")


def test_summands_of_a_block_are_joined_by_a_sign() -> None:
    blocks = blocks_of((4,), on(P("y", unreduced={"x"}), x=2, y=2).to_tensor_sharding())
    assert [blocks.label((block,)) for block in (0, 1)] == ["CPU 0+2", "CPU 1+3"]
    largest = mw.sharding.TensorSharding.parse('<@m, [{}], unreduced=max{"x"}>', mw.make_mesh((2, 2), ("x", "y")))
    assert as_text((4,), largest) == "┌───────────┐\n│CPU 0,1∨2,3│\n└───────────┘\nunreduced max over x"


def test_long_lists_of_devices_are_shortened() -> None:
    assert listed([1, 4, 5, 7]) == "1,4,5,7"
    assert listed(range(16)) == "0-15"
    assert listed(range(0, 64, 4)) == "0,4,…,60"
    assert listed([*range(4), *range(8, 12), 20]) == "0-3,8-11,20"
    assert listed([n for n in range(40) if n % 4 < 2]) == "0-1,4-5,…,36-37"
    assert "TPU 0-15" in as_text((64, 64), on(P("x"), "tpu", x=16, y=16))
    assert "CPU 0-3+4-7+8-11" in as_text((4,), on(P(unreduced="x"), x=3, y=4))
    assert "TPU 0+1+…+15" in as_text((64, 64), on(P("x", unreduced="y"), "tpu v5e", x=2, y=16))


# Layout


def test_a_scalar_is_one_box() -> None:
    assert as_text((), on(P(), x=2, y=2)) == "┌───────────┐\n│CPU 0,1,2,3│\n└───────────┘"


def test_uneven_blocks_are_drawn_with_their_ranges() -> None:
    assert (
        as_text((5, 7), on(P("x", "y"), x=4, y=2))
        == """\
              0:4              4:7
      ┌──────────────────┬─────────────┐
      │                  │             │
  0:2 │      CPU 0       │    CPU 1    │
      │                  │             │
      ├──────────────────┼─────────────┤
      │                  │             │
  2:4 │      CPU 2       │    CPU 3    │
      │                  │             │
      ├──────────────────┼─────────────┤
  4:5 │      CPU 4       │    CPU 5    │
      ├──────────────────┼─────────────┤
empty │      CPU 6       │    CPU 7    │
      └──────────────────┴─────────────┘"""
    )


def test_ranges_can_be_asked_for_and_left_out() -> None:
    even, uneven = on(P("x"), x=2), on(P("x"), x=4)
    assert as_text((8,), even, ranges=True).splitlines()[0].split() == ["0:4", "4:8"]
    assert as_text((7,), uneven, ranges=False).splitlines()[0].startswith("┌")


def test_more_dims_are_a_grid_of_slices() -> None:
    assert (
        as_text((2, 6, 8, 8), on(P("x", "y", None, "z"), x=2, y=2, z=2), scale=0.4)
        == """\
[0:1, 0:3, :, :]   [0:1, 3:6, :, :]
┌───────┬───────┐  ┌───────┬───────┐
│       │       │  │       │       │
│ CPU 0 │ CPU 1 │  │ CPU 2 │ CPU 3 │
│       │       │  │       │       │
└───────┴───────┘  └───────┴───────┘

[1:2, 0:3, :, :]   [1:2, 3:6, :, :]
┌───────┬───────┐  ┌───────┬───────┐
│       │       │  │       │       │
│ CPU 4 │ CPU 5 │  │ CPU 6 │ CPU 7 │
│       │       │  │       │       │
└───────┴───────┘  └───────┴───────┘"""
    )


def test_slices_that_have_no_room_beside_each_other_stand_below() -> None:
    lines = as_text((8, 8, 8), on(P("x"), x=8), scale=0.2).splitlines()
    assert sum("[" in line for line in lines) >= 2 and max(map(len, lines)) <= 80


def test_sub_axes_open_dims_and_owed_sums_are_written_below() -> None:
    mesh = mw.make_mesh((4, 2), ("x", "y"))
    sharding = NamedSharding(mesh, P("x:(1)2", P.UNCONSTRAINED, unreduced={"x:(2)2"}))
    assert as_text((8, 8), sharding).splitlines()[-3:] == [
        "dim 0 over x:(1)2",
        "unreduced sum over x:(2)2",
        "dim 1 may be split further",
    ]


def test_wide_pictures_keep_the_names_of_their_devices() -> None:
    text = as_text((64, 512), on(P("x", "y"), x=2, y=4))
    assert all(f"CPU {n}" in text for n in range(8)) and max(map(len, text.splitlines())) <= 80


def test_many_columns_have_the_numbers_alone() -> None:
    text = as_text((64, 64), on(P("x", "y"), "tpu", x=16, y=16))
    assert "│255│" in text and text.endswith("the numbers are those of TPU devices")
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("shape", "spec"),
    [((64, 64), P("x", "y")), ((4096,), P(("x", "y"))), ((7, 3), P("x", "y")), ((64, 64, 64), P("x", None, "y"))],
    ids=str,
)
def test_512_devices_are_a_table(shape: tuple[int, ...], spec: mw.P) -> None:
    lines = as_text(shape, on(spec, "tpu", x=32, y=16)).splitlines()
    assert lines[0].endswith("on 512 TPU devices") and "512 blocks" in lines[0]
    assert lines[1].split() == ["block", "holds", "devices"]
    assert lines[2].endswith("TPU 0") and lines[-1].endswith("TPU 511")
    assert "… 496 more" in lines and len(lines) == 19
    assert max(map(len, lines)) <= 80


def test_many_devices_that_hold_few_blocks_are_boxes() -> None:
    assert as_text((64,), on(P(), "tpu", x=32, y=16)) == "┌─────────┐\n│TPU 0-511│\n└─────────┘"


@pytest.mark.parametrize("rank", range(9))
def test_any_rank_can_be_drawn(rank: int) -> None:
    axes = dict.fromkeys("abcdefgh"[:rank], 2) or {"a": 2}
    text = as_text((4,) * rank, on(P(*"abcdefgh"[:rank]), **axes))
    assert ("CPU 0" in text or "│0" in text) and len(text.splitlines()) < 150


def test_dims_without_elements_can_be_drawn() -> None:
    for shape in ((0,), (0, 4), (4, 0), (0, 0), (0, 4, 4)):
        assert "CPU 0" in as_text(shape, on(P("x"), x=2))


# Meshes


def test_a_mesh_is_drawn_with_its_devices(capsys: Printed) -> None:
    visualize_mesh(mw.make_mesh((2, 2, 2), ("x", "y", "z"), kind="tpu v5e"))
    assert (
        capsys.readouterr().out
        == """\
x=0                    x=1
       z=0     z=1            z=0     z=1
    ┌───────┬───────┐      ┌───────┬───────┐
y=0 │ TPU 0 │ TPU 1 │  y=0 │ TPU 4 │ TPU 5 │
    ├───────┼───────┤      ├───────┼───────┤
y=1 │ TPU 2 │ TPU 3 │  y=1 │ TPU 6 │ TPU 7 │
    └───────┴───────┘      └───────┴───────┘
x=2, y=2, z=2: 8 TPU devices
"""
    )


def test_the_order_and_types_of_a_mesh_are_shown() -> None:
    text = as_text(mw.Mesh([[3, 1], [0, 2]], ("x", "y"), (mw.AxisType.Explicit, mw.AxisType.Auto)))
    assert "x=0 │ CPU 3 │ CPU 1 │" in text and text.endswith("x=2 Explicit, y=2: 4 CPU devices")


def test_large_meshes_are_summarized() -> None:
    lines = as_text(mw.make_mesh((64, 64), ("x", "y"))).splitlines()
    assert "…" in lines[0] and "CPU 4095" in lines[-3] and len(lines) < 20
    many = as_text(mw.make_mesh((2,) * 12, tuple("abcdefghijkl")))
    assert "CPU 4095" in many and len(many.splitlines()) < 60
    assert "x=99999999999" in as_text(mw.make_mesh((10**11,), ("x",)))


def test_meshes_without_devices_axes_or_both_can_be_drawn() -> None:
    assert as_text(mw.AbstractMesh((2,), ("x",))).endswith("x=2: 2 devices")
    assert "device 1" in as_text((4,), NamedSharding(mw.AbstractMesh((2,), ("x",)), P("x")))
    assert "CPU 3" in as_text(mw.sharding.Mesh.parse("<[], device_ids=[3]>"))
    assert as_text(mw.sharding.Mesh.parse("<[]>")) == "no axes and no devices"
    one = mw.sharding.TensorSharding.parse("<@m, []>", mw.sharding.Mesh.parse("<[], device_ids=[3]>"))
    assert "CPU 3" in as_text((4, 4), one)


# What is accepted


def test_arrays_shardings_and_specs_are_drawn_alike(capsys: Printed) -> None:
    mesh = mw.make_mesh((2, 2), ("x", "y"))
    sharding = NamedSharding(mesh, P("x", "y"))
    expected = as_text((4, 4), sharding)
    assert as_text((4, 4), sharding.to_tensor_sharding()) == expected
    with mw.set_mesh(mesh):
        assert as_text((4, 4), P("x", "y")) == expected
    x = mw.device_put(mnp.zeros((4, 4)), sharding)
    assert as_text(x) == expected
    visualize_array_sharding(x)
    visualize_sharding([4, 4], sharding)
    assert capsys.readouterr().out == 2 * (expected + "\n")
    visualize_array_sharding(mnp.zeros(()))
    assert "CPU 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda s: as_text((4,), s), "The sharding has 2 dims and the tensor 1"),
        (lambda s: as_text((4, 4, 4), s.to_tensor_sharding()), "The sharding has 2 dims and the tensor 3"),
        (lambda s: as_text((4, 4), "x,y"), "'x,y' is not a sharding"),
        (lambda s: as_text((4, 4), s.mesh), "is not a sharding"),
        (lambda s: as_text((4, 4), P("x")), "P('x',) is drawn without a mesh"),
        (lambda s: as_text((4, -4), s), "(4, -4) is not a shape"),
        (lambda s: as_text("4x4", s), "'4x4' is not a shape"),
        (lambda s: visualize_array_sharding(np.zeros(3)), "has no sharding to draw"),
        (lambda s: visualize_array_sharding(3.0), "3.0 has no sharding to draw"),
        (lambda s: mw.jit(lambda x: (visualize_array_sharding(x), x)[1])(mnp.zeros(3)), "A traced value float32[3]"),
        (lambda s: visualize_mesh(s), "visualize_mesh cannot draw NamedSharding"),
        (lambda s: as_text((4,), NamedSharding(mw.sharding.Mesh.parse("<[]>"), P())), "on an empty mesh"),
        (lambda s: as_text((4,), on(P(), x=2**23)), "8388608 devices are too many to list"),
    ],
)
def test_what_cannot_be_drawn_is_an_error_that_says_what_to_write(draw: Any, says: str) -> None:
    with pytest.raises(mw.MeshwrightError) as caught:
        draw(on(P("x", "y"), x=2, y=2))
    error = caught.value
    assert says in error.what and error.why and error.fix and "test_visualize.py" in error.where


def test_a_sharding_without_a_spec_for_a_dim_is_whole_there() -> None:
    assert resolved((4, 4, 4), on(P("x"), x=2)).rank == 3


# Where it is shown


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_colours_and_a_file_does_not(monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    sharding = on(P("x"), x=2)
    for name, value in (("TERM", "xterm-256color"), ("COLORTERM", "truecolor")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    visualize_sharding((4,), sharding)
    colored = terminal.getvalue()
    assert "\x1b[" in colored and "48;2;" in colored and " CPU 0 " in colored
    terminal.seek(0)
    terminal.truncate()
    visualize_sharding((4,), sharding, color_map=lambda place: (place, 1.0, 0.0))
    assert "48;2;0;255;0" in terminal.getvalue() and "48;2;128;255;0" in terminal.getvalue()
    terminal.seek(0)
    terminal.truncate()
    visualize_sharding((4,), sharding, use_color=False)
    assert terminal.getvalue() == as_text((4,), sharding) + "\n"


def test_a_stream_without_lines_to_draw_with_gets_plain_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    visualize_sharding((4,), on(P("x"), x=2))
    assert raw.getvalue().decode() == "+-------+-------+\n| CPU 0 | CPU 1 |\n+-------+-------+\n"


def test_a_notebook_shows_html(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    shell = types.SimpleNamespace(kernel=object())
    display = types.SimpleNamespace(display=shown.append)
    ipython = types.SimpleNamespace(get_ipython=lambda: shell, display=display)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    visualize_sharding((4,), on(P("x"), x=2))
    assert shown[0]._repr_html_() == as_html((4,), on(P("x"), x=2))
    assert str(shown[0]) == as_text((4,), on(P("x"), x=2))


class Balanced(HTMLParser):
    """Checks that every element is closed, and keeps the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.mark.parametrize(
    "drawn",
    [
        lambda: as_html((5, 7), on(P("x", unreduced="<y>"), **{"x": 4, "<y>": 2})),
        lambda: as_html((4, 4, 4), on(P("x", None, "y"), x=2, y=2)),
        lambda: as_html((4096,), on(P("x"), x=2048)),
        lambda: as_html(mw.make_mesh((2, 4), ("<b>", "&"))),
        lambda: as_html(mw.make_mesh((64, 64), ("x", "y"))),
    ],
)
def test_html_is_well_formed_and_escaped(drawn: Any) -> None:
    reader = Balanced()
    reader.feed(drawn())
    assert reader.open == [] and any("CPU 0" in text for text in reader.text)


def test_html_has_a_cell_for_each_block() -> None:
    html = as_html((64, 64), on(P("x", "y"), x=4, y=2))
    assert html.count("<td") == 8 and len({part[:7] for part in html.split("background:")[1:]}) == 8


def test_a_picture_is_its_text() -> None:
    drawn = picture((4,), on(P("x"), x=2))
    assert str(drawn) == repr(drawn) == as_text((4,), on(P("x"), x=2))
    assert mesh_facts(mw.make_mesh((2, 1), ("x", "y")))["devices"] == [[0], [1]]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"scale": float("nan")}, "A picture cannot have the scale nan."),
        ({"scale": float("inf")}, "A picture cannot have the scale inf."),
        ({"scale": "a"}, "A picture cannot have the scale 'a'."),
        ({"scale": -1}, "A picture cannot have the scale -1."),
        ({"scale": 1e9}, "A picture cannot have the scale 1000000000.0."),
        ({"min_width": None}, "A picture cannot have min_width=None."),
        ({"max_width": 1.5}, "A picture cannot have max_width=1.5."),
        ({"color_map": "red"}, "'red' is not a color map."),
    ],
)
def test_the_options_of_a_picture_are_checked(options, what):
    for arguments in ((on(P("x"), x=2).mesh,), ((8, 8), on(P("x"), x=2))):
        with pytest.raises(mw.MeshwrightError) as caught:
            as_text(*arguments, **options)
        error = caught.value
        assert error.what == what and error.why and error.fix and error.where.startswith("test_visualize.py:")


def test_a_bad_scale_is_told_whole():
    with pytest.raises(mw.MeshwrightError) as caught:
        as_text((8, 8), on(P("x"), x=2), scale=float("nan"))
    source = 'as_text((8, 8), on(P("x"), x=2), scale=float("nan"))'
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    line = next(i for i, text in enumerate(lines, 1) if text.strip() == source)
    assert str(caught.value) == (
        "A picture cannot have the scale nan.\n"
        f"  at:   test_visualize.py:{line}   {source}\n"
        "  why:  1 makes a matrix 10 lines high, and 100 is the most\n"
        "  fix:  scale=1.0"
    )
