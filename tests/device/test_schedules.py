"""Schedules: bubbles and activations by their closed forms, and a cycle refused with the cycle printed."""

import itertools

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import dist, hardware
from meshwright.errors import DeviceError

SIZES = [(p, n * p) for p, n in itertools.product([1, 2, 3, 4, 8], [1, 2, 5])]
TIMES = {"F": 1.0, "B": 2.0}


@pytest.mark.parametrize(("devices", "microbatches"), SIZES)
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_the_bubble_of_gpipe_and_1f1b_is_p_minus_1_of_m_plus_p_minus_1(name, devices, microbatches):
    timing = dist.SCHEDULES[name](devices, microbatches).run(TIMES)
    assert timing.bubble_fraction == pytest.approx((devices - 1) / (microbatches + devices - 1))
    held = [microbatches] * devices if name == "gpipe" else [min(devices - p, microbatches) for p in range(devices)]
    assert list(timing.peak_activations) == held


@pytest.mark.parametrize(("devices", "microbatches"), SIZES)
@pytest.mark.parametrize("chunks", [2, 3])
def test_interleaving_divides_the_bubble_by_the_chunks(devices, microbatches, chunks):
    timing = dist.SCHEDULES["interleaved"](devices, microbatches, chunks).run(TIMES)
    assert timing.bubble_fraction == pytest.approx((devices - 1) / (chunks * microbatches + devices - 1))
    if microbatches > devices:
        ahead = [2 * (devices - p - 1) + (chunks - 1) * devices + 1 for p in range(devices)]
        assert list(timing.peak_activations) == [min(n, chunks * microbatches) for n in ahead]


@pytest.mark.parametrize(("devices", "microbatches"), SIZES)
def test_zero_bubble_h1_waits_p_minus_1_times_f_plus_b_minus_w(devices, microbatches):
    timing = dist.SCHEDULES["zb-h1"](devices, microbatches).run()
    assert timing.seconds == microbatches * 3 + (devices - 1) * (1 + 1 - 1)
    assert list(timing.peak_activations) == [min(devices, microbatches)] * devices


def test_every_task_runs_once_and_after_what_it_needs():
    for name, make in dist.SCHEDULES.items():
        schedule = make(4, 8)
        for order in schedule.orders:
            assert len(set(order)) == len(order)
            phases = {task.phase for task in order}
            assert phases == ({"F", "B", "W"} if name == "zb-h1" else {"F", "B"})
        assert schedule.microbatches == 8


def test_a_schedule_that_waits_for_itself_is_refused_with_the_cycle():
    T = dist.Task
    schedule = dist.Schedule(
        "mine", ((T("F", 0), T("B", 0), T("F", 1), T("B", 1)), (T("F", 1), T("B", 1), T("F", 0), T("B", 0)))
    )
    message = (
        "The schedule mine waits for itself.\n"
        "  why:  device 0: B0 waits for B0 of device 1\n"
        "        device 1: F1 waits for F1 of device 0\n"
        "  fix:  run each task after what it waits for; dist.SCHEDULES['1f1b'](stages, microbatches) is in order"
    )
    with pytest.raises(DeviceError) as error:
        schedule.run()
    assert str(error.value) == message


def test_a_pipeline_refuses_such_a_schedule_too():
    from tests.device.models import mlp_training

    T = dist.Task
    schedule = dist.Schedule(
        "mine", ((T("F", 0), T("B", 0), T("F", 1), T("B", 1)), (T("F", 1), T("B", 1), T("F", 0), T("B", 0)))
    )
    model = mlp_training()
    with pytest.raises(DeviceError, match="device 1: F1 waits for F1 of device 0"):
        dist.pipeline_parallel(model.function, 2, 2, schedule, model.batch)


def test_a_schedule_of_ones_own_runs():
    from tests.device.models import check, mlp_training

    T = dist.Task
    order = (T("F", 1), T("F", 0), T("B", 1), T("B", 0))
    model = mlp_training()
    fn = dist.pipeline_parallel(model.function, 2, 2, dist.Schedule("reversed", (order, order)), model.batch)
    check(model, fn, [1, 2])


class EvenProducts(dist.OnTopology):
    """Every product takes a second; nothing else takes any time."""

    def compute(self, eqn):
        return float(eqn.op in ("MatMul", "dot_general"))

    def send(self, nbytes, source, target):
        return 0.0


CLOSED_FORMS = {  # seconds of P devices, m microbatches, v chunks; a stage takes F = 1, B = 1, W = 1
    "gpipe": lambda P, m, v: 3 * (m + P - 1),
    "1f1b": lambda P, m, v: 3 * (m + P - 1),
    "interleaved": lambda P, m, v: 3 * (v * m + P - 1),
    "zb-h1": lambda P, m, v: 3 * m + (P - 1),
}


@pytest.mark.parametrize(("devices", "microbatches"), [(2, 2), (2, 6), (4, 8)])
@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_a_pipeline_simulated_takes_the_closed_form_of_its_schedule(name, devices, microbatches):
    """One product per stage going forward and two going back, through the transform and the simulator."""
    chunks = 2 if name == "interleaved" else 1

    def loss(ws, x):
        for w in ws:
            x = x @ w
        return mnp.sum(x)

    ws, x = [np.ones((4, 4), "f4")] * devices * chunks, np.ones((microbatches, 4), "f4")
    program = mw.make_program(mw.value_and_grad(loss, argnums=(0, 1)))(ws, x)
    fn = dist.from_program(program, [*(f"w{n}" for n in range(len(ws))), "x"])
    piped = dist.pipeline_parallel(fn, devices, microbatches, name, {"x": 0}, chunks=chunks)
    machine = EvenProducts(hardware.Topology("h100", devices))
    found = dist.simulate(piped, list(range(1, devices + 1)), assumptions=machine, steady=True)
    seconds = CLOSED_FORMS[name](devices, microbatches, chunks)
    assert found.seconds == seconds
    assert found.bubble_fraction == pytest.approx(1 - 3 * chunks * microbatches / seconds)


@pytest.mark.parametrize(("devices", "microbatches"), SIZES)
@pytest.mark.parametrize("seconds", [{"F": 2.0, "B": 2.0, "W": 1.0}, {"F": 1.0, "B": 1.0, "W": 0.5}])
def test_zero_bubble_h1_with_quick_weight_gradients(devices, microbatches, seconds):
    timing = dist.SCHEDULES["zb-h1"](devices, microbatches).run(seconds)
    forward, back, weights = seconds.values()
    assert timing.seconds == microbatches * (forward + back + weights) + (devices - 1) * (forward + back - weights)
