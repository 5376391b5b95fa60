"""Measurements of a machine as they lie in a file, and what they must have for numbers to be fitted to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from meshwright.core.files import read_text
from meshwright.core.source import here
from meshwright.errors import HardwareError
from meshwright.hardware.chips import is_number
from meshwright.hardware.kernels import CONVOLUTIONS, MOVING

MEASURE = "meshwright calibrate --keep raw.json"

_SIZES = {
    **dict.fromkeys(MOVING, ("read", "written", "count")),
    **dict.fromkeys(CONVOLUTIONS, ("images", "side", "kernel", "in", "out", "count")),
    "matmul": ("m", "k", "n", "batch", "count"),
    "attention": ("flops", "exponentials", "bytes", "count"),
}
_MAY_BE_NOTHING = ("read", "written", "exponentials")


def read_measurements(path: str | Path) -> dict[str, Any]:
    """The raw measurements that ``meshwright calibrate --keep`` wrote; ``-`` is standard input."""
    name = "standard input" if path == "-" else str(path)
    try:
        raw = json.loads(read_text(path))
    except OSError as error:
        raise HardwareError(
            f"{name} cannot be read.", where=here(), why=error.strerror or str(error), fix=MEASURE
        ) from error
    except (ValueError, RecursionError) as error:
        raise HardwareError(f"{name} is not JSON.", where=here(), why=str(error), fix=MEASURE) from error
    check_measurements(raw, name)
    return raw  # type: ignore[no-any-return]


def check_measurements(raw: object, name: str) -> None:
    """That these are measurements: what a fit needs is there and of the right type."""
    why = _wrong(raw)
    if why:
        raise HardwareError(f"{name} holds no measurements.", where=here(), why=why, fix=MEASURE)


def _wrong(raw: object) -> str:
    """What is wrong with measurements; nothing if nothing is."""
    if not isinstance(raw, dict) or not {"format", "framework", "machine", "measurements"} <= raw.keys():
        return "it has no format, framework, machine and measurements"
    if raw["format"] != 1:
        return f"its format is {raw['format']!r}, and 1 is read"
    if not isinstance(raw["machine"], dict) or not isinstance(raw["measurements"], list):
        return "its machine is not a dict or its measurements are not a list"
    if not is_number(raw["machine"].get("units") or 1, 1):
        return "the units of its machine are not a number from 1"
    if not _is_line(raw["framework"]) or not _is_line(raw["machine"].get("device", "")):
        return "its framework, or the device of its machine, is not one line of text"
    failed = raw.get("failed", [])
    if not isinstance(failed, list) or not all(
        isinstance(row, dict) and {"op", "dtype", "sizes", "why"} <= row.keys() and isinstance(row["why"], str)
        for row in failed
    ):
        return "what failed is not a list of dicts with op, dtype, sizes and why"
    found = (_wrong_row(number, row) for number, row in enumerate(raw["measurements"], 1))
    return next((why for why in found if why), "")


def _wrong_row(number: int, row: object) -> str:
    needed = {"name", "part", "op", "dtype", "seconds", "work"}
    if not isinstance(row, dict):
        return f"measurement {number} is not a dict"
    if not needed <= row.keys():
        return f"measurement {number} has no {', '.join(sorted(needed - set(row)))}"
    odd = next((key for key in ("name", "part", "op", "dtype") if not _is_line(row[key])), None)
    if odd is not None:
        return f"the {odd} of measurement {number} is not one line of text"
    if not isinstance(row["seconds"], list) or not all(is_number(value) and value for value in row["seconds"]):
        return f"the seconds of measurement {number} are not positive numbers"
    if not row["seconds"]:
        return f"measurement {number} has no seconds"
    if not is_number(row.get("together", 1), 1):
        return f"how many parts of a program measurement {number} is one of is not a number from 1"
    if not isinstance(row["work"], list) or not all(isinstance(one, dict) and "kind" in one for one in row["work"]):
        return f"the work of measurement {number} is not a list of dicts with a kind"
    found = (_wrong_work(number, one) for one in row["work"])
    return next((why for why in found if why), "")


def _is_line(value: object) -> bool:
    return isinstance(value, str) and value.isprintable()


def _wrong_work(number: int, one: dict[str, Any]) -> str:
    kind = one["kind"]
    if not isinstance(kind, str):
        return f"the kind of the work of measurement {number} is not a str"
    sizes = _SIZES.get(kind, ())  # what is not known is not fitted
    for name in sizes:
        if not is_number(one.get(name, 1 if name in ("batch", "count") else None), 0 if name in _MAY_BE_NOTHING else 1):
            return f"the {name} of the {kind} of measurement {number} is not a positive number"
    for name in ("elements", "row") if kind in MOVING else ():
        if not is_number(one.get(name, 0)):
            return f"the {name} of the {kind} of measurement {number} is not a number"
    if sizes and kind not in MOVING and not isinstance(one.get("dtype"), str):
        return f"the dtype of the {kind} of measurement {number} is missing"
    return ""
