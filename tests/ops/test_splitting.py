"""The brute force itself: a wrong factor rule, a wrong localization and a wrong combination are all found out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import meshwright.engine.namespace  # noqa: F401  which ops compute with
from meshwright.core.factors import Factors
from meshwright.core.op import Op
from meshwright.core.types import tensor
from meshwright.errors import MeshwrightError
from meshwright.ops.basic import broadcast_in_dim, mul, reduce_sum, reshape, transpose
from meshwright.ops.contraction import dot_general
from meshwright.ops.reduction import reduce_max
from meshwright.ops.shape import reverse
from tests.ops.splitting import Split, run_in_parts, split_of

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 6)).astype(np.float32)
Y = RNG.standard_normal((6, 8)).astype(np.float32)
MATMUL = {"contract": ((1,), (0,)), "batch": ((), ()), "dtype": None}


def differs(op: Op, operands: list[Any], params: dict[str, Any], rule: Factors, factor: str) -> bool:
    """Whether the parts along ``factor`` fail to make up the whole."""
    whole = op(*operands, **params).data
    split = split_of(rule, factor)
    assert split is not None
    try:
        (parts,) = run_in_parts(op, operands, [tensor(whole.shape, whole.dtype)], params, rule, split)
    except (AssertionError, MeshwrightError):
        return True
    return not np.allclose(parts, whole, rtol=1e-4, atol=1e-5)


def test_right_rules_hold() -> None:
    matmul = Factors.parse("i k, k j -> i j", {"i": 4, "k": 6, "j": 8})
    assert not any(differs(dot_general, [X, Y], MATMUL, matmul, factor) for factor in "ijk")
    summed = Factors.parse("i j -> i", {"i": 4, "j": 6})
    assert not any(differs(reduce_sum, [X], {"axes": (1,)}, summed, factor) for factor in "ij")
    cut = Factors.parse("i (j k) -> (i j) k", {"i": 4, "j": 2, "k": 3})
    assert not any(differs(reshape, [X], {"shape": (8, 3)}, cut, factor) for factor in "ijk")


def test_a_reduction_with_the_wrong_combination_is_found_out() -> None:
    rule = Factors.parse("i j -> i", {"i": 4, "j": 6}, combine="sum")
    assert differs(reduce_max, [X], {"axes": (1,)}, rule, "j")
    assert not differs(reduce_max, [X], {"axes": (1,)}, rule._replace(combine="max"), "j")


def test_factors_of_the_wrong_dims_are_found_out() -> None:
    square = RNG.standard_normal((4, 4)).astype(np.float32)
    assert differs(transpose, [square], {"permutation": (1, 0)}, Factors.parse("i j -> i j", {"i": 4, "j": 4}), "i")
    assert differs(mul, [square, square], {}, Factors.parse("i j, j i -> i j", {"i": 4, "j": 4}), "i")


def test_a_dim_that_may_not_be_cut_is_found_out() -> None:
    assert differs(reverse, [X], {"dims": (1,)}, Factors.parse("i j -> i j", {"i": 4, "j": 6}), "j")
    assert not differs(reverse, [X], {"dims": (1,)}, Factors.parse("i j -> i j", {"i": 4, "j": 6}), "i")


def test_a_reshape_whose_factors_are_in_the_wrong_order_is_found_out() -> None:
    wrong = Factors.parse("i (k j) -> (i j) k", {"i": 4, "j": 2, "k": 3})
    assert differs(reshape, [X], {"shape": (8, 3)}, wrong, "k")


def test_params_that_keep_their_global_sizes_are_found_out() -> None:
    careless = replace(broadcast_in_dim, localize=lambda params, operands, results: params)
    rule = Factors.parse("j -> i j", {"i": 2, "j": 6})
    params = {"shape": (2, 6), "dims": (1,)}
    assert differs(careless, [X[0]], params, rule, "i")
    assert not differs(broadcast_in_dim, [X[0]], params, rule, "i")


def test_a_result_that_depends_on_where_it_is_computed_is_found_out() -> None:
    rule = Factors.parse("i j -> i", {"i": 4, "j": 6}, replicated="j")
    free = rule._replace(replicated=frozenset())  # claims to owe nothing
    assert differs(reduce_sum, [X], {"axes": (1,)}, free, "j")


@pytest.mark.parametrize(
    ("text", "factor", "parts"),
    [
        ("i j -> i j", "i", {"i": 2}),
        ("i j -> i j", "j", {"j": 3}),
        ("(i j) -> i j", "i", {"i": 2}),
        ("(i j) -> i j", "j", {"j": 3, "i": 4}),
        ("(i j) k -> i (j k)", "k", {"k": 5, "j": 9, "i": 4}),
        ("k -> k", "k", {"k": 5}),
        ("u i -> i", "u", None),
    ],
)
def test_a_minor_factor_is_cut_after_all_that_is_major_to_it(text: str, factor: str, parts: Any) -> None:
    sizes = {name: size for name, size in {"i": 4, "j": 9, "k": 5, "u": 1}.items() if name in text}
    found = split_of(Factors.parse(text, sizes), factor)
    assert (found and found.parts) == parts


def test_a_factor_behind_one_that_must_be_whole_cannot_be_cut() -> None:
    rule = Factors.parse("(i j) -> i j", {"i": 4, "j": 6}, replicated="i")
    assert split_of(rule, "j") is None


def test_every_device_has_a_place() -> None:
    assert Split({"i": 2, "j": 1}).places() == [{"i": 0, "j": 0}, {"i": 1, "j": 0}]
