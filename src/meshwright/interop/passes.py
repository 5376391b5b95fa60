"""Passes on modules, by the names that ``sdy_opt`` has for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from meshwright.errors import MeshwrightError
from meshwright.interop.mlir_context import context
from meshwright.interop.module_writer import write_module
from meshwright.interop.populate import populate_rules
from meshwright.interop.problem_reader import ModuleReader
from meshwright.propagate.run import PASSES, PIPELINES, STRATEGIES, Answer, run

POPULATE = "sdy-populate-op-sharding-rules"
# Passes of Shardy's that put in the communication of a module, which is the partitioner's work here.
ABSENT = ("sdy-insert-explicit-reshards", "sdy-reshard-to-collectives")
_SPLITTER = "sdy-constant-or-scalar-splitter"
_LAST_OF_EXPORT = "sdy-close-shardings"


class Passed(NamedTuple):
    """A module after passes, what a user should know, and (of the last that propagated) the answer."""

    module: Any
    warnings: list[str]
    answer: Answer | None


def pass_names() -> tuple[str, ...]:
    """Every pass and pipeline there is."""
    first = (*STRATEGIES, "sdy-propagation-pipeline", POPULATE)
    return (*first, *sorted({*PASSES, *PIPELINES}.difference(first)))


def apply_passes(module: Any, passes: Sequence[str], names: bool = False) -> Passed:
    """Run passes and pipelines on a module, in order; the module itself stays as it is, rules aside.

    Passes between two that need the module itself run as one.
    """
    known = pass_names()
    for name in passes:
        if name in ABSENT:
            raise MeshwrightError(
                f"The pass {name!r} is not there.",
                why="it puts communication into a module; here a program is partitioned when it is compiled",
                fix="mw.jit(f).lower(*args).compile().collectives, or meshwright reshard for one value",
            )
        if name not in known:
            raise MeshwrightError(f"There is no pass {name!r}.", why=f"the passes are {', '.join(known)}")
    warnings: list[str] = []
    answer = None
    waiting = list(passes)
    while waiting:
        if waiting[0] == POPULATE:
            populate_rules(module)
            waiting.pop(0)
            continue
        stop = waiting.index(POPULATE) if POPULATE in waiting else len(waiting)
        module, answer = _propagated(module, waiting[:stop], warnings, names)
        del waiting[:stop]
    return Passed(module, warnings, answer)


def _propagated(module: Any, passes: Sequence[str], warnings: list[str], names: bool) -> tuple[Any, Answer]:
    single = [one for name in passes for one in PIPELINES.get(name, (name,))]
    lifted = any(name in PIPELINES and _SPLITTER in PIPELINES[name] for name in passes)
    reader = ModuleReader(module, names, lifted)
    answer = run(reader.read(), passes)
    warnings += [text for text in (*reader.warnings, *answer.told) if text not in warnings]
    constants = "sdy.constant" if _SPLITTER in single else "stablehlo.constant"
    new = write_module(module, answer.problem, constants, reader.shardings if lifted else None)
    if any(name in PIPELINES and _LAST_OF_EXPORT in PIPELINES[name] for name in passes):
        _clean(new)
    return new, answer


def _clean(module: Any) -> None:
    """Let MLIR fold and drop what nobody uses, as at the end of Shardy's export."""
    from jaxlib.mlir.passmanager import PassManager

    with context():
        PassManager.parse("builtin.module(canonicalize{enable-patterns=sdy-collective})").run(module.operation)
