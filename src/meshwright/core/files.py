"""Files that are written whole, or not at all; and files that are read, up to a size."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from errno import EFBIG, EINVAL, ENOENT
from typing import TextIO

from meshwright.core.source import here
from meshwright.errors import MeshwrightError

MOST_BYTES = 1 << 28  # of a text that is read
STDIN = "-"


def read_text(path: str | os.PathLike[str], most: int = MOST_BYTES) -> str:
    """The text of a file, or of standard input (``-``).

    What cannot be read, or has more than ``most`` bytes, is an OSError; what is no text in UTF-8, a UnicodeDecodeError.
    """
    if path == STDIN:
        if sys.stdin is None:
            raise OSError(EINVAL, "it is closed")
        return _read(sys.stdin, most)
    try:
        with open(path, encoding="utf-8") as file:
            check_size(file.fileno(), most)
            return _read(file, most)
    except UnicodeDecodeError:
        raise
    except ValueError as error:  # a name with a null in it
        raise OSError(EINVAL, str(error)) from error


def check_size(file: int, most: int = MOST_BYTES) -> None:
    """Raise an OSError if a file, by its number, has more than ``most`` bytes; what is no plain file has no size."""
    found = os.fstat(file)
    if stat.S_ISREG(found.st_mode) and found.st_size > most:
        raise _too_large(most)


def _read(file: TextIO, most: int) -> str:
    text = file.read(most + 1)
    if len(text) > most:  # a character has one byte or more
        raise _too_large(most)
    return text


def _too_large(most: int) -> OSError:
    return OSError(EFBIG, f"it has more than {most >> 20} MiB, the most that is read")


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Write a file so that it is there whole or, whatever happens, as it was before."""
    shown, unfinished = os.fspath(path), ""
    try:
        if os.path.exists(path) and not os.path.isfile(path):  # a pipe or a terminal, which cannot be replaced
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            return
        if not shown:
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT))
        real = os.path.realpath(path)
        handle, unfinished = tempfile.mkstemp(dir=os.path.dirname(real), prefix=f".{os.path.basename(real)}.")
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(unfinished, 0o644)
        os.replace(unfinished, real)
    except OSError as error:
        raise MeshwrightError(
            f"{shown or 'A file without a name'} cannot be written.",
            where=here(),
            why=error.strerror or str(error),
            fix="name a file in a folder that exists",
        ) from error
    finally:
        if os.path.exists(unfinished):
            os.remove(unfinished)
