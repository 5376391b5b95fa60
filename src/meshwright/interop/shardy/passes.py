"""Passes on modules, by the names that ``sdy_opt`` has for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from meshwright.errors import MeshwrightError
from meshwright.interop.shardy.communication import reshards_to_collectives
from meshwright.interop.shardy.explicit_reshards import insert_reshards
from meshwright.interop.shardy.module_walk import RULE, Rules, walk
from meshwright.interop.shardy.module_writer import write_module
from meshwright.interop.shardy.problem_reader import ModuleReader, place_of
from meshwright.interop.shardy.sharding_rules import read_rule, rule_text
from meshwright.interop.stablehlo.context import Types, context
from meshwright.propagate.run import PASSES, PIPELINES, STRATEGIES, Answer, run


def populate_rules(module: Any) -> None:
    """Write its rule on every op that has one and carries none."""
    from jaxlib.mlir import ir

    rules = Rules(Types())
    with context():
        for op in walk(module.operation):
            if RULE in op.attributes:
                continue
            rule = rules(op)
            if rule is not None:
                op.attributes[RULE] = ir.Attribute.parse(rule_text(rule))


# Passes that change the module itself; the others propagate.
IN_PLACE: dict[str, Callable[[Any], None]] = {
    "sdy-populate-op-sharding-rules": populate_rules,
    "sdy-insert-explicit-reshards": insert_reshards,
    "sdy-insert-explicit-reshards=enable-full-version=true": partial(insert_reshards, full=True),
    "sdy-reshard-to-collectives": reshards_to_collectives,
}
_EXPORT_NAMED = "sdy-export-named-computations"
_SPLITTER = "sdy-constant-or-scalar-splitter"
_LAST_OF_EXPORT = "sdy-close-shardings"


class Passed(NamedTuple):
    """A module after passes, what a user should know, and (of the last that propagated) the answer."""

    module: Any
    warnings: list[str]
    answer: Answer | None


def pass_names() -> tuple[str, ...]:
    """Every pass and pipeline there is."""
    first = (*STRATEGIES, "sdy-propagation-pipeline", *IN_PLACE)
    return (*first, *sorted({*PASSES, *PIPELINES}.difference(first)))


def apply_passes(module: Any, passes: Sequence[str], names: bool = False) -> Passed:
    """Run passes and pipelines on a module, in order; some change the module that they are given.

    Passes between two of those run as one.
    """
    known = pass_names()
    for name in passes:
        if name not in known:
            raise MeshwrightError(f"There is no pass {name!r}.", why=f"the passes are {', '.join(known)}")
    warnings: list[str] = []
    answer = None
    waiting = list(passes)
    while waiting:
        if waiting[0] in IN_PLACE:
            IN_PLACE[waiting.pop(0)](module)
            continue
        stop = next((n for n, name in enumerate(waiting) if name in IN_PLACE), len(waiting))
        module, answer = _propagated(module, waiting[:stop], warnings, names)
        del waiting[:stop]
    return Passed(module, warnings, answer)


def _propagated(module: Any, passes: Sequence[str], warnings: list[str], names: bool) -> tuple[Any, Answer]:
    single = [one for name in passes for one in PIPELINES.get(name, (name,))]
    inside = walk(module.operation) if _EXPORT_NAMED in single else ()
    named = next((op for op in inside if op.name == "sdy.named_computation"), None)
    if named is not None:
        raise MeshwrightError(
            f"The named computation at {place_of(named)} cannot go through {_EXPORT_NAMED}.",
            why="the pass turns into functions what the pipeline made of calls, and this one was there before",
            fix="write it as a func.func and a func.call, or use -sdy-user-priority-propagate",
        )
    declared_meshes = any(name in PIPELINES and _SPLITTER in PIPELINES[name] for name in passes)
    reader = ModuleReader(module, names, declared_meshes)
    try:
        answer = run(reader.read(), passes)
    except MeshwrightError:
        if not names:  # say where
            run(ModuleReader(module, True, declared_meshes).read(), passes)
        raise
    warnings += [text for text in (*reader.warnings, *answer.told) if text not in warnings]
    constants = "sdy.constant" if _SPLITTER in single else "stablehlo.constant"
    new = write_module(module, answer.problem, constants, reader.shardings if declared_meshes else None)
    if any(name in PIPELINES and _LAST_OF_EXPORT in PIPELINES[name] for name in passes):
        insert_reshards(new, rules_before=True)
        _clean(new)
    if any(name in STRATEGIES for name in single):
        _drop_rules(new)
    return new, answer


def _drop_rules(module: Any) -> None:
    """Take off the rules that propagation used; those that a user made stay."""
    with context():
        for op in walk(module.operation):
            if RULE in op.attributes and not read_rule(str(op.attributes[RULE]))[1]:
                del op.attributes[RULE]


def _clean(module: Any) -> None:
    """Let MLIR fold and drop what nobody uses, as at the end of Shardy's export."""
    from jaxlib.mlir.passmanager import PassManager

    with context():
        PassManager.parse("builtin.module(canonicalize{enable-patterns=sdy-collective})").run(module.operation)
