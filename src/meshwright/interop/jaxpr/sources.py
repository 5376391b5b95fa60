"""Where in the user's code an equation of JAX was written: JAX notes the frames, this picks those of the user."""

from __future__ import annotations

import os
from typing import Any

from meshwright.core.source import Source, is_users

_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_known: dict[Any, Source | None] = {}  # by the traceback, which JAX keeps once for each place


def source_of(eqn: Any) -> Source | None:
    """The innermost line of the user's in the frames of an equation, None where JAX kept no frames."""
    traceback = eqn.source_info.traceback
    if traceback is None:
        return None
    if traceback not in _known:
        _known[traceback] = next(
            (
                Source(frame.file_name, frame.line_num)
                for frame in traceback.frames
                if is_users(frame.file_name) and not any(part in frame.file_name for part in _INSTALLED)
            ),
            None,
        )
    return _known[traceback]
