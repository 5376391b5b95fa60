"""The algebra of axes and sub-axes: laws, and each relation against its meaning in digits."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.sharding.axes import (
    AxisRef,
    append,
    by_name,
    can_coexist,
    common_prefix,
    cut,
    difference,
    in_mesh_order,
    merged,
    overlap,
    prefix_without,
    total_size,
)

WHOLE = {"x": 12, "y": 16, "z": 36}
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 30, 36)


def law(*strategies: st.SearchStrategy) -> Callable[[Callable], Callable]:
    """A law that holds for all values; how long one takes on a busy machine is no part of it."""
    return lambda test: settings(deadline=None)(given(*strategies)(test))


def parts(whole: int, name: str = "x") -> list[AxisRef]:
    """Every part of an axis that is worth writing."""
    divisors = [k for k in range(1, whole + 1) if whole % k == 0]
    found = [AxisRef(name, m, k, whole) for m in divisors for k in divisors if k > 1 and whole % (m * k) == 0]
    return found or [AxisRef.full(name, whole)]


sizes = st.sampled_from(SIZES)
two_parts = sizes.flatmap(lambda n: st.tuples(st.sampled_from(parts(n)), st.sampled_from(parts(n))))
three_parts = sizes.flatmap(lambda n: st.tuples(*[st.sampled_from(parts(n))] * 3))


@st.composite
def cuts(draw) -> tuple[AxisRef, tuple[AxisRef, ...]]:
    """A part of an axis, and it cut into smaller ones."""
    axis = draw(st.sampled_from(parts(draw(st.sampled_from(SIZES[1:])))))
    found, left = [], axis.size
    while left > 1:
        found.append(draw(st.sampled_from([k for k in range(2, left + 1) if left % k == 0])))
        left //= found[-1]
    return axis, axis.split(*found)


@st.composite
def axis_lists(draw) -> tuple[AxisRef, ...]:
    """Parts of several axes that do not overlap, in any order."""
    pieces = []
    for name, whole in WHOLE.items():
        left, found = whole, []
        while left > 1:
            found.append(draw(st.sampled_from([k for k in range(2, left + 1) if left % k == 0])))
            left //= found[-1]
        pieces.extend(p for p in AxisRef.full(name, whole).split(*found) if draw(st.booleans()))
    return tuple(draw(st.permutations(pieces)))


def digit(axis: AxisRef) -> np.ndarray:
    """The value of a part for each coordinate along the axis."""
    return np.arange(axis.whole) // axis.post % axis.size


def number(axes: tuple[AxisRef, ...]) -> np.ndarray:
    """The number that several parts of one axis make."""
    total = np.zeros(axes[0].whole, int)
    for axis in axes:
        total = total * axis.size + digit(axis)
    return total


# Splitting and merging


@law(cuts())
def test_merging_what_was_split_gives_it_back(case):
    axis, pieces = case
    assert merged(pieces) == (axis,)
    assert total_size(pieces) == axis.size
    assert np.array_equal(number(pieces), digit(axis))


@law(axis_lists())
def test_merging_is_done_once_and_keeps_the_size(axes):
    once = merged(axes)
    assert merged(once) == once and total_size(once) == total_size(axes)
    assert not any(a.can_merge(b) for a, b in itertools.pairwise(once))
    assert all(axes) and append(once[:-1], once[-1]) == once if once else once == ()


@law(cuts())
def test_a_merged_axis_is_the_whole_one_exactly_when_it_covers_it(case):
    axis, pieces = case
    assert axis.is_full == (merged(pieces)[0] is AxisRef.full(axis.name, axis.whole))


# Relations


@law(two_parts)
def test_overlap_is_symmetric_and_contains_the_axis_itself(pair):
    a, b = pair
    assert a.overlaps(b) == b.overlaps(a)
    assert a.overlaps(a) and a.contains(a) and a.has_prefix(a) and a.has_suffix(a)
    assert a.can_coexist(b) == b.can_coexist(a)


@law(two_parts)
def test_parts_that_do_not_overlap_and_coexist_are_independent_digits(pair):
    a, b = pair
    pairs = np.unique(np.stack([digit(a), digit(b)]), axis=1).shape[1]
    if a.can_coexist(b):
        assert a.overlaps(b) == (pairs < a.size * b.size or a is b)


@law(two_parts)
def test_coexisting_means_that_one_reshape_has_both(pair):
    a, b = pair
    bounds = sorted({1, a.pre, a.next, b.pre, b.next, a.whole})
    assert a.can_coexist(b) == all(after % before == 0 for before, after in itertools.pairwise(bounds))


@law(three_parts)
def test_containment_is_an_order(triple):
    a, b, c = triple
    assert not (a.contains(b) and b.contains(c)) or a.contains(c)
    assert not (a.contains(b) and b.contains(a)) or a is b


@law(two_parts)
def test_prefix_overlap_and_suffix_make_up_the_axis(pair):
    a, b = pair
    if a.overlaps(b) and a.can_coexist(b) and a.contains(b):
        pieces = [a.prefix_without(b), a.overlap(b), a.suffix_without(b)]
        assert merged(p for p in pieces if p is not None) == (a,)
        assert a.overlap(b) is b


@law(two_parts)
def test_what_is_left_without_another_does_not_overlap_it(pair):
    a, b = pair
    for left in (a.prefix_without(b), a.suffix_without(b), *difference([a], [b])):
        assert left is None or (not left.overlaps(b) and a.contains(left) and left.can_coexist(b))
    if not a.can_coexist(b):
        assert a.prefix_without(b) is None and a.suffix_without(b) is None and difference([a], [b]) == ()
    elif not a.overlaps(b):
        assert a.prefix_without(b) is a is a.suffix_without(b) and difference([a], [b]) == (a,)


@law(two_parts)
def test_a_common_prefix_is_a_prefix_of_both_and_the_largest(pair):
    a, b = pair
    shared = a.common_prefix(b)
    assert shared is b.common_prefix(a)
    assert (shared is None) == (a.pre != b.pre)
    if shared is not None:
        assert a.has_prefix(shared) and b.has_prefix(shared) and shared in (a, b)


def test_coexistence_by_example():
    def x(pre, size):
        return AxisRef("x", pre, size, 24)

    assert not x(1, 2).can_coexist(x(1, 3))
    assert x(1, 4).can_coexist(x(2, 4)) and x(1, 4).overlap(x(2, 4)) is x(2, 2)
    assert x(1, 2).can_coexist(x(4, 2)) and not x(1, 2).can_coexist(x(3, 2))
    assert x(1, 2).can_coexist(AxisRef("y", 1, 3, 24))


# Lists


@law(axis_lists(), axis_lists())
def test_the_common_prefix_of_lists(first, second):
    shared = common_prefix(first, second)
    assert shared == common_prefix(second, first)
    whole = [a for a, b in itertools.takewhile(lambda p: p[0] is p[1], zip(first, second, strict=False))]
    assert shared[: len(whole)] == tuple(whole) and len(shared) <= len(whole) + 1
    assert common_prefix(first, first) == first


def test_the_common_prefix_of_lists_ends_in_a_part():
    x, y = AxisRef.full("x", 2), AxisRef.full("y", 8)
    y1, y2, y3 = y.split(2, 2, 2)
    assert common_prefix((x, y), (x, y1, y2)) == (x, y1)
    assert common_prefix((x, y), (y, x)) == ()
    assert common_prefix((x, y1), (x,)) == (x,)
    assert common_prefix((x, y2), (x, y3)) == (x,)


@law(axis_lists(), axis_lists())
def test_difference_and_prefix_leave_nothing_of_the_others(axes, others):
    left, prefix = difference(axes, others), prefix_without(axes, others)
    assert not overlap(left, others) and not overlap(prefix, others)
    assert difference(left, others) == left
    assert difference(axes, axes) == () and difference(axes, ()) == axes and prefix_without(axes, ()) == axes
    if can_coexist(axes, others):
        covered = sum(axis.overlap(other) is not None for axis in axes for other in others)
        assert (covered == 0) == (left == axes)


@law(axis_lists())
def test_cutting_keeps_the_meaning(axes):
    full = tuple(AxisRef.full(name, whole) for name, whole in WHOLE.items())
    pieces = cut(full, axes)
    assert merged(pieces) == full and set(axes) <= set(pieces)


def test_cutting_where_it_cannot_be_cut():
    x = AxisRef.full("x", 12)
    with pytest.raises(ValueError, match="cannot be cut"):
        cut([x], [AxisRef("x", 1, 4, 12), AxisRef("x", 1, 6, 12)])


def test_both_orders():
    x, y = AxisRef.full("x", 2), AxisRef.full("y", 8)
    y1, y2, y3 = y.split(2, 2, 2)
    assert sorted([y3, y, x, y2, y1], key=by_name) == [x, y1, y, y2, y3]
    assert in_mesh_order([x, y3, y1], ["y", "x"]) == (y1, y3, x)


# The class


def test_references_are_shared_frozen_and_checked():
    import pickle

    y = AxisRef("y", 2, 2, 8)
    assert AxisRef("y", 2, 2, 8) is y and pickle.loads(pickle.dumps(y)) is y
    assert (y.next, y.post, y.is_full) == (4, 2, False)
    assert (str(y), y.short(), repr(y)) == ('"y":(2)2', "y:(2)2", 'AxisRef("y":(2)2)')
    with pytest.raises(AttributeError):
        y.size = 3  # type: ignore[misc]
    for pre, size in ((0, 2), (1, 3), (3, 2), (1, 0), (8, 2)):
        with pytest.raises(ValueError, match="no part of an axis of size 8"):
            AxisRef("y", pre, size, 8)
    with pytest.raises(ValueError, match="cannot be split"):
        y.split(3)
    with pytest.raises(ValueError, match="does not begin where"):
        y.merge(AxisRef("y", 1, 2, 8))


def test_an_axis_of_size_one_overlaps_itself_alone():
    w = AxisRef.full("w", 1)
    assert w.overlaps(w) and difference([w], [w]) == () and not w.can_merge(w) and merged([w, w]) == (w, w)
