"""What a search found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from meshwright.core.source import here
from meshwright.errors import ShapeError
from meshwright.hardware.topology import Topology
from meshwright.search.explained_strategies import SearchedFor, explained
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
    asked: SearchedFor | None = field(default=None, compare=False, repr=False)

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

    def explain(self, *, search: bool = False) -> str:
        """What bounds the best strategy for a transformer or a traced step, what the next ones lose and where, and
        which single change of the machine or of the batch would make another best.

        Of those that were found; with ``search`` each change is searched for anew, in the same space.

        >>> from meshwright import dist, hardware
        >>> model, machine = dist.GPT(layers=4, dim=256, heads=4), hardware.Topology("h100", 2)
        >>> found = dist.grid_search(model, machine, batch=8, microbatches=[1], zero=[0], recompute=["none"])
        >>> print(found.explain().splitlines()[0])
        best: data=2
        """
        if self.asked is None:
            raise ShapeError(
                "There is nothing to explain this search by.",
                where=here(),
                why="it was not on a topology, was of an MLP by its sizes, or is not what dist.grid_search returned",
                fix="dist.explain_search(found, model, topology, batch)",
            )
        return explained(self.estimates, self.asked, search)

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


def explain_search(found: SearchResult, model: Any, topology: Topology, batch: int, sequence: int | None = None) -> str:
    """`SearchResult.explain` of estimates that were not made by one search, such as those of a file.

    They are of this model, machine and batch, with parameters of 2 bytes and an optimizer of 12, and peak rates.

    >>> from meshwright import dist, hardware
    >>> model, machine = dist.GPT(layers=4, dim=256, heads=4), hardware.Topology("h100", 2)
    >>> found = dist.grid_search(model, machine, batch=8, microbatches=[1], zero=[0])
    >>> dist.explain_search(found, model, machine, batch=8) == found.explain()
    True
    """
    return explained(found.estimates, SearchedFor(model, topology, batch, sequence))
