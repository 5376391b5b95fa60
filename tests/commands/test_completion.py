"""Shells complete commands, options and values: asked in the shells that are there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from meshwright.cli import main
from meshwright.commands.parsers import COMMANDS

Printed = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("completion")


def script(shell: str, folder: Path, capsys: Printed) -> Path:
    assert main(["completion", shell]) == 0
    path = folder / f"meshwright.{shell}"
    path.write_text(capsys.readouterr().out)
    return path


def needs(shell: str) -> str:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"there is no {shell} here")
    return found


def completed_by_bash(path: Path, *words: str) -> set[str]:
    line = " ".join(f"'{word}'" for word in words)
    asked = (
        f"compopt() {{ :; }}; source {path}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; "
        '_meshwright; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    ran = subprocess.run([needs("bash"), "-c", asked], capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    return set(ran.stdout.split())


def test_bash_completes(scripts: Path, capsys: Printed) -> None:
    path = script("bash", scripts, capsys)
    assert completed_by_bash(path, "meshwright", "") == {*COMMANDS, "--help", "--version"}
    assert completed_by_bash(path, "meshwright", "re") == {"report", "reshard"}
    assert completed_by_bash(path, "meshwright", "explain", "--a") == {"--axis"}
    assert completed_by_bash(path, "meshwright", "simulate", "x", "--mode", "") >= {"exact", "asymptotic"}
    assert completed_by_bash(path, "meshwright", "tour", "sh") == {"sharding", "shard_map"}
    assert completed_by_bash(path, "meshwright", "completion", "") == {"bash", "zsh", "fish"}
    assert completed_by_bash(path, "meshwright", "report", "model.py:f", "-o", "") == set()  # a file


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_read_their_script(shell: str, scripts: Path, capsys: Printed) -> None:
    path = script(shell, scripts, capsys)
    text = path.read_text()
    assert all(name in text for name in COMMANDS) and "--axis" in text.replace("-l axis", "--axis")
    subprocess.run([needs(shell), "-n", str(path)], check=True)


def test_fish_completes(scripts: Path, capsys: Printed) -> None:
    path = script("fish", scripts, capsys)
    ran = subprocess.run(
        [needs("fish"), "-N", "-c", f"source {path}; complete -C 'meshwright re'"], capture_output=True, text=True
    )
    assert {line.split("\t")[0] for line in ran.stdout.splitlines()} >= {"report", "reshard"}
