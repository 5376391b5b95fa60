"""What a mesh must satisfy, each rule with its own error."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import numpy as np

from meshwright.core.axes import quoted
from meshwright.errors import MeshError

Where = Callable[[], str]


def check_sizes(sizes: Any, where: Where) -> tuple[int, ...]:
    """The sizes as a tuple of ints."""
    given = (sizes,) if isinstance(sizes, int | np.integer) else tuple(sizes)
    if not all(isinstance(size, int | np.integer) for size in given):
        raise MeshError(
            f"The sizes of a mesh are integers, not {given}.",
            where=where(),
            why="each is a number of devices",
            fix='mw.make_mesh((2, 4), ("x", "y"))',
        )
    return tuple(int(size) for size in given)


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
            f"A mesh of shape {sizes} needs {len(sizes)} axis names, not {len(found)}.",
            where=where(),
            why="each dim of the mesh is one named axis",
            fix=f"mw.make_mesh({sizes}, {tuple('xyzwabcdefgh'[: len(sizes)])})",
        )
    for position, name in enumerate(found):
        if not isinstance(name, str):
            raise MeshError(
                f"A mesh axis cannot be named {name!r}.", where=where(), why="names are strings", fix=f'"{name}"'
            )
        if sizes[position] < 1:
            raise bad_size(name, sizes[position], where)
        if name in found[:position]:
            raise MeshError(
                f"Two axes of the mesh are named {quoted(name)}.",
                where=where(),
                why="shardings refer to axes by name",
                fix=f"rename one of them: {quoted(name + '2')}",
            )
    return found


def check_ids(ids: tuple[int, ...], sizes: tuple[int, ...], where: Where, exact: bool = False) -> None:
    """Each device once, as many as the axes say; in text (``exact``) they are the numbers from 0 up."""
    negative = next((id for id in ids if id < 0), None)
    if negative is not None:
        raise MeshError(
            f"The device id {negative} is negative.", where=where(), why="devices are numbered from 0", fix="0"
        )
    if not sizes and len(ids) > 1:
        raise MeshError(
            f"A mesh without axes has {len(ids)} devices.",
            where=where(),
            why="without axes it stands for one device",
            fix=f'<["x"={len(ids)}], device_ids=[{", ".join(map(str, ids))}]>, or device_ids=[{ids[0]}]',
        )
    if sizes and len(ids) != prod(sizes):
        raise MeshError(
            f"The axes have {prod(sizes)} places and {len(ids)} devices are given.",
            where=where(),
            why=f"{' * '.join(map(str, sizes))} is {prod(sizes)}",
            fix=f"give {prod(sizes)} devices, or none for the order 0, 1, 2, …",
        )
    if len(set(ids)) != len(ids):
        repeated = next(id for i, id in enumerate(ids) if id in ids[:i])
        raise MeshError(
            f"The device {repeated} is given twice.",
            where=where(),
            why="each device has one place in a mesh",
            fix="give each device once",
        )
    if exact and sizes and max(ids) >= len(ids):
        raise MeshError(
            f"The device ids [{', '.join(map(str, ids))}] are not an order of 0, …, {len(ids) - 1}.",
            where=where(),
            why="every mesh of a program views all of its devices, each numbered once",
            fix=f"device_ids=[{', '.join(str(sorted(ids).index(id)) for id in ids)}]",
        )
