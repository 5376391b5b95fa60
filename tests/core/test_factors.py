"""Factor rules: the text, what follows from it, and the rules of the ops everything else is made of."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.core.factors import FactorBuilder, Factors, names, pointwise
from meshwright.core.op import REGISTRY
from meshwright.core.text.types import parse_type
from meshwright.core.types import TensorType, tensor
from meshwright.errors import TextError
from meshwright.ops import contraction, reduction  # noqa: F401  so that the registry knows their ops


def types(text: str) -> list[TensorType]:
    return [parse_type(part) for part in text.split()]


# Text


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("i k, k j -> i j", {"i": 2, "k": 3, "j": 4}),
        ("(i j) -> i j", {"i": 2, "j": 3}),
        ("(i j) k -> i (j k)", {"i": 2, "j": 4, "k": 4}),
        ("i j, -> i j", {"i": 2, "j": 3}),
        ("i -> , i", {"i": 5}),
        ("i ->", {"i": 5}),
        ("z_1 z_12 -> z_12 z_1", {"z_1": 2, "z_12": 3}),
    ],
)
def test_a_rule_prints_as_it_is_written(text: str, sizes: dict[str, int]) -> None:
    rule = Factors.parse(text, sizes)
    assert str(rule).split("  ")[0] == text


def test_spaces_do_not_matter() -> None:
    sizes = {"i": 2, "j": 3}
    assert Factors.parse("( i   j )->i  j", sizes) == Factors.parse("(i j) -> i j", sizes)


def test_a_factor_is_passing_or_reduced_or_of_a_special_kind() -> None:
    rule = Factors.parse(
        "i k p, k j r -> i j p r", {"i": 2, "k": 3, "j": 4, "p": 5, "r": 6}, permuted="p", replicated="r", blocked="j"
    )
    assert rule.passing == {"i", "j"}
    assert rule.reduced == {"k"}
    assert str(rule) == "i k p, k j r -> i j p r  sum=k  replicated=r  permuted=p  blocked=j"
    assert rule.iterations == 2 * 3 * 4 * 5 * 6


def test_a_factor_of_operands_alone_that_must_be_whole_is_not_reduced() -> None:
    rule = Factors.parse("i j -> i", {"i": 2, "j": 3}, replicated="j")
    assert (rule.passing, rule.reduced) == ({"i"}, frozenset())


def test_a_reduction_says_how_parts_combine() -> None:
    assert str(Factors.parse("i j -> i", {"i": 2, "j": 3}, combine="max")) == "i j -> i  max=j"


@pytest.mark.parametrize(
    ("text", "sizes", "message"),
    [
        (
            "i j",
            {"i": 2, "j": 3},
            """\
A factor rule has one arrow: 'i j'
  fix:  "i k, k j -> i j\"""",
        ),
        (
            "(i j -> i j",
            {"i": 2, "j": 3},
            """\
A parenthesis of a factor rule does not match: '(i j -> i j'
  why:  parentheses group the factors of one dim, and are not nested
  fix:  "(i j) k -> i (j k)\"""",
        ),
        (
            "((i j) k) -> i j k",
            {"i": 2, "j": 3, "k": 4},
            """\
A parenthesis of a factor rule does not match: '((i j) k) -> i j k'
  why:  parentheses group the factors of one dim, and are not nested
  fix:  "(i j) k -> i (j k)\"""",
        ),
        (
            "i i -> i",
            {"i": 2},
            """\
A factor stands twice in one tensor: 'i i -> i'
  why:  'i i' has i more than once; a diagonal is not a factor rule
  fix:  give each dim factors of its own""",
        ),
        (
            "i j -> i",
            {"i": 2, "k": 3},
            """\
The sizes of a factor rule do not fit it: 'i j -> i'
  why:  it has the factors i, j, the sizes are for i, k
  fix:  sizes={'i': …, 'j': …}""",
        ),
    ],
)
def test_a_wrong_rule_is_refused(text: str, sizes: dict[str, int], message: str) -> None:
    with pytest.raises(TextError) as error:
        Factors.parse(text, sizes)
    assert str(error.value) == message


# Building


def test_names_run_from_i_to_z_and_then_are_numbered() -> None:
    assert names(20) == [*"ijklmnopqrstuvwxyz", "z_1", "z_2"]


def test_pointwise_rules_give_scalars_no_factors() -> None:
    array, scalar = tensor((2, 3), "float32"), tensor((), "float32")
    assert str(pointwise([array, array], [array])) == "i j, i j -> i j"
    assert str(pointwise([scalar, array], [array, array])) == ", i j -> i j, i j"
    assert str(pointwise([scalar], [scalar])) == "->"


def test_a_builder_appends_factors_major_to_minor() -> None:
    build = FactorBuilder(types("f32[6]"), types("f32[2,3]"))
    assert (build.add(2, (0, 0), (1, 0)), build.add(3, (0, 0), (1, 1))) == ("i", "j")
    assert str(build.build()) == "(i j) -> i j"


def test_a_dim_no_one_mentions_is_not_split() -> None:
    build = FactorBuilder(types("f32[2,5]"), types("f32[2,7]"))
    build.add(2, (0, 0), (1, 0))
    rule = build.build()
    assert str(rule) == "i j -> i k  guarded=j,k"
    assert rule.sizes == {"i": 2, "j": 1, "k": 1}
    assert rule.separable == {"i"}


def test_a_builder_knows_all_kinds() -> None:
    build = FactorBuilder(types("f32[2,3,4,5]"), types("f32[2,3,4]"))
    build.add(2, (0, 0), (1, 0), kind="permuted")
    build.add(3, (0, 1), (1, 1), kind="replicated", blocked=True)
    build.add(4, (0, 2), (1, 2), blocked=True)
    build.add(5, (0, 3), kind="reduced")
    rule = build.build(combine="max")
    assert str(rule) == "i j k l -> i j k  max=l  replicated=j  permuted=i  blocked=j,k"
    assert rule.passing == {"k"}
    assert rule.separable == {"k", "l"}


def test_what_is_guarded_is_not_separable_whatever_its_kind() -> None:
    build = FactorBuilder(types("f32[2,3,4]"), types("f32[2,3]"))
    build.add(2, (0, 0), (1, 0), kind="permuted", guarded=False)
    build.add(3, (0, 1), (1, 1), guarded=True)
    build.add(4, (0, 2), kind="reduced", guarded=True)
    rule = build.build()
    assert str(rule) == "i j k -> i j  sum=k  permuted=i  guarded=j,k"
    assert (rule.passing, rule.separable) == ({"j"}, {"i"})


# The rules of ops, as text


@pytest.mark.parametrize(
    ("op", "operands", "params", "rule"),
    [
        ("add", "f32[2,3] f32[2,3]", {}, "i j, i j -> i j"),
        ("add", "f32[2,3] f32[]", {}, "i j, -> i j"),
        ("broadcast_in_dim", "f32[4]", {"shape": (2, 4), "dims": (1,)}, "j -> i j"),
        ("broadcast_in_dim", "f32[2,1]", {"shape": (2, 3, 4), "dims": (0, 2)}, "i k -> i j l"),
        ("broadcast_in_dim", "f32[]", {"shape": (2, 3), "dims": ()}, "-> i j"),
        ("transpose", "f32[2,3,4]", {"permutation": (2, 0, 1)}, "j k i -> i j k"),
        ("reduce_sum", "f32[2,3,4]", {"axes": (0, 2)}, "i j k -> j  sum=i,k"),
        ("reduce_max", "f32[2,3]", {"axes": (1,)}, "i j -> i  max=j"),
        ("reduce_min", "f32[2,3]", {"axes": (1,)}, "i j -> i  min=j"),
        ("reduce_prod", "f32[2,3]", {"axes": (0,)}, "i j -> j  prod=i"),
        ("reduce_and", "bool[2,3]", {"axes": (0,)}, "i j -> j  and=i"),
        ("reduce_or", "bool[2,3]", {"axes": (0,)}, "i j -> j  or=i"),
        # A reshape is cut at every boundary of either side, as long as the boundaries nest.
        ("reshape", "f32[8,4]", {"shape": (2, 16)}, "(i j) k -> i (j k)"),
        ("reshape", "f32[2,6]", {"shape": (2, 2, 3)}, "i (j k) -> i j k"),
        ("reshape", "f32[4,6]", {"shape": (24,)}, "i j -> (i j)"),
        ("reshape", "f32[2,1,6]", {"shape": (4, 3)}, "i j (k l) -> (i k) l  replicated=j"),
        ("reshape", "f32[2,3]", {"shape": (3, 2)}, "i j -> i k  replicated=j,k  permuted=i"),
        ("reshape", "f32[4,2,3]", {"shape": (4, 3, 2)}, "i j k -> i j l  replicated=k,l  permuted=j"),
        ("reshape", "f32[0,3]", {"shape": (3, 0)}, "i j -> k l  guarded=i,j,k,l"),
        ("reshape", "f32[6,4]", {"shape": (8, 3)}, "(i j) k -> (i j) l  replicated=k,l  permuted=j"),
    ],
)
def test_the_rule_of_an_op(op: str, operands: str, params: dict[str, Any], rule: str) -> None:
    found = REGISTRY[op]
    given = types(operands)
    result = found.type(*given, **params)
    results = result if isinstance(result, tuple) else (result,)
    assert str(found.factors(given, results, params)) == rule  # type: ignore[operator]


@pytest.mark.parametrize(
    ("operands", "contract", "batch", "expected"),
    [
        ("f32[2,3] f32[3,4]", ((1,), (0,)), ((), ()), {"passing": 2, "reduced": 1}),
        ("f32[5,2,3] f32[5,3,4]", ((2,), (1,)), ((0,), (0,)), {"passing": 3, "reduced": 1}),
        ("f32[3] f32[3]", ((0,), (0,)), ((), ()), {"passing": 0, "reduced": 1}),
        ("f32[2] f32[3]", ((), ()), ((), ()), {"passing": 2, "reduced": 0}),
    ],
)
def test_the_rule_of_a_contraction(operands: str, contract: Any, batch: Any, expected: dict[str, int]) -> None:
    op = REGISTRY["dot_general"]
    params = {"contract": contract, "batch": batch, "dtype": None}
    given = types(operands)
    rule = op.factors(given, [op.type(*given, **params)], params)  # type: ignore[operator, list-item]
    assert {"passing": len(rule.passing), "reduced": len(rule.reduced)} == expected
    assert not rule.replicated | rule.permuted | rule.blocked
