"""Devices that do the same, simulated once: on any map and any machine, as if each were simulated."""

import pickle
import random
import sys
from math import prod
from typing import Any

import pytest

import meshwright as mw
from meshwright import dist, hardware
from meshwright.device.device_map import Devices
from tests.device.models import transformed

BATCH = {"x": 0, "z": 0}
SQUARE = "Tensor[(48, 48), HOME]"
STEP = f"""def step(a: {SQUARE}, b: {SQUARE}, x: {SQUARE}, z: {SQUARE}):
    h = MatMul(x, a)
    r = Relu(h)
    y = MatMul(r, b)
    dy = LossGrad(y, z, 96)
    dr, db = MatMulGrad(r, b, dy)
    dh = ReluGrad(h, dr)
    dx, da = MatMulGrad(x, a, dh)
    c, d = SGDOptimizer(a, b, da, db)
    return c, d, y"""
MACHINES = [
    dist.DistIR(),
    dist.OnTopology(hardware.Topology("h100", 64)),
    dist.OnTopology(hardware.Topology("h100", 64), overlap=False),
    dist.OnTopology(hardware.Topology("tpu v5e", (8, 8))),
]


def random_map(choose: random.Random, depth: int) -> Any:
    """A grid with or without gaps, or any tree: keys lead their groups or do not, numbers in any order."""
    fans = [choose.choice([1, 2, 3, 4]) for _ in range(depth)]
    style = choose.choice(["grid", "gaps", "any"])
    if style == "grid":
        return dist.DeviceMap.grid(*fans, first=choose.choice([1, 1, 2, 5] if prod(fans) < 60 else [1]))
    numbers = list(range(1, 65))
    if choose.random() < 0.5:
        choose.shuffle(numbers)
    left = iter(numbers)

    def make(level: int, leader: int | None) -> Any:
        size = fans[level] if style == "gaps" or choose.random() < 0.5 else choose.choice([1, 2, 3, 4])
        own = leader is not None and choose.random() < 0.7
        group = [leader] if own else [next(left)]
        for _ in range(size - 1):
            for _ in range(choose.choice([0, 0, 0, 1]) if style == "gaps" else 0):
                next(left)
            group.append(next(left))
        return group if level == depth - 1 else {d: make(level + 1, d) for d in group}

    try:
        return dist.DeviceMap(make(0, None))
    except StopIteration:
        return dist.DeviceMap.grid(*fans)


def check_folded(seed: int) -> bool:
    """Whether a random program runs on a random map; then what each device did is the same, written once or not."""
    choose = random.Random(seed)
    word = "".join(choose.choice("DDHH123P") for _ in range(choose.randint(1, 3)))
    device_map = random_map(choose, len(word))
    home = choose.choice([0, 0, 0, device_map.keys()[0], choose.choice(sorted(device_map.all_devices()))])
    fn = dist.parse(STEP.replace("HOME", str(home)))
    try:
        for depth, letter in enumerate(word):
            fn = transformed(fn, letter, ["d", "dd", "ddd"][:depth], BATCH)
        fn = dist.keep_in_place(fn) if choose.random() < 0.5 else fn
        dist.resolve(fn, device_map)
    except mw.MeshwrightError:
        return False
    machine, steady = choose.choice(MACHINES), choose.random() < 0.5
    once, each = (
        dist.simulate(fn, device_map, assumptions=machine, steady=steady, fold=fold, events=False)
        for fold in (True, False)
    )
    label = f"{seed} {word} {device_map} home {home} steady {steady} {machine}"
    assert once.seconds == pytest.approx(each.seconds, rel=1e-9), label
    for name in ("peak_bytes", "base_bytes", "busy_seconds", "link_seconds"):
        here, there = getattr(once, name), getattr(each, name)
        found = {device: here[device] for device in there}
        assert found == pytest.approx(there, rel=1e-9), f"{name} {label}"
    assert once.bubble_fraction == pytest.approx(each.bubble_fraction, rel=1e-9, abs=1e-9), label
    return len(once.peak_bytes) < len(each.peak_bytes)


def test_what_is_simulated_once_is_what_each_device_does():
    assert sum(check_folded(seed) for seed in range(60)) >= 10


@pytest.mark.slow
def test_what_is_simulated_once_is_what_each_device_does_at_length():
    assert sum(check_folded(seed) for seed in range(60, 3000)) >= 500


def test_a_map_may_have_the_host_in_it():
    fn = dist.data_parallel(dist.parse(STEP.replace("HOME", "0")), BATCH)
    once, each = (dist.simulate(fn, [0, 1], assumptions=dist.DistIR(), fold=fold) for fold in (True, False))
    assert once.seconds == each.seconds
    assert {device: once.peak_bytes[device] for device in (0, 1)} == each.peak_bytes


def test_a_simulation_travels_between_processes():
    fn = dist.data_parallel(dist.parse(STEP.replace("HOME", "0")), BATCH)
    found = dist.simulate(fn, [1, 2, 3, 4], hardware.Topology("h100", 4))
    again = pickle.loads(pickle.dumps(found))
    assert (again.seconds, again.peak_bytes, again.same_devices) == (
        found.seconds,
        found.peak_bytes,
        found.same_devices,
    )


def calls_of_a_simulation(devices: int) -> int:
    """How many Python functions transforms and a simulation call, two levels deep, with the map in the program."""
    fn = dist.parse(STEP.replace("HOME", "0").replace("48", str(1 << 20)))
    fn = fn.with_(device_map=dist.DeviceMap.grid(devices // 8, 8))
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        fn = dist.horizontal_parallel(dist.data_parallel(fn, BATCH), BATCH, ["d"])
        found = dist.simulate(fn, None, hardware.Topology("h100", devices), steady=True)
    finally:
        sys.setprofile(None)
    assert sum(map(len, found.same_devices.values())) == devices
    return count


def test_transforms_and_simulations_do_not_grow_with_devices():
    few, many = (min(calls_of_a_simulation(devices) for _ in range(2)) for devices in (1 << 12, 1 << 20))
    assert many <= 1.1 * few  # types are made once, by the first of two runs


@pytest.mark.parametrize("seed", range(40))
def test_sets_of_devices_are_those_of_a_python_set(seed: int):
    choose = random.Random(seed)
    groups: list[Any] = []
    for _ in range(choose.randint(0, 3)):
        start, step = choose.randint(0, 5), choose.choice([1, 2, 3, 4, 6, 8])
        even = range(start, start + step * choose.randint(1, 4), step)
        groups.append(even if choose.random() < 0.6 else tuple(choose.sample(range(30), choose.randint(1, 4))))
    expected = {40}
    for group in groups:
        expected = {device + member - group[0] for device in expected for member in group}
    few = Devices(40, groups[:1])
    found, rest = Devices(40, groups), Devices(40, groups, few)
    assert list(found) == sorted(expected) and len(found) == len(expected)
    assert list(rest) == sorted(expected - set(few)) and len(rest) == len(expected - set(few))
    assert [n for n in range(-60, 140) if n in rest] == list(rest)
