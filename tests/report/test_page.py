"""The pages of reports, device programs, kernels and searches: what they say against what is known, and in a browser.

``apt-get install chromium`` installs one that these tests find; they use nothing else of the machine.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import dist, hardware
from meshwright.chart.page import page
from meshwright.cli import main

ROOT = Path(__file__).parents[2]
BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="there is no browser: apt-get install chromium")
MESH = mw.make_mesh((2, 4), ("data", "model"))


def step(params: Any, x: Any) -> Any:
    def loss(params: Any) -> Any:
        y = x
        for layer in params:
            y = y + mnp.tanh(y @ layer["up"]) @ layer["down"]
        return (y**2).mean()

    return mw.grad(loss)(params)


def compiled(down: Any = ("model",)) -> Any:
    def on(shape: tuple[int, ...], *spec: Any) -> Any:
        return mw.ShapeDtypeStruct(shape, "float32", sharding=mw.NamedSharding(MESH, mw.P(*spec)))

    params = [{"up": on((64, 128), None, "model"), "down": on((128, 64), *down)} for _ in range(2)]
    return mw.jit(step).lower(params, on((32, 64), "data")).compile()


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    path = tmp_path_factory.mktemp("page") / "out.html"
    return compiled().report(path, "tpu v5e", other=compiled((None, "model")))  # type: ignore[no-any-return]


def test_the_page_has_what_is_known_of_the_program(reports: list[dict[str, Any]]) -> None:
    program = compiled()
    run, report = program.simulate("tpu v5e"), reports[0]
    assert report["title"] == "step (before)" and report["mesh"] == [("data", 2), ("model", 4)]
    assert (report["seconds"], report["mfu"], report["bound"]) == (run.seconds, run.mfu, run.bound)
    assert (report["peak_bytes"], report["memory"]["curve"]) == (run.peak_bytes_per_device, list(run.memory.curve))
    assert len(report["collectives"]) == len(program.collectives)
    assert sum(nbytes for _, nbytes, _ in report["by_axis"]) == report["received_bytes"]
    assert sum(nbytes for _, nbytes, _ in report["by_kind"]) == report["received_bytes"]
    kernels = [e for e in run.timeline if e.task.body is None and e.seconds]
    assert sum(len(lane["bars"]) for lane in report["lanes"]) == sum(len(e.task.cost.units) for e in kernels)
    down = next(value for value in report["values"] if value["name"] == "params[0]['down']")
    assert (down["shape"], down["dims"], down["type"]) == ([128, 64], [["model"], []], "f32[128@model,64]")
    assert len(report["equations"]) == len(report["values"]) == 5 + len(program.global_program.eqns)


def test_a_page_loads_nothing_and_text_in_it_ends_no_script(reports: list[dict[str, Any]]) -> None:
    text = page([{**reports[0], "title": "</script><b>x"}])
    assert "<b>x" not in text
    inside = re.search(r'id="report">(.*?)</script>', text, re.DOTALL)
    assert inside is not None and json.loads(inside[1])[0]["title"] == "</script><b>x"
    assert "default-src 'none'" in text
    assert not re.search(r"""(src|href)=["'](https?:)?//""", text)


def test_the_command_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(
        "import meshwright as mw, meshwright.numpy as mnp\n"
        "def example():\n"
        "    x = mw.device_put(mnp.ones((8, 8)), mw.NamedSharding(mw.make_mesh((4,), ('x',)), mw.P('x')))\n"
        "    return (lambda x: x.sum(0)), (x,)\n"
    )
    assert main(["report", "model.py:example", "-o", "out.html", "--hardware", "h100"]) == 0
    assert capsys.readouterr().out == "wrote out.html: open it in a browser\n"
    assert "h100 4" in Path("out.html").read_text()
    monkeypatch.setattr("meshwright.compile.explain.suggestions", lambda *_: pytest.fail("other shardings are tried"))
    assert main(["report", "model.py:example", "-o", "quick.html", "--no-hints"]) == 0
    assert capsys.readouterr().out == "wrote quick.html: open it in a browser\n"
    monkeypatch.setattr("meshwright.commands.report.compiled_of", lambda *_: pytest.fail("compiled for no file"))
    assert main(["report", "model.py:example", "-o", "no/out.html"]) == 2
    assert capsys.readouterr().err == (
        "no/out.html cannot be written.\n"
        "  why:  No such file or directory\n"
        "  fix:  name a file in a folder that exists\n"
    )


# What a user does, in the page itself; each step is noted with what is then seen.
DRIVER = """
<script>
const seen = { errors: [] };
addEventListener("error", (e) => seen.errors.push(e.message));
addEventListener("unhandledrejection", (e) => seen.errors.push(String(e.reason)));
console.error = (...args) => seen.errors.push(args.join(" "));
const $ = (q) => document.querySelector(q), $$ = (q) => [...document.querySelectorAll(q)];
const frame = () => new Promise((done) => setTimeout(done, 30));
const tab = async (name) => { $("#tab-" + name).click(); await frame(); };
const type = async (element, text) => {
  element.value = text; element.dispatchEvent(new Event("input", { bubbles: true })); await frame();
};
addEventListener("load", async () => {
  try {
    STEPS
  } catch (error) { seen.errors.push(String(error && error.stack || error)); }
  const result = document.createElement("pre");
  result.id = "result"; result.textContent = JSON.stringify(seen);
  document.body.append(result);
});
</script>
"""
OF_A_REPORT = """
    seen.opened_ms = performance.now();
    seen.cards = $$(".card").map((one) => one.textContent);
    seen.longest = $$("table.longest tbody tr").map((row) => row.children[0].textContent);
    $$("table.longest button")[1].click(); await frame();
    for (let n = 0; n < 50 && !$(".row.chosen"); n++) await frame();  // the table scrolls to it
    seen.asked = [$("#tab-collectives").getAttribute("aria-selected"), $(".row.chosen").children[0].textContent];
    await tab("collectives");
    const column = () => $$('.body .row').map((row) => row.children[0].textContent);
    seen.by_time = column();
    $$('[role=columnheader]')[3].click(); await frame();
    seen.kinds = $$('.body .row').map((row) => row.children[3].textContent);
    await type($("input[type=search]"), "all_reduce data");
    seen.filtered = $("[role=status]").textContent;
    await type($("input[type=search]"), "");
    $(".body .row").click(); await frame();
    seen.why = $(".why").textContent;
    const button = $(".why button");
    button.click(); await frame();
    seen.jumped = $("#tab-program").getAttribute("aria-selected");
    seen.picture = $(".sharding") && $(".sharding").textContent;
    seen.rows_in_document = $$(".body .row").length;
    seen.equations = $("[role=status]").textContent;
    let start = performance.now();
    await type($("input[type=search]"), "tanh");
    seen.filter_ms = performance.now() - start;
    seen.tanh = $("[role=status]").textContent;
    await type($("input[type=search]"), "");
    const body = $(".body");
    body.dispatchEvent(new KeyboardEvent("keydown", { key: "End", bubbles: true })); await frame(); await frame();
    seen.end = $(".row.chosen") !== null;
    await tab("timeline");
    seen.whole = $("#shown-time").textContent;
    $("canvas").dispatchEvent(new KeyboardEvent("keydown", { key: "+", bubbles: true })); await frame();
    $$(".tools button")[0].click(); await frame();
    seen.zoomed = $("#shown-time").textContent;
    const box = $("canvas").getBoundingClientRect();
    for (let x = 160; x < box.width && !$(".tip"); x += 3) {
      const at = { clientX: box.left + x, clientY: box.top + 17, bubbles: true };
      $("canvas").dispatchEvent(new MouseEvent("mousemove", at));
      await new Promise((done) => setTimeout(done, 1));
    }
    seen.tip = $(".tip") && $(".tip").textContent;
    const theme = () => [document.documentElement.dataset.theme, getComputedStyle(document.body).backgroundColor];
    seen.theme = [theme()];
    $("#theme").click(); await frame();
    seen.theme.push(theme());
    await tab("memory");
    seen.memory = $$("table.plain tbody tr").length;
    await tab("compare");
    seen.compared = $$("table.figures tbody tr").map((row) => row.textContent);
    seen.differ = $$(".body .row").map((row) => row.children[0].textContent);
    seen.timelines = $$("canvas").length;
    $(".body .row").click(); await frame();
    seen.why_it_differs = $(".why").textContent;
    $("#tab-compare").focus();
    $("#tab-compare").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true })); await frame();
    seen.by_key = $("#tab-overview").getAttribute("aria-selected");
    seen.named = $$("button, input, select, canvas").every(
      (one) => one.textContent || one.getAttribute("aria-label") || one.closest("label"));
"""
OF_A_SHEET = """
    seen.cards = $$(".card").map((one) => one.textContent);
    await frame(); await frame();
    seen.titles = $$("h2").map((one) => one.textContent);
    if ($("canvas")) {
      seen.whole = $("#shown-time").textContent;
      $("canvas").dispatchEvent(new KeyboardEvent("keydown", { key: "+", bubbles: true })); await frame();
      seen.zoomed = $("#shown-time").textContent;
      $$(".tools button")[2].click(); await frame();
      const box = $("canvas").getBoundingClientRect();
      for (let y = 11; y < box.height && !$(".tip"); y += 22)
        for (let x = 160; x < box.width && !$(".tip"); x += 9) {
          const at = { clientX: box.left + x, clientY: box.top + y, bubbles: true };
          $("canvas").dispatchEvent(new MouseEvent("mousemove", at));
          await new Promise((done) => setTimeout(done, 1));
        }
      seen.tip = $(".tip") && $(".tip").textContent;
    }
    if ($("[role=grid]")) {
      $$("[role=columnheader]")[1].click(); await frame();
      seen.sorted = $$(".body .row").map((row) => row.children[1].textContent);
      await type($("input[type=search]"), "1"); seen.filtered = $("[role=status]").textContent;
    }
    seen.text = $("#root").textContent;
    seen.picture = $(".picture") && $(".picture").innerHTML;
    const back = () => getComputedStyle(document.body).backgroundColor;
    seen.theme = [back()];
    $("#theme").click(); await frame();
    seen.theme.push(back());
"""


def used(text: str, folder: Path, steps: str = OF_A_REPORT) -> dict[str, Any]:
    """What is seen in a page that a user goes through."""
    assert BROWSER is not None
    file = folder / "page.html"
    file.write_text(text.replace("</head>", DRIVER.replace("STEPS", steps) + "</head>"))
    options = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder}/user",
        "--window-size=1400,900",
    ]
    run = subprocess.run(
        [BROWSER, *options, "--virtual-time-budget=20000", "--dump-dom", file.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    found = re.search(r'<pre id="result">(.*?)</pre>', run.stdout, re.DOTALL)
    assert found is not None, run.stderr[-2000:]
    text = found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return json.loads(text)  # type: ignore[no-any-return]


@needs_browser
def test_the_page_is_used_in_a_browser(reports: list[dict[str, Any]], tmp_path: Path) -> None:
    seen = used(page(reports), tmp_path)
    assert seen["errors"] == []
    assert len(seen["cards"]) == 5 and seen["cards"][0].startswith("a step")
    seconds = [float(n) * {"ms": 1e3, "µs": 1, "ns": 1e-3}[unit] for n, unit in map(str.split, seen["by_time"])]
    assert seconds == sorted(seconds, reverse=True) and len(seconds) > 3
    assert seen["longest"] == seen["by_time"][:5] and seen["asked"] == ["true", seen["longest"][1]]
    assert seen["kinds"] == sorted(seen["kinds"])
    assert re.fullmatch(r"\d+ of \d+ rows", seen["filtered"])
    assert " over " in seen["why"] and "reached by" in seen["why"]
    assert seen["jumped"] == "true" and "each device holds" in seen["picture"]
    assert seen["end"] and seen["by_key"] == "true" and seen["named"]
    assert seen["whole"] != seen["zoomed"] and "of the step" in seen["tip"]
    (first, back), (second, other) = seen["theme"]
    assert {first, second} == {"light", "dark"} and back != other
    assert seen["memory"] > 0
    assert seen["compared"][1].startswith("a step") and {"appeared", "went"} & set(seen["differ"])
    assert seen["timelines"] == 2 and " sharded as " in seen["why_it_differs"]


OF_EVERY_TAB = """
    for (const one of $$("[role=tab]")) {
      one.click(); await frame();
      if ($(".body .row")) { $(".body .row").click(); await frame(); }
      for (const button of $$(".tools button")) { button.click(); await frame(); }
      (seen.texts ??= []).push($("#part").textContent);
    }
    seen.made = $$("#root img, #root i:empty:not([style]):not([class]), #root b b").length;
"""


@needs_browser
def test_names_of_users_are_text_in_the_page_and_a_program_may_have_no_collectives(tmp_path: Path) -> None:
    mesh = mw.make_mesh((2, 2), ("данные", "y"))
    markup, controls = "</script><img src=x onerror=console.error(1)>", "ключ\n\x07"

    def f(params: Any, x: Any) -> Any:
        with mw.named_scope(markup):
            return (x @ params["<b>w"] @ params[controls]).sum(0)

    def on(*spec: Any) -> Any:
        return mw.ShapeDtypeStruct((64, 64), "float32", sharding=mw.NamedSharding(mesh, mw.P(*spec)))

    found = mw.jit(f).lower({"<b>w": on(None, "y"), controls: on("данные")}, on("данные")).compile()
    assert found.collectives
    path = tmp_path / "out.html"
    found.report(path, "h100", other=mw.jit(lambda x: x * 2).lower(on("y")).compile())
    seen = used(path.read_text(), tmp_path, OF_EVERY_TAB)
    assert seen["errors"] == [] and seen["made"] == 0
    overview, collectives, _, _, program, _ = seen["texts"]
    assert markup in overview and markup in collectives and "over данные" in overview
    assert "params['<b>w']" in program and repr(controls) in program
    mw.jit(lambda x: x * 2).lower(on("y")).compile().report(path, "h100")
    seen = used(path.read_text(), tmp_path, OF_EVERY_TAB)
    assert seen["errors"] == []
    assert "No collectives" in seen["texts"][0] and "There are none" in seen["texts"][1]


@needs_browser
def test_ten_thousand_equations_stay_responsive(reports: list[dict[str, Any]], tmp_path: Path) -> None:
    """Of many rows few are in the document; all are there to filter."""
    one = reports[0]
    times = 10_000 // len(one["equations"]) + 1
    large = {**one, "equations": one["equations"] * times}
    large["lanes"] = [{**lane, "bars": lane["bars"] * times} for lane in one["lanes"]]
    large["memory"] = {**one["memory"], "curve": one["memory"]["curve"] * times}
    large["rows"] = one["rows"] * 50
    seen = used(page([large, reports[1]]), tmp_path)
    assert seen["errors"] == []
    assert seen["equations"] == f"{len(large['equations'])} rows" and len(large["equations"]) >= 10_000
    assert seen["rows_in_document"] < 60
    tanh = sum("tanh" in text or "tanh" in large["lines"][line][1] for text, line, _, _ in large["equations"])
    assert seen["tanh"].startswith(f"{tanh} of ")
    print(f"opened in {seen['opened_ms']:.0f} ms, filtered in {seen['filter_ms']:.0f} ms")


def of_a_device_program(path: Path) -> None:
    fn = dist.parse(
        "def f(x: Tensor[(64, 64), 0], w: Tensor[(64, 64), 0], u: Tensor[(64, 64), 0]):"
        " y = MatMul(x, w) z = tanh(y) v = MatMul(z, u) return v"
    )
    fn = dist.pipeline_parallel(fn, 2, 2, batch={"x": 0})
    dist.simulate(fn, [1, 2], hardware.Topology("h100", 2)).to_html(path)


def of_a_map(path: Path) -> None:
    dist.draw({1: [1, 3], 2: [2, 4]}).to_html(path)


def of_a_schedule(path: Path) -> None:
    dist.draw(dist.SCHEDULES["1f1b"](2, 2)).to_html(path)


def of_a_kernel(path: Path) -> None:
    assert main(["kernel", f"{ROOT}/tests/commands/model.py:kernel", "--html", str(path)]) == 0


def of_a_search(path: Path) -> None:
    space = ["--pipeline", "1", "--microbatches", "1", "--recompute", "none"]
    model = ["--model", "gpt:2x64x2", "--chips", "2", "--batch", "8", "--workers", "1"]
    assert main(["search", *model, *space, "--html", str(path)]) == 0


@needs_browser
@pytest.mark.parametrize(
    ("write", "cards", "titles", "tip"),
    [
        (of_a_device_program, 3, ["Timeline", "Devices"], "send, "),
        (of_a_map, 0, [], None),
        (of_a_schedule, 0, ["1f1b on 2 devices, 33% idle"], "forward, 1, from 0"),
        (of_a_kernel, 2, ["double on one device, slot by slot"], "x_ref in, 1, from 0"),
        (of_a_search, 4, ["Seconds of a step", "Strategies"], "compute, "),
    ],
)
def test_other_pages_are_used_in_a_browser(write: Any, cards: int, titles: list[str], tip: Any, tmp_path: Path) -> None:
    path = tmp_path / "sheet.html"
    write(path)
    seen = used(path.read_text(), tmp_path, OF_A_SHEET)
    assert seen["errors"] == []
    assert len(seen["cards"]) == cards and seen["titles"] == titles
    if tip is not None:
        assert seen["whole"] != seen["zoomed"] and tip in seen["tip"]
    else:
        assert "<svg" in seen["picture"]
    if "sorted" in seen:
        assert seen["sorted"] and re.fullmatch(r"\d+( of \d+)? rows", seen["filtered"])
    assert len(set(seen["theme"])) == 2


def test_the_page_is_what_its_sources_build(tmp_path: Path) -> None:
    frontend = ROOT / "frontend"
    node = shutil.which("node")
    if node is None or not (frontend / "node_modules").exists():
        pytest.skip("the tools of the page are not installed: npm ci --prefix frontend")
    subprocess.run([node, "build.mjs", str(tmp_path / "report.html")], cwd=frontend, check=True, capture_output=True)
    committed = ROOT / "src" / "meshwright" / "chart" / "report.html"
    assert (tmp_path / "report.html").read_text() == committed.read_text(), "make frontend"
