"""Ways to run an equation on blocks: each has a factor rule of its own, and may send more; the cheapest runs."""

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


class Way(NamedTuple):
    """A way to run an equation.

    ``extra`` are the bytes that a device receives besides what brings operands and results into the layouts of the
    choice; None if the way cannot run on them.
    """

    factors: Factors
    extra: Extra
    run: Run


def cheapest(local: Localizer, eqn: Eqn, ways: Sequence[Way], plain: bool = True) -> list[Version]:
    """The equation run in the cheapest way; ``plain`` is that of the op's own factors."""
    best: tuple[float, Run, Choice] | None = None
    if plain:
        choice = local.choice(eqn)
        best = (choice.cost, lambda choice: local.chosen(eqn, choice), choice)
    for way in ways:
        choice = local.choice(eqn, way.factors)
        if best is not None and (choice.cost >= best[0] or _most_blocks(choice) > MOST_BLOCKS):
            continue
        extra = way.extra(choice)
        if extra is not None:
            cost = choice.cost + local.how.cost.receive(extra, 0)
            if best is None or cost < best[0]:
                best = (cost, way.run, choice)
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
    known = [local.best(atom, owed=True) for atom in eqn.inputs if atom.type.ndim]
    wanted = local.wanted.get(eqn.outputs[0])
    if wanted is not None:
        known.append(wanted)
    return any(layout.dims[d].axes for layout in known for d in dims)


def nothing(choice: Choice) -> float:
    """A way that sends nothing besides."""
    return 0.0
