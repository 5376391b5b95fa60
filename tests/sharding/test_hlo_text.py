"""HLO's text of shardings: as XLA prints it, and read back."""

from __future__ import annotations

import itertools
import random

import jax
import numpy as np
import pytest
from jax._src.lib import xla_client

import meshwright as mw
from meshwright.errors import MeshwrightError, ShardingError, TextError
from meshwright.sharding.mesh import Mesh, make_mesh
from meshwright.sharding.named import NamedSharding, TensorSharding
from tests.sharding import brute_force
from tests.sharding.random_shardings import random_sharding
from tests.sharding.test_placement import COUNTS, random_mesh


def from_xla(text: str) -> xla_client.HloSharding:
    return xla_client.HloSharding.from_string(text)


@pytest.mark.parametrize("types", list(itertools.product(["Auto", "Explicit", "Manual"], repeat=3)), ids="-".join)
def test_manual_and_unreduced_axes_are_written_as_jax_writes_them(types):
    names, sizes = ("x", "y", "z"), (2, 4, 3)
    ours = make_mesh(sizes, names, tuple(getattr(mw.AxisType, t) for t in types))
    theirs = jax.sharding.AbstractMesh(sizes, names, tuple(getattr(jax.sharding.AxisType, t) for t in types))
    free = [name for name, type in zip(names, types, strict=True) if type != "Manual"]
    explicit = [name for name, type in zip(names, types, strict=True) if type == "Explicit"]
    for owners in itertools.product((None, 0, 1, "unreduced"), repeat=len(free)):
        split = dict(zip(free, owners, strict=True))
        unreduced = {name for name, owner in split.items() if owner == "unreduced"}
        if not unreduced <= set(explicit):
            continue
        dims = [tuple(name for name, owner in split.items() if owner == dim) for dim in (0, 1)]
        expected = jax.NamedSharding(theirs, jax.P(*dims, unreduced=unreduced))._to_xla_hlo_sharding(2)
        assert NamedSharding(ours, mw.P(*dims, unreduced=unreduced)).to_hlo() == str(expected), (dims, unreduced)


def test_random_shardings_are_what_xla_reads_and_prints():
    rng = random.Random(0)
    for _ in range(400):
        rank = rng.randrange(1, 4)
        sharding = random_sharding(rng, random_mesh(rng, rng.choice(COUNTS)), rank, cut=0.5)
        text = sharding.to_hlo()
        theirs = from_xla(text)
        assert str(theirs) == text
        if theirs.is_tiled():
            sizes = theirs.tile_assignment_dimensions()
            tiles = np.array(theirs.tile_assignment_devices()).reshape(sizes)
            for device, (block, _) in brute_force.blocks(sharding).items():
                assert device in np.atleast_1d(tiles[block]), text


def test_text_is_read_back_on_its_own_mesh_and_on_one_made_for_it():
    rng = random.Random(1)
    for _ in range(400):
        rank = rng.randrange(1, 4)
        sharding = random_sharding(rng, random_mesh(rng, rng.choice(COUNTS)), rank, cut=0.5)
        text = sharding.to_hlo()
        again = TensorSharding.from_hlo(text, sharding.mesh, rank)
        assert again.is_equivalent_to(sharding) and again.mesh == sharding.mesh, text
        if "devices" in text:
            made = TensorSharding.from_hlo(text)
            assert made.is_equivalent_to(sharding), text
            assert made.to_hlo() == text or "unreduced" in text, text  # summands may stand in any order
        named = sharding.to_named()
        assert NamedSharding.from_hlo(named.to_hlo(), sharding.mesh, rank).is_equivalent_to(named, rank)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("{devices=[2,1,2]<=[4] last_tile_dim_replicate}", '<["a"=2, "b"=2]> [{"a"}, {}]'),
        ("{devices=[2,2]<=[2,2]T(1,0)}", '<["a"=2, "b"=2]> [{"b"}, {"a"}]'),
        ("{ devices = [2, 8] <= [4,4]T(1,0) }", '<["a"=4, "b"=2, "c"=2]> [{"b"}, {"c", "a"}]'),
        ("{devices=[2,3]<=[2,3]T(1,0)}", '<["a"=2, "b"=3], device_ids=[0, 3, 1, 4, 2, 5]> [{"a"}, {"b"}]'),
        ("{devices=[2,2]0,3,1,2}", '<["a"=2, "b"=2], device_ids=[0, 3, 1, 2]> [{"a"}, {"b"}]'),
        ("{devices=[2,2]0,2,1,3}", '<["a"=2, "b"=2]> [{"b"}, {"a"}]'),
        ("{devices=[1,1]<=[1]}", '<["a"=1]> [{}, {}]'),
        ("{devices=[4,2]<=[8] last_tile_dims={unreduced}}", '<["a"=4, "b"=2]> [{"a"}], unreduced={"b"}'),
        ("{maximal device=3}", "<[], device_ids=[3]> []"),
    ],
)
def test_meshes_made_for_text(text, printed):
    sharding = TensorSharding.from_hlo(text)
    for name, letter in (("_axis_0", "a"), ("_axis_1", "b"), ("_axis_2", "c")):
        printed = printed.replace(f'"{letter}"', f'"{name}"')
    assert str(sharding) == f"#sdy.sharding<mesh{printed.replace('> ', '>, ')}>"
    assert TensorSharding.from_hlo(sharding.to_hlo(), ndim=sharding.rank).is_equivalent_to(sharding)


def test_text_for_all_devices_alike_takes_the_mesh_and_rank_given():
    mesh = Mesh.parse('<["x"=2, "y"=4]>')
    assert str(TensorSharding.from_hlo("{replicated}", mesh, 2)) == "#sdy.sharding<@mesh, [{}, {}]>"
    assert str(TensorSharding.from_hlo("{replicated}", ndim=1)) == "#sdy.sharding<mesh<[]>, [{}]>"
    assert str(TensorSharding.from_hlo("{unreduced}", mesh, 1)) == '#sdy.sharding<@mesh, [{}], unreduced={"x", "y"}>'
    manual = TensorSharding.from_hlo("{manual}", mesh, 1)
    assert manual.mesh.manual_axes == ("x", "y") and manual.to_hlo() == "{manual}"
    part = TensorSharding.from_hlo("{devices=[2,4]<=[8] last_tile_dims={manual}}", mesh)
    assert part.mesh.manual_axes == ("y",) and part.to_hlo() == "{devices=[2,4]<=[8] last_tile_dims={manual}}"
    turned = TensorSharding.from_hlo("{devices=[2,2,2]<=[8] last_tile_dims={replicated, manual}}")
    assert turned.to_hlo() == str(from_xla("{devices=[2,2,2]<=[8] last_tile_dims={replicated, manual}}"))


def test_devices_are_numbered_by_the_mesh_order_or_by_position():
    mesh = make_mesh((2, 2), ("x", "y"), devices=[3, 1, 2, 0])
    assert TensorSharding(mesh, ["x", "y"]).to_hlo() == "{devices=[2,2]3,1,2,0}"
    assert TensorSharding(mesh, ["x", None]).to_hlo() == "{devices=[2,1,2]1,3,0,2 last_tile_dim_replicate}"
    assert NamedSharding(mesh, mw.P("x", "y")).to_hlo() == "{devices=[2,2]<=[4]}"
    turned = make_mesh((2, 2), ("x", "y"), devices=[0, 2, 1, 3])
    assert TensorSharding(turned, ["x", "y"]).to_hlo() == "{devices=[2,2]<=[2,2]T(1,0)}"


@pytest.mark.parametrize(
    ("text", "at", "why"),
    [
        ("replicated", 0, "expected `{`"),
        ("{}", 1, "expected `devices=`"),
        ("{devices=[2,2]<=[2,2]}", 21, "expected `T`"),
        ("{devices=[2,3]<=[4]}", 16, "these are 4 devices, and there are 6 tiles"),
        ("{devices=[2,2]<=[2,2]T(1,1)}", 22, "a transpose of 2 dims is an order of 0, …, 1"),
        ("{devices=[2,2]0,1,2}", 14, "4 tiles hold each of the devices 0, …, 3 once"),
        ("{devices=[2,0]<=[4]}", 13, "a tile dim has at least one tile"),
        ("{devices=[2,2]<=[4] last_tile_dims={foo}}", 20, "the kinds are manual, unreduced, replicated"),
        ("{maximal}", 8, "expected `device`"),
        ("{replicated} x", 13, "expected the end of the text"),
    ],
)
def test_an_error_points_at_the_character(text, at, why):
    with pytest.raises(TextError) as caught:
        TensorSharding.from_hlo(text)
    assert caught.value.where == f"{text}\n{' ' * at}^" and caught.value.why.startswith(why)
    assert caught.value.what == f"This is not an HLO sharding: character {at + 1}."


def test_what_cannot_be_said_is_refused():
    mesh = Mesh.parse('<["x"=2, "y"=2]>')
    cases = [
        (lambda: TensorSharding.from_hlo("{devices=[4]0,1,3,2}", mesh), "follow no axes"),
        (lambda: TensorSharding.from_hlo("{devices=[8]<=[8]}", mesh), "over 8 devices"),
        (lambda: TensorSharding.from_hlo("{devices=[4]<=[4]}", mesh, 2), "a tensor of 1 dims, not 2"),
        (lambda: TensorSharding.from_hlo("{replicated}", mesh), "does not say enough"),
        (lambda: TensorSharding.from_hlo("{manual}", ndim=2), "does not say enough"),
        (lambda: TensorSharding(mesh, [None], unreduced=["x"], reduction="max").to_hlo(), "that a max is unreduced"),
        (
            lambda: TensorSharding.from_hlo("{devices=[2,2]<=[4] last_tile_dims={manual}}", Mesh.parse('<["d"=4]>')),
            "A part of 'd' is manual",
        ),
    ]
    for call, what in cases:
        with pytest.raises(ShardingError, match=what):
            call()
    assert issubclass(ShardingError, MeshwrightError)
