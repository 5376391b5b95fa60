"""Pictures of device programs: what they show is what was simulated, and a page needs nothing but itself."""

import json
import re
from xml.etree import ElementTree

import pytest

from meshwright import dist, hardware
from meshwright.chart.colors import color
from meshwright.errors import DeviceError, MeshwrightError
from tests.pages import shown_in

STEP = dist.parse("""def f(w: Tensor[(1024, 1024), 0], x: Tensor[(4096, 1024), 0]):
    y = MatMul(x, w)
    z = tanh(y)
    s = reduce_sum(z, axes=(0,))
    return s""")
SPREAD = dist.data_parallel(STEP, {"x": 0})
SVG = "{http://www.w3.org/2000/svg}"


def simulated(count: int = 2, **options) -> dist.Simulation:
    return dist.simulate(SPREAD, list(range(1, count + 1)), hardware.Topology("h100", count), steady=True, **options)


def svg_of(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(html[html.index("<svg") : html.index("</svg>") + 6])


def test_a_gantt_chart_has_a_letter_for_the_op_that_takes_most_of_its_time():
    fn = dist.parse("""def f(x: Tensor[bf16, (4096, 4096), 1]):
        y = send(x, to_device=2)
        z = MatMul(x, x)
        u = MatMul(z, x)
        return y, u""")
    found = dist.simulate(fn, topology=hardware.Topology("h100", 2))
    product, send = found.busy_seconds[1] / 2, found.link_seconds[1]
    assert found.gantt(width=70).splitlines()[:2] == [
        "device 1 compute |" + "M" * 46 + "| 100%",
        "         links   |" + f"{'s' * round(46 * send / (2 * product)):·<46}| {send / (2 * product):>4.0%}",
    ]
    assert found.gantt(width=70).splitlines()[-1] == "M MatMul, s send, · idle"


@pytest.mark.parametrize("width", [50, 80, 200])
def test_a_chart_fits_its_width(width, monkeypatch):
    piped = dist.MLP(8, 64, 64).unrolled(2, 1, 4, 8)
    found = dist.simulate(piped, topology=hardware.Topology("h100", 8))
    assert max(map(len, found.gantt(width).splitlines())) == width
    monkeypatch.setenv("COLUMNS", str(width))
    assert found.gantt() == found.gantt(width)


def test_a_page_says_of_each_op_what_it_is_where_when_and_how_large(tmp_path):
    found = simulated()
    path = tmp_path / "chart.html"
    found.to_html(path)
    page = path.read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert not re.search(r"https?://(?!www\.w3\.org/)|<link|src=", page)
    chart, devices = shown_in(path)["parts"]
    bars = [(lane["name"], bar) for lane in chart["lanes"] for bar in lane["bars"]]
    assert len(bars) == len([e for e in found.events if e.seconds and e.device == 1])
    lane, (start, _, name, text, kind) = bars[0]
    assert (lane, start, chart["names"][name]) == ("devices 1-2 compute", 0, "y_1")
    assert (chart["texts"][text], chart["kinds"][kind]["name"]) == ("8.39 MB", "MatMul")
    assert sum(bar[1] for _, bar in bars) == pytest.approx(found.busy_seconds[1] + found.link_seconds[1])
    assert [row[0] for row in devices["rows"]] == [["1-2", 1]]
    assert devices["rows"][0][3][1] == found.peak_bytes[1]
    titles = [title.text for title in svg_of(found.chart().view().html()).iter(f"{SVG}title")]
    assert titles[0].startswith("y_1: MatMul\ndevices 1-2, compute\n0 ns to ")


def test_a_file_that_cannot_be_written_is_one_message(tmp_path):
    for write in (simulated().to_html, simulated().to_perfetto, dist.draw([1, 2]).to_html):
        with pytest.raises(MeshwrightError) as error:
            write(tmp_path / "none" / "chart")
        assert str(error.value).startswith(f"{tmp_path}/none/chart cannot be written.\n")
        assert "  why:  No such file or directory\n" in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_trace_has_every_event(tmp_path):
    found = simulated(2, fold=False)
    path = tmp_path / "trace.json"
    found.to_perfetto(path)
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["ph"] == "M"}
    assert names == {"devices 1-2", "compute", "links"}
    spans = {(e["name"], e["args"]["op"], e["ts"], e["dur"], e["args"]["bytes"]) for e in events if e["ph"] == "X"}
    wanted = [e for e in found.events if e.seconds and e.device == 1]
    assert spans == {(e.name, e.op, e.start * 1e6, e.seconds * 1e6, e.nbytes) for e in wanted}


def test_devices_that_do_the_same_share_a_row_whether_simulated_once_or_each(tmp_path):
    once, each = simulated(1024), simulated(1024, fold=False)
    assert once.same_devices == {1: tuple(range(1, 1025))}
    assert once.gantt(70) == each.gantt(70)
    assert once.gantt(70).startswith("devices 1-1024 compute |M")
    assert once.bubble_fraction == pytest.approx(each.bubble_fraction)
    each.to_html(tmp_path / "chart.html")
    once.to_html(tmp_path / "once.html")
    assert (tmp_path / "chart.html").stat().st_size < (tmp_path / "once.html").stat().st_size + 40_000


def test_devices_that_others_stand_for_are_those_of_the_map():
    fn = dist.horizontal_parallel(dist.pipeline_parallel(_chain(), 2, 2, batch={"x": 0}), {"x": 0}, ["d"], parts=2)
    devices = dist.DeviceMap({1: [1, 3], 2: [2, 4]})
    found = dist.simulate(fn, devices, hardware.Topology("h100", 4), steady=True)
    assert found.same_devices == {1: (1, 3), 2: (2, 4)}
    nested = dist.pipeline_parallel(dist.data_parallel(_chain(), {"x": 0}), 2, 2, batch={"x": 0}, device_keys=["d"])
    found = dist.simulate(nested, devices, hardware.Topology("h100", 4), steady=True)
    assert found.same_devices == {1: (1, 2), 3: (3, 4)}


def _chain() -> dist.Function:
    return dist.parse("""def f(a: Tensor[(8, 8), 0], b: Tensor[(8, 8), 0], x: Tensor[(8, 8), 0]):
        h = MatMul(x, a)
        k = MatMul(h, a)
        u = MatMul(k, b)
        y = MatMul(u, b)
        return y""")


def test_a_page_of_very_many_ops_draws_those_as_one_that_cannot_be_told_apart():
    events = [dist.Event(1, f"v{n}", "add", n * 1e-9, 1e-9, False, 4) for n in range(30_000)]
    found = dist.Simulation(1.0, {1: 0}, {1: 0}, {1: 3e-5}, events=events)
    titles = [title.text for title in svg_of(found.chart().view().html()).iter(f"{SVG}title")]
    assert titles == ["30000 ops: add\ndevice 1, compute\n0 ns to 30 µs (30 µs)\n120 kB"]


def test_the_tree_of_a_map_is_drawn():
    view = dist.draw({1: [1, 3], 2: {2: [2, 4]}})
    assert str(view).splitlines() == [
        "4 devices, 3 levels", "├─ 1", "│  ├─ 1", "│  └─ 3", "└─ 2", "   └─ 2", "      ├─ 2", "      └─ 4"
    ]  # fmt: skip
    svg = svg_of(view.html())
    assert [text.text for text in svg.iter(f"{SVG}text")] == ["1", "3", "1", "2", "4", "2", "2"]
    assert len(list(svg.iter(f"{SVG}path"))) == 5  # an edge for each node below another
    fills = [box.get("fill") for box in svg.iter(f"{SVG}rect")]
    assert fills == [color(0, 2)] * 3 + [color(1, 2)] * 4


def test_a_large_map_is_shortened():
    lines = str(dist.draw(dist.DeviceMap.grid(12_500, 8))).splitlines()
    assert lines[0] == "100,000 devices, 2 levels"
    assert "├─ … 12,495 more" in lines
    assert lines[-1] == "   └─ 100000"
    assert len(lines) < 45


def test_a_program_has_the_colours_of_its_devices():
    flat = dist.resolve(SPREAD, [1, 2])
    view = dist.draw(flat)
    text = str(flat).splitlines()
    assert [line[2:] for line in str(view).splitlines()[: len(text)]] == text
    colors = {"0": color(0, 3), "1": color(1, 3), "2": color(2, 3)}
    for line, written in zip(view.lines, text, strict=False):
        devices = re.findall(r"Tensor\[\([^)]*\), (\d)\]", written)
        assert [(p.text, p.color) for p in line[1:] if p.color] == [(d, colors[d]) for d in devices]
        results = set(re.findall(r"Tensor\[\([^)]*\), (\d)\]", written.split(" = ")[0])) if " = " in written else set()
        assert line[0].color == (colors[results.pop()] if len(results) == 1 else None)
    html = ElementTree.fromstring(view.html())
    assert "".join(html.find("pre").itertext()).splitlines()[0][2:] == text[0]
    assert str(view).splitlines()[len(text) :] == ["", " device 0 (the host)", " device 1", " device 2"]


def test_a_program_on_many_devices_is_coloured_by_group():
    devices = dist.DeviceMap.grid(2, 8)
    fn = dist.resolve(dist.horizontal_parallel(SPREAD, {"x": 0}, ["d"], parts=8), devices)
    assert str(dist.draw(fn, devices)).splitlines()[-2:] == [
        " group 1: devices 1-8", " group 9: devices 9-16"
    ]  # fmt: skip
    assert str(dist.draw(fn, devices, by="device")).splitlines()[-1] == " device 16"


def test_device_variables_have_colours_of_their_own():
    shown = str(dist.draw(dist.horizontal_parallel(SPREAD, {"x": 0}, ["d"], parts=8))).splitlines()
    assert shown[-4:] == [" device 0 (the host)", " ? a device that resolution finds", " device d", " device dd"]


def test_a_schedule_is_drawn():
    view = dist.draw(dist.SCHEDULES["1f1b"](2, 2))
    assert str(view).splitlines()[0] == "device 0  F0 F1 ·  B0 ·  B1"
    titles = [title.text for title in svg_of(view.html()).iter(f"{SVG}title")]
    assert titles[:2] == ["F0: forward\ndevice 0\n0 to 1 (1)", "F1: forward\ndevice 0\n1 to 2 (1)"]


@pytest.mark.parametrize(
    ("what", "options", "message"),
    [
        (
            3,
            {},
            "There is no picture of a int.\n"
            "  why:  a picture is drawn of a DeviceMap, a Function, a Schedule or a Simulation\n"
            "  fix:  dist.draw(dist.DeviceMap({1: [1, 3], 2: [2, 4]}))",
        ),
        (
            STEP,
            {"by": "group"},
            "A program is coloured by its devices or by their groups.\n"
            "  why:  by='group' and there is no device map\n"
            '  fix:  dist.draw(fn, device_map, by="group")',
        ),
    ],
)
def test_what_cannot_be_drawn_is_said(what, options, message):
    with pytest.raises(DeviceError) as error:
        dist.draw(what, **options)
    assert str(error.value) == message
