"""How long kernels take on a machine that was measured: a roofline with launches, tiles, waves and power.

A program takes ``start + Σ kernels``, or the host's call if that takes longer. A kernel takes ``launch + work``. The
work of one that reads and writes is bytes over the bandwidth that kernels of its kind reach, or elements over the rate
at which threads get through them. Products are cut into tiles (`hardware/products.py`); those of a dtype are run by two
families of kernels, a library's and ones that XLA compiles. On a CPU the whole product is one tile, and its rate that
of a large one.

A kernel that keeps a row on the chip reads and writes less at once the longer the row, ``bytes / bandwidth ·
(1 + (row / room)²)``, and its threads go through rows that are padded to a power of two, beyond 2048 elements to a
multiple of 1024; each reduction waits until a unit has gone through a whole row. Sums of columns wait for a unit to go
through them, or are added up by two kernels if there are many rows. Transposes whose rows begin in the middle of 32
bytes write parts of memory's sectors. Fused attention is cut into tiles of 128 queries; each takes the time of its
products and then that of its exponentials. Products of operands that are half zeros (after a relu) take less power and
are slowed less. Convolutions are the products they amount to, by kernels of their own if a window is wider than an
element; others are called by the host one at a time, which takes a while, however small they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from math import ceil, log2
from typing import Any

from meshwright.core.source import here
from meshwright.errors import HardwareError
from meshwright.hardware.chips import Chip, brief, get, is_number, item_bytes, names
from meshwright.hardware.products import (
    COMPILED_TILES,
    FEW_TILES,
    PARTS,
    TILES,
    ProductSizes,
    Tiled,
    cut,
    product_seconds,
    together,
)

ATTENTION_ROWS = 128  # queries that a unit attends from at a time
MOVING = ("stream", "reduce", "column_reduce", "normalize", "transpose", "gather", "scatter")
CONVOLUTIONS = ("conv", "conv_input_grad", "conv_filter_grad")

Work = Mapping[str, Any]

FAMILY = {"conv": "conv", "conv_input_grad": "conv", "conv_filter_grad": "conv_filter_grad"}
CALL_ORDER = 3  # of the norm of a convolution and its call
TALL = 4096  # rows from which sums of columns take two kernels
SECTOR = 32  # bytes that memory is written by
MISALIGNED = 1.5  # how many times as long transposes take whose rows begin elsewhere


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
    products: Mapping[str, Tiled]
    share: Mapping[str, float] = field(default_factory=dict)
    column_seconds: float = 0.0
    row_bytes: float = 1e5
    exponentials_per_s: float = 4e12
    row_elements_per_s: float = 1e30
    row_bytes_per_s: float = 1e30
    attention_seconds: float = 0.0
    attention_fill_seconds: float = 0.0
    library_seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def flops_per_s(self) -> dict[str, float]:
        """The rate of large products of each dtype, while clocks are high."""
        return {name: one.flops_per_s for name, one in self.products.items() if _is_dtype(name)}

    @property
    def sustained_flops_per_s(self) -> dict[str, float]:
        """The rate of products of each dtype that power allows for long."""
        return {name: one.sustained_flops_per_s for name, one in self.products.items() if _is_dtype(name)}

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
        given = {one.name: numbers[one.name] for one in fields(cls) if one.name in numbers}
        return cls(**given | {"products": {name: Tiled(**one) for name, one in numbers["products"].items()}})

    def moved(self, chip: Chip, other: Chip, share: float | None = None) -> Kernels:
        """The same kernels on another chip, as far as data sheets tell: its units, clock, bandwidth and peak rates.

        ``share`` of the peak rate is what large products reach there; as much as here, if it is not given.
        """
        memory = other.hbm_bytes_per_s / chip.hbm_bytes_per_s
        lanes = other.sms * other.clock_hz / (chip.sms * chip.clock_hz)
        rate = other.flops_per_s("bf16") / chip.flops_per_s("bf16")
        if share is not None:
            rate *= share * chip.flops_per_s("bf16") / self.flops_per_s["bf16"]

        return replace(
            self,
            units=int(other.sms),
            bytes_per_s=memory * self.bytes_per_s,
            row_bytes_per_s=memory * self.row_bytes_per_s,
            elements_per_s=lanes * self.elements_per_s,
            row_elements_per_s=lanes * self.row_elements_per_s,
            exponentials_per_s=lanes * self.exponentials_per_s,
            products={name: one.moved(rate, memory, share is not None) for name, one in self.products.items()},
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
        on the chip, and ``passes`` how often it reduces them, or the bytes of a row that a transpose writes, or the
        number of rows whose columns are summed.

        >>> chip = Kernels(132, True, 0.0, 0.0, 2e-6, 4e12, 8e11, {"bf16": Tiled(8e14, edge=20.0)})
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
        if kind == "transpose" and row % SECTOR:
            memory *= MISALIGNED
        if kind == "column_reduce":
            if row >= TALL:
                return 2 * self.launch_seconds + memory
            memory = (memory**2 + (row * self.column_seconds) ** 2) ** 0.5
        return self.launch_seconds + memory

    def attention(self, one: Work) -> float:
        """The time of fused attention: ``flops``, ``exponentials`` and ``bytes``, from ``queries`` queries of each of
        ``batch`` heads, if they are known."""
        rate = self._numbers(str(one["dtype"])).flops_per_s * self._share("attention")
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

        >>> chip = Kernels(132, True, 0.0, 0.0, 2e-6, 4e12, 8e11, {"bf16": Tiled(8e14, edge=20.0)})
        >>> round(chip.matmul(4096, 4096, 4096) * 1e6)
        179
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
        numbers, item = self._numbers(str(dtype)), int(item_bytes(dtype))
        sizes = ProductSizes(batch, m, k, n, item)
        if not self.tiled:
            slower = 1 + numbers.edge * (1 / m + 1 / n)
            compute = batch * numbers.fill_seconds + sizes.flops / numbers.flops_per_s * slower
            return self.launch_seconds + max(compute, moved / (self.bytes_per_s * numbers.operands))
        options: dict[str, Any] = {"units": self.units, "bytes_per_s": self.bytes_per_s, "dense": dense}
        options["tiles"] = TILES if item <= 2 else FEW_TILES
        if kind == "matmul":
            return self._matmul(sizes, str(dtype), moved, options)
        if window > 1:
            numbers, options["tiles"] = self.products.get(FAMILY[kind], numbers), FEW_TILES
        options["parts"] = PARTS if kind == "conv_filter_grad" else (1,)
        work = self.launch_seconds + product_seconds(numbers, sizes, moved, **options)
        return work if window > 1 else together((work, self.library_seconds.get(FAMILY[kind], 0.0)), CALL_ORDER)

    def _matmul(self, sizes: ProductSizes, dtype: str, moved: float, options: dict[str, Any]) -> float:
        """Products by the family of kernels that XLA chooses, in the parts of k that it cuts them into."""
        parts, depth, compiled = cut(sizes, self.units)
        numbers = self.products[dtype]
        if compiled and f"{dtype} compiled" in self.products:
            numbers, options["tiles"] = self.products[f"{dtype} compiled"], COMPILED_TILES
        if parts == 1:
            return self.launch_seconds + product_seconds(numbers, sizes, moved, **options)
        batch, m, k, n, item = sizes
        result, sides = batch * m * n, (batch * m * depth, batch * n * depth)
        cut_up = ProductSizes(parts * batch, m, depth // parts, n, item)
        moved += 4 * parts * result
        total = self.launch_seconds + product_seconds(numbers, cut_up, moved, written=4, **options)
        total += numbers.reduce_seconds + (4 * parts + item) * result / self.bytes_per_s
        if depth > k:
            total += sum(self.moving("stream", 2 * item * side, side) for side in sides)
        return total

    def _share(self, kind: str) -> float:
        return self.share.get(kind, 1.0)

    def _numbers(self, dtype: str) -> Tiled:
        if dtype not in self.products:
            raise HardwareError(
                f"No products of {dtype} were measured.",
                where=here(),
                why=f"those of {', '.join(self.flops_per_s)} were",
                fix=f"dtype={next(iter(self.flops_per_s), 'f32')!r}",
            )
        return self.products[dtype]


def _is_dtype(name: str) -> bool:
    """Whether a family of kernels is the library's for a dtype."""
    return name not in CONVOLUTIONS and " " not in name


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
        elif one.name == "products":
            fine = isinstance(value, dict) and all(map(_is_tiled, value.values()))
        elif one.name in ("share", "library_seconds"):
            fine = isinstance(value, dict) and all(_is_size(one.name, number) for number in value.values())
        else:
            fine = _is_size(one.name, value)
        if not fine:
            return f"their {one.name} is {brief(value)}"
    return ""


def _is_tiled(value: object) -> bool:
    names = {one.name for one in fields(Tiled)}
    return (
        isinstance(value, dict)
        and {"flops_per_s"} <= value.keys() <= names
        and all(_is_size(name, number) for name, number in value.items())
    )


def _is_size(name: str, value: object) -> bool:
    """Whether a value may be a number: a time or an edge may be nothing, a rate or a size is more."""
    return is_number(value) and (bool(value) or name == "edge" or name.endswith("_seconds"))
