"""What `find_layout` returns: layouts of a step, what was simulated of each, compiled, and as code to paste."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from meshwright.chart.amounts import size_text, time_text
from meshwright.compile.compiled import Compiled
from meshwright.core.program import Program
from meshwright.core.source import Source, here
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError
from meshwright.search.layout.code import code_of
from meshwright.sharding.mesh import Mesh
from meshwright.sharding.spec import PartitionSpec
from meshwright.simulate.simulation import Simulation

if TYPE_CHECKING:
    from meshwright.search.layout.step import Step


class Constraint(NamedTuple):
    """A value of the step that is to be laid out so, and the line that makes it."""

    source: Source | None
    type: TensorType
    spec: PartitionSpec

    def __str__(self) -> str:
        return f"{self.source or '?'}  {self.type.short()}  {self.spec}"


@dataclass(frozen=True, eq=False)
class FoundLayout:
    """One layout of a step: its mesh, the shardings of arguments and results, and what it takes."""

    mesh: Mesh
    in_shardings: Any
    out_shardings: Any
    simulation: Simulation = field(repr=False)
    memory: float
    name: str
    constraints: tuple[Constraint, ...] = ()
    step: Step | None = field(default=None, repr=False)
    program: Program | None = field(default=None, repr=False)

    @property
    def seconds(self) -> float:
        """The simulated seconds of the step."""
        return self.simulation.seconds

    @property
    def peak_bytes_per_device(self) -> int:
        """The most that a device holds at a time."""
        return self.simulation.peak_bytes_per_device

    @property
    def fits(self) -> bool:
        """Whether that is no more than there is."""
        return self.peak_bytes_per_device <= self.memory

    def compile(self) -> Compiled:
        """The step compiled in this layout: what was simulated."""
        assert self.step is not None and self.program is not None
        return self.step.compiled(self)

    def code(self, to: str = "meshwright") -> str:
        """The layout as Python to paste, for Meshwright or (``to="jax"``) for JAX."""
        if to not in ("meshwright", "jax"):
            raise MeshwrightError(
                f"There is no code for {to!r}.", where=here(), why="there is meshwright and jax", fix='to="jax"'
            )
        assert self.step is not None
        return code_of(self, to)


@dataclass(frozen=True, eq=False)
class FoundLayouts:
    """What a search found, the fastest that fits first, and the seconds that nothing in its space is below."""

    found: tuple[FoundLayout, ...]
    bound_seconds: float

    @property
    def best(self) -> FoundLayout:
        """The fastest that fits."""
        return self.found[0]

    def __iter__(self) -> Iterator[FoundLayout]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, n: int) -> FoundLayout:
        return self.found[n]

    def table(self) -> str:
        """A line for each layout: its mesh, what is split, seconds by kind, and memory."""
        heads = ("mesh", "layout", "seconds", "compute", "exposed", "memory", "")
        rows = [
            (
                " ".join(f"{name}={size}" for name, size in one.mesh.shape.items()),
                one.name,
                time_text(one.seconds),
                time_text(one.simulation.compute_seconds),
                time_text(one.simulation.exposed_seconds),
                size_text(one.peak_bytes_per_device),
                "" if one.fits else "does not fit",
            )
            for one in self.found
        ]
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                 for row in (heads, *rows)]  # fmt: skip
        gap = self.best.seconds / self.bound_seconds - 1 if self.bound_seconds else inf
        return "\n".join([*lines, f"no layout takes less than {time_text(self.bound_seconds)} (the first: {gap:+.0%})"])

    __str__ = table
