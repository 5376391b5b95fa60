"""Random programs, random stacks of transforms, random maps: what runs on devices is what ran on one."""

import re
from itertools import chain, count, pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import dist
from meshwright.errors import ShapeError

SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
ACTIVATIONS = {
    "none": lambda x: x,
    "tanh": mnp.tanh,
    "relu": lambda x: mnp.maximum(x, 0),
    "norm": lambda x: x - mnp.mean(x, axis=-1, keepdims=True),
    "softmax": mw.nn.softmax,
    "turn": lambda x: mnp.swapaxes(mnp.swapaxes(x, 0, 1), 0, 1),
}


@st.composite
def models(draw):
    """A chain of products with something between, and its training step."""
    layers = draw(st.integers(2, 4))
    dims = [draw(st.sampled_from([4, 8, 12])) for _ in range(layers + 1)]
    names = [draw(st.sampled_from(sorted(ACTIVATIONS))) for _ in range(layers)]
    skip = draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    weights = [(rng.standard_normal((a, b)) / a**0.5).astype("f4") for a, b in pairwise(dims)]
    x = rng.standard_normal((8, dims[0])).astype("f4")

    def forward(ws, x):
        for w, name in zip(ws, names, strict=True):
            y = ACTIVATIONS[name](x @ w)
            x = x + y if skip and x.shape == y.shape else y
        return x

    def step(ws, x):
        value, gradient = mw.value_and_grad(lambda ws: mnp.mean(mnp.square(forward(ws, x))))(ws)
        return value, [w - 0.1 * g for w, g in zip(ws, gradient, strict=True)]

    function = draw(st.sampled_from([forward, step]))
    labels = [*(f"w{n}" for n in range(layers)), "x"]
    fn = dist.from_program(mw.make_program(function)(weights, x), labels)
    expected = [np.asarray(y) for y in mw.tree.leaves(function(weights, x))]
    return fn, [*weights, x], expected, function is step


@st.composite
def trees(draw, depth, regular):
    """A map of that depth; an irregular one has groups of different sizes."""
    numbers = iter(range(1, 200))
    fan = {level: draw(st.sampled_from([1, 2])) for level in range(depth)}

    def make(level, leader):
        size = fan[level] if regular else draw(st.sampled_from([1, 2]))
        own = draw(st.booleans()) and leader is not None
        group = [leader, *(next(numbers) for _ in range(size - 1))] if own else [next(numbers) for _ in range(size)]
        return group if level == depth - 1 else {d: make(level + 1, d) for d in group}

    return make(0, None)


def apply(fn, letter, keys, stages, schedule):
    if letter == "D":
        return dist.data_parallel(fn, {"x": 0}, keys)
    if letter == "H":
        return dist.horizontal_parallel(fn, {"x": 0}, keys)
    if letter == "P":
        return dist.pipeline_parallel(fn, stages, 2, schedule, {"x": 0}, keys)
    return dist.zero(fn, {"x": 0}, int(letter), keys)


def run(case, word, device_map, stages=2, schedule="1f1b"):
    fn, inputs, expected, _ = case
    for depth, letter in enumerate(word):
        try:
            fn = apply(fn, letter, ["d", "dd", "ddd"][:depth], stages, schedule)
        except ShapeError as error:  # where every dim is split already, the next level has nothing left
            assume(letter != "H" or error.what != "There is no dim to split on this level.")
            raise
    for version in (fn, dist.keep_in_place(fn)):
        outs = dist.execute(version, inputs, device_map)
        outs = outs if isinstance(outs, tuple) else (outs,)
        for x, y in zip(outs, expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=5e-3, atol=5e-5)
    return fn


@SETTINGS
@given(models(), st.text("DH123", min_size=1, max_size=2), st.data())
def test_data_horizontal_and_zero_in_any_order_on_any_map(case, word, data):
    regular = data.draw(st.booleans())
    device_map = data.draw(trees(len(word), regular))
    if regular and data.draw(st.booleans()):  # with the map at hand, transforms know how many devices there are
        case = (case[0].with_(device_map=dist.DeviceMap(device_map)), *case[1:])
    fn = run(case, word, device_map)
    assert dist.parse(str(fn)) == fn


@SETTINGS
@given(models(), st.sampled_from(["P", "DP", "PD", "HP", "PH"]), st.booleans())
def test_pipelines_at_any_level(case, word, leads):
    pairs = {1: [1, 3], 2: [2, 4]} if leads else {9: [1, 3], 8: [2, 4]}
    run(case, word, [1, 2] if len(word) == 1 else pairs)


@SETTINGS
@given(models(), st.text("DH", min_size=1, max_size=3), st.data())
def test_a_resolved_program_is_flat_reads_back_and_computes_the_same(case, word, data):
    device_map = data.draw(trees(len(word), regular=True))
    fn = run(case, word, device_map)
    flat = dist.resolve(fn, device_map)
    assert not list(flat.bodies())
    assert all(v.type.device.is_concrete for eqn in flat.eqns for v in eqn.outputs if isinstance(v.type, dist.Tensor))
    assert dist.parse(str(flat), strict=True) == flat


@SETTINGS
@given(models(), st.text("DH", min_size=1, max_size=2), st.sampled_from([(1, 1), (2, 2), (2, 1), (4, 2)]))
def test_alike_devices_simulated_once_take_the_same_time_and_memory(case, word, fans):
    device_map = dist.DeviceMap.grid(*fans[: len(word)])
    fn = run(case, word, device_map)
    every = dist.simulate(fn, device_map, assumptions=dist.DistIR(), fold=False)
    once = dist.simulate(fn, device_map, assumptions=dist.DistIR())
    assert once.seconds == pytest.approx(every.seconds, rel=1e-12)
    assert once.peak_bytes == {d: every.peak_bytes[d] for d in once.peak_bytes}


@SETTINGS
@given(models(), st.integers(1, 4))
def test_recomputation_of_any_training_step(case, segments):
    fn, inputs, expected, trains = case
    if not trains:
        return
    run((dist.recompute(fn, segments), inputs, expected, trains), "", None)


@SETTINGS
@given(st.data())
def test_a_device_map_is_total_or_refused_with_the_reason(data):
    """Any nesting of numbers is a map whose paths all resolve, or an error."""

    def nest(depth):
        keys = data.draw(st.lists(st.integers(0, 6), min_size=0, max_size=3))
        if depth == 0 or data.draw(st.booleans()):
            return keys
        return {key: nest(depth - 1) for key in keys}

    given_tree = nest(2)
    try:
        found = dist.DeviceMap(given_tree)
    except mw.MeshwrightError as error:
        assert error.why
        assert error.fix
        return
    for path in found.paths():
        assert path[-1] in found.lookup(path[:-1])
    owners = [path for path in found.paths() if path[-1] not in path[:-1]]
    assert len({path[-1] for path in owners}) == len(owners)


@st.composite
def any_trees(draw):
    """Any map: too deep or too flat for the program, groups that divide nothing, keys that lead or do not."""
    numbers = chain(draw(st.permutations(range(1, 9))), count(9))

    def make(depth):
        keys = [next(numbers) for _ in range(draw(st.integers(1, 3)))]
        if depth == 0 or draw(st.integers(0, 3)) == 0:
            return keys
        return {key: [key] if draw(st.booleans()) else make(depth - 1) for key in keys}

    return make(draw(st.integers(0, 3)))


INSTEAD = [
    *("dim=0", "dim=1", "dim=7", "to_device=3)", "to_device=d)", "device_keys=[]", "device_keys=[d]"),
    *("device_keys=[1]", "device_keys=[dd]", ", 5]", ", ?]", "(3, ", "scatter", "broadcast", "allgather"),
    *("reduce_scatter", "gather", "allreduce", "own_part", "send", "split"),
]


def mutated(fn, data):
    """The program with one thing in its text changed: a dim, a device, a key, an op, a name."""
    text = str(fn)
    found = re.findall(
        r"dim=\d|to_device=\S+?[,)]|device_keys=\[.*?\]|, \d\]|\(\d+, |scatter|broadcast|allreduce|gather", text
    )
    if not found:
        return fn
    old = data.draw(st.sampled_from(sorted(set(found))))
    new = data.draw(st.sampled_from(INSTEAD))
    places = [m.start() for m in re.finditer(re.escape(old), text)]
    at = data.draw(st.sampled_from(places))
    return dist.parse(text[:at] + new + text[at + len(old) :], strict=True)


def resolves(case, word, data):
    """A flat program that computes what the device program does, or None where one clear error says why not."""
    fn, inputs, *_ = case
    device_map = data.draw(st.one_of(any_trees(), trees(max(len(word), 1), regular=False)))
    try:
        for depth, letter in enumerate(word):
            fn = apply(fn, letter, ["d", "dd", "ddd"][:depth], 2, "1f1b")
        if data.draw(st.booleans()):
            fn = mutated(fn, data)
        flat = dist.resolve(fn, device_map)
    except mw.MeshwrightError as error:
        assert error.what
        assert error.why or error.where
        assert error.fix
        assert not re.search(r"\d{18,}", str(error))  # numbers that stand for symbols
        return None
    values = [v for eqn in flat.eqns for v in eqn.outputs]
    assert not list(flat.bodies())
    assert all(v.type.device.is_concrete for v in values if isinstance(v.type, dist.Tensor))
    found, again = dist.execute(fn, inputs, device_map), dist.execute(flat, inputs)
    for x, y in zip(mw.tree.leaves(found), mw.tree.leaves(again), strict=False):
        np.testing.assert_array_equal(x, y)
    return flat


@SETTINGS
@given(models(), st.text("DHP123", min_size=0, max_size=3), st.data())
def test_resolution_is_total_or_says_why_not(case, word, data):
    resolves(case, word, data)


@pytest.mark.slow
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(models(), st.text("DHP123", min_size=0, max_size=3), st.data())
def test_resolution_is_total_or_says_why_not_at_length(case, word, data):
    resolves(case, word, data)


@pytest.mark.slow
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(models(), st.text("DHP123", min_size=1, max_size=3), st.data())
def test_any_stack_on_any_map(case, word, data):
    """Pipelines have as many stages as their level has devices, so that the levels of their maps are regular."""
    device_map = data.draw(trees(len(word), regular="P" in word))
    sizes = dist.DeviceMap(device_map).fan_outs or ()
    stages = {n for n, letter in zip(sizes, word, strict=False) if letter == "P"}
    assume(len(stages) <= 1)
    if sizes and data.draw(st.booleans()):
        case = (case[0].with_(device_map=dist.DeviceMap(device_map)), *case[1:])
    run(case, word, device_map, stages=stages.pop() if stages else 2)
