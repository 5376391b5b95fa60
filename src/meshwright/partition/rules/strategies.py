"""Strategies to run an equation on blocks: each has its own factor rule, and may send more; the cheapest runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from meshwright.core.factors import Factors
from meshwright.core.program import Eqn
from meshwright.partition.choose import Choice
from meshwright.partition.localize import Localizer, Version
from meshwright.sharding.axes import Axes

MOST_BLOCKS = 1 << 16  # of a dim, for which devices' windows are listed
Extra = Callable[[Choice], float | None]
Run = Callable[[Choice], list[Version]]


class BlockStrategy(NamedTuple):
    """A strategy to run an equation on the blocks of its operands.

    ``extra`` are the bytes that a device receives besides what brings operands and results into the layouts of the
    choice; None if the strategy cannot run on them.
    """

    factors: Factors
    extra: Extra
    run: Run


def cheapest(local: Localizer, eqn: Eqn, strategies: Sequence[BlockStrategy], plain: bool = True) -> list[Version]:
    """The equation run by the cheapest strategy; ``plain`` is that of the op's own factors."""
    best: tuple[tuple[bool, float, int], Run, Choice] | None = None
    if plain:
        choice = local.choice(eqn)
        best = (choice.preference(local.how), lambda choice: local.chosen(eqn, choice), choice)
    for strategy in strategies:
        choice = local.choice(eqn, strategy.factors)
        if best is not None and (choice.preference(local.how) >= best[0] or _most_blocks(choice) > MOST_BLOCKS):
            continue
        extra = strategy.extra(choice)
        if extra is not None:
            found = choice._replace(cost=choice.cost + local.how.cost.receive(extra, 0)).preference(local.how)
            if best is None or found < best[0]:
                best = (found, strategy.run, choice)
    assert best is not None
    return best[1](best[2])


def _most_blocks(choice: Choice) -> int:
    """Into how many blocks a choice splits a dim at most."""
    return max((count for layout in (*choice.operands, *choice.results) for count in layout.shards), default=1)


def parts(axes: Axes) -> int:
    """Into how many blocks axes split a dim."""
    count = 1
    for axis in axes:
        count *= axis.size
    return count


def is_split(local: Localizer, eqn: Eqn, dims: Sequence[int]) -> bool:
    """Whether an operand is split along one of these dims, or the result wanted so, of ops that keep dims in place."""
    known = [local.best(atom, unreduced=True) for atom in eqn.inputs if atom.type.ndim]
    wanted = local.wanted.get(eqn.outputs[0])
    if wanted is not None:
        known.append(wanted)
    return any(layout.dims[d].axes for layout in known for d in dims)


def nothing(choice: Choice) -> float:
    """The extra bytes of a strategy that sends nothing else."""
    return 0.0
