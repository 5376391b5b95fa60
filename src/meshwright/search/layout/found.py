"""What `find_layout` returns: layouts of a step, what was simulated of each, compiled, and as code to paste."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from meshwright.chart.amounts import size_text, time_text
from meshwright.chart.gantt import Chart, Charted
from meshwright.chart.page import Figure, Part, table_part, text_part
from meshwright.compile.compiled import Compiled
from meshwright.core.program import Program, Var
from meshwright.core.source import Source, here
from meshwright.core.types import TensorType
from meshwright.errors import MeshwrightError
from meshwright.search.explained import LayoutParts, WhatIf, compare_chart, shown_time
from meshwright.search.layout.code import code_of
from meshwright.search.layout.expected import Expected
from meshwright.search.layout.explain import compared, explained, mesh_text, what_ifs
from meshwright.search.layout.written import WrittenConstraint
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
    measured: Simulation | Expected = field(repr=False)
    memory: float
    name: str
    constraints: tuple[Constraint | WrittenConstraint, ...] = ()
    step: Step | None = field(default=None, repr=False)
    program: Program | None = field(default=None, repr=False)
    specs: Mapping[Var, PartitionSpec] = field(default_factory=dict, repr=False)
    written: tuple[WrittenConstraint, ...] = field(default=(), repr=False)

    @property
    def simulation(self) -> Simulation:
        """The simulation of the step; of one with many equal layers, it may take place now."""
        return self.measured.simulation if isinstance(self.measured, Expected) else self.measured

    @property
    def kind(self) -> str:
        """Where its seconds and bytes are from: "simulated", "extrapolated" from the step with few of its equal layers,
        or "estimated" by the costs from which layouts are chosen."""
        expected = self.measured if isinstance(self.measured, Expected) and not self.measured.is_simulated else None
        return "simulated" if expected is None else expected.kind

    @property
    def figures(self) -> Simulation | Expected:
        """What is known of its seconds and bytes."""
        return self.simulation if self.kind == "simulated" else self.measured

    @property
    def seconds(self) -> float:
        """The simulated seconds of the step."""
        return self.figures.seconds

    @property
    def peak_bytes_per_device(self) -> int:
        """The most that a device holds at a time."""
        return self.figures.peak_bytes_per_device

    @property
    def fits(self) -> bool:
        """Whether that is no more than there is."""
        return self.peak_bytes_per_device <= self.memory

    @property
    def microbatches(self) -> int:
        """In how many parts the batch comes, one after the other."""
        return 1 if self.step is None else self.step.microbatches

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
class FoundLayouts(Charted):
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

    def _rows(self) -> list[tuple[str, ...]]:
        parts = any(one.microbatches > 1 for one in self.found)
        heads = ("mesh", *["microbatches"] * parts, "layout", "seconds", "compute", "exposed", "memory", "")
        rows = [
            (
                mesh_text(one.mesh.shape),
                *[str(one.microbatches)] * parts,
                one.name,
                time_text(one.seconds),
                shown_time(one.figures.compute_seconds, one.seconds),
                shown_time(one.figures.exposed_seconds, one.seconds),
                size_text(one.peak_bytes_per_device),
                ", ".join([one.kind] * (one.kind != "simulated") + ["does not fit"] * (not one.fits)),
            )
            for one in self.found
        ]
        return [heads, *rows]

    def table(self) -> str:
        """A line for each layout: its mesh, what is split, seconds by kind, and memory; and the parts of the batch."""
        rows = self._rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                 for row in rows]  # fmt: skip
        gap = self.best.seconds / self.bound_seconds - 1 if self.bound_seconds else inf if self.best.seconds else 0.0
        bound = f"no layout in the space takes less than {time_text(self.bound_seconds)} (the first: {gap:+.0%})"
        return "\n".join([*lines, bound])

    __str__ = table

    def compare(self, runners_up: int = 4) -> tuple[LayoutParts, ...]:
        """Where the seconds and bytes of the best go, and of others: the fastest of each other mesh, and the next.

        >>> import meshwright as mw
        >>> shape = lambda *dims: mw.ShapeDtypeStruct(dims, "float32")
        >>> found = mw.find_layout(lambda w, x: x @ w, shape(1024, 1024), shape(8192, 1024), topology="h100 8")
        >>> first = found.compare()[0]
        >>> first.seconds == found.best.seconds, list(first.memory)
        (True, ['w', 'x', 'made by the step'])
        """
        return compared(self, runners_up)

    def what_if(self) -> tuple[WhatIf, ...]:
        """What is best of the layouts found after one change: other links, memory, chips, more of them, another batch.

        >>> import meshwright as mw
        >>> shape = lambda *dims: mw.ShapeDtypeStruct(dims, "float32")
        >>> found = mw.find_layout(lambda w, x: x @ w, shape(1024, 1024), shape(8192, 1024), topology="h100 8")
        >>> found.what_if()[0].change
        'twice the bandwidth of links'
        """
        return what_ifs(self)

    def explain(self, runners_up: int = 4, *, what_if: bool = True) -> str:
        """What bounds the best, what others lose and where, and which single change would make another best.

        Without ``what_if`` the last, for which layouts are simulated again, is left out.

        >>> import meshwright as mw
        >>> shape = lambda *dims: mw.ShapeDtypeStruct(dims, "float32")
        >>> found = mw.find_layout(lambda w, x: x @ w, shape(1024, 1024), shape(8192, 1024), topology="h100 8")
        >>> "best: " in found.explain(what_if=False)
        True
        """
        return explained(self, runners_up, what_if)

    def chart(self) -> Chart:
        """A row for each of `compare`, made up of compute and of the waits along each axis."""
        best = self.best.simulation
        return compare_chart(f"{best.topology.text}: seconds of a step", self.compare())

    def page_figures(self) -> list[Figure]:
        best = self.best
        return [
            ("a step", time_text(best.seconds), f"{mesh_text(best.mesh.shape)}: {best.name}"),
            ("at least", time_text(self.bound_seconds), "no layout in the space takes less"),
            ("memory", size_text(best.peak_bytes_per_device), f"of {size_text(best.memory)}"),
        ]

    def page_parts(self) -> list[Part]:
        heads, *rows = self._rows()
        return [table_part("Layouts", heads, rows), text_part("The best as code", self.best.code())]

    def show(self, use_color: bool = True) -> None:
        """Show that chart where we are: in a notebook, on a terminal in colour, or as plain text."""
        self.chart().view().show(use_color)

    def _repr_html_(self) -> str:
        return self.chart().view().html()
