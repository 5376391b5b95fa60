"""Machines and sizes as a command is told them."""

from __future__ import annotations

import re

from meshwright.core.sharding_text import pointing, read_integer
from meshwright.errors import TextError
from meshwright.hardware.chips import Chip, get
from meshwright.hardware.topology import Topology


def read_machine(text: str) -> Chip | Topology:
    """A chip, by its name or a file that ``meshwright calibrate`` wrote, or chips in a shape.

    >>> read_machine("tpu v5e"), read_machine("tpu v5e 4x8")
    (Chip('tpu v5e'), Topology('tpu v5e', 4x8))
    """
    match = re.fullmatch(r"(.*\S)\s+([0-9]+(?:x[0-9]+)*)", text.strip(), re.ASCII)
    return Topology(get(match[1]), match[2]) if match else get(text)


def read_sizes(text: str) -> dict[str, int]:
    """The sizes of indices.

    >>> read_sizes("I=1024, J=4096")
    {'I': 1024, 'J': 4096}
    """
    out: dict[str, int] = {}
    at = 0
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\w+)\s*=\s*([0-9]+)\s*", part, re.ASCII)
        value = read_integer(match[2]) if match else None
        if match is None or value is None or match[1] in out:
            why = "an index has a name and a size" if match is None else "the integer does not fit into 64 bits"
            raise TextError(
                f"{part.strip()!r} is not the size of an index.",
                where=pointing(text, at),
                why=f"{match[1]} has a size already" if match is not None and match[1] in out else why,
                fix="I=1024,J=4096",
            )
        out[match[1]] = value
        at += len(part) + 1
    return out
