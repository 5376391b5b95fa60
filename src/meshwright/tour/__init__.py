"""The tours: the main job in a minute (`decoder`), and topics, each a page whose code runs as it is shown."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

# Each topic is the page of its name in the folder topics/.
TOPICS = {
    "sharding": "meshes, blocks of matrices, and what a product has to send",
    "shard_map": "code for one device, types of it, and transposes that send no more than they must",
    "representation": "everything a sharding can say: open dims, parts of axes, priorities",
    "devices": "programs that say where every value is, transforms of them, searches",
    "kernels": "bytes moved by hand, mistakes found, a gather beside the product it is for",
}

_STOP = re.compile(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class TourStop:
    """One stop of a tour: what it is about, what is said and printed, and numbers for ``--json``."""

    title: str
    text: str
    facts: dict[str, Any] = field(default_factory=dict)


def topic(name: str) -> Iterator[TourStop]:
    """The stops of a topic, each run when it is asked for: what is said, the code, and what the code prints.

    >>> print(next(topic("representation")).text.splitlines()[-1])
    a device holds (4, 3) of (8, 12); in Python: P('x', P.dim('y', open=True), replicated={'z'})
    """
    path = Path(str(resources.files("meshwright.tour"))) / "topics" / f"{name}.md"
    page = path.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": f"tour of {name}"}
    for stop in _STOP.finditer(page):
        said = stop[2][: stop[2].index("```")].strip()
        codes, printed = [], io.StringIO()
        for block in _CODE.finditer(page, *stop.span(2)):
            above = "\n" * page.count("\n", 0, block.start(1))  # lines are those of the page
            with redirect_stdout(printed):
                exec(compile(above + block[1], str(path), "exec"), names)
            codes.append(block[1].rstrip())
        code, shown = "\n\n".join(codes), printed.getvalue().rstrip()
        indented = "\n".join(f"    {line}".rstrip() for line in code.splitlines())
        text = "\n\n".join(part for part in (said, indented, shown) if part)
        yield TourStop(stop[1].replace("`", ""), text, {"code": code, "printed": shown})
