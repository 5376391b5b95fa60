"""mw.save: a tree of arrays as safetensors files and a layout, whole or not at all.

The data goes into files of new names. ``layout.json``, which names them, is written beside itself and renamed into
place when all of them are on disk: that rename is the moment at which the new checkpoint takes the old one's place.
Files that no layout names any more are removed after it.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from meshwright.core import dtypes
from meshwright.core.placement import Index
from meshwright.core.source import here
from meshwright.core.trace import Array, Value
from meshwright.core.types import TensorType
from meshwright.errors import StorageError, TreeError
from meshwright.frontend.operands import known
from meshwright.frontend.saved_layout import (
    LAYOUT,
    STORED_AS,
    Json,
    layout_text,
    number_to_json,
    structure_to_json,
)
from meshwright.frontend.shards import distinct_parts, sharding_of

try:
    import fcntl
except ImportError:  # elsewhere two processes that save to one path at once are not kept apart
    fcntl = None  # type: ignore[assignment]

SMALL_SHARD_BYTES = 1 << 16  # an array with smaller shards is stored in one piece
_OURS = re.compile(r"[0-9a-f]{16}-(\d{5}\.safetensors|layout\.json)")


def save(path: str | os.PathLike[str], tree: Any, *, file_bytes: int = 1 << 28) -> None:
    """Save a tree of arrays, numbers and strings to the directory ``path``, in place of what was saved there before.

    Each distinct shard of an array is one tensor of a safetensors file; files are closed at about ``file_bytes``. If
    the process ends before ``save`` returns, the directory holds the old checkpoint, or none, or the new one: never a
    part of one.

    >>> import tempfile
    >>> import meshwright as mw
    >>> import meshwright.numpy as mnp
    >>> path = tempfile.mkdtemp() + "/step"
    >>> save(path, {"w": mnp.arange(4), "step": 7})
    >>> mw.load(path)
    {'w': Array([0, 1, 2, 3], dtype=int32), 'step': 7}
    """
    leaves: list[tuple[str, Any]] = []
    structure = structure_to_json(tree, "", leaves)
    arrays = [None if _is_plain(leaf) else _as_array(leaf, name) for name, leaf in leaves]
    directory = Path(path)
    _prepare(directory)
    with _alone_in(directory):
        prefix = os.urandom(8).hex()
        writer = _Writer(directory, prefix, file_bytes)
        written = [
            {"name": name, "number": number_to_json(leaf)} if array is None else writer.add(name, array)
            for (name, leaf), array in zip(leaves, arrays, strict=True)
        ]
        writer.flush()
        text = layout_text({"tree": structure, "leaves": written, "files": writer.files})
        waiting = directory / f"{prefix}-{LAYOUT}"
        with open(waiting, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        _sync_directory(directory)
        os.replace(waiting, directory / LAYOUT)
        _sync_directory(directory)
        kept = {entry["name"] for entry in writer.files}
        for found in sorted(directory.iterdir()):
            if _OURS.fullmatch(found.name) and found.name not in kept:
                found.unlink(missing_ok=True)


class _Writer:
    """Collects tensors and writes them, a file at a time."""

    def __init__(self, directory: Path, prefix: str, file_bytes: int) -> None:
        self.directory, self.prefix, self.file_bytes = directory, prefix, file_bytes
        self.files: list[Json] = []
        self.pending: dict[str, Any] = {}
        self.pending_bytes = 0

    def add(self, name: str, x: Array) -> Json:
        """Write an array's shards; what the layout says of it."""
        entry: dict[str, Any] = {"name": name, "dtype": x.type.dtype.name, "shape": list(x.type.shape)}
        if x.type.weak:
            entry["weak"] = True
        if x.type.dtype in STORED_AS:
            entry["stored_as"] = STORED_AS[x.type.dtype].name
        sharding = sharding_of(x)
        if hasattr(sharding, "spec"):
            dims = sharding.to_tensor_sharding(x.type.ndim).dims
            spec = [[axis.short() for axis in dim.axes] for dim in dims]
            entry["sharding"] = {"mesh": str(sharding.mesh), "spec": spec}
        entry["shards"] = [self._add_shard(name, x.data, index) for index in _pieces(x)]
        return entry

    def _add_shard(self, name: str, data: Any, index: Index) -> Json:
        bounds = [part.indices(size)[:2] for part, size in zip(index, data.shape, strict=True)]
        tensor = _stored(np.asarray(data[index], order="C"))
        if self.pending and self.pending_bytes + tensor.nbytes > self.file_bytes:
            self.flush()
        key = f"{name or 'value'}[{','.join(f'{start}:{stop}' for start, stop in bounds)}]"
        self.pending[key] = tensor
        self.pending_bytes += tensor.nbytes
        return {
            "file": len(self.files),
            "key": key,
            "offset": [start for start, _ in bounds],
            "shape": [stop - start for start, stop in bounds],
            "crc32": checksum(tensor),
        }

    def flush(self) -> None:
        """Write what was collected to a file of its own, down to the disk."""
        if not self.pending:
            return
        path = self.directory / f"{self.prefix}-{len(self.files):05}.safetensors"
        save_file(self.pending, path)
        with open(path, "rb+") as file:
            os.fsync(file.fileno())
            self.files.append({"name": path.name, "bytes": os.fstat(file.fileno()).st_size})
        self.pending, self.pending_bytes = {}, 0


def _pieces(x: Array) -> list[Index]:
    """The parts an array is cut into."""
    if not x.type.size:
        return []
    found = distinct_parts(sharding_of(x), x.type.shape)
    small = len(found) > 1 and x.type.nbytes < SMALL_SHARD_BYTES * len(found)
    return [(slice(None),) * x.type.ndim] if small else found


def _stored(data: Any) -> Any:
    """The data in the dtype it is stored as."""
    dtype = STORED_AS.get(data.dtype)
    if dtype is None:
        return data
    return data[..., None].view(dtype) if data.dtype.kind == "c" else data.view(dtype)


def checksum(tensor: Any) -> int:
    """Of the bytes of a contiguous array."""
    return zlib.crc32(tensor.reshape(-1).view(np.uint8))


def _is_plain(x: Any) -> bool:
    return type(x) in (bool, int, float, complex, str)


def _as_array(x: Any, name: str) -> Array:
    if isinstance(x, Array):
        x.data  # noqa: B018  (an error if it was donated)
        return x
    if isinstance(x, Value):
        known(x, "saving", "save what the traced function returns")
    data = np.asarray(x)
    if not dtypes.is_supported(data.dtype) or not isinstance(x, np.ndarray | np.generic):
        raise TreeError(
            f"{name or 'The tree'} cannot be saved: its type is {type(x).__name__}.",
            where=here(),
            why="the leaves of a saved tree are arrays, numbers and strings",
            fix="convert it to an array, or leave it out of the tree",
        )
    return Array(data, TensorType(data.shape, data.dtype))  # in its own width, whatever that of arrays is


def _prepare(directory: Path) -> None:
    """Make the directory, or refuse one that holds other things."""
    made = not directory.exists()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise StorageError(
            f"Nothing can be saved to {directory}.",
            where=here(),
            why="it is a file, or in one; a checkpoint is a directory",
            fix=f"mw.save({str(directory) + '.checkpoint'!r}, tree)",
        ) from None
    foreign = [f.name for f in sorted(directory.iterdir()) if f.name != LAYOUT and not _OURS.fullmatch(f.name)]
    if foreign:
        raise StorageError(
            f"Nothing can be saved to {directory}.",
            where=here(),
            why=f"the directory holds other things: {', '.join(foreign[:3])}{', …' * (len(foreign) > 3)}",
            fix=f"mw.save({str(directory / 'checkpoint')!r}, tree)",
        )
    if made:
        _sync_directory(directory.parent)


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Keep other processes from saving to the directory meanwhile."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX)  # until the handle is closed, also by the end of the process
        yield
    finally:
        os.close(handle)


def _sync_directory(directory: Path) -> None:
    """Bring the names in a directory to the disk."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
