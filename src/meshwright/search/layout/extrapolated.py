"""What a step with many equal layers takes, as it follows from two short ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from meshwright.simulate.simulation import Simulation


class Extrapolated:
    """What a step takes as it follows from two short ones; ``simulation`` is that of the whole step, when asked for."""

    def __init__(self, few: Simulation, more: Simulation, layers: int, whole: Callable[[], Simulation]) -> None:
        def at(one: float, other: float) -> float:
            return other + layers * (other - one)

        self.seconds = at(few.seconds, more.seconds)
        self.compute_seconds = at(few.compute_seconds, more.compute_seconds)
        self.exposed_seconds = max(0.0, at(few.exposed_seconds, more.exposed_seconds))
        self.peak_bytes_per_device = max(
            more.peak_bytes_per_device, int(at(few.peak_bytes_per_device, more.peak_bytes_per_device))
        )
        self._whole = whole

    @cached_property
    def simulation(self) -> Simulation:
        """The simulation of the whole step."""
        return self._whole()

    @property
    def is_simulated(self) -> bool:
        """Whether the whole step was simulated."""
        return "simulation" in vars(self)
