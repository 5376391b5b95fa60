"""What ``layout.json`` of a saved tree says: its structure, and for each array the shards it was cut into.

{"format": "meshwright", "version": 1, "crc32": …, "layout": {
   "tree": {"dict": [["w", 0], ["step", 1]]},                                  leaves are numbers, None is null
   "leaves": [{"name": "['w']", "dtype": "complex64", "shape": [4, 6], "stored_as": "float32",
               "sharding": {"mesh": "<[\\"x\\"=2]>", "spec": [["x"], []]},
               "shards": [{"file": 0, "key": "['w'][0:2,0:6]", "offset": [0, 0], "shape": [2, 6], "crc32": …}, …]},
              {"name": "['step']", "number": ["int", "7"]}],
   "files": [{"name": "0f3a…-00000.safetensors", "bytes": 456}]}}
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import optree

from meshwright.core import dtypes, tree
from meshwright.core.dtypes import DType
from meshwright.core.source import here
from meshwright.errors import StorageError

LAYOUT = "layout.json"
FORMAT, VERSION = "meshwright", 1

DTYPES: dict[str, DType] = {dtype.name: dtype for dtype in dtypes.ALL}
# What safetensors has no name for, or NumPy no way to read from it: stored as another dtype, bit for bit.
STORED_AS: dict[DType, DType] = {
    dtypes.COMPLEX64: dtypes.FLOAT32,  # with a last dim of two: real and imaginary part
    dtypes.COMPLEX128: dtypes.FLOAT64,
    dtypes.FLOAT8_E4M3FN: dtypes.UINT8,
    dtypes.FLOAT8_E5M2: dtypes.UINT8,
}

Json = Any


class Level(NamedTuple):
    """One container: what it is called, the keys of its children, the children, and how to make it from them."""

    kind: str
    keys: list[Any]
    children: list[Any]
    rebuild: Callable[[Sequence[Any]], Any]


def open_level(x: Any) -> Level | None:
    """A container opened, or None for a leaf."""
    kind = type(x)
    if kind is dict:
        return Level("dict", list(x), list(x.values()), lambda found: dict(zip(x, found, strict=True)))
    if kind is list or kind is tuple:
        return Level(kind.__name__, list(range(len(x))), list(x), kind)
    if optree.tree_is_leaf(x, namespace=tree.NAMESPACE):
        return None
    opened = optree.tree_flatten_one_level(x, namespace=tree.NAMESPACE)
    return Level(
        f"{kind.__module__}.{kind.__qualname__}",
        list(opened.entries),
        list(opened.children),
        lambda found: opened.unflatten_func(opened.metadata, found),
    )


def close_level(kind: str, keys: Sequence[Any], children: Sequence[Any]) -> Any:
    """A dict, list or tuple of children."""
    return dict(zip(keys, children, strict=True)) if kind == "dict" else {"list": list, "tuple": tuple}[kind](children)


def path_step(kind: str, key: Any) -> str:
    """How Python reaches a child: ``['w']``, ``[0]``, ``.weights``."""
    return f".{key}" if kind not in ("dict", "list", "tuple") and isinstance(key, str) else f"[{key!r}]"


def structure_to_json(x: Any, name: str, leaves: list[tuple[str, Any]]) -> Json:
    """The structure of a tree; its leaves are added to ``leaves`` with their names."""
    if x is None:
        return None
    level = open_level(x)
    if level is None:
        leaves.append((name, x))
        return len(leaves) - 1
    for key in level.keys:
        if not isinstance(key, str | int | float | bool | None):
            raise StorageError(
                f"A key {key!r} of {name or 'the tree'} cannot be saved.",
                where=here(),
                why="keys are written as JSON: strings, numbers, True, False and None",
                fix=f"use a string as the key: {str(key)!r}",
            )
    parts = [
        [key, structure_to_json(child, name + path_step(level.kind, key), leaves)]
        for key, child in zip(level.keys, level.children, strict=True)
    ]
    return {level.kind: parts}


# Numbers


def number_to_json(x: bool | int | float | complex | str) -> Json:
    """A Python number or a string, exactly."""
    if isinstance(x, complex):
        return ["complex", x.real.hex(), x.imag.hex()]
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
        "int": int,
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


def read_layout(path: Path) -> Json:
    """The layout of what was saved at ``path``, or an error that says what is there instead."""
    try:
        text = (path / LAYOUT).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise _nothing_saved(path) from None
    try:
        found = json.loads(text)
        version = found["version"] if found["format"] == FORMAT else 0
        whole = version == VERSION and found["crc32"] == _checksum(found["layout"])
    except (ValueError, KeyError, TypeError):
        version, whole = 0, False
    if whole:
        return found["layout"]
    what = f"{path / LAYOUT} cannot be read."
    if version > VERSION:
        why = f"it has version {version}, and this package reads version {VERSION}"
        raise StorageError(what, where=here(), why=why, fix="pip install --upgrade meshwright")
    why = "its contents are not those that were written"
    raise StorageError(what, where=here(), why=why, fix="copy the file again, or load another checkpoint")


def _nothing_saved(path: Path) -> StorageError:
    why, fix = "the path does not exist", f"mw.save({str(path)!r}, tree)"
    if path.is_dir():
        why = f"it has no {LAYOUT}, which is written last: saving did not get to its end, or it is something else"
    elif path.exists():
        why, fix = "it is a file; a checkpoint is a directory", "pass the path that was given to mw.save"
    return StorageError(f"There is no checkpoint at {path}.", where=here(), why=why, fix=fix)
