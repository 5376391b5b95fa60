"""Simulation on machines: rooflines and links as `hardware` has them, overlap, memory."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import dist, hardware

TWO = hardware.Topology("h100", 2)


def test_a_product_takes_its_roofline_and_an_allreduce_its_links():
    fn = dist.parse("""def f(x: Tensor[bf16, (4096, 4096), 1], y: Tensor[bf16, (4096, 4096), 2]):
        a = MatMul(x, x)
        b = MatMul(y, y)
        c, d = allreduce(a, b)
        return c, d""")
    result = dist.simulate(fn, topology=TWO)
    product = hardware.matmul_seconds(4096, 4096, 4096, "h100")
    placed = hardware.Topology("h100", 2, mesh={"x": 2})
    reduce = hardware.collective_seconds("all_reduce", 4096 * 4096 * 2, placed, "x")
    assert result.seconds == pytest.approx(product + reduce)
    assert result.busy_seconds == pytest.approx({1: product, 2: product})
    assert result.peak_bytes == {1: 3 * 2 * 4096**2, 2: 3 * 2 * 4096**2}


def test_what_does_not_wait_overlaps():
    text = """def f(x: Tensor[bf16, (4096, 4096), 1]):
        y = send(x, to_device=2)
        z = MatMul(x, x)
        return y, z"""
    product = hardware.matmul_seconds(4096, 4096, 4096, "h100")
    send = dist.OnTopology(TWO).send(2 * 4096**2, 1, 2)
    both = dist.simulate(dist.parse(text), topology=TWO)
    assert both.seconds == pytest.approx(max(product, send))
    serial = dist.simulate(dist.parse(text), assumptions=dist.OnTopology(TWO, overlap=False))
    assert serial.seconds == pytest.approx(product + send)


def test_elementwise_ops_write_over_what_nobody_reads_again():
    fn = dist.parse("def f(x: Tensor[(1024,), 1]): a = tanh(x) b = neg(a) c = exp(b) return c")
    assert dist.simulate(fn, topology=TWO).peak_bytes == {1: 2 * 4096}
    kept = dist.parse("def f(x: Tensor[(1024,), 1]): a = tanh(x) b = neg(a) c = exp(b) return c, a")
    assert dist.simulate(kept, topology=TWO).peak_bytes == {1: 3 * 4096}


def test_recomputation_takes_less_memory_and_more_time():
    def loss(ws, x):
        for w in ws:
            x = mnp.tanh(x @ w)
        return mnp.sum(x)

    ws, x = [np.ones((64, 64), "f4")] * 16, np.ones((4096, 64), "f4")
    program = mw.make_program(mw.value_and_grad(loss))(ws, x)
    fn = dist.from_program(program, [*(f"w{n}" for n in range(16)), "x"], device=1)
    kept = dist.simulate(fn, topology=TWO)
    again = dist.simulate(dist.recompute(fn, segments=4), topology=TWO)
    assert again.peak_bytes[1] < 0.6 * kept.peak_bytes[1]
    assert kept.seconds < again.seconds < 1.5 * kept.seconds


def test_chips_that_are_far_apart_take_longer():
    machine = dist.OnTopology(hardware.Topology("h100", 16))
    assert machine.send(1e9, 1, 9) > machine.send(1e9, 1, 8)
    near, far = (machine.collective("allreduce", 1e9, group) for group in ((1, 2, 3, 4), (1, 5, 9, 13)))
    assert far > near
    torus = dist.OnTopology(hardware.Topology("tpu v5e", (4, 4)))
    assert torus.send(1e9, 1, 16) != torus.send(1e9, 1, 2)


def test_a_pipeline_in_simulation_keeps_its_devices_busy_the_longer_the_more_microbatches():
    def loss(ws, x):
        for w in ws:
            x = mnp.tanh(x @ w)
        return mnp.sum(x)

    ws, x = [np.ones((512, 512), "f4")] * 4, np.ones((2**16, 512), "f4")
    fn = dist.from_program(mw.make_program(mw.value_and_grad(loss))(ws, x), ["w0", "w1", "w2", "w3", "x"])
    found = []
    for microbatches in (1, 4, 16):
        piped = dist.pipeline_parallel(fn, 4, microbatches, "1f1b", {"x": 0})
        result = dist.simulate(piped, [1, 2, 3, 4], hardware.Topology("h100", 4), steady=True)
        found.append(result)
    assert found[0].seconds > found[1].seconds > found[2].seconds
    assert found[0].bubble_fraction > found[1].bubble_fraction > found[2].bubble_fraction
    assert found[0].bubble_fraction == pytest.approx(0.75, abs=0.1)


def test_devices_that_a_program_names_one_by_one_are_all_simulated():
    text = "def f(x: Tensor[(B,), 0]): xs = scatter(x, dim=0, devices=[1, 2]) s = allreduce(xs) return s"
    fn = dist.parse(text)
    once, every = (dist.simulate(fn, None, mw.hardware.Topology("h100", 8), fold=fold, B=8) for fold in (True, False))
    assert once.seconds == every.seconds
    assert once.peak_bytes == every.peak_bytes
    assert len(every.peak_bytes) == 3
