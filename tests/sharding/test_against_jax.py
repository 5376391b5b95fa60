"""NamedSharding against JAX's, for every partition spec of arrays of 1, 2 and 3 dims on several meshes."""

from __future__ import annotations

import itertools
from math import prod
from typing import Any

import pytest

import meshwright as mw
from tests.sharding.jax_oracle import MESHES, SHAPE, answers, unique_specs


def tuples(value: Any) -> Any:
    return tuple(map(tuples, value)) if isinstance(value, list) else value


def named(sizes: tuple[int, ...], spec: Any) -> mw.NamedSharding:
    return mw.NamedSharding(mw.make_mesh(sizes, tuple("xyz"[: len(sizes)])), mw.P(*spec))


def test_every_spec_is_asked():
    count = sum(len(unique_specs(tuple("xyz"[: len(sizes)]), ndim)) for sizes in MESHES for ndim in (1, 2, 3))
    assert len(answers()["shardings"]) == count == 311


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_shards_indices_text_and_repr_are_jaxs(sizes):
    for answer in answers()["shardings"]:
        if tuples(answer["sizes"]) != sizes:
            continue
        spec = tuples(answer["spec"])
        sharding, shape = named(sizes, spec), SHAPE[: len(spec)]
        indices = {d.id: [[s.start, s.stop] for s in index] for d, index in sharding.devices_indices_map(shape).items()}
        assert sharding.shard_shape(shape) == tuples(answer["shard_shape"]), spec
        assert indices == {int(id): index for id, index in answer["indices"].items()}, spec
        assert sharding.to_hlo() == answer["hlo"], spec
        assert sharding.is_fully_replicated == answer["fully_replicated"], spec
        assert repr(sharding) == answer["repr"]


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_the_same_pairs_are_equivalent_across_meshes(ndim):
    found = {tuples(pair) for pair in answers()["equivalent"] if len(pair[0][1]) == ndim}
    every = [
        (sizes, spec) for sizes in MESHES if prod(sizes) == 8 for spec in unique_specs(tuple("xyz"[: len(sizes)]), ndim)
    ]
    shardings = {key: named(*key) for key in every}
    for one, other in itertools.combinations(every, 2):
        same = shardings[one].is_equivalent_to(shardings[other], ndim)
        assert same == ((one, other) in found), (one, other)
        assert same == shardings[other].is_equivalent_to(shardings[one], ndim)


def test_devices_are_named_as_jax_names_them():
    import jax

    assert repr(mw.make_mesh((1,), ("x",)).devices[0]) == repr(jax.devices()[0])
