"""What ``layout.json`` of a saved tree says: its structure, and for each array the shards it was cut into.

{"format": "meshwright", "version": 1, "crc32": …, "layout": {
   "tree": {"dict": [["w", 0], ["step", 1]]},                                  leaves are numbers, None is null
   "leaves": [{"name": "['w']", "dtype": "complex64", "shape": [4, 6], "stored_as": "float32",
               "sharding": {"mesh": "<[\\"x\\"=2]>", "spec": [["x"], []]},
               "shards": [{"file": 0, "key": "['w'][0:2,0:6]", "offset": [0, 0], "shape": [2, 6], "crc32": …}, …]},
              {"name": "['step']", "number": ["int", "7"]}],
   "files": [{"name": "0f3a…-00000.safetensors", "bytes": 456}]}}

A layout is believed only as far as it can be checked: all of it is, before anything it names is opened or made room
for. Its checksum says that it is whole, not that it was written by ``mw.save``.
"""

from __future__ import annotations

import json
import os
import re
import stat
import zlib
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import optree

from meshwright.core import dtypes, tree
from meshwright.core.dtypes import DType
from meshwright.core.source import here
from meshwright.errors import StorageError, TreeError

LAYOUT = "layout.json"
FORMAT, VERSION = "meshwright", 1
DATA_FILE = re.compile(r"[0-9a-f]{16}-[0-9]{5,9}\.safetensors")
CONTAINERS = ("dict", "list", "tuple")

MAX_DEPTH = 100  # of containers in containers
MAX_JSON_BYTES = 1 << 28  # of a layout, and of the header of a data file
_MAX_NDIM = 64  # NumPy's
_MAX_KEY_BITS = 1900  # Python may refuse to print, or read, longer integers in decimal

NAMES: dict[DType, str] = {
    **{dtype: dtype.name for dtype in (*dtypes.ALL, *dtypes.PACKED, *dtypes.STORED_FLOATS)},
    dtypes.KEY: "key",
}
DTYPES: dict[str, DType] = {name: dtype for dtype, name in NAMES.items()}
# What safetensors has no name for, or NumPy no way to read from it: stored as another dtype, bit for bit.
STORED_AS: dict[DType, DType] = {
    dtypes.COMPLEX64: dtypes.FLOAT32,  # with a last dim of two: real and imaginary part
    dtypes.COMPLEX128: dtypes.FLOAT64,
    dtypes.KEY: dtypes.UINT32,  # with a last dim of two: its words
    dtypes.FLOAT8_E4M3FN: dtypes.UINT8,
    dtypes.FLOAT8_E5M2: dtypes.UINT8,
    **dict.fromkeys(dtypes.STORED_FLOATS, dtypes.UINT8),
    **dict.fromkeys(dtypes.PACKED, dtypes.UINT8),  # one to a byte, as in NumPy's memory
}

# What safetensors calls the dtypes that are stored.
STORED_NAMES: dict[DType, str] = {
    dtypes.BOOL: "BOOL",
    **{dtype: f"I{8 * dtype.itemsize}" for dtype in dtypes.SIGNED},
    **{dtype: f"U{8 * dtype.itemsize}" for dtype in dtypes.UNSIGNED},
    dtypes.BFLOAT16: "BF16",
    **{dtype: f"F{8 * dtype.itemsize}" for dtype in (dtypes.FLOAT16, dtypes.FLOAT32, dtypes.FLOAT64)},
}

Json = Any


def stored_type(dtype: DType, shape: Sequence[int]) -> tuple[DType, list[int]]:
    """The dtype and shape of the tensor that holds an array's part of ``shape``.

    >>> stored_type(dtypes.COMPLEX64, (3,))
    (dtype('float32'), [3, 2])
    """
    stored = STORED_AS.get(dtype, dtype)
    return stored, [*shape, 2] if dtype.itemsize == 2 * stored.itemsize else list(shape)


class TreeLevel(NamedTuple):
    """One container: what it is called, the keys of its children, the children, and how to make it from them."""

    kind: str
    keys: list[Any]
    children: list[Any]
    rebuild: Callable[[Sequence[Any]], Any]


def open_level(x: Any) -> TreeLevel | None:
    """A container opened, or None for a leaf."""
    kind = type(x)
    if kind is dict:
        return TreeLevel("dict", list(x), list(x.values()), lambda found: dict(zip(x, found, strict=True)))
    if kind is list or kind is tuple:
        return TreeLevel(kind.__name__, list(range(len(x))), list(x), kind)
    if optree.tree_is_leaf(x, namespace=tree.NAMESPACE):
        return None
    children, metadata, entries, rebuild = optree.tree_flatten_one_level(x, namespace=tree.NAMESPACE)
    fields = kind._fields if optree.is_namedtuple(x) else entries
    return TreeLevel(
        f"{kind.__module__}.{kind.__qualname__}", list(fields), list(children), lambda found: rebuild(metadata, found)
    )


def close_level(kind: str, keys: Sequence[Any], children: Sequence[Any]) -> Any:
    """A dict, list or tuple of children.

    What a class had becomes a dict of its fields, or a list if they have no names.

    >>> close_level("models.Layer", ["w", "b"], [1, 2])
    {'w': 1, 'b': 2}
    """
    if kind == "tuple":
        return tuple(children)
    return list(children) if plain_kind(kind, keys) == "list" else dict(zip(keys, children, strict=True))


def plain_kind(kind: str, keys: Sequence[Any]) -> str:
    """The plain container that stands for one of a class."""
    if kind in CONTAINERS:
        return kind
    return "list" if keys and _are_positions(keys) else "dict"


def _are_positions(keys: Sequence[Any]) -> bool:
    return all(type(key) is int and key == at for at, key in enumerate(keys))


def path_step(kind: str, key: Any) -> str:
    """How Python reaches a child: ``['w']``, ``[0]``, ``.weights``."""
    attribute = kind not in CONTAINERS and isinstance(key, str) and key.isidentifier()
    return f".{key}" if attribute else f"[{key!r}]"


def structure_to_json(x: Any, name: str, leaves: list[tuple[str, Any]], depth: int = 0) -> Json:
    """The structure of a tree; its leaves are added to ``leaves`` with their names."""
    if x is None:
        return None
    level = open_level(x)
    if level is None:
        leaves.append((name, x))
        return len(leaves) - 1
    if depth >= MAX_DEPTH:
        raise TreeError(
            f"The tree is nested more than {MAX_DEPTH} deep, and cannot be saved.",
            where=here(),
            why=f"{name[:40]}… is a {level.kind} again: the tree is very deep, or contains itself",
            fix="make it flatter, as a dict of names and arrays: mw.save(path, {'layer0': …, 'layer1': …})",
        )
    for key in level.keys:
        _check_key(key, name)
    if len(set(level.keys)) != len(level.keys):
        raise StorageError(
            f"{name or 'The tree'} cannot be saved: it is a {level.kind} with two children of one name.",
            where=here(),
            why=f"its entries are {level.keys!r:.200}",
            fix="register the class with entries that differ",
        )
    parts = [
        [key, structure_to_json(child, name + path_step(level.kind, key), leaves, depth + 1)]
        for key, child in zip(level.keys, level.children, strict=True)
    ]
    return {level.kind: parts}


def _check_key(key: Any, name: str) -> None:
    why = ""
    if not isinstance(key, str | int | float | bool | None):
        why, shown, fix = "keys are written as JSON: strings, numbers, True, False and None", repr(key), str(key)
    elif isinstance(key, int) and key.bit_length() > _MAX_KEY_BITS:
        why, shown, fix = "an integer of so many digits is not written as JSON", f"of {key.bit_length()} bits", hex(key)
    elif key != key:
        why, shown, fix = "it is not equal to itself, and could not be found again", "nan", "nan"
    if why:
        raise StorageError(
            f"A key {shown} of {name or 'the tree'} cannot be saved.",
            where=here(),
            why=why,
            fix=f"use a string as the key: {fix[:80]!r}",
        )


# Numbers


def number_to_json(x: bool | int | float | complex | str) -> Json:
    """A Python number or a string, exactly."""
    if isinstance(x, complex):
        return ["complex", x.real.hex(), x.imag.hex()]
    if isinstance(x, int) and x.bit_length() > _MAX_KEY_BITS:
        return ["int", hex(x)]
    return [type(x).__name__, x.hex() if isinstance(x, float) else str(x)]


def number_from_json(written: Json) -> Any:
    """The number that was written.

    >>> [number_from_json(number_to_json(x)) for x in (True, 3, 0.1, 2 - 1j, "text")]
    [True, 3, 0.1, (2-1j), 'text']
    """
    kind, *text = written
    if kind == "complex":
        return complex(*map(float.fromhex, text))
    read: dict[str, Callable[[str], Any]] = {
        "bool": lambda value: value == "True",
        "int": lambda value: int(value, 16 if "x" in value else 10),
        "float": float.fromhex,
        "str": str,
    }
    return read[kind](text[0])


# The file


def layout_text(layout: Json) -> str:
    """The contents of ``layout.json``."""
    return json.dumps({"format": FORMAT, "version": VERSION, "crc32": _checksum(layout), "layout": layout})


def _checksum(layout: Json) -> int:
    return zlib.crc32(json.dumps(layout).encode())


def read_json(text: bytes) -> Json:
    """What JSON says; a ValueError for anything that is not clearly JSON."""
    try:
        return json.loads(text.decode(), object_pairs_hook=_without_repeats)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _without_repeats(pairs: list[tuple[str, Json]]) -> Json:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("it has a key twice")
    return found


def as_directory(path: Any, do: str) -> Path:
    """The path that was given, or an error if it cannot be one."""
    why = ""
    try:
        found = os.fspath(path)
    except TypeError:
        found, why = "", f"it is a {type(path).__name__}"
    if isinstance(found, bytes):
        why = "it is of type bytes"
    elif "\0" in found:
        why = "it has a NUL character in it"
    elif not found and not why:
        why = "it is empty"
    else:
        try:
            os.fsencode(found)
        except UnicodeEncodeError:
            why = "it has characters that no file name has"
    if why:
        raise StorageError(
            f"{path!r:.80} is not a path.",
            where=here(),
            why=f"{why}; a checkpoint is a directory, named by a string or a pathlib.Path",
            fix=f'mw.{do}("checkpoints/step-100"{", tree" if do == "save" else ""})',
        )
    return Path(found)


def open_regular(path: Path) -> int:
    """A handle to read a file that is one: ValueError for links, pipes, devices and directories."""
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise ValueError("it is not a regular file")
    flags = [getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")]
    handle = os.open(path, os.O_RDONLY | sum(flags))
    if not stat.S_ISREG(os.fstat(handle).st_mode):  # it was replaced meanwhile
        os.close(handle)
        raise ValueError("it is not a regular file")
    return handle


def read_layout(path: Path) -> Json:
    """The layout of what was saved at ``path``, checked, or an error that says what is there instead."""
    what, fix = f"{path / LAYOUT} cannot be read.", "copy the file again, or load another checkpoint"
    try:
        with os.fdopen(open_regular(path / LAYOUT), "rb") as file:
            text = file.read(MAX_JSON_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise _nothing_saved(path) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise StorageError(what, where=here(), why=why, fix=fix) from None
    if len(text) > MAX_JSON_BYTES:
        why = f"it has more than {MAX_JSON_BYTES} bytes, which no layout has"
        raise StorageError(what, where=here(), why=why, fix=fix)
    try:
        found = read_json(text)
        version = found["version"] if found["format"] == FORMAT else 0
        whole = type(version) is int and version == VERSION and found["crc32"] == _checksum(found["layout"])
    except (ValueError, KeyError, TypeError, RecursionError):
        version, whole = 0, False
    if type(version) is int and version > VERSION:
        why = f"it has version {min(version, 9999)}, and this package reads version {VERSION}"
        raise StorageError(what, where=here(), why=why, fix="pip install --upgrade meshwright")
    if not whole:
        why = "its contents are not those that were written"
        raise StorageError(what, where=here(), why=why, fix=fix)
    try:
        _check_layout(found["layout"])
    except _Wrong as wrong:
        raise StorageError(
            f"{path / LAYOUT} is not a layout that mw.save writes.", where=here(), why=str(wrong), fix=fix
        ) from None
    return found["layout"]


def _nothing_saved(path: Path) -> StorageError:
    why, fix = "the path does not exist", f"mw.save({str(path)!r}, tree)"
    if path.is_dir():
        why = f"it has no {LAYOUT}, which is written last: saving did not get to its end, or it is something else"
    elif path.exists():
        why, fix = "it is a file; a checkpoint is a directory", "pass the path that was given to mw.save"
    return StorageError(f"There is no checkpoint at {path}.", where=here(), why=why, fix=fix)


# Whether a layout is one


class _Wrong(Exception):
    """What is wrong with a layout."""


def _need(holds: bool, why: str) -> None:
    if not holds:
        raise _Wrong(why)


def _record(x: Json, where: str, *required: str, optional: Sequence[str] = ()) -> None:
    """``x`` has the required fields, perhaps optional ones, and no others."""
    _need(type(x) is dict, f"{where} is not a record")
    _need(set(required) <= x.keys() <= {*required, *optional}, f"{where} has other fields than {', '.join(required)}")


def _sequence(x: Json, where: str) -> None:
    _need(type(x) is list, f"{where} is not a list")


def _count(x: Json, where: str, below: int = 1 << 63) -> None:
    _need(type(x) is int and 0 <= x < below, f"{where} is not an integer in its range")


def _check_layout(layout: Json) -> None:
    """``_Wrong`` unless all of it is as ``mw.save`` writes it."""
    _record(layout, "the layout", "tree", "leaves", "files")
    _sequence(layout["leaves"], "the list of leaves")
    _sequence(layout["files"], "the list of files")
    names = set()
    for at, file in enumerate(layout["files"]):
        where = f"file {at}"
        _record(file, where, "name", "bytes")
        name = file["name"]
        _need(type(name) is str and DATA_FILE.fullmatch(name) is not None, f"{where} has the name {name!r:.80}")
        _count(file["bytes"], f"the size of {where}")
        names.add(name)
    _need(len(names) == len(layout["files"]), "two files have one name")
    used: set[tuple[int, str]] = set()
    for at, leaf in enumerate(layout["leaves"]):
        _check_leaf(leaf, f"leaf {at}", len(layout["files"]), used)
    met: set[int] = set()
    _check_tree(layout["tree"], len(layout["leaves"]), met, 0)
    _need(len(met) == len(layout["leaves"]), "the tree does not have all of the leaves")


def _check_tree(node: Json, leaves: int, met: set[int], depth: int) -> None:
    if node is None:
        return
    if type(node) is not dict:
        _count(node, "the number of a leaf", leaves)
        _need(node not in met, f"leaf {node} is in the tree twice")
        met.add(node)
        return
    _need(depth < MAX_DEPTH, f"the tree is nested more than {MAX_DEPTH} deep")
    _need(len(node) == 1, "a container of the tree has not one kind")
    ((kind, parts),) = node.items()
    _need(kind in CONTAINERS or "." in kind, f"a container of the tree is of kind {kind!r:.80}")
    _sequence(parts, "the children of a container")
    keys = []
    for part in parts:
        _need(type(part) is list and len(part) == 2, "a child of a container is not a key and a tree")
        key, child = part
        _need(key is None or type(key) in (str, int, float, bool), "a key is not a string or a number")
        _need(key == key, "a key is nan")
        keys.append(key)
        _check_tree(child, leaves, met, depth + 1)
    _need(len(set(keys)) == len(keys), "a container has a key twice")
    _need(kind not in ("list", "tuple") or _are_positions(keys), f"a {kind} has other keys than 0, 1, …")


def _check_leaf(leaf: Json, where: str, files: int, used: set[tuple[int, str]]) -> None:
    if type(leaf) is dict and "number" in leaf:
        _record(leaf, where, "name", "number")
        _need(type(leaf["name"]) is str, f"the name of {where} is not a string")
        _check_number(leaf["number"], where)
        return
    _record(leaf, where, "name", "dtype", "shape", "shards", optional=("weak", "stored_as", "sharding"))
    _need(type(leaf["name"]) is str, f"the name of {where} is not a string")
    _need(type(leaf["dtype"]) is str and leaf["dtype"] in DTYPES, f"{where} has the dtype {leaf['dtype']!r:.80}")
    dtype = DTYPES[leaf["dtype"]]
    stored = STORED_AS[dtype].name if dtype in STORED_AS else None
    _need(leaf.get("stored_as") == stored, f"{where} is stored as {leaf.get('stored_as')!r:.80}, not {stored}")
    _need(leaf.get("weak", True) is True, f"{where} is neither weak nor not")
    _need(type(leaf["shape"]) is list and len(leaf["shape"]) <= _MAX_NDIM, f"{where} has no shape")
    for size in leaf["shape"]:
        _count(size, f"a size of {where}")
    most = prod(max(size, 1) for size in leaf["shape"]) * dtype.itemsize
    _need(most < 1 << 63, f"{where} is larger than any array")
    if "sharding" in leaf:
        _check_sharding(leaf["sharding"], len(leaf["shape"]), where)
    _sequence(leaf["shards"], f"the list of shards of {where}")
    for at, shard in enumerate(leaf["shards"]):
        _check_shard(shard, f"shard {at} of {where}", leaf["shape"], files)
        place = shard["file"], shard["key"]
        _need(place not in used, f"shard {at} of {where} is stored in the place of another")
        used.add(place)
    _check_cover(leaf["shards"], leaf["shape"], where)


def _check_number(written: Json, where: str) -> None:
    texts = type(written) is list and all(type(part) is str for part in written)
    _need(texts and len(written) > 0, f"{where} is no number")
    kinds = {"bool": 2, "int": 2, "float": 2, "str": 2, "complex": 3}
    kind = written[0]
    _need(kinds.get(kind) == len(written), f"{where} is no number")
    if kind == "bool":
        _need(written[1] in ("True", "False"), f"{where} is no bool")
    elif kind == "int":
        _need(re.fullmatch("-?([0-9]{1,4300}|0x[0-9a-f]+)", written[1]) is not None, f"{where} is no integer")
    try:
        number_from_json(written)
    except (ValueError, OverflowError):
        raise _Wrong(f"{where} is no {kind}") from None


def _check_sharding(sharding: Json, ndim: int, where: str) -> None:
    where = f"the sharding of {where}"
    _record(sharding, where, "mesh", "spec")
    _need(type(sharding["mesh"]) is str, f"{where} has no mesh")
    spec = sharding["spec"]
    _need(type(spec) is list and len(spec) == ndim, f"{where} has not as many dims as the array")
    for dim in spec:
        _need(type(dim) is list and all(type(axis) is str for axis in dim), f"{where} has dims without axes")


def _check_shard(shard: Json, where: str, shape: list[int], files: int) -> None:
    _record(shard, where, "file", "key", "offset", "shape", "crc32")
    _count(shard["file"], f"the file of {where}", files)
    _need(type(shard["key"]) is str, f"the key of {where} is not a string")
    _count(shard["crc32"], f"the checksum of {where}", 1 << 32)
    for field in ("offset", "shape"):
        _need(type(shard[field]) is list and len(shard[field]) == len(shape), f"{where} has no {field}")
        for at in shard[field]:
            _count(at, f"the {field} of {where}")


def _check_cover(shards: list[Json], shape: list[int], where: str) -> None:
    """The shards are a grid: in each dim, the extents they have follow each other; each cell is there once."""
    if not prod(shape):
        _need(not shards, f"{where} has shards and no elements")
        return
    why = f"the shards of {where} do not make up the array"
    cells = 1
    for dim, size in enumerate(shape):
        extents = sorted({(shard["offset"][dim], shard["shape"][dim]) for shard in shards})
        end = 0
        for start, length in extents:
            _need(start == end and length > 0, why)
            end += length
        _need(end == size, why)
        cells *= len(extents)
    _need(len(shards) == cells == len({tuple(shard["offset"]) for shard in shards}), why)
