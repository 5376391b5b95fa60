"""Calibrated collectives of every size, beside what NCCL's tuner says of them."""

from __future__ import annotations

import pytest

from meshwright import hardware

SIZES = [10.0**power for power in range(11)]


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("chip", ["a100", "h100", "h200", "b200", "gb200"])
def test_no_message_takes_much_longer_than_the_tuner_says(chip: str, kind: str) -> None:
    node = hardware.Topology(chip, 8)
    for size in SIZES:
        tuned = hardware.collective_seconds(kind, size, node, model="nccl")
        assert hardware.collective_seconds(kind, size, node, mode="calibrated") < 2.5 * tuned


def test_what_was_measured_of_an_h100_node_and_smaller_messages() -> None:
    node = hardware.Topology("h100", 8)

    def rate(size: float) -> float:
        seconds = hardware.collective_seconds("all_gather", size, node, mode="calibrated")
        return hardware.bus_bytes_per_s("all_gather", size, 8, seconds) / 1e9

    assert [round(rate(size)) for size in (5.8e5, 5.8e6, 5.8e7, 5.8e10)] == [150, 150, 150, 368]
