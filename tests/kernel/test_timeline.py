"""Kernels on the clock of a machine: how long they take, what overlaps, and where computing hides communication."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.hardware.topology import Topology
from meshwright.pallas import ops
from meshwright.pallas import tpu as pltpu

V5E = mw.hardware.get("tpu v5e")


def struct(*shape: int) -> mw.ShapeDtypeStruct:
    return mw.ShapeDtypeStruct(shape, mnp.bfloat16)


def gather_matmul(chips: int, m: int, k: int, n: int, **options: Any) -> Any:
    """The program of an all-gather next to a product, whose chips have ``k`` columns of the left side and ``n``."""
    columns = mw.P(None, "x")
    f = mw.shard_map(
        lambda x, y: ops.all_gather_matmul(x, y, "x", **options),
        mesh=mw.make_mesh((chips,), ("x",)), in_specs=(columns, columns), out_specs=columns,
    )  # fmt: skip
    return mw.make_program(f)(struct(m, k * chips), struct(k * chips, n * chips))


def on_line(function: Any, devices: int, shape: tuple[int, ...], machine: Any = "tpu v5e") -> Any:
    f = mw.shard_map(function, mesh=mw.make_mesh((devices,), ("x",)), in_specs=mw.P("x"), out_specs=mw.P("x"))
    return mw.simulate(mw.make_program(f)(struct(devices * shape[0], *shape[1:])), machine)


def test_a_copy_to_the_next_chip_waits_for_its_signal_and_takes_its_bytes_over_the_link():
    found = on_line(lambda x: ops.right_permute(x, "x"), 4, (1024, 1024), Topology("tpu v5p", 4, wrap=True))
    chip = found.topology.chip
    assert found.seconds == pytest.approx(2 * 1024 * 1024 / chip.link_bytes_per_s + 2 * chip.hop_seconds)
    assert found.lanes(0) == ["to device 1"]


def test_on_a_line_the_last_chip_sends_back_over_all_links():
    found = on_line(lambda x: ops.right_permute(x, "x"), 4, (1024, 1024))
    hop = V5E.hop_seconds
    starts = {span.device: span.start for span in found.spans if span.lane.startswith("to ")}
    ends = {span.device: span.end for span in found.spans if span.lane.startswith("to ")}
    # The ends of the line wait for each other's signal, which crosses all of it.
    assert starts == pytest.approx({0: 3 * hop, 1: hop, 2: hop, 3: 3 * hop})
    expected = 2 * 1024 * 1024 / V5E.link_bytes_per_s
    assert ends[0] == pytest.approx(3 * hop + expected + hop)
    assert ends[3] == pytest.approx(3 * hop + expected + 3 * hop)


def test_on_a_switch_every_chip_is_one_hop_away():
    found = on_line(lambda x: ops.right_permute(x, "x"), 4, (1024, 1024), Topology("h100", 4))
    chip = found.topology.chip
    expected = 2 * 1024 * 1024 / chip.nvlink_bytes_per_s + 2 * chip.nvlink_hop_seconds
    assert found.seconds == pytest.approx(expected)


def test_between_nodes_a_copy_takes_an_adapter():
    found = on_line(lambda x: ops.right_permute(x, "x"), 16, (1024, 1024), Topology("h100", 16))
    chip = found.topology.chip
    times = {span.device: span.end - span.start for span in found.spans if span.lane.startswith("to ")}
    near = 2 * 1024 * 1024 / chip.nvlink_bytes_per_s + chip.nvlink_hop_seconds
    far = 2 * 1024 * 1024 / (chip.node_bytes_per_s / 8) + chip.net_hop_seconds
    assert times == pytest.approx({device: far if device in (7, 15) else near for device in range(16)})
    assert found.seconds == pytest.approx(far + chip.net_hop_seconds)


def test_signals_take_the_latency_of_their_way():
    """A token goes round a ring, and then a device signals itself."""

    def kernel(x_ref: Any, out_ref: Any, token: Any) -> None:
        n, me = lax.axis_size("x"), lax.axis_index("x")

        @pl.when(me > 0)
        def _() -> None:
            pltpu.semaphore_wait(token)

        pltpu.semaphore_signal(token, device_id={"x": lax.rem(me + 1, n)})

        @pl.when(me == 0)
        def _() -> None:
            pltpu.semaphore_wait(token)
            pltpu.semaphore_signal(token)
            pltpu.semaphore_wait(token)

        out_ref[...] = x_ref[...]

    whole = pl.BlockSpec(memory_space=pltpu.SMEM)
    call = pl.pallas_call(
        kernel, struct(1), in_specs=[whole], out_specs=whole, scratch_shapes=[pltpu.SemaphoreType.REGULAR]
    )
    found = on_line(call, 4, (1,), Topology("tpu v5p", 4, wrap=True))
    chip = found.topology.chip
    waits = [span for span in found.spans if span.device == 0 and span.name == "waits"]
    assert waits[0].end - waits[0].start == pytest.approx(4 * chip.hop_seconds, rel=0.01)
    assert waits[1].end - waits[1].start == pytest.approx(4 / (22 * chip.hbm_bytes_per_s))


def test_copies_to_others_use_the_memories_at_both_ends():
    """A device sends 4 MB of its main memory and meanwhile copies 16 MB of it into itself."""
    rows = 4 * 1024 * 1024 // 2

    def kernel(x_ref: Any, y_ref: Any, out_ref: Any, z_ref: Any, local: Any, send: Any, receive: Any) -> None:
        me, n = lax.axis_index("x"), lax.axis_size("x")
        remote = pltpu.make_async_remote_copy(x_ref, out_ref, send, receive, device_id={"x": lax.rem(me + 1, n)})
        own = pltpu.make_async_copy(y_ref, z_ref, local)
        remote.start()
        own.start()
        own.wait()
        remote.wait()

    whole = pl.BlockSpec(memory_space=pl.ANY)
    dma = pltpu.SemaphoreType.DMA
    call = pl.pallas_call(
        kernel, [struct(rows), struct(4 * rows)], in_specs=[whole] * 2, out_specs=[whole] * 2, scratch_shapes=[dma] * 3
    )
    row = mw.P("x")
    f = mw.shard_map(call, mesh=mw.make_mesh((4,), ("x",)), in_specs=row, out_specs=row)
    found = mw.simulate(mw.make_program(f)(struct(4 * rows), struct(16 * rows)), Topology("tpu v5p", 4, wrap=True))
    chip = found.topology.chip
    link, memory = chip.link_bytes_per_s, chip.hbm_bytes_per_s
    # What it sends and what comes take a link's rate each, for longer than the copy within the device lasts.
    local = [span for span in found.spans if span.lane == "memory"]
    assert 2 * 16 * 2**20 / (memory - 2 * link) < 4 * 2**20 / link
    for span in local:
        at_least, at_most = 2 * 16 * 2**20 / memory, 2 * 16 * 2**20 / (memory - 2 * link)
        assert at_least < span.end - span.start <= at_most * (1 + 1e-9)
    assert max(span.end - span.start for span in local) == pytest.approx(at_most)
    assert found.nbytes == 2 * 4 * 2**20 + 2 * 16 * 2**20


@pytest.mark.parametrize("devices", [4, 8])
def test_a_ring_all_gather_takes_one_shard_per_step_over_the_link(devices):
    ring = Topology("tpu v5p", devices, wrap=True)
    found = on_line(lambda x: ops.all_gather(x, "x"), devices, (1024, 1024), ring)
    step = 2 * 1024 * 1024 / ring.chip.link_bytes_per_s + ring.chip.hop_seconds
    local = 2 * 2 * 1024 * 1024 / ring.chip.hbm_bytes_per_s
    assert found.seconds == pytest.approx((devices - 1) * step + max(local, ring.chip.hop_seconds))


def test_both_ways_it_takes_half_as_long():
    ring = Topology("tpu v5p", 8, wrap=True)
    one, two = (
        on_line(lambda x, b=b: ops.all_gather(x, "x", bidirectional=b), 8, (4096, 1024), ring).seconds
        for b in (False, True)
    )
    assert two / one == pytest.approx(4 / 7, rel=0.05)


def test_the_pipeline_of_a_product_is_bound_by_memory_or_by_compute():
    def run(tile: int) -> Any:
        f = lambda x, y: ops.matmul(x, y, tiles=(tile, tile, tile))
        return mw.simulate(mw.make_program(f)(struct(2048, 2048), struct(2048, 2048)), "tpu v5e")

    small, large = run(128), run(1024)
    flops = 2 * 2048**3
    assert large.flops == flops
    assert flops / V5E.bf16_flops_per_s <= large.seconds <= 1.1 * flops / V5E.bf16_flops_per_s
    # Each tile of 128 is used for 128 products of its numbers only: the chip needs 240 FLOPs a byte.
    read = 2 * 2 * 2048**3 / 128
    assert small.seconds == pytest.approx(read / V5E.hbm_bytes_per_s, rel=0.05)


def test_a_timeline_shows_what_overlaps(tmp_path):
    program = gather_matmul(4, 2048, 1024, 8192, tiles=(1024, 512, 1024), fused=True)
    found = mw.simulate(program, "tpu v5e")
    assert all(found.overlap(device) > 0.9 for device in range(4))
    assert sum(end - start for start, end in found.bubbles(0)) == pytest.approx(
        found.seconds - found.busy(0, "compute")
    )
    assert str(found).startswith(f"{found.seconds * 1e6:.0f} µs for kernel on tpu v5e 4")
    rows = found.gantt(width=68).splitlines()
    assert [row.split("|")[0].strip() for row in rows[:4]] == ["device 0 compute", "memory", "to device 1", "waiting"]
    assert all(len(row.split("|")[1]) == 40 for row in rows[:16])
    assert rows[-1] == "c copy, p products, w waiting, · idle"
    assert found.gantt(68, devices=1).splitlines()[:4] == rows[:4]
    assert found.gantt(68, devices=1).endswith("\nand 3 more devices")
    for lane in found.chart().lanes:
        if lane.unit != "waiting":
            assert lane.busy() == pytest.approx(found.busy(int(lane.owner.split()[1]), lane.unit))
    found.to_html(tmp_path / "kernel.html")
    page = (tmp_path / "kernel.html").read_text()
    assert "products" in page and "device 3 compute" in page
    found.to_perfetto(tmp_path / "kernel.json")
    events = json.loads((tmp_path / "kernel.json").read_text())["traceEvents"]
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert sorted(processes.values()) == ["device 0", "device 1", "device 2", "device 3"]
    assert {event["pid"] for event in events} == processes.keys()
    assert max(e["ts"] + e["dur"] for e in events if e["ph"] == "X") == pytest.approx(found.seconds * 1e6)


def test_regions_name_what_they_hold():
    def kernel(x_ref: Any, out_ref: Any) -> None:
        with pltpu.trace("double"):
            out_ref[...] = x_ref[...] * 2

    program = mw.make_program(pl.pallas_call(kernel, struct(256, 256)))(struct(256, 256))
    assert {span.name for span in mw.simulate(program, "tpu v5e").spans if span.lane == "compute"} == {"double / mul"}


def exposed(machine: Topology, n: int, **options: Any) -> float:
    """Seconds that the kernel takes longer than on chips whose links take no time; ``n`` columns on each."""
    program = gather_matmul(machine.size, 2048, 2048, n, tiles=(1024, 512, 1024), **options)
    free = Topology(machine.chip.replace(link_bytes_per_s=1e18, hop_seconds=0.0), machine.shape)
    return mw.simulate(program, machine).seconds - mw.simulate(program, free).seconds  # type: ignore[no-any-return]


def crossover(machine: Topology, sizes: list[int], **options: Any) -> float:
    """The number of columns (on all chips) at which waiting for links ends: where a line through the waits is zero."""
    waits = np.array([exposed(machine, n, **options) for n in sizes])
    assert (np.diff(waits) <= 1e-9).all()
    waiting = waits > 0.15 * waits[0]
    slope, start = np.polyfit(np.array(sizes)[waiting], waits[waiting], 1)
    assert (waits[np.array(sizes) > -1.1 * start / slope] < 0.05 * waits[0]).all()
    return float(machine.size * -start / slope)


@pytest.mark.parametrize("chips", [2, 4])
def test_computing_hides_communication_from_the_size_that_the_formula_says(chips):
    """The left side is hidden if n > chips · flops/bw, n being all columns of the right side."""
    formula = chips * V5E.bf16_flops_per_s / V5E.link_bytes_per_s
    found = crossover(Topology(V5E, (chips,)), [1024, 2048, 3072, 4096, 5120, 6144], fused=True)
    assert found == pytest.approx(formula, rel=0.06)


def test_on_a_ring_both_ways_half_the_size_is_enough():
    ring = Topology("tpu v5p", 4, wrap=True)
    formula = 4 * ring.chip.bf16_flops_per_s / (2 * ring.chip.link_bytes_per_s)
    found = crossover(ring, [1024, 2048, 3072, 4096], fused=True, bidirectional=True)
    assert found == pytest.approx(formula, rel=0.1)


def test_a_kernel_in_a_larger_program_takes_its_time_there():
    def kernel_only(x: Any) -> Any:
        return ops.matmul(x, x, tiles=(512, 512, 512))

    alone = mw.simulate(mw.make_program(kernel_only)(struct(2048, 2048)), "tpu v5e")
    both = mw.simulate(mw.make_program(lambda x: mnp.tanh(kernel_only(x)))(struct(2048, 2048)), "tpu v5e")
    assert [share.seconds for share in both.by_op() if share.name == "pallas_call"] == [alone.seconds]


def test_with_numbers_the_clock_changes_nothing():
    x = np.arange(16.0, dtype=np.float32).reshape(4, 4)
    np.testing.assert_array_equal(ops.matmul(x, x, tiles=(2, 2, 2)), x @ x)


def test_a_kernel_that_does_not_fit_into_the_memory_of_the_chip_has_no_time():
    program = mw.make_program(lambda x: ops.matmul(x, x, tiles=(8192, 8192, 512)))(struct(8192, 8192))
    with pytest.raises(pltpu.CapacityError, match=r"of VMEM, a core has 134217728\."):
        mw.simulate(program, "tpu v5e")
