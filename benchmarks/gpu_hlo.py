"""What a program that XLA has optimized for a GPU does: its kernels, and how many bytes each reads and writes.

>>> text = '''
... ENTRY %main (x: f32[4]) -> f32[4] {
...   %x = f32[4]{0} parameter(0)
...   ROOT %copy.1 = f32[4]{0} copy(%x)
... }
... '''
>>> [(part.name, part.runs, [(k.name, k.read, k.written) for k in part.kernels]) for part in parts(text)]
[('main', 1, [('copy.1', 16, 16)])]
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}
FREE = {"parameter", "tuple", "get-tuple-element", "constant", "bitcast", "while", "iota", "async-done", "fusion-done"}
QUIET = {"parameter", "constant", "bitcast", "broadcast", "tuple", "get-tuple-element"}


class Instruction(NamedTuple):
    """One line of HLO: ``%name = type op(operands), attributes``."""

    name: str
    type: str
    op: str
    operands: tuple[str, ...]
    line: str

    def called(self) -> str | None:
        found = re.search(r"calls=%?([\w.\-]+)", self.line)
        return found and found[1]


class Kernel(NamedTuple):
    """What runs at once: bytes that it must read and write, and the ops inside of it."""

    name: str
    op: str
    read: int
    written: int
    what: str


class Part(NamedTuple):
    """The whole program, or the body of a loop."""

    name: str
    runs: int
    kernels: tuple[Kernel, ...]

    @property
    def moved(self) -> int:
        return sum(kernel.read + kernel.written for kernel in self.kernels)


def bytes_of(text: str) -> int:
    """Of all arrays in a type; the room that a matmul of cuBLAS works in is none."""
    total = 0
    for dtype, dims in re.findall(r"\b([a-z]+\d*)\[([\d,]*)\]", text):
        size = BYTES.get(dtype, 0) * (dtype != "s8")
        for dim in filter(None, dims.split(",")):
            size *= int(dim)
        total += size
    return total


def instructions(body: str) -> Iterator[Instruction]:
    for line in body.splitlines():
        found = re.match(r"\s*(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$", line)
        if found:
            operands = tuple(re.findall(r"%([\w.\-]+)", found[4].split("), ")[0]))
            yield Instruction(found[1], found[2], found[3], operands, line)


def parts(text: str) -> list[Part]:
    """The program and the bodies of its loops."""
    bodies = {
        one[2]: (bool(one[1]), list(instructions(one[3])))
        for one in re.finditer(r"^(ENTRY )?%?([\w.\-]+) \([^\n]*\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    }
    runs = {}
    for line in text.splitlines():
        if (body := re.search(r"\bbody=%?([\w.\-]+)", line)) is not None:
            count = re.search(r'known_trip_count":\{"n":"(\d+)"', line)
            runs[body[1]] = int(count[1]) if count else 1
    return [
        Part(name, runs.get(name, 1), tuple(_kernels(body, {k: v for k, (_, v) in bodies.items()})))
        for name, (entry, body) in bodies.items()
        if entry or name in runs
    ]


def _kernels(body: list[Instruction], bodies: dict[str, list[Instruction]]) -> Iterator[Kernel]:
    types = {one.name: one.type for one in body}
    for one in body:
        if one.op in FREE:
            continue
        inside = bodies.get(one.called() or "", [])
        inner = {each.name: each for each in inside}
        entering = [each.name for each in sorted((e for e in inside if e.op == "parameter"), key=_number)]
        read = 0
        for n, operand in enumerate(one.operands):
            uses = [each for each in inside if n < len(entering) and entering[n] in each.operands]
            if uses and all(each.op in ("dynamic-slice", "dynamic-update-slice") for each in uses):
                read += sum(bytes_of(each.type) for each in uses if each.op == "dynamic-slice")
            else:
                read += bytes_of(types.get(operand, ""))
        updates = [each for each in inside if each.op == "dynamic-update-slice"]
        written = bytes_of(one.type) if not one.op.endswith("-start") else 0
        if updates:  # in place
            whole = sum(bytes_of(each.type) for each in updates)
            written = max(0, written - whole) + sum(bytes_of(inner[each.operands[1]].type) for each in updates)
        elif one.op.endswith("-start"):
            written = read
        counts = Counter(each.op for each in inside if each.op not in QUIET)
        what = " ".join(f"{op}{count if count > 1 else ''}" for op, count in counts.most_common(8))
        if one.op == "custom-call":
            target = re.search(r'custom_call_target="([^"]*)"', one.line)
            shapes = [re.sub(r"\{.*", "", types.get(x, "")) for x in one.operands]
            what = f"{target[1] if target else ''} {' '.join(shapes)}"
        shape = re.sub(r"\{[^}]*\}|/\*[^*]*\*/", "", one.type)
        yield Kernel(one.name, one.op, read, written, f"{shape[:70]} {what[:90]}")


def _number(one: Instruction) -> int:
    return int(one.line.split("parameter(")[1].split(")")[0])


def summary(text: str, most: int = 25) -> str:
    """The parts of a program, and the kernels that move most bytes in each."""
    lines = []
    for part in parts(text):
        head = f"{part.name}: {part.runs} x {len(part.kernels)} kernels, {part.moved / 1e6:,.0f} MB a run"
        lines.append(f"{head}, {part.runs * part.moved / 1e9:.1f} GB in all")
        for one in sorted(part.kernels, key=lambda one: -(one.read + one.written))[:most]:
            lines.append(f"  {one.read / 1e6:8.1f} {one.written / 1e6:8.1f}  {one.name[:36]:36} {one.what}")
    return "\n".join(lines)
