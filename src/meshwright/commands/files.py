"""Files that a command writes: whole, or not at all."""

from __future__ import annotations

import os
import tempfile

from meshwright.errors import MeshwrightError


def write_whole(path: str, text: str) -> None:
    """Write a file so that it is there whole or, whatever happens, as it was before."""
    folder, name = os.path.split(os.path.abspath(path))
    unfinished = ""
    try:
        handle, unfinished = tempfile.mkstemp(dir=folder, prefix=f".{name}.")
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(unfinished, 0o644)
        os.replace(unfinished, path)
    except OSError as error:
        raise MeshwrightError(
            f"{path} cannot be written.", why=error.strerror or str(error), fix="name a file in a folder that exists"
        ) from error
    finally:
        if os.path.exists(unfinished):
            os.remove(unfinished)
