"""What users read is in words that they know: unreduced, partial sum, sharded, counterpart."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import meshwright

PACKAGE = Path(meshwright.__file__).parent
ROOT = PACKAGE.parent.parent
PRIVATE = re.compile(r"\b(owed|owes?|owing|settled?|settles|twins?|debts?|laid out as)\b")
PAGES = [
    ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")), *sorted((PACKAGE / "tour" / "topics").glob("*.md")),
]  # fmt: skip
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The texts that a module may show: all but its docstrings, with their lines."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    docstrings = {
        id(node.body[0].value)
        for node in nodes
        if isinstance(node, DOCUMENTED) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def test_errors_and_reports_have_no_private_words() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line} {text}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, text in texts(path)
        if PRIVATE.search(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", [page for page in PAGES if page.exists()], ids=lambda page: page.name)
def test_pages_have_no_private_words(page: Path) -> None:
    lines = enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
    found = [f"{number} {line}" for number, line in lines if PRIVATE.search(line)]
    assert not found, "\n".join(found)


IN_CODE = re.compile(r"(?<![a-z])(owed|owes?|owing|settled?|settles|twins?)(?![a-z])|class (Ways?|Places?)\b")


def test_code_and_docstrings_have_no_private_words() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{number} {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if IN_CODE.search(line)
    ]
    assert not found, "\n".join(found)
