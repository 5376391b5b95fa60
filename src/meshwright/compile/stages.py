"""The compiler is a list: stages from a traced program to Python code, each with the check that its output passes.

A stage is a pure function of a `Compilation`, in which it replaces the program and enters what those after it need.
``compiled.stages`` are the records of one compilation: what each stage made, and the seconds it took. ``partition`` may
try several layouts; its seconds are those of all of them, and its record says how many there were. The stages of
programs on a mesh are in `compile.partitioning`, which is loaded when there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from meshwright.compile.placement import Placement
from meshwright.core import tree
from meshwright.core.check import check
from meshwright.core.program import Eqn, Program, Var
from meshwright.core.text.printing import print_program
from meshwright.engine.compile import emit
from meshwright.transform.simplify import cse, dce
from meshwright.transform.stack import stack

if TYPE_CHECKING:
    from meshwright.compile.partitioning import Inlined, Layouts
    from meshwright.partition.alternatives import Cheapest
    from meshwright.partition.partition import LocalProgram


@dataclass(frozen=True)
class Compilation:
    """A program on its way through the stages: what the last one made of it, and what those after it need to know."""

    program: Program
    out_tree: tree.TreeDef
    donated: tuple[bool, ...] = ()
    placement: Placement | None = None
    inlined: Inlined | None = None
    layouts: Layouts | None = None
    cheapest: Cheapest | None = None
    local: LocalProgram | None = None  # after the last stage that changed it
    text: str = ""
    function: Callable[..., tuple[Any, ...]] | None = None
    direct: Callable[..., Sequence[Any]] | None = None  # the same for arrays that are where it wants them
    from_host: Callable[[], Callable[..., Any]] | None = None  # makes one for arrays of JAX and of NumPy together
    engine: str = "numpy"
    device: Any = None  # the sharding of all arguments and results, if that is one device


class Stage(NamedTuple):
    """A stage of the compiler: its name, what it makes, the function, the check that its output passes (of what goes
    in, what comes out, and the name), and which compilations have it."""

    name: str
    makes: str
    run: Callable[[Compilation], Compilation]
    check: Callable[[Compilation, Compilation, str], None]
    applies: Callable[[Compilation], bool]


@dataclass(frozen=True)
class StageRecord:
    """What one stage made: a program and, after propagation, the sharding of each value; after ``emit``, its text."""

    name: str
    program: Program
    seconds: float
    shardings: Mapping[Var, Any] = field(default_factory=dict)
    text: str = ""
    tried: int = 1  # layouts

    @property
    def about(self) -> str:
        """A sentence on what the stage makes."""
        chosen = f", the cheapest of {self.tried} layouts" if self.tried > 1 else ""
        return next(stage.makes for stage in STAGES if stage.name == self.name) + chosen

    def __str__(self) -> str:
        if self.text:
            return self.text

        def said(eqn: Eqn) -> str:
            found = [str(self.shardings[v]) for v in eqn.outputs if v in self.shardings]
            return ", ".join(text.removeprefix("#sdy.sharding<@mesh, ").removesuffix(">") for text in found)

        return print_program(self.program, said if self.shardings else False)


def run_stages(
    stages: Sequence[Stage], compilation: Compilation, records: list[StageRecord] | None = None
) -> Compilation:
    """Run those of the stages that apply, and check and record what each of them made."""
    for stage in stages:
        if stage.applies(compilation):
            start = perf_counter()
            made = stage.run(compilation)
            stage.check(compilation, made, stage.name)
            compilation = made
            if records is not None:
                records.append(_record(stage.name, compilation, perf_counter() - start))
    return compilation


def _record(name: str, done: Compilation, seconds: float) -> StageRecord:
    if name == "propagate" and done.layouts is not None:
        return StageRecord(name, done.program, seconds, done.layouts.propagated.shardings)
    tried = done.cheapest.tried if name == "partition" and done.cheapest is not None else 1
    return StageRecord(name, done.program, seconds, text=done.text, tried=tried)


def _simplify(given: Compilation) -> Compilation:
    return replace(given, program=cse(dce(given.program)))


def _on_mesh(name: str) -> Callable[[Compilation], Compilation]:
    """A stage of programs on a mesh."""

    def stage(given: Compilation) -> Compilation:
        return getattr(import_module("meshwright.compile.partitioning"), name)(given)  # type: ignore[no-any-return]

    return stage


def _stack(given: Compilation) -> Compilation:
    return replace(given, program=stack(given.program if given.local is None else given.local.whole))


def _emit(given: Compilation) -> Compilation:
    if given.engine == "numpy":
        text, function = emit(given.program, given.donated)
        return replace(given, text=text, function=function, direct=function)
    from meshwright.engine.xla import emit_local, emit_xla

    if given.engine == "xla" and given.local is not None:
        text, function, direct, from_host = emit_local(given.local, given.donated)
    else:
        device = given.device if given.engine == "xla" else None
        text, function, direct, from_host = emit_xla(given.program, False, given.donated, device and device.device.id)
    return replace(given, text=text, function=function, direct=direct, from_host=from_host)


def _traced_well_formed(_: Compilation, made: Compilation, name: str) -> None:
    check(made.program, name)


def _well_formed(before: Compilation, made: Compilation, name: str) -> None:
    if made.program is not before.program:
        check(made.program, name, before.program)


def _shardings_fit(_: Compilation, made: Compilation, name: str) -> None:
    """Raise unless each sharding that propagation found has the rank of its value."""
    assert made.layouts is not None
    for var, sharding in made.layouts.propagated.shardings.items():
        assert len(sharding.dims) == var.type.ndim, f"{name} found {sharding} for {var.type}"


def _has_code(_: Compilation, made: Compilation, name: str) -> None:
    assert made.function is not None, f"{name} made no function"


def _always(_: Compilation) -> bool:
    return True


def _in_one_process(given: Compilation) -> bool:
    return given.engine != "xla"


def _is_on_mesh(given: Compilation) -> bool:
    return given.placement is not None


def _overlaps(given: Compilation) -> bool:
    return given.placement is not None and given.placement.overlap is not None


SIMPLIFY = (Stage("simplify", "without dead and repeated equations", _simplify, _traced_well_formed, _always),)
PARTITION = (
    Stage(
        "inline",
        "calls inlined; shardings that types say become constraints",
        _on_mesh("inline"),
        _well_formed,
        _is_on_mesh,
    ),
    Stage("propagate", "a sharding for every value", _on_mesh("propagate"), _shardings_fit, _is_on_mesh),
    Stage(
        "partition",
        "the program of one device, with collectives",
        _on_mesh("partition"),
        _well_formed,
        _is_on_mesh,
    ),
    Stage(
        "combine",
        "sums over the same devices as one all-reduce, sums that are then sliced as reduce-scatters",
        _on_mesh("combine"),
        _well_formed,
        _is_on_mesh,
    ),
    Stage(
        "overlap",
        "gathers and sums beside the matmuls next to them",
        _on_mesh("overlap"),
        _well_formed,
        _overlaps,
    ),
)
CODE = (
    Stage("stack", "all devices in one program", _stack, _well_formed, _in_one_process),
    Stage("emit", "Python for NumPy, or StableHLO for XLA", _emit, _has_code, _always),
)
STAGES = (*SIMPLIFY, *PARTITION, *CODE)
