"""Files are written whole or not at all, whatever happens meanwhile, and by one function."""

from __future__ import annotations

import ast
import errno
import os
import stat
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import meshwright
from meshwright.core import files
from meshwright.core.files import write_whole
from meshwright.errors import MeshwrightError

SOURCE = Path(meshwright.__file__).parent


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_has_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        for mask, wanted in ((0o022, 0o644), (0o077, 0o600), (0o002, 0o664), (0o000, 0o666)):
            os.umask(mask)
            path = tmp_path / f"{mask:o}"
            write_whole(path, "text")
            assert mode(path) == wanted
    finally:
        os.umask(before)


@pytest.mark.parametrize("given", [0o600, 0o644, 0o755, 0o666, 0o640])
def test_a_file_that_is_replaced_keeps_its_mode(given: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(given)
    write_whole(path, "new")
    assert (path.read_text(), mode(path)) == ("new", given)


def test_a_link_is_followed_and_stays_one(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder / "file")
    for text in ("first", "second"):
        write_whole(tmp_path / "link", text)
        assert (folder / "file").read_text() == text
        assert (tmp_path / "link").is_symlink()
    assert os.listdir(folder) == ["file"]


def test_a_name_as_long_as_a_name_can_be_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    write_whole(path, "text")
    assert os.listdir(tmp_path) == [path.name]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(path.read_text()))
    reader.start()
    write_whole(path, "text")
    reader.join(10)
    assert found == ["text"]


def refused(path: Any) -> str:
    with pytest.raises(MeshwrightError) as error:
        write_whole(path, "new")
    return "\n".join(line for line in str(error.value).split("\n") if not line.startswith("  at:"))


def test_what_cannot_be_written_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fix = "  fix:  name a file in a folder that exists"
    assert refused("") == f"A file without a name cannot be written.\n  why:  No such file or directory\n{fix}"
    assert refused(tmp_path) == f"{tmp_path} cannot be written.\n  why:  Is a directory\n{fix}"
    gone = tmp_path / "no" / "folder"
    assert refused(gone) == f"{gone} cannot be written.\n  why:  No such file or directory\n{fix}"
    assert refused("a\0b") == f"a\0b cannot be written.\n  why:  its name has a null in it\n{fix}"
    protected = tmp_path / "protected"
    protected.write_text("old")
    monkeypatch.setattr(os, "access", lambda path, how: False)  # as it is for everybody but root
    assert refused(protected) == f"{protected} cannot be written.\n  why:  Permission denied\n{fix}"
    assert protected.read_text() == "old"


def test_the_file_is_on_the_disk_before_its_name_is_and_its_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, steps = tmp_path / "file", []

    def fsync(handle: int) -> None:
        kind = os.fstat(handle).st_mode
        steps.append(("folder",) if stat.S_ISDIR(kind) else ("file", os.fstat(handle).st_size))

    def replace(source: str, target: str) -> None:
        steps.append(("rename",))
        real(source, target)

    real = os.replace
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    write_whole(path, "text")
    assert steps == [("file", 4), ("rename",), ("folder",)]


@pytest.mark.parametrize("name", ["open", "chmod", "fsync", "replace"])
def test_a_step_that_fails_leaves_the_old_file_alone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def full(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, name, full)
        assert "  why:  No space left on device\n" in refused(path)
    assert (os.listdir(tmp_path), path.read_text()) == (["file"], "old")


def interrupted(step: int, path: Path) -> bool:
    """Write a file with an interrupt at the n-th bytecode of the module; whether it came."""
    left = step

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != files.__file__:
            return None
        frame.f_trace_opcodes = True
        if event in ("line", "return", "opcode"):
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        write_whole(path, "new")
        return False
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)


def test_an_interrupt_at_any_bytecode_leaves_the_old_file_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # which takes most of the time
    with ThreadPoolExecutor(1) as alone:  # a trace that raises leaves marks on the thread it is in
        alone.submit(interrupt_everywhere, tmp_path).result()


def interrupt_everywhere(folder: Path) -> None:
    old, fresh = folder / "old", folder / "fresh"
    seen = []
    for step in range(10_000):
        old.write_text("old")
        fresh.unlink(missing_ok=True)
        came = [interrupted(step, path) for path in (old, fresh)]
        seen.append(old.read_text())
        assert {path.name for path in folder.iterdir()} in ({"old", "fresh"}, {"old"}), step
        assert not fresh.exists() or fresh.read_text() == "new"
        if not any(came):
            break
    assert seen == sorted(seen, reverse=True)
    assert seen.count("old") > 30 < seen.count("new")  # how many steps there are depends on the Python


# The modules that open files to write, and why they may: the others call `write_whole` or `write_new`.
OPEN_THEMSELVES = {
    "core/files.py",
    "search/estimates.py",  # adds lines, each of which has a checksum
}
OPENING = ("open", "fdopen")
WRITING = ("write_text", "write_bytes", "mkstemp", "NamedTemporaryFile", "savez", "tofile")


def writes(text: str) -> list[int]:
    """The lines that open a file to write it."""
    found: list[int] = []
    if not any(f"{name}(" in text for name in (*OPENING, *WRITING)):
        return found
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        given = [a.value for a in (*node.args, *(k.value for k in node.keywords)) if isinstance(a, ast.Constant)]
        mode = [x for x in given if isinstance(x, str) and 0 < len(x) <= 3 and set(x) <= set("rwxabt+")]
        if name in WRITING or (name in OPENING and any(set(x) & set("wxa+") for x in mode)):
            found.append(node.lineno)
    return found


def test_every_file_is_written_by_the_functions_that_write_whole_ones() -> None:
    opening = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if writes(path.read_text())}
    assert opening == OPEN_THEMSELVES
