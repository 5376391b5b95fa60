"""Products in tiles: which kernels run them, against those that a profiler saw on an H200; whole tiles, waves, rows."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.hardware.kernels import Kernels
from meshwright.hardware.products import TILES, ProductSizes, Tiled, cut, product_seconds
from tests.hardware.measured_machines import measurements

UNITS = 132
ITEM = {"bf16": 2, "f32": 4}


def seen() -> list[tuple[str, tuple[int, int, bool], int, str]]:
    """Each measured product: its name, how it is expected to be cut, its k, and the kernels that ran for it."""
    found = []
    for row in measurements("h200_jax")["measurements"]:
        if row["op"] == "matmul" and row.get("kernels"):
            s = row["sizes"]
            sizes = ProductSizes(s["batch"], s["m"], s["k"], s["n"], ITEM[row["dtype"]])
            often = [name for name, count, *_ in row["kernels"] if count >= 0.45 * row["together"]]
            found.append((row["name"], cut(sizes, UNITS), s["k"], " ".join(often)))
    return found


def test_products_are_cut_along_k_and_padded_as_xla_does() -> None:
    rows = seen()
    assert len(rows) > 400
    parts = [name for name, (parts, _, _), _, kernels in rows if (parts > 1) != ("reduce" in kernels)]
    padded = [name for name, (_, depth, _), k, kernels in rows if (depth > k) != ("pad_fusion" in kernels)]
    assert len(parts) <= 0.01 * len(rows), parts
    assert len(padded) <= 0.01 * len(rows), padded


def test_small_products_run_by_kernels_that_xla_compiles() -> None:
    """The others are found where both take about as long."""
    rows = seen()
    wrong = [name for name, (_, _, compiled), _, kernels in rows if compiled != ("gemm_fusion" in kernels)]
    assert len(wrong) <= 0.1 * len(rows), wrong


def seconds(numbers: Tiled, m: int, k: int, n: int, **options: Any) -> float:
    sizes = ProductSizes(1, m, k, n, 2)
    return product_seconds(numbers, sizes, 0.0, units=4, bytes_per_s=1e30, tiles=TILES, **options)


def test_power_is_spent_on_whole_tiles() -> None:
    """A row more than tiles hold takes as much power as a tile more."""
    numbers = Tiled(1e30, sustained_flops_per_s=1e12)
    whole = seconds(numbers, 4096, 64, 4096)
    assert whole == pytest.approx(2 * 4096 * 64 * 4096 / 1e12)
    assert seconds(numbers, 4096, 64, 4097) > whole


def test_a_step_of_k_takes_its_time_however_few_tiles_there_are() -> None:
    numbers = Tiled(1e30, step_seconds=1e-9, uneven_seconds=3e-9)
    assert seconds(numbers, 64, 640, 64) == pytest.approx(640e-9)
    assert seconds(numbers, 512, 640, 512) == pytest.approx(640e-9)
    assert seconds(numbers, 64, 632, 64) == pytest.approx(3 * 632e-9)


def test_rows_that_are_no_whole_lines_take_longer() -> None:
    numbers = Tiled(1e12, unaligned=1.25)
    plain = seconds(numbers, 256, 640, 256)
    assert seconds(numbers, 256, 640 - 8, 256) == pytest.approx(1.25 * plain)
    assert seconds(numbers, 256, 640, 256 - 8) == pytest.approx(1.25 * plain)
    assert seconds(numbers, 256 - 8, 640, 256) == pytest.approx(plain)


def test_transposes_that_write_parts_of_sectors_and_sums_of_many_rows() -> None:
    chip = Kernels.of("h200")
    whole, part = (chip.moving("transpose", 1e9, row=row) for row in (32 * 1001, 16 * 2003))
    assert part - chip.launch_seconds == pytest.approx(1.5 * (whole - chip.launch_seconds))
    few, many, tall = (chip.moving("column_reduce", 1e6, row=row) for row in (16, 4095, 4096))
    assert few < tall < many
