"""The bytes that the collectives of a compiled HLO module move."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from math import prod

ITEM = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "f64": 8}  # bytes
_KINDS = "all-gather|all-to-all|all-reduce|reduce-scatter|collective-permute"
_RESULT = re.compile(rf"= (.*?) ({_KINDS})\(")
_STARTED = re.compile(rf" ({_KINDS}|ragged-all-to-all|collective-broadcast)-start\(| ragged-all-to-all\(")
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")


def moved_bytes(text: str, devices: int) -> tuple[int, int]:
    """Bytes that all devices receive in a compiled module, and its number of collectives."""
    found = moved_by_kind(text, devices).values()
    return sum(nbytes for nbytes, _ in found), sum(count for _, count in found)


def moved_by_kind(text: str, devices: int) -> dict[str, tuple[int, int]]:
    """The same for each kind of collective that there is."""
    total, counts = defaultdict[str, float](float), Counter[str]()
    for line in text.splitlines():
        if _STARTED.search(line):
            raise ValueError(f"a collective in an unknown form: {line.strip()}")
        found = _RESULT.search(line)
        if found is None:
            continue
        size = sum(ITEM[kind] * prod(map(int, filter(None, s.split(",")))) for kind, s in _SHAPE.findall(found[1]))
        kind = found[2]
        counts[kind] += 1
        if kind == "collective-permute":
            pairs = re.findall(r"\{(\d+),(\d+)\}", line.split("source_target_pairs=")[1])
            total[kind] += size * sum(one != other for one, other in pairs)
            continue
        group = _group(line)
        share = {"all-gather": (group - 1) / group, "all-to-all": (group - 1) / group,
                 "all-reduce": 2 * (group - 1) / group, "reduce-scatter": group - 1}[kind]  # fmt: skip
        total[kind] += devices * size * share
    return {kind: (round(total[kind]), counts[kind]) for kind in counts}


def _group(line: str) -> int:
    """The size of the groups of a collective: ``[4,2]<=[8]``, ``{{0,1},{2,3}}`` or ``mesh['a'=2,'b'=4] {'b':(1)2}``."""
    text = line.split("replica_groups=")[1]
    if iota := re.match(r"\[(\d+),(\d+)\]", text):
        return int(iota[2])
    if listed := re.match(r"\{\{([\d,]+)\}", text):
        return len(listed[1].split(","))
    named = re.match(r"mesh\[(.*?)\][^{]*\{(.*?)\}", text)
    if named is None:
        raise ValueError(f"replica groups in an unknown form: {text}")
    sizes = dict(re.findall(r"'([^']+)'=(\d+)", named[1]))
    used = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", named[2])
    return prod(int(part or sizes[axis]) for axis, part in used)
