"""Accesses by part and accesses by element say the same, whatever is accessed in whatever order."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.kernel.language.refs import Ref
from meshwright.kernel.language.spaces import MemorySpace
from meshwright.kernel.races import accesses as module
from meshwright.kernel.races.accesses import UNDEFINED, AccessMap
from meshwright.kernel.run.memory import Buffer, Path, box_of, follow

SHAPE = (4, 6)


@st.composite
def paths(draw: Any) -> Path:
    steps: list[Any] = []
    data = np.zeros(SHAPE)
    for _ in range(draw(st.integers(0, 2))):
        index: list[Any] = []
        for n in data.shape:
            if n == 0 or draw(st.integers(0, 2)) == 0:
                index.append(slice(None))
                continue
            start = draw(st.integers(0, n - 1))
            stop = draw(st.integers(start, n))
            step = draw(st.sampled_from([1, 1, 1, 2]))
            index.append(draw(st.sampled_from([start, slice(start, stop, step)])))
        if draw(st.booleans()):
            index.append(Ellipsis)
        if all(k.__class__ is int for k in index):
            index.append(Ellipsis)
        steps.append(tuple(index))
        data = data[steps[-1]]
    return tuple(steps)


@given(paths())
@settings(max_examples=200, deadline=None)
def test_a_box_is_what_the_path_selects(path):
    found = box_of(SHAPE, path)
    numbered = np.arange(24).reshape(SHAPE)
    selected = set(np.asarray(follow(numbered, path)).ravel().tolist())
    if found is not None:
        inside = numbered[tuple(slice(a, b) for a, b in found)]
        assert selected == set(inside.ravel().tolist())


accesses = st.lists(st.tuples(st.sampled_from(["read", "write", "undefined"]), st.integers(0, 2), paths()), max_size=8)
buffer = Buffer("key", "memory", MemorySpace.VMEM, np.zeros(SHAPE), 0, 0)


def place(path: Path) -> Ref:
    return Ref(buffer, follow(buffer.data, path), path)


@given(accesses, paths(), paths(), st.sampled_from([1, 4, 1024]))
@settings(max_examples=400, deadline=None)
def test_cells_and_elements_agree(history, query, other, most):
    before, module.MOST_CELLS = module.MOST_CELLS, most
    try:
        check(history, query, other)
    finally:
        module.MOST_CELLS = before


def check(history: Any, query: Path, other: Path) -> None:
    accesses = AccessMap(SHAPE, 0)
    writes = np.zeros(SHAPE, np.int64)
    reads = {n: np.zeros(SHAPE, np.int64) for n in range(3)}
    for number, (kind, entity, path) in enumerate(history, 1):
        if kind == "read":
            accesses.read(place(path), entity, number)
            follow(reads[entity], path)[...] = number
        else:
            accesses.write(place(path), number, kind == "undefined")
            follow(writes, path)[...] = number | (UNDEFINED if kind == "undefined" else 0)
    selected = follow(writes, query)
    if selected.size:
        assert set(accesses.written(place(query))) == set(selected.ravel().tolist())
        for entity, layer in reads.items():
            found = [number for reader, number in accesses.last_reads(place(query)) if reader == entity]
            assert max(found, default=0) == follow(layer, query).max()
        undefined = (selected == 0) | (selected & UNDEFINED != 0)
        np.testing.assert_array_equal(np.broadcast_to(accesses.undefined(place(query)), selected.shape), undefined)
    numbered = np.arange(24).reshape(SHAPE)
    common = np.intersect1d(follow(numbered, query), follow(numbered, other))
    assert accesses.overlap(place(query), place(other)) == bool(common.size)


class Reader:
    """As much of a copy as accesses look at."""

    def __init__(self, number: int, path: Path) -> None:
        self.number = number
        self.src = place(path)


@given(st.lists(st.tuples(paths(), st.booleans()), max_size=8), paths(), st.sampled_from([1, 4, 1024]))
@settings(max_examples=200, deadline=None)
def test_copies_read_what_they_were_started_on_until_that_is_over(history, query, most):
    before, module.MOST_CELLS = module.MOST_CELLS, most
    try:
        accesses = AccessMap(SHAPE, 0)
        copies: list[Any] = [Reader(number, path) for number, (path, _) in enumerate(history)]
        for copy in copies:
            accesses.start_read(copy.src, copy)
        for copy, (_, over) in zip(copies, history, strict=True):
            if over and copy.src.data.size:
                assert copy in accesses.reading(copy.src)
                accesses.end_reads(copy.src, [copy])
                assert copy not in accesses.reading(copy.src)
        numbered = np.arange(24).reshape(SHAPE)
        expected = {
            copy.number
            for copy, (path, over) in zip(copies, history, strict=True)
            if not over and np.intersect1d(follow(numbered, path), follow(numbered, query)).size
        }
        assert {copy.number for copy in accesses.reading(place(query))} == expected
    finally:
        module.MOST_CELLS = before
