"""Arrays from and to files, bytes and text."""

from __future__ import annotations

import os
from io import BytesIO
from typing import Any

import numpy as np

from meshwright.arrays.operands import DTypeLike, value
from meshwright.core import dtypes
from meshwright.core.files import write_whole
from meshwright.core.trace import Value
from meshwright.numpy.creation import asarray

get_printoptions, set_printoptions, printoptions = np.get_printoptions, np.set_printoptions, np.printoptions


def from_dlpack(x: Any, /, *, device: Any = None, copy: Any = None) -> Any:
    """An array of any object with DLPack's methods."""
    return asarray(np.from_dlpack(x), device=device)


def array_repr(arr: Any, max_line_width: Any = None, precision: Any = None, suppress_small: Any = None) -> str:
    """The text of an array, as ``repr`` gives it."""
    with _printing(max_line_width, precision, suppress_small):
        return repr(asarray(arr))


def array_str(a: Any, max_line_width: Any = None, precision: Any = None, suppress_small: Any = None) -> str:
    """The contents of an array as text."""
    with _printing(max_line_width, precision, suppress_small):
        return str(asarray(a))


def _printing(width: Any, precision: Any, suppress: Any) -> Any:
    """NumPy's options of printing, those given."""
    given = {"linewidth": width, "precision": precision, "suppress": suppress}
    return np.printoptions(**{name: option for name, option in given.items() if option is not None})


def frombuffer(buffer: Any, dtype: DTypeLike = float, count: int = -1, offset: int = 0) -> Value:
    """The numbers whose bytes are in a buffer.

    >>> import meshwright.numpy as mnp
    >>> mnp.frombuffer(bytes([1, 2, 3]), "uint8", offset=1)
    Array([2, 3], dtype=uint8)
    """
    return asarray(np.frombuffer(buffer, _stored(dtype), count, offset))


def fromstring(string: str, dtype: DTypeLike = float, count: int = -1, *, sep: str) -> Value:
    """The numbers written in a text, with ``sep`` between them."""
    return asarray(np.fromstring(string, _stored(dtype), count, sep=sep))


def fromfile(file: Any, dtype: DTypeLike = float, count: int = -1, sep: str = "", offset: int = 0) -> Value:
    """The numbers whose bytes, or text with ``sep``, a file holds."""
    return asarray(np.fromfile(file, _stored(dtype), count, sep, offset))


def fromiter(iter: Any, dtype: DTypeLike, count: int = -1) -> Value:
    """The numbers that can be iterated over."""
    return asarray(np.fromiter(iter, _stored(dtype), count))


def _stored(dtype: DTypeLike) -> Any:
    """A dtype at its own width, which bytes have whatever width arrays are given."""
    return np.dtype(dtype if dtype.__class__ is type or isinstance(dtype, str) else dtypes.as_dtype(dtype))


def load(file: Any, *args: Any, **kwargs: Any) -> Any:
    """The array of a file that ``save`` wrote, or of each name in one that ``savez`` wrote; nothing is unpickled."""
    found = np.load(file, *args, **{"allow_pickle": False, **kwargs})
    return asarray(found) if isinstance(found, np.ndarray) else found


def save(file: Any, arr: Any, allow_pickle: bool = True) -> None:
    """Write an array to a file in NumPy's format: whole, or as the file was before.

    >>> import io, meshwright.numpy as mnp
    >>> file = io.BytesIO()
    >>> mnp.save(file, mnp.arange(3))
    >>> mnp.load(io.BytesIO(file.getvalue()))
    Array([0, 1, 2], dtype=int32)
    """
    _write(file, ".npy", np.save, np.asarray(value(arr)), allow_pickle=allow_pickle)


def savez(file: Any, *args: Any, allow_pickle: bool = True, **kwds: Any) -> None:
    """Write arrays to a file in NumPy's format for several: whole, or as the file was before."""
    named = {name: np.asarray(value(x)) for name, x in kwds.items()}
    _write(file, ".npz", np.savez, *(np.asarray(value(x)) for x in args), allow_pickle=allow_pickle, **named)


def _write(file: Any, ending: str, save: Any, /, *arrays: Any, **named: Any) -> None:
    """What one of NumPy's functions writes: to an open file as it comes, to one with a name only when all is there."""
    if hasattr(file, "write"):
        save(file, *arrays, **named)
        return
    content = BytesIO()
    save(content, *arrays, **named)
    path = os.fspath(file)
    write_whole(path if path.endswith(ending) else path + ending, content.getvalue())
