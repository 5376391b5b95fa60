"""Meshes and shardings as the real Shardy reads, checks and prints them."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from meshwright.errors import MeshwrightError
from meshwright.sharding.mesh import Mesh
from meshwright.sharding.named import TensorSharding
from tests.sharding.random_shardings import Case, mesh_text, mutated, random_case
from tests.sharding.shardy import Verdict, mesh_verdict, sharding_verdict
from tests.versions import UNREDUCED_TEXT, older_than

# Texts that are wrong in two ways, where Shardy names the other one first: it checks a mesh's numbers while it reads,
# the order of axes before their names, and the parts of several axes in an order of its own.
BOTH = {("MeshError", "TextError"), ("AxisOrderError", "UnknownAxisError")}
BOTH |= {("SubAxisError", "OverlapError"), ("OverlapError", "SubAxisError")}  # of two axes


def our_mesh(text: str) -> Verdict:
    try:
        return Verdict(str(Mesh.parse(f"#sdy.mesh{text}")))
    except MeshwrightError as error:
        return Verdict(None, type(error).__name__)


def our_sharding(case: Case) -> Verdict:
    try:
        mesh = Mesh.parse(f"sdy.mesh @mesh = {case.mesh}")
        return Verdict(str(TensorSharding.parse(case.sharding, mesh, (8,) * case.rank)))
    except MeshwrightError as error:
        return Verdict(None, type(error).__name__)


def compare_meshes(count: int, seed: int) -> Counter[str]:
    rng, seen = random.Random(seed), Counter[str]()
    for _ in range(count):
        text = mesh_text(rng)
        text = mutated(rng, text) if rng.random() < 0.5 else text
        theirs, ours = mesh_verdict(text), our_mesh(text)
        assert ours == theirs or (theirs.reason, ours.reason) in BOTH, text
        seen[theirs.reason or "accepted"] += 1
    return seen


def compare_shardings(count: int, seed: int) -> Counter[str]:
    rng, seen = random.Random(seed), Counter[str]()
    for _ in range(count):
        case = random_case(rng)
        if older_than(UNREDUCED_TEXT) and re.search(r"unreduced\s*{", case.sharding):
            continue
        theirs, ours = sharding_verdict(*case), our_sharding(case)
        assert ours == theirs or (theirs.reason, ours.reason) in BOTH, case
        seen[theirs.reason or "accepted"] += 1
    return seen


def test_meshes_are_accepted_printed_and_refused_alike():
    seen = compare_meshes(500, seed=0)
    assert seen["accepted"] > 150 and seen["MeshError"] > 10 and seen["TextError"] > 50


def test_shardings_are_accepted_printed_and_refused_alike_for_the_same_reason():
    seen = compare_shardings(2000, seed=1)
    assert seen["accepted"] > 500 and len(seen) >= 10, seen


@pytest.mark.slow
def test_ten_thousand_meshes_and_forty_thousand_shardings():
    meshes, shardings = compare_meshes(10_000, seed=2), compare_shardings(40_000, seed=3)
    assert meshes["accepted"] > 3_000 and shardings["accepted"] > 15_000, (meshes, shardings)
    assert min(shardings.values()) >= 20, shardings


@pytest.mark.parametrize(
    "text",
    [
        '#sdy.sharding<@mesh, [{"y":(1)0x2}, {}]>',
        '#sdy.sharding<@mesh, [{"\\78"}, {}]>',
        '#sdy.sharding<@mesh, [{"x"}p9223372036854775807, {}]>',
        '#sdy.sharding<@mesh, [{"x"}p9223372036854775808, {}]>',
        '#sdy.sharding<@mesh, [{"x"}p01, {}]>',
        '#sdy.sharding<@mesh, [{"x"} p1, {} // comment\n]>',
        '#sdy.sharding<@"mesh", [{ "y" : ( 2 ) 2 , ? } p1, {}]>',
        '#sdy.sharding<@mesh, [{}, {}], unreduced={"x"}, replicated={"y"}>',
        "#sdy.sharding<@mesh, [{}, {}], replicated={}>",
        '#sdy.sharding<@mesh, [{}, {}], replicated={"x"}, replicated={"y"}>',
        '#sdy.sharding<@mesh, [{"y":(1) - 2}, {}]>',
        '#sdy.sharding<@mesh, [{"y":(1)2.}, {}]>',
        '#sdy.sharding<@mesh, [{"y":(99999999999999999999)2}, {}]>',
        '#sdy.sharding<mesh<["a"=2], device_ids=[0, 1]>, [{"a"}, {}]>',
        "#sdy.sharding<mesh<[], device_ids=[3]>, []>",
        "#sdy.sharding<mesh<[]>, [{?}, {}]>",
        "#sdy.sharding<@other, [{}, {}]>",
        "#sdy.sharding <@mesh, [{}, {}]>",
        '#sdy.sharding<@mesh, [{"y":(1)2}, {"y":(3)2}]>',
    ],
)
def test_corners_of_the_grammar(text):
    case = Case('<["x"=2, "y"=12, "z"=3, "w"=1]>', text, 2)
    assert our_sharding(case) == sharding_verdict(*case)
