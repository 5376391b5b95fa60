"""Marks by part and marks by element say the same, whatever is accessed in whatever order."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.kernel.marks import UNDEFINED, Marks
from meshwright.kernel.memory import Path, box_of, follow

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


@given(accesses, paths(), paths())
@settings(max_examples=300, deadline=None)
def test_parts_and_elements_agree(history, query, other):
    marks = Marks(SHAPE, 0)
    writes = np.zeros(SHAPE, np.int64)
    reads = {n: np.zeros(SHAPE, np.int64) for n in range(3)}
    for number, (kind, entity, path) in enumerate(history, 1):
        if kind == "read":
            marks.read(path, entity, number)
            follow(reads[entity], path)[...] = number
        else:
            marks.write(path, number, kind == "undefined")
            follow(writes, path)[...] = number | (UNDEFINED if kind == "undefined" else 0)
    selected = follow(writes, query)
    if selected.size:
        assert set(marks.written(query)) == set(selected.ravel().tolist())
        found = dict(marks.last_reads(query))
        for entity, layer in reads.items():
            assert found.get(entity, 0) == follow(layer, query).max()
        undefined = (selected == 0) | (selected & UNDEFINED != 0)
        np.testing.assert_array_equal(np.broadcast_to(marks.undefined(query), selected.shape), undefined)
    numbered = np.arange(24).reshape(SHAPE)
    common = np.intersect1d(follow(numbered, query), follow(numbered, other))
    assert marks.overlap(query, other) == bool(common.size)
