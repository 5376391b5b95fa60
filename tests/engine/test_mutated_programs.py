"""A program whose text was mutated is refused by an error of ours, or runs: on no input does it write, and it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def mutate(kind: str, count: int, seed: int) -> dict[str, Any]:
    """What became of so many mutations."""
    command = [sys.executable, "-m", "tests.engine.mutated_programs", kind, str(count), str(seed)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr[-2000:]
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])  # above it, what LAPACK says of infinite numbers
    shown = [f"{one['error']}\n{chr(10).join(one.get('where', []))}\n{one['text']}" for one in facts["failures"][:5]]
    assert not facts["failures"], f"{len(facts['failures'])} of {facts['count']} mutations:\n\n" + "\n\n".join(shown)
    assert facts["most_bytes"] < 2e9
    return facts


def test_a_mutated_program_is_refused_or_runs() -> None:
    found = mutate("random", 800, seed=1)["found"]
    assert min(found["not a program"], found["not well formed"], found["ran"]) > 100


def test_another_number_in_a_param_is_refused_or_runs() -> None:
    found = mutate("numbers", 800, seed=1)["found"]
    assert min(found["not well formed"], found["ran"]) > 100


@pytest.mark.slow
def test_50_000_mutated_programs_are_refused_or_run() -> None:
    print(mutate("random", 50_000, seed=2))


@pytest.mark.slow
def test_every_number_in_every_param_is_refused_or_runs() -> None:
    print(mutate("numbers", 10**9, seed=2))
