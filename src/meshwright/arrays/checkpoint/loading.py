"""mw.load: what ``mw.save`` wrote, on any mesh and sharding."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from meshwright.arrays.checkpoint.layout import (
    CONTAINERS,
    DTYPES,
    MAX_JSON_BYTES,
    NAMES,
    STORED_NAMES,
    Json,
    as_directory,
    close_level,
    number_from_json,
    open_level,
    open_regular,
    path_step,
    plain_kind,
    read_json,
    read_layout,
    stored_type,
)
from meshwright.arrays.checkpoint.saving import checksum
from meshwright.arrays.device_put import PLACES, final_sharding, held_on_devices
from meshwright.arrays.tracing import ShapeDtypeStruct
from meshwright.core.current import current_processes
from meshwright.core.dtypes import DType
from meshwright.core.source import here
from meshwright.core.trace import Array, Value, is_number
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError, StorageError, TreeError
from meshwright.sharding.mesh import BaseMesh, get_mesh
from meshwright.sharding.named import NamedSharding
from meshwright.sharding.placement import Index
from meshwright.sharding.spec import P

_OPEN_FILES = 16  # at once
_AS_SAVED = object()  # a place: the sharding the array was saved with, if there is a mesh for it


class Wanted(NamedTuple):
    """A leaf to load, and where to put it."""

    number: int
    place: Any


def load(path: str | os.PathLike[str], like: Any = None, *, mesh: BaseMesh | None = None) -> Any:
    """What was saved at ``path``.

    ``like`` says where the arrays go: a sharding, or a tree of shardings, arrays or ``ShapeDtypeStruct``s of the saved
    structure, which may stop early. Shapes and dtypes it gives are checked. It may be on any mesh: shards are cut
    anew. Where it says nothing, arrays get the spec they were saved with, on ``mesh`` or the current mesh if that has
    the axes, and are whole on one device otherwise. Containers of classes (namedtuples,
    registered classes) are made like those in ``like`` if the fields agree, wherever the class is defined now; where
    ``like`` says nothing of them they come back as dicts of their fields.

    >>> import tempfile
    >>> import meshwright as mw
    >>> import meshwright.numpy as mnp
    >>> path = tempfile.mkdtemp() + "/step"
    >>> mw.save(path, {"w": mnp.arange(4.0), "step": 7})
    >>> sharding = mw.NamedSharding(mw.make_mesh((2,), ("x",)), mw.P("x"))
    >>> found = load(path, like=sharding)
    >>> print(mw.typeof(found["w"]), found["step"])
    float32[4@x] 7
    """
    directory = as_directory(path, "load")
    while True:
        layout = read_layout(directory)
        try:
            with _LeafReader(directory, layout, mesh).opened() as reader:
                return _build(layout["tree"], like, "", reader)
        except _Gone as gone:
            # A save that ended meanwhile has removed the files of the layout that was read; there is another now.
            if read_layout(directory) == layout:
                raise gone.error from None


class _Gone(Exception):
    """A file that the layout names is not there."""

    def __init__(self, error: StorageError) -> None:
        self.error = error


# Structure


def _build(node: Json, like: Any, name: str, reader: _LeafReader) -> Any:
    """The saved tree ``node`` in the form of ``like``."""
    wanted = _plan(node, _AS_SAVED if like is None else like, name, reader.layout["leaves"])
    return _fill(wanted, reader)


class _Branch(NamedTuple):
    rebuild: Any
    children: list[Any]


def _plan(node: Json, like: Any, name: str, leaves: list[Json]) -> Any:
    """The tree to return with ``Wanted`` leaves; all of ``like`` is checked before anything is read."""
    if isinstance(like, PLACES) or like is _AS_SAVED or (like is None and node is not None):
        place = _AS_SAVED if like is None else like
        if node is None:
            return None
        if isinstance(node, int):
            return Wanted(node, place)
        ((kind, parts),) = node.items()
        children = [_plan(child, like, name + path_step(kind, key), leaves) for key, child in parts]
        return _Branch(lambda found: close_level(kind, [key for key, _ in parts], found), children)
    if like is None:
        return None
    level = open_level(like)
    if level is None:
        if not isinstance(node, int):
            raise _mismatch(name, _node_text(node), _leaf_text(like))
        return Wanted(node, _leaf_place(leaves[node], like, name))
    if not isinstance(node, dict):
        raise _mismatch(name, _node_text(node), level.kind)
    ((kind, parts),) = node.items()
    saved = dict(parts)
    of_classes = kind not in CONTAINERS and level.kind not in CONTAINERS
    if not of_classes and level.kind not in (kind, plain_kind(kind, list(saved))):
        raise _mismatch(name, kind, level.kind)
    if saved.keys() != set(level.keys):
        missing = [key for key in level.keys if key not in saved]
        extra = [key for key in saved if key not in level.keys]
        shown = [f"{word} {', '.join(map(repr, keys))}" for word, keys in (("no", missing), ("also", extra)) if keys]
        raise TreeError(
            f"{name or 'The tree'} has other keys in like= than in the checkpoint.",
            where=here(),
            why=f"the checkpoint has {' and '.join(shown)}",
            fix=f"give like= the keys {', '.join(map(repr, saved))}, or one sharding for all of them",
        )
    children = [
        _plan(saved[key], child, name + path_step(kind, key), leaves)
        for key, child in zip(level.keys, level.children, strict=True)
    ]
    return _Branch(level.rebuild, children)


def _fill(plan: Any, reader: _LeafReader) -> Any:
    if isinstance(plan, Wanted):
        return reader.leaf(plan)
    return plan.rebuild([_fill(child, reader) for child in plan.children]) if isinstance(plan, _Branch) else plan


def _leaf_place(leaf: Json, like: Any, name: str) -> Any:
    """Where a leaf of ``like`` puts the saved one; None for nowhere. An error if they are of different types."""
    if is_number(like) or isinstance(like, str):
        if "number" not in leaf:
            raise _mismatch(name, _saved_type(leaf), _leaf_text(like))
        return None
    if not isinstance(like, Value | ShapeDtypeStruct | np.ndarray | np.generic):
        raise TreeError(
            f"like= has a {type(like).__name__} at {name or 'its root'}.",
            where=here(),
            why="it says where arrays go: by shardings, arrays, ShapeDtypeStructs, or None for as they were saved",
            fix='like=mw.NamedSharding(mesh, mw.P("x", None))',
        )
    if "number" in leaf or tuple(leaf["shape"]) != like.shape or DTYPES[leaf["dtype"]] != like.dtype:
        raise _mismatch(name, _saved_type(leaf), _leaf_text(like))
    return like._sharding if isinstance(like, Array) else getattr(like, "sharding", None)


def _mismatch(name: str, saved: str, given: str) -> TreeError:
    return TreeError(
        f"{name or 'The tree'} was saved as {saved}, and like= has {given} there.",
        where=here(),
        why="like= has the structure, shapes and dtypes of what was saved, or stops at a sharding",
        fix="load with a sharding there (or without like=), and convert what comes back",
    )


def _node_text(node: Json) -> str:
    return "None" if node is None else "a leaf" if isinstance(node, int) else next(iter(node))


def _saved_type(leaf: Json) -> str:
    if "number" in leaf:
        return str(leaf["number"][0])
    return f"{leaf['dtype']}[{','.join(map(str, leaf['shape']))}]"


def _leaf_text(like: Any) -> str:
    if hasattr(like, "shape") and hasattr(like, "dtype"):
        return f"{NAMES.get(like.dtype, like.dtype.name)}[{','.join(map(str, like.shape))}]"
    return type(like).__name__


# Contents


class _File(NamedTuple):
    """A data file whose header was checked."""

    file: BinaryIO
    tensors: dict[str, Json]
    start: int  # of the first tensor


class _Damaged(Exception):
    """What is wrong with a data file."""


class _LeafReader:
    """Reads leaves from the files of one layout."""

    def __init__(self, directory: Path, layout: Json, mesh: BaseMesh | None) -> None:
        self.directory, self.layout, self.mesh = directory, layout, mesh
        self.files: dict[int, _File] = {}

    @contextmanager
    def opened(self) -> Iterator[_LeafReader]:
        """Close the files in the end."""
        try:
            yield self
        finally:
            for found in self.files.values():
                found.file.close()

    def leaf(self, wanted: Wanted) -> Any:
        """One leaf, where it is wanted."""
        entry = self.layout["leaves"][wanted.number]
        if "number" in entry:
            return number_from_json(entry["number"])
        shape, dtype = tuple(entry["shape"]), DTYPES[entry["dtype"]]
        place = self._saved_place(entry) if wanted.place is _AS_SAVED else wanted.place
        sharding = None if place is None else final_sharding(place, shape, entry["name"])
        shards = entry["shards"]
        for shard in shards:  # so that room is made only for what is there
            self._find(shard, dtype)
        try:
            held = held_on_devices(sharding, shape, dtype)
            if held is not None and current_processes.all.count > 1:
                data = held.made(lambda index: self._part(shards, shape, dtype, index))
            else:
                data = self._join(shards, shape, dtype)
                data = data if held is None else held.put(data)
        except MemoryError:
            raise StorageError(
                f"{entry['name'] or 'The array'} cannot be loaded: there is no memory for it.",
                where=here(),
                why=f"{_saved_type(entry)} takes {prod(shape) * dtype.itemsize} bytes",
                fix="free some memory, or load on a machine with more of it",
            ) from None
        return Array(data, TensorType(shape, dtype, entry.get("weak", False)), sharding)

    def _join(self, shards: list[Json], shape: tuple[int, ...], dtype: DType) -> Any:
        if len(shards) == 1:
            return self._tensor(shards[0], dtype)
        data = np.empty(shape, dtype)
        for shard in shards:
            part = tuple(slice(at, at + n) for at, n in zip(shard["offset"], shard["shape"], strict=True))
            data[part] = self._tensor(shard, dtype)
        return data

    def _part(self, shards: list[Json], shape: tuple[int, ...], dtype: DType, index: Index) -> Any:
        """A part of an array: of the shards that have some of it, no others are read."""
        wanted = [one.indices(size)[:2] for one, size in zip(index, shape, strict=True)]
        data = np.empty([stop - start for start, stop in wanted], dtype)
        for shard in shards:
            ends = [at + n for at, n in zip(shard["offset"], shard["shape"], strict=True)]
            common = [
                (max(start, at), min(stop, end))
                for (start, stop), at, end in zip(wanted, shard["offset"], ends, strict=True)
            ]
            if all(start < stop for start, stop in common):
                there = tuple(slice(a - w, b - w) for (a, b), (w, _) in zip(common, wanted, strict=True))
                here_ = tuple(slice(a - at, b - at) for (a, b), at in zip(common, shard["offset"], strict=True))
                data[there] = self._tensor(shard, dtype)[here_]
        return data

    def _saved_place(self, entry: Json) -> NamedSharding | None:
        """The sharding the array was saved with, on the mesh that was given or is current."""
        on = self.mesh if self.mesh is not None else get_mesh()
        if on is None or "sharding" not in entry:
            return None
        try:
            return NamedSharding(on, P(*map(tuple, entry["sharding"]["spec"])))
        except MeshwrightError:
            if self.mesh is not None:
                raise
            return None

    def _tensor(self, shard: Json, dtype: DType) -> Any:
        """The contents of a shard, checked, in the array's dtype."""
        found, start, size = self._find(shard, dtype)
        name = self.layout["files"][shard["file"]]["name"]
        data = np.empty(size, np.uint8)
        try:
            found.file.seek(start)
            got = found.file.readinto(data)  # type: ignore[attr-defined]
        except OSError as error:
            raise self._damaged(name, f"{shard['key']}: {error.strerror}") from None
        if got != size or checksum(data) != shard["crc32"]:
            raise self._damaged(name, f"the checksum of {shard['key']} is not the one that was saved")
        if dtype.kind == "b" and data.max() > 1:
            raise self._damaged(name, f"{shard['key']} has elements that are neither True nor False")
        return data.view(dtype).reshape(shard["shape"])

    def _find(self, shard: Json, dtype: DType) -> tuple[_File, int, int]:
        """The file of a shard, and where in it the shard is: at which byte, and how many."""
        found = self._open(shard["file"])
        name, key = self.layout["files"][shard["file"]]["name"], shard["key"]
        stored, shape = stored_type(dtype, shard["shape"])
        if key not in found.tensors:
            raise self._damaged(name, f"it has no {key}")
        tensor = found.tensors[key]
        if tensor["dtype"] != STORED_NAMES[stored] or tensor["shape"] != shape:
            raise self._damaged(name, f"{key} is not the {stored.name}{shape} that the layout says")
        start, end = tensor["data_offsets"]
        if end - start != prod(shape) * stored.itemsize:
            raise self._damaged(name, f"{key} does not have the bytes of a {stored.name}{shape}")
        return found, found.start + start, end - start

    def _open(self, number: int) -> _File:
        if number in self.files:
            return self.files[number]
        if len(self.files) >= _OPEN_FILES:
            self.files.pop(next(iter(self.files))).file.close()
        entry = self.layout["files"][number]
        try:
            file = os.fdopen(open_regular(self.directory / entry["name"]), "rb")
        except FileNotFoundError:
            raise _Gone(
                StorageError(
                    f"The checkpoint {self.directory} lacks {entry['name']}.",
                    where=here(),
                    why="its layout names this file, and the file is not there",
                    fix="copy the whole directory, or load another checkpoint",
                )
            ) from None
        except (OSError, ValueError) as error:
            raise self._damaged(entry["name"], getattr(error, "strerror", None) or str(error)) from None
        try:
            tensors, start = _read_header(file, entry["bytes"])
        except (OSError, ValueError, _Damaged) as error:
            file.close()
            why = str(error) if isinstance(error, _Damaged) else f"its header cannot be read: {error}"
            raise self._damaged(entry["name"], why) from None
        self.files[number] = _File(file, tensors, start)
        return self.files[number]

    def _damaged(self, name: str, why: str) -> StorageError:
        return StorageError(
            f"{self.directory / name} is damaged.",
            where=here(),
            why=why,
            fix="copy the file again, or load another checkpoint",
        )


def _read_header(file: BinaryIO, written: int) -> tuple[dict[str, Json], int]:
    """The tensors of a safetensors file, which fill it without gaps, and where the first one starts."""
    size = os.fstat(file.fileno()).st_size
    if size != written:
        raise _Damaged(f"it has {size} bytes, and {written} were written")
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(size - 8, MAX_JSON_BYTES):
        raise _Damaged("its header has a size that it cannot have")
    tensors = read_json(file.read(length))
    if type(tensors) is not dict:
        raise _Damaged("its header is not one")
    tensors.pop("__metadata__", None)
    spans = []
    for tensor in tensors.values():
        span = tensor.get("data_offsets") if type(tensor) is dict else None
        if type(span) is not list or len(span) != 2 or any(type(at) is not int for at in span):
            raise _Damaged("its header does not say where the tensors are")
        if type(tensor.get("dtype")) is not str or type(tensor.get("shape")) is not list:
            raise _Damaged("its header does not say what the tensors are")
        if any(type(n) is not int for n in tensor["shape"]):
            raise _Damaged("its header does not say what the tensors are")
        spans.append(tuple(span))
    end = 0
    for start, stop in sorted(spans):
        if start != end or stop < start:
            raise _Damaged("its tensors do not follow each other")
        end = stop
    if end != size - 8 - length:
        raise _Damaged("its tensors do not fill it")
    return tensors, 8 + length
