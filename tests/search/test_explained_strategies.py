"""What a search of strategies is explained by: parts of the steps, and the same steps after a change."""

from __future__ import annotations

import pytest

from meshwright import dist, hardware
from meshwright.errors import ShapeError
from meshwright.simulate import transformer

MODEL, MACHINE = dist.GPT(layers=4, dim=256, heads=4), hardware.Topology("h100", 2)


def test_a_search_is_explained() -> None:
    found = dist.grid_search(MODEL, MACHINE, batch=8, microbatches=[1], zero=[0], recompute=[False])
    assert found.best is not None
    text = dist.explain_search(found, MODEL, MACHINE, batch=8)
    one = transformer.train(MODEL.shape, MACHINE, found.best.strategy, 8, MODEL.length)
    assert text.startswith("best: ")
    for part in ("activations", "optimizer", "half the memory: ", "twice the batch: ", one.bound):
        assert part in text


def test_what_is_refused() -> None:
    with pytest.raises(ShapeError) as refused:
        dist.explain_search(dist.SearchResult(()), MODEL, MACHINE, batch=8)
    assert (refused.value.what, refused.value.why, refused.value.fix) == (
        "There is no strategy to explain.",
        "none fits into memory",
        "a search with more chips or a smaller batch",
    )
