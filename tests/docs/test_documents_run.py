"""Every code block of README and docs runs and prints the ``text`` block after it; every docstring example holds."""

import argparse
import contextlib
import doctest
import importlib
import io
import pathlib
import pkgutil
import re
import shlex

import pytest

import meshwright

ROOT = pathlib.Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
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


def pages():
    return [p.relative_to(ROOT / "docs").as_posix() for p in sorted((ROOT / "docs").rglob("*.md"))]


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "index.md").read_text()
    assert [page for page in pages() if f"]({page})" not in index and page != "index.md"] == []


LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", [*DOCUMENTS, ROOT / "CHANGELOG.md"], ids=lambda p: p.name)
def test_links_lead_to_files_and_headings_that_are_there(path):
    wrong = []
    for link in LINK.findall(FENCE.sub("", path.read_text())):
        if re.match(r"[a-z]+:", link):
            wrong += [link] * (not re.match(r"https://[\w.-]+(?:/[\w./#-]*)?$", link))
            continue
        name, _, heading = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.is_file() or (heading and heading not in headings(target)):
            wrong.append(link)
    assert wrong == []


def headings(path):
    """The names that headings of a page have in links, as GitHub and Sphinx make them."""
    found = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w\s-]", "", one.lower()).strip().replace(" ", "-") for one in found}


PATH = re.compile(r"`((?:[a-z_]+/)+[a-z_]*(?:\.[a-z]+)?)`")
FOLDERS = (ROOT, ROOT / "src", ROOT / "src" / "meshwright", ROOT / "docs", ROOT / "tests")


@pytest.mark.parametrize("path", [*DOCUMENTS, ROOT / "CHANGELOG.md"], ids=lambda p: p.name)
def test_files_that_are_named_are_there(path):
    named = {found[1] for found in PATH.finditer(path.read_text())}
    assert [
        name
        for name in sorted(named)
        if not any((folder / name).exists() or (folder / f"{name}.py").exists() for folder in FOLDERS)
    ] == []


COMMAND = re.compile(r"^(?:\$ |    )?(meshwright [a-z](?:\\\n|.)*)", re.MULTILINE)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_commands_have_the_options_that_are_shown(path):
    for found in COMMAND.finditer(path.read_text()):
        command, *arguments = shlex.split(found[1].replace("\\\n", " ").split(" |")[0], comments=True)[1:]
        parser = argparse.ArgumentParser(exit_on_error=False)
        importlib.import_module(f"meshwright.commands.{command}").describe(parser)
        assert parser.parse_known_args(arguments)[1] == [], found[1]


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
