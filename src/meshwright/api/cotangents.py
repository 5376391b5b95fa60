"""What a bwd rule may do with its cotangents among devices."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from meshwright.core.source import here
from meshwright.core.trace import Value, follows_from
from meshwright.errors import VarianceError


class _CotangentState(threading.local):
    cotangents: tuple[Any, ...] = ()  # what the bwd rule that is running was given


_state = _CotangentState()


@contextmanager
def going_back(cotangents: Sequence[Any]) -> Iterator[None]:
    """Run a bwd rule on these cotangents."""
    before, _state.cotangents = _state.cotangents, tuple(cotangents)
    try:
        yield
    finally:
        _state.cotangents = before


def refuse_summed(op: str, x: Value, axes: Sequence[str], count: int, instead: str) -> None:
    """Refuse a psum or psum_scatter over the ``count`` devices along some axes of a cotangent that is their sum."""
    if not any(follows_from(x, ct) for ct in _state.cotangents):
        return
    names = axes[0] if len(axes) == 1 else tuple(axes)
    raise VarianceError(
        f"{op} in a bwd rule is given a cotangent {x.type.short()} that is the same on all devices along "
        f"{', '.join(axes)}.",
        where=here(),
        why="what the function returned is the same on all of them, so its cotangent is summed over them already, and "
        f"another {op} would count it {count} times",
        fix=instead.format(names=names),
    )
