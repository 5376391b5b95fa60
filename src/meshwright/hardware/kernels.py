"""How long kernels take on a machine that was measured: a roofline with launches, tiles, waves and power.

A program takes ``start + Σ kernels``, or the host's call if that takes longer. A kernel takes ``launch + work``. The
work of one that reads and writes is bytes over the bandwidth that kernels of its kind reach, or elements over the rate
at which threads get through them. A product is cut into tiles, one at a time per compute unit, so that it takes whole
waves:

    compute = ramp + waves · (fill + bytes of a tile / store + 2·rows·columns·k / (rate per unit) · slower)
    slower = (1 + edge·(1/rows + 1/columns)) / (1 + edge·(1/256 + 1/128))

for the tile, and the number of parts k is split into, that make it shortest, as libraries choose them. ``rate`` is
that of the largest tile, ``ramp`` the first loads of the kernel, ``fill`` a tile's start and end, ``store`` the rate at
which a unit writes results, and ``edge`` what small tiles load beyond what they multiply. Parts of k are added up by
another kernel; a deep product of few tiles is always split, and copied first if 64 does not divide k. ``sustained`` is
the rate that the chip's power allows when products run for long. A product takes about the longest of compute, memory
and power: their norm of order 6, since they hide behind each other but not wholly.

On a CPU the whole product is one tile, and its rate that of a large one. A kernel that keeps a row on the chip reads
and writes less at once the longer the row, ``bytes / bandwidth · (1 + (row / room)²)``, and its threads go through rows
that are padded to a power of two, beyond 2048 elements to a multiple of 1024; each reduction waits until a
unit has gone through a whole row. Fused attention is cut into tiles of 128
queries; each takes the time of its products and then that of its exponentials. Products of operands that are half zeros
(after a relu) take less power and are slowed less. Convolutions are called by the host one
at a time, which takes a while, however small they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import lru_cache
from math import ceil, log2
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.core.source import here
from meshwright.errors import HardwareError
from meshwright.hardware.chips import Chip, brief, get, is_number, item_bytes, names

# Rows and columns of the tiles that matrix units of GPUs are given; their sums must fit into registers.
_COLUMNS = (32, 64, 96, 128, 160, 192, 224, 256)
_EITHER_WAY = {(rows, columns) for rows in (64, 128, 192, 256) for columns in _COLUMNS if rows * columns <= 2**15}
TILES = tuple(sorted(_EITHER_WAY | {(columns, rows) for rows, columns in _EITHER_WAY}))
FEW_TILES = ((64, 64), (64, 128), (128, 64), (128, 128), (256, 64), (256, 128))  # of f32, and of convolutions
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 32)
SPLIT_DEPTH, SPLIT_BELOW = 1024, 0.45  # k from which a product is split whose tiles are for fewer of the units
RAMP_DEPTH = 256  # of k, whose loads are under way before a unit multiplies: products that are shallower start sooner
HALF_ZERO = 1.2  # how much faster power lets products of half zeros run: those of the measured MLP step
ATTENTION_ROWS = 128  # queries that a unit attends from at a time
MOVING = ("stream", "reduce", "column_reduce", "normalize", "transpose", "gather", "scatter")
CONVOLUTIONS = ("conv", "conv_input_grad", "conv_filter_grad")

Work = Mapping[str, Any]

# The numbers of which there is one for each dtype or kind of kernel.
_BY_NAME = ("flops_per_s", "edge", "share", "store_bytes_per_s", "ramp_seconds", "reduce_seconds",
            "sustained_flops_per_s", "library_seconds")  # fmt: skip


@dataclass(frozen=True)
class Kernels:
    """The numbers of a measured machine, and the times they predict."""

    units: int
    tiled: bool
    call_seconds: float
    start_seconds: float
    launch_seconds: float
    bytes_per_s: float
    elements_per_s: float
    fill_seconds: float
    flops_per_s: Mapping[str, float]
    edge: Mapping[str, float]
    share: Mapping[str, float] = field(default_factory=dict)
    row_bytes: float = 1e5
    exponentials_per_s: float = 4e12
    row_elements_per_s: float = 1e30
    row_bytes_per_s: float = 1e30
    attention_seconds: float = 0.0
    attention_fill_seconds: float = 0.0
    store_bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    ramp_seconds: Mapping[str, float] = field(default_factory=dict)
    reduce_seconds: Mapping[str, float] = field(default_factory=dict)
    sustained_flops_per_s: Mapping[str, float] = field(default_factory=dict)
    library_seconds: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, chip: str | Chip) -> Kernels:
        """The numbers of a chip that was measured, or of the file that ``meshwright calibrate`` wrote.

        Of a chip whose kernels are ``like`` another's, they are those of the other one, moved by the data sheets.

        >>> Kernels.of("h100").flops_per_s["bf16"] == Kernels.of("h200").flops_per_s["bf16"]
        True
        """
        found = get(chip)
        numbers: Any = found.kernels
        if "like" in numbers and numbers["like"] in names():
            other = get(numbers["like"])
            return cls.of(other).moved(other, found, numbers.get("share"))
        why = _wrong(numbers)
        if why:
            raise HardwareError(
                f"The kernels of {found.name} cannot be used.",
                where=here(),
                why=why,
                fix="meshwright calibrate --out chip.json",
            )
        return cls(**{one.name: numbers[one.name] for one in fields(cls) if one.name in numbers})

    def moved(self, chip: Chip, other: Chip, share: float | None = None) -> Kernels:
        """The same kernels on another chip, as far as data sheets tell: its units, clock, bandwidth and peak rates.

        ``share`` of the peak rate is what large products reach there; as much as here, if it is not given.
        """
        memory = other.hbm_bytes_per_s / chip.hbm_bytes_per_s
        lanes = other.sms * other.clock_hz / (chip.sms * chip.clock_hz)
        rate = other.flops_per_s("bf16") / chip.flops_per_s("bf16")
        if share is not None:
            rate *= share * chip.flops_per_s("bf16") / self.flops_per_s["bf16"]

        def times(factor: float, numbers: Mapping[str, float]) -> dict[str, float]:
            return {dtype: factor * number for dtype, number in numbers.items()}

        flops = times(rate, self.flops_per_s)
        return replace(
            self,
            units=int(other.sms),
            bytes_per_s=memory * self.bytes_per_s,
            row_bytes_per_s=memory * self.row_bytes_per_s,
            store_bytes_per_s=times(memory, self.store_bytes_per_s),
            elements_per_s=lanes * self.elements_per_s,
            row_elements_per_s=lanes * self.row_elements_per_s,
            exponentials_per_s=lanes * self.exponentials_per_s,
            flops_per_s=flops,
            sustained_flops_per_s=times(rate, self.sustained_flops_per_s) if share is None else flops,
        )

    def seconds(self, work: Iterable[Work], calls: float = 1.0) -> float:
        """The time of a program: its kernels one after another, or the call if that takes longer.

        ``calls`` is less than 1 if the work is one of several parts of a program.
        """
        kernels = sum(self.kernel_seconds(one) * int(one.get("count", 1)) for one in work)
        return max(self.call_seconds * calls, self.start_seconds * calls + kernels)

    def kernel_seconds(self, one: Work) -> float:
        """The time of one kernel, its launch included."""
        kind = one["kind"]
        if kind in MOVING:
            sizes = (one.get("elements", 0), one.get("row", 0), one.get("passes", 1))
            return self.moving(kind, one["read"] + one["written"], *sizes)
        if kind == "matmul":
            dense, batch = one.get("dense", True), one.get("batch", 1)
            return self.matmul(one["m"], one["k"], one["n"], one["dtype"], batch=batch, dense=dense)
        if kind in CONVOLUTIONS:
            return self.convolution(one)
        if kind == "attention":
            return self.attention(one)
        raise HardwareError(
            f"No kernel is of the kind {kind!r}.",
            where=here(),
            why=f"there are {', '.join((*MOVING, 'matmul', *CONVOLUTIONS, 'attention'))}",
            fix="{'kind': 'stream', 'read': …, 'written': …}",
        )

    def moving(self, kind: str, bytes: float, elements: float = 0, row: float = 0, passes: int = 1) -> float:
        """The time of a kernel that does little but read and write.

        ``elements`` are those that an elementwise kernel goes through; ``row`` is the bytes of a row that a norm keeps
        on the chip, and ``passes`` how often it reduces them.

        >>> chip = Kernels(132, True, 0.0, 0.0, 2e-6, 4e12, 8e11, 1e-6, {"bf16": 8e14}, {"bf16": 20.0})
        >>> round(chip.moving("stream", 4e8) * 1e6), round(chip.moving("stream", 4e8, 1e8) * 1e6)
        (102, 127)
        """
        memory = bytes / (self.bytes_per_s * self._share(kind))
        if kind in ("stream", "gather"):
            memory = max(memory, elements / (self.elements_per_s * self._share(kind)))
        if kind == "normalize":
            memory *= 1 + (row / self.row_bytes) ** 2
            memory = max(memory, elements * passes * _padding(row / 4) / self.row_elements_per_s)
            memory += passes * row / self.row_bytes_per_s
        return self.launch_seconds + memory

    def attention(self, one: Work) -> float:
        """The time of fused attention: ``flops``, ``exponentials`` and ``bytes``, from ``queries`` queries of each of
        ``batch`` heads, if they are known."""
        rate = self._rate(one["dtype"]) * self._share("attention")
        compute: float = one["flops"] / rate + one["exponentials"] / self.exponentials_per_s
        if "queries" in one and self.tiled:
            tiles = one.get("batch", 1) * ceil(one["queries"] / ATTENTION_ROWS)
            waves = ceil(tiles / self.units)
            compute = waves * (self.attention_fill_seconds + compute / tiles * self.units)
        return self.launch_seconds + self.attention_seconds + max(compute, float(one["bytes"]) / self.bytes_per_s)

    def matmul(
        self,
        m: int,
        k: int,
        n: int,
        dtype: object = "bf16",
        *,
        batch: int = 1,
        kind: str = "matmul",
        dense: bool = True,
    ) -> float:
        """The time of ``batch`` products of ``[m, k]`` and ``[k, n]``; ``dense`` is whether few elements are zero.

        >>> chip = Kernels(132, True, 0.0, 0.0, 2e-6, 4e12, 8e11, 1e-6, {"bf16": 8e14}, {"bf16": 20.0})
        >>> round(chip.matmul(4096, 4096, 4096) * 1e6)
        183
        """
        moved = batch * (m * k + k * n + m * n) * item_bytes(dtype)
        return self.product(m, k, n, dtype, batch, moved, kind, dense=dense)

    def convolution(self, one: Work) -> float:
        """A convolution or the gradient of one, as the product it amounts to; arrays are read and written once."""
        pixels, window = one["images"] * one["side"] ** 2, one["kernel"] ** 2
        channels, features = one["in"], one["out"]
        batch, m, k, n = {
            "conv": (1, pixels, channels * window, features),
            "conv_input_grad": (1, pixels, features * window, channels),
            "conv_filter_grad": (window, channels, pixels, features),
        }[one["kind"]]
        moved = (pixels * (channels + features) + channels * features * window) * item_bytes(one["dtype"])
        return self.product(m, k, n, one["dtype"], batch, moved, one["kind"], window=window)

    def product(
        self,
        m: int,
        k: int,
        n: int,
        dtype: object,
        batch: int,
        moved: float,
        kind: str,
        *,
        window: int = 1,
        dense: bool = True,
    ) -> float:
        """The time of products, or of what amounts to them, that read and write ``moved`` bytes in all.

        ``window`` is the size of a convolution's. A product of operands that are not ``dense`` takes less power.
        """
        name = str(dtype)
        few = name == "f32" or (kind in CONVOLUTIONS and window > 1)
        ramp = self.ramp_seconds.get(name, 0.0) * (1 if few else k / (k + RAMP_DEPTH))
        compute = (ramp + self._compute(m, k, n, name, batch, few, kind == "matmul")) / self._share(kind)
        memory = moved / (self.bytes_per_s * self._share("operands"))
        if not self.tiled:
            return self.launch_seconds + max(compute, memory)
        sustained = self.sustained_flops_per_s.get(name, 1e30) * (1 if dense else HALF_ZERO)
        power = 2 * batch * m * k * n / (sustained * self._share(kind))
        work = _together((compute, ramp + memory, power))
        return max(self.launch_seconds + work, self.library_seconds.get(kind, 0.0))

    def _compute(self, m: int, k: int, n: int, dtype: str, batch: int, few: bool, plain: bool) -> float:
        rate, edge = self._rate(dtype), self.edge[dtype]
        if not self.tiled:
            return batch * (self.fill_seconds + 2 * m * k * n / rate * (1 + edge * (1 / m + 1 / n)))
        split = plain and k >= SPLIT_DEPTH and batch * ceil(m / 128) * ceil(n / 128) < SPLIT_BELOW * self.units
        found = _tilings(m, k, n, batch, self.units, few, split)
        slower = (1 + edge * found.edges) / (1 + edge * (1 / 256 + 1 / 128))
        tile = self.fill_seconds + found.area * (item_bytes(dtype) / self.store_bytes_per_s.get(dtype, 1e30))
        tile = tile + found.multiplied * slower * (self.units / rate)
        partial = found.split * self.reduce_seconds.get(dtype, 0.0) + found.partial * (8 / self.bytes_per_s)
        shortest = float((found.waves * tile + partial).min())
        if not split or k % 64 == 0:
            return shortest
        moved = [2 * batch * size * item_bytes(dtype) for size in (m * k, k * n)]
        return shortest + sum(self.moving("stream", bytes, bytes / (2 * item_bytes(dtype))) for bytes in moved)

    def _share(self, kind: str) -> float:
        return self.share.get(kind, 1.0)

    def _rate(self, dtype: str) -> float:
        if dtype not in self.flops_per_s:
            raise HardwareError(
                f"No products of {dtype} were measured.",
                where=here(),
                why=f"those of {', '.join(self.flops_per_s)} were",
                fix=f"dtype={next(iter(self.flops_per_s), 'f32')!r}",
            )
        return self.flops_per_s[dtype]


class _Tilings(NamedTuple):
    """All ways to cut a product: for each the waves, the FLOPs and elements of a tile, and what is added up after."""

    waves: NDArray[np.float64]
    multiplied: NDArray[np.float64]
    area: NDArray[np.float64]
    edges: NDArray[np.float64]
    split: NDArray[np.float64]
    partial: NDArray[np.float64]


@lru_cache(maxsize=4096)
def _tilings(m: int, k: int, n: int, batch: int, units: int, few: bool, split: bool) -> _Tilings:
    rows, columns = np.array(FEW_TILES if few else TILES, np.float64).T[:, :, None]
    parts = np.array(SPLITS, np.float64)
    tiles = batch * np.ceil(m / rows) * np.ceil(n / columns)
    some = (tiles * parts <= 4 * units) & (k / parts >= 128) & (parts > 1)
    fine = some if split and some.any() else some | (parts == 1) if k % 64 == 0 else (parts == 1) & (tiles > 0)
    every = np.broadcast_arrays(
        np.ceil(tiles * parts / units),
        2 * rows * columns * np.ceil(k / parts / 32) * 32,
        rows * columns,
        1 / rows + 1 / columns,
        parts > 1,
        np.where(parts > 1, float(batch * m * n) * parts, 0.0),
    )
    return _Tilings(*(one[fine].astype(np.float64) for one in every))


def _together(times: Iterable[float]) -> float:
    """About the longest of some times: the norm of order 6, as they hide behind each other but not wholly."""
    longest = max(times)
    return longest * sum((one / longest) ** 6 for one in times) ** (1 / 6) if longest else 0.0


def _padding(columns: float) -> float:
    """How many times as long a row is once it is padded: to a power of two, beyond 2048 to a multiple of 1024."""
    if columns < 1:
        return 1.0
    return (2.0 ** ceil(log2(columns)) if columns <= 2048 else 1024.0 * ceil(columns / 1024)) / columns


def _wrong(numbers: Mapping[str, Any]) -> str:
    """What is wrong with the numbers that a file has of kernels; nothing if nothing is."""
    for one in fields(Kernels):
        if one.name not in numbers:
            if one.default is MISSING and one.default_factory is MISSING:
                return f"they have no {one.name}"
            continue
        value = numbers[one.name]
        if one.name == "tiled":
            fine = isinstance(value, bool)
        elif one.name in _BY_NAME:
            zero = one.name == "edge" or one.name.endswith("_seconds")
            fine = isinstance(value, dict) and all(is_number(n) and (n or zero) for n in value.values())
        else:  # a time may be nothing, a rate or a size is more
            fine = is_number(value) and (value > 0 or one.name.endswith("_seconds"))
        if not fine:
            return f"their {one.name} is {brief(value)}"
    absent = [dtype for dtype in numbers["flops_per_s"] if dtype not in numbers["edge"]]
    return f"their edge has no {absent[0]}" if absent else ""
