"""Random programs of signals, waits, loads, stores and copies: races are those of an order found by brute force.

The order is built from what a run did: program order, and from each signal to the wait that cannot have ended without
it, each semaphore being signalled by one statement and waited for by one. Copies are over when they were waited for.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.pallas import tpu as pltpu
from tests.kernel.driver import on_devices

DEVICES, CELLS = 2, 3


class Statement(NamedTuple):
    """What a device does: ``load``, ``store``, ``copy``, ``done``, ``signal`` or ``wait``, to a cell or a semaphore."""

    verb: str
    device: int  # of the cell: 0 or 1 on; the device itself, or where a copy goes
    cell: int
    source: int = 0
    semaphore: int = 0


@st.composite
def programs(draw: Any) -> list[list[Statement]]:
    """A program per device that cannot deadlock: all statements can be run in the order in which they are listed."""
    listed: list[tuple[int, Statement]] = []  # and by whom
    signals = copies = 0
    for _ in range(draw(st.integers(1, 9))):
        who = draw(st.integers(0, DEVICES - 1))
        verb = draw(st.sampled_from(["load", "store", "copy", "copy", "signal"]))
        cell = draw(st.integers(0, CELLS - 1))
        if verb == "signal":
            listed.append((who, Statement("signal", 1 - who, 0, semaphore=signals)))
            listed.append((1 - who, Statement("wait", 1 - who, 0, semaphore=signals)))
            signals += 1
        elif verb == "copy":
            source = draw(st.integers(0, CELLS - 1).filter(lambda n, cell=cell: n != cell))
            to = draw(st.integers(0, DEVICES - 1))
            listed.append((who, Statement("copy", to, cell, source, copies)))
            copies += 1
        else:
            listed.append((who, Statement(verb, who, cell)))
    # Each copy is waited for at some later place: its read by the sender, its write by the receiver.
    for who, statement in [one for one in listed if one[1].verb == "copy"]:
        for verb, waits in (("sent", who), ("came", statement.device)):
            first = listed.index((who, statement)) + 1
            listed.insert(draw(st.integers(first, len(listed))), (waits, statement._replace(verb=verb)))
    return [[statement for who, statement in listed if who == device] for device in range(DEVICES)]


def races_by_brute_force(programs: list[list[Statement]], in_order: bool = False) -> bool:
    """Whether two accesses to a cell, one of them a write, are ordered by nothing; ``in_order``, links order copies."""
    nodes: dict[Any, int] = {}
    edges: list[tuple[Any, Any]] = []

    def node(name: Any) -> Any:
        nodes.setdefault(name, len(nodes))
        return name

    accesses: list[tuple[Any, tuple[int, int], bool]] = []
    last: dict[tuple[int, int], int] = {}  # by link, the copy before
    for who, program in enumerate(programs):
        previous = None
        for n, s in enumerate(program):
            here = node((who, n))
            if previous is not None:
                edges.append((previous, here))
            previous = here
            if s.verb in ("load", "store"):
                accesses.append((here, (who, s.cell), s.verb == "store"))
            elif s.verb == "signal":
                edges.append((here, node(("signal", s.semaphore))))
            elif s.verb == "wait":
                edges.append((node(("signal", s.semaphore)), here))
            elif s.verb == "copy":
                read, write = node(("read", s.semaphore)), node(("write", s.semaphore))
                edges += [(here, read), (read, write)]
                accesses.append((read, (who, s.source), False))
                accesses.append((write, (s.device, s.cell), True))
                if in_order and (who, s.device) in last:
                    edges += [(("read", last[who, s.device]), read), (("write", last[who, s.device]), write)]
                last[who, s.device] = s.semaphore
            else:
                edges.append((node(("read" if s.verb == "sent" else "write", s.semaphore)), here))
    before = np.zeros((len(nodes), len(nodes)), bool)
    for a, b in edges:
        before[nodes[a], nodes[b]] = True
    for k in range(len(nodes)):
        before |= before[:, k : k + 1] & before[k : k + 1, :]
    for (a, cell, writes), (b, other, also) in itertools.combinations(accesses, 2):
        ordered = before[nodes[a], nodes[b]] or before[nodes[b], nodes[a]]
        if cell == other and (writes or also) and not ordered:
            return True
    return False


def run(programs: list[list[Statement]], debug: pl.Debug) -> None:
    count = max([s.semaphore for program in programs for s in program], default=0) + 1

    def kernel(x_ref, out_ref, cells, signals, sent, came):
        me = int(lax.axis_index("x"))
        cells[...] = x_ref[...]
        barrier = pltpu.get_barrier_semaphore()
        pltpu.semaphore_signal(barrier, device_id={"x": 1 - me})
        pltpu.semaphore_wait(barrier)
        for s in programs[me]:
            cell = cells.at[s.cell]
            if s.verb == "load":
                cell[...]
            elif s.verb == "store":
                cell[...] = mnp.zeros_like(cell)
            elif s.verb == "signal":
                pltpu.semaphore_signal(signals.at[s.semaphore], device_id={"x": s.device})
            elif s.verb == "wait":
                pltpu.semaphore_wait(signals.at[s.semaphore])
            else:
                copy = pltpu.make_async_remote_copy(
                    cells.at[s.source], cell, sent.at[s.semaphore], came.at[s.semaphore], device_id={"x": s.device}
                )
                {"copy": copy.start, "sent": copy.wait_send, "came": copy.wait_recv}[s.verb]()
        out_ref[...] = x_ref[...]

    shape = (CELLS, 4)
    call = pl.pallas_call(
        kernel,
        out_shape=pltpu.VMEM(shape, mnp.float32),
        scratch_shapes=[
            pltpu.VMEM(shape, mnp.float32),
            pltpu.SemaphoreType.REGULAR((count,)),
            pltpu.SemaphoreType.DMA((count,)),
            pltpu.SemaphoreType.DMA((count,)),
        ],
        compiler_params=pltpu.CompilerParams(collective_id=0),
        debug=debug,
    )
    x = np.zeros((DEVICES, *shape), np.float32)
    on_devices(call, {"x": DEVICES}, [[row] for row in x])


def finds_a_race(programs: list[list[Statement]], debug: pl.Debug) -> bool:
    try:
        run(programs, debug)
    except pltpu.RaceError:
        return True
    return False


@given(programs(), st.integers(0, 3))
@settings(max_examples=120, deadline=None)
def test_a_race_is_found_if_and_only_if_there_is_one(programs, schedule):
    debug = pl.Debug(schedules=2, seed=schedule) if schedule else pl.Debug()
    assert finds_a_race(programs, debug) == races_by_brute_force(programs)


@given(programs(), st.integers(0, 3))
@settings(max_examples=120, deadline=None)
def test_links_in_order_order_their_copies_and_nothing_else(programs, schedule):
    debug = pl.Debug(schedules=2, seed=schedule, order="fifo") if schedule else pl.Debug(order="fifo")
    assert finds_a_race(programs, debug) == races_by_brute_force(programs, in_order=True)


@pytest.mark.slow
@pytest.mark.parametrize("in_order", [False, True])
@given(programs=programs(), schedule=st.integers(0, 9))
@settings(max_examples=3000, deadline=None)
def test_races_of_many_programs(programs, schedule, in_order):
    debug = pl.Debug(schedules=1 + min(schedule, 3), seed=schedule, order="fifo" if in_order else None)
    assert finds_a_race(programs, debug) == races_by_brute_force(programs, in_order)
