"""What a notebook shows of arrays, shardings, meshes, programs and compiled functions: small HTML that loads nothing.

Text of users (names of axes, lines of files) is escaped. Colours are those of the notebook's theme, light or dark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from meshwright.chart.amounts import size_text
from meshwright.compile.compiled import Compiled
from meshwright.core.program import Program
from meshwright.core.trace import Array
from meshwright.report.visualize import picture
from meshwright.sharding.mesh import BaseMesh
from meshwright.sharding.named import NamedSharding, TensorSharding
from meshwright.sharding.single_device import SingleDeviceSharding

MOST_LINES = 60  # of a program
MOST_ROWS = 10  # of a table of collectives
_FONT = "font:13px/1.4 ui-monospace,monospace"
_FAINT = "opacity:.65"


def program_html(program: Program) -> str:
    """The text of a program: ops in bold, the user's lines faint, the first lines of a long one."""
    lines = program.to_text().splitlines()
    shown = [_program_line(line) for line in lines[:MOST_LINES]]
    if len(lines) > MOST_LINES:
        more = f"… {len(lines) - MOST_LINES:,} more lines; print(program) has all of them"
        shown.append(f'<span style="{_FAINT}">{more}</span>')
    return f'<pre class="meshwright-program" style="{_FONT};overflow-x:auto">{chr(10).join(shown)}</pre>'


def _program_line(line: str) -> str:
    code, mark, comment = line.partition("  # ")
    code = re.sub(r"( = )([\w.]+)", r"\1<b>\2</b>", escape(code, quote=False), count=1)
    return code + (f'<span style="{_FAINT}">{escape(mark + comment, quote=False)}</span>' if mark else "")


def mesh_html(mesh: BaseMesh) -> str:
    """The devices of a mesh, by their places along its axes."""
    return picture(mesh).html()


def sharding_html(sharding: NamedSharding | TensorSharding) -> str:
    """What a sharding says, and the mesh it is on."""
    spec = sharding.spec if isinstance(sharding, NamedSharding) else sharding
    return _facts({"sharding": spec, "mesh": _sizes(sharding.mesh)}.items())


def array_html(x: Array) -> str:
    """The shape, dtype and sharding of an array, and on a mesh which devices hold which part of it."""
    sharding: Any = x.sharding
    rows: dict[str, Any] = {"shape": x.shape, "dtype": x.dtype.name}
    if isinstance(sharding, SingleDeviceSharding):
        return _facts({**rows, "device": sharding.device}.items())
    rows |= {"sharding": sharding.spec, "mesh": _sizes(sharding.mesh), "shard": sharding.shard_shape(x.shape)}
    drawn = picture(x, scale=0.5).html() if x.shape and x.size else ""
    return _facts(rows.items()) + drawn


def compiled_html(compiled: Compiled) -> str:
    """A summary: the mesh, what it holds at the peak, what it sends, and the collectives that receive most."""
    program, sent = compiled.program, compiled.collectives
    rows: dict[str, Any] = {} if compiled.mesh is None else {"mesh": _sizes(compiled.mesh)}
    rows |= {"equations of one device": f"{len(program.eqns):,}", "memory": size_text(compiled.memory().peak_bytes)}
    received = sum(one.times * one.bytes_received_per_device for one in sent)
    count = sum(one.times for one in sent)
    rows["collectives"] = f"{count:,}, {size_text(received)} received per device" if sent else "none"
    largest = sorted(sent, key=lambda one: -one.times * one.bytes_received_per_device)[:MOST_ROWS]
    table = [
        (
            one.kind,
            ", ".join(one.whole_axes),
            size_text(one.bytes_received_per_device),
            one.times,
            one.source or "",
            one.why,
        )
        for one in largest
    ]
    heads = ("kind", "axes", "bytes", "times", "line", "why")
    more = f"<div>… and {len(sent) - MOST_ROWS:,} more: compiled.explain()</div>" if len(sent) > MOST_ROWS else ""
    return _facts(rows.items()) + (_table(heads, table) + more if table else "")


def _sizes(mesh: BaseMesh) -> str:
    return ", ".join(f"{name}: {size}" for name, size in mesh.shape.items())


def _facts(rows: Iterable[tuple[str, Any]]) -> str:
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in rows)
    return f"<table>{cells}</table>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    head = "".join(f'<th scope="col">{escape(one)}</th>' for one in heads)
    body = "".join(
        "<tr>" + "".join(f'<td style="text-align:left">{escape(str(cell))}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"
