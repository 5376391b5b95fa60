"""HLO's text of a sharding: tiles of devices, ``{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}``.

The tiles are an array of device numbers with one dim per dim of the tensor and one more for each kind of device that
shares a tile: ``manual``, ``unreduced``, ``replicated``, in this order. ``<=[2,2]T(1,0)`` is the array 0, 1, 2, 3
reshaped to [2,2], transposed by (1,0) and reshaped to the tiles' dims: digits of the device number in another order. An
array that is not of this kind is written out, ``{devices=[2,2]0,3,1,2}``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from meshwright.core.source import here
from meshwright.errors import ShardingError
from meshwright.sharding.axes import Axes, in_mesh_order
from meshwright.sharding.mesh import AxisType, BaseMesh, Mesh
from meshwright.sharding.mesh_check import MOST_DEVICES, check_listable
from meshwright.sharding.placement import (
    Digit,
    Digits,
    axes_of,
    digits_in_order,
    digits_of,
    independent,
    merged,
    positions_in_order,
)
from meshwright.sharding.text_sdy import TokenReader

KINDS = ("manual", "unreduced", "replicated")


class Tiles(NamedTuple):
    """The sizes of the tiles' dims, the kinds of the last of them, and the devices as digits or as a list.

    Without tiles (``dims`` is None) each device has the whole tensor, shared as ``kinds`` says, or only ``device`` has.
    """

    dims: tuple[int, ...] | None = None
    kinds: tuple[str, ...] = ()
    digits: Digits | None = None
    devices: tuple[int, ...] | None = None
    device: int | None = None
    at: int = 1  # where the text says what the tiles are
    kinds_at: int = 1

    @property
    def size(self) -> int:
        """How many devices there are."""
        return prod(self.dims or ())

    def per_dim(self) -> tuple[Digits, ...] | None:
        """The digits of each dim of the tiles; None if a dim ends inside a digit, or the devices have no digits."""
        digits = self.digits
        if digits is None and self.devices is not None:
            digits = digits_in_order(self.devices)
        if digits is None or self.dims is None:
            return None
        left, result = list(digits), []
        for size in self.dims:
            taken: list[Digit] = []
            while size > 1:
                digit = left.pop(0)
                if size % digit.size == 0:
                    taken.append(digit)
                    size //= digit.size
                elif digit.size % size == 0:
                    taken.append(Digit(digit.stride * (digit.size // size), size))
                    left.insert(0, Digit(digit.stride, digit.size // size))
                    size = 1
                else:
                    return None
            result.append(merged(taken))
        return tuple(result)

    def listed(self, where: Callable[[], str]) -> tuple[int, ...]:
        """The devices in the order of the tiles."""
        if self.devices is not None:
            return self.devices
        check_listable(self.size, 0, where)
        return tuple(positions_in_order(self.digits or ()).tolist())


def tiles_text(
    dims: Sequence[Digits], tail: Sequence[tuple[str, Digits]], device_order: tuple[int, ...] | None = None
) -> str:
    """The text of a tensor with these digits per dim and per kind of sharing, over all devices.

    >>> tiles_text([(Digit(1, 2),), ()], [("replicated", (Digit(2, 2),))])
    '{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}'
    """
    tail = [(kind, digits) for kind in KINDS for found, digits in tail if found == kind and digits]
    sizes = [prod(digit.size for digit in digits) for digits in (*dims, *(digits for _, digits in tail))]
    if all(size == 1 for size in sizes[: len(dims)]) and len(tail) <= 1:
        return f"{{{tail[0][0] if tail else 'replicated'}}}"
    digits: Digits | None = merged(digit for part in (*dims, *(digits for _, digits in tail)) for digit in part)
    listed: list[int] = []
    if device_order is not None:
        ids = np.array(device_order)[positions_in_order(digits or ())].reshape(sizes)
        if tail and tail[-1][0] == "replicated":
            ids.sort(axis=-1)  # devices that hold the same may stand in any order
        listed = ids.ravel().tolist()
        digits = digits_in_order(tuple(listed))
    devices = ",".join(map(str, listed)) if digits is None else "<=" + iota_text(digits)
    kinds = [kind for kind, _ in tail]
    end = " last_tile_dim_replicate" if kinds == ["replicated"] else f" last_tile_dims={{{', '.join(kinds)}}}"
    return f"{{devices=[{','.join(map(str, sizes))}]{devices}{end if kinds else ''}}}"


def iota_text(digits: Digits) -> str:
    """The digits as a reshape and transpose of 0, 1, 2, …"""
    by_stride = sorted(range(len(digits)), key=lambda i: -digits[i].stride)
    shape = ",".join(str(digits[i].size) for i in by_stride)
    places = {i: place for place, i in enumerate(by_stride)}
    turn = ",".join(str(places[i]) for i in range(len(digits)))
    return f"[{shape}]" + (f"T({turn})" if len(digits) > 1 else "")


def read_tiles(text: str) -> tuple[Tiles, TokenReader]:
    """Read HLO's text of a sharding; an error points at the character."""
    reader = TokenReader(text, "HLO sharding")
    reader.take("{")
    word = next((w for w in ("devices", "maximal", *KINDS) if reader.sees(w)), None)
    if word is None:
        raise reader.expected("`devices=`, `replicated`, `manual`, `unreduced` or `maximal device=`")
    reader.take(word)
    if word == "devices":
        tiles = _read_tiled(reader)
    elif word == "maximal":
        reader.take("device")
        reader.take("=")
        at = reader.at
        tiles = Tiles(device=reader.integer())
        if tiles.device is not None and tiles.device < 0:
            raise reader.error("devices are numbered from 0", at)
    else:
        tiles = Tiles(kinds=(word,))
    reader.take("}")
    reader.finish()
    return tiles, reader


def _read_tiled(reader: TokenReader) -> Tiles:
    reader.take("=")
    dims_at = reader.at
    reader.take("[")
    dims = reader.listed(reader.integer, "]", may_be_empty=False)
    count, at = prod(dims), reader.at
    if min(dims) < 1:
        raise reader.error("a tile dim has at least one tile", at - 1)
    if count > MOST_DEVICES:
        raise reader.error("there are at most 2**1024 tiles", dims_at)
    digits: Digits | None = None
    devices: tuple[int, ...] | None = None
    if reader.accept("<"):
        digits = _read_iota(reader, count)
    else:
        numbers: list[int] = []
        places: list[int] = []
        while not numbers or reader.accept(","):
            places.append(reader.at)
            numbers.append(reader.integer())
        devices = tuple(numbers)
        if len(devices) != count or not set(devices).issuperset(range(count)):
            first = {number: i for i, number in reversed(list(enumerate(devices)))}
            wrong = (i for i, number in enumerate(devices) if not 0 <= number < count or first[number] < i)
            place = places[next(wrong)] if len(devices) == count else at
            raise reader.error(f"{count} tiles hold each of the devices 0, …, {count - 1} once", place)
    at = reader.at
    kinds: tuple[str, ...] = ()
    if reader.accept("last_tile_dim_replicate"):
        kinds = ("replicated",)
    elif reader.accept("last_tile_dims"):
        reader.take("=")
        reader.take("{")
        kinds = reader.listed(lambda: reader.token("word", "a kind of sharing"), "}", may_be_empty=False)
    if any(kind not in KINDS for kind in kinds) or len(set(kinds)) < len(kinds) or len(kinds) > len(dims):
        raise reader.error(f"the kinds are {', '.join(KINDS)}, each once, for the last of {len(dims)} dims", at)
    return Tiles(dims, kinds, digits, devices, at=dims_at, kinds_at=at)


def _read_iota(reader: TokenReader, count: int) -> Digits:
    """``=[2,2]T(1,0)``, after a ``<``."""
    reader.take("=")
    at = reader.at
    reader.take("[")
    shape = reader.listed(reader.integer, "]", may_be_empty=False)
    if min(shape) < 1:
        raise reader.error("a dim has at least one device", at)
    if prod(shape) > MOST_DEVICES:
        raise reader.error("there are at most 2**1024 devices", at)
    if prod(shape) != count:
        raise reader.error(f"these are {prod(shape)} devices, and there are {count} tiles", at)
    turn = tuple(range(len(shape)))
    if reader.sees("T") or len(shape) > 1:
        reader.take("T")
        at = reader.at
        reader.take("(")
        turn = reader.listed(reader.integer, ")", may_be_empty=False)
        if sorted(turn) != list(range(len(shape))):
            raise reader.error(f"a transpose of {len(shape)} dims is an order of 0, …, {len(shape) - 1}", at)
    strides = [prod(shape[i + 1 :]) for i in range(len(shape))]
    return merged(Digit(strides[i], shape[i]) for i in turn)


# Between tiles and axes


def axes_to_hlo(
    mesh: BaseMesh, dims: Sequence[Axes], unreduced: Axes, reduction: str, order: tuple[int, ...] | None
) -> str:
    """HLO's text of a tensor split over these axes; ``order`` numbers the devices."""
    if mesh.is_maximal and mesh.order is not None:
        return f"{{maximal device={mesh.order[0]}}}"
    if unreduced and reduction != "sum":
        why = "its unreduced tiles are those of a sum"
        raise not_expressible(f"HLO cannot say that a {reduction} is unreduced.", why)
    used = [*(axis for axes in dims for axis in axes), *unreduced]
    left = mesh.unused(used)
    manual = [axis for axis in left if axis.name in mesh.manual_axes]
    kept = [axis for axis in left if axis.name not in mesh.manual_axes]
    parts = [digits_of(mesh, axes) for axes in dims]
    tail = [digits_of(mesh, axes) for axes in (manual, unreduced, kept)]
    if not independent(digit for part in (*parts, *tail) for digit in part):
        raise not_expressible(
            f"The sub-axes {', '.join(map(str, used))} are no tiles.", "no reshape of their axis has all of them"
        )
    return tiles_text(parts, list(zip(KINDS, tail, strict=True)), order)


def axes_from_hlo(
    tiles: Tiles,
    mesh: BaseMesh | None,
    ndim: int | None,
    order: tuple[int, ...] | None,
    where: Callable[[int], str],
) -> tuple[BaseMesh, tuple[Axes, ...], Axes]:
    """The mesh, the axes of each dim and the unreduced axes; ``order`` is how the tiles number the mesh's devices.

    ``where`` shows a place of the text that was read.
    """
    if tiles.device is not None:
        return Mesh._of((), (), None, (tiles.device,), name=""), (), ()
    rank = len(tiles.dims) - len(tiles.kinds) if tiles.dims is not None else ndim
    if rank is None or (mesh is None and tiles.kinds in (("manual",), ("unreduced",)) and tiles.dims is None):
        what = "how many dims the tensor has" if rank is None else "which devices there are"
        given = "mesh, " * (mesh is not None or rank is not None or tiles.kinds != ("replicated",))
        raise ShardingError(
            "The text does not say enough.",
            where=where(tiles.at),
            why=f"{{{tiles.kinds[0]}}} is said of tensors of any rank on any devices: it does not say {what}",
            fix=f"from_hlo(text, {given}ndim={2 if rank is None else rank})",
        )
    if ndim is not None and rank != ndim:
        shared = f"the last {len(tiles.kinds)} for devices that share a tile" if tiles.kinds else "one for each dim"
        raise ShardingError(
            f"The tiles are those of a tensor of {rank} dims, not {ndim}.",
            where=where(tiles.at),
            why=f"the tiles have {len(tiles.dims or ())} dims, {shared}" if tiles.dims else "the ranks differ",
            fix=f"ndim={rank}, or leave ndim out",
        )
    if tiles.dims is None:
        mesh = Mesh([], (), name="") if mesh is None else mesh
        if tiles.kinds == ("manual",):
            mesh = _with_manual(mesh, mesh.axes, where(tiles.kinds_at))
        return mesh, ((),) * rank, mesh.axes if tiles.kinds == ("unreduced",) else ()
    if mesh is None:
        mesh, axes = _mesh_for(tiles, where)
    else:
        axes = _axes_on(mesh, tiles, order, where)
    kinds = dict(zip(tiles.kinds, axes[rank:], strict=True))
    if "manual" in kinds:
        mesh = _with_manual(mesh, kinds["manual"], where(tiles.kinds_at))
    return mesh, axes[:rank], in_mesh_order(kinds.get("unreduced", ()), mesh.axis_names)


def _mesh_for(tiles: Tiles, where: Callable[[int], str]) -> tuple[Mesh, tuple[Axes, ...]]:
    """A mesh with an axis for each digit; if the tiles have none, with an axis for each dim and a device order."""
    dims = tiles.per_dim()
    order: tuple[int, ...] | None = None
    if dims is None:
        order, sizes = tiles.listed(lambda: where(tiles.at)), tiles.dims or ()
        strides = [prod(sizes[i + 1 :]) for i in range(len(sizes))]
        dims = tuple(merged([Digit(stride, size)]) for stride, size in zip(strides, sizes, strict=True))
    found = sorted({digit for digits in dims for digit in digits}, reverse=True)
    names = {digit: f"_axis_{i}" for i, digit in enumerate(found)}
    shape = tuple(digit.size for digit in found) or (1,)
    mesh = Mesh._of(shape, tuple(names.values()) or ("_axis_0",), None, order, name="")
    return mesh, tuple(tuple(mesh.axis_by_name[names[digit]] for digit in digits) for digits in dims)


def _axes_on(
    mesh: BaseMesh, tiles: Tiles, order: tuple[int, ...] | None, where: Callable[[int], str]
) -> tuple[Axes, ...]:
    if mesh.size != tiles.size:
        raise ShardingError(
            f"The tiles are over {tiles.size} devices and the mesh {mesh} has {mesh.size}.",
            where=where(tiles.at),
            why=f"the product of the tile dims is {tiles.size}, and every device has its tile",
            fix=f'mw.make_mesh(({tiles.size},), ("x",)), or from_hlo(text) for a mesh that is made for it',
        )
    if order is not None or tiles.devices is not None:
        positions = np.array(tiles.listed(lambda: where(tiles.at)))
        if order is not None:
            positions = np.argsort(np.array(order))[positions]
        grid = positions.reshape(tiles.dims)
        if "replicated" in tiles.kinds:
            grid = np.sort(grid, axis=tiles.kinds.index("replicated") - len(tiles.kinds))
        tiles = tiles._replace(digits=None, devices=tuple(grid.ravel().tolist()))
    dims = tiles.per_dim()
    found = tuple(axes for axes in (axes_of(mesh, digits) for digits in dims or ()) if axes is not None)
    if dims is None or len(found) < len(dims):
        raise ShardingError(
            f"The tiles follow no axes of the mesh {mesh}.",
            where=where(tiles.at),
            why="along an axis or a part of one, device numbers grow by equal steps, and those of the tiles do not",
            fix="from_hlo(text) for a mesh that is made for it",
        )
    return found


def _with_manual(mesh: BaseMesh, axes: Axes, where: str) -> BaseMesh:
    part = next((axis for axis in axes if not axis.is_full), None)
    if part is not None:
        raise ShardingError(
            f"A part of {part.name!r} is manual.",
            where=where,
            why="an axis of a mesh is manual as a whole",
            fix=f"a mesh with {part} as an axis of its own, or from_hlo(text) for one that is made for it",
        )
    names = {axis.name for axis in axes}
    types = (AxisType.Manual if n in names else t for n, t in zip(mesh.axis_names, mesh.axis_types, strict=True))
    return mesh.with_(axis_types=tuple(types))


def not_expressible(what: str, why: str) -> ShardingError:
    """The error for a sharding that one of two languages cannot say."""
    fix = "compare placements with .is_equivalent_to, or reshard to a sharding that both can say"
    return ShardingError(what, where=here(), why=why, fix=fix)
