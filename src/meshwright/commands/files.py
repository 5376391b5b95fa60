"""Files that a command reads."""

from __future__ import annotations

from meshwright.core import files
from meshwright.core.files import STDIN
from meshwright.errors import MeshwrightError


def read_text(path: str, fix: str) -> str:
    """The text of a file, or of standard input; ``fix`` says what to name instead."""
    try:
        return files.read_text(path)
    except UnicodeDecodeError as error:
        raise _unreadable(path, "it is not text in UTF-8", fix) from error
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error), fix) from error


def _unreadable(path: str, why: str, fix: str) -> MeshwrightError:
    what = "Standard input" if path == STDIN else path or "A file without a name"
    return MeshwrightError(f"{what} cannot be read.", why=why, fix=fix)
