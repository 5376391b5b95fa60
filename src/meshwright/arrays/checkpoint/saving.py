"""mw.save: a tree of arrays as safetensors files and a layout, whole or not at all.

The data goes into files of new names. ``layout.json``, which names them, is written beside itself and renamed into
place when all of them are on disk: that rename is the moment at which the new checkpoint takes the old one's place.
Files that no layout names any more, and what saves that were cut short left behind, are removed after it.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.arrays.checkpoint.layout import (
    FORMAT,
    LAYOUT,
    MAX_JSON_BYTES,
    NAMES,
    STORED_AS,
    STORED_NAMES,
    Json,
    as_directory,
    layout_text,
    number_to_json,
    open_regular,
    read_json,
    structure_to_json,
)
from meshwright.arrays.operands import known
from meshwright.arrays.shards import distinct_parts, is_addressable, sharding_of
from meshwright.core import dtypes
from meshwright.core.current import current_processes
from meshwright.core.files import remove, sync_directory, write_new
from meshwright.core.source import here
from meshwright.core.trace import Array, Value
from meshwright.core.types import Shape, TensorType
from meshwright.engine.device_arrays import parts_here
from meshwright.errors import StorageError, TreeError
from meshwright.sharding.placement import Index

try:
    import fcntl
except ImportError:  # elsewhere two processes that save to one path at once are not kept apart
    fcntl = None  # type: ignore[assignment]

FILES_OF_A_PROCESS = 10_000  # whose numbers are its own, where several processes save
SMALL_SHARD_BYTES = 1 << 16  # an array with smaller shards is stored in one piece
# The names of what is saved and of what waits to be; the last is what the safetensors package left when it was killed.
_OURS = re.compile(r"[0-9a-f]{16}-([0-9]{5,9}\.safetensors|layout\.json)|\.tmp[A-Za-z0-9]{6}")
_AS_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)  # a pipe in its place would be waited for
_FIXES = {
    errno.ENOSPC: "free some space, or save to another disk",
    errno.EDQUOT: "free some space, or save to another disk",
    errno.EFBIG: "save in smaller files: mw.save(path, tree, file_bytes=1 << 24)",
    errno.EACCES: "save to a directory of your own, or change the rights of this one",
    errno.EPERM: "save to a directory of your own, or change the rights of this one",
    errno.EROFS: "save to a disk that can be written to",
    errno.ENAMETOOLONG: "use a shorter name",
}


def save(path: str | os.PathLike[str], tree: Any, *, file_bytes: int = 1 << 28) -> None:
    """Save a tree of arrays, numbers and strings to the directory ``path``, in place of what was saved there before.

    Each distinct shard of an array is one tensor of a safetensors file; files are closed at about ``file_bytes``. If
    the process ends before ``save`` returns, the directory holds the old checkpoint, or none, or the new one: never a
    part of one. Of several processes (`mw.distributed`) all call it, with a path on a disk that all see: each writes
    the shards that it has, and if one ends before all have written, the directory holds what it held before.

    >>> import tempfile
    >>> import meshwright as mw
    >>> import meshwright.numpy as mnp
    >>> path = tempfile.mkdtemp() + "/step"
    >>> save(path, {"w": mnp.arange(4), "step": 7})
    >>> mw.load(path)
    {'w': Array([0, 1, 2, 3], dtype=int32), 'step': 7}
    """
    directory = as_directory(path, "save")
    if type(file_bytes) is not int or file_bytes < 1:
        why = "files are closed at about this number of bytes"
        fix = "mw.save(path, tree, file_bytes=1 << 28)"
        raise StorageError(f"file_bytes is {file_bytes!r:.80}.", where=here(), why=why, fix=fix)
    leaves: list[tuple[str, Any]] = []
    structure = structure_to_json(tree, "", leaves)
    arrays = [None if _is_plain(leaf) else _as_array(leaf, name) for name, leaf in leaves]
    place = _SaveDirectory(directory)
    if current_processes.all.count > 1:
        _write_together(place, structure, leaves, arrays, file_bytes)
        return
    try:
        place.enter()
        _refuse_others(directory)
        written, files = _write(_TensorWriter(place.directory, place.prefix, file_bytes), leaves, arrays)
        _put(place, structure, written, files)
        place.leave()
    except BaseException as error:
        place.clear()
        if isinstance(error, OSError):
            raise _cannot(directory, error) from None
        raise


def _write_together(
    place: _SaveDirectory, structure: Json, leaves: list[tuple[str, Any]], arrays: list[Array | None], file_bytes: int
) -> None:
    """As `save`, by all processes: the first one makes the directory and names its files, each writes the shards it has
    (one that several have, one of them), and the first puts the layout in place when all have written."""
    all_, what = current_processes.all, f"save to {place.directory}"
    leads = all_.index == 0

    def at_once(job: Callable[[], Json]) -> list[Json]:
        """What the job gives in each process; an error in each if it fails in one."""
        failed: StorageError | None = None
        given: Json = {}
        try:
            given = {"given": job()}
        except OSError as error:
            failed = _cannot(place.directory, error)
        except StorageError as error:
            failed = error
        if failed is not None:
            given = {"why": f"process {all_.index}: {failed.why}", "fix": failed.fix}
        found = [read_json(text) for text in all_.exchange(what, json.dumps(given).encode())]
        if failed is not None:
            raise failed
        for one in found:
            if "given" not in one:
                raise StorageError(f"Nothing can be saved to {place.directory}.", where=here(), **one)
        return [one["given"] for one in found]

    def enter() -> Json:
        if leads:
            place.enter()
            _refuse_others(place.directory)
        return place.prefix

    def put() -> Json:
        if leads:
            _refuse_missing(place.directory, files)
            _put(place, structure, [_joined(parts) for parts in zip(*written, strict=True)], files)
            place.leave()
        return None

    try:
        place.prefix = at_once(enter)[0]
        writer = _TensorWriter(place.directory, place.prefix, file_bytes, first=all_.index * FILES_OF_A_PROCESS)
        found = at_once(lambda: _write(writer, leaves, arrays))
        files = [file for _, theirs in found for file in theirs]
        before = [sum(len(theirs) for _, theirs in found[:n]) for n in range(len(found))]
        written = [[_from_file(entry, n) for entry in entries] for n, (entries, _) in zip(before, found, strict=True)]
        at_once(put)
    except BaseException:
        if leads:
            place.clear()
        raise


def _from_file(entry: Json, first: int) -> Json:
    """What a process says of a leaf, with its files after those of others."""
    if "shards" not in entry:
        return entry
    return {**entry, "shards": [{**shard, "file": shard["file"] + first} for shard in entry["shards"]]}


def _joined(parts: Sequence[Json]) -> Json:
    """What all processes say of a leaf."""
    if "shards" not in parts[0]:
        return parts[0]
    return {**parts[0], "shards": [shard for part in parts for shard in part["shards"]]}


def _refuse_missing(directory: Path, files: Sequence[Json]) -> None:
    """An error if not every process writes to the same disk."""
    for file in files:
        path = directory / file["name"]
        if not path.is_file() or path.stat().st_size != file["bytes"]:
            raise StorageError(
                f"Nothing can be saved to {directory}.",
                where=here(),
                why=f"process 0 does not see {file['name']}, which another one wrote",
                fix="save to a directory that is on one disk for all processes",
            )


def _write(
    writer: _TensorWriter, leaves: list[tuple[str, Any]], arrays: list[Array | None]
) -> tuple[list[Json], list[Json]]:
    """Write the shards that this process writes: what the layout says of each leaf, and the files."""
    written: list[Json] = [
        {"name": name, "number": number_to_json(leaf)} if array is None else writer.add(name, array)
        for (name, leaf), array in zip(leaves, arrays, strict=True)
    ]
    writer.flush()
    return written, writer.files


def _put(place: _SaveDirectory, structure: Json, written: Sequence[Json], files: Sequence[Json]) -> None:
    """Put what was written in place."""
    text = layout_text({"tree": structure, "leaves": list(written), "files": list(files)}).encode()
    if len(text) > MAX_JSON_BYTES:
        raise StorageError(
            f"Nothing can be saved to {place.directory}.",
            where=here(),
            why=f"the structure of the tree takes {len(text)} bytes, and {MAX_JSON_BYTES} at most are read again",
            fix="save large strings as arrays of bytes, or the tree in several parts",
        )
    place.put(text, frozenset(entry["name"] for entry in files))


class _TensorWriter:
    """Collects tensors and writes them, a file at a time."""

    def __init__(self, directory: Path, prefix: str, file_bytes: int, first: int = 0) -> None:
        self.directory, self.prefix, self.file_bytes, self.first = directory, prefix, file_bytes, first
        self.files: list[Json] = []
        self.pending: dict[str, Any] = {}
        self.pending_bytes = 0

    def add(self, name: str, x: Array) -> Json:
        """Write an array's shards; what the layout says of it."""
        entry: dict[str, Any] = {"name": name, "dtype": NAMES[x.type.dtype], "shape": list(x.type.shape)}
        if x.type.weak:
            entry["weak"] = True
        if x.type.dtype in STORED_AS:
            entry["stored_as"] = STORED_AS[x.type.dtype].name
        sharding = sharding_of(x)
        if hasattr(sharding, "spec"):
            dims = sharding.to_tensor_sharding(x.type.ndim).dims
            spec = [[axis.short() for axis in dim.axes] for dim in dims]
            entry["sharding"] = {"mesh": str(sharding.mesh), "spec": spec}
        entry["shards"] = [self._add_shard(name, x.type.shape, index, part) for index, part in _pieces(x)]
        return entry

    def _add_shard(self, name: str, shape: Shape, index: Index, part: Any) -> Json:
        bounds = [one.indices(size)[:2] for one, size in zip(index, shape, strict=True)]
        tensor = _stored(np.asarray(part, order="C"))
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
        path = self.directory / f"{self.prefix}-{self.first + len(self.files):05}.safetensors"
        size = write_new(path, _file_parts(self.pending))
        self.files.append({"name": path.name, "bytes": size})
        self.pending, self.pending_bytes = {}, 0


def _file_parts(tensors: dict[str, Any]) -> Iterator[Any]:
    """The bytes of a safetensors file: the size of the header, the header, the tensors.

    Those of the widest elements come first, so that all are aligned.
    """
    tensors = dict(sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0])))
    header, end = {}, 0
    for key, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        header[key] = {"dtype": STORED_NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for tensor in tensors.values():
        yield _bytes_of(tensor)


def _pieces(x: Array) -> Iterator[tuple[Index, Any]]:
    """The parts of an array that this process writes, and what is in them."""
    if not x.type.size:
        return
    found = distinct_parts(sharding_of(x), x.type.shape)
    small = len(found) > 1 and x.type.nbytes < SMALL_SHARD_BYTES * len(found)
    on_devices = hasattr(x._data, "sharding") and not x.type.unreduced
    if on_devices and not (small and is_addressable(x)):
        yield from parts_here(x._data, x.type.shape)
    elif current_processes.all.index == 0:
        for index in [(slice(None),) * x.type.ndim] if small else found:
            yield index, x.data[index]


def _stored(data: Any) -> Any:
    """The data in the dtype it is stored as."""
    dtype = STORED_AS.get(data.dtype)
    if dtype is None:
        return data
    return data[..., None].view(dtype) if data.dtype.itemsize == 2 * dtype.itemsize else data.view(dtype)


def checksum(tensor: Any) -> int:
    """Of the bytes of a contiguous array."""
    return zlib.crc32(_bytes_of(tensor))


def _bytes_of(tensor: Any) -> Any:
    return tensor.reshape(-1).view(np.uint8)


def _is_plain(x: Any) -> bool:
    return type(x) in (bool, int, float, complex, str)


def _as_array(x: Any, name: str) -> Array:
    if isinstance(x, Array):
        if x._data is None or (x.type.unreduced and not is_addressable(x)):
            x.data  # noqa: B018  (an error that says why it cannot be read)
        return x
    if isinstance(x, Value):
        known(x, "Saving", "save what the traced function returns")
    if not isinstance(x, np.ndarray | np.generic):
        raise TreeError(
            f"{name or 'The tree'} cannot be saved: its type is {type(x).__name__}.",
            where=here(),
            why="the leaves of a saved tree are arrays, numbers and strings",
            fix="convert it to an array, or leave it out of the tree",
        )
    if isinstance(x, np.ma.MaskedArray):
        raise TreeError(
            f"{name or 'The tree'} cannot be saved: it is a masked array.",
            where=here(),
            why="a checkpoint has no masks, and without its mask the array is another",
            fix='save both: {"data": x.data, "mask": np.ma.getmaskarray(x)}, or x.filled(0)',
        )
    data = np.asarray(x)
    if not dtypes.is_supported(data.dtype):
        raise TreeError(
            f"{name or 'The tree'} cannot be saved: its dtype is {data.dtype}.",
            where=here(),
            why=f"arrays are saved with the dtypes {', '.join(dtype.name for dtype in dtypes.ALL)}",
            fix="convert it to one of them: x.astype(np.float32)",
        )
    return Array(data, TensorType(data.shape, data.dtype))  # in its own width, whatever that of arrays is


# The directory


def _refuse_others(directory: Path) -> None:
    """An error if the directory holds what ``save`` did not put there."""
    foreign = []
    for name in sorted(os.listdir(directory)):
        ours = name == LAYOUT or _OURS.fullmatch(name) is not None
        if not ours or not stat.S_ISREG(os.lstat(directory / name).st_mode):
            foreign.append(name)
    if not foreign and not _is_free(directory / LAYOUT):
        foreign = [f"a {LAYOUT} of another program"]
    if foreign:
        raise StorageError(
            f"Nothing can be saved to {directory}.",
            where=here(),
            why=f"the directory holds other things: {', '.join(foreign[:3])}{', …' * (len(foreign) > 3)}",
            fix=f"mw.save({str(directory / 'checkpoint')!r}, tree)",
        )


def _is_free(layout: Path) -> bool:
    """Whether there is no layout, or one that ``save`` wrote, be it damaged."""
    start = f'{{"format": "{FORMAT}"'.encode()
    try:
        with os.fdopen(open_regular(layout), "rb") as file:
            text = file.read(len(start))
            if text == start:
                return True
            found = read_json(text + file.read(MAX_JSON_BYTES))
    except FileNotFoundError:
        return True
    except ValueError:
        return False
    return isinstance(found, dict) and found.get("format") == FORMAT


class _SaveDirectory:
    """The directory of one save: made if need be, locked, and at the end with one checkpoint and nothing else.

    An interrupt may come between any two steps. So whatever is made is noted before, and whether the new checkpoint has
    taken its place is read off the disk: once its layout was about to be renamed, by the old name being gone.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.prefix = os.urandom(8).hex()
        self.waiting = directory / f"{self.prefix}-{LAYOUT}"
        self.made: list[Path] = []
        self.handle = -1
        self.files: frozenset[str] | None = None  # those of the new checkpoint, once all of them are on disk
        self.left = False

    def enter(self) -> None:
        """Make the directory, and keep other threads and processes from saving to it meanwhile."""
        while True:
            self._make()
            self.handle = os.open(self.directory, _AS_DIRECTORY)
            _lock(self.handle)
            if _is_still(self.directory, self.handle):
                return
            self._unlock()

    def put(self, layout: bytes, files: frozenset[str]) -> None:
        """Let a layout, whose files are on disk, take the place of the old one."""
        write_new(self.waiting, [layout])
        sync_directory(self.directory)
        self.files = files
        os.replace(self.waiting, self.directory / LAYOUT)

    def leave(self) -> None:
        """Remove what the layout in place does not name, and let others save."""
        self._tidy()
        self.left = True  # from here on others may have saved
        self._unlock()

    def clear(self) -> None:
        """Leave after an error or an interrupt, and remove the directories that were made for nothing."""
        try:
            if not self.left and self._is_alone():
                with suppress(OSError):
                    self._tidy()
                for directory in reversed(self.made):
                    with suppress(OSError):
                        os.rmdir(directory)
        finally:
            self._unlock()

    def _tidy(self) -> None:
        if self.files is not None and not os.path.lexists(self.waiting):
            sync_directory(self.directory)  # the old files are needed until the new name is on the disk
            useless = [name for name in os.listdir(self.directory) if _OURS.fullmatch(name) and name not in self.files]
        else:
            useless = [name for name in os.listdir(self.directory) if name.startswith(self.prefix)]
        for name in sorted(useless):
            remove(self.directory / name)  # what cannot be removed does no harm, and the next save tries again

    def _make(self) -> None:
        missing = [d for d in (self.directory, *self.directory.parents) if not os.path.lexists(d)]
        for new in reversed(missing):
            self.made.append(new)
            try:
                os.mkdir(new)
            except FileExistsError:
                self.made.pop()
                continue
            sync_directory(new.parent)
        if not self.directory.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "it is a file, or in one; a checkpoint is a directory")

    def _is_alone(self) -> bool:
        """Whether nobody else saves here; an interrupt may have come before or while the lock was waited for."""
        try:
            if self.handle < 0:
                self.handle = os.open(self.directory, _AS_DIRECTORY)
            _lock(self.handle, wait=False)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def _unlock(self) -> None:
        """Give the lock up first: a handle that an interrupt leaves open then stands in nobody's way."""
        handle = self.handle
        if handle >= 0:
            _lock(handle, give_up=True)
            self.handle = -1
            os.close(handle)


def _lock(handle: int, wait: bool = True, give_up: bool = False) -> None:
    """Lock a directory, until the handle is closed, also by the end of the process; or give the lock up."""
    if fcntl is None:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_UN if give_up else fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):  # some network disks have no locks
            raise


def _is_still(directory: Path, handle: int) -> bool:
    """Whether the directory was not removed, or replaced, while the lock was waited for."""
    try:
        return os.path.samestat(os.stat(directory), os.fstat(handle))
    except FileNotFoundError:
        return False


def _cannot(directory: Path, error: OSError) -> StorageError:
    why, fix = error.strerror or str(error), _FIXES.get(error.errno or 0, "save to another directory")
    if error.errno == errno.ENOTDIR:
        why = "it is a file, or in one; a checkpoint is a directory"
        fix = f"mw.save({str(directory) + '.checkpoint'!r}, tree)"
    shown = str(directory)
    shown = shown if len(shown) < 300 else f"{shown[:300]}…"
    return StorageError(f"Nothing can be saved to {shown}.", where=here(), why=why, fix=fix)
