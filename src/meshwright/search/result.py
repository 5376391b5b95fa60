"""What a search found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload

from meshwright.search.pruned import SLOWEST
from meshwright.search.strategy import Estimate
from meshwright.simulate.transformer.strategy import Strategy


@dataclass(frozen=True)
class SearchResult:
    """What a search found, the best that fits first: a sequence of estimates.

    ``considered`` is how many strategies there were, ``simulated`` how many of them bounds did not rule out.

    >>> from meshwright import dist, hardware
    >>> found = dist.grid_search(dist.MLP(8, 512, 64), hardware.Topology("h100", 2), 64)
    >>> found[0] == found.best, len(list(found)) == len(found), len(found) < found.considered
    (True, True, True)
    """

    estimates: tuple[Estimate, ...]
    considered: int = field(default=0, compare=False)
    simulated: int = field(default=0, compare=False)

    @property
    def best(self) -> Estimate | None:
        """The fastest that fits into memory."""
        return next((e for e in self.estimates if e.fits), None)

    @property
    def pareto(self) -> tuple[Estimate, ...]:
        """Those no other beats both in samples per second and in memory."""
        found: list[Estimate] = []
        for e in sorted(self.estimates, key=lambda e: (e.seconds, e.peak_bytes_per_device)):
            if not found or e.peak_bytes_per_device < found[-1].peak_bytes_per_device:
                found.append(e)
        return tuple(found)

    def __len__(self) -> int:
        return len(self.estimates)

    def __iter__(self) -> Iterator[Estimate]:
        return iter(self.estimates)

    @overload
    def __getitem__(self, n: int) -> Estimate: ...
    @overload
    def __getitem__(self, n: slice) -> tuple[Estimate, ...]: ...
    def __getitem__(self, n: int | slice) -> Estimate | tuple[Estimate, ...]:
        return self.estimates[n]


def promised(found: Sequence[Estimate], wanted: Sequence[Strategy], top: int | None) -> SearchResult:
    """The result of a search of ``wanted``: all that was found, or of a pruned one the ``top`` fastest and the front.

    What else was simulated depends on the order in which it was, and is left out.
    """
    place = {strategy: n for n, strategy in enumerate(wanted)}
    every = sorted(
        dict.fromkeys(found), key=lambda e: (not e.fits, e.seconds, e.peak_bytes_per_device, place[e.strategy])
    )
    if top is not None and every and every[0].fits:
        fitting = SearchResult(tuple(e for e in every if e.fits))
        kept = {*fitting[:top], *(e for e in fitting.pareto if e.seconds <= SLOWEST * fitting[0].seconds)}
        every = [e for e in every if e in kept]
    elif top is not None:
        every = every[:top]
    return SearchResult(tuple(every), len(wanted), len(found))
