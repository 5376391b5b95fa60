"""What changed in the communication of a program, in Python, on the command line, and in tests."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.cli import main
from meshwright.compile.diff import Amount, ChangedRow, CommsDiff
from meshwright.errors import CommunicationError
from meshwright.testing import assert_comms

MESH = mw.make_mesh((2, 4), ("data", "model"))
Printed = pytest.CaptureFixture[str]


def forward(params: Any, x: Any) -> Any:
    for n, layer in enumerate(params):
        with mw.named_scope(f"layer{n}"):
            hidden = mnp.tanh(x @ layer["up"])
            x = x + hidden @ layer["down"]
    return x


def compiled(down: Any, layers: int = 3, batch: int = 64, **options: Any) -> Any:
    def on(shape: tuple[int, ...], *spec: Any) -> Any:
        return mw.ShapeDtypeStruct(shape, "float32", sharding=mw.NamedSharding(MESH, mw.P(*spec)))

    params = [{"up": on((64, 64), None, "model"), "down": on((64, 64), *down)} for _ in range(layers)]
    return mw.jit(forward, **options).lower(params, on((batch, 64), "data")).compile()


def test_collectives_that_appear_go_and_grow() -> None:
    before, after = compiled(("model",)), compiled((None, "model"))
    diff = before.diff(after)
    assert diff
    was, now = ([one.kind for one in c.collectives] for c in (before, after))
    for kind in {*was, *now}:
        rows = [row for row in diff.rows if row.record["kind"] == kind]
        assert sum(row.after.times - row.before.times for row in rows) == now.count(kind) - was.count(kind)
        assert all(row.is_new for row in rows) or kind in was
        assert all(row.is_gone for row in rows) or kind in now
    assert {row.record["kind"] for row in diff.went} == set(was) - set(now)
    for side, c in ((diff.before, before), (diff.after, after)):
        found = c.simulate("tpu v5e")
        assert side["seconds"] == found.seconds
        assert side["peak_bytes_per_device"] == found.peak_bytes_per_device
        assert side["bytes_received_per_device"] == sum(
            one.bytes_received_per_device * one.times for one in c.collectives
        )
    text = str(diff)
    assert text.startswith("a step: ") and "\nwent:\n    all_reduce over model: 3 ×, " in text
    assert json.loads(json.dumps(diff.to_json())) == diff.to_json()


def test_collectives_of_several_layers_have_a_name_for_all() -> None:
    record = {"value": "params[3]['w'] f32[64]"}
    assert ChangedRow(record, Amount(), Amount(4, 256, 1e-6)).value == "params[*]['w'] f32[64]"
    assert ChangedRow(record, Amount(), Amount(1, 64, 1e-6)).value == "params[3]['w'] f32[64]"


def test_the_same_program_has_no_difference_and_larger_arrays_grow() -> None:
    one = compiled(("model",))
    same = one.diff(compiled(("model",)))
    assert not same and str(same).endswith("the same collectives") and ", as before\n" in str(same)
    (row,) = one.diff(compiled(("model",), batch=128)).changed
    assert (row.before.times, row.after.times, row.after.nbytes) == (3, 3, 2 * row.before.nbytes)
    (more,) = one.diff(compiled(("model",), layers=5)).changed
    assert (more.before.times, more.after.times) == (3, 5)


def recorded(n: int, kind: str = "all_gather", values: int = 1) -> dict[str, Any]:
    return {
        "kind": kind, "axes": ["x"], "bytes": 100, "seconds": 1e-6 * (n + 1), "times": 1, "line": f"model.py:{n}",
        "stack": [f"model.py:{n} in f{n}   f{n}()"], "scopes": [f"scope {'abcdefghijkl'[n]}"], "direction": "forward",
        "value": f"w{'abcdefghijkl'[n]} f32[5]", "why": "because", "values": values,
    }  # fmt: skip


def explained(*collectives: dict[str, Any]) -> dict[str, Any]:
    totals = {"seconds": 1.0, "exposed_seconds": 0.0, "peak_bytes_per_device": 1, "bytes_received_per_device": 1}
    return {"machine": "h100 4", **totals, "collectives": list(collectives)}


def test_of_many_changes_the_largest_are_shown() -> None:
    diff = CommsDiff(explained(), explained(*map(recorded, range(12))))
    lines = str(diff).splitlines()
    shown = [line for line in lines if line.startswith("    all_gather over x: ")]
    assert [line.rpartition(" ")[2] for line in shown] == [f"model.py:{n}" for n in range(11, 1, -1)]
    assert "    and 2 more: 2 ×, 200 B, 3 µs" in lines and lines[-1] == "    and 2 more"
    assert len([line for line in diff.text(12).splitlines() if line.startswith("    all_gather over x: ")]) == 12
    assert "more" not in diff.text(12) and len(diff.to_json()["appeared"]) == 12


def test_what_values_of_several_lines_were_combined_into_is_no_change_of_the_first_of_them() -> None:
    """One layer less in front: the combined gradients begin at another line, and are as they were."""
    kind = "all_reduce"
    diff = CommsDiff(explained(recorded(0), recorded(1, kind, 5)), explained(recorded(2, kind, 5), recorded(3)))
    assert [(row.record["kind"], row.is_new, row.is_gone) for row in diff.rows] == [
        ("all_gather", True, False), ("all_gather", False, True)
    ]  # fmt: skip
    assert {place for place, _, _ in diff.by("line")} == {"model.py:0", "model.py:3"}
    grown = CommsDiff(explained(recorded(1, kind, 5)), explained(recorded(2, kind, 5), recorded(4, kind, 2)))
    assert [place for place, _, _ in grown.by("line")] == [place for place, _, _ in grown.by("scope")] == ["(combined)"]


def test_lines_are_the_same_wherever_in_which_file_they_are(tmp_path: Path) -> None:
    """A comment above and another name of the file change nothing; what did change is said by its place now."""
    after = MODEL.replace("\n\ndef step", "\n\n# a comment\n\ndef step").replace("def before", "def first")
    names = {"old.py": MODEL, "new.py": after, "newer.py": after.replace('64), "model")', '64), None, "model")')}
    found = {}
    for file, text in names.items():
        names_of: dict[str, Any] = {}
        (tmp_path / file).write_text(text)
        exec(compile(text, str(tmp_path / file), "exec"), names_of)
        step, args = names_of["before" if file == "old.py" else "first"]()
        found[file] = mw.jit(step).lower(*args).compile()
    same = found["old.py"].diff(found["new.py"], "h100")
    assert not same
    assert same.by("line") == []
    other = found["old.py"].diff(found["newer.py"], "h100")
    number = 1 + after.splitlines().index("    return (x @ w).sum()")
    (row,) = other.by("line")
    assert row[0] == f"newer.py:{number}"
    assert row[1].times == len(found["old.py"].collectives)
    assert row[2].times == len(found["newer.py"].collectives)


def test_diff_takes_compiled_functions() -> None:
    with pytest.raises(mw.MeshwrightError) as error:
        compiled(("model",)).diff("model.py")
    assert (error.value.what, error.value.why, error.value.fix) == (
        "diff is given a str.",
        "what is sent is known of a function that is compiled for given arguments",
        "compiled.diff(mw.jit(f).lower(*args).compile())",
    )


MODEL = """
import meshwright as mw

mesh = mw.make_mesh((2, 4), ("data", "model"))


def on(shape, *spec):
    return mw.ShapeDtypeStruct(shape, "float32", sharding=mw.NamedSharding(mesh, mw.P(*spec)))


def step(x, w):
    return (x @ w).sum()


def before():
    return step, (on((64, 64), "data"), on((64, 64), "model"))


def after():
    return step, (on((64, 64), "data"), on((64, 64), None, "model"))
"""


def test_on_the_command_line_of_functions_and_of_what_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    assert main(["diff", "model.py:before", "model.py:after"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("a step: ")
    assert main(["explain", "model.py:before", "--json"]) == 0
    Path("saved.json").write_text(capsys.readouterr().out)
    assert main(["diff", "saved.json", "model.py:after"]) == 0
    assert capsys.readouterr().out == shown
    assert main(["diff", "saved.json", "model.py:after", "--json", "--exit-code"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "meshwright.diff/1" and found["appeared"] + found["went"] + found["changed"]
    assert main(["diff", "saved.json", "model.py:before", "--exit-code"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[", "it is no JSON: Expecting value: line 1 column 2 (char 1)"),
        ("{}", "it is no JSON of schema 'meshwright.explain/1'"),
        ('{"schema": "meshwright.explain/1"}', "it has no 'machine'"),
    ],
)
def test_what_is_no_explanation_is_refused(
    text: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("saved.json").write_text(text)
    assert main(["diff", "saved.json", "saved.json"]) == 2
    assert capsys.readouterr().err == (
        "saved.json does not say what a program sends.\n"
        f"  why:  {why}\n"
        "  fix:  meshwright explain model.py:example --json > saved.json\n"
    )


def test_a_snapshot_is_written_when_asked_and_then_holds(tmp_path: Path) -> None:
    file = tmp_path / "comms.json"
    with pytest.raises(mw.MeshwrightError) as error:
        assert_comms(compiled(("model",)), snapshot=file, name="forward")
    assert (error.value.what, error.value.why, error.value.fix) == (
        f"{file} says nothing of 'forward'.", "there is no such file", "MESHWRIGHT_UPDATE_COMMS=1 pytest"
    )  # fmt: skip
    assert_comms(compiled(("model",)), snapshot=file, name="forward", update=True)
    assert_comms(compiled(("model",)), snapshot=file, name="forward", all_reduce=3)
    with pytest.raises(CommunicationError) as changed:
        assert_comms(compiled(("model",), layers=4), snapshot=file, name="forward", all_reduce=3)
    assert changed.value.why.startswith(f"all_reduce 4, not 3; it sends something else than {file} says\na step: ")
    assert "\nchanged:\n    all_reduce over model: 3 ×, " in changed.value.why
    assert changed.value.fix == "change the shardings, or accept it: MESHWRIGHT_UPDATE_COMMS=1 pytest"
    assert_comms(compiled(("model",), layers=4), snapshot=file, name="other", update=True)
    assert list(json.loads(file.read_text())["programs"]) == ["forward", "other"]


@pytest.mark.parametrize(
    ("content", "what", "why"),
    [
        (b"{", "does not say what a program sends.",
         "it is no JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (b"\xff\xfe", "cannot be read.", "it is not text in UTF-8"),
        (None, "cannot be read.", "Is a directory"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("update", [False, True])
def test_a_snapshot_that_is_none_is_not_written_over(
    content: bytes | None, what: str, why: str, update: bool, tmp_path: Path
) -> None:
    file = tmp_path / "comms file.json"
    fix = f"rm '{file}' && MESHWRIGHT_UPDATE_COMMS=1 pytest"
    if content is None:
        file.mkdir()
        fix = 'assert_comms(compiled, snapshot="comms.json")'
    else:
        file.write_bytes(content)
    with pytest.raises(mw.MeshwrightError) as error:
        assert_comms(compiled(("model",)), snapshot=file, name="forward", update=update)
    assert (error.value.what, error.value.why, error.value.fix) == (f"{file} {what}", why, fix)
    assert content is None or file.read_bytes() == content


def test_snapshots_that_are_written_at_once_are_all_kept(tmp_path: Path) -> None:
    """As by the workers of pytest-xdist."""
    file, program, names = tmp_path / "comms.json", compiled(("model",)), [f"test_{n}" for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: assert_comms(program, snapshot=file, name=name, update=True), names))
    assert list(json.loads(file.read_text())["programs"]) == names


@pytest.mark.slow
def test_pytest_writes_snapshots_by_an_option(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["meshwright.pytest_plugin"]\n')
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "test_model.py").write_text(
        "import meshwright as mw, model\n"
        "def test_step():\n"
        "    f, args = model.before()\n"
        "    mw.testing.assert_comms(mw.jit(f).lower(*args).compile(), snapshot='comms.json')\n"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
            cwd=tmp_path, capture_output=True, text=True,
        )
        for options in (["--update-comms"], [])
    ]  # fmt: skip
    assert [run.returncode for run in runs] == [0, 0], [run.stdout for run in runs]
    assert list(json.loads((tmp_path / "comms.json").read_text())["programs"]) == ["test_model.py::test_step"]


def test_parts_of_an_axis_that_are_all_of_it_are_the_axis() -> None:
    (one,) = compiled(("model",)).collectives[:1]
    in_parts = replace(one, axes=("model:(1)2", "model:(2)2"))
    assert one.whole_axes == in_parts.whole_axes == ("model",)
    assert replace(one, axes=("model:(2)2", "data")).whole_axes == ("model:(2)2", "data")
    assert in_parts.seconds("h100") > 0
