"""The units of a step in their order, and runs of them as the stages of a pipeline."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import numpy as np

from meshwright.search.step_units import BACKWARD, FORWARD, WEIGHTS, StepUnits

FEW = 0.25  # of the places between units are narrow ones,
NARROW = 1.05  # and those where no more bytes go from one to the next: there stages are cut, if there are enough


class UnitSequence(NamedTuple):
    """The units of a step on a device in their order, each as often as it comes: seconds, and bytes.

    ``starts`` says where one computes again from, if a layer keeps its input alone: a layer, or what lies between two
    narrow places. ``segments`` numbers what lies between.
    """

    seconds: np.ndarray  # of forward, backward, weights, update and what is shared
    cheap: np.ndarray  # forward seconds that are not of products
    nbytes: dict[str, np.ndarray]
    entering: np.ndarray  # bytes that come from the units before
    transient: np.ndarray
    updated: np.ndarray
    starts: np.ndarray
    segments: np.ndarray


class StageSums(NamedTuple):
    """Where stages begin and the last ends; their seconds and bytes."""

    cuts: list[int]
    seconds: np.ndarray
    cheap: np.ndarray
    nbytes: dict[str, np.ndarray]
    inputs: np.ndarray  # bytes that enter segments
    entering: np.ndarray
    transient: np.ndarray
    updated: np.ndarray
    again: np.ndarray  # the most bytes that a segment makes for its backward


def sequence_of(units: StepUnits, exposed: float) -> UnitSequence:
    """The units of a step in their order, with the share of collectives between parts that is waited for."""
    order = units.order
    seconds = units.each(units.seconds + exposed * units.talks)
    crossing = units.crossing[order]
    entering = np.concatenate(([0.0], crossing[:-1]))
    first = np.array([n == 0 or units.blocks[n - 1] != units.blocks[n] for n in range(len(units.times))])[order]
    alone = np.array(units.times)[order] == 1
    inside = crossing[:-1]
    narrow = np.concatenate(([True], inside <= NARROW * np.quantile(inside, FEW))) if len(inside) else np.array([True])
    starts = np.where(alone, narrow, first)
    starts[0] = True
    return UnitSequence(
        seconds,
        units.each(units.cheap),
        {name: units.each(array) for name, array in units.nbytes.items()},
        entering,
        units.transient[order],
        units.updated[order],
        starts,
        np.cumsum(starts) - 1,
    )


def _cuts(steps: UnitSequence, stages: int) -> list[int]:
    """Where stages begin, and the end: runs of units whose longest time is as short as can be, cut at narrow places if
    there are enough."""
    count = len(steps.starts)
    if stages == 1:
        return [0, count]
    places = np.nonzero(steps.starts)[0]
    if len(places) < stages:
        places = np.arange(count)
    costs = np.add.reduceat(steps.seconds[:, [FORWARD, BACKWARD, WEIGHTS]].sum(1), places)
    low, high = float(costs.max()), float(costs.sum())
    ends = np.cumsum(costs).tolist()
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if len(_filled(ends, middle)) <= stages else (middle, high)
    found = _filled(ends, high * (1 + 1e-9))
    while len(found) < stages:  # more stages than are needed: the longest run is cut
        lengths = np.diff([*found, len(costs)])
        k = int(np.argmax(lengths))
        found.insert(k + 1, found[k] + int(lengths[k]) // 2)
    return [*(int(places[n]) for n in found), count]


def _filled(ends: list[float], most: float) -> list[int]:
    """Where stages begin that are filled one after the other up to a bound."""
    found, done = [0], 0.0
    while True:
        n = bisect_right(ends, done + most * (1 + 1e-12))
        if n >= len(ends):
            return found
        n = max(n, found[-1] + 1)
        if n >= len(ends):
            return found
        found.append(n)
        done = ends[n - 1]


def sums_of(steps: UnitSequence, stages: int) -> StageSums:
    """The units of each of so many stages, added up."""
    ends = _cuts(steps, stages)
    cuts = np.array(ends[:-1])
    starts = steps.starts.copy()
    starts[cuts] = True
    segments = np.nonzero(starts)[0]
    kept = np.add.reduceat(steps.nbytes["kept"], segments)
    of_stage = np.searchsorted(cuts, segments, side="right") - 1
    again = np.zeros(stages)
    np.maximum.at(again, of_stage, kept)
    return StageSums(
        ends,
        np.add.reduceat(steps.seconds, cuts),
        np.add.reduceat(steps.cheap, cuts),
        {name: np.add.reduceat(array, cuts) for name, array in steps.nbytes.items()},
        np.add.reduceat(np.where(starts, steps.entering, 0.0), cuts),
        steps.entering[cuts],
        np.maximum.reduceat(steps.transient, cuts),
        np.maximum.reduceat(steps.updated, cuts),
        again,
    )
