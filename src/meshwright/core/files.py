"""Files that are written whole, or not at all."""

from __future__ import annotations

import os
import tempfile
from errno import ENOENT

from meshwright.core.source import here
from meshwright.errors import MeshwrightError


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
