"""Simulation on machines: rooflines and links as `hardware` has them, overlap, memory."""

import math
import random
from typing import Any

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


# The simulator against a clock that ticks from event to event and looks at everything each time.


def random_program(seed: int, devices: int, length: int = 30) -> dist.Function:
    """Ops of random kinds on random devices; values of two sizes, some of them returned."""
    choose = random.Random(seed)
    lines, values = [], []
    inputs = []
    for n in range(devices + 2):
        device, size = choose.randrange(devices) + 1, choose.choice([256, 512])
        inputs.append(f"x{n}: Tensor[({size}, {size}), {device}]")
        values.append((f"x{n}", size, device))
    for n in range(length):
        name, size, device = choose.choice(values[-8:])
        kind = choose.choice(["MatMul", "tanh", "add", "send", "send", "allreduce"])
        others = [v for v in values if v[1] == size]
        if kind == "MatMul":
            lines.append(f"v{n} = MatMul({name}, {name})")
        elif kind == "tanh":
            lines.append(f"v{n} = tanh({name})")
        elif kind == "add":
            other = choose.choice([v for v in others if v[2] == device])
            lines.append(f"v{n} = add({name}, {other[0]})")
        elif kind == "send":
            target = choose.choice([d for d in range(1, devices + 1) if d != device])
            lines.append(f"v{n} = send({name}, to_device={target})")
            device = target
        else:
            other = next((v for v in others if v[2] != device), None)
            if other is None:
                continue
            lines.append(f"v{n}, u{n} = allreduce({name}, {other[0]})")
            values.append((f"u{n}", size, other[2]))
        values.append((f"v{n}", size, device))
    kept = ", ".join(name for name, _, _ in choose.sample(values, 3))
    body = "\n    ".join(lines)
    return dist.resolve(dist.parse(f"def f({', '.join(inputs)}):\n    {body}\n    return {kept}"))


def ticking(fn: dist.Function, machine: Any) -> tuple[list[float], dict[int, int]]:
    """When each equation starts, and the peak of each device's memory, by brute force."""
    costs = [machine.seconds(eqn) for eqn in fn.eqns]
    talks = [machine.is_communication(eqn) for eqn in fn.eqns]
    # What an op shares with others: in program order its device, and in the order they are ready ports and links.
    turns, shared = [], []
    for eqn, cost, talk in zip(fn.eqns, costs, talks, strict=True):
        turns.append(set() if talk and machine.overlap else set(cost))
        shared.append({*cost, *machine.links(eqn)} if talk and machine.overlap else set())
    maker = {v: n for n, eqn in enumerate(fn.eqns) for v in eqn.outputs}
    starts: dict[int, float] = {}
    ready: dict[int, float] = {}

    def ended(n: int, now: float) -> bool:
        return n in starts and starts[n] + max(costs[n].values()) <= now

    now = 0.0
    while len(starts) < len(fn.eqns):
        for n, eqn in enumerate(fn.eqns):
            before = [m for m in range(n) if turns[m] & turns[n]]
            if all(ended(m, now) for m in [*before, *(maker[v] for v in eqn.values if v in maker)]):
                ready.setdefault(n, now)
        moved = True
        while moved:
            moved = False
            for n in sorted(set(ready) - set(starts), key=lambda n: (ready[n], n)):
                taken = set().union(*(shared[m] for m in starts if not ended(m, now)))
                if not shared[n] & taken:
                    starts[n] = now
                    moved = not costs[n] or max(costs[n].values()) == 0
        later = [starts[n] + max(costs[n].values()) for n in starts]
        now = min([t for t in later if t > now], default=now)
    return [starts[n] for n in range(len(fn.eqns))], _peaks(fn, [starts[n] for n in range(len(fn.eqns))], costs)


def _peaks(fn: dist.Function, starts: list[float], costs: list[dict[int, float]]) -> dict[int, int]:
    lives = dict.fromkeys(fn.inputs, (0.0, math.inf))
    for n, eqn in enumerate(fn.eqns):
        for v in eqn.outputs:
            readers = [m for m, other in enumerate(fn.eqns) if v in other.inputs]
            last = max([starts[m] + max(costs[m].values()) for m in (*readers, n)])
            if (
                readers
                and fn.eqns[readers[-1]].op in ("tanh", "add")
                and v.type == fn.eqns[readers[-1]].outputs[0].type
            ):
                over = fn.eqns[readers[-1]]
                first = next(
                    x
                    for x in (*over.inputs, None)
                    if x is None
                    or (
                        x not in (*fn.inputs, *fn.outputs)
                        and over.inputs.count(x) == 1
                        and not any(x in other.inputs for other in fn.eqns[readers[-1] + 1 :])
                    )
                )
                busy = [starts[m] + max(costs[m].values()) for m in readers[:-1]]
                if first is v and max(busy, default=0.0) <= starts[readers[-1]]:
                    last = starts[readers[-1]]  # it is written over
            lives[v] = (starts[n], math.inf if v in fn.outputs else last)
    found = {}
    for device in {v.type.device.base for v in lives}:
        here = [(v.type.nbytes, *life) for v, life in lives.items() if v.type.device.base == device]
        found[device] = max(sum(n for n, a, b in here if a <= t < b) for _, t, _ in here)
    return found


MACHINES = {
    "switch": hardware.Topology("h100", 4),
    "line": hardware.Topology("tpu v5e", (1, 4)),
    "torus": hardware.Topology("tpu v5p", (4, 4, 4)),
    "nodes": hardware.Topology("h100", 16),
}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("name", MACHINES)
def test_starts_and_memory_are_those_of_a_brute_force_clock(name, overlap, seed):
    machine = dist.OnTopology(MACHINES[name], overlap=overlap)
    fn = random_program(seed, min(MACHINES[name].size, 6))
    starts, peaks = ticking(fn, machine)
    found = dist.simulate(fn, assumptions=machine)
    first = {e.name: e.start for e in reversed(found.events)}
    assert [first[eqn.outputs[0].name] for eqn in fn.eqns] == pytest.approx(starts)
    assert found.seconds == pytest.approx(max(e.start + e.seconds for e in found.events))
    if overlap:
        assert found.peak_bytes == peaks


def test_messages_that_share_a_link_take_turns_in_the_order_they_are_ready():
    text = """def f(x: Tensor[bf16, (4096, 4096), 1], y: Tensor[bf16, (4096, 4096), 2]):
        z = MatMul(x, x)
        a = send(z, to_device=3)
        b = send(y, to_device=4)
        return a, b"""
    line = hardware.Topology("tpu v5e", (1, 4))  # both messages cross the link from chip 2 to chip 3
    found = dist.simulate(dist.parse(text), topology=line)
    starts = {e.name: e.start for e in found.events}
    machine = dist.OnTopology(line)
    product = hardware.matmul_seconds(4096, 4096, 4096, "tpu v5e")
    send = machine.send(2 * 4096**2, 2, 4)
    assert starts == pytest.approx({"z_1": 0.0, "b_4": 0.0, "a_3": max(product, send)})
    apart = dist.simulate(dist.parse(text), topology=hardware.Topology("h100", 4))
    assert {e.name: e.start for e in apart.events}["a_3"] < apart.seconds
    assert apart.seconds == pytest.approx(
        hardware.matmul_seconds(4096, 4096, 4096, "h100")
        + dist.OnTopology(hardware.Topology("h100", 4)).send(2**25, 1, 3)
    )


def test_memory_is_that_of_the_moment_not_of_the_text():
    """The message arrives while the product still runs, though it stands after it in the program."""
    text = """def f(x: Tensor[(2048, 2048), 1], y: Tensor[(2048, 2048), 2]):
        a = neg(x)
        b = MatMul(a, a)
        c = MatMul(b, b)
        d = send(y, to_device=1)
        return c, d"""
    found = dist.simulate(dist.parse(text), topology=TWO)
    assert found.peak_bytes[1] == 4 * 2048**2 * 4  # x, a, b and d


def test_pipelines_of_replicas_that_cross_on_a_torus_are_simulated_once_and_take_as_long():
    """Two rows of replicas send two rows down: the messages of both cross the link in the middle."""
    fn = dist.pipeline_parallel(dist.data_parallel(_two(), {"x": 0}, parts=8), 2, 1, "1f1b", {"x": 0}, ["d"])
    devices = dist.DeviceMap({n: [n, n + 8] for n in range(1, 9)})
    machine = hardware.Topology("tpu v5e", (4, 4))
    once, every = (dist.simulate(fn, devices, machine, steady=True, fold=fold) for fold in (True, False))
    assert once.same_devices == {1: tuple(range(1, 9)), 9: tuple(range(9, 17))}
    assert once.seconds == pytest.approx(every.seconds)
    send = dist.OnTopology(machine).send(4 * 1024**2, 1, 9)
    products = hardware.matmul_seconds(1024, 1024, 1024, "tpu v5e", dtype="f32")
    assert every.seconds == pytest.approx(2 * products + 2 * send)


def test_replicas_at_uneven_distances_are_simulated_each():
    fn = dist.pipeline_parallel(dist.data_parallel(_two(), {"x": 0}, parts=2), 2, 1, "1f1b", {"x": 0}, ["d"])
    devices = {1: [1, 3], 2: [2, 5]}
    found = dist.simulate(fn, devices, hardware.Topology("tpu v5e", (1, 5)), steady=True)
    assert set(found.busy_seconds) == {1, 2, 3, 5}
    assert set(dist.simulate(fn, devices, hardware.Topology("h100", 5), steady=True).busy_seconds) == {1, 2, 3, 5}


def _two() -> dist.Function:
    return dist.parse("""def f(a: Tensor[(1024, 1024), 0], b: Tensor[(1024, 1024), 0], x: Tensor[(8192, 1024), 0]):
        h = MatMul(x, a)
        y = MatMul(h, b)
        return y""")


@pytest.mark.parametrize(
    ("machine", "members", "like"),
    [
        (hardware.Topology("h100", 24), (1, 7), (1, 2)),  # behind one switch all are equally far
        (hardware.Topology("h100", 24), (1, 2, 5, 6), (1, 2, 3, 4)),
        (hardware.Topology("h100", 24), (1, 2, 9), None),  # through the network, however close the first ones are
        (hardware.Topology("h100", 24), (1, 5, 9), None),
        (hardware.Topology("tpu v5e", (2, 2), slices=2), (1, 5), None),
    ],
)
def test_a_group_that_is_no_mesh_axis_costs_what_the_machine_says_of_its_chips(machine, members, like):
    costs = dist.OnTopology(machine)
    found = costs.collective("allreduce", 1e9, members)
    if like is not None:
        assert found == pytest.approx(costs.collective("allreduce", 1e9, like))
    else:
        chips = [device - 1 for device in members]
        assert found == hardware.collective_seconds("all_reduce", 1e9, machine, members=chips)
        assert found > 3 * costs.collective("allreduce", 1e9, tuple(range(1, 1 + len(members))))


def test_an_update_of_several_weights_takes_as_long_as_one_of_each():
    """Weights that share no dims are updated in turn."""
    inputs = "v: Tensor[(512, 256), 1], w: Tensor[(256,), 1], g: Tensor[(512, 256), 1], h: Tensor[(256,), 1]"
    both = dist.resolve(dist.parse(f"def f({inputs}): a, b = SGDOptimizer(v, w, g, h) return a, b"))
    costs = dist.OnTopology(TWO)
    assert costs.seconds(both.eqns[0])[1] == pytest.approx(costs.work(2 * 513 * 256, 3 * 4 * 513 * 256, "f32"))


def test_an_update_lies_in_the_memory_of_the_weights_and_moments_it_replaces():
    """Weights and moments that are brought to the device: each is there once, and the gradient goes after its use."""
    types = ", ".join(f"{name}: Tensor[(256,), 2]" for name in "wgmv")
    sent = " ".join(f"{name}s = send({name}, to_device=1)" for name in "wgmv")
    text = f"""def f({types}):
        {sent}
        a, b, c = AdamOptimizer(ws, gs, ms, vs, 1.0)
        d = tanh(a) e = add(b, c) f = add(d, e)
        return f"""
    found = dist.simulate(dist.resolve(dist.parse(text)), assumptions=dist.OnTopology(TWO, overlap=False))
    assert found.peak_bytes == {1: 4 * 1024, 2: 4 * 1024}
    kept = dist.resolve(dist.parse(text.replace("return f", "return f, a, b, c")))
    found = dist.simulate(kept, assumptions=dist.OnTopology(TWO, overlap=False))
    assert found.peak_bytes == {1: 5 * 1024, 2: 4 * 1024}


def test_slices_of_gpus_are_joined_by_their_network():
    """GPUs have no data-center network beside that of their nodes: slices are more nodes."""
    sliced, whole = hardware.Topology("h100", 16, slices=4), hardware.Topology("h100", 64)
    for source, target in ((1, 2), (1, 9), (1, 17), (5, 60)):
        sends = [dist.OnTopology(t).send(1e9, source, target) for t in (sliced, whole)]
        assert sends[0] == sends[1] > 0
    fn = dist.data_parallel(dist.parse("def f(x: Tensor[(64, 8), 0]): y = tanh(x) return y"), {"x": 0})
    found = [dist.simulate(fn, list(range(1, 65)), t) for t in (sliced, whole)]
    assert found[0].seconds == found[1].seconds
