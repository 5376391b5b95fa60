"""A chip's name with a count is a slice that there is, wherever a machine is named."""

from math import prod

import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import hardware as hw
from meshwright.commands.machines import read_machine
from meshwright.errors import HardwareError
from meshwright.hardware import Topology
from meshwright.hardware.machines import named_machine

TPUS = [name for name in hw.names() if name.startswith("tpu")]


@pytest.mark.parametrize(
    ("chip", "count", "shape"),
    [
        ("tpu v5e", 1, (1, 1)),
        ("tpu v5e", 4, (2, 2)),
        ("tpu v5e", 8, (2, 4)),
        ("tpu v5e", 32, (4, 8)),
        ("tpu v5e", 64, (8, 8)),
        ("tpu v6e", 128, (8, 16)),
        ("tpu v5e", 256, (16, 16)),
        ("tpu v3", 512, (16, 32)),
        ("tpu v5p", 4, (2, 2, 1)),
        ("tpu v5p", 8, (2, 2, 2)),
        ("tpu v5p", 16, (2, 2, 4)),
        ("tpu v5p", 32, (2, 4, 4)),
        ("tpu v4", 64, (4, 4, 4)),
        ("tpu v5p", 128, (4, 4, 8)),
        ("tpu v5p", 1024, (8, 8, 16)),
        ("tpu v5p", 1536, (8, 12, 16)),
        ("tpu v5p", 6144, (16, 16, 24)),
        ("tpu v5p", 8960, (16, 20, 28)),
        ("tpu v4", 4096, (16, 16, 16)),
        ("tpu 7x", 9216, (16, 24, 24)),
        ("h100", 24, (24,)),
    ],
)
def test_a_count_is_a_slice(chip, count, shape):
    for machine in (Topology(chip, count), Topology(chip, str(count)), named_machine(f"{chip} {count}")):
        assert machine.shape == shape
        assert machine.wrap == Topology(chip, shape).wrap


@pytest.mark.parametrize("chip", TPUS)
def test_every_count_is_a_slice_or_refused_with_those_nearest(chip):
    found = hw.get(chip)
    fact = found.facts.get("pod_shape")
    most = int(found.known("pod_chips", prod(fact.value) if fact else 256))
    there = {}
    for count in range(1, min(most, 1100) + 1):
        try:
            there[count] = Topology(chip, count).shape
        except HardwareError as error:
            assert error.what == f"No slice of {chip} has {count} chips."
    for count, shape in there.items():
        assert prod(shape) == count and len(shape) == found.torus_dims
        # Whole hosts, in halves or wholes of a cube, or in cubes.
        assert count == 1 or all(n == 1 or n % 2 == 0 for n in shape)
        assert count <= 64 or found.torus_dims == 2 or all(n % 4 == 0 for n in shape)
    for count in set(range(1, 200)) - set(there):
        with pytest.raises(HardwareError) as error:
            Topology(chip, count)
        below, above = max(n for n in there if n < count), min(n for n in there if n > count)
        texts = ["x".join(map(str, there[n])) + f" = {n}" for n in (below, above)]
        assert error.value.why == f"those nearest to it are {' and '.join(texts)}"
        assert error.value.fix == f"Topology({chip!r}, {below}) or Topology({chip!r}, {above})"


def test_a_pod_has_no_more():
    with pytest.raises(HardwareError) as error:
        Topology("tpu v5e", 512)
    assert error.value.what == "There is no tpu v5e 512."
    assert error.value.why == "a pod of tpu v5e has 16x16 = 256 chips"


def test_an_axis_by_itself_is_a_tuple_or_says_whether_it_wraps():
    assert Topology("tpu v5e", (8,)).shape == (8,)
    assert Topology("tpu v5e", 8, wrap=True).shape == (8,) == Topology("tpu v5e", 8, wrap=False).shape


def test_programs_run_on_slices_by_count():
    def f(x, w):
        return x @ w

    x, w = mnp.ones((64, 64)), mnp.ones((64, 64))
    mesh = mw.make_mesh((8, 8), ("x", "y"))
    sharded = mw.jit(f, in_shardings=(mw.NamedSharding(mesh, mw.P("x", "y")), mw.NamedSharding(mesh, mw.P("y", None))))
    compiled = sharded.lower(x, w).compile()
    assert compiled.simulate("tpu v5e 64").seconds == compiled.simulate("tpu v5e 8x8").seconds


def test_the_fix_is_what_one_types():
    with pytest.raises(HardwareError) as error:
        read_machine("tpu v5e 48")
    assert error.value.fix == "--hardware 'tpu v5e 32' or --hardware 'tpu v5e 64'"
