"""What a layout takes of a step with many equal layers, from the same step with few of them.

A step with a layer more takes as much more as every further layer does. So a step is simulated with few layers and with
one more, and seconds and bytes follow for all: a good guess, with which layouts are compared. The whole step is
simulated in the layout that is best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeVar

from meshwright.core import tree
from meshwright.core.program import Eqn, Var
from meshwright.hardware.topology import Topology
from meshwright.partition.alternatives import Cheapest
from meshwright.search.layout.evaluate import Evaluated, constrained, evaluated
from meshwright.search.layout.expected import Expected, extrapolated
from meshwright.sharding.named import NamedSharding, TensorSharding
from meshwright.sharding.spec import PartitionSpec
from meshwright.simulate.simulation import Simulation
from meshwright.transform.layers import EqualLayers, find_layers

if TYPE_CHECKING:
    from meshwright.search.layout.step import Step

WORTH = 1.5  # times the equations of both short programs: a step of no more is simulated whole

T = TypeVar("T")
Specs = Mapping[Var, PartitionSpec]


class ShortStep:
    """A step with few of its equal layers, and with one more."""

    def __init__(self, step: Step, few: EqualLayers, more: EqualLayers) -> None:
        self.step, self.few, self.more = step, few, more
        self.known: dict[tuple[float, int], Simulation] = {}  # with few layers, of what takes the same with one more

    @property
    def equations(self) -> int:
        """The equations that are simulated for a layout."""
        return len(self.few.program.eqns) + len(self.more.program.eqns)

    def of_all(self, given: Sequence[T]) -> list[T]:
        """What all arguments of the step have, from what those of the short one have."""
        return [given[n] for n in self.few.like]

    @cached_property
    def _alike(self) -> list[tuple[Eqn, Eqn]]:
        """Equations of the layers that were taken out, and those that stand for them."""
        made = {eqn.outputs[0]: eqn for eqn in self.few.program.eqns if eqn.outputs}
        pairs = [(eqn, self.few.alike.get(eqn.outputs[0])) for eqn in self.step.program.eqns if eqn.outputs]
        return [(eqn, made[other]) for eqn, other in pairs if other is not None]

    def everywhere(self, specs: Specs) -> dict[Var, PartitionSpec]:
        """Constraints on values of the short step, on those of all layers."""
        found = dict(specs)
        for eqn, other in self._alike if specs else ():
            found.update(_like(eqn, other, specs))
        return found

    def expected(
        self, given: Sequence[TensorSharding], topology: Topology, specs: Specs, mode: str
    ) -> Callable[[Callable[[], Simulation]], Expected]:
        """What a layout takes, given what simulates the whole step."""
        return partial(self.taken, [s.to_named() for s in given], topology, specs, mode)

    def taken(self, named: Sequence[NamedSharding], topology: Topology, specs: Specs, mode: str,
              whole: Callable[[], Simulation]) -> Expected:  # fmt: skip
        """What a layout takes."""
        found = self._evaluated(self.more, named, topology, specs, mode, None)
        more = found.simulation
        key = more.seconds, more.peak_bytes_per_device
        if key not in self.known:
            few = self._evaluated(self.few, named, topology, specs, mode, found.cheapest).simulation
            self.known[key] = few
        return extrapolated(self.known[key], more, self.more.removed, whole)

    def _evaluated(self, short: EqualLayers, named: Sequence[NamedSharding], topology: Topology, specs: Specs,
                   mode: str, like: Cheapest | None) -> Evaluated:  # fmt: skip
        step, asked = self.step, self.step.results(named)
        out_tree = tree.flatten(tuple(range(len(short.outputs))))[1]
        return evaluated(
            constrained(short.program, specs),
            out_tree,
            topology,
            [named[n] for n in short.inputs],
            [asked[n] for n in short.outputs],
            [step.donated[n] for n in short.inputs],
            [step.argument[n] for n in short.inputs],
            mode,
            like,
        )


def _like(eqn: Eqn, other: Eqn, specs: Specs) -> Iterator[tuple[Var, PartitionSpec]]:
    """Constraints on what an equation makes, in its regions, too, as on what another one does."""
    for var, like in zip(eqn.outputs, other.outputs, strict=True):
        if like in specs:
            yield var, specs[like]
    for (_, one), (_, two) in zip(eqn.regions(), other.regions(), strict=True):
        for inner, alike in zip(one.eqns, two.eqns, strict=True):
            yield from _like(inner, alike, specs)


def shortened(step: Step) -> ShortStep | None:
    """A step with few of its layers; None if that is hardly less."""
    layers = find_layers(step.program)
    few = None if layers is None else layers.shortened(2)
    more = None if layers is None or few is None else layers.shortened(few.kept + 1)
    if few is None or more is None:
        return None
    found = ShortStep(step, few, more)
    return found if len(step.program.eqns) > WORTH * found.equations else None
