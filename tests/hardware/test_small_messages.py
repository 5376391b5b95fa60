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


@pytest.mark.parametrize("mode", ["exact", "asymptotic", "calibrated"])
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute", "broadcast"])
def test_nothing_takes_longer_on_faster_links_or_a_faster_network(kind: str, mode: str) -> None:
    """Whichever network decides: a machine with more bandwidth, or a message of fewer bytes, is no slower."""
    rates = {
        "h100": ("nvlink_bytes_per_s", "node_bytes_per_s", "unit_bytes_per_s"),
        "h200": ("nvlink_bytes_per_s", "node_bytes_per_s"),
        "gb200": ("nvlink_bytes_per_s", "node_bytes_per_s"),
        "tpu v5p": ("link_bytes_per_s", "dcn_bytes_per_s"),
    }
    shapes = {"tpu v5p": ((4, 4), 2)}
    for chip, names in rates.items():
        count, slices = shapes.get(chip, (512 if chip == "h100" else 144, 1))
        base = hardware.get(chip)
        for name in names:
            last = {}
            for factor in (0.25, 0.5, 0.9, 1.0, 1.1, 1.5, 2.0, 4.0, 16.0):
                faster = base.replace(**{name: base.facts[name].value * factor})
                machine = hardware.Topology(faster, count, slices=slices)
                smaller = 0.0
                for nbytes in (1e3, 1e5, 1e6, 1e7, 5e7, 1e8, 1e9, 1e10):
                    seconds = hardware.collective_seconds(kind, nbytes, machine, mode=mode)
                    assert seconds <= last.get(nbytes, seconds) * (1 + 1e-12), (chip, name, factor, nbytes)
                    assert seconds >= smaller * (1 - 1e-12), (chip, name, factor, nbytes)
                    last[nbytes] = smaller = seconds
