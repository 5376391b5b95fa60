"""Which files an error opens to show a line: the user's own that code was traced from, and none that a text names."""

from __future__ import annotations

import linecache
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright.core.check import check
from meshwright.core.source import ReadSource, Source
from meshwright.core.text.parse import parse_program
from meshwright.errors import CheckError, MeshwrightError

WRONG = "program(a: f32[3]) {{\n  b: f32[4] = neg a  # {}\n  return b\n}}"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is looked at or opened while a test runs."""
    names: list[str] = []
    real_open, real_stat = os.open, os.stat

    def note(path: Any) -> None:
        if isinstance(path, str | os.PathLike):
            names.append(os.fspath(path))

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and watching:
            note(args[0])

    watching = [True]
    sys.addaudithook(audit)
    monkeypatch.setattr(os, "open", lambda path, *args, **options: (note(path), real_open(path, *args, **options))[1])
    monkeypatch.setattr(os, "stat", lambda path, *args, **options: (note(path), real_stat(path, *args, **options))[1])
    yield names
    watching.clear()


@pytest.mark.parametrize("name", ["/etc/passwd", "/dev/zero", "{}/fifo", "{}/code.py", "pyproject.toml", "os.py"])
def test_a_line_that_a_text_names_is_not_opened(name: str, tmp_path: Path, opened: list[str]) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "code.py").write_text("secret = 1\n")
    file = name.format(tmp_path)
    program = parse_program(WRONG.format(f"{file}:1"))
    assert program.eqns[0].source == (file, 1)
    opened.clear()
    with pytest.raises(CheckError) as error:
        check(program)
    assert f"        written at {os.path.basename(file)}:1\n" in str(error.value)
    assert [path for path in opened if os.path.basename(path) == os.path.basename(file)] == []


def test_a_line_that_a_text_names_stays_so_through_transformations(opened: list[str]) -> None:
    text = "program(a: f32[3]) {\n  b: f32[3] = exp a  # /etc/passwd:1\n  return b\n}"
    program = parse_program(text)

    def run(x: Any) -> Any:
        from meshwright.core.trace import run

        return run(program, [x])[0]

    x = mw.numpy.ones(3)
    traced = mw.make_program(run)(x)
    assert isinstance(traced.eqns[0].source, ReadSource)
    opened.clear()
    with pytest.raises(MeshwrightError) as error:
        mw.linear_transpose(run, x)(x)
    assert "  at:   passwd:1\n" in str(error.value)
    assert "/etc/passwd" not in opened


def test_the_users_own_line_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import meshwright.numpy as mnp\n\n\ndef f(x):\n    return mnp.exp(x)\n")
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    with pytest.raises(MeshwrightError) as error:
        mw.linear_transpose(names["f"], 1.0)(1.0)
    assert "mine.py:5   return mnp.exp(x)\n" in str(error.value)


def test_only_regular_files_of_some_size_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with open(tmp_path / "huge.py", "wb") as file:
        file.truncate(1 << 40)
    for name in ("/dev/zero", "/dev/urandom", str(tmp_path / "fifo"), str(tmp_path / "huge.py"), str(tmp_path), "a\0b"):
        assert Source(name, 1).show() == f"{os.path.basename(name)}:1"


def test_a_cell_that_is_no_file_is_shown() -> None:
    linecache.cache["<cell 3>"] = (8, None, ["y = x + 1\n"], "<cell 3>")
    try:
        assert Source("<cell 3>", 1).show() == "<cell 3>:1   y = x + 1"
    finally:
        del linecache.cache["<cell 3>"]


def test_a_comment_too_long_for_a_name_is_only_a_comment() -> None:
    assert parse_program(WRONG.format("x" * 300 + ":1")).eqns[0].source is None
