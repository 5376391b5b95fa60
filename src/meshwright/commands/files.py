"""Files that a command reads."""

from __future__ import annotations

import os
from errno import ENOENT

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


def check_folder(path: str | None) -> None:
    """Refuse a file to write to in a folder that is not there, before the work whose answer goes to it."""
    if path is not None and not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise MeshwrightError(
            f"{path} cannot be written.", why=os.strerror(ENOENT), fix="name a file in a folder that exists"
        )


def _unreadable(path: str, why: str, fix: str) -> MeshwrightError:
    what = "Standard input" if path == STDIN else path or "A file without a name"
    return MeshwrightError(f"{what} cannot be read.", why=why, fix=fix)
