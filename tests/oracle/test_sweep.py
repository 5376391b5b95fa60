"""The long comparisons: what became of each seed is counted, an error, too."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("jaxlib.mlir")

from jaxlib.mlir import ir

from tests.oracle.shardy import context
from tests.oracle.sweep import compared


def test_an_error_is_a_difference_of_its_seed_and_the_others_are_compared() -> None:
    def sweep(seeds: range, share: float) -> dict[str, Any]:
        if 7 in seeds:
            with context():
                ir.Module.parse("nonsense")  # MLIR's errors cannot be sent from process to process
        return {"modules": len(seeds), "compared": 2 * len(seeds), "reasons": {"older": 1}, "differences": []}

    found = compared(sweep, range(5, 9), 1.0)
    (line,) = found.pop("differences")
    assert line.startswith("seed 7, MLIRError: Unable to parse module assembly")
    assert found == {"modules": 4, "compared": 6, "reasons": {"older": 3}}
    assert compared(sweep, range(5, 7), 1.0)["compared"] == 4
