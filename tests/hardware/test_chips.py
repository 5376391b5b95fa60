"""The data file: every number has a unit in its name and a source; what sources disagree about is kept."""

import importlib.resources
import json
import subprocess
import sys

import pytest

import meshwright as mw
from meshwright import hardware as hw

DATA = json.loads(importlib.resources.files("meshwright.hardware").joinpath("chips.json").read_text())
UNITS = ("_hz", "_bytes", "_bytes_per_s", "_flops_per_s", "_seconds", "_efficiency", "_per_host", "_per_sm")
COUNTS = {"accumulators", "cores", "links", "torus_dims", "pod_shape", "pod_chips", "chips_per_host", "host_shape",
          "sms", "nvlink_domain", "nodes_per_unit", "sm_lanes_fp32", "mxu", "switch", "slice_shapes",
          "kernels"}  # fmt: skip
NUMBERS = [(chip, name) for chip, entry in DATA["chips"].items() for name in entry["numbers"]]


@pytest.mark.parametrize(("chip", "name"), NUMBERS)
def test_a_number_has_a_unit_and_a_source(chip, name):
    assert name.endswith(UNITS) or name in COUNTS
    number = DATA["chips"][chip]["numbers"][name]
    for one in (number, *number.get("other", ())):
        assert one["source"], f"{name} of {chip} has no source"
        assert set(one["source"]) <= set(DATA["sources"])
    assert number["value"] not in [one["value"] for one in number.get("other", ())]


@pytest.mark.parametrize(
    "name", ["tpu v3", "tpu v4", "tpu v5p", "tpu v5e", "tpu v6e", "tpu 7x", "a100", "h100", "h200", "b200", "gb200"]
)
def test_the_chips_that_are_promised(name):
    chip = hw.get(name)
    assert chip.name == name
    assert chip.flops_per_s("bf16") > 1e14
    assert chip.hbm_bytes > 1e10 and chip.hbm_bytes_per_s > 5e11
    for alias in (name.upper(), name.replace(" ", "-"), DATA["chips"][name]["title"]):
        assert hw.get(alias) is chip


def test_where_sources_disagree_both_are_kept():
    fact = hw.get("tpu v5e").fact("link_bytes_per_s")
    assert (fact.value, fact.other[0].value, fact.other[0].source) == (4.5e10, 5e10, ("cloud docs: v5e",))
    assert hw.get("tpu v5e", prefer="cloud docs").link_bytes_per_s == 5e10
    assert hw.get("tpu v4", prefer="seed 001").link_bytes_per_s == 4.2e10
    # A source that says nothing about a number leaves the default.
    assert hw.get("tpu v5e", prefer="seed 001").link_bytes_per_s == 4.5e10


def test_published_totals_follow_from_the_parts():
    for name, shape in (("tpu v3", (32, 32)), ("tpu v4", (16, 16, 16)), ("tpu v5e", (16, 16))):
        chip, pod = hw.get(name, prefer="cloud docs"), hw.Topology(hw.get(name), shape)
        if "pod_bisection_bytes_per_s" in chip.facts:
            assert pod.bisection_bytes_per_s == pytest.approx(chip.pod_bisection_bytes_per_s, rel=0.12)
        if "pod_egress_bytes_per_s" in chip.facts:
            assert pod.egress_bytes_per_s == pytest.approx(chip.pod_egress_bytes_per_s, rel=0.12)


def test_rates_that_no_source_gives_follow_from_the_unit_that_does_the_work():
    assert hw.get("tpu v5e").flops_per_s("f32") == hw.get("tpu v5e").flops_per_s("bf16")
    assert hw.get("h100").flops_per_s("f32") == 4.947e14
    assert hw.get("h200").flops_per_s("f32") == 9.89e14 / 2
    assert hw.get("h100").flops_per_s("f16") == hw.get("h100").flops_per_s("bfloat16")


def test_importing_meshwright_does_not_read_the_data():
    code = "import sys, meshwright; print([m for m in sys.modules if m.startswith('meshwright.hardware')])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
    assert mw.hardware is hw


FLOPS_PER_CLOCK = {"a100": 2048, "h100": 4096, "h200": 4096, "b200": 8192, "gb200": 8192}  # of an SM, dense bf16


@pytest.mark.parametrize("chip", FLOPS_PER_CLOCK)
def test_a_peak_rate_is_reached_at_the_clock(chip):
    found = hw.get(chip)
    assert found.sms * FLOPS_PER_CLOCK[chip] * found.clock_hz == pytest.approx(found.flops_per_s("bf16"), rel=2e-3)
