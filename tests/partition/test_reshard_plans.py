"""Which plan is found: its steps and text, what it costs, what it refuses, and that it does not depend on size."""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright import hardware
from meshwright.errors import MeshwrightError
from meshwright.partition.reshard import plan as reshard
from meshwright.partition.reshard.plan import ReshardPlan
from meshwright.sharding.mesh import Mesh
from meshwright.sharding.named import TensorSharding
from meshwright.sharding.text_command import read_mesh, read_spec


def plan(mesh: str, shape: tuple[int, ...], source: str, target: str, **options: object) -> ReshardPlan:
    on = read_mesh(mesh)
    return mw.plan_reshard(shape, "f32", read_spec(source, on, shape), read_spec(target, on, shape), **options)


@pytest.mark.parametrize(
    ("mesh", "shape", "source", "target", "steps"),
    [
        ("x=2,y=4", (64, 64), "x", "x", []),
        ("x=2,y=4", (64, 64), "None", "x,y", ["slice dim 0 over x, dim 1 over y"]),
        ("x=2,y=4", (64, 64), "x", "None,y", ["slice dim 1 over y", "all_gather dim 0 over x"]),
        ("x=2,y=4", (64, 64), "x,y", "None", ["all_gather dim 0 over x, dim 1 over y"]),
        ("x=2,y=4", (64, 64), "(x,y)", "x", ["all_gather dim 0 over y"]),
        ("x=2,y=4", (64, 64), "x", "None,x", ["all_to_all dim 0 to dim 1 over x"]),
        ("x=2,y=4", (64, 64), "(x,y)", "None,(x,y)", ["all_to_all dim 0 to dim 1 over (x,y)"]),
        ("x=2,y=2", (64, 64), "x,y", "y,x", ["permute x→y→x"]),
        ("x=2,y=2", (64, 64), "(x,y)", "(y,x)", ["permute x→y→x"]),
        ("x=2,y=2", (64, 64), "x", "y", ["permute x→y→x"]),
        ("x=2,y=2", (64, 64), "None,x", "y", ["slice dim 0 over y", "all_gather dim 1 over x"]),
        ("x=2,y=2", (64, 64), "x,y", "y", ["permute x→y→x", "all_gather dim 1 over x"]),
        ("x=2,y=2", (64, 64), "None,x", "x,y", ["slice dim 0 over y", "permute x→y→x"]),
        ("x=4,y=2", (64, 64), "x", "y", ["permute x:(1)2→y→x:(1)2", "all_gather dim 0 over x:(2)2"]),
        ("x=4,y=4", (8, 8, 8), "None,x,y", "x,y", ["4 rounds of permute, dim 2 to dim 0 along x→y"]),
        ("x=2,y=3", (12, 12), "x,y", "y,x", ["6 rounds of permute of blocks over (x,y)"]),
        ("x=2,y=3", (12,), "(x,y)", "(y,x)", ["1 permute of blocks over (x,y)"]),
        ("x=2,y=4", (64, 64), "unreduced={x}", "x", ["reduce_scatter dim 0 over x"]),
        ("x=2,y=4", (64, 64), "unreduced={y}", "y", ["slice dim 0 over x", "reduce_scatter dim 0 over y",
                                                     "all_gather dim 0 over x"]),
        ("x=2,y=4", (64, 64), "None,y,unreduced={x}", "x,y", ["reduce_scatter dim 0 over x"]),
        ("x=2,y=4", (64, 64), "None,y,unreduced={x}", "None,(y,x)", ["reduce_scatter dim 1 over x"]),
        ("x=2,y=4", (64, 64), "None,y,unreduced={x}", "None,y", ["all_reduce over x"]),
        ("x=2,y=4", (64, 64), "unreduced={x,y}", "unreduced={x}", ["all_reduce over y"]),
        ("x=4", (64, 64), "unreduced={x}", "None", ["all_reduce over x"]),
        ("x=4", (64, 64), "x", "unreduced={x}", ["expand dim 0 over x"]),
        ("x=4", (64, 64), "None", "unreduced={x}", ["mask over x"]),
        ("x=2,y=2", (64, 64), "y", "x,unreduced={y}", ["select dim 0 from y onto x"]),
        ("x=2,y=2", (8, 8), "x,unreduced={y}", "y,unreduced={x}", ["all_reduce over y", "select dim 0 from x onto y"]),
    ],
)  # fmt: skip
def test_steps(mesh: str, shape: tuple[int, ...], source: str, target: str, steps: list[str]) -> None:
    assert [str(step) for step in plan(mesh, shape, source, target).steps] == steps


def test_one_that_is_unreduced_first_slices_what_others_have_too() -> None:
    found = plan("x=4,y=2", (64, 64), "unreduced={x}", "None")
    steps = ["slice dim 0 over y", "reduce_scatter dim 0 over x", "all_gather dim 0 over (y,x)"]
    assert [str(step) for step in found.steps] == steps
    whole = 64 * 64 * 4
    assert found.bytes_received_per_device == whole // 2 * 3 // 4 + whole * 7 // 8 < 2 * whole * 3 // 4
    assert found.total_bytes == found.total_lower_bound_bytes == 64 * 64 * 4 * (3 + 7)


def test_text() -> None:
    assert str(plan("x=2,y=2", (64, 64), "x,y", "y")) == (
        "f32[64@x,64@y] → f32[64@y,64]\n"
        "  permute x→y→x            4.1 kB per device\n"
        "  all_gather dim 1 over x  4.1 kB per device\n"
        "received  8.19 kB per device (at least 8.19 kB), 24.6 kB in all (at least 24.6 kB)\n"
        "memory    8.19 kB at most"
    )
    assert str(plan("x=2", (4,), "x", "x")).splitlines()[1] == "  nothing to do"
    assert repr(plan("x=2", (4,), "x", "None")) == "<ReshardPlan all_gather dim 0 over x>"
    assert str(plan("x=2", (4,), "x,unreduced={}", "unreduced={x}")).startswith("f32[4@x] → f32[4]{U:x}")
    padded = str(plan("x=4,y=6", (5, 8), "unreduced={y}", "(x,y)"))
    assert padded.endswith("memory    192 B at most, more than either end: no smaller way is known")


def test_steps_say_what_they_do_to_digits() -> None:
    found = plan("x=2,y=4", (64, 64), "x", "None,y")
    assert [[tuple(d.size for d in dim) for dim in view] for view in found.views] == [
        [(32,), (4, 16)],
        [(32,), (16,)],
        [(2, 32), (16,)],
    ]
    assert [len(mapped) for mapped in found.mapped] == [1, 2, 1]


# Size and number of devices


def test_plans_are_found_once_for_all_sizes_that_divide() -> None:
    before = reshard._find.cache_info().misses
    for size in (48, 96, 4800, 2**20 * 12):
        found = plan("x=3,y=4", (size, size), "x,y", "y,x")
        assert found.total_bytes == found.total_lower_bound_bytes
    assert reshard._find.cache_info().misses - before == 1


@pytest.mark.parametrize("target", ["y,x", "None,(y,x)", "None", "(y,x),None"])
def test_more_devices_make_no_longer_plans(target: str) -> None:
    small = plan("x=2,y=2", (2**15, 2**15), "x,y", target)
    large = plan("x=128,y=128", (2**15, 2**15), "x,y", target)
    assert [type(step) for step in small.steps] == [type(step) for step in large.steps]
    assert large.total_bytes == large.total_lower_bound_bytes


def test_many_sums_do_not_take_long() -> None:
    mesh = ",".join(f"a{index}=2" for index in range(12))
    unreduced_axes = ",".join(f"a{index}" for index in range(12))
    found = plan(mesh, (4096, 64), f"unreduced={{{unreduced_axes}}}", f"({unreduced_axes})")
    assert [str(step) for step in found.steps] == [f"reduce_scatter dim 0 over ({unreduced_axes})"]
    assert found.total_bytes == found.total_lower_bound_bytes
    assert [step.kind for step in plan(mesh, (4096, 64), f"unreduced={{{unreduced_axes}}}", "None").steps] == [
        "all_reduce"
    ]


# Time


def test_seconds_are_those_of_the_collectives() -> None:
    machine = hardware.Topology("tpu v5e", (8, 4), mesh={"x": 8, "y": 4})
    gathered = plan("x=8,y=4", (2048, 8192), "None,y", "None")
    assert gathered.seconds(machine) == hardware.collective_seconds("all_gather", 2048 * 8192 * 4, machine, "y")
    assert plan("x=8,y=4", (2048, 8192), "None", "x").seconds(machine) == 0
    exchanged = plan("x=8,y=4", (2048, 8192), "x", "None,x")
    assert exchanged.seconds(machine) == hardware.collective_seconds("all_to_all", 2048 * 8192 * 4, machine, "x")
    part = plan("x=8,y=4", (2048, 8192), "None,x:(1)2", "None").seconds("tpu v5e")
    assert part > plan("x=8,y=4", (2048, 8192), "None,x:(4)2", "None").seconds("tpu v5e") > 0
    assert plan("x=2,y=3", (12, 12), "x,y", "y,x").seconds("h100") > 0
    unlaid = hardware.Topology("tpu v5e", (8, 4))
    assert gathered.seconds(unlaid) == gathered.seconds(machine)


def test_idle_axes_carry_bytes_if_time_matters() -> None:
    # A gather over one axis of a 4x4x4 torus that leaves another idle takes half the time over both.
    fewest = plan("x=4,y=4,z=4", (1024, 4096), "x,y", "None,y")
    fastest = plan("x=4,y=4,z=4", (1024, 4096), "x,y", "None,y", hardware="tpu v4")
    assert [str(step) for step in fewest.steps] == ["all_gather dim 0 over x"]
    assert [str(step) for step in fastest.steps] == ["slice dim 0 over z", "all_gather dim 0 over (x,z)"]
    assert fastest.total_bytes > fewest.total_bytes
    assert fastest.seconds("tpu v4") < 0.65 * fewest.seconds("tpu v4")


def test_small_arrays_prefer_few_collectives_if_time_matters() -> None:
    args = "x=4,y=4", (16, 16, 16), "None,x,y", "x,y"
    assert plan(*args).num_collectives == 4
    assert [step.kind for step in plan(*args, hardware="tpu v5e").steps] == ["permute", "all_to_all"]


# Errors

MESH = mw.make_mesh((2, 4), ("x", "y"))
X = mw.NamedSharding(MESH, mw.P("x"))


def message(*args: object, **options: object) -> str:
    with pytest.raises(MeshwrightError) as caught:
        mw.plan_reshard(*args, **options)
    caught.value.where = ""
    return str(caught.value)


def test_errors() -> None:
    assert message((8, 8), "f32", X, mw.NamedSharding(mw.make_mesh((4,), ("x",)), mw.P("x"))) == (
        "An array cannot be resharded from one set of devices to another.\n"
        "  why:  the source is on 8 devices, the target on 4 devices\n"
        "  fix:  mw.device_put(x, dst) copies an array to other devices"
    )
    far = mw.NamedSharding(Mesh([[1, 2, 3, 4], [5, 6, 7, 8]], ("x", "y")), mw.P("x"))
    assert "why:  device 0 is in the mesh of the source only" in message((8, 8), "f32", X, far)
    gpus = mw.NamedSharding(mw.make_mesh((2, 4), ("x", "y"), kind="gpu"), mw.P("x"))
    assert "why:  the source is on devices of kind cpu, the target on devices of kind gpu" in message(
        (8, 8), "f32", X, gpus
    )
    assert message((8,), "f32", mw.NamedSharding(MESH, mw.P("x", "y")), X) == (
        "The sharding has 2 dims and the tensor 1.\n"
        "  why:  P('x', 'y') says for each dim how it is sharded, and the shape is (8,)\n"
        "  fix:  mw.P('x',)"
    )
    assert message((8, 8), "f32", X, "x") == (
        "plan_reshard cannot take dst='x'.\n"
        "  why:  it takes a shape, a dtype, and two shardings\n"
        '  fix:  mw.plan_reshard((64, 64), "f32", mw.NamedSharding(mesh, mw.P("x")), mw.NamedSharding(mesh, mw.P()))'
    )
    assert message((8, 8), "f32", mw.P("x"), X) == (
        "src=P('x',) has no mesh.\n"
        "  why:  a partition spec names axes of the current mesh, and none is set\n"
        "  fix:  mw.NamedSharding(mesh, mw.P('x',))"
    )
    assert message((8, 8), "f33", X, X) == (
        "plan_reshard cannot take the dtype 'f33'.\n"
        "  why:  data type 'f33' not understood\n"
        '  fix:  plan_reshard(shape, "f32", src, dst)'
    )
    assert "(8, -8) is not a shape." in message((8, -8), "f32", X, X)
    assert "3 is not a machine." in message((8, 8), "f32", X, X, hardware=3)


def test_sums_of_different_kinds_or_on_meshes_without_common_axes_are_refused() -> None:
    most = TensorSharding(MESH, ["y"], unreduced=["x"], reduction="max")
    total = TensorSharding(MESH, [None], unreduced=["x"])
    assert message((8,), "f32", most, total) == (
        "An unreduced max cannot become an unreduced sum.\n"
        f"  why:  {most} is unreduced by max, {total} by sum, over the same axes\n"
        "  fix:  reshard to a sharding without unreduced axes first"
    )
    two, three = mw.make_mesh((2, 3), ("a", "b")), mw.make_mesh((3, 2), ("c", "d"))
    assert message((6,), "f32", TensorSharding(two, ["a"]), TensorSharding(three, [None], unreduced=["c"])) == (
        "A sum cannot stay unreduced on a mesh that cuts the devices differently.\n"
        '  why:  <["a"=2, "b"=3]> and <["c"=3, "d"=2]> have no common parts of axes that it could be unreduced over\n'
        "  fix:  leave out the unreduced axes of dst"
    )


def test_the_current_mesh_is_that_of_partition_specs() -> None:
    with mw.set_mesh(MESH):
        assert mw.plan_reshard((8, 8), "f32", mw.P("x"), mw.P()).num_collectives == 1


def test_a_machine_with_another_mesh_is_refused() -> None:
    with pytest.raises(MeshwrightError, match="The plan's mesh is x=2, y=4, the machine's x=4, y=2"):
        mw.plan_reshard((8, 8), "f32", X, X).seconds(hardware.Topology("tpu v5e", (4, 2), mesh={"x": 4, "y": 2}))
