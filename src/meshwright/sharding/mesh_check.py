"""What a mesh must satisfy, each rule with its own error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from math import prod
from typing import Any

import numpy as np

from meshwright.errors import MeshError
from meshwright.sharding.axes import quoted
from meshwright.sharding.text_sdy import LARGEST

Where = Callable[[], str]

MOST_DEVICES = 2**1024
MOST_LISTED = 2**22
MOST_DIMS = 64  # of a NumPy array


def _is_listed(x: Any) -> bool:
    """Whether ``x`` has items: bytes have no items that are meant, and an array of rank 0 has none."""
    return isinstance(x, Iterable) and not isinstance(x, bytes) and getattr(x, "ndim", 1) != 0


def check_sizes(sizes: Any, where: Where) -> tuple[int, ...]:
    """The sizes as a tuple of ints."""
    listed = _is_listed(sizes) and not isinstance(sizes, str)
    given = tuple(sizes) if listed else (sizes,)
    if not all(isinstance(size, int | np.integer) and not isinstance(size, bool) for size in given):
        raise MeshError(
            f"The sizes of a mesh are integers, not {short(given if listed else sizes)}.",
            where=where(),
            why="each is a number of devices",
            fix='mw.make_mesh((2, 4), ("x", "y"))',
        )
    if any(abs(size) > LARGEST for size in given):
        raise MeshError(
            "A size of the mesh does not fit into 64 bits.",
            where=where(),
            why=f"an axis has at most {LARGEST} devices",
            fix='mw.make_mesh((2, 4), ("x", "y"))',
        )
    return tuple(int(size) for size in given)


def check_names(names: Any, where: Where) -> tuple[Any, ...]:
    """The names of axes as a tuple, given as one or several."""
    if isinstance(names, str):
        names = (names,)
    if not _is_listed(names):
        raise MeshError(
            f"Axis names cannot be {short(names)}.",
            where=where(),
            why="they are a string, or several strings, one for each axis",
            fix='("x", "y")',
        )
    found = tuple(names)
    for name in found:
        check_axis_name(name, where, found)
    return found


def check_axis_name(name: Any, where: Where, names: Sequence[Any] = ()) -> None:
    """Raise if the name of an axis looks like a part of one; ``names`` are those of all axes."""
    if isinstance(name, str) and ":(" in name:
        word = re.sub(r"\W+", "_", name).strip("_") or "x"
        raise MeshError(
            f"A mesh axis cannot be named {quoted(name)}.",
            where=where(),
            why=f"shardings would read it as a part of the axis {quoted(name.partition(':(')[0])}",
            fix=quoted(word if word not in names else _free_name(word, names)),
        )


def _free_name(name: str, names: Sequence[Any]) -> str:
    """A name with a number behind it that no axis has yet."""
    return next(f"{name}{number}" for number in count(2) if f"{name}{number}" not in names)


def _example_names(number: int) -> tuple[str, ...]:
    return tuple("xyzwabcdefgh"[:number]) if number <= 12 else tuple(f"x{n}" for n in range(number))


def check_name(name: Any, where: Where) -> str | None:
    """The name of a mesh, if it has one."""
    if name is not None and not isinstance(name, str):
        raise MeshError(f"A mesh cannot be named {short(name)}.", where=where(), why="names are strings", fix='"mesh"')
    return name


def check_kind(kind: Any, where: Where) -> str:
    """The kind of devices, checked."""
    if not isinstance(kind, str) or not kind.strip():
        raise MeshError(
            f"Devices cannot be of kind {short(kind)}.",
            where=where(),
            why="the kind is what they are called, a string of at least one word",
            fix='kind="tpu v5e"',
        )
    return str(kind)


def bad_device(id: Any, where: Where) -> MeshError:
    """The error for what is no number of a device."""
    return MeshError(
        f"A device cannot have the number {short(id)}.",
        where=where(),
        why="devices are numbered 0, 1, 2, …",
        fix="mw.sharding.Device(0)",
    )


def bad_devices(devices: Any, where: Where) -> MeshError:
    """The error for what are no devices in rows and columns."""
    return MeshError(
        f"A mesh cannot be made of {short(devices)}.",
        where=where(),
        why="its devices are whole numbers, or entries of mesh.devices, in rows of one length",
        fix='mw.Mesh(np.arange(8).reshape(2, 4), ("x", "y"))',
    )


def check_listable(count: int, dims: int, where: Where) -> None:
    """Raise if there are more devices than one can list, or than an array has dims for."""
    if count > MOST_LISTED:
        raise MeshError(
            f"{count} devices are too many to list.",
            where=where(),
            why=f"up to {MOST_LISTED} are; more are known by their mesh's axes alone",
            fix="ask for shapes and placements, .shard_shape(…) or .is_equivalent_to(…), or take a smaller mesh",
        )
    if dims > MOST_DIMS:
        raise MeshError(
            f"The devices of a mesh of {dims} axes cannot be listed.",
            where=where(),
            why=f"an array has at most {MOST_DIMS} dims",
            fix="leave out the axes of size 1",
        )


def short(thing: Any) -> str:
    """What a message shows of a thing: its repr, or the first of a long one."""
    try:
        text = repr(thing)
    except ValueError:  # an integer with very many digits
        text = f"a {type(thing).__name__} that is too long to show"
    return text if len(text) <= 60 and "\n" not in text else f"a {type(thing).__name__} such as {text[:40]}…"


def bad_size(name: str, size: int, where: Where) -> MeshError:
    """The error for an axis without devices."""
    return MeshError(
        f"The mesh axis {quoted(name)} has size {size}.",
        where=where(),
        why="an axis has at least one device",
        fix=f"{quoted(name)}=1, or leave the axis out",
    )


def check_axes(names: Iterable[Any], sizes: tuple[int, ...], where: Where) -> tuple[str, ...]:
    """The names, if they are strings, one for each size and no two the same, and the sizes are those of axes."""
    found = tuple(names)
    if len(found) != len(sizes):
        raise MeshError(
            f"A mesh of shape {short(sizes)} needs {len(sizes)} axis names, not {len(found)}.",
            where=where(),
            why="each dim of the mesh is one named axis",
            fix=f"mw.make_mesh({tuple(max(size, 1) for size in sizes)}, {_example_names(len(sizes))})",
        )
    seen: set[str] = set()
    devices = 1
    for position, name in enumerate(found):
        if not isinstance(name, str):
            raise MeshError(
                f"A mesh axis cannot be named {short(name)}.", where=where(), why="names are strings", fix='"x"'
            )
        if sizes[position] < 1:
            raise bad_size(name, sizes[position], where)
        devices *= sizes[position]
        if devices > MOST_DEVICES:
            raise MeshError(
                f"With the axis {quoted(name)} the mesh has too many devices.",
                where=where(),
                why="there are at most 2**1024",
                fix=f"a smaller {quoted(name)}, or leave the axis out",
            )
        if name in seen:
            raise MeshError(
                f"Two axes of the mesh are named {quoted(name)}.",
                where=where(),
                why="shardings refer to axes by name",
                fix=f"rename one of them: {quoted(_free_name(name, found))}",
            )
        seen.add(name)
    return found


def check_ids(
    ids: tuple[int, ...],
    sizes: tuple[int, ...],
    where: Where,
    where_id: Callable[[int], str] | None = None,
    exact: bool = False,
) -> None:
    """Each device once, as many as the axes say; in MLIR's text (``exact``) they are the numbers from 0 up.

    ``where`` is the place of the list, ``where_id`` that of one of its entries.
    """

    def place(position: int) -> str:
        return where() if where_id is None else where_id(position)

    negative = next((position for position, id in enumerate(ids) if id < 0), None)
    if negative is not None:
        raise MeshError(
            f"The device id {ids[negative]} is negative.",
            where=place(negative),
            why="devices are numbered from 0",
            fix="0",
        )
    if not sizes and len(ids) > 1:
        raise MeshError(
            f"A mesh without axes has {len(ids)} devices.",
            where=where(),
            why="without axes it stands for one device",
            fix=f'<["x"={len(ids)}], device_ids=[{_some(ids)}]>, or device_ids=[{ids[0]}]',
        )
    if sizes and len(ids) != prod(sizes):
        raise MeshError(
            f"The axes have {prod(sizes)} places and {len(ids)} devices are given.",
            where=where(),
            why=f"{' * '.join(map(str, sizes))} is {prod(sizes)}",
            fix=f"give {prod(sizes)} devices, or none for the order 0, 1, 2, …",
        )
    if len(set(ids)) != len(ids):
        first = {id: position for position, id in reversed(list(enumerate(ids)))}
        repeated = next(position for position, id in enumerate(ids) if first[id] < position)
        raise MeshError(
            f"The device {ids[repeated]} is given twice.",
            where=place(repeated),
            why="each device has one place in a mesh",
            fix="give each device once",
        )
    if exact and sizes and max(ids) >= len(ids):
        rank = {id: position for position, id in enumerate(sorted(ids))}
        raise MeshError(
            f"The device ids [{_some(ids)}] are not an order of 0, …, {len(ids) - 1}.",
            where=where(),
            why="every mesh of a program views all of its devices, each numbered once",
            fix=f"device_ids=[{_some([rank[id] for id in ids])}]",
        )


def _some(ids: Sequence[int], most: int = 64) -> str:
    shown = [*map(str, ids[:most]), *["…"] * (len(ids) > most)]
    return ", ".join(shown)
