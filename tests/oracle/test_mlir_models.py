"""What JAX makes of models, propagated through and compared with Shardy letter for letter."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from meshwright.interop.shardy.passes import apply_passes, populate_rules
from meshwright.interop.stablehlo.context import parse_module
from tests.oracle.jax_models import DEEP, MODELS
from tests.oracle.shardy import apply, newest_rules, piped, piped_by_us

STRATEGIES = ("basic", "aggressive", "op-priority", "user-priority")


@pytest.mark.parametrize("model", MODELS)
def test_every_op_has_the_rule_of_shardy(model: str) -> None:
    text = MODELS[model]()
    module = parse_module(text)
    populate_rules(module)
    assert str(module) == apply(newest_rules(text), "populate-op-sharding-rules")


def assert_same(make: Callable[[], str]) -> None:
    text = make()
    for strategy in STRATEGIES:
        found = apply_passes(parse_module(text), [f"sdy-{strategy}-propagate"]).module
        assert str(found) == apply(newest_rules(text), f"{strategy}-propagate"), strategy
    assert piped_by_us(text) == piped(text)


@pytest.mark.parametrize("model", MODELS)
def test_shardings_are_those_of_shardy(model: str) -> None:
    assert_same(MODELS[model])


@pytest.mark.slow
@pytest.mark.parametrize("model", DEEP)
def test_shardings_of_deep_models_are_those_of_shardy(model: str) -> None:
    assert_same(DEEP[model])
