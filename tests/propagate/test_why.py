"""Every axis is explained: following the chain leads from the value to an annotation that has the axis."""

from __future__ import annotations

from itertools import pairwise

import pytest

from meshwright.propagate.graph import FunctionOp, GraphOp, GraphValue
from meshwright.propagate.problem import Kind
from meshwright.propagate.run import PIPELINES, Answer, run
from meshwright.propagate.why import AnswerReasons, Link
from meshwright.sharding.axes import AxisRef
from meshwright.sharding.named import TensorSharding
from tests.propagate.random_problems import Features, Maker

WHOLE = PIPELINES["sdy-propagation-pipeline"]
PROPAGATED = WHOLE[: WHOLE.index("sdy-user-priority-propagate") + 1]


def values_of(answer: Answer) -> list[GraphValue]:
    found = [value for function in answer.graph.functions for value in function.block.arguments]
    return found + [value for op in answer.graph.walk() for value in op.results if value.edge is None]


def has(sharding: TensorSharding | None, dim: int, axis: AxisRef) -> bool:
    return sharding is not None and any(one.overlaps(axis) for one in sharding.dims[dim].axes)


def is_written(link: Link) -> bool:
    """Whether somebody wrote the axis there: on the value, or where a computation or function says so."""
    value = link.value
    if isinstance(link.by, FunctionOp):
        return True  # the sharding of a result
    if link.by is not None and link.by.kind is Kind.MANUAL:
        return any(has(sharding, link.dim, link.axis) for sharding in link.by.in_shardings or ())
    if value.origin is not None and has(value.origin.sharding, link.dim, link.axis):
        return True
    if value.op is None or value.op.kind is not Kind.EDGE:
        return False
    owner = value.op.operands[0].value
    op = owner.op if owner.block is None else owner.block.parent
    assert isinstance(op, GraphOp)
    written = op.out_shardings if owner.block is None else op.in_shardings
    return written is not None and has(written[owner.index], link.dim, link.axis)


def joined(one: Link, other: Link) -> bool:
    """Whether the node of a link joins its value with the next link's."""
    by = one.by
    assert isinstance(by, GraphOp)
    if by.kind is Kind.EDGE:
        values = [*(use.value.holder for use in by.sources), by.results[0]]
    else:
        values = [*(use.value.holder for use in by.operands), *by.results]
    groups = [value.groups for value in values if value.groups]
    beside = [member.holder for group in groups for member in group.members]
    return all(value in values or value in beside for value in (one.value, other.value))


@pytest.mark.parametrize("passes", [PROPAGATED, ("sdy-basic-propagate",)], ids=["imported", "alone"])
def test_the_chain_of_every_axis_leads_to_where_it_was_written(passes: tuple[str, ...]) -> None:
    alone = Features(regions=False, groups=False, calls=False, manual=False)
    features = Features(named=False) if len(passes) > 1 else alone
    axes = 0
    for seed in range(150):
        problem, _ = Maker(seed, features).program()
        try:
            answer = run(problem, passes)
        except Exception:
            continue
        why = AnswerReasons(answer)
        for value in values_of(answer):
            if value.sharding is None or value.groups is not None:
                continue
            for dim, sharding in enumerate(value.sharding.dims):
                for axis in sharding.axes:
                    chain = why.chain(value, dim, axis)
                    axes += 1
                    assert chain and chain[0].value is value, seed
                    assert is_written(chain[-1]), (seed, [str(link) for link in chain])
                    for one, other in pairwise(chain):
                        if isinstance(one.by, GraphOp):
                            assert joined(one, other), (seed, [str(link) for link in chain])
    assert axes > 500
