"""What collectives of a program are on a machine, and what machines and programs are refused."""

from __future__ import annotations

from typing import Any

import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax
from meshwright.core import dtypes
from meshwright.hardware import Topology, collective_seconds
from meshwright.simulate import memory, simulate
from tests.simulate.models import megatron, struct

MESH = mw.AbstractMesh((4, 2), ("x", "y"))
MACHINE = Topology("tpu v5e", (4, 2), mesh={"x": 4, "y": 2})
BYTES = 64 * 256 * 2  # of a block


def seconds(function: Any, out: Any) -> float:
    mapped = mw.shard_map(function, mesh=MESH, in_specs=P(("x", "y")), out_specs=out)
    return simulate(mw.make_program(mapped)(struct(8 * 64, 256)), MACHINE).communication_seconds


def test_each_collective_moves_what_hardware_says_of_it() -> None:
    everything = P(("x", "y"))
    assert seconds(lambda v: lax.psum(v, "x"), P("y")) == collective_seconds("all_reduce", BYTES, MACHINE, "x")
    assert seconds(lambda v: lax.pmax(v, "y"), P("x")) == collective_seconds("all_reduce", BYTES, MACHINE, "y")
    assert seconds(lambda v: lax.psum(v, ("x", "y")), P()) == collective_seconds("all_reduce", BYTES, MACHINE)
    gather = seconds(lambda v: lax.all_gather(v, "x", axis=1, tiled=True), everything)
    assert gather == collective_seconds("all_gather", 4 * BYTES, MACHINE, "x")
    scatter = seconds(lambda v: lax.psum_scatter(v, "x", scatter_dimension=0, tiled=True), everything)
    assert scatter == collective_seconds("reduce_scatter", BYTES, MACHINE, "x")
    exchange = seconds(lambda v: lax.all_to_all(v, "x", 0, 1, tiled=True), everything)
    assert exchange == collective_seconds("all_to_all", 4 * BYTES, MACHINE, "x")
    shift = seconds(lambda v: lax.ppermute(v, "x", [(n, (n + 1) % 4) for n in range(4)]), everything)
    assert shift == collective_seconds("permute", 4 * BYTES, MACHINE, "x", shift=1)
    chaos = seconds(lambda v: lax.ppermute(v, "x", [(0, 2), (1, 0), (2, 3), (3, 1)]), everything)
    assert chaos == collective_seconds("permute", 4 * BYTES, MACHINE, "x", shift=None)
    assert seconds(lambda v: v * lax.axis_index("x"), everything) == 0


def test_collectives_on_different_axes_run_at_once_and_on_one_axis_take_turns() -> None:
    def both(a: str, b: str) -> Any:
        def function(v: Any, w: Any) -> Any:
            return lax.all_gather(v, a, axis=1, tiled=True), lax.all_gather(w, b, axis=1, tiled=True)

        spec = P(("x", "y"))
        mapped = mw.shard_map(function, mesh=MESH, in_specs=(spec, spec), out_specs=(spec, spec))
        return simulate(mw.make_program(mapped)(struct(512, 256), struct(512, 256)), MACHINE)

    apart, together = both("x", "y"), both("x", "x")
    assert apart.seconds == max(apart.axis_seconds().values())
    assert together.seconds == together.axis_seconds()["x"]
    assert set(apart.unit_seconds()) == {"compute", "links 0", "links 1"}


def test_links_of_gpus_are_nvlink_and_the_network() -> None:
    def units(data: int, model: int, axis: str) -> set[str]:
        mesh = mw.AbstractMesh((data, model), ("data", "model"))
        mapped = mw.shard_map(lambda v: lax.psum(v, axis), mesh=mesh, in_specs=P(("data", "model")),
                              out_specs=P("model" if axis == "data" else "data"))  # fmt: skip
        result = simulate(mw.make_program(mapped)(struct(data * model, 1024)), "h100")
        return set(result.unit_seconds()) - {"compute"}

    assert units(4, 8, "model") == {"nvlink"}
    assert units(4, 8, "data") == {"network"}
    assert units(4, 16, "model") == {"nvlink", "network"}


@pytest.mark.parametrize("name", [dtypes.short_name(dtype) for dtype in dtypes.ALL])
def test_a_product_of_any_dtype_takes_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mw.config, "enable_x64", True)
    x = mw.ShapeDtypeStruct((1024, 1024), dtypes.SHORT_NAMES[name])
    program = mw.make_program(mnp.matmul)(x, x)
    for chip in ("tpu v5e", "h100"):
        found = simulate(program, Topology(chip, (1,)))
        assert found.seconds >= 3 * 1024**2 * x.dtype.itemsize / mw.hardware.get(chip).hbm_bytes_per_s


def test_parts_of_axes_lie_where_their_whole_does() -> None:
    text = """program(a: f32[8,4]{x:(1)2,x:(2)2}) {
      b: f32[8,4]{x:(2)2} = psum a axes=('x:(1)2',)
      return b
    }"""
    program = mw.parse_program(text)
    machine = Topology("tpu v5e", 4, wrap=True)
    assert simulate(program, machine, {"x": 4}).mesh == {"x:(1)2": 2, "x:(2)2": 2}
    assert (
        simulate(program, machine, {"x:(1)2": 2, "x:(2)2": 2}).seconds == simulate(program, machine, {"x": 4}).seconds
    )


def test_local_programs_take_their_mesh_from_the_machine() -> None:
    body = next(eqn.params["body"] for eqn in megatron().eqns)
    machine = Topology("tpu v5e", (2, 4), mesh={"data": 2, "model": 4})
    assert simulate(body, machine).seconds == simulate(megatron(), machine).seconds
    assert simulate(body, "tpu v5e", {"data": 2, "model": 4}).seconds == simulate(megatron(), "tpu v5e").seconds


def test_calibrated_times_are_those_of_the_measured_kernels() -> None:
    program = mw.make_program(lambda x, w: mnp.tanh(x @ w))(struct(4096, 4096), struct(4096, 4096))
    kernels = mw.hardware.Kernels.of("h200")
    expected = kernels.matmul(4096, 4096, 4096) + kernels.moving("stream", 2 * 4096 * 4096 * 2, 4096 * 4096)
    assert simulate(program, "h200", mode="calibrated").seconds == pytest.approx(expected)
    assert simulate(program, "h200").seconds < expected


MESHED = Topology("tpu v5e", (4, 2), mesh={"data": 4, "model": 2})
REFUSED = [
    (
        lambda: simulate(megatron(), "tpu v5f"),
        "No chip is called 'tpu v5f'.\n"
        '  at:   test_machine.py:{}   lambda: simulate(megatron(), "tpu v5f"),\n'
        "  why:  there are tpu v2, tpu v3, tpu v4, tpu v5e, tpu v5p, tpu v6e, tpu 7x, a100, h100, h200, b200, gb200\n"
        "  fix:  hardware.get('tpu v5p')",
    ),
    (
        lambda: simulate(megatron(), Topology("tpu v5e", (2, 2))),
        "A mesh of data=2, model=4 does not fit on tpu v5e 2x2.\n"
        '  at:   test_machine.py:{}   lambda: simulate(megatron(), Topology("tpu v5e", (2, 2))),\n'
        "  why:  the mesh has 8 devices, the machine 4 chips\n",
    ),
    (lambda: simulate(megatron(), Topology("tpu v5e", (2, 2, 2))), "tpu v5e 2x2x2 has 3 axes."),
    (
        lambda: simulate(megatron(), MESHED),
        "The program's mesh is data=2, model=4, the machine's data=4, model=2.\n"
        "  at:   test_machine.py:{}   lambda: simulate(megatron(), MESHED),\n"
        "  why:  collectives work along the axes of the program's mesh\n"
        "  fix:  Topology('tpu v5e', (4, 2), mesh={{'data': 2, 'model': 4}})",
    ),
    (
        lambda: simulate(megatron(), 3),
        "3 is not a machine.\n"
        "  at:   test_machine.py:{}   lambda: simulate(megatron(), 3),\n"
        "  why:  what a program costs depends on the chips and how they are joined\n"
        '  fix:  mw.hardware.Topology("tpu v5e", (4, 4)), or the name of a chip',
    ),
    (
        lambda: simulate(mw.nn.relu, "h100"),
        "{!r} is not a program.\n"
        '  at:   test_machine.py:{}   lambda: simulate(mw.nn.relu, "h100"),\n'
        "  why:  a simulation plays a program, which knows the shapes of its arguments\n"
        "  fix:  mw.simulate(mw.make_program(f)(*args), topology)",
    ),
    (
        lambda: simulate(megatron(), "h100", overlap="all"),
        "There is no overlap 'all'.\n"
        '  at:   test_machine.py:{}   lambda: simulate(megatron(), "h100", overlap="all"),\n'
        "  why:  there are loops, steps, none\n"
        "  fix:  'loops'",
    ),
    (lambda: simulate(megatron(), "h100", mode="fast"), "There is no mode 'fast'."),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_cannot_be_is_refused(number: int) -> None:
    call, message = REFUSED[number]
    with pytest.raises(mw.MeshwrightError) as caught:
        call()
    place = call.__code__.co_firstlineno
    filled = message.format(mw.nn.relu, place) if message.startswith("{") else message.format(place)
    assert str(caught.value).startswith(filled)


def test_a_local_program_on_no_mesh() -> None:
    body = next(eqn.params["body"] for eqn in megatron().eqns)
    with pytest.raises(mw.MeshwrightError) as caught:
        simulate(body, "tpu v5e")
    error = caught.value
    assert error.what == "The program talks along the axis 'model', and the mesh is empty."
    assert error.why == "a local program does not say how large its mesh is"
    assert error.fix == "mw.simulate(program, topology, mesh_axes={'model': …})"


def test_a_while_loop_needs_a_number_of_steps() -> None:
    program = mw.make_program(lambda x: lax.while_loop(lambda v: v.sum() < 9, lambda v: v * 2, x))(struct(8, 8))
    with pytest.raises(mw.MeshwrightError) as caught:
        simulate(program, "h100")
    assert caught.value.what == "The program has a while loop, and how often it runs is not known."
    assert caught.value.fix == "while_steps=100, or a lax.scan, whose length is known"
    once, ten = (simulate(program, "h100", while_steps=n) for n in (1, 10))
    assert ten.seconds == pytest.approx(10 * once.seconds)
    assert memory(program).peak_bytes > 0


def test_the_longest_branch_is_taken_and_said() -> None:
    def function(x: Any) -> Any:
        return lax.cond(x[0, 0] > 0, lambda v: v @ v, lambda v: v + 1, x)

    result = simulate(mw.make_program(function)(struct(1024, 1024)), "h100")
    assert result.seconds >= mw.hardware.matmul_seconds(1024, 1024, 1024, "h100")
    (note,) = result.notes
    assert note.startswith("of the 2 branches of the cond at test_machine.py:")


def test_ops_between_shard_maps_on_parts_are_refused() -> None:
    mapped = mw.shard_map(lambda v: v * 2, mesh=MESH, in_specs=P("x"), out_specs=P("x"))
    program = mw.make_program(lambda v: mapped(v) + 1)(struct(64, 64))
    with pytest.raises(mw.MeshwrightError) as caught:
        simulate(program, "tpu v5e")
    error = caught.value
    assert error.what == "add works on bf16[64,64] between shard_maps."
    assert error.why == "devices hold parts of it, P('x',), and the op is on the whole"
    assert error.fix == "put it into the function given to shard_map, or let mw.jit(f, in_shardings=…) divide all of it"
    twice = mw.make_program(lambda v: mapped(mapped(v)))(struct(64, 64))
    once = mw.make_program(mapped)(struct(64, 64))
    assert simulate(twice, "tpu v5e").memory.argument_bytes == simulate(once, "tpu v5e").memory.argument_bytes == 2048
