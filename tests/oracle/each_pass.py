"""Every pass that ours and Shardy both have, one at a time: on a module as it is, and as the passes before left it.

``steps(text)`` runs Shardy's pipeline pass by pass, so that each pass meets what it meets there. ``reason`` says why a
module may come out differently; what has no reason must be the same, letter for letter.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property, lru_cache
from itertools import combinations
from typing import Any, NamedTuple
from unittest import mock

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from jaxlib.mlir.passmanager import PassManager

from meshwright.errors import MeshwrightError
from meshwright.interop.shardy import passes as passes_of_ours
from meshwright.interop.shardy import reshard_collectives
from meshwright.interop.shardy.communication import can_reduce
from meshwright.interop.shardy.module_shardings import Shardings, meshes_of
from meshwright.interop.shardy.module_walk import SHARDING, Rules, walk
from meshwright.interop.shardy.passes import IN_PLACE, apply_passes, drop_rules
from meshwright.interop.shardy.problem_reader import ModuleReader
from meshwright.interop.shardy.value_shardings import ValueShardings
from meshwright.interop.stablehlo.context import Types, parse_module
from meshwright.interop.stablehlo.ops import body_operation
from meshwright.propagate.problem import Problem
from meshwright.propagate.run import PIPELINES
from meshwright.sharding.axes import total_size
from tests.oracle.apart import apart
from tests.oracle.interpreter import with_general_dots
from tests.oracle.random_modules import EVERYTHING, Recipe, random_module
from tests.oracle.shardy import LEFT_OUT, PIPELINE, context, newest_rules, piped, piped_by_us
from tests.versions import CALL_SUMS, CALLS, CONSTRAINTS, FUNCTION_RESULTS, PADDING, RESOLVING, UNEVEN, older_than

CANONICALIZE = "canonicalize{enable-patterns=sdy-collective}"
INSERT, COLLECTIVES = "sdy-insert-explicit-reshards", "sdy-reshard-to-collectives"
FULL = f"{INSERT}{{enable-full-version=true}}"
MARKED = f"{INSERT}{{enable-full-version=true mark-partial-result-with-unreduced-axes=true}}"
RESOLVE, PAD = "sdy-resolve-permutation-factors{enable-halo-exchange=false}", "sdy-pad-for-divisibility"
OPTIMIZE = "sdy-optimize-collectives"
NEWEST_ORDER = "the newest pipeline, without what changed"
_PIPELINES = (PIPELINE, "sdy-export-pipeline")
_INSERTING = (INSERT, FULL, MARKED, "sdy-propagation-pipeline", "sdy-export-pipeline")
_BEFORE_GROUPS = ("sdy-constant-or-scalar-splitter", "sdy-import-pipeline")
ALL = (*EVERYTHING, "reshard", "stop", "meshes", "overlap")
# On a module as it was written; some of them are in no pipeline.
ALONE = (
    "sdy-basic-propagate", "sdy-aggressive-propagate", "sdy-op-priority-propagate", "sdy-user-priority-propagate",
    "sdy-basic-propagate{conservative-propagation=true}", "sdy-aggressive-propagate{propagation-strategy=basic}",
    "sdy-import-func-calls{add-data-flow-edges-on-named-computations=false}",
    "sdy-user-priority-propagate{run-op-priority-propagation=false}",
    "sdy-lift-inlined-meshes{use-single-device-mesh-names=true}",
    "sdy-drop-sharding-and-mesh{keep-module-sharding-metadata=true}",
    MARKED,
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
        if name == NEWEST_ORDER:
            return _in_newest_order(text)
        module = ir.Module.parse(text)
        passes = PassManager.parse(f"builtin.module({nested(name)})")
        try:
            passes.run(module.operation)
        except ir.MLIRError as error:
            return Outcome(error=error.error_diagnostics[0].message if error.error_diagnostics else str(error))
        return Outcome(str(module))


def _in_newest_order(text: str) -> Outcome:
    try:
        return Outcome(piped(text))
    except ir.MLIRError as error:
        return Outcome(error=error.error_diagnostics[0].message if error.error_diagnostics else str(error))


def as_given(text: str) -> str:
    """A module as Shardy prints it, with the newest rules."""
    with context():
        return str(ir.Module.parse(newest_rules(text)))


def steps(text: str) -> Iterator[Step]:
    """The pipeline on a module, pass by pass, until one refuses it."""
    text = as_given(text)
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
        if name == COLLECTIVES and is_installed(OPTIMIZE):
            yield Step(OPTIMIZE, text, by_shardy(text, OPTIMIZE))


def by_us(text: str, name: str) -> Outcome:
    """A module after a pass of ours; where the installed version never looks at sizes, ours does not, either."""
    return by_us_from(parse_module(text), name)


def by_us_from(module: Any, name: str) -> Outcome:
    """The same for a module that is there."""
    if name.startswith(COLLECTIVES) and older_than(UNEVEN):
        with mock.patch.object(reshard_collectives, "_padded", lambda size, axes: 0):
            return _by_us(module, name)
    return _by_us(module, name)


def _by_us(module: Any, name: str) -> Outcome:
    try:
        return Outcome(str(apply_passes(module, [name]).module))
    except MeshwrightError as error:
        return Outcome(error=str(error))


class _ReadOnce(ModuleReader):
    """A reader that reads its module once for all passes, and shares with others what holds for any module."""

    def __init__(self, text: str, names: bool, lifted: bool, conservative: bool) -> None:
        super().__init__(_parsed(text), names, lifted, conservative)
        self.types, self.rules = _TYPES, _rules(conservative)
        if not lifted:
            self.shardings = _shardings("\n".join(re.findall("^ *sdy.mesh .*", text, re.MULTILINE)))

    @cached_property
    def _problem(self) -> Problem:
        return super().read()

    def read(self) -> Problem:
        return self._problem


_TYPES = Types()


@cache
def _rules(conservative: bool) -> Rules:
    return Rules(_TYPES, conservative)


@lru_cache(maxsize=2)
def _shardings(meshes: str) -> Shardings:
    return Shardings(meshes_of(parse_module(meshes)))


@lru_cache(maxsize=2)
def _parsed(text: str) -> Any:
    return parse_module(text)


@lru_cache(maxsize=2)
def _reader(text: str, *options: bool) -> ModuleReader:
    return _ReadOnce(text, *options)


@lru_cache(maxsize=512)
def quickly_by_us(text: str, name: str) -> Outcome:
    """The same as ``by_us``, but that nothing is verified: text that Shardy prints, too, has been.

    A module is parsed, and read, once for all passes that leave it as it is.
    """
    changes = name.split("{")[0] in IN_PLACE or "keep-sharding-rules" in name or "single-device" in name

    def reader(module: Any, names: bool = False, lifted: bool = False, conservative: bool = False) -> ModuleReader:
        # Where something is refused, the module is read again with names.
        return _reader(text, names, lifted, conservative)

    module = _parsed(text).operation.clone() if changes else _parsed(text)
    with mock.patch.object(passes_of_ours, "verify_module", lambda module, when: None):
        if changes:
            return by_us_from(module, name)
        with mock.patch.object(passes_of_ours, "ModuleReader", reader):
            return by_us_from(module, name)


def reason(step: Step, ours: Outcome) -> str:
    """Why ours does something else on purpose; "" if there is no reason, and it should be the same."""
    return next((why for why, holds in REASONS.items() if holds(step, step.outcome, ours)), "")


def _is_changed(step: Step, theirs: Outcome, ours: Outcome) -> bool:
    """Whether the pass, or one of a pipeline, is not yet as it is in the newest version, and that is all."""
    if step.name in _PIPELINES:
        return older_than(CALLS) and _do_the_same(step.given, step.name)
    if step.name == RESOLVE and older_than(RESOLVING):
        return _same_after(step, _without_moves)
    if step.name == FUNCTION_RESULTS.name and older_than(FUNCTION_RESULTS):
        return _without_main_head(theirs.text) == _without_main_head(ours.text)
    if step.name == CONSTRAINTS.name and older_than(CONSTRAINTS):
        return _same_after(step, _without_constraints) or _says_less(theirs.text, ours.text)
    if step.name != PAD or not older_than(PADDING):
        return False
    # An older one leaves conversions behind, or what its verifier refuses, and makes no constants that nobody uses.
    # It masks less, and what it masks is not laid out.
    left = bool(theirs.error) or "unrealized_conversion_cast" in theirs.text
    if _has_uneven(step.given, _PADDED_SINCE):
        return True
    return left or (bool(ours.text) and _used(_unmasked(theirs.text)) == _used(_unmasked(ours.text)))


def _has_uneven(text: str, names: tuple[str, ...]) -> bool:
    """Whether an op of some names takes or makes a value of which a dim is split into parts that are not equal."""
    with context():
        module = ir.Module.parse(text)
        known = ValueShardings(module)
        for op in walk(module.operation):
            for value in (*op.operands, *op.results) if op.name.startswith(names) else ():
                sharding = known(value)
                if sharding is not None and any(
                    size % total_size(dim.axes) for size, dim in zip(value.type.shape, sharding.dims, strict=True)
                ):
                    return True
    return False


# Ops that older versions do not pad.
_PADDED_SINCE = ("sdy.all_", "sdy.reduce_scatter", "sdy.collective_permute", "func.call", "stablehlo.reduce")


def _says_less(theirs: str, ours: str) -> bool:
    """Whether two modules are the same but for shardings that are open everywhere and empty in the first."""
    if _WRITTEN.sub("", theirs) != _WRITTEN.sub("", ours):
        return False
    pairs = zip(_WRITTEN.findall(theirs), _WRITTEN.findall(ours), strict=True)
    return all(one == other or re.search(r"\[(\{\?\}(, )?)*\]>", one) for one, other in pairs)


_WRITTEN = re.compile(r"<@\w+, \[[^\]]*\][^>]*>")


def _unmasked(text: str) -> str:
    """A module without what keeps a part of a value that is behind the end of a dim from being seen."""
    with context():
        module = ir.Module.parse(text)
        for op in [op for op in walk(module.operation) if op.name == "stablehlo.select"]:
            test = op.operands[0].owner
            if getattr(test, "name", "") == "stablehlo.compare" and test.operands[0].owner.name == "stablehlo.iota":
                op.results[0].replace_all_uses_with(op.operands[1])
                op.erase()
        return str(module)


def _used(text: str) -> str:
    """A module without rules, and without what nobody uses or what does nothing."""
    return _without_rules(by_shardy(_without_idle_slices(text), "canonicalize{enable-patterns=none}").text)


def _do_the_same(text: str, name: str) -> bool:
    """Whether ours and Shardy's pass make the same of a module, or both refuse it, or Shardy does not survive it.

    Where the installed version is older, pipelines have the newest order, without the passes that changed.
    """
    older = name in _PIPELINES and older_than(CALLS)
    found = apart(each_alone, text, [NEWEST_ORDER if older and name == PIPELINE else name])
    if not found:
        return True
    theirs = found[0]
    if not older:
        ours = by_us(text, name)
    elif name == PIPELINE:
        ours = _by_us_without(newest_rules(text))
    else:
        kept = tuple(one for one in PIPELINES[name] if one not in LEFT_OUT)
        with mock.patch.dict(PIPELINES, {name: kept}):
            ours = _plain(by_us(text, name))
        # Rules of the newest version are written on ops for the older one, which takes them off; ours leaves them.
        theirs = _plain(by_shardy(theirs.text, "sdy-inline-meshes")) if theirs.text else theirs
    if theirs.error and ours.error:
        return True
    if older and any(word in theirs.error for word in _OWN_ERRORS):
        return True
    return theirs == ours or (name == PAD and _plain(theirs) == _plain(ours))


# What Shardy's verifier says about what it made itself: each is a reason below.
_OWN_ERRORS = ("is empty and closed but has a priority", "consecutive sub-axes can be merged")


def _plain(outcome: Outcome) -> Outcome:
    return Outcome(_without_rules(outcome.text), outcome.error)


def _by_us_without(text: str) -> Outcome:
    """Our pipeline without the passes that changed."""
    try:
        return Outcome(piped_by_us(text))
    except MeshwrightError as error:
        return Outcome(error=str(error))


def _without_main_head(text: str) -> str:
    return re.sub(r"\n *func.func (public )?@main\(.*", "", text)


def _has_value_in_groups_twice(text: str) -> bool:
    values = re.findall(r"sdy.sharding_group (%\S+) group_id", text)
    return len(set(values)) < len(values)


def _stops_short(step: Step, theirs: Outcome, ours: Outcome) -> bool:
    """Whether ours ends in a sharding that was asked for, and Shardy in another."""
    ends = re.findall(r"sdy.reshard %\S+ (<@.*?\](?:, \w+=\w*\{[^}]*\})*>) ", step.given)
    asked = {re.sub(r", \?|\?|(?<=\})p\d+", "", end) for end in ends}
    return any(ours.text.count(f"out_sharding={end}") > theirs.text.count(f"out_sharding={end}") for end in asked)


def _has_sizes_that_do_not_divide(text: str) -> bool:
    for mesh in re.findall(r"sdy.mesh @\w+ = <\[(.*?)\]", text):
        sizes = [int(size) for size in re.findall(r'"=(\d+)', mesh)]
        if any(max(pair) % min(pair) for pair in combinations(sizes, 2)):
            return True
    return False


def _without_rules(text: str) -> str:
    return re.sub(r",? ?sdy.sharding_rule = #sdy.op_sharding_rule<(?:->|[^<>])*>", "", text).replace(" {}", "")


# Modules without what ours treats otherwise on purpose: if the pass then does the same, it is that which differs.

_Change = Callable[[str], str]


def _same_after(step: Step, *changes: _Change) -> bool:
    """Whether a pass does the same with a module that was changed."""
    text = step.given
    for change in changes:
        text = change(text)
    return text != step.given and _do_the_same(text, step.name)


def _calls_for(chosen: Callable[[Any], bool]) -> _Change:
    """Calls of something unknown instead of some ops."""

    def change(text: str) -> str:
        with context():
            module = ir.Module.parse(text)
            for op in [op for op in walk(module.operation) if chosen(op)]:
                attributes: dict[str, Any] = {"call_target_name": ir.StringAttr.get("unknown")}
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
                for value, new in zip(op.results, call.results, strict=True):
                    value.replace_all_uses_with(new)
                op.erase()
            return str(module)

    return change


def _without(chosen: Callable[[Any], bool]) -> _Change:
    """The first operands of some ops instead of their results."""

    def change(text: str) -> str:
        with context():
            module = ir.Module.parse(text)
            for op in [op for op in walk(module.operation) if chosen(op)]:
                for value, operand in zip(op.results, op.operands, strict=False):
                    value.replace_all_uses_with(operand)
                op.erase()
            return str(module)

    return change


def _from_neutral(text: str) -> str:
    """Sums that begin with 0, and products that begin with 1."""
    with context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        for op in list(walk(module.operation)):
            start = _NEUTRAL.get(body_operation(op.regions[0])) if op.name == "stablehlo.reduce" else None
            for number in range(len(op.results), 2 * len(op.results)) if start is not None else ():
                kind = op.operands[number].type
                value = ir.Attribute.parse(f"dense<{start}{'.0' if 'f' in str(kind.element_type) else ''}> : {kind}")
                made = ir.Operation.create(
                    "stablehlo.constant", results=[kind], attributes={"value": value}, ip=ir.InsertionPoint(op)
                )
                op.operands[number] = made.result
        return str(module)


def _without_sums(text: str) -> str:
    return re.sub(r", unreduced=\w*\{[^}]*\}", "", text)


def _by(name: str) -> _Change:
    """What Shardy's pass makes of it."""
    return lambda text: by_shardy(text, name).text or text


def _is_other_reduction(op: Any) -> bool:
    """Whether there is no all-reduce in the dialect for a reduction."""
    known = ("add", "maximum", "minimum") if can_reduce("max") else ("add",)
    return op.name in ("stablehlo.reduce", "stablehlo.scatter") and body_operation(op.regions[0]) not in known


def _without_strides(text: str) -> str:
    """Convolutions along dims that are as long as their window, of which there is one, take one step."""
    with context():
        module = ir.Module.parse(text)
        for op in [op for op in walk(module.operation) if op.name == "stablehlo.convolution"]:
            dims = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
            sizes = [
                [value.type.shape[dim] for dim in spatial]
                for value, spatial in (
                    (op.operands[0], dims.input_spatial_dimensions),
                    (op.operands[1], dims.kernel_spatial_dimensions),
                    (op.results[0], dims.output_spatial_dimensions),
                )
            ]
            steps = list(ir.DenseI64ArrayAttr(op.attributes["window_strides"])) if sizes[0] else []
            one = [
                1 if n == window and made == 1 else step for n, window, made, step in zip(*sizes, steps, strict=True)
            ]
            if one != steps:
                op.attributes["window_strides"] = ir.DenseI64ArrayAttr.get(one)
        return str(module)


def _without_idle_reshards(text: str) -> str:
    """A module without rules, and without reshards to what a value is laid out as already."""
    with context():
        module = ir.Module.parse(text)
        known = ValueShardings(module)
        drop_rules(module)
        for op in [op for op in walk(module.operation) if op.name == "sdy.reshard"]:
            if str(known(op.operands[0])) == str(known(op.results[0])):
                op.results[0].replace_all_uses_with(op.operands[0])
                op.erase()
        return str(module)


_without_idle_slices = _without(lambda op: op.name == "stablehlo.slice" and op.operands[0].type == op.results[0].type)
_NEUTRAL = {"add": "0", "multiply": "1"}
_without_barriers = _without(lambda op: op.name == "sdy.propagation_barrier")
_without_constraints = _without(lambda op: op.name == "sdy.sharding_constraint")
_without_concatenations = _calls_for(lambda op: op.name == "stablehlo.concatenate")
_without_reshapes = _calls_for(lambda op: op.name == "stablehlo.reshape")
_without_reductions = _calls_for(_is_other_reduction)
_without_scatters = _without(lambda op: op.name == "stablehlo.scatter" and body_operation(op.regions[0]) != "add")
_without_pads = _calls_for(lambda op: op.name == "stablehlo.pad")
_MOVING = ("stablehlo.dynamic_update_slice", "stablehlo.reshape", "stablehlo.convolution")
_without_moves = _calls_for(lambda op: op.name in _MOVING)
_without_small_axes, _with_one_group = _by("sdy-remove-size-one-axes"), _by("sdy-sharding-group-import")


def _changes(name: str) -> tuple[_Change, ...]:
    """All that may make a difference to a pass."""
    if name in _INSERTING:
        return _without_sums, _without_reductions, _without_reshapes, _without_barriers, _without_concatenations
    if name == PAD:
        return _without_barriers, _from_neutral, _without_scatters, with_general_dots
    return (_without_small_axes, _without_sums, _without_barriers) if name.startswith(COLLECTIVES) else ()


# Why ours does something else on purpose, or cannot do the same.
REASONS: dict[str, Callable[[Step, Outcome, Outcome], bool]] = {
    "an axis of size 1 that comes or goes moves nothing; Shardy makes a permute of it": (
        lambda step, theirs, ours: step.name.startswith(COLLECTIVES) and _same_after(step, _without_small_axes)
    ),
    "Shardy's verifier refuses what its padding makes": (
        lambda step, theirs, ours: (
            step.name == PAD
            and any(
                why in theirs.error
                for why in ("incompatible with return type", "unrealized_conversion_cast", "Expects that for each dim")
            )
        )
    ),
    "what is scattered behind the end of a dim changes nothing; Shardy scatters it, too": (
        lambda step, theirs, ours: step.name == PAD and _same_after(step, _without_scatters)
    ),
    "Shardy's verifier refuses what becomes of an all-to-all over two axes; ours leaves it": (
        lambda step, theirs, ours: step.name == OPTIMIZE and "overlapping source/target" in theirs.error
    ),
    "of a pad that moves along two dims, Shardy makes one whole; ours both": (
        lambda step, theirs, ours: step.name == RESOLVE and _same_after(step, _without_pads)
    ),
    "a convolution with one window takes no step; Shardy makes its dims whole, and sums them as split": (
        lambda step, theirs, ours: step.name == RESOLVE and _same_after(step, _without_strides)
    ),
    "where parts of an axis in two dims are one in another, Shardy reshards values to what they are": (
        lambda step, theirs, ours: (
            step.name == RESOLVE
            and bool(theirs.text)
            and bool(ours.text)
            and _without_idle_reshards(theirs.text) == _without_idle_reshards(ours.text)
        )
    ),
    "a dot sums nothing behind the end of a dim; Shardy sums it, unless it is a dot_general": (
        lambda step, theirs, ours: step.name == PAD and _same_after(step, with_general_dots)
    ),
    "a sum counts what it begins with once; Shardy pads with it, and counts it again": (
        lambda step, theirs, ours: step.name == PAD and _same_after(step, _from_neutral)
    ),
    "rules have the sizes of before padding; ours are taken off": (
        lambda step, theirs, ours: step.name == PAD and _without_rules(theirs.text) == _without_rules(ours.text)
    ),
    "of zeros that nobody uses, and of slices that cut nothing, Shardy leaves others": (
        lambda step, theirs, ours: (
            step.name == PAD and bool(theirs.text) and bool(ours.text) and _used(theirs.text) == _used(ours.text)
        )
    ),
    "what would notice the padding is refused; Shardy pads it": (
        lambda step, theirs, ours: (
            step.name == PAD and "cannot be run on dims that are padded to be divisible" in ours.error
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
    "until 0.12, a call that loses a partial sum, or makes one, is resharded": (
        lambda step, theirs, ours: (
            step.name == CALL_SUMS.name and older_than(CALL_SUMS) and _same_after(step, _without_sums)
        )
    ),
    "between axes of equal weight for a concatenation, Shardy and ours may choose differently": (
        lambda step, theirs, ours: step.name in _INSERTING and _same_after(step, _without_concatenations)
    ),
    "a value behind a barrier is laid out as before it; Shardy takes it for replicated": (
        lambda step, theirs, ours: (
            step.name.startswith((*_INSERTING, PAD, COLLECTIVES)) and _same_after(step, _without_barriers)
        )
    ),
    "a value is in groups more than once, before the import that makes them one": (
        lambda step, theirs, ours: (
            ("-propagate" in step.name or step.name in _BEFORE_GROUPS)
            and _has_value_in_groups_twice(step.given)
            and _same_after(step, _with_one_group)
        )
    ),
    "the dialect has no all-reduce for a reduction; Shardy sums the parts": (
        lambda step, theirs, ours: step.name in (FULL, MARKED) and _same_after(step, _without_reductions)
    ),
    "reshapes whose dims do not fit the axes are split in another way": (
        lambda step, theirs, ours: step.name in (FULL, MARKED) and _same_after(step, _without_reshapes)
    ),
    "Shardy forgets partial sums that a reshard takes or makes, or a value of no sharding; ours sums, or refuses": (
        lambda step, theirs, ours: step.name.startswith((COLLECTIVES, *_INSERTING)) and _same_after(step, _without_sums)
    ),
    "where sizes of axes do not divide one another, Shardy stops short of the sharding asked for; ours arrives": (
        lambda step, theirs, ours: (
            step.name.startswith(COLLECTIVES)
            and _has_sizes_that_do_not_divide(step.given)
            and _stops_short(step, theirs, ours)
        )
    ),
    "between two names of one mesh Shardy puts a permute, which its verifier refuses; ours takes them for one": (
        lambda step, theirs, ours: "result mesh name is different but same device ids" in theirs.error
    ),
    "Shardy sums over axes on a mesh that has none, which its verifier refuses; ours sums on the mesh of the axes": (
        lambda step, theirs, ours: (
            step.name.startswith(_INSERTING) and "'sdy.all_reduce' op unknown axis name" in theirs.error
        )
    ),
    "parts of axes that cannot be beside each other are gathered; Shardy's verifier refuses what it makes": (
        lambda step, theirs, ours: step.name.startswith(COLLECTIVES) and ":(" in step.given and bool(theirs.error)
    ),
    "more than one of these": lambda step, theirs, ours: _same_after(step, *_changes(step.name)),
}


def first_difference(step: Step, ours: Outcome) -> str:
    """The first line on which ours and Shardy differ."""
    theirs = step.outcome.text.splitlines() or [step.outcome.error]
    lines = ours.text.splitlines() or [ours.error]
    first = next((n for n, pair in enumerate(zip(theirs, lines, strict=False)) if pair[0] != pair[1]), 0)
    return f"{step.name}, line {first + 1}:\n- {theirs[first]}\n+ {lines[min(first, len(lines) - 1)]}"


class Job(NamedTuple):
    """What Shardy is asked to do with one module: the pipeline pass by pass, or, if there are names, passes alone."""

    text: str
    names: tuple[str, ...] = ()


def each_alone(text: str, names: Sequence[str]) -> Iterator[Outcome]:
    """A module after each of some passes of Shardy's."""
    for name in names:
        yield by_shardy(text, name)


def each_job(jobs: Sequence[Job]) -> Iterator[tuple[int, Step | None]]:
    """What Shardy makes of modules, with the number of the job; nothing at the end of each."""
    for number, job in enumerate(jobs):
        if job.names:
            text = as_given(job.text)
            yield from ((number, Step(name, text, by_shardy(text, name))) for name in job.names)
        else:
            yield from ((number, step) for step in steps(job.text))
        yield number, None


def done(jobs: Sequence[Job]) -> list[list[Step]]:
    """What Shardy makes of the module of each job. One process does them all, as long as it lives.

    Of passes alone, those that it does not survive are left out; a pipeline ends there.
    """
    found: list[list[Step]] = [[] for _ in jobs]
    left = list(enumerate(jobs))
    while left:
        over = made = 0
        for number, step in apart(each_job, [job for _, job in left]):
            if step is None:
                over, made = number + 1, 0
            else:
                found[left[number][0]].append(step)
                made += 1
        del left[:over]
        if left:
            number, job = left.pop(0)
            if job.names[made + 1 :]:
                left.insert(0, (number, job._replace(names=job.names[made + 1 :])))
    return found


class Comparison(NamedTuple):
    """One module, or several: how many passes were compared, how often each reason held, and what has none."""

    passes: int
    reasons: Counter[str]
    differences: list[str]


def compared(seed: int, share: float = 1.0) -> Comparison:
    """Ours and Shardy on one random module, through a share of all passes."""
    return all_compared([seed], share)[0]


def all_compared(seeds: Sequence[int], share: float = 1.0) -> list[Comparison]:
    """The same for several modules, with as few processes as there can be."""
    numbers = [random.Random(seed) for seed in seeds]
    jobs: list[tuple[int, Job]] = []
    for seed, rng in zip(seeds, numbers, strict=True):
        text = random_module(seed, Recipe(ops=8, features=(*ALL, "named") if seed % 5 == 0 else ALL))
        names = tuple(name for name in ALONE if is_installed(name) and rng.random() < share)
        jobs += [(seed, Job(text)), *([(seed, Job(text, names))] if names else [])]
    found: dict[int, list[Step]] = {seed: [] for seed in seeds}
    for (seed, _), steps_of_job in zip(jobs, done([job for _, job in jobs]), strict=True):
        found[seed] += steps_of_job
    return [_compared(seed, found[seed], rng, share) for seed, rng in zip(seeds, numbers, strict=True)]


def _compared(seed: int, found: Sequence[Step], rng: random.Random, share: float) -> Comparison:
    chosen = [step for step in found if step.name != CANONICALIZE and rng.random() < share]
    reasons: Counter[str] = Counter()
    differences = []
    for step in chosen:
        ours = quickly_by_us(step.given, step.name)
        if ours == step.outcome or (ours.error and step.outcome.error):
            continue
        ours = by_us(step.given, step.name)
        if ours == step.outcome or (ours.error and step.outcome.error):
            continue
        why = reason(step, ours)
        if why:
            reasons[why] += 1
        else:
            differences.append(f"seed {seed}, {first_difference(step, ours)}")
    return Comparison(len(chosen), reasons, differences)
