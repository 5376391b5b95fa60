"""Files that a command reads."""

from __future__ import annotations

import sys

from meshwright.errors import MeshwrightError

STDIN = "-"


def read_text(path: str, fix: str) -> str:
    """The text of a file, or of standard input; ``fix`` says what to name instead."""
    try:
        if path == STDIN:
            if sys.stdin is None:
                raise OSError("it is closed")
            return sys.stdin.read()
        with open(path, encoding="utf-8") as file:
            return file.read()
    except UnicodeDecodeError as error:
        raise _unreadable(path, "it is not text in UTF-8", fix) from error
    except (OSError, ValueError) as error:  # the latter for a name with a null in it
        raise _unreadable(path, getattr(error, "strerror", None) or str(error), fix) from error


def _unreadable(path: str, why: str, fix: str) -> MeshwrightError:
    what = "Standard input" if path == STDIN else path or "A file without a name"
    return MeshwrightError(f"{what} cannot be read.", why=why, fix=fix)
