"""`find_layout`: the mesh and the sharding of every argument in which a step is fastest, and fits."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import inf, prod
from numbers import Real
from typing import Any

import numpy as np

from meshwright.chart.amounts import size_text
from meshwright.core.source import here
from meshwright.errors import HardwareError, MeshError, MeshwrightError
from meshwright.hardware.arguments import checked, function
from meshwright.hardware.chips import Chip
from meshwright.hardware.machines import named_machine
from meshwright.hardware.topology import Topology
from meshwright.search.layout.found import FoundLayout, FoundLayouts
from meshwright.search.layout.improve import climb, near_bound, simulate_all, simulate_best, simulate_likely
from meshwright.search.layout.searching import Candidate, LayoutSearch, correct
from meshwright.search.layout.step import Step, check_constraints
from meshwright.search.layout.written import to_paste
from meshwright.sharding.mesh import BaseMesh

THREE_AXES = 64  # roles of a step at the most that is looked at on meshes of three axes
WHOLE = 3  # simulations of a whole step of which few layers were simulated


class NoLayoutFits(MeshwrightError):
    """Every layout of a step takes more memory than there is."""


def mesh_sizes(chips: int, node: int | None = None) -> list[dict[str, int]]:
    """The meshes to try: all chips along one axis, or along two of which the second lies among neighbours; if there are
    several nodes of so many chips, also these along one axis, and the chips of each along two.

    >>> mesh_sizes(8)
    [{'data': 8}, {'data': 4, 'model': 2}, {'data': 2, 'model': 4}]
    >>> mesh_sizes(16, node=8)[-2:]
    [{'pod': 2, 'data': 4, 'model': 2}, {'pod': 2, 'data': 2, 'model': 4}]
    """
    two = [{"data": chips // n, "model": n} for n in range(2, chips // 2 + 1) if chips % n == 0]
    of_nodes = mesh_sizes(node)[1:] if node is not None and 1 < node < chips and chips % node == 0 else []
    return [{"data": chips}, *two, *({"pod": chips // (node or 1), **sizes} for sizes in of_nodes)]


def _as_it_is(name: str, value: Any, of: str) -> Any:
    """What is checked further on."""
    return value


@checked(
    "a layout search", batch_args=_as_it_is, memory=_as_it_is, fixed=_as_it_is, microbatches=_as_it_is,
    progress=function,
)  # fmt: skip
def find_layout(
    f: Callable[..., Any],
    *args: Any,
    topology: Any = None,
    batch_args: int | Sequence[int] | None = None,
    memory: float | None = None,
    fixed: Mapping[str, int] | BaseMesh | None = None,
    microbatches: int | Sequence[int] | None = None,
    even: bool = False,
    mode: str = "exact",
    progress: Callable[[str], None] | None = None,
) -> FoundLayouts:
    """The layouts of a step, written for one device, in which it is fastest on a machine and fits into its memory.

    ``args`` are arrays, or shapes alone (`mw.ShapeDtypeStruct`). ``batch_args`` are the positions of those whose first
    dim is the batch, by default all that the step does not return anew. ``memory`` is what a device has, in bytes;
    ``fixed`` a mesh to stay on, or its sizes; ``progress`` is called with the sizes of each mesh. With
    ``microbatches`` the step takes its batch in so many parts, one after the other (`mw.microbatched`); of several
    numbers, those are found that are fastest. With ``even`` arguments are in equal parts alone, as JAX takes them;
    otherwise the last part may be smaller, as of 50,257 rows among 8 devices. The layouts that are
    returned were partitioned and simulated, so their seconds are those of the program that runs; each has its mesh,
    shardings and memory, can be compiled, and printed as code.

    >>> import meshwright as mw
    >>> def step(w, x):
    ...     loss, gradient = mw.value_and_grad(lambda w: ((x @ w) ** 2).mean())(w)
    ...     return loss, w - 0.1 * gradient
    >>> shape = lambda *dims: mw.ShapeDtypeStruct(dims, "float32")
    >>> found = mw.find_layout(step, shape(1024, 1024), shape(1 << 16, 1024), topology="h100 8")
    >>> found.best.mesh.size, found.best.fits, found.best.seconds <= found[1].seconds
    (8, True, True)
    """
    machine = _machine(topology)
    whole = Step(f, args, batch_args)
    steps = [whole.in_microbatches(count) for count in _counts(microbatches)]
    if memory is None:
        memory = machine.chip.known("hbm_bytes", inf)
    if isinstance(memory, bool) or not isinstance(memory, Real) or not memory > 0:
        raise MeshwrightError(
            f"The memory of a device is {memory!r}.", where=here(), why="it is a number of bytes", fix="memory=80e9"
        )
    memory = float(memory)
    stay = None if fixed is None else [_fixed(fixed, machine)]
    check_constraints(whole.program, None if stay is None else stay[0])
    found, bound = list[FoundLayout](), inf
    for step in steps:
        search = LayoutSearch(step, machine, memory, mode, even)
        meshes = stay or _meshes(search)
        found += _searched(search, meshes, progress)
        bound = min(bound, search.bound(meshes))
    found.sort(key=_order)
    if not found[0].fits:
        least = min(found, key=lambda one: one.peak_bytes_per_device)
        raise NoLayoutFits(
            f"No layout of {whole.name} that was found fits into {size_text(memory)} a device.",
            where=here(),
            why=f"the smallest takes {size_text(least.peak_bytes_per_device)} on {machine}",
            fix="more chips, a smaller batch, more microbatches, or mw.checkpoint(layer) in the step",
        )
    return FoundLayouts(tuple(to_paste(found)), bound)


def _meshes(search: LayoutSearch) -> list[dict[str, int]]:
    """The meshes on which a step is looked at: with three axes, if it is not so large that this takes too long."""
    machine = search.topology
    node = machine.node_size if machine.switched and len(search.roles) <= THREE_AXES else None
    return mesh_sizes(machine.size, node)


def _searched(
    search: LayoutSearch, meshes: Sequence[Mapping[str, int]], progress: Callable[[str], None] | None
) -> list[FoundLayout]:
    """The layouts of a step that were found on these meshes, the fastest that fits first."""
    candidates: list[Candidate] = []
    for sizes in meshes:
        if progress is not None:
            progress(" x ".join(map(str, sizes.values())))
        candidates += search.on(sizes)
    simulate_best(search, sorted(candidates, key=lambda one: one.seconds), meshes)
    if near_bound(search):
        climb(search)
    elif not simulate_all(search, meshes):
        simulate_likely(search, meshes)
        climb(search)
    return _with_whole(search)


def _counts(given: Any) -> list[int]:
    """How many parts the batch may come in."""
    counts = [1] if given is None else given if isinstance(given, list | tuple | range) else [given]
    if not counts or not all(map(_is_count, counts)):
        raise MeshwrightError(
            f"microbatches is {given!r}.",
            where=here(),
            why="it is how many parts the batch comes in, or a list of such numbers to choose from",
            fix="microbatches=[1, 2, 4]",
        )
    return list(dict.fromkeys(map(int, counts)))


def _is_count(n: Any) -> bool:
    return isinstance(n, int | np.integer) and not isinstance(n, bool) and int(n) > 0


def _order(one: FoundLayout) -> tuple[bool, float]:
    """What is better is less: those that fit by their seconds."""
    return not one.fits, one.seconds


def _ranked(search: LayoutSearch) -> list[FoundLayout]:
    """The layouts that were simulated, the fastest that fits first; of those that take the same, the simplest: with the
    fewest axes, and without constraints."""
    found: dict[tuple[float, int], FoundLayout] = {}
    for one in sorted(search.made.values(), key=lambda one: (len(one.mesh.shape), bool(one.constraints))):
        found.setdefault((float(f"{one.seconds:.9g}"), one.peak_bytes_per_device), one)
    return sorted(found.values(), key=_order)


def _with_whole(search: LayoutSearch) -> list[FoundLayout]:
    """Those layouts, ranked after the whole step was simulated in the first; as far as it takes another time than was
    expected, so will the others."""
    found = _ranked(search)
    for n in range(WHOLE):
        first = found[0]
        if first.kind == "simulated":
            break
        expected = first.seconds
        ratio = first.simulation.seconds / expected if expected else 1.0
        if n == 0:
            correct(search.made.values(), ratio)
        found = _ranked(search)
    return found


def _fixed(fixed: Any, machine: Topology) -> dict[str, int]:
    """The sizes of the mesh to stay on."""
    sizes = dict(fixed.shape) if isinstance(fixed, BaseMesh) else fixed
    if not isinstance(sizes, Mapping) or not sizes or not all(map(_is_count, sizes.values())):
        raise MeshError(
            f"fixed is {fixed!r}.",
            where=here(),
            why="it is a mesh, or the sizes of its axes",
            fix=f'fixed={{"data": {machine.size}}}',
        )
    if prod(sizes.values()) != machine.size:
        raise MeshError(
            f"A mesh of {prod(sizes.values())} devices does not lie on {machine.size} chips.",
            where=here(),
            why=f"fixed is {dict(sizes)}, and the machine {machine.text}",
            fix=f'fixed={{"data": {machine.size}}}',
        )
    return {name: int(n) for name, n in sizes.items()}


def _machine(topology: Any) -> Topology:
    try:
        found = named_machine(topology) if isinstance(topology, str) else topology
    except HardwareError as error:
        count = re.search(r"\s([0-9]+(x[0-9]+)*)$", topology.rstrip())
        chips = count[1] if count else "64"
        error.fix = re.sub(r"hardware\.get\('([^']*)'\)", rf'topology="\1 {chips}"', error.fix)
        error.fix = re.sub(r"Topology\('([^']*)', ([0-9]+)\)", r'topology="\1 \2"', error.fix)
        raise
    if isinstance(found, Chip) or not isinstance(found, Topology):
        name = found.name if isinstance(found, Chip) else "h100"
        raise MeshwrightError(
            f"The topology is {topology!r}." if topology is not None else "There is no topology to lay a step out on.",
            where=here(),
            why="a layout is for chips of a number: a machine, or a chip's name and how many",
            fix=f'topology="{name} 64"',
        )
    return found
