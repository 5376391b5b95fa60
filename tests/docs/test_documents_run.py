"""Every code block of README and docs runs and prints the ``text`` block after it; every docstring example holds."""

import contextlib
import doctest
import importlib
import io
import pathlib
import pkgutil
import re

import pytest

import meshwright

ROOT = pathlib.Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MODULES = sorted(
    m.name for m in pkgutil.walk_packages(meshwright.__path__, "meshwright.") if not m.name.endswith("__main__")
)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_code_blocks_run_and_print_what_is_shown(path):
    blocks = [(m[1], m[2], path.read_text()[: m.start()].count("\n") + 2) for m in BLOCK.finditer(path.read_text())]
    names: dict[str, object] = {"__name__": "document"}
    for number, (language, code, line) in enumerate(blocks):
        if language != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * (line - 1) + code, str(path), "exec"), names)
        if number + 1 < len(blocks) and blocks[number + 1][0] == "text":
            assert printed.getvalue().strip() == blocks[number + 1][1].strip(), f"{path.name}:{line}"


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_hold(name):
    module = importlib.import_module(name)
    failures, _ = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failures == 0


@pytest.mark.parametrize("name", sorted(set(meshwright.__all__) - {"numpy", "lax", "nn", "random", "tree"}))
def test_every_public_name_has_a_docstring_with_an_example(name):
    thing = getattr(meshwright, name)
    text = type(thing).__doc__ if name == "config" else thing.__doc__
    assert text and ">>>" in text, f"mw.{name} needs a runnable example"
