"""All the ways to shard an array on a mesh, listed and counted."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations
from math import comb, factorial

from meshwright.core.source import here
from meshwright.errors import ShardingError
from meshwright.sharding.check import checked_count, checked_mesh
from meshwright.sharding.mesh import BaseMesh
from meshwright.sharding.named import NamedSharding
from meshwright.sharding.spec import Entry, P

MOST_SHARDINGS = 1 << 16


def enumerate_shardings(mesh: BaseMesh, ndim: int, compound: bool = False) -> list[NamedSharding]:
    """Every valid sharding of an array of ``ndim`` dims: each mesh axis splits at most one dim.

    Each dim has at most one axis, unless ``compound``: then several, and their order matters.

    >>> from meshwright.sharding.mesh import make_mesh
    >>> mesh = make_mesh((2, 2), ("x", "y"))
    >>> [sharding.spec for sharding in enumerate_shardings(mesh, 1)]
    [P(None,), P('x',), P('y',)]
    >>> [sharding.spec for sharding in enumerate_shardings(mesh, 1, compound=True)]
    [P(None,), P('x',), P('y',), P(('x', 'y'),), P(('y', 'x'),)]
    """
    checked_mesh(mesh, "enumerate_shardings")
    ndim = checked_count(ndim, "dims")
    count = count_shardings(len(mesh.axis_names), ndim, compound)
    if count > MOST_SHARDINGS:
        raise ShardingError(
            f"The {count} shardings of an array of {ndim} dims on {len(mesh.axis_names)} axes are not listed.",
            where=here(),
            why=f"up to {MOST_SHARDINGS} are",
            fix=f"mw.sharding.count_shardings({len(mesh.axis_names)}, {ndim}{', compound=True' if compound else ''})",
        )
    entries = _compound(mesh.axis_names, ndim) if compound else _simple(mesh.axis_names, ndim)
    return [NamedSharding(mesh, P(*dims)) for dims in entries]


def _simple(names: tuple[str, ...], ndim: int) -> Iterator[tuple[Entry, ...]]:
    for count in range(min(len(names), ndim) + 1):
        for dims in combinations(range(ndim), count):
            for axes in permutations(names, count):
                chosen = dict(zip(dims, axes, strict=True))
                yield tuple(chosen.get(dim) for dim in range(ndim))


def _compound(names: tuple[str, ...], ndim: int) -> Iterator[tuple[Entry, ...]]:
    for count in range((len(names) if ndim else 0) + 1):
        for bars in combinations(range(count + ndim - 1), max(ndim - 1, 0)):  # where one dim's axes end
            ends = [bar - i for i, bar in enumerate(bars)]
            for axes in permutations(names, count):
                cuts = [0, *ends, count]
                yield tuple(axes[cuts[dim] : cuts[dim + 1]] for dim in range(ndim))


def count_shardings(mesh_axes: int, array_dims: int, compound: bool = False) -> int:
    """How many ways there are to shard an array of N dims on a mesh of M axes.

    Pick k of the M axes and k of the N dims and match them up: sum over k of C(M,k) C(N,k) k!. With ``compound`` axes,
    line up k of the M axes and cut the line into N parts, some perhaps empty: sum over k of C(M,k) k! C(k+N-1,k).

    >>> count_shardings(2, 2), count_shardings(2, 2, compound=True), count_shardings(3, 3)
    (7, 11, 34)
    """
    m, n = checked_count(mesh_axes, "mesh axes"), checked_count(array_dims, "dims")
    if compound:
        return sum(comb(m, k) * factorial(k) * comb(k + n - 1, k) for k in range(m + 1)) if n else 1
    return sum(comb(m, k) * comb(n, k) * factorial(k) for k in range(min(m, n) + 1))
