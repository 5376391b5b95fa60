"""Factor rules by brute force: cut operands along a factor, run the op on the parts, put the results together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from math import prod
from typing import Any

import numpy as np

from meshwright.core.factors import Dims, Factors
from meshwright.core.op import Op
from meshwright.core.types import TensorType

COMBINE = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "prod": np.multiply,
    "and": np.logical_and,
    "or": np.logical_or,
}


@dataclass(frozen=True)
class Split:
    """How many equal parts each factor is cut into; a factor not named stays whole."""

    parts: dict[str, int]

    def places(self) -> list[dict[str, int]]:
        """Which part of each factor a device holds, for every device."""
        return [dict(zip(self.parts, place, strict=True)) for place in product(*map(range, self.parts.values()))]


def smallest_divisor(n: int) -> int:
    """The least divisor above 1; 1 for 0 and 1."""
    return next((d for d in range(2, n + 1) if n % d == 0), 1)


def split_of(rule: Factors, factor: str) -> Split | None:
    """The smallest legal split that cuts ``factor``: what is major to it in a dim is cut all the way first.

    None where the factor has one element or needs a cut of a factor that must stay whole.
    """
    parts = {factor: smallest_divisor(rule.sizes[factor])}
    if parts[factor] == 1:
        return None
    waiting = [factor]
    while waiting:
        name = waiting.pop()
        for dims in (*rule.operands, *rule.results):
            for dim in dims:
                for major in dim[: dim.index(name)] if name in dim else ():
                    if rule.sizes[major] == 1 or parts.get(major) == rule.sizes[major]:
                        continue
                    if major not in rule.separable:
                        return None
                    parts[major] = rule.sizes[major]
                    waiting.append(major)
    return Split(parts)


def _pieces(shape: Sequence[int], dims: Dims, sizes: dict[str, int]) -> list[tuple[str, int]]:
    """The factors of all dims with their sizes; a dim that its factors do not fill is one piece, which is never cut."""
    found: list[tuple[str, int]] = []
    for n, dim in zip(shape, dims, strict=True):
        pieces = [(name, sizes[name]) for name in dim]
        found.extend(pieces if prod(size for _, size in pieces) == n else [("", n)])
    return found


def _grid(array: np.ndarray[Any, Any], dims: Dims, sizes: dict[str, int]) -> np.ndarray[Any, Any]:
    """The array with one dim per factor."""
    return array.reshape([size for _, size in _pieces(array.shape, dims, sizes)])


def _window(
    shape: Sequence[int], dims: Dims, sizes: dict[str, int], split: Split, place: dict[str, int]
) -> tuple[slice, ...]:
    found = []
    for name, size in _pieces(shape, dims, sizes):
        length = size // split.parts.get(name, 1)
        start = place.get(name, 0) * length
        found.append(slice(start, start + length))
    return tuple(found)


def local_shape(dims: Dims, shape: Sequence[int], sizes: dict[str, int], split: Split) -> tuple[int, ...]:
    """The shape of one part."""
    cuts = [prod(split.parts.get(name, 1) for name in dim) for dim in dims]
    return tuple(n // cut for n, cut in zip(shape, cuts, strict=True))


def is_cut(dims: Dims, split: Split) -> bool:
    return any(name in split.parts for dim in dims for name in dim)


def part(
    array: np.ndarray[Any, Any], dims: Dims, sizes: dict[str, int], split: Split, place: dict[str, int]
) -> np.ndarray[Any, Any]:
    """What one device holds of ``array``."""
    if not is_cut(dims, split):
        return array
    piece = _grid(array, dims, sizes)[_window(array.shape, dims, sizes, split, place)]
    return piece.reshape(local_shape(dims, array.shape, sizes, split))


def run_in_parts(
    op: Op,
    operands: Sequence[np.ndarray[Any, Any]],
    results: Sequence[TensorType],
    params: Any,
    rule: Factors,
    split: Split,
) -> list[np.ndarray[Any, Any]]:
    """The results of the op, computed part by part and put together again."""
    local_operands = [
        TensorType(local_shape(dims, x.shape, rule.sizes, split), x.dtype)
        for x, dims in zip(operands, rule.operands, strict=True)
    ]
    local_results = [
        TensorType(local_shape(dims, t.shape, rule.sizes, split), t.dtype)
        for t, dims in zip(results, rule.results, strict=True)
    ]
    local_params = op.localize(params, local_operands, local_results)
    pieces: list[dict[tuple[int, ...], list[np.ndarray[Any, Any]]]] = [{} for _ in results]
    for place in split.places():
        local = [part(x, dims, rule.sizes, split, place) for x, dims in zip(operands, rule.operands, strict=True)]
        outs = op(*local, **local_params)
        for index, (out, t) in enumerate(zip(outs if isinstance(outs, tuple) else (outs,), local_results, strict=True)):
            assert out.type.shape == t.shape, f"{split}: a part has shape {out.type.shape}, the rule says {t.shape}"
            assert out.type.dtype == t.dtype, f"{split}: a part has dtype {out.type.dtype}, the rule says {t.dtype}"
            key = tuple(place[n] for dim in rule.results[index] for n in dim if n in place)
            pieces[index].setdefault(key, []).append(out.data)
    wholes = []
    for index, (t, dims) in enumerate(zip(results, rule.results, strict=True)):
        names = [n for dim in dims for n in dim if n in split.parts]
        whole = np.zeros(t.shape, t.dtype)
        grid = _grid(whole, dims, rule.sizes) if names else whole
        for key, found in pieces[index].items():
            window = _window(t.shape, dims, rule.sizes, split, dict(zip(names, key, strict=True)))
            value = _combine(found, rule, split)
            if names:
                grid[window] = value.reshape(grid[window].shape)
            else:
                whole = value
        wholes.append(grid.reshape(t.shape) if names else whole)
    return wholes


def _combine(found: list[np.ndarray[Any, Any]], rule: Factors, split: Split) -> np.ndarray[Any, Any]:
    if any(name in rule.reduced for name in split.parts):
        dtype = found[0].dtype
        return np.asarray(reduce(COMBINE[rule.combine], found)).astype(dtype)
    first, *others = found
    for other in others:  # a result without the factor is the same wherever it is computed
        np.testing.assert_array_equal(first, other)
    return first
