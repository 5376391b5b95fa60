"""Random meshes, shapes and shardings on them, as hypothesis strategies."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from meshwright.sharding.mesh import Mesh
from meshwright.sharding.named import TensorSharding
from tests.sharding.random_shardings import mesh_text, random_sharding

SIZES = (1, 2, 3, 4, 6, 8)


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    """A mesh of up to three axes, perhaps with a device order."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    while True:
        mesh = Mesh.parse(mesh_text(rng, 3, SIZES))
        if not mesh.empty and mesh.size <= 96:
            return mesh


@st.composite
def places(draw: st.DrawFn, rank: int) -> TensorSharding:
    """A sharding of that many dims that an array can have, with sub-axes and open dims."""
    mesh = draw(meshes())
    rng = random.Random(draw(st.integers(0, 2**32)))
    found = random_sharding(rng, mesh, rank)
    return found if mesh.is_maximal else found.with_(unreduced=())


def shapes(rank: int | None = None) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes whose dims need not be divisible by anything, and may be smaller than the axes that split them."""
    low, high = (0, 3) if rank is None else (rank, rank)
    return st.lists(st.integers(0, 13), min_size=low, max_size=high).map(tuple)
