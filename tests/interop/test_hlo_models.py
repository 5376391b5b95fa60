"""The example models on four devices, as HLO: XLA reads it, counts the same collectives and computes the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import meshwright as mw
from tests.interop import hlo_by_xla
from tests.partition.models import MODELS, USUAL, setting
from tests.partition.test_models import CASES

KINDS = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "permute": "collective-permute",
}


def train_step(name: str, layout: str) -> tuple[Any, Any, Any]:
    """A compiled train step, and its placed arguments."""
    found = setting(name, layout)
    return found.step.lower(found.placed, found.split, config=found.config), found.placed, found.split


def blocks(x: mw.Array) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(shard.data) for shard in x.addressable_shards]


def counted(compiled: Any) -> dict[str, int]:
    return dict(Counter(KINDS[c.kind] for c in compiled.collectives))


@pytest.mark.parametrize("layout", USUAL)
@pytest.mark.parametrize("name", MODELS)
def test_a_train_step_has_the_collectives_it_says(name: str, layout: str) -> None:
    compiled = train_step(name, layout)[0].compile()
    assert compiled.collectives
    assert hlo_by_xla.count_collectives(compiled.as_text()) == counted(compiled)


def check_numbers(name: str, layout: str) -> None:
    lowered, params, batch = train_step(name, layout)
    compiled = lowered.compile()
    expected = compiled(params, batch)
    shards = [blocks(x) for x in mw.tree.leaves((params, batch))]
    found = hlo_by_xla.run(compiled.as_text(), shards)
    for parts, x in zip(found, mw.tree.leaves(expected), strict=True):
        for part, other in zip(parts, blocks(x), strict=True):
            np.testing.assert_allclose(part, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("mlp", "fully sharded and tensor parallel"),
        ("convnet", "fully sharded"),
        ("moe", "tensor parallel"),
        ("transformer, scanned", "fully sharded and tensor parallel"),
    ],
)
def test_a_train_step_computes_the_same(name: str, layout: str) -> None:
    check_numbers(name, layout)


@pytest.mark.slow
@pytest.mark.parametrize("name, layout", CASES)
def test_every_train_step_computes_the_same(name: str, layout: str) -> None:
    check_numbers(name, layout)
