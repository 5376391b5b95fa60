"""What is said of collectives in branches and loops, beside runs device by device that count what is received."""

from __future__ import annotations

import itertools
import random
from math import ceil, prod
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax
from meshwright.compile.compiled import Compiled
from meshwright.core.program import Eqn
from meshwright.partition.combine import dearest, received
from meshwright.testing import assert_comms
from tests.partition.device_by_device import run_by_device

MESH = mw.make_mesh((2, 2), ("x", "y"))
SHARES: dict[str, Any] = {  # of what a device holds, what it receives
    "psum": lambda n: 2 * (n - 1) / n,
    "pmax": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: n - 1,
    "all_gather_invariant": lambda n: n - 1,
    "psum_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "ppermute": lambda n: 1,
}


def received_in_a_run(compiled: Compiled, args: list[Any]) -> tuple[int, list[Any]]:
    """The most bytes that a device receives in a run, and the results."""
    placed = compiled._executable.placed
    program = compiled.global_program if placed is None else placed.program
    sizes = dict(next(eqn.params["mesh"] for eqn in program.eqns if eqn.op.name == "shard_map"))
    total = dict.fromkeys(range(prod(sizes.values())), 0)

    def seen(eqn: Eqn, devices: set[int]) -> None:
        share = SHARES.get(eqn.op.name)
        if share is not None:
            held = sum(a.type.nbytes for a in eqn.inputs)
            for device in devices:
                total[device] += ceil(held * share(prod(sizes[axis] for axis in eqn.params["axes"])))

    outs = run_by_device(program, [np.asarray(x) for x in args], seen)
    return max(total.values()), outs


# By hand


def on_rows(function: Any, *more: Any) -> Compiled:
    x = mw.device_put(mnp.ones((8, 16)), mw.NamedSharding(MESH, P("x")))
    return mw.jit(function).lower(x, *more).compile()


def line(compiled: Compiled) -> str:
    return str(compiled.collectives[0].source)


def test_of_a_cond_the_branch_counts_that_receives_the_most() -> None:
    def function(x: Any, wide: Any) -> Any:
        return lax.cond(wide, lambda x: x.sum(0), lambda x: mnp.zeros(16) + x.sum(), x)

    compiled = on_rows(function, True)
    where = line(compiled)
    assert [(one.bytes_received_per_device, one.times) for one in compiled.collectives] == [(4, 1), (64, 1)]
    assert [one.within[0].branch for one in compiled.collectives] == [0, 1]
    lines = compiled.explain().splitlines()
    assert lines[0] == "at most 1 collective: all_reduce 1; at most 64 bytes received per device"
    one = next(
        n for n, line in enumerate(lines) if line.endswith(f"64 B   1      {where}  result of the reduce_sum f32[16]")
    )
    assert lines[one + 1 : one + 3] == [
        "    the reduce_sum leaves partial sums over x; the region returns it replicated",
        f"    if branch 1 of the cond at {where} is taken",
    ]
    other = next(n for n, line in enumerate(lines) if line.endswith("result of the reduce_sum f32[]"))
    assert lines[other + 1 : other + 3] == [
        "    the reduce_sum leaves partial sums over x; the add needs operand 1 replicated",
        f"    if branch 0 of the cond at {where} is taken",
    ]
    assert str(compiled.collectives[1]).endswith(f"; if branch 1 of the cond at {where} is taken")
    assert_comms(compiled, exact=True, all_reduce=1, max_bytes=64)


def test_a_while_loop_that_counts_counts_in_full_and_any_other_one_step() -> None:
    def function(x: Any, n: Any) -> Any:
        return lax.fori_loop(0, n, lambda _, x: x - mnp.sum(x), x)

    def counting(x: Any) -> Any:
        return lax.while_loop(lambda c: c[0] < 7, lambda c: (c[0] + 2, c[1] - mnp.sum(c[1])), (0, x))[1]

    compiled = on_rows(function, 3)
    where = line(compiled)
    assert compiled.explain().splitlines()[0] == (
        "1 collective: all_reduce 1; 4 bytes received per device, counting one step of the while loop"
    )
    assert [str(one) for one in compiled.collectives[0].within] == [f"in every step of the while loop at {where}"]
    counted = on_rows(counting)
    assert counted.explain().splitlines()[0] == "4 collectives: all_reduce 4; 16 bytes received per device"
    assert counted.collectives[0].within == ()
    # What is simulated is the same number.
    for found, times in ((compiled.simulate("tpu v5e", while_steps=4), 4), (counted.simulate("tpu v5e"), 4)):
        (share,) = [share for share in found.by_op() if share.name == "psum"]
        assert (share.times, share.moved) == (times, 4.0 * times)
    text = compiled.cost("tpu v5e", while_steps=4)
    assert f"  note: the while loop at {where} is taken to run 4 steps" in text.splitlines()
    assert "note" not in counted.cost("tpu v5e")


def test_a_choice_in_a_loop_and_two_on_one_line_are_told_apart() -> None:
    def choose(x: Any, flag: Any) -> Any:
        return lax.cond(flag, lambda x: x - x.sum(), lambda x: x - x.sum(0), x)

    def function(x: Any, flag: Any) -> Any:
        x = choose(x, flag)
        return lax.scan(lambda x, _: (choose(x, flag), None), x, None, length=5)[0]

    compiled = on_rows(function, True)
    branches = [one.bytes_received_per_device for one in compiled.collectives]
    assert [one.times for one in compiled.collectives] == [1, 1, 5, 5]
    assert len(dearest(compiled.collectives)) == 2
    assert received(compiled.collectives) == 6 * max(branches)


def test_what_a_shard_map_sends_is_told_of_a_program_that_nobody_put_on_a_mesh() -> None:
    total = mw.shard_map(lambda x: lax.psum(x, "x"), mesh=MESH, in_specs=P("x"), out_specs=P())
    compiled = mw.jit(total).lower(mnp.ones(8)).compile()
    assert compiled.explain().splitlines()[0] == "1 collective: all_reduce 1; 16 bytes received per device"
    assert "all-reduce(" in compiled.as_text() and "num_partitions=4" in compiled.as_text()
    (share,) = [share for share in compiled.simulate("tpu v5e").by_op() if share.name == "psum"]
    assert share.moved == 16


# Random functions: what runs is decided by numbers of an array of integers, each used once.


class Flags:
    def __init__(self) -> None:
        self.choices: list[int] = []  # how many ways there are
        self.loops: list[int] = []

    def new(self, ways: int) -> int:
        self.choices.append(ways)
        return len(self.choices) - 1

    def new_loop(self) -> int:
        self.loops.append(self.new(1))
        return self.loops[-1]


def by_hand(rng: random.Random, x: Any) -> Any:
    """A collective that somebody wrote."""
    axis = rng.choice(["x", "y", ("x", "y")])
    one = "x" if axis == ("x", "y") else axis
    found = rng.choice(
        [
            lambda: lax.psum(x, axis),
            lambda: lax.pmax(x, axis),
            lambda: mnp.sum(lax.all_gather(x, one, axis=0, tiled=True), axis=0),
            lambda: lax.ppermute(x, one, [(0, 1), (1, 0)]),
            lambda: lax.all_to_all(x, one, split_axis=0, concat_axis=1, tiled=True).reshape(x.shape),
            lambda: mnp.tile(lax.psum_scatter(x, one, scatter_dimension=0, tiled=True), (2, 1)),
        ]
    )()
    return x * 0.5 + found * 0.125


def unwritten(rng: random.Random, x: Any) -> Any:
    """What needs one on a mesh."""
    return rng.choice(
        [lambda: x - mnp.mean(x), lambda: x + x.sum(0) * 0.125, lambda: x * mnp.max(x, 1)[:, None] * 0.1]
    )()


def step(rng: random.Random, communicate: Any, x: Any, flags: Any, counting: Flags, depth: int) -> Any:
    def inner(x: Any, seed: float) -> Any:
        pick = random.Random(seed)
        for _ in range(pick.randrange(1, 3)):
            x = step(pick, communicate, x, flags, counting, depth + 1)
        return x

    kind = rng.choice(["plain", "plain", "scan", "counted", "until", "cond", "switch"]) if depth < 3 else "plain"
    seeds = [rng.random() for _ in range(3)]
    if kind == "scan":
        return lax.scan(lambda x, _: (inner(x, seeds[0]), None), x, None, length=rng.choice([0, 1, 3]))[0]
    if kind == "counted":
        size, end = rng.choice([1, 2]), rng.randrange(0, 6)
        return lax.while_loop(lambda c: c[0] < end, lambda c: (c[0] + size, inner(c[1], seeds[0])), (0, x))[1]
    if kind == "until":
        number = counting.new_loop()
        return lax.while_loop(lambda c: c[0] < flags[number], lambda c: (c[0] + 1, inner(c[1], seeds[0])), (0, x))[1]
    if kind == "cond":
        number = counting.new(2)
        return lax.cond(flags[number] > 0, lambda x: inner(x, seeds[0]), lambda x: inner(x, seeds[1]), x)
    if kind == "switch":
        number = counting.new(3)
        return lax.switch(flags[number], [lambda x, s=s: inner(x, s) for s in seeds[:2]] + [lambda x: -x], x)
    return communicate(rng, x)


def compiled_at_random(seed: int) -> tuple[Compiled, Any, Flags]:
    rng = random.Random(seed)
    written, counting = rng.random() < 0.5, Flags()
    rest = rng.random()

    def function(x: Any, flags: Any) -> Any:
        pick, counting.choices, counting.loops = random.Random(rest), [], []
        seen: dict[int, Any] = {}
        for _ in range(2):
            x = step(pick, by_hand if written else unwritten, x, flags, counting, len(seen))
        return x

    rows = 8
    x = mnp.arange(rows * 4.0).reshape(rows, 4) / 16
    flags = mw.ShapeDtypeStruct((16,), "int32")
    if written:
        function = mw.shard_map(function, mesh=MESH, in_specs=(P("x", "y"), P()), out_specs=P("x", "y"))
        return mw.jit(function).lower(x, flags).compile(), x, counting
    over = mw.NamedSharding(MESH, P("x", "y"))
    return mw.jit(function, in_shardings=(over, None), out_shardings=over).lower(x, flags).compile(), x, counting


def check_random(seed: int) -> None:
    compiled, x, counting = compiled_at_random(seed)
    if prod(counting.choices) > 36 or len(counting.choices) > 16:
        return
    most = 0
    for ways in itertools.product(*map(range, counting.choices)):
        flags = np.zeros(16, np.int32)
        flags[: len(ways)] = ways
        flags[counting.loops] = 1
        found, outs = received_in_a_run(compiled, [x, flags])
        np.testing.assert_allclose(outs[0], np.asarray(compiled(x, mnp.array(flags))), rtol=1e-3, atol=1e-3)
        most = max(most, found)
    assert received(compiled.collectives) == most, seed


def test_random_programs_receive_at_most_what_is_said() -> None:
    for seed in range(24):
        check_random(seed)


@pytest.mark.slow
def test_many_random_programs_receive_at_most_what_is_said() -> None:
    for seed in range(24, 400):
        check_random(seed)
