"""mw.load: what ``mw.save`` wrote, on any mesh and sharding."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from meshwright.core.mesh import BaseMesh, get_mesh
from meshwright.core.partition_spec import P
from meshwright.core.sharding import NamedSharding
from meshwright.core.source import here
from meshwright.core.trace import Array, Value, is_number
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError, StorageError, TreeError
from meshwright.frontend.placing import PLACES, sharding_for
from meshwright.frontend.saved_layout import (
    DTYPES,
    Json,
    close_level,
    number_from_json,
    open_level,
    path_step,
    read_layout,
)
from meshwright.frontend.saving import checksum
from meshwright.frontend.tracing import ShapeDtypeStruct

_CONTAINERS = ("dict", "list", "tuple")
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
    the axes, and are whole on one device otherwise. Containers of registered classes are made like those in ``like``.

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
    directory = Path(path)
    while True:
        layout = read_layout(directory)
        try:
            with _Reader(directory, layout, mesh).opened() as reader:
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


def _build(node: Json, like: Any, name: str, reader: _Reader) -> Any:
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
        if kind not in _CONTAINERS:
            raise TreeError(
                f"{name or 'The tree'} was saved from a {kind}.",
                where=here(),
                why="a checkpoint holds arrays and not the code of classes",
                fix="mw.load(path, like=…) with a tree that has such a container there",
            )
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
    if kind != level.kind:
        raise _mismatch(name, kind, level.kind)
    saved = dict(parts)
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


def _fill(plan: Any, reader: _Reader) -> Any:
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
        return f"{like.dtype.name}[{','.join(map(str, like.shape))}]"
    return type(like).__name__


# Contents


class _Reader:
    """Reads leaves from the files of one layout."""

    def __init__(self, directory: Path, layout: Json, mesh: BaseMesh | None) -> None:
        self.directory, self.layout, self.mesh = directory, layout, mesh
        self.files: dict[int, Any] = {}

    @contextmanager
    def opened(self) -> Iterator[_Reader]:
        """Close the files in the end."""
        try:
            yield self
        finally:
            for file in self.files.values():
                file.__exit__(None, None, None)

    def leaf(self, wanted: Wanted) -> Any:
        """One leaf, where it is wanted."""
        entry = self.layout["leaves"][wanted.number]
        if "number" in entry:
            return number_from_json(entry["number"])
        shape, dtype = tuple(entry["shape"]), DTYPES[entry["dtype"]]
        place = self._saved_place(entry) if wanted.place is _AS_SAVED else wanted.place
        sharding = None if place is None else sharding_for(place, shape, entry["name"])
        shards = entry["shards"]
        if len(shards) == 1 and tuple(shards[0]["shape"]) == shape:
            data = self._tensor(shards[0], entry)
        else:
            data = np.empty(shape, dtype)
            for shard in shards:
                part = tuple(slice(at, at + n) for at, n in zip(shard["offset"], shard["shape"], strict=True))
                data[part] = self._tensor(shard, entry)
        return Array(data, TensorType(shape, dtype, entry.get("weak", False)), sharding)

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

    def _tensor(self, shard: Json, entry: Json) -> Any:
        """The contents of a shard, checked, in the array's dtype."""
        file = self._open(shard["file"])
        name = self.layout["files"][shard["file"]]["name"]
        try:
            tensor = file.get_tensor(shard["key"])
        except (SafetensorError, OSError) as error:
            raise self._damaged(name, f"{shard['key']}: {error}") from None
        if checksum(tensor) != shard["crc32"]:
            raise self._damaged(name, f"the checksum of {shard['key']} is not the one that was saved")
        dtype = DTYPES[entry["dtype"]]
        if "stored_as" in entry:
            tensor = tensor.view(dtype)
        return tensor.reshape(shard["shape"])

    def _open(self, number: int) -> Any:
        if number not in self.files:
            entry = self.layout["files"][number]
            path = self.directory / entry["name"]
            try:
                size = path.stat().st_size
                if size != entry["bytes"]:
                    raise self._damaged(entry["name"], f"it has {size} bytes, and {entry['bytes']} were written")
                self.files[number] = safe_open(path, framework="np")
            except FileNotFoundError:
                raise _Gone(
                    StorageError(
                        f"The checkpoint {self.directory} lacks {entry['name']}.",
                        where=here(),
                        why="its layout names this file, and the file is not there",
                        fix="copy the whole directory, or load another checkpoint",
                    )
                ) from None
            except SafetensorError as error:
                raise self._damaged(entry["name"], str(error)) from None
        return self.files[number]

    def _damaged(self, name: str, why: str) -> StorageError:
        return StorageError(
            f"{self.directory / name} is damaged.",
            where=here(),
            why=why,
            fix="copy the file again, or load another checkpoint",
        )
