"""Files that are written whole, or not at all; and files that are read, up to a size.

A file is written under another name, brought to the disk, and renamed into place: the rename is the moment at which it
takes the place of what was there before. An interrupt may come between any two steps, so what is to be removed is known
by name before it is made.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from errno import EACCES, EFBIG, EINVAL, ENOENT, ENOTSUP
from typing import Any, TextIO

from meshwright.core.source import here
from meshwright.errors import MeshwrightError

_NO_SYNC = (EACCES, EINVAL, ENOTSUP)  # a directory that may not be read, and file systems that cannot
MOST_BYTES = 1 << 28  # of a text that is read
STDIN = "-"
_NULL = "its name has a null in it"  # for which Pythons have different words


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
    except ValueError as error:
        raise OSError(EINVAL, _NULL) from error


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


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file so that it is there whole or, whatever happens, as it was before; a text is in UTF-8.

    A file that is replaced keeps its mode; a new one has what the umask leaves. Links are followed.
    """
    shown = os.fspath(path)
    found = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    try:
        if not shown:
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT))
        if os.path.exists(path) and not os.path.isfile(path):  # a pipe or a terminal, which cannot be replaced
            with open(path, "wb") as file:
                file.write(found)
        else:
            _replace(os.path.realpath(path), found)
    except (OSError, ValueError) as error:
        raise MeshwrightError(
            f"{shown or 'A file without a name'} cannot be written.",
            where=here(),
            why=_NULL if isinstance(error, ValueError) else error.strerror or str(error),
            fix="name a file in a folder that exists",
        ) from error


def _replace(path: str, content: bytes) -> None:
    """Write ``content`` beside a regular file, or where there is none, and rename it into place."""
    unfinished = os.path.join(os.path.dirname(path), f".meshwright-{os.urandom(8).hex()}")
    mode = None
    with suppress(FileNotFoundError):
        mode = os.stat(path).st_mode & 0o7777
        if not os.access(path, os.W_OK):
            raise PermissionError(EACCES, os.strerror(EACCES))
    try:
        write_new(unfinished, [content], mode)
        os.replace(unfinished, path)
    except BaseException:
        remove(unfinished)
        raise
    sync_directory(os.path.dirname(path))


def write_new(path: str | os.PathLike[str], parts: Iterable[Any], mode: int | None = None) -> int:
    """Write a file that is not there yet, down to the disk; its size in bytes."""
    first = 0o666 if mode is None else 0o600  # nobody opens it before it has its mode
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, first)) as file:
        if mode is not None:
            os.chmod(path, mode)
        size = sum(file.write(part) for part in parts)
        file.flush()
        os.fsync(file.fileno())
    return size


def sync_directory(directory: str | os.PathLike[str]) -> None:
    """Bring the names in a directory to the disk, where the system can do that."""
    try:
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def remove(path: str | os.PathLike[str]) -> None:
    """Remove a file if it is there and can be removed."""
    with suppress(OSError):
        os.unlink(path)
