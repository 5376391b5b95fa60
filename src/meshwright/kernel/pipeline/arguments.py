"""What the callbacks of a pipeline are given, and what they give back: flags as trees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import optree

from meshwright.core import tree
from meshwright.core.source import here
from meshwright.kernel.run.faults import KernelError


class PipelineArg(NamedTuple):
    """Something for each operand of a pipeline, by what it is to the pipeline."""

    input: Any
    out: Any
    in_out: Any


@dataclass(frozen=True)
class PipelineStep:
    """Where a body is, if it asks for that: the grid indices of the step, and how many steps this core has done."""

    index: tuple[Any, ...]
    local_index: Any


PipelineRefs = PipelineArg
PipelineBuffers = PipelineArg  # per operand the slots (current, next)
PipelineAllocations = PipelineArg


@dataclass(frozen=True)
class PipelineCallbackArgs:
    """What a callback of a pipeline is given."""

    pipeline_specs: PipelineArg
    pipeline_refs: PipelineArg
    pipeline_buffer_refs: PipelineArg
    pipeline_allocations: PipelineArg
    pipeline_buffers: PipelineArg
    make_pipeline_refs: Callable[..., PipelineArg]
    start_pipeline_prefetch: Callable[..., tuple[Any, Any]]


class PipelinePrefetchArgs(NamedTuple):
    """What to prefetch: the operands of the next run, and the buffers to fetch into."""

    pipeline_refs: PipelineArg
    pipeline_allocations: PipelineArg
    pipeline_buffers: PipelineArg


def flags(prefix: Any, trees: Sequence[tree.TreeDef], what: str) -> list[bool]:
    """A flag for each leaf of some operands from a prefix of their trees: one for all, one for each, a list of one.

    >>> pair = tree.structure((0, 0))
    >>> flags([True, (False, True)], [tree.structure(0), pair], "force_copy")
    [True, False, True]
    """
    total = sum(t.num_leaves for t in trees)
    if not isinstance(prefix, tuple | list | dict):
        return [_flag(prefix, what)] * total
    given: list[Any] = list(prefix) if isinstance(prefix, tuple | list) else [prefix]
    if len(given) == 1 and len(trees) != 1:
        given *= len(trees)
    if len(given) != len(trees) and len(given) == total:
        trees = [tree.structure(0)] * total
    if len(given) != len(trees):
        raise KernelError(
            f"{what} has {len(given)} flags for {len(trees)} operands.",
            where=here(),
            why="it is one flag for all, or one for each",
            fix=f"{[True] * len(trees)}",
        )
    found: list[bool] = []
    for one, t in zip(given, trees, strict=True):
        try:
            whole = tree.unflatten(t, range(t.num_leaves))
            spread = optree.broadcast_prefix(one, whole, none_is_leaf=True, namespace=tree.NAMESPACE)
        except ValueError:
            raise KernelError(
                f"{what} has {one!r} for an operand of {t.num_leaves} refs.",
                where=here(),
                why="its flags are a prefix of the operand's tree: one for all of it, or its containers with flags",
                fix=f"{tree.unflatten(t, [True] * t.num_leaves)}",
            ) from None
        found += [_flag(x, what) for x in spread]
    return found


def _flag(value: Any, what: str) -> bool:
    if value is None or isinstance(value, str) or np.ndim(value) or not hasattr(value, "__bool__"):
        raise KernelError(
            f"{what} has {value!r} in the place of a flag.",
            where=here(),
            why="a flag is True or False, or an array of rank 0",
            fix="True, or a condition: step == 0",
        )
    return bool(value)


def pair(prefix: Any, what: str, parts: str) -> tuple[Any, Any]:
    """A prefix of two trees as one prefix for each."""
    if not isinstance(prefix, tuple | list):
        return prefix, prefix
    if len(prefix) != 2:
        raise KernelError(
            f"{what} has {len(prefix)} parts.",
            where=here(),
            why=f"it has two, {parts}, or is one flag for both",
            fix="([True, False], False)",
        )
    return prefix[0], prefix[1]
