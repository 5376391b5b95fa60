"""How long kernels take on a machine that was measured: a roofline with launches, tiles and waves.

A program takes ``start + Σ kernels``, or the host's call if that takes longer. A kernel takes ``launch + max(compute,
memory)``. Memory is bytes over the bandwidth that kernels of its kind reach, or elements over the rate at which
threads get through them. A product is cut into tiles, one at a time per compute unit, so that it takes whole waves:

    compute = waves · (fill + 2·rows·columns·k / (rate per unit) · slower)
    slower = (1 + edge·(1/rows + 1/columns)) / (1 + edge·(1/256 + 1/128))

for the tile, and the number of parts k is split into, that make it shortest, as libraries choose them. ``rate`` is
that of the largest tile, ``fill`` a tile's start and end, and ``edge`` what small tiles load beyond what they multiply.
On a CPU the whole product is one tile, and its rate that of a large one. A kernel that keeps a row on the chip reads
and writes less at once the longer the row: ``bytes / bandwidth · (1 + row / room)``. Fused attention takes the time of
its products and then that of its exponentials.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from math import ceil
from typing import Any

from meshwright.core.source import here
from meshwright.errors import HardwareError
from meshwright.hardware.chips import Chip, brief, get, is_number, item_bytes

# Rows and columns of the tiles that matrix units of GPUs are given; their sums must fit into registers.
TILES = tuple(
    (rows, columns)
    for rows in (64, 128, 176, 256)
    for columns in (16, 32, 64, 96, 128, 160, 192, 256)
    if rows * columns <= 2**15
)
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 32)
MOVING = ("stream", "reduce", "normalize", "transpose", "gather", "scatter")
CONVOLUTIONS = ("conv", "conv_input_grad", "conv_filter_grad")

Work = Mapping[str, Any]


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

    @classmethod
    def of(cls, chip: str | Chip) -> Kernels:
        """The numbers of a chip that was measured, or of the file that ``meshwright calibrate`` wrote."""
        found = get(chip)
        numbers: Any = found.kernels
        why = _wrong(numbers)
        if why:
            raise HardwareError(
                f"The kernels of {found.name} cannot be used.",
                where=here(),
                why=why,
                fix="meshwright calibrate --out chip.json",
            )
        return cls(**{one.name: numbers[one.name] for one in fields(cls) if one.name in numbers})

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
            return self.moving(kind, one["read"] + one["written"], one.get("elements", 0), one.get("row", 0))
        if kind == "matmul":
            return self.matmul(one["m"], one["k"], one["n"], one["dtype"], batch=one.get("batch", 1))
        if kind in CONVOLUTIONS:
            return self.convolution(one)
        if kind == "attention":
            compute: float = one["flops"] / self._rate(one["dtype"]) + one["exponentials"] / self.exponentials_per_s
            return self.launch_seconds + max(compute, float(one["bytes"]) / self.bytes_per_s)
        raise HardwareError(
            f"No kernel is of the kind {kind!r}.",
            where=here(),
            why=f"there are {', '.join((*MOVING, 'matmul', *CONVOLUTIONS, 'attention'))}",
            fix="{'kind': 'stream', 'read': …, 'written': …}",
        )

    def moving(self, kind: str, bytes: float, elements: float = 0, row: float = 0) -> float:
        """The time of a kernel that does little but read and write.

        ``elements`` are those that an elementwise kernel goes through, ``row`` the bytes that a norm keeps on chip.

        >>> chip = Kernels(132, True, 0.0, 0.0, 2e-6, 4e12, 8e11, 1e-6, {"bf16": 8e14}, {"bf16": 20.0})
        >>> round(chip.moving("stream", 4e8) * 1e6), round(chip.moving("stream", 4e8, 1e8) * 1e6)
        (102, 127)
        """
        memory = bytes / (self.bytes_per_s * self._share(kind))
        if kind in ("stream", "gather"):
            memory = max(memory, elements / self.elements_per_s)
        if kind == "normalize":
            memory *= 1 + row / self.row_bytes
        return self.launch_seconds + memory

    def matmul(self, m: int, k: int, n: int, dtype: object = "bf16", *, batch: int = 1, kind: str = "matmul") -> float:
        """The time of ``batch`` products of ``[m, k]`` and ``[k, n]``.

        >>> chip = Kernels(132, True, 0.0, 0.0, 2e-6, 4e12, 8e11, 1e-6, {"bf16": 8e14}, {"bf16": 20.0})
        >>> round(chip.matmul(4096, 4096, 4096) * 1e6)
        183
        """
        moved = batch * (m * k + k * n + m * n) * item_bytes(dtype)
        return self.product(m, k, n, dtype, batch, moved, kind)

    def convolution(self, one: Work) -> float:
        """A convolution or the gradient of one, as the product it amounts to; arrays are read and written once."""
        pixels, window = one["images"] * one["side"] ** 2, one["kernel"] ** 2
        channels, features = one["in"], one["out"]
        m, k, n = {
            "conv": (pixels, channels * window, features),
            "conv_input_grad": (pixels, features * window, channels),
            "conv_filter_grad": (channels * window, pixels, features),
        }[one["kind"]]
        moved = (pixels * (channels + features) + channels * features * window) * item_bytes(one["dtype"])
        return self.product(m, k, n, one["dtype"], 1, moved, one["kind"])

    def product(self, m: int, k: int, n: int, dtype: object, batch: int, moved: float, kind: str) -> float:
        """The time of products, or of what amounts to them, that read and write ``moved`` bytes in all."""
        compute = self._compute(m, k, n, str(dtype), batch) / self._share(kind)
        return self.launch_seconds + max(compute, moved / (self.bytes_per_s * self._share("operands")))

    def _compute(self, m: int, k: int, n: int, dtype: str, batch: int) -> float:
        rate, edge = self._rate(dtype), self.edge[dtype]
        if not self.tiled:
            return batch * (self.fill_seconds + 2 * m * k * n / rate * (1 + edge * (1 / m + 1 / n)))
        best = float("inf")
        for rows, columns in TILES:
            tiles = batch * ceil(m / rows) * ceil(n / columns)
            slower = (1 + edge * (1 / rows + 1 / columns)) / (1 + edge * (1 / 256 + 1 / 128))
            whole = 2 * rows * columns * k * self.units / rate * slower
            for parts in SPLITS:
                waves = ceil(tiles * parts / self.units)
                partial = 0.0 if parts == 1 else 8 * batch * m * n * parts / self.bytes_per_s
                best = min(best, waves * (self.fill_seconds + whole / parts) + partial)
                if tiles * parts > 4 * self.units:
                    break
        return best

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
        elif one.name in ("flops_per_s", "edge", "share"):
            fine = isinstance(value, dict) and all(is_number(n) and (n or one.name == "edge") for n in value.values())
        else:  # a time may be nothing, a rate or a size is more
            fine = is_number(value) and (value > 0 or one.name.endswith("_seconds"))
        if not fine:
            return f"their {one.name} is {brief(value)}"
    absent = [dtype for dtype in numbers["flops_per_s"] if dtype not in numbers["edge"]]
    return f"their edge has no {absent[0]}" if absent else ""
