"""How long matrix products take that are cut into tiles: which kernels run them, and the numbers of each family.

A product is cut into tiles, one at a time per compute unit, so that it takes whole waves:

    compute = ramp + waves · (fill + bytes of a tile / store) + loop
    loop    = waves · 2·rows·columns·k / (rate per unit) · slower, or k · step if that is longer (norm of order 2)
    slower  = (1 + edge·(1/rows + 1/columns)) / (1 + edge·(1/256 + 1/128))

for the tile that makes it shortest, as libraries choose theirs. ``rate`` is that of the largest tile, ``ramp`` the
first loads of the kernel, ``fill`` a tile's start and end, ``store`` the rate at which a unit writes results, ``edge``
what small tiles load beyond what they multiply, and ``step`` what a unit waits for each element of k however few tiles
it has. ``sustained`` is the rate that the chip's power allows when tiles run for long. A product takes about the
longest of compute, memory and power: their norm of order 6, since they hide behind each other but not wholly.

XLA chooses between a library's kernels and ones it compiles itself, which are slower in k and sooner done: those run
products that are small, and ones of 2-byte items that are neither deep nor large. A product whose result has few tiles
for its depth is first cut into parts along k, which another kernel adds up; operands are copied and padded if parts
would not begin at whole 16 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, log2, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Rows and columns of the tiles that matrix units of GPUs are given; their sums must fit into registers.
_COLUMNS = (32, 64, 96, 128, 160, 192, 224, 256)
_EITHER_WAY = {(rows, columns) for rows in (64, 128, 192, 256) for columns in _COLUMNS if rows * columns <= 2**15}
TILES = tuple(sorted(_EITHER_WAY | {(columns, rows) for rows, columns in _EITHER_WAY}))
FEW_TILES = ((64, 64), (64, 128), (128, 64), (128, 128), (256, 64), (256, 128))  # of f32, and of convolutions
COMPILED_TILES = ((32, 32), (32, 64), (64, 32), (64, 64), (64, 128), (128, 64), (128, 128), (128, 256))
LINE = 128  # bytes that k is padded to within a unit
ALIGNED = 64  # bytes that rows are multiples of where memory is read fast
PARTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 13, 16, 24, 32, 48)  # of k, in the gradient of a filter
HALF_ZERO = 1.2  # how much faster power lets products of half zeros run: those of the measured MLP step

# A product is cut along k if its result is that of tiles of 128 x 128 for at most some share of the units, and k at
# least so many times the number of such tiles: for 2-byte items, and for 4-byte ones.
SPLIT = {2: ((0.507, 18.3), (1.0, 60)), 4: ((0.507, 23.8), (1.0, 48))}
# XLA's own kernels run products of fewer FLOPs, and of 2-byte items those of less depth and smaller results.
COMPILED_FLOPS = {2: 5e8, 4: 6.2e8}
COMPILED_DEPTH, COMPILED_RESULT, COMPILED_MOST = 1550, 7.5e6, 7e9


@dataclass(frozen=True)
class Tiled:
    """The numbers of one family of kernels; ``operands`` is the share of the bandwidth they read at."""

    flops_per_s: float
    edge: float = 0.0
    sustained_flops_per_s: float = 1e29
    ramp_seconds: float = 0.0
    fill_seconds: float = 0.0
    store_bytes_per_s: float = 1e29
    step_seconds: float = 0.0
    uneven_seconds: float = 0.0  # a step, if parts of k are no multiples of 64
    reduce_seconds: float = 0.0
    operands: float = 1.0
    unaligned: float = 1.0  # how many times as long if rows are no whole lines

    def moved(self, rate: float, memory: float, sustains: bool) -> Tiled:
        """The same kernels on a chip of other rates; ``sustains`` is whether power does not slow it."""
        return replace(
            self,
            flops_per_s=rate * self.flops_per_s,
            sustained_flops_per_s=rate * (self.flops_per_s if sustains else self.sustained_flops_per_s),
            store_bytes_per_s=memory * self.store_bytes_per_s,
        )


class ProductSizes(NamedTuple):
    """The sizes of products, and the bytes of an item."""

    batch: int
    m: int
    k: int
    n: int
    item: int

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.m * self.k * self.n


@lru_cache(maxsize=4096)
def cut(sizes: ProductSizes, units: int) -> tuple[int, int, bool]:
    """Into how many parts XLA cuts k, its depth once it is padded for them, and whether XLA's own kernel runs it.

    >>> cut(ProductSizes(1, 4096, 4096, 4096, 2), 132), cut(ProductSizes(1, 640, 4552, 544, 2), 132)
    ((1, 4096, False), (4, 4576, False))
    """
    k, item = sizes.k, sizes.item
    result = sizes.batch * sizes.m * sizes.n
    share = result / 128**2 / units
    known = 2 if item <= 2 else 4
    small = sizes.flops < COMPILED_FLOPS[known]
    shallow = (
        sizes.flops < COMPILED_MOST and known == 2 and k % 64 == 0 and k < COMPILED_DEPTH and result < COMPILED_RESULT
    )
    tiles = sizes.batch * ceil(sizes.m / 128) * ceil(sizes.n / 128)
    if not any(share <= most and k >= depth * tiles for most, depth in SPLIT[known]):
        return 1, k, small or shallow
    parts = 2 ** max(1, int(log2(max(1.0, min(1.17 / share, 0.06257 * sqrt(k / share), k / 64)))))
    whole = parts * max(1, 16 // item)
    return parts, ceil(k / whole) * whole, small or shallow


def product_seconds(
    numbers: Tiled,
    sizes: ProductSizes,
    moved: float,
    *,
    units: int,
    bytes_per_s: float,
    tiles: tuple[tuple[int, int], ...],
    parts: tuple[int, ...] = (1,),
    written: int = 0,
    dense: bool = True,
) -> float:
    """The time of products without their launch, which read and write ``moved`` bytes.

    k is cut into as many of ``parts`` as is best; ``written`` are the bytes of an item of the result, if they differ
    from those of the operands; ``dense`` is whether few elements are zero.
    """
    batch, m, k, n, item = sizes
    found = _tilings(m, k, n, batch, units, tiles, parts, LINE // item)
    loop = found.waves * found.multiplied * (units / numbers.flops_per_s)
    if numbers.edge:
        loop = loop * ((1 + numbers.edge * found.edges) / (1 + numbers.edge * (1 / 256 + 1 / 128)))
    step = numbers.uneven_seconds if k % 64 else numbers.step_seconds
    if step:
        loop = np.sqrt(loop**2 + (step * k) ** 2)
    tile = numbers.fill_seconds + found.area * ((written or item) / numbers.store_bytes_per_s)
    every = found.waves * tile + loop
    if len(parts) > 1:
        every = every + found.split * numbers.reduce_seconds + found.partial * (8 / bytes_per_s)
    unaligned = numbers.unaligned ** ((k * item % ALIGNED > 0) + (n * item % ALIGNED > 0))
    best = int(every.argmin())
    compute = numbers.ramp_seconds + float(every[best]) * unaligned
    memory = numbers.ramp_seconds + moved / (bytes_per_s * numbers.operands) * unaligned
    power = float(found.padded[best]) / (numbers.sustained_flops_per_s * (1 if dense else HALF_ZERO))
    return together((compute, memory, power))


class _Tilings(NamedTuple):
    """All ways to cut a product: for each the waves, the FLOPs of whole tiles and of one, its elements, and what is
    added up after."""

    waves: NDArray[np.float64]
    padded: NDArray[np.float64]
    multiplied: NDArray[np.float64]
    area: NDArray[np.float64]
    edges: NDArray[np.float64]
    split: NDArray[np.float64]
    partial: NDArray[np.float64]


@lru_cache(maxsize=4096)
def _tilings(
    m: int,
    k: int,
    n: int,
    batch: int,
    units: int,
    tiles: tuple[tuple[int, int], ...],
    parts: tuple[int, ...],
    step: int,
) -> _Tilings:
    rows, columns = np.array(tiles, np.float64).T[:, :, None]
    every = np.array(parts, np.float64)
    count = batch * np.ceil(m / rows) * np.ceil(n / columns) * every
    fine = (every == 1) | ((count <= units) & (k / every >= 128))
    multiplied = 2 * rows * columns * np.ceil(k / every / step) * step
    found = np.broadcast_arrays(
        np.ceil(count / units),
        count * multiplied,
        multiplied,
        rows * columns,
        1 / rows + 1 / columns,
        every > 1,
        np.where(every > 1, float(batch * m * n) * every, 0.0),
    )
    return _Tilings(*(one[fine].astype(np.float64) for one in found))


def together(times: Sequence[float], order: int = 6) -> float:
    """About the longest of some times: the norm of order 6, as they hide behind each other but not wholly.

    >>> round(together((1.0, 0.5, 0.0)), 3)
    1.003
    """
    longest = max(times)
    return longest * sum((one / longest) ** order for one in times) ** (1 / order) if longest else 0.0
