"""Machines and sizes as a command is told them."""

from __future__ import annotations

import argparse
import re

from meshwright.commands.fixes import as_typed
from meshwright.errors import TextError
from meshwright.hardware.chips import Chip
from meshwright.hardware.machines import named_machine
from meshwright.hardware.roofline import MODES
from meshwright.hardware.topology import Topology
from meshwright.sharding.mesh_check import short
from meshwright.sharding.text_sdy import LARGEST, pointing, read_integer


def describe_machine(parser: argparse.ArgumentParser) -> None:
    """The options that name a machine and how its times are reckoned."""
    kinds = "a chip ('tpu v5e', 'h100', a calibrated chip's file) or chips in a shape ('tpu v5p 4x4x4')"
    parser.add_argument(
        "--hardware",
        "--chip",
        dest="hardware",
        default="tpu v5e",
        metavar="MACHINE",
        help=f"{kinds} (default: tpu v5e)",
    )
    parser.add_argument("--mode", default="exact", choices=MODES, help="how times are reckoned (default: exact)")


def read_machine(text: str, option: str = "--hardware") -> Chip | Topology:
    """A chip, by its name or a file that ``meshwright calibrate`` wrote, or chips in a shape.

    ``option`` is where the text was given.

    >>> read_machine("tpu v5e"), read_machine("tpu v5e 4x8")
    (Chip('tpu v5e'), Topology('tpu v5e', 4x8))
    """
    with as_typed(option):
        return named_machine(text)


def check_number(args: argparse.Namespace, name: str, example: int = 8, least: int = 1) -> None:
    """Refuse the number that an option is given if it is too small, or does not fit into 64 bits."""
    value = getattr(args, name)
    if value is not None and not least <= value <= LARGEST:
        option = "--" + name.replace("_", "-")
        why = f"it is a number from {least}" if value < least else "it does not fit into 64 bits"
        raise TextError(f"{option} is {short(value)}.", why=why, fix=f"{option} {example}")


def read_sizes(text: str, what: str = "an index", fix: str = "I=1024,J=4096") -> dict[str, int]:
    """Names with sizes, of ``what``.

    >>> read_sizes("I=1024, J=4096")
    {'I': 1024, 'J': 4096}
    """
    out: dict[str, int] = {}
    at = 0
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\w+)\s*=\s*([0-9]+)\s*", part, re.ASCII)
        value = read_integer(match[2]) if match else None
        if match is None or value is None or match[1] in out:
            why = f"{what} has a name and a size" if match is None else "the integer does not fit into 64 bits"
            raise TextError(
                f"{part.strip()!r} is not the size of {what}.",
                where=pointing(text, at),
                why=f"{match[1]} has a size already" if match is not None and match[1] in out else why,
                fix=fix,
            )
        out[match[1]] = value
        at += len(part) + 1
    return out
