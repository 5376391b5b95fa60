"""The pages of the site in one folder: these, the tours, the first hour, and the reference from docstrings.

python docs/site.py build/book && sphinx-build -c docs build/book build/site
"""

import importlib
import inspect
import re
import shutil
import sys
from functools import cached_property
from pathlib import Path

from meshwright.compile.compiled import Compiled, Lowered
from meshwright.simulate.simulation import Simulation

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "meshwright"
REFERENCE = (
    "numpy",
    "lax",
    "nn",
    "random",
    "tree",
    "sharding",
    "hardware",
    "simulate",
    "dist",
    "pallas",
    "pallas.tpu",
    "testing",
    "debug",
)


def main(folder):
    """Write all pages into the folder."""
    book = Path(folder)
    shutil.rmtree(book, ignore_errors=True)
    shutil.copytree(ROOT / "docs", book, ignore=shutil.ignore_patterns("*.py", "__pycache__", "static"))
    (book / "contributing.md").write_text((ROOT / "CONTRIBUTING.md").read_text().replace("](docs/", "]("))
    for path in book.rglob("*.md"):
        path.write_text(inside(path.read_text()))
    for name in ("tours", "reference", "examples"):
        (book / name).mkdir()
    for path in (ROOT / "examples").glob("*.ipynb"):
        shutil.copy(path, book / "examples")
    for path in sorted((PACKAGE / "tour" / "topics").glob("*.md")):
        shutil.copy(path, book / "tours")
    for name in ("meshwright", *(f"meshwright.{name}" for name in REFERENCE)):
        (book / "reference" / f"{name}.md").write_text(reference(name))
    (book / "reference" / "returned.md").write_text(what_is_returned())
    index = book / "index.md"
    index.write_text(f"{index.read_text()}\n{navigation(index.read_text(), book)}")


def inside(text):
    """A page whose links out of its folder lead to where things are in the book."""
    text = text.replace("](../CONTRIBUTING.md)", "](contributing.md)")
    return re.sub(r"\]\(\.\./examples/([\w.]+)\)", r"](examples/\1)", text)


def navigation(index, book):
    """The contents: a part for each heading of the index, then the tours and the reference."""
    parts = {}
    for heading, text in re.findall(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", index, re.MULTILINE | re.DOTALL):
        parts[heading] = re.findall(r"\]\(([\w/]+\.md)\)", text)
    for heading, folder in (("Short tours", "tours"), ("Reference", "reference")):
        parts[heading] = [f"{folder}/{path.name}" for path in sorted((book / folder).iterdir())]
    return "\n".join(
        f"```{{toctree}}\n:hidden:\n:caption: {heading}\n\n" + "\n".join(pages) + "\n```\n"
        for heading, pages in parts.items()
    )


def reference(name):
    """A page of the public names of a module that are written in this package and have a docstring."""
    module = importlib.import_module(name)
    called = name.replace("meshwright", "mw", 1)
    lines = [f"# {called}", "", (module.__doc__ or "").strip().split("\n\n")[0], ""]
    for public in sorted(getattr(module, "__all__", None) or vars(module), key=str.lower):
        thing = getattr(module, public, None)
        home = str(getattr(thing, "__module__", ""))
        if not public.startswith("_") and not inspect.ismodule(thing) and home.startswith("meshwright"):
            lines += entry(thing, public, f"{called}.{public}", 2)
            if inspect.isclass(thing) and name == "meshwright.dist":
                lines += members(thing)
    return "\n".join(lines)


def what_is_returned():
    """A page of what compiling and simulating return."""
    lines = [
        "# What is returned",
        "",
        "By `f.lower(*args)`, `.compile()` and `.simulate(machine)`.",
        "",
    ]
    for thing in (Lowered, Compiled, Simulation):
        lines += [*entry(thing, thing.__name__, thing.__name__, 2, signature=False), *members(thing)]
    return "\n".join(lines)


def members(kind):
    """The public methods and properties of a class."""
    lines = []
    for name, member in sorted(vars(kind).items()):
        if not name.startswith("_") and (callable(member) or isinstance(member, property | cached_property)):
            lines += entry(member, f"{kind.__name__}.{name}", f"{kind.__name__}.{name}", 3)
    return lines


def entry(thing, title, called, level, signature=True):
    """A heading, how it is called, and what its docstring says; nothing if it has none."""
    if not thing.__doc__:
        return []
    try:
        of = inspect.signature(thing)
        plain = [one.replace(annotation=one.empty) for one in of.parameters.values() if one.name != "self"]
        shown = str(of.replace(parameters=plain, return_annotation=of.empty))
    except (TypeError, ValueError):
        shown = ""
    shown = re.sub(r" at 0x[0-9a-f]+", "", shown)
    fence = ["```python", f"{called}{shown}", "```", ""] if signature else []
    return [f"{'#' * level} {title}", "", *fence, *docstring(thing), ""]


def docstring(thing):
    """A docstring as Markdown: its examples in fences."""
    lines, code = [], False
    for line in inspect.cleandoc(thing.__doc__).splitlines():
        starts = line.startswith(">>>") and not code
        ends = code and not line.strip()
        if starts or ends:
            lines.append("```pycon" if starts else "```")
            code = starts
        lines.append(line if code else line.replace("``", "`"))
    return [*lines, "```"] if code else lines


if __name__ == "__main__":
    main(sys.argv[1])
