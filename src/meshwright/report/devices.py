"""Listings of device programs, in the colours of their devices."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from meshwright.chart.amounts import numbers_text
from meshwright.chart.views import View
from meshwright.report.listing import Marked, listing_view

_TENSOR = re.compile(r"Tensor\[(?:\w+, )?\([^()]*\), ([^\]\s]+)\]")
_MOST_COLORS = 12  # more devices than that are told apart by their groups


def device_listing(title: str, text: Sequence[str], groups: Mapping[str, str], *, many: bool) -> View:
    """The lines of a device program, each device (or its group, with ``many`` where devices are many) in a colour."""
    found = dict.fromkeys(m[1] for line in text for m in _TENSOR.finditer(line))
    group = {} if many and len(found) <= _MOST_COLORS else groups
    keys = dict.fromkeys(group.get(device, device) for device in found)
    lines = []
    for line in text:
        parts = [(m.start(1), m.end(1), group.get(m[1], m[1])) for m in _TENSOR.finditer(line)]
        head = line.split(" = ")[0] if " = " in line else ""
        results = {key for start, _, key in parts if start < len(head)}
        lines.append(Marked(line, results.pop() if len(results) == 1 else None, tuple(parts)))
    members: dict[str, list[int]] = {}
    for device in found:
        if device.isdigit():
            members.setdefault(group.get(device, device), []).append(int(device))
    return listing_view(title, lines, list(keys), [_key_name(key, members.get(key, []), bool(group)) for key in keys])


def _key_name(key: str, members: Sequence[int], grouped: bool) -> str:
    if key == "?":
        return "? a device that resolution finds"
    if not key.isdigit():
        return f"device {key}"
    if key == "0":
        return "device 0 (the host)"
    devices = sorted(members) or [int(key)]
    named = f"device{'s' * (len(devices) > 1)} {numbers_text(devices)}"
    return f"group {key}: {named}" if grouped else named
