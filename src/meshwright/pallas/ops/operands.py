"""What the kernels of the library require of their operands."""

from __future__ import annotations

import os
import sys
from typing import Any

from meshwright.core.source import Source, is_users
from meshwright.pallas import tpu as pltpu

_HERE = os.path.dirname(__file__) + os.sep


def require(holds: bool, what: str, why: str, fix: str) -> None:
    """Refuse operands of a kernel of the library, at the line that calls it."""
    if holds:
        return
    frame = sys._getframe(1)
    while frame.f_back is not None:
        file = frame.f_code.co_filename
        if is_users(file) and not file.startswith(_HERE):
            break
        frame = frame.f_back
    raise pltpu.KernelError(what, where=Source(frame.f_code.co_filename, frame.f_lineno).show(), why=why, fix=fix)


def require_blocks(x: Any, devices: int, what: str) -> None:
    """Refuse an operand that has not one block for each device."""
    require(
        x.shape[:1] == (devices,),
        f"{what} of an array of shape {x.shape} over {devices} devices.",
        f"its first dim has one block for each device: {devices}",
        f"x.reshape({devices}, -1, …)",
    )
