"""Every pass that ours and Shardy both have, one at a time: on a module as it is, and as the passes before left it.

``steps(text)`` runs Shardy's pipeline pass by pass, so that each pass meets what it meets there. ``reason`` says why a
module may come out differently; what has no reason must be the same, letter for letter.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import combinations
from typing import NamedTuple
from unittest import mock

from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager

from meshwright.errors import MeshwrightError
from meshwright.interop.shardy import reshard_collectives
from meshwright.interop.shardy.communication import can_reduce
from meshwright.interop.shardy.module_walk import SHARDING, walk
from meshwright.interop.shardy.passes import apply_passes
from meshwright.interop.stablehlo.context import parse_module
from tests.oracle.apart import apart
from tests.oracle.random_modules import EVERYTHING, Recipe, random_module
from tests.oracle.shardy import LEFT_OUT, context, newest_rules, piped, piped_by_us, survived
from tests.versions import CALL_SUMS, CALLS, PADDING, UNEVEN, older_than

CANONICALIZE = "canonicalize{enable-patterns=sdy-collective}"
INSERT, COLLECTIVES = "sdy-insert-explicit-reshards", "sdy-reshard-to-collectives"
FULL = f"{INSERT}{{enable-full-version=true}}"
RESOLVE, PAD = "sdy-resolve-permutation-factors{enable-halo-exchange=false}", "sdy-pad-for-divisibility"
_INSERTING = (INSERT, FULL, "sdy-propagation-pipeline", "sdy-export-pipeline")
_BEFORE_GROUPS = ("sdy-constant-or-scalar-splitter", "sdy-import-pipeline")
ALL = (*EVERYTHING, "reshard", "stop", "meshes", "overlap")
# On a module as it was written; some of them are in no pipeline.
ALONE = (
    "sdy-basic-propagate", "sdy-aggressive-propagate", "sdy-op-priority-propagate", "sdy-user-priority-propagate",
    "sdy-basic-propagate{conservative-propagation=true}", "sdy-aggressive-propagate{propagation-strategy=basic}",
    "sdy-import-func-calls{add-data-flow-edges-on-named-computations=false}",
    "sdy-unflatten-call-graph{dedup-functions-fully=true}", "sdy-remove-propagation-debug-info",
    "sdy-import-pipeline", "sdy-export-pipeline", "sdy-propagation-pipeline",
    "sdy-reshard-to-collectives", "sdy-reshard-to-collectives{keep-redundant-reshards=true}",
    "sdy-populate-op-sharding-rules", "sdy-populate-op-sharding-rules{conservative-propagation=true}",
    "sdy-drop-sharding-rules", "sdy-drop-sharding-and-mesh", "sdy-inline-meshes",
    "sdy-lift-inlined-meshes", "sdy-add-data-flow-edges", "sdy-add-func-data-flow-edges",
    "sdy-apply-sharding-constraints", "sdy-close-shardings", "sdy-constant-or-scalar-merger",
    "sdy-constant-or-scalar-splitter", "sdy-export-named-computations", "sdy-flatten-call-graph",
    "sdy-import-func-calls", "sdy-insert-func-call-reshards", "sdy-manual-axes-cleanup", "sdy-pre-order-funcs",
    "sdy-propagate-sharding-from-func-to-call", "sdy-remove-sharding-groups", "sdy-remove-size-one-axes",
    "sdy-remove-sub-axes-in-input-output-shardings", "sdy-sharding-constraint-to-reshard", "sdy-sharding-group-import",
    "sdy-sink-data-flow-edges", "sdy-sink-func-data-flow-edges", "sdy-unflatten-call-graph",
    "sdy-update-non-divisible-input-output-shardings", "symbol-dce", "sdy-explicit-gather-scatter-batching",
    "sdy-resolve-single-device-sharding", "sdy-remove-all-gather-reduce-scatter-for-cmv1",
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


@cache
def nested(name: str) -> str:
    """A pass as a pass manager wants it: some are run on each function, which ones depends on the version.

    "" if the installed version does not have it.
    """
    with context():
        for spelled in (name, f"func.func({name})"):
            try:
                PassManager.parse(f"builtin.module({spelled})")
            except ValueError:
                continue
            return spelled
    return ""


def is_installed(name: str) -> bool:
    """Whether the installed Shardy has a pass."""
    return nested(name) != ""


def by_shardy(text: str, name: str) -> Outcome:
    """A module after a pass of Shardy's."""
    with context():
        module = ir.Module.parse(text)
        passes = PassManager.parse(f"builtin.module({nested(name)})")
        try:
            passes.run(module.operation)
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
        if name == INSERT:
            yield from _prepared(text)
        if step.outcome.error:
            return
        text = step.outcome.text


def _prepared(text: str) -> Iterator[Step]:
    """What a partitioner is given, pass by pass."""
    for name in (FULL, RESOLVE, COLLECTIVES, "sdy-remove-all-gather-reduce-scatter-for-cmv1", PAD):
        step = Step(name, text, by_shardy(text, name))
        yield step
        if step.outcome.error:
            return
        text = step.outcome.text


def by_us(text: str, name: str) -> Outcome:
    """A module after a pass of ours; where the installed version never looks at sizes, ours does not, either."""
    if name.startswith(COLLECTIVES) and older_than(UNEVEN):
        with mock.patch.object(reshard_collectives, "_padded", lambda size, axes: 0):
            return _by_us(text, name)
    return _by_us(text, name)


def _by_us(text: str, name: str) -> Outcome:
    try:
        return Outcome(str(apply_passes(parse_module(text), [name]).module))
    except MeshwrightError as error:
        return Outcome(error=str(error))


def reason(step: Step, ours: Outcome) -> str:
    """Why ours does something else on purpose; "" if there is no reason, and it should be the same."""
    return next((why for why, holds in REASONS.items() if holds(step, step.outcome, ours)), "")


def _is_changed(step: Step, theirs: Outcome, ours: Outcome) -> bool:
    """Whether the pass, or one of a pipeline, is not yet as it is in the newest version."""
    if step.name in ("sdy-propagation-pipeline", "sdy-export-pipeline"):
        return older_than(CALLS) and _agree_but_for_changes(step, theirs, ours)
    if step.name == RESOLVE:
        return older_than(PADDING) and re.search(r"stablehlo\.(dynamic_update_slice|reshape)", step.given) is not None
    return step.name in LEFT_OUT or (step.name == PAD and older_than(PADDING))


def _agree_but_for_changes(step: Step, theirs: Outcome, ours: Outcome) -> bool:
    """Whether ours and Shardy's pipeline make the same without the passes that changed, in the newest order."""
    if "unreduced" in ours.error:
        return True  # the newest pipelines verify partial sums
    if step.name == "sdy-export-pipeline":
        # Rules of the newest version are written on ops for the older one, which takes them off; ours leaves them.
        inlined = by_shardy(theirs.text, "sdy-inline-meshes") if theirs.text else theirs
        return bool(inlined.text) and _without_rules(inlined.text) == _without_rules(ours.text)
    expected = survived(piped, step.given)
    try:
        return expected is None or expected == piped_by_us(newest_rules(step.given))
    except MeshwrightError:
        return False


def _is_lossy_call(step: Step, theirs: Outcome, ours: Outcome) -> bool:
    return step.name == "sdy-insert-func-call-reshards" and older_than(CALL_SUMS) and "unreduced" in step.given


def _sums_elsewhere(step: Step, theirs: Outcome, ours: Outcome) -> bool:
    """Whether ours takes or makes a partial sum that Shardy does not."""
    if not step.name.startswith((COLLECTIVES, INSERT, "sdy-propagation-pipeline", "sdy-export-pipeline")):
        return False
    return bool(ours.error) or any(
        ours.text.count(word) != theirs.text.count(word) for word in ("sdy.all_reduce", "sdy.replicated_to_unreduced")
    )


def _reduces_otherwise(step: Step, theirs: Outcome, ours: Outcome) -> bool:
    """Whether there is a reduction that the dialect has no all-reduce for."""
    kinds = "multiply|and|or|xor" + ("|maximum|minimum" if not can_reduce("max") else "")
    body = rf"stablehlo.(?:reduce|scatter)\b(?:.*applies stablehlo.(?:{kinds})|(?!.*applies))"
    return step.name == FULL and re.search(body, step.given.replace('"', "")) is not None


def _has_value_in_groups_twice(text: str) -> bool:
    values = re.findall(r"sdy.sharding_group (%\S+) group_id", text)
    return len(set(values)) < len(values)


def _has_sizes_that_do_not_divide(text: str) -> bool:
    for mesh in re.findall(r"sdy.mesh @\w+ = <\[(.*?)\]", text):
        sizes = [int(size) for size in re.findall(r'"=(\d+)', mesh)]
        if any(max(pair) % min(pair) for pair in combinations(sizes, 2)):
            return True
    return False


def _without_rules(text: str) -> str:
    return re.sub(r",? ?sdy.sharding_rule = #sdy.op_sharding_rule<(?:->|[^<>])*>", "", text).replace(" {}", "")


def _same_without(step: Step, name: str) -> bool:
    """Whether a module has ops of a name, and comes out the same where these are calls of something unknown."""
    if name not in step.given:
        return False
    with context():
        module = ir.Module.parse(step.given)
        for op in [op for op in walk(module.operation) if op.name == name]:
            if name == "sdy.propagation_barrier":
                op.results[0].replace_all_uses_with(op.operands[0])
            else:
                attributes = {"call_target_name": ir.StringAttr.get("unknown")}
                if SHARDING in op.attributes:
                    attributes[SHARDING] = op.attributes[SHARDING]
                call = ir.Operation.create(
                    "stablehlo.custom_call",
                    results=[value.type for value in op.results],
                    operands=list(op.operands),
                    attributes=attributes,
                    loc=op.location,
                    ip=ir.InsertionPoint(op),
                )
                op.results[0].replace_all_uses_with(call.results[0])
            op.erase()
        text = str(module)
    found = apart(each_alone, text, [step.name])
    return not found or found[0] == by_us(text, step.name)


# Why ours does something else on purpose, or cannot do the same.
REASONS: dict[str, Callable[[Step, Outcome, Outcome], bool]] = {
    "an axis of size 1 that comes or goes moves nothing; Shardy makes a permute of it": (
        lambda step, theirs, ours: (
            step.name.startswith(COLLECTIVES)
            and re.search(r'"=1[,\]]', step.given) is not None
            and theirs.text.count("sdy.collective_permute") > ours.text.count("sdy.collective_permute")
        )
    ),
    "rules have the sizes of before padding; ours are taken off": (
        lambda step, theirs, ours: step.name == PAD and _without_rules(theirs.text) == _without_rules(ours.text)
    ),
    "what would notice the padding is refused; Shardy pads it": (
        lambda step, theirs, ours: (
            step.name == PAD and any(why in ours.error for why in ("it has no sharding rule", "depends on the shape"))
        )
    ),
    "the installed version is older than a change that ours follows": _is_changed,
    "Shardy adds edges twice to named computations that are in the module, and its verifier refuses them": (
        lambda step, theirs, ours: "sdy.data_flow_edge" in theirs.error and "sdy.named_computation" in step.given
    ),
    "Shardy closes empty dims that have a priority, and its verifier refuses them; ours drops the priority": (
        lambda step, theirs, ours: "is empty and closed but has a priority" in theirs.error
    ),
    "without axes of size 1, Shardy leaves parts side by side that its verifier refuses; ours joins them": (
        lambda step, theirs, ours: "consecutive sub-axes can be merged" in theirs.error
    ),
    "until 0.12, Shardy drops meshes that ops still name, and its verifier refuses them": (
        lambda step, theirs, ours: step.name == "sdy-drop-sharding-and-mesh" and "unknown mesh" in theirs.error
    ),
    "Shardy reads the sharding of a call after it is gone: what it finds is another's, or ends it": (
        lambda step, theirs, ours: (
            step.name.startswith("sdy-import-func-calls") and "doesn't match tensor rank" in theirs.error
        )
    ),
    "until 0.12, a call that loses a partial sum, or makes one, is resharded": _is_lossy_call,
    "between axes of equal weight for a concatenation, Shardy and ours may choose differently": (
        lambda step, theirs, ours: step.name in _INSERTING and _same_without(step, "stablehlo.concatenate")
    ),
    "a value behind a barrier is laid out as before it; Shardy takes it for replicated": (
        lambda step, theirs, ours: step.name in _INSERTING and _same_without(step, "sdy.propagation_barrier")
    ),
    "a value is in groups more than once, before the import that makes them one": (
        lambda step, theirs, ours: (
            ("-propagate" in step.name or step.name in _BEFORE_GROUPS) and _has_value_in_groups_twice(step.given)
        )
    ),
    "the dialect has no all-reduce for a reduction; Shardy sums the parts": _reduces_otherwise,
    "reshapes whose dims do not fit the axes are split in another way": (
        lambda step, theirs, ours: step.name == FULL and _same_without(step, "stablehlo.reshape")
    ),
    "Shardy forgets partial sums that a reshard takes or makes, or a value of no sharding; ours sums, or refuses": (
        lambda step, theirs, ours: "unreduced" in step.given and _sums_elsewhere(step, theirs, ours)
    ),
    "where sizes of axes do not divide one another, Shardy stops short of the sharding asked for; ours arrives": (
        lambda step, theirs, ours: step.name.startswith(COLLECTIVES) and _has_sizes_that_do_not_divide(step.given)
    ),
    "between two names of one mesh Shardy puts a permute, which its verifier refuses; ours takes them for one": (
        lambda step, theirs, ours: "result mesh name is different but same device ids" in theirs.error
    ),
    "parts of axes that cannot be beside each other are gathered; Shardy's verifier refuses what it makes": (
        lambda step, theirs, ours: step.name.startswith(COLLECTIVES) and ":(" in step.given and bool(theirs.error)
    ),
}


def first_difference(step: Step, ours: Outcome) -> str:
    """The first line on which ours and Shardy differ."""
    theirs = step.outcome.text.splitlines() or [step.outcome.error]
    lines = ours.text.splitlines() or [ours.error]
    first = next((n for n, pair in enumerate(zip(theirs, lines, strict=False)) if pair[0] != pair[1]), 0)
    return f"{step.name}, line {first + 1}:\n- {theirs[first]}\n+ {lines[min(first, len(lines) - 1)]}"


def each_alone(text: str, names: Sequence[str]) -> Iterator[Outcome]:
    """A module after each of some passes of Shardy's."""
    for name in names:
        yield by_shardy(text, name)


def alone(text: str, names: Sequence[str]) -> Iterator[Step]:
    """Each of some passes on a module; those that Shardy does not survive are left out."""
    left = list(names)
    while left:
        found = apart(each_alone, text, left)
        yield from (Step(name, text, outcome) for name, outcome in zip(left, found, strict=False))
        del left[: len(found) + 1]


class Comparison(NamedTuple):
    """One module, or several: how many passes were compared, how often each reason held, and what has none."""

    passes: int
    reasons: Counter[str]
    differences: list[str]


def compared(seed: int, share: float = 1.0) -> Comparison:
    """Ours and Shardy on one random module, through a share of all passes."""
    rng = random.Random(seed)
    features = (*ALL, "named") if seed % 5 == 0 else ALL
    found: list[Step] = apart(steps, random_module(seed, Recipe(ops=8, features=features)))
    if not found:
        return Comparison(0, Counter(), [])
    found += alone(found[0].given, [name for name in ALONE if rng.random() < share and is_installed(name)])
    chosen = [step for step in found if step.name != CANONICALIZE and rng.random() < share]
    reasons: Counter[str] = Counter()
    differences = []
    for step in chosen:
        ours = by_us(step.given, step.name)
        if ours == step.outcome or (ours.error and step.outcome.error):
            continue
        why = reason(step, ours)
        if why:
            reasons[why] += 1
        else:
            differences.append(f"seed {seed}, {first_difference(step, ours)}")
    return Comparison(len(chosen), reasons, differences)
