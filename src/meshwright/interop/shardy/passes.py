"""Passes on modules, by the names and with the options that ``sdy_opt`` has for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from meshwright.errors import MeshwrightError
from meshwright.interop.shardy.collective_matmul import merge_collectives_into_matmuls
from meshwright.interop.shardy.communication import reshards_to_collectives
from meshwright.interop.shardy.divisible_shapes import pad_for_divisibility
from meshwright.interop.shardy.explicit_reshards import insert_reshards
from meshwright.interop.shardy.gather_batching import make_batching_explicit
from meshwright.interop.shardy.global_to_local import convert_to_local, groups_can_be_axes
from meshwright.interop.shardy.local_collectives import LocalCollectives
from meshwright.interop.shardy.mesh_passes import drop_shardings_and_meshes, inline_meshes, remove_debug_info
from meshwright.interop.shardy.module_walk import RULE, Rules, walk
from meshwright.interop.shardy.module_writer import write_module
from meshwright.interop.shardy.optimized_collectives import optimize_collectives
from meshwright.interop.shardy.order_free import PASS as ORDER_FREE
from meshwright.interop.shardy.order_free import propagate_in_any_order
from meshwright.interop.shardy.pass_options import PassCall, parse_pass
from meshwright.interop.shardy.permutation_factors import resolve_permutations
from meshwright.interop.shardy.problem_reader import ModuleReader
from meshwright.interop.shardy.sharding_rules import read_rule, rule_text
from meshwright.interop.shardy.single_device import resolve_single_devices
from meshwright.interop.stablehlo.context import Types, context, run_mlir, verify_module
from meshwright.propagate.run import PASSES, PIPELINES, STRATEGIES, Answer, Options, run


def populate_rules(module: Any, conservative: bool = False) -> None:
    """Write its rule on every op that has one and carries none."""
    from jaxlib.mlir import ir

    rules = Rules(Types(), conservative)
    with context():
        for op in walk(module.operation):
            if RULE in op.attributes:
                continue
            rule = rules(op)
            if rule is not None:
                op.attributes[RULE] = ir.Attribute.parse(rule_text(rule))


def drop_rules(module: Any) -> None:
    """Take rules off ops, but for those that a user made."""
    with context():
        for op in walk(module.operation):
            if RULE in op.attributes and not read_rule(str(op.attributes[RULE]))[1]:
                del op.attributes[RULE]


def _by_mlir(pipeline: str) -> Callable[[Any, PassCall], None]:
    """A pass of MLIR's own, as jaxlib has it."""

    def apply(module: Any, call: PassCall) -> None:
        run_mlir(pipeline, module, f"after {pipeline}")

    return apply


def _insert_reshards(module: Any, call: PassCall) -> None:
    insert_reshards(module, full=call.flag("enable-full-version"), marks_sums=call.flag(_MARKS_SUMS))


def _convert_to_local(module: Any, call: PassCall) -> None:
    by_axes, alone = call.flag(_BY_AXES, groups_can_be_axes()), call.flag(_GATHERS_ALONE)
    convert_to_local(module, LocalCollectives(by_axes, _are_replicas(call), alone))


def _are_replicas(call: PassCall) -> bool:
    """Whether devices are replicas of one partition, not partitions of one replica."""
    replicas, partitions = (int(call.options.get(name, "1")) for name in (_REPLICAS, _PARTITIONS))
    if replicas > 1 and partitions > 1:
        raise MeshwrightError(
            f"The pass {call.name} does not run on {replicas} replicas of {partitions} partitions.",
            why="a device is a replica or a partition, not both",
            fix=f"-{call.name}={_PARTITIONS}={replicas * partitions}",
        )
    return replicas != 1


_BY_AXES, _REPLICAS, _PARTITIONS = "enable-rgv3", "replica-count", "partition-count"
_GATHERS_ALONE, _SCATTERS_TOGETHER = "per-dim-all-gather", "combine-multi-dimension-reduce-scatter"
_MARKS_SUMS, _METADATA = "mark-partial-result-with-unreduced-axes", "keep-module-sharding-metadata"
_BY_OP, _SINGLE_DEVICE, _DIRECTORY = (
    "run-op-priority-propagation",
    "use-single-device-mesh-names",
    "module-dump-directory",
)
_HALO, _UNSAFE = "enable-halo-exchange", "rng-bit-generator-unsafe"
_WHOLE_NUMBER = ()
_EITHER = ("true", "false")
_KEEP, _CONSERVATIVE, _REDUNDANT = "keep-sharding-rules", "conservative-propagation", "keep-redundant-reshards"
# Passes that change the module itself; the others go through a propagation problem.
IN_PLACE: dict[str, Callable[[Any, PassCall], None]] = {
    "sdy-populate-op-sharding-rules": lambda module, call: populate_rules(module, call.flag(_CONSERVATIVE)),
    "sdy-drop-sharding-rules": lambda module, call: drop_rules(module),
    "sdy-insert-explicit-reshards": _insert_reshards,
    "sdy-reshard-to-collectives": lambda module, call: reshards_to_collectives(module, call.flag(_REDUNDANT)),
    "sdy-remove-propagation-debug-info": lambda module, call: remove_debug_info(module),
    "sdy-inline-meshes": lambda module, call: inline_meshes(module),
    "sdy-drop-sharding-and-mesh": lambda module, call: drop_shardings_and_meshes(module, call.flag(_METADATA)),
    "sdy-convert-global-to-local": _convert_to_local,
    "sdy-explicit-gather-scatter-batching": lambda module, call: make_batching_explicit(module),
    "sdy-pad-for-divisibility": lambda module, call: pad_for_divisibility(module),
    "sdy-resolve-permutation-factors": lambda module, call: resolve_permutations(module),
    "sdy-remove-all-gather-reduce-scatter-for-cmv1": lambda module, call: merge_collectives_into_matmuls(module),
    "sdy-optimize-collectives": lambda module, call: optimize_collectives(module),
    "sdy-resolve-single-device-sharding": lambda module, call: resolve_single_devices(module, _are_replicas(call)),
    "canonicalize": _by_mlir("canonicalize"),
    "cse": _by_mlir("cse"),
    "inline": _by_mlir("inline"),
    "symbol-dce": _by_mlir("symbol-dce"),
}
_FULLY, _NAMED_EDGES = "dedup-functions-fully", "add-data-flow-edges-on-named-computations"
_DEBUGGING = ("debug-sharding-origins", "debug-propagation-edge-sharding")
_SINKING = tuple(f"sink-{name}" for name in _DEBUGGING)
_STRATEGY = {
    **dict.fromkeys((_KEEP, _CONSERVATIVE), _EITHER),
    **dict.fromkeys(_DEBUGGING, ("false",)),
    _DIRECTORY: ("",),
}
_FOR_READERS = ("it writes attributes that only Shardy's own tools read", "-{name} --explain")
_TO_OUTPUT = ("what passes print goes to the standard output", "meshwright opt -{name} … > saved.mlir")
# Values of options that Shardy has and this does not: why, and what to write instead.
_UNOFFERED: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys((*_DEBUGGING, *_SINKING), _FOR_READERS),
    _DIRECTORY: _TO_OUTPUT,
    _HALO: ("what moves between neighbours is made whole first", f"-{{name}}={_HALO}=false"),
    _SCATTERS_TOGETHER: ("each dim is scattered by itself", "-{name}"),
}
# The options of each pass with the values that they may have; none stand for any whole number.
OPTIONS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "sdy-basic-propagate": _STRATEGY,
    **{
        name: {
            **_STRATEGY,
            "propagation-strategy": ("aggressive", "basic"),
            **({} if name == "sdy-aggressive-propagate" else {_BY_OP: _EITHER}),
        }
        for name in ("sdy-aggressive-propagate", "sdy-op-priority-propagate", "sdy-user-priority-propagate")
    },
    "sdy-apply-sharding-constraints": dict.fromkeys(_DEBUGGING, ("false",)),
    "sdy-sink-data-flow-edges": dict.fromkeys(_SINKING, ("false",)),
    "sdy-lift-inlined-meshes": {_SINGLE_DEVICE: _EITHER},
    "sdy-drop-sharding-and-mesh": {_METADATA: _EITHER},
    "sdy-populate-op-sharding-rules": {_CONSERVATIVE: _EITHER},
    "sdy-insert-explicit-reshards": {"enable-full-version": _EITHER, _MARKS_SUMS: _EITHER},
    "sdy-propagation-pipeline": {_FULLY: _EITHER},
    "sdy-unflatten-call-graph": {_FULLY: _EITHER},
    "sdy-import-func-calls": {_NAMED_EDGES: _EITHER},
    "sdy-reshard-to-collectives": {_REDUNDANT: _EITHER},
    "sdy-convert-global-to-local": {
        **dict.fromkeys((_BY_AXES, _GATHERS_ALONE), _EITHER),
        _SCATTERS_TOGETHER: ("false",),
        **dict.fromkeys((_REPLICAS, _PARTITIONS), _WHOLE_NUMBER),
    },
    "sdy-resolve-permutation-factors": {
        _HALO: ("false",),
        _UNSAFE: _EITHER,
        **dict.fromkeys((_REPLICAS, _PARTITIONS), _WHOLE_NUMBER),
    },
    "sdy-resolve-single-device-sharding": {_REPLICAS: _WHOLE_NUMBER, _PARTITIONS: _WHOLE_NUMBER},
}
# Passes of Shardy that are not here: why, and what to write instead.
_NOT_OFFERED = {
    "sdy-per-instruction-partitioning": (
        "it puts what each device runs of an op into a manual computation of its own, op by op",
        "-sdy-convert-global-to-local",
    ),
    "sdy-save-module": ("what passes print goes to the standard output", "meshwright opt … > saved.mlir"),
}
_SPLITTER = "sdy-constant-or-scalar-splitter"
_LIFT = "sdy-lift-inlined-meshes"
_EXPORT, _LAST_OF_EXPORT = "sdy-export-pipeline", "sdy-close-shardings"


class Passed(NamedTuple):
    """A module after passes, what a user should know, and (of the last that propagated) the answer."""

    module: Any
    warnings: list[str]
    answer: Answer | None


def pass_names() -> tuple[str, ...]:
    """Every pass and pipeline there is."""
    first = (*STRATEGIES, "sdy-propagation-pipeline", ORDER_FREE, *IN_PLACE)
    pipelines = {name for name in PIPELINES if "{" not in name}
    return (*first, *sorted({*PASSES, *pipelines}.difference(first)))


def checked_pass(text: str) -> PassCall:
    """A pass that there is, with options that it has."""
    call = parse_pass(text)
    known = pass_names()
    if call.name in _NOT_OFFERED:
        why, fix = _NOT_OFFERED[call.name]
        raise MeshwrightError(f"The pass {call.name} of Shardy is not offered.", why=why, fix=fix)
    if call.name not in known:
        raise MeshwrightError(f"There is no pass {call.name!r}.", why=f"the passes are {', '.join(known)}")
    options = OPTIONS.get(call.name, {})
    for option, value in call.options.items():
        if option not in options:
            raise MeshwrightError(
                f"The pass {call.name} has no option {option!r}.",
                why=f"its options are {', '.join(options)}" if options else "it has none",
                fix=f"-{call.name}",
            )
        if options[option] is _WHOLE_NUMBER:
            if not value.isdecimal():
                raise MeshwrightError(
                    f"The option {option} of {call.name} cannot be {value!r}.",
                    why="it is a whole number",
                    fix=f"-{call.name}={option}=1",
                )
        elif value not in options[option] and (value or "true") not in options[option]:
            if option in _UNOFFERED:
                why, fix = _UNOFFERED[option]
                raise MeshwrightError(
                    f"The option {option} of {call.name} is not offered.", why=why, fix=fix.format(name=call.name)
                )
            raise MeshwrightError(
                f"The option {option} of {call.name} cannot be {value!r}.",
                why=f"it is one of {', '.join(options[option])}",
                fix=f"-{call.name}={option}={options[option][0]}",
            )
    return call


def apply_passes(module: Any, passes: Sequence[str], names: bool = False) -> Passed:
    """Run passes and pipelines on a module, in order, and verify what came out; some change the module they are given.

    Passes between two of those run as one.
    """
    waiting = [checked_pass(text) for text in passes]
    warnings: list[str] = []
    answer = None
    while waiting:
        if waiting[0].name in IN_PLACE:
            call = waiting.pop(0)
            IN_PLACE[call.name](module, call)
            continue
        if waiting[0].name == ORDER_FREE:
            waiting.pop(0)
            module, answer = _in_any_order(module, warnings, names)
            continue
        alone = (*IN_PLACE, ORDER_FREE)
        stop = next((n for n, call in enumerate(waiting) if call.name in alone), len(waiting))
        stop = next((n + 1 for n, call in enumerate(waiting[:stop]) if call.options), stop)
        module, answer = _propagated(module, waiting[:stop], warnings, names)
        del waiting[:stop]
    verify_module(module, f"after {', '.join(passes)}")
    return Passed(module, warnings, answer)


def _propagated(module: Any, calls: Sequence[PassCall], warnings: list[str], names: bool) -> tuple[Any, Answer]:
    passes = [_pipeline(call) for call in calls]
    single = [one for name in passes for one in PIPELINES.get(name, (name,))]
    keeps_rules = any(call.flag(_KEEP) for call in calls)
    if keeps_rules:
        populate_rules(module, any(call.flag(_CONSERVATIVE) for call in calls))
    options = [_options(call) for call in calls]
    conservative = any(one.conservative for one in options)
    reader = ModuleReader(module, names, _LIFT in single, conservative)
    if any(call.flag(_SINGLE_DEVICE) for call in calls):
        reader.shardings.single_device = "single_device"
    try:
        answer = run(reader.read(), passes, options=options)
    except MeshwrightError:
        if not names:  # say where
            run(ModuleReader(module, True, _LIFT in single, conservative).read(), passes, options=options)
        raise
    warnings += [text for text in (*reader.warnings, *answer.told) if text not in warnings]
    constants = "sdy.constant" if _SPLITTER in single else "stablehlo.constant"
    new = write_module(module, answer.problem, constants, reader.shardings if _LIFT in single else None)
    if any(name in PIPELINES and _LAST_OF_EXPORT in PIPELINES[name] for name in passes):
        insert_reshards(new, rules_before=True)
        # What nobody uses is dropped, and what is the same becomes one, as at the end of Shardy's export.
        run_mlir("canonicalize{enable-patterns=sdy-collective}", new, f"after {', '.join(passes)}")
        if passes[-1] == _EXPORT:
            inline_meshes(new)
    if any(name in STRATEGIES for name in single) and not keeps_rules:
        drop_rules(new)
    return new, answer


def _in_any_order(module: Any, warnings: list[str], names: bool) -> tuple[Any, Answer]:
    reader = ModuleReader(module, names)
    answer = propagate_in_any_order(reader.read(), lambda answer: write_module(module, answer.problem))
    warnings += [text for text in (*reader.warnings, *answer.told) if text not in warnings]
    new = write_module(module, answer.problem)
    drop_rules(new)
    return new, answer


def _pipeline(call: PassCall) -> str:
    """The pass, or that one of two pipelines which an option asks for."""
    full = f"{call.name}{{{_FULLY}=true}}"
    return full if call.flag(_FULLY) and full in PIPELINES else call.name


def _options(call: PassCall) -> Options:
    strategy = call.options.get("propagation-strategy", "aggressive")
    return Options(
        call.flag(_CONSERVATIVE), strategy, call.flag(_FULLY), call.flag(_NAMED_EDGES, True), call.flag(_BY_OP, True)
    )
