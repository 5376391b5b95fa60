"""The site: every page is in its contents, the reference has every public name, and Sphinx builds it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import meshwright as mw

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "book"
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "docs" / "site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(str(folder))
    return folder


def test_every_page_is_in_the_contents(book: Path) -> None:
    contents = (book / "index.md").read_text().partition("```{toctree}")[2]
    pages = {path.relative_to(book).as_posix() for path in book.rglob("*.md")} - {"index.md"}
    assert pages == set(re.findall(r"^(\S+\.md)$", contents, re.MULTILINE)) and len(pages) > 60


def test_links_out_of_the_folder_lead_into_the_book(book: Path) -> None:
    assert "](contributing.md)" in (book / "partition.md").read_text()
    assert "](examples/layer.ipynb)" in (book / "report.md").read_text()
    assert (book / "examples" / "layer.ipynb").is_file()


def test_the_reference_has_every_public_function_and_class(book: Path) -> None:
    page = (book / "reference" / "meshwright.md").read_text()
    named = set(re.findall(r"^## (\w+)$", page, re.MULTILINE))
    modules = {name for name in mw.__all__ if str(type(getattr(mw, name))) == "<class 'module'>"}
    assert set(mw.__all__) - modules - named == {"simulate"}  # a module that can be called, with a page of its own
    assert "mw.make_mesh(axis_shapes, axis_names" in page and ">>> " in page
    assert "### Compiled.explain" in (book / "reference" / "returned.md").read_text()


@pytest.mark.slow
def test_sphinx_builds_it_without_a_warning(book: Path, tmp_path: Path) -> None:
    pytest.importorskip("furo", reason="the extra docs is not installed")
    build = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--conf-dir", str(ROOT / "docs")]
    subprocess.run([*build, str(book), str(tmp_path)], check=True)
    assert "Partial sums" in (tmp_path / "book" / "03_partial_sums.html").read_text()
