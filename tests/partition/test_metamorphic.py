"""Programs that mean the same are laid out the same: axes in parts that are used together, renamed or in another order,
arguments in another order, twice the sizes, axes of one device. The same collectives move the same bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import meshwright as mw
from tests.partition.metamorphic import (
    Case,
    Sent,
    doubled,
    model_case,
    permuted_arguments,
    permuted_mesh,
    random_case,
    renamed,
    split,
    with_axes_of_one,
)
from tests.partition.models import USUAL

MOST_OTHERWISE = 0.1  # of the programs may be laid out otherwise at twice the size, where another layout is then faster


def largest(case: Case) -> str:
    return max(case.mesh, key=lambda name: case.mesh[name])


def _twos(size: int) -> int:
    return size.bit_length() - 1


RELATIONS: dict[str, Callable[[Case, int], Case]] = {
    "an axis is two": lambda case, seed: split(case, largest(case), 2),
    "an axis is three": lambda case, seed: split(case, largest(case), min(3, _twos(case.mesh[largest(case)]))),
    "axes are renamed": lambda case, seed: renamed(case),
    "axes are permuted": lambda case, seed: permuted_mesh(case),
    "arguments are permuted": permuted_arguments,
}
MODELS = [(model, layout) for model in ("mlp", "convnet", "moe", "transformer") for layout in USUAL]
QUICK_MODELS = [("mlp", "tensor parallel"), ("convnet", "data parallel")]
MESH = {"data": 8, "model": 4}
# At twice the size images are 16 times as large and kernels 4 times, so that other values are the cheaper ones to send.
OTHERWISE = [("convnet", "tensor parallel"), ("convnet", "fully sharded and tensor parallel")]


def assert_equal(first: Case, other: Case, what: str) -> None:
    found, expected = other.sent(), first.sent()
    lost, new = (sorted(map(str, one.elements())) for one in (expected - found, found - expected))
    assert not lost and not new, f"{what} on {first.mesh}: {lost} became {new}"


def kinds(sent: Counter[Sent]) -> Counter[Any]:
    found = Counter[Any]()
    for one, count in sent.items():
        found[one.kind, one.axes, one.times] += count
    return found


def bytes_of(sent: Counter[Sent]) -> int:
    return sum(one.total * one.times * count for one, count in sent.items())


def same_kinds_at_twice_the_size(case: Case, larger: Case, what: str) -> bool:
    """Whether there are the same collectives; the bytes in all are those of values of one to four dims."""
    one, other = case.sent(), larger.sent()
    assert bytes_of(one) <= bytes_of(other) <= 16 * bytes_of(one), what
    return kinds(one) == kinds(other)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("seed", range(5))
def test_random_programs(seed: int, relation: str) -> None:
    case = random_case(seed)
    assert_equal(case, RELATIONS[relation](case, seed), f"{seed}, {relation}")


@pytest.mark.parametrize("seed", range(3))
def test_random_programs_of_sizes_that_do_not_divide(seed: int) -> None:
    case = random_case(seed, uneven=True)
    for relation, rewritten in RELATIONS.items():
        assert_equal(case, rewritten(case, seed), f"{seed}, {relation}")


@pytest.mark.parametrize("seed", range(5))
def test_random_programs_at_twice_the_size(seed: int) -> None:
    case = random_case(seed)
    assert same_kinds_at_twice_the_size(case, doubled(case), str(seed))


@pytest.mark.parametrize("model, layout", QUICK_MODELS)
def test_models(model: str, layout: str) -> None:
    case = model_case(model, layout, MESH)
    for relation in ("an axis is three", "axes are permuted"):
        assert_equal(case, RELATIONS[relation](case, 0), f"{model}, {layout}, {relation}")


# Axes of one device


def assert_unseen(case: Case, what: str) -> None:
    """Axes of one device that nobody wrote are in no layout, no collective and no explanation."""
    first, other = case.compiled(), with_axes_of_one(case).compiled()
    assert other.program.to_text(sources=False) == first.program.to_text(sources=False), what
    assert other.explain() == first.explain(), what
    assert [str(one) for one in other.collectives] == [str(one) for one in first.collectives], what


@pytest.mark.parametrize("seed", range(8))
def test_axes_of_one_device_are_not_seen(seed: int) -> None:
    assert_unseen(random_case(seed), str(seed))


def test_axes_of_one_device_are_not_seen_in_models() -> None:
    assert_unseen(model_case("mlp", "tensor parallel", MESH), "mlp")


def test_axes_of_one_device_that_are_written_are_in_no_reason() -> None:
    """They split nothing, and no sum over them is partial."""
    mesh = mw.make_mesh((2, 1, 4), ("x", "one", "y"))

    def reasons(left: mw.P, right: mw.P, out: mw.P) -> list[str]:
        x, y = (mw.ShapeDtypeStruct((8, 8), "float32", sharding=mw.NamedSharding(mesh, spec)) for spec in (left, right))
        found = mw.jit(lambda x, y: (x * 2) @ y, out_shardings=mw.NamedSharding(mesh, out)).lower(x, y).compile()
        return [one.why for one in found.collectives]

    whole = "the matmul gives it sharded as [8@y, 8]; the program returns it replicated"
    assert reasons(mw.P("y"), mw.P(), mw.P()) == reasons(mw.P("y", "one"), mw.P("one"), mw.P("one")) == [whole]
    split = "the matmul leaves partial sums over y; the program returns it sharded as [8, 8@x]"
    assert reasons(mw.P(None, "y"), mw.P("y", "x"), mw.P(None, "x")) == [split]
    assert reasons(mw.P("one", "y"), mw.P(("one", "y"), "x"), mw.P("one", "x")) == [split]


# Sweeps


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(3))
@pytest.mark.parametrize("relation", RELATIONS)
def test_many_random_programs(relation: str, hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        case = random_case(seed, uneven=seed % 10 == 9)
        assert_equal(case, RELATIONS[relation](case, seed), f"{seed}, {relation}")


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(3))
def test_many_random_programs_at_twice_the_size(hundred: int) -> None:
    seeds = range(100 * hundred, 100 * hundred + 100)
    cases = {seed: random_case(seed) for seed in seeds}
    same = [same_kinds_at_twice_the_size(case, doubled(case), str(seed)) for seed, case in cases.items()]
    assert same.count(False) <= MOST_OTHERWISE * len(same)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(3))
def test_axes_of_one_device_are_not_seen_in_many_programs(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        assert_unseen(random_case(seed, uneven=seed % 10 == 9), str(seed))


@pytest.mark.slow
@pytest.mark.parametrize("model, layout", MODELS)
def test_all_models(model: str, layout: str) -> None:
    case = model_case(model, layout, MESH)
    for relation, rewritten in RELATIONS.items():
        assert_equal(case, rewritten(case, 1), f"{model}, {layout}, {relation}")
    assert_unseen(case, f"{model}, {layout}")
    same = same_kinds_at_twice_the_size(case, model_case(model, layout, MESH, scale=2), f"{model}, {layout}")
    assert same or (model, layout) in OTHERWISE
