"""Every pass that ours and Shardy both have, one at a time: on a module as it is, and as the passes before left it.

``steps(text)`` runs Shardy's pipeline pass by pass, so that each pass meets what it meets there. ``reason`` says why a
module may come out differently; what has no reason must be the same, letter for letter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager

from meshwright.errors import MeshwrightError
from meshwright.interop.shardy.passes import apply_passes
from meshwright.interop.stablehlo.context import parse_module
from tests.oracle.shardy import LEFT_OUT, context, newest_rules
from tests.versions import UNEVEN, older_than

CANONICALIZE = "canonicalize{enable-patterns=sdy-collective}"
_ON_FUNCTIONS = frozenset({
    "sdy-constant-or-scalar-merger", "sdy-drop-sharding-rules", "sdy-explicit-gather-scatter-batching",
    "sdy-insert-explicit-reshards", "sdy-populate-op-sharding-rules", "sdy-remove-all-gather-reduce-scatter-for-cmv1",
    "sdy-reshard-to-collectives", "sdy-sharding-constraint-to-reshard", "sdy-sink-data-flow-edges",
    "sdy-sink-func-data-flow-edges", "sdy-verify-unreduced-axes",
})  # fmt: skip
# On a module as it was written; some of them are in no pipeline.
ALONE = (
    "sdy-basic-propagate", "sdy-aggressive-propagate", "sdy-op-priority-propagate", "sdy-user-priority-propagate",
    "sdy-basic-propagate{conservative-propagation=true}", "sdy-aggressive-propagate{propagation-strategy=basic}",
    "sdy-import-func-calls{add-data-flow-edges-on-named-computations=false}",
    "sdy-unflatten-call-graph{dedup-functions-fully=true}", "sdy-remove-propagation-debug-info",
    "sdy-import-pipeline", "sdy-reshard-to-collectives", "sdy-reshard-to-collectives{keep-redundant-reshards=true}",
    "sdy-populate-op-sharding-rules", "sdy-drop-sharding-rules", "sdy-drop-sharding-and-mesh", "sdy-inline-meshes",
    "sdy-lift-inlined-meshes", "sdy-add-data-flow-edges", "sdy-add-func-data-flow-edges",
    "sdy-apply-sharding-constraints", "sdy-close-shardings", "sdy-constant-or-scalar-merger",
    "sdy-constant-or-scalar-splitter", "sdy-export-named-computations", "sdy-flatten-call-graph",
    "sdy-import-func-calls", "sdy-insert-func-call-reshards", "sdy-manual-axes-cleanup", "sdy-pre-order-funcs",
    "sdy-propagate-sharding-from-func-to-call", "sdy-remove-sharding-groups", "sdy-remove-size-one-axes",
    "sdy-remove-sub-axes-in-input-output-shardings", "sdy-sharding-constraint-to-reshard", "sdy-sharding-group-import",
    "sdy-sink-data-flow-edges", "sdy-sink-func-data-flow-edges", "sdy-unflatten-call-graph",
    "sdy-update-non-divisible-input-output-shardings", "symbol-dce",
)  # fmt: skip


class Outcome(NamedTuple):
    """What a pass made of a module: its text, or the first error."""

    text: str = ""
    error: str = ""


class Step(NamedTuple):
    """One pass, the module it was given, and what became of it."""

    name: str
    given: str
    outcome: Outcome


@cache
def pipeline() -> tuple[str, ...]:
    """The passes of Shardy's pipeline, without the options that are off.

    What the installed version does otherwise than the newest is left out.
    """
    with context():
        text = str(PassManager.parse("builtin.module(sdy-propagation-pipeline)")).removeprefix("builtin.module(")
    found = []
    for part in re.findall(r"(?:func\.func\()?([\w-]+)(?:\{((?:[^{}]|\{[^{}]*\})*)\})?\)?", text):
        name, options = part
        if name == "canonicalize":
            found.append(CANONICALIZE)
        elif name not in ("sdy-save-module", *LEFT_OUT):
            kept = [option for option in options.split() if option == "keep-sharding-rules=true"]
            found.append(name + (f"{{{kept[0]}}}" if kept else ""))
    return tuple(found)


def by_shardy(text: str, name: str) -> Outcome:
    """A module after a pass of Shardy's."""
    nested = f"func.func({name})" if name.split("{")[0] in _ON_FUNCTIONS else name
    with context():
        module = ir.Module.parse(text)
        try:
            PassManager.parse(f"builtin.module({nested})").run(module.operation)
        except ir.MLIRError as error:
            return Outcome(error=error.error_diagnostics[0].message if error.error_diagnostics else str(error))
        return Outcome(str(module))


def steps(text: str) -> Iterator[Step]:
    """The pipeline on a module, pass by pass, until one refuses it."""
    with context():
        text = str(ir.Module.parse(newest_rules(text)))
    for name in pipeline():
        step = Step(name, text, by_shardy(text, name))
        yield step
        if step.outcome.error:
            return
        text = step.outcome.text


def by_us(text: str, name: str) -> Outcome:
    """A module after a pass of ours."""
    try:
        return Outcome(str(apply_passes(parse_module(text), [name]).module))
    except MeshwrightError as error:
        return Outcome(error=str(error))


def reason(step: Step, ours: Outcome) -> str:
    """Why ours does something else on purpose; "" if there is no reason, and it should be the same."""
    theirs = step.outcome
    if "sdy.data_flow_edge" in theirs.error and "sdy.named_computation" in step.given:
        return "Shardy adds edges twice to named computations that are in the module, and its verifier refuses them"
    if "is empty and closed but has a priority" in theirs.error:
        return "Shardy closes empty dims that have a priority, and its verifier refuses them; ours drops the priority"
    if step.name == "sdy-drop-sharding-and-mesh" and "unknown mesh" in theirs.error:
        return "until 0.12, Shardy drops meshes that ops still name, and its verifier refuses them"
    if step.name == "sdy-insert-explicit-reshards" and "concatenate" in step.given and ":(" in step.given:
        return "between an axis and its parts in another order, of equal weight, Shardy and ours may choose differently"
    if step.name.startswith("sdy-reshard-to-collectives") and older_than(UNEVEN):
        return UNEVEN.what
    if step.name.startswith("sdy-reshard-to-collectives") and "unreduced" in step.given:
        return "Shardy loses the partial sums that a reshard takes or makes; ours sums, or refuses"
    if step.name.startswith("sdy-reshard-to-collectives") and ("all_gather" in ours.text or theirs.error):
        return "where Shardy stops short of the sharding asked for, or is refused by its verifier, ours arrives"
    return ""


def unexplained(step: Step) -> str:
    """How ours differs from Shardy where it has no reason to; "" if it does not."""
    ours = by_us(step.given, step.name)
    if ours == step.outcome or (ours.error and step.outcome.error) or reason(step, ours):
        return ""
    theirs = step.outcome.text.splitlines() or [step.outcome.error]
    lines = ours.text.splitlines() or [ours.error]
    first = next((n for n, pair in enumerate(zip(theirs, lines, strict=False)) if pair[0] != pair[1]), 0)
    return f"{step.name}, line {first + 1}:\n- {theirs[first]}\n+ {lines[min(first, len(lines) - 1)]}"
