"""What a step is expected to take in a layout in which the whole of it was not simulated."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from meshwright.simulate.simulation import Simulation


class Expected:
    """Seconds and bytes of a step as they follow from what is known.

    ``kind`` says from what: "extrapolated" from the step with few layers, "estimated" from the costs by which layouts
    are chosen. ``simulation`` is that of the whole step, when it is asked for.
    """

    def __init__(
        self, kind: str, seconds: float, compute: float, exposed: float, peak: int, whole: Callable[[], Simulation]
    ) -> None:
        self.kind = kind
        self.seconds, self.compute_seconds, self.exposed_seconds = seconds, compute, max(0.0, exposed)
        self.peak_bytes_per_device = peak
        self._whole = whole

    def corrected(self, ratio: float, held: float = 1.0) -> None:
        """Take into account how many times the seconds, and the bytes, that were expected of it another layout took."""
        self.exposed_seconds = max(0.0, self.exposed_seconds + (ratio - 1) * self.seconds)
        self.seconds *= ratio
        self.peak_bytes_per_device = int(held * self.peak_bytes_per_device)

    @cached_property
    def simulation(self) -> Simulation:
        """The simulation of the whole step."""
        return self._whole()

    @property
    def is_simulated(self) -> bool:
        """Whether the whole step was simulated."""
        return "simulation" in vars(self)


def extrapolated(few: Simulation, more: Simulation, layers: int, whole: Callable[[], Simulation]) -> Expected:
    """What a step takes that has so many layers more than one that was simulated, with one more and without it."""

    def at(one: float, other: float) -> float:
        return other + layers * (other - one)

    return Expected(
        "extrapolated",
        at(few.seconds, more.seconds),
        at(few.compute_seconds, more.compute_seconds),
        at(few.exposed_seconds, more.exposed_seconds),
        max(more.peak_bytes_per_device, int(at(few.peak_bytes_per_device, more.peak_bytes_per_device))),
        whole,
    )
