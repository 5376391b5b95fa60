"""Machines: wraparound, where meshes lie, and the models of collectives by name."""

from itertools import product
from math import prod

import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import hardware as hw
from meshwright.errors import HardwareError
from meshwright.hardware import Span, Topology


@pytest.mark.parametrize(
    ("chip", "shape", "wrap"),
    [
        ("tpu v5e", (4, 8), (False, False)),
        ("tpu v5e", (8, 16), (False, True)),
        ("tpu v6e", (16, 16), (True, True)),
        ("tpu v3", (32, 16), (True, False)),
        ("tpu v5p", (4, 4, 4), (True, True, True)),
        ("tpu v4", (8, 12, 4), (True, True, True)),
        ("tpu v5p", (2, 2, 4), (False, False, False)),
        ("tpu v5p", (2, 4, 4), (False, False, False)),
        ("tpu v4", (4, 4), (False, False)),
        ("tpu 7x", (4, 4, 8), (True, True, True)),
        ("h100", (4, 8), (False, False)),
    ],
)
def test_wraparound(chip, shape, wrap):
    assert Topology(chip, shape).wrap == wrap


def test_shapes_may_be_written_in_several_ways():
    assert Topology("tpu v5p", "4x4x8").shape == (4, 4, 8)
    assert Topology("h100", 16).shape == (16,)
    named = Topology("tpu v5p", {"x": 4, "y": 4, "z": 8})
    assert named.shape == (4, 4, 8) and named.spans("z") == (Span(2, 8),)
    assert hw.collective_seconds("all-gather", 1e9, named, "z") == hw.collective_seconds("all_gather", 1e9, named, 2)


@pytest.mark.parametrize(
    ("shape", "mesh", "placed"),
    [
        ((4, 4, 4), {"x": 4, "y": 4, "z": 4}, {"x": [(0, 4, 1)], "y": [(1, 4, 1)], "z": [(2, 4, 1)]}),
        ((4, 4, 4), {"x": 16, "y": 4}, {"x": [(0, 4, 1), (1, 4, 1)], "y": [(2, 4, 1)]}),
        ((4, 4, 8), {"x": 8, "y": 16}, {"x": [(2, 8, 1)], "y": [(0, 4, 1), (1, 4, 1)]}),
        ((4, 4, 4), {"x": 2, "y": 32}, {"x": [(0, 2, 2)], "y": [(0, 2, 1), (1, 4, 1), (2, 4, 1)]}),
        ((4, 4, 4), {"x": 1, "y": 2}, {"x": [], "y": [(2, 2, 1)]}),
    ],
)
def test_mesh_axes_lie_on_physical_axes(shape, mesh, placed):
    t = Topology("tpu v5p", shape, mesh=mesh)
    assert {name: [tuple(span) for span in spans] for name, spans in t.mapping.items()} == placed


def test_a_mesh_is_laid_by_hand():
    t = Topology("tpu v5p", (4, 4, 8), mesh={"x": 8, "y": 16}, mapping={"x": 2, "y": (0, 1)})
    assert t.spans(["x", "y"]) == (Span(0, 4), Span(1, 4), Span(2, 8))


def test_the_first_axes_of_a_mesh_take_the_slices():
    t = Topology("tpu v5e", (4, 4), slices=4, mesh={"data": 8, "model": 8})
    assert t.size == 64
    assert t.mapping["data"][0] == Span(-1, 4)
    assert t.spans("model") == (Span(0, 2), Span(1, 4)) or t.spans("model") == (Span(0, 4), Span(1, 2))
    slow, fast = (hw.collective_cost("all_reduce", 1e9, t, axis) for axis in ("data", "model"))
    assert slow.network == "net" and fast.network == "link"
    assert slow.seconds > fast.seconds


def test_a_mesh_object_is_a_mesh():
    mesh = mw.make_mesh((2, 4), ("x", "y"))
    assert hw.for_mesh("tpu v5e", mesh).mesh == {"x": 2, "y": 4}


def test_more_mesh_axes_than_a_chip_has_dimensions():
    t = hw.for_mesh("tpu v5e", {"a": 2, "b": 2, "c": 4})
    assert t.shape == (2, 8)
    assert sorted(span for spans in t.mapping.values() for span in spans) == [Span(0, 2), Span(1, 2, 4), Span(1, 4)]


@pytest.mark.parametrize(
    ("chip", "mesh", "shape", "slices"),
    [
        ("tpu v5e", {"x": 32}, (16, 2), 1),
        ("tpu v5e", {"x": 64, "y": 4}, (16, 16), 1),
        ("tpu v5e", {"data": 64, "model": 16}, (16, 16), 4),
        ("tpu v5p", {"x": 8, "y": 64}, (8, 8, 8), 1),
        ("tpu 7x", {"x": 4, "y": 4, "z": 4, "w": 2}, (4, 4, 8), 1),
        ("h100", {"x": 3, "y": 8}, (24,), 1),
    ],
)
def test_a_machine_for_a_mesh(chip, mesh, shape, slices):
    t = hw.for_mesh(chip, mesh)
    assert (t.shape, t.slices) == (shape, slices)
    assert {name: prod(span.size for span in spans) for name, spans in t.mapping.items()} == mesh


def test_levels_of_a_fat_tree():
    assert [level.name for level in Topology("h100", 8).levels] == ["gpu"]
    assert [level.name for level in Topology("h100", 256).levels] == ["gpu", "node"]
    assert [level.name for level in Topology("h100", 1024).levels] == ["gpu", "node", "unit"]
    # Beyond a node, its way out decides; two nodes are bound by NVLink.
    rates = [hw.collective_bytes_per_s("all_gather", Topology("h100", n)) / 1e9 for n in (8, 16, 256, 1024)]
    assert rates == pytest.approx([450 * 8 / 7, 450 * 8 / 7, 400 * 32 / 31, 400 * 128 / 127])


def test_the_formulas_of_seed_001():
    ring = Topology("tpu v4", 8, wrap=True)
    small, large = (hw.collective_cost("all_gather", v, ring, model="seed 001") for v in (1e4, 1e9))
    assert small.seconds == pytest.approx(8 * 1e-6 / 2) and small.bound == "latency"
    assert large.seconds == pytest.approx(1e9 / (2 * 4.5e10)) and large.bound == "bandwidth"
    torus = Topology("tpu v4", (4, 4, 4))
    assert hw.collective_seconds("all_gather", 1e9, torus, model="seed 001") == pytest.approx(1e9 / (2 * 3 * 4.5e10))
    assert hw.collective_cost("all_gather", 1, torus, model="seed 001").latency_seconds == pytest.approx(32e-6)
    assert hw.collective_cost("all_gather", 1, torus).latency_seconds == pytest.approx(6e-6)
    ratio = hw.collective_seconds("all_reduce", 1e9, torus, model="seed 001")
    assert ratio == pytest.approx(2 * hw.collective_seconds("all_gather", 1e9, torus, model="seed 001"))
    quarter = hw.collective_seconds("all_to_all", 1e9, ring, model="seed 001")
    assert quarter == pytest.approx(hw.collective_seconds("all_gather", 1e9, ring, model="seed 001") / 4)


def test_the_model_of_nccl_is_additive():
    node = Topology("h100", 8)
    cost = hw.collective_cost("all_gather", 2**29, node, model="nccl", algorithm="ring", protocol="Simple")
    assert cost.latency_seconds == pytest.approx(8.4e-6 + 7 * 3.4e-6)
    assert cost.bandwidth_seconds == pytest.approx(2**29 * 7 / (8 * 370e9))
    assert cost.seconds == pytest.approx(1.30e-3, rel=0.01)
    # Small messages take a protocol of low latency, and across many nodes a tree.
    small = hw.collective_cost("all_reduce", 1024, Topology("h100", 512), model="nccl")
    ring = hw.collective_cost("all_reduce", 1024, Topology("h100", 512), model="nccl", algorithm="ring")
    assert small.seconds < ring.seconds / 5
    large = hw.collective_cost("all_reduce", 2**36, Topology("h100", 512), model="nccl")
    assert large.seconds == hw.collective_seconds(
        "all_reduce", 2**36, Topology("h100", 512), model="nccl", algorithm="ring"
    )


def test_where_a_ring_overtakes_a_tree():
    t = Topology("h100", 64)
    tree, ring = (
        lambda v, a=a: hw.collective_seconds("all_reduce", v, t, model="nccl", algorithm=a) for a in ("tree", "ring")
    )
    at = hw.crossover(tree, ring, 1e3, 1e11)
    assert at is not None and tree(at / 2) < ring(at / 2) and tree(at * 2) > ring(at * 2)


def test_losing_wraparound_doubles_a_gather():
    for axes in (0, (0, 1), (0, 1, 2)):
        ring, line = (
            hw.collective_cost("all_gather", 1e9, Topology("tpu v5p", (4, 4, 4), wrap=w), axes).bandwidth_seconds
            for w in (True, False)
        )
        assert line == pytest.approx(2 * ring)


@pytest.mark.parametrize(
    "kind", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute", "broadcast", "reduce"]
)
@pytest.mark.parametrize("t", [Topology("tpu v5e", (4, 8)), Topology("tpu v5p", (4, 4, 4)), Topology("h100", 64)])
def test_exact_tends_to_asymptotic_and_calibrated_is_never_faster(kind, t):
    exact, textbook, real = (hw.collective_cost(kind, 1e9, t, mode=m) for m in ("exact", "asymptotic", "calibrated"))
    assert 0 < exact.bandwidth_seconds <= textbook.bandwidth_seconds * (1 + 1e-12)
    assert real.seconds >= exact.seconds
    assert hw.collective_cost(kind, 0, t).seconds == exact.latency_seconds


def test_a_group_of_one_costs_nothing():
    t = Topology("tpu v5e", (4, 4), mesh={"x": 16, "y": 1})
    assert hw.collective_seconds("all_reduce", 1e9, t, "y") == 0


@pytest.mark.parametrize("chip", hw.names())
def test_every_mesh_lies_on_a_machine_made_for_it(chip: str) -> None:
    """Whatever the sizes of its axes: those that fill no node, too."""
    for x, y in product(range(1, 14), repeat=2):
        found = hw.for_mesh(chip, {"x": x, "y": y})
        assert prod(span.size for name in "xy" for span in found.mapping[name]) == x * y
        assert prod(found.shape) * found.slices >= x * y


@pytest.mark.parametrize(
    ("text", "other"), [("tpu v5e 2x4", Topology("tpu v5e", (2, 4))), ("h100 8", Topology("h100", 8))]
)
def test_a_machine_is_named_in_python_as_on_the_command_line(text: str, other: Topology) -> None:
    x = mw.device_put(mnp.ones((64, 64)), mw.NamedSharding(mw.make_mesh((2, 4), ("x", "y")), mw.P("x", "y")))
    by_name, by_topology = (mw.jit(lambda x: x @ x.T, hardware=one).lower(x).compile() for one in (text, other))
    assert by_name.program == by_topology.program
    assert by_name.simulate(text).seconds == mw.simulate(by_name, other).seconds
    assert by_name.collectives[0].seconds(text) == by_name.collectives[0].seconds(other)
    assert mw.Overlap(text).hardware == text


def test_a_machine_that_a_program_does_not_lie_on_is_refused_with_one_that_it_does() -> None:
    x = mw.device_put(mnp.ones((12, 16)), mw.NamedSharding(mw.make_mesh((3, 4), ("x", "y")), mw.P("x", "y")))
    with pytest.raises(HardwareError) as error:
        mw.jit(lambda x: x @ x.T, hardware=Topology("h100", 16)).lower(x).compile()
    assert str(error.value).replace(str(error.value.where), "…") == (
        "A mesh of x=3, y=4 cannot be laid on h100 16.\n"
        "  at:   …\n"
        "  why:  its sizes do not divide the lengths of the machine's axes\n"
        "  fix:  Topology('h100', 24)"
    )
    assert mw.jit(lambda x: x @ x.T, hardware=Topology("h100", 24)).lower(x).compile().collectives
