"""The share of pairs of queries and keys that a mask leaves which is known before the program runs.

Kernels skip blocks of scores that are masked whatever the numbers are: those above the diagonal of a causal mask, or
outside of a window. Here scores of zero are followed through the program up to their exponential, at a grid of pairs;
where they have become as low as `MASKED`, there is nothing to compute. Indices (``iota``) and constants are known; of
arguments, floats count as zero and truth values as true, and what depends on integers that are not known hides nothing.
Where it depends on the place of a device along mesh axes, it is that of the device that has most to compute, for which
the others wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from meshwright.core.dtypes import BOOL, is_float
from meshwright.core.factors import Factors
from meshwright.core.facts import Across, Fusion, Structure
from meshwright.core.op import No
from meshwright.core.program import Atom, Eqn, Literal, Var

MASKED = -1e4  # what is lower has no weight
PAIRS = 64  # of queries, and of ends of blocks of keys, that are looked at
PLACES = (0.0, 0.5, 1.0)  # of devices along mesh axes that are looked at

Points = list[Any]  # per dim, the index of every point


class _Unknown(Exception):
    """A value depends on integers that the program is given."""


class _OfPlace(Exception):
    """A value depends on the place of the device."""


def grid(size: int, ends: bool) -> Any:
    """Indices that stand for all of a dim: all, or both ends (or the middle) of each of `PAIRS` blocks."""
    if size <= 2 * PAIRS:
        return np.arange(size)
    blocks = list(pairwise(round(n * size / PAIRS) for n in range(PAIRS + 1)))
    return np.array([at for low, high in blocks for at in ((low, high - 1) if ends else ((low + high - 1) // 2,))])


def few(size: int) -> Any:
    """Indices that stand for the heads that share keys, of which there may be many and masks rarely speak."""
    return np.unique(np.linspace(0, size - 1, min(size, 4)).astype(int))


class MaskReader:
    """The values of a program at some points, with scores of zero."""

    def __init__(self, made: Mapping[Atom, Eqn], constants: Mapping[Any, Any]) -> None:
        self.made, self.constants = made, constants
        self.place: float | None = None  # of the device along mesh axes, from 0 for the first to 1 for the last

    def visible(self, var: Atom, queries: Sequence[bool], keys: Sequence[bool], scores: frozenset[Var]) -> float:
        """The share of the elements of a value that are not masked, over its dims of queries and keys."""
        shape = var.type.shape
        longest = max((n for n, query in enumerate(queries) if query), key=lambda n: shape[n], default=-1)
        axes = [
            grid(size, key) if key or n == longest else few(size) if query else np.zeros(1, int)
            for n, (size, query, key) in enumerate(zip(shape, queries, keys, strict=True))
        ]
        points = [part.reshape(-1) for part in np.meshgrid(*axes, indexing="ij")]
        shares: list[float] = []
        for self.place in (None, *PLACES):
            try:
                with np.errstate(all="ignore"):
                    found = np.asarray(self.at(var, points, scores, {}), np.float64)
                    shares.append(float(np.mean(np.broadcast_to(found > MASKED, prod(map(len, axes))))))
            except _OfPlace:
                continue
            except (_Unknown, AttributeError, TypeError, ValueError):
                return 1.0
            if self.place is None:
                break
        return max(shares)

    def at(self, atom: Atom, points: Points, scores: frozenset[Var], known: dict[Atom, Any]) -> Any:
        """The values at points; one number stands for equal ones."""
        if isinstance(atom, Literal):
            return np.asarray(atom.value, atom.type.dtype)
        if atom in scores:
            return np.zeros((), atom.type.dtype)
        if atom in known:  # one way through the program leads to a value, with one list of points
            return known[atom]
        found = self.computed(atom, points, scores, known)
        if len(points) and atom in self.made:
            known[atom] = found
        return found

    def computed(self, var: Var, points: Points, scores: frozenset[Var], known: dict[Atom, Any]) -> Any:
        if var in self.constants:
            array = np.asarray(self.constants[var])
            return array[tuple(points)] if array.ndim else array
        eqn = self.made.get(var)
        if eqn is not None and eqn.op.structure is Structure.VARYING:  # the same value, of each device
            return self.at(eqn.inputs[0], points, scores, known)
        if eqn is not None and eqn.op.structure is Structure.COLLECTIVE and not eqn.inputs:
            if self.place is None:
                raise _OfPlace
            return np.asarray(round(self.place * (prod(eqn.params["sizes"]) - 1)), var.type.dtype)
        if eqn is None or isinstance(eqn.op.factors, No) or len(eqn.outputs) != 1:
            return _unknown(var)
        if eqn.op.split.across is Across.COUNTED:
            return points[eqn.params["dim"]].astype(eqn.params["dtype"])
        if eqn.op.split.across is Across.CUT:
            cuts = zip(eqn.params["starts"], eqn.params["strides"], points, strict=True)
            return self.at(eqn.inputs[0], [low + step * index for low, step, index in cuts], scores, {})
        rule = eqn.op.factors([a.type for a in eqn.inputs], [var.type], eqn.params)
        if any(rule.sizes[name] > 1 for name in rule.reduced | rule.guarded | rule.replicated) or eqn.effects:
            return _unknown(var)
        # A scalar that fills an array is of all elements, too, and is not computed with.
        computes = rule.elementwise and any(a.type.shape == var.type.shape for a in eqn.inputs)
        at = _factor_points(rule, points)
        inputs = [self.at(atom, _dim_points(rule, dims, at), scores, known if computes else {})
                  for atom, dims in zip(eqn.inputs, rule.operands)]  # fmt: skip
        if computes:
            return eqn.op.evaluate(np, *inputs, **eqn.params)
        if len(inputs) != 1:
            return _unknown(var)
        return inputs[0]


def _unknown(var: Var) -> Any:
    """What stands for a value that is not known: nothing is masked by it."""
    if var.type.dtype == BOOL:
        return np.ones((), bool)
    if not is_float(var.type.dtype):
        raise _Unknown
    return np.zeros((), var.type.dtype)


def _factor_points(rule: Factors, points: Points) -> dict[str, Any]:
    """The index along each factor, from those along the dims of the result."""
    found: dict[str, Any] = {}
    for dim, index in zip(rule.results[0], points):
        for name in reversed(dim[1:]):
            index, found[name] = np.divmod(index, rule.sizes[name])
        found.update(dict.fromkeys(dim[:1], index))
    return found


def _dim_points(rule: Factors, dims: Any, places: Mapping[str, Any]) -> Points:
    """The index along each dim of an operand; of a dim of one element, 0."""
    found = []
    for dim in dims:
        index: Any = places.get(dim[0], 0) if dim else 0
        for name in dim[1:]:
            index = index * rule.sizes[name] + places.get(name, 0)
        found.append(np.asarray(index))
    return found


def is_exponential(eqn: Eqn, kind: Fusion) -> bool:
    """Whether an equation computes one dear function of each element: what turns scores into weights is one."""
    return kind is Fusion.ELEMENTWISE and len(eqn.inputs) == 1
