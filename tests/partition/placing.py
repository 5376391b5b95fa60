"""Random placements of arrays: each axis of a mesh whole or in parts, each part on some dim or on none."""

from __future__ import annotations

from typing import Any

import numpy as np

import meshwright as mw
from meshwright.sharding.axes import AxisRef, merged
from meshwright.sharding.mesh import BaseMesh


def parts(axis: AxisRef, generator: np.random.Generator) -> list[AxisRef]:
    """An axis whole, or cut into parts of prime size: of 12, by 2, 2, 3 in any order."""
    primes, rest = [], axis.size
    while rest > 1:
        prime = next(n for n in range(2, rest + 1) if rest % n == 0)
        primes.append(prime)
        rest //= prime
    if len(primes) < 2 or generator.integers(2):
        return [axis]
    return list(axis.split(*map(int, generator.permutation(primes))))


def placement(mesh: BaseMesh, rank: int, generator: np.random.Generator) -> Any:
    """A partition spec."""
    dims: list[tuple[AxisRef, ...]] = [()] * rank
    pieces = [part for axis in mesh.axes for part in parts(axis, generator)]
    for n in generator.permutation(len(pieces)):
        dim = generator.integers(rank + 1)
        if dim < rank:
            dims[dim] = (*dims[dim], pieces[n])
    return mw.P(*(tuple(axis.short() for axis in merged(axes)) or None for axes in dims))


def placed(mesh: Any, x: Any, generator: np.random.Generator) -> Any:
    """An array somewhere on a mesh."""
    return mw.device_put(x, mw.NamedSharding(mesh, placement(mesh, np.ndim(x), generator)))
