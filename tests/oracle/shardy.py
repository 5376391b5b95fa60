"""The real Shardy, as jaxlib has it: runs passes on modules.

Where it is older than what ours follows (``tests.versions``), modules are given the newest rules, the pipeline has the
newest order, and passes that changed are left out of it, here and on our side.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any
from unittest import mock

from jax._src.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager

from meshwright.interop.shardy.module_walk import RULE, Rules, walk
from meshwright.interop.shardy.passes import apply_passes
from meshwright.interop.shardy.sharding_rules import rule_text
from meshwright.interop.stablehlo.context import Types, parse_module
from meshwright.interop.stablehlo.context import context as our_context
from meshwright.propagate.run import PIPELINES
from tests.oracle.apart import one_apart
from tests.versions import CALLS, PASSES, RULES, VERIFICATION, older_than

PIPELINE = "sdy-propagation-pipeline"
FUNCTION_PASSES = (
    "populate-op-sharding-rules", "insert-explicit-reshards", "reshard-to-collectives", "sink-func-data-flow-edges",
    "verify-unreduced-axes", "drop-sharding-rules",
)  # fmt: skip
# Verification refuses modules, which then cannot be compared: it has a test of its own.
LEFT_OUT = frozenset({VERIFICATION.name, *(change.name for change in PASSES if older_than(change))})


@cache
def context() -> Any:
    found = mlir.make_ir_context()
    found.enable_multithreading(False)  # it has no threads then, and can be forked
    return found


def newest_rules(text: str) -> str:
    """A module on whose ops the rules are written that changed after the installed version; other ops have none."""
    changed = {name for name, change in RULES.items() if older_than(change)}
    if not changed:
        return text
    module, rules = parse_module(text), Rules(Types())
    with our_context():
        for op in walk(module.operation):
            rule = rules(op) if op.name in changed and RULE not in op.attributes else None
            if rule is not None:
                op.attributes[RULE] = ir.Attribute.parse(rule_text(rule))
    return str(module)


def _nested(name: str) -> str:
    return f"func.func(sdy-{name})" if name.split("{")[0] in FUNCTION_PASSES else f"sdy-{name}"


def apply(text: str, *passes: str) -> str:
    """The module after passes such as ``basic-propagate`` or ``export-pipeline``, printed. Raises ir.MLIRError."""
    with context():
        module = ir.Module.parse(text)
        for name in passes:
            PassManager.parse(f"builtin.module({_nested(name)})").run(module.operation)
        return str(module)


def refuses(text: str, name: str) -> bool:
    """Whether a pass refuses a module; one that does not exist refuses none."""
    with context():
        try:
            passes = PassManager.parse(f"builtin.module({_nested(name)})")
        except ValueError:
            return False
        module = ir.Module.parse(text)
        try:
            passes.run(module.operation)
        except ir.MLIRError:
            return True
    return False


@cache
def _pipeline(reshards: bool) -> str:
    """Shardy's pipeline without what is left out, with or without the pass that adds reshards."""
    with context():
        passes = str(PassManager.parse(f"builtin.module({PIPELINE})"))
    passes = re.sub(r"canonicalize\{.*top-down=false\}", "canonicalize{enable-patterns=sdy-collective}", passes)
    passes = passes.replace(" module-dump-directory=", "").replace("sdy-save-module,", "")
    if older_than(CALLS):
        calls = re.search(r"sdy-import-func-calls[^,]*,symbol-dce,", passes)
        assert calls is not None
        passes = passes.replace(calls[0], "sdy-add-func-data-flow-edges,")
        groups = "sdy-sharding-group-import,"
        passes = passes.replace(groups, f"func.func(sdy-sink-func-data-flow-edges),{groups}{calls[0]}")
    for name in LEFT_OUT | ({"sdy-insert-explicit-reshards"} if not reshards else set()):
        passes = re.sub(rf"(func\.func\({name}(\{{[^}}]*\}})?\)|{name}(\{{[^}}]*\}})?),", "", passes)
    return passes


def piped(text: str) -> str:
    """The module after Shardy's pipeline, without what is left out."""
    return _piped(text, reshards=True)


def pipeline_without_reshards(text: str) -> str:
    """The same, but for the one pass that adds reshards, which is the partitioner's work."""
    return _piped(text, reshards=False)


def _piped(text: str, reshards: bool) -> str:
    with context():
        module = ir.Module.parse(newest_rules(text))
        PassManager.parse(_pipeline(reshards)).run(module.operation)
        return str(module)


def piped_by_us(text: str) -> str:
    """The module after our pipeline, without what is left out."""
    passes = tuple(name for name in PIPELINES[PIPELINE] if name not in LEFT_OUT)
    with mock.patch.dict(PIPELINES, {PIPELINE: passes}):
        return str(apply_passes(parse_module(text), [PIPELINE]).module)


def survived(function: Callable[..., str], *args: str) -> str | None:
    """What a function of this module gives: None where Shardy refuses the module or does not survive it."""
    found: str | None = one_apart(_unless_refused, function.__name__, args)
    return found


def _unless_refused(name: str, args: tuple[str, ...]) -> str | None:
    try:
        found: str = globals()[name](*args)
    except ir.MLIRError:
        return None
    return found
