"""The cost that decides between layouts: its bound, the machine that is named, and what is wrong as one."""

from __future__ import annotations

import re
from itertools import product

import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.core.types import tensor
from meshwright.partition.cost import NO_MACHINE, cost_on, least_seconds, reshard_seconds
from meshwright.partition.layouts import closed, layout
from meshwright.sharding import enumerate_shardings
from tests.partition.metamorphic import random_case

MESH = mw.make_mesh((2, 1, 4), ("x", "one", "y"))
LAYOUTS = [closed(s.to_tensor_sharding(2)) for s in enumerate_shardings(MESH, 2, compound=True)]


@pytest.mark.parametrize(
    "shape", [(16, 32), (9, 5), *(pytest.param(s, marks=pytest.mark.slow) for s in ((8, 1), (0, 8)))], ids=str
)
def test_the_bound_is_one(shape: tuple[int, int]) -> None:
    """What is left out because of it would not have been chosen."""
    t = tensor(shape, "float32")
    x, one, y = MESH.axes
    checked = 0
    for source, target in product(LAYOUTS, LAYOUTS):
        used = {axis.name for dim in source.dims for axis in dim.axes}
        sums = [(), *((axis,) for axis in (x, one, y) if axis.name not in used)]
        for unreduced in sums:
            have = layout(MESH, tuple(dim.axes for dim in source.dims), unreduced)
            least, found = (f(t, have, target, NO_MACHINE) for f in (least_seconds, reshard_seconds))
            assert least <= found * (1 + 1e-12)
            checked += least > 0
    assert checked > 100 or not all(shape)


def test_a_machine_counts_latency_and_none_does_not() -> None:
    mesh = mw.make_mesh((8,), ("x",))
    t = tensor((8, 8), "float32")
    source = closed(mw.NamedSharding(mesh, mw.P("x")).to_tensor_sharding(2))
    whole = closed(mw.NamedSharding(mesh, mw.P()).to_tensor_sharding(2))
    none, named = (reshard_seconds(t, source, whole, cost_on(hardware, mesh)) for hardware in (None, "tpu v5e"))
    assert none < 1e-8 < 1e-6 < named


@pytest.mark.parametrize("machine", ["tpu v5e", "h100"])
@pytest.mark.parametrize("sizes", [(2, 4), (4, 2), (8,)], ids=str)
def test_the_cost_of_a_plan_is_what_simulate_says_of_the_program(sizes: tuple[int, ...], machine: str) -> None:
    mesh = mw.make_mesh(sizes, ("x", "y")[: len(sizes)])
    cost, t = cost_on(machine, mesh), tensor((256, 512), "float32")
    shardings = list(enumerate_shardings(mesh, 2, compound=True))
    for source, target in product(shardings, shardings):
        have, want = (closed(s.to_tensor_sharding(2)) for s in (source, target))
        argument = mw.ShapeDtypeStruct(t.shape, "float32", sharding=source)
        program = mw.jit(lambda x: x, out_shardings=target, hardware=machine).lower(argument).compile()
        said = program.simulate(machine, overlap="none").seconds
        assert reshard_seconds(t, have, want, cost) == pytest.approx(said, rel=1e-6), (source, target)


@pytest.mark.parametrize("machine", ["tpu v5e", "h100"])
@pytest.mark.parametrize("seed", range(24))
def test_a_program_for_a_machine_is_not_slower_on_it_than_one_for_none(seed: int, machine: str) -> None:
    """Of equations that each run where they are fastest, the whole may be slower."""
    case = random_case(seed)
    programs = [case.compiled(hardware) for hardware in (None, machine)]
    plain, named = (program.simulate(machine, overlap="none") for program in programs)
    assert named.seconds <= plain.seconds * 1.01
    for program, simulated in zip(programs, (plain, named), strict=True):
        listed = sum(one.times * one.seconds(machine) for one in program.collectives)
        assert listed == pytest.approx(simulated.communication_seconds)


@pytest.mark.parametrize("machine", ["tpu v5e", "h100"])
@pytest.mark.parametrize("wanted", [mw.P(), None], ids=str)
def test_devices_share_a_large_matmul_of_whole_matrices(wanted: mw.P | None, machine: str) -> None:
    """If a machine is named: without one, work alone is no reason to split what nobody split."""
    size = 32768
    mesh = mw.make_mesh((4,), ("x",))
    whole = mw.NamedSharding(mesh, mw.P())
    x = mw.ShapeDtypeStruct((size, size), "float32", sharding=whole)
    outs = None if wanted is None else mw.NamedSharding(mesh, wanted)
    plain, named = (
        mw.jit(mnp.matmul, hardware=hardware, out_shardings=outs).lower(x, x).compile() for hardware in (None, machine)
    )
    assert not plain.collectives
    assert [one.kind for one in named.collectives] == ([] if wanted is None else ["all_gather"])
    ratio = named.simulate(machine, overlap="none").seconds / plain.simulate(machine, overlap="none").seconds
    assert ratio < 0.5
    planned = mw.plan_matmul("A[I,J] @ B[J,K] -> C[I,K]", mesh, dict.fromkeys("IJK", size), "f32", machine).best.seconds
    assert wanted is None or named.simulate(machine, overlap="none").seconds == pytest.approx(planned)


def test_axes_may_be_renamed_and_reordered() -> None:
    def bytes_of(names: tuple[str, str], sizes: tuple[int, int]) -> list[tuple[str, int]]:
        mesh = mw.make_mesh(sizes, names)
        on = lambda *spec: mw.NamedSharding(mesh, mw.P(*spec))
        data, model = ("a", "b") if "a" in names else ("p", "q")
        args = [
            mw.ShapeDtypeStruct(shape, "float32", sharding=on(*spec))
            for shape, spec in (((64, 32), (data,)), ((32, 128), (None, model)), ((128, 32), (model,)))
        ]
        found = mw.jit(lambda x, v, w: mw.nn.relu(x @ v) @ w).lower(*args).compile().collectives
        return [(one.kind, one.total_bytes) for one in found]

    first = bytes_of(("a", "b"), (2, 4))
    assert first and first == bytes_of(("q", "p"), (4, 2)) == bytes_of(("p", "q"), (2, 4))


def test_what_is_no_machine_is_one_error() -> None:
    with pytest.raises(mw.errors.HardwareError, match=re.escape("3 is not a machine.")) as caught:
        mw.jit(mnp.matmul, hardware=3)
    assert caught.value.fix == 'mw.hardware.Topology("tpu v5e", (4, 4)), or the name of a chip'
    with pytest.raises(mw.errors.HardwareError, match="No chip is called 'tpu v99'"):
        mw.jit(mnp.matmul, hardware="tpu v99")
