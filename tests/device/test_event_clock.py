"""Random device programs on random machines: the clock against brute force, and folded against unfolded."""

from __future__ import annotations

import random
from math import prod
from typing import Any, NamedTuple

import pytest

import meshwright as mw
from meshwright import dist, hardware
from meshwright.device.tensor_ops import is_elementwise
from tests.device.models import transformed
from tests.device.test_folding import BATCH, STEP

MACHINES = [
    hardware.Topology("h100", 32),
    hardware.Topology("gb200", 144),
    hardware.Topology("tpu v5e", (4, 8)),
    hardware.Topology("tpu v5p", (4, 4, 4)),
    hardware.Topology("tpu v5e", (4, 4), slices=2),
]


class Case(NamedTuple):
    label: str
    fn: dist.Function
    device_map: dist.DeviceMap
    machine: dist.OnTopology
    steady: bool


def random_map(choose: random.Random, depth: int, size: int) -> dist.DeviceMap:
    """A grid, one with gaps, chips in any order across nodes, or groups of different sizes."""
    fans = [choose.choice([1, 2, 3, 4]) for _ in range(depth)]
    style = choose.choice(["grid", "stride", "uneven", "uneven", "sizes"])
    if style == "grid" and prod(fans) <= size:
        return dist.DeviceMap.grid(*fans, first=choose.randint(1, size - prod(fans) + 1))
    numbers = sorted(choose.sample(range(1, size + 1), min(size, prod(fans) + depth * 8 + 40)))
    if style == "stride":
        numbers = list(range(choose.randint(1, 3), size + 1, choose.choice([1, 2, 3])))
    if choose.random() < 0.3:
        choose.shuffle(numbers)

    def make(level: int, leader: int | None) -> Any:
        count = fans[level] if style != "sizes" else choose.choice([1, 2, 3, 4])
        own = leader is not None and choose.random() < 0.7
        group = [leader] if own else [numbers.pop(0)]
        group += [numbers.pop(0) for _ in range(count - 1)]
        return group if level == depth - 1 else {d: make(level + 1, d) for d in group}

    return dist.DeviceMap(make(0, None))


def random_case(seed: int) -> Case | None:
    """Up to three nested transforms of a training step; None where they do not fit the map."""
    choose = random.Random(seed)
    word = "".join(choose.choice("DDHH123P") for _ in range(choose.randint(1, 3)))
    topology = choose.choice(MACHINES)
    size = choose.choice(["48, 48", "768, 768"])
    try:
        device_map = random_map(choose, len(word), topology.size)
        home = choose.choice([0, 0, 0, device_map.keys()[0], choose.choice(sorted(device_map.all_devices()))])
        fn = dist.parse(STEP.replace("HOME", str(home)).replace("48, 48", size))
        for depth, letter in enumerate(word):
            fn = transformed(fn, letter, ["d", "dd", "ddd"][:depth], BATCH)
        fn = dist.keep_in_place(fn) if choose.random() < 0.5 else fn
        dist.resolve(fn, device_map)
    except (IndexError, mw.MeshwrightError):
        return None
    machine = dist.OnTopology(topology, overlap=choose.random() < 0.8)
    label = f"{seed}: {word} {topology.text} {device_map} home {home}"
    return Case(label, fn, device_map, machine, choose.random() < 0.5)


class Found(NamedTuple):
    seconds: float
    busy: dict[int, float]
    linked: dict[int, float]
    peaks: dict[int, int]


def brute_force(flat: dist.Function, machine: dist.OnTopology) -> Found:
    """What each device does and holds: whenever an op starts or ends, all ops and all values are looked at."""
    eqns = flat.eqns
    costs: list[dict[int, float]] = []
    for eqn in eqns:
        devices = {v.type.device.base: 0.0 for v in (*eqn.values, *eqn.outputs) if hasattr(v.type, "device")}
        costs.append({**devices, **machine.seconds(eqn)})
    talks = [machine.overlap and machine.is_communication(eqn) for eqn in eqns]
    length = [max(cost.values(), default=0.0) for cost in costs]
    maker = {v: n for n, eqn in enumerate(eqns) for v in eqn.outputs}
    needs = [{maker[v] for v in eqn.values if v in maker} for eqn in eqns]
    last: dict[int, int] = {}
    for n, cost in enumerate(costs):
        if not talks[n]:  # a device computes in the program's order
            needs[n] |= {last[device] for device in cost if device in last}
            last.update(dict.fromkeys(cost, n))
    units: list[list[object]] = [
        [*cost, *machine.links(eqn)] if talk and max(cost.values(), default=0.0) else []
        for eqn, cost, talk in zip(eqns, costs, talks, strict=True)
    ]
    start: dict[int, float] = {}
    end: dict[int, float] = {}
    held: dict[object, float] = {}  # ports and links, and until when
    left = list(range(len(eqns)))
    now = 0.0
    while left:
        ready = {n: max((end[m] for m in needs[n]), default=0.0) for n in left if needs[n] <= end.keys()}
        able = [
            (since, n)
            for n, since in ready.items()
            if since <= now and all(held.get(unit, 0.0) <= now for unit in units[n])
        ]
        if able:
            _, n = min(able)
            start[n], end[n] = now, now + length[n]
            held.update(dict.fromkeys(units[n], end[n]))
            left.remove(n)
        else:
            now = min(at for at in end.values() if at > now)
    busy: dict[int, float] = {}
    linked: dict[int, float] = {}
    for n, cost in enumerate(costs):
        for device, seconds in cost.items():
            table = linked if talks[n] else busy
            table[device] = table.get(device, 0.0) + seconds
    spans = [(start[n], end[n]) if machine.overlap else (n, n + 1) for n in range(len(eqns))]
    return Found(max(end.values(), default=0.0), busy, linked, brute_force_peaks(flat, machine, spans))


def brute_force_peaks(
    flat: dist.Function, machine: dist.OnTopology, spans: list[tuple[float, float]]
) -> dict[int, int]:
    """The most bytes on each device, where value after value is looked at whenever an op starts.

    Values share an array if one is a part or an update of the other, or written over it: an elementwise op does so if
    an operand has the type of its result, is not read by a later op, nor by one that is under way.
    """
    eqns = flat.eqns
    array = {v: v for v in (*flat.inputs, *(v for eqn in eqns for v in eqn.outputs))}
    readers = {v: [n for n, eqn in enumerate(eqns) if v in eqn.values] for v in array}
    for n, eqn in enumerate(eqns):
        if machine.in_place(eqn):
            updated = eqn.values if eqn.op.name.endswith("Optimizer") else eqn.values * len(eqn.outputs)
            array.update((v, array[old]) for v, old in zip(eqn.outputs, updated, strict=False))
        elif is_elementwise(eqn):
            for old in eqn.values:
                sharing = [v for v in array if array[v] is array[old]]
                reads = {m for v in sharing for m in readers[v]} - {n}
                fits = old.type == array[old].type == eqn.outputs[0].type
                free = not {*sharing} & {*flat.inputs, *flat.outputs}
                if fits and free and all(m < n and spans[m][1] <= spans[n][0] for m in reads):
                    array[eqn.outputs[0]] = array[old]
                    break
    born, gone = dict.fromkeys(flat.inputs, -1.0), {}
    for n, eqn in enumerate(eqns):
        for v in eqn.outputs:
            born.setdefault(array[v], spans[n][0])
        for v in (*eqn.values, *eqn.outputs):
            gone[array[v]] = max(gone.get(array[v], 0.0), spans[n][1])
    gone.update((array[v], float("inf")) for v in (*flat.inputs, *flat.outputs))
    peaks: dict[int, int] = {}
    for now in {-1.0, *(start for start, _ in spans)}:
        live: dict[int, int] = {}
        for v, start in born.items():
            for one in v.type.items if isinstance(v.type, dist.Tuple) else (v.type,):
                held = one.nbytes if start <= now < gone[v] else 0
                live[one.device.base] = live.get(one.device.base, 0) + held
        peaks = {device: max(nbytes, peaks.get(device, 0)) for device, nbytes in live.items()}
    return peaks


def check(seed: int, largest: int = 250) -> tuple[bool, bool]:
    """Whether a case runs and whether devices are folded; then what each device did is what brute force finds."""
    case = random_case(seed)
    if case is None:
        return False, False
    flat = dist.resolve(case.fn, case.device_map)
    if len(flat.eqns) > largest:
        return False, False
    results = [
        dist.simulate(case.fn, case.device_map, assumptions=case.machine, fold=fold, events=False)
        for fold in (True, False)
    ]
    results.append(dist.simulate(dist.resolve(case.fn, case.device_map, fold=True), assumptions=case.machine))
    expected_of = brute_force(flat, case.machine)
    assert results[1].peak_bytes == expected_of.peaks, case.label
    for found in results:
        assert found.seconds == pytest.approx(expected_of.seconds, rel=1e-9), case.label
        for table, expected in ((found.busy_seconds, expected_of.busy), (found.link_seconds, expected_of.linked)):
            for device, time in expected.items():
                assert table[device] == pytest.approx(time, rel=1e-9), f"{device} {case.label}"
        peaks = results[1].peak_bytes
        assert {device: found.peak_bytes[device] for device in peaks} == peaks, case.label
    return True, len(results[0].peak_bytes) < len(results[1].peak_bytes)


def test_folded_and_unfolded_programs_take_the_time_that_brute_force_finds():
    found = [check(seed) for seed in range(110)]
    assert sum(ran for ran, _ in found) >= 50
    assert sum(folded for _, folded in found) >= 12


@pytest.mark.slow
def test_folded_and_unfolded_programs_take_the_time_that_brute_force_finds_at_length():
    found = [check(seed, 1000) for seed in range(110, 3000)]
    assert sum(folded for _, folded in found) >= 300


def test_groups_that_are_not_as_far_apart_are_no_copies_of_each_other():
    fn = dist.parse(STEP.replace("HOME", "0").replace("48, 48", "768, 768"))
    fn = dist.horizontal_parallel(dist.data_parallel(fn, BATCH), BATCH, ["d"])
    devices, machine = {1: [1, 7], 4: [4, 13]}, hardware.Topology("h100", 32)
    each = dist.simulate(fn, devices, machine, fold=False)
    folded = dist.resolve(fn, devices, fold=True)
    assert dist.simulate(folded, topology=machine).seconds == pytest.approx(each.seconds, rel=1e-9)


def test_a_folded_text_whose_groups_differ_on_the_machine_is_refused():
    fn = dist.parse(
        """def f(x: Tensor[(8,), 0]):
        a: Tensor[(4,), 1] = scatter(x, dim=0, devices=[1, 8])
        b: Tensor[(2,), 1] = scatter(a, dim=0, devices=[1, 5])
        c: Tensor[(2,), 1] = allreduce(b, members=[1, 5])
        return c"""
    )
    with pytest.raises(mw.MeshwrightError) as error:
        dist.simulate(fn, topology=hardware.Topology("h100", 16))
    assert str(error.value) == (
        "Devices [1, 5] stand for devices [8, 12], which are not as far from each other.\n"
        "  why:  the program is resolved with fold=True, and it is not known for which map\n"
        "  fix:  dist.simulate(fn, device_map, topology) of the program before it is resolved"
    )
